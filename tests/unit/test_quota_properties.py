"""Quota under any order of events: nothing above its limit, books that hold, owners that get back.

Small seeded samples here; 100,000 steps each in the soak.
"""

from typing import Any

import pytest
from dsec.api.experiment import TaskClass
from dsec.placement.accounts import Account, total
from dsec.placement.entries import Entry
from dsec.placement.leases import DRIFT, SAFETY_S, Lease, LeaseBook, Purse
from dsec.placement.ledger import Ledger
from dsec.placement.reclaim import consents, give_back
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from quota_make import GUARANTEED, PAUSABLE

DIMENSIONS = ("cpu_milli", "memory_bytes")
ACCOUNTS = ("a/p", "a/q", "a/q/t", "b/p", "b/p/t", "c/p")
FIGURES = st.fixed_dictionaries({}, optional=dict.fromkeys(DIMENSIONS, st.integers(0, 12)))
AMOUNTS = st.fixed_dictionaries({"cpu_milli": st.integers(1, 6), "memory_bytes": st.integers(0, 4)})


def sample(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run a machine: always the same sample for the quick run."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]  # hypothesis leaves it untyped
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class LedgerMachine(RuleBasedStateMachine):
    """Three tenants that borrow from each other, projects and tasks, every verb of the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        for name in "abc":
            self.ledger.put(
                Account(name, dict.fromkeys(DIMENSIONS, 10), dict.fromkeys(DIMENSIONS, 16))
            )
        self.ledger.put(Account("a/q", {"cpu_milli": 4}, {"cpu_milli": 12}))
        self.before: dict[tuple[str, str], tuple[int, int]] = {}
        self.number = 0
        self.owner_may_book = False

    def fresh(self, **fields: Any) -> Entry:
        """Return an entry of its own id and age."""
        self.number += 1
        return Entry(f"e{self.number}", since=float(self.number), **fields)

    @rule(
        account=st.sampled_from(ACCOUNTS),
        amounts=AMOUNTS,
        cls=st.sampled_from(TaskClass),
        count=st.integers(1, 3),
        priority=st.integers(-1, 1),
    )
    def admit(
        self, account: str, amounts: dict[str, int], cls: TaskClass, count: int, priority: int
    ) -> None:
        """A gang is booked whole, or nothing has changed."""
        gang = [
            self.fresh(account=account, amounts=amounts, task_class=cls, priority=priority)
            for _ in range(count)
        ]
        before = dict(self.ledger.entries)
        told = self.ledger.check(*gang)
        found = self.ledger.admit(*gang)
        assert found.refusals == told
        assert len(self.ledger.entries) - len(before) == (0 if found.refusals else count)
        again = self.ledger.admit(*found.booked)
        assert again.booked == found.booked

    @precondition(lambda self: self.ledger.entries)
    @rule(data=st.data(), verb=st.sampled_from(["end", "pause", "resume", "resize"]))
    def change(self, data: st.DataObject, verb: str) -> None:
        """Live work ends, rests, goes on or grows."""
        chosen = data.draw(st.sampled_from(sorted(self.ledger.entries)))
        if verb == "end":
            assert self.ledger.end(chosen)
            assert not self.ledger.end(chosen)
        elif verb == "pause":
            self.ledger.pause(chosen)
        elif verb == "resume":
            self.ledger.resume(chosen)
        else:
            self.ledger.resize(chosen, data.draw(AMOUNTS), vertical=True)

    @rule(account=st.sampled_from(ACCOUNTS), amounts=AMOUNTS, until=st.integers(0, 50))
    def hold(self, account: str, amounts: dict[str, int], until: int) -> None:
        """Room is kept; some of it is never claimed."""
        self.ledger.hold(self.fresh(account=account, amounts=amounts), float(self.number + until))
        self.ledger.expire_holds(float(self.number))

    @rule(account=st.sampled_from(ACCOUNTS), amounts=AMOUNTS, cls=st.sampled_from(TaskClass))
    def lease(self, account: str, amounts: dict[str, int], cls: TaskClass) -> None:
        """A slice is lent, spent in part and released."""
        whole = self.fresh(account=account, amounts=amounts, task_class=cls)
        if self.ledger.lease(whole):
            return
        self.ledger.spend(
            whole.id, self.fresh(account=account, amounts={"cpu_milli": 1}, task_class=cls)
        )
        if self.number % 2:
            self.ledger.release(whole.id)

    @rule(name=st.sampled_from("abc"), nominal=FIGURES, more=st.integers(0, 6), alone=st.booleans())
    def change_tenant(self, name: str, nominal: dict[str, int], more: int, *, alone: bool) -> None:
        """Shares are changed at any time: nobody is evicted by that."""
        live = dict(self.ledger.entries)
        ceiling = {dimension: value + more for dimension, value in nominal.items()}
        cohort = "" if alone else "cluster"
        self.ledger.put(Account(name, nominal, ceiling, cohort=cohort, above_nominal=PAUSABLE))
        assert self.ledger.entries == live

    @rule()
    def rebuild(self) -> None:
        """A new leader asks all agents."""
        books = {path: self.ledger.used(path) for path in "abc"}
        self.ledger.rebuild(list(self.ledger.entries.values()))
        assert {path: self.ledger.used(path) for path in "abc"} == books

    @rule(account=st.sampled_from(ACCOUNTS), amounts=AMOUNTS, cls=st.sampled_from(TaskClass))
    def ask_back(self, account: str, amounts: dict[str, int], cls: TaskClass) -> None:
        """Whoever asks for its own gets it from those who borrow, and from nobody else."""
        asker = self.fresh(account=account, amounts=amounts, task_class=cls)
        found = give_back(self.ledger, [asker])
        if found is None:
            assert not self.owed(asker)
            return
        victims = [one.entry for one in found]
        assert all(consents(victim) for victim in victims)
        assert len({victim.id for victim in victims}) == len(victims)
        for one in found:
            # each had an account above what it owns, the asker's part counted
            assert any(self.over(one.entry, asker, dimension) for dimension in DIMENSIONS)
        for skipped in found:
            trial = self.ledger.fork()
            for one in found:
                if one is not skipped:
                    (trial.pause if one.pause else trial.end)(one.entry.id)
            assert trial.check(asker), "one victim too many"
        for one in found:
            (self.ledger.pause if one.pause else self.ledger.end)(one.entry.id)
        assert self.ledger.admit(asker).booked

    def over(self, victim: Entry, asker: Entry, dimension: str) -> bool:
        """Return whether any account of a victim has more than it owns once the asker is in."""
        trial = self.ledger.fork()
        trial.hold(asker, 1e9)
        for branch in trial.tree.chain(victim.account):
            nominal = branch.nominal.get(dimension)
            pool = branch.pool(dimension)
            if nominal is not None and branch.total.get(dimension, 0) > nominal:
                return True
            if pool is not None and pool[1] > pool[0]:
                return True
        return False

    def owed(self, asker: Entry) -> bool:
        """Return whether an owner goes without although borrowers could have made room.

        A cruder way than the one under test: every tenant that is above its nominal amounts of what
        the asker lacks loses consenting work until it is not, and the asker is tried again. Who has
        too much of something else only owes nothing: reservations may lie above every limit, and
        no owner of CPU pays for them because it borrows memory. Where others have leased
        what they borrow nothing is said: that is revoked, and comes back by itself.
        """
        leased = {entry.tenant for entry in self.ledger.leases.values() if consents(entry)} - {
            asker.tenant
        }
        if any(self.ledger.borrowed(tenant) for tenant in leased):
            return False
        tenant = asker.tenant
        share = self.ledger.tree.branch(tenant).nominal
        counted = self.ledger.tree.branch(tenant).total
        for dimension, asked in asker.amounts.items():
            if dimension not in share or counted.get(dimension, 0) + asked > share[dimension]:
                return False
        trial = self.ledger.fork()
        trial.hold(asker, 1e9)
        short = {
            dimension
            for branch in trial.tree.chain(asker.account)
            for dimension in asker.amounts
            if (most := branch.most(dimension)) is not None
            and branch.total.get(dimension, 0) > most
        }
        trial.unhold(asker.id)
        for entry in list(trial.entries.values()):
            branch = trial.tree.branch(entry.tenant)
            above = any(
                branch.total.get(d, 0) > most for d, most in branch.nominal.items() if d in short
            )
            if above and entry.tenant != tenant and consents(entry):
                trial.end(entry.id)
        return not trial.check(asker)

    @invariant()
    def sums_are_those_of_the_entries(self) -> None:
        """Used = sum over live sandboxes, on every level."""
        assert self.ledger.audit() == []
        for tenant in "abc":
            mine = [e.amounts for e in self.ledger.entries.values() if e.tenant == tenant]
            assert self.ledger.used(tenant) == total(mine)

    @invariant()
    def nothing_grows_above_its_limit(self) -> None:
        """What is above a limit was there before the limit, and only shrinks."""
        now: dict[tuple[str, str], tuple[int, int]] = {}
        tree = self.ledger.tree
        for branch in [*tree.branches.values(), *tree.cohorts.values()]:
            for dimension in DIMENSIONS:
                counted = branch.counted(dimension)
                reserved = self.firm(branch.path, dimension) if branch.parent else 0
                most, nominal = branch.most(dimension), branch.nominal.get(dimension)
                was = self.before.get((branch.path, dimension), (0, 0))
                moved = branch.parent is None
                assert most is None or counted <= most or counted <= was[0] or moved
                assert nominal is None or reserved <= max(nominal, was[1]) or moved
                now[branch.path, dimension] = counted, reserved
        self.before = now

    def firm(self, path: str, dimension: str) -> int:
        """Return the guaranteed live work below a path."""
        return sum(
            entry.amounts.get(dimension, 0)
            for entry in self.ledger.entries.values()
            if entry.guaranteed and f"{entry.account}/".startswith(f"{path}/")
        )


class LeaseMachine(RuleBasedStateMachine):
    """A leader, two gateways with clocks of their own, agents, and a network that loses and delays.

    The truth is what runs on agents, what is on its way there, and what a gateway would still pay
    for: all of it together, and the leader's books, are never above the tenant's 20 sandboxes.
    """

    QUOTA = 20

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.number = 0
        self.clocks = [(1 + DRIFT * 0.99, 3e6), (1 - DRIFT * 0.99, -500.0)]
        self.purses = [Purse("gw0"), Purse("gw1")]
        self.asked: list[tuple[int, Lease]] = []
        self.answers: list[tuple[int, Lease, float]] = []
        self.reports: list[tuple[str, list[Entry]]] = []
        self.flying: list[tuple[float, Entry, str]] = []
        self.running: dict[str, tuple[Entry, str]] = {}
        self.events: list[tuple[float, Entry, str, bool]] = []
        self.epoch = 0
        self.lead(first=True)

    def lead(self, *, first: bool) -> None:
        """A leader takes over: it knows what agents run, and nothing of leases."""
        self.epoch += 1
        self.ledger = Ledger()
        self.ledger.put(Account("t", {"sandboxes": self.QUOTA}))
        self.ledger.rebuild(entry for entry, _ in self.running.values())
        self.events = []
        self.book = LeaseBook(self.ledger, self.epoch, self.now, first=first)

    def local(self, gateway: int) -> float:
        """Return a gateway's own time."""
        rate, offset = self.clocks[gateway]
        return self.now * rate + offset

    def entry(self, count: int) -> Entry:
        """Return an entry of so many sandboxes."""
        self.number += 1
        return Entry(f"s{self.number}", "t/p", {"sandboxes": count})

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0, 8.0, 15.0]))
    def time_passes(self, seconds: float) -> None:
        """Calls land when their time is up, at the latest."""
        until = self.now + seconds
        for due, entry, lease_id in sorted(self.flying, key=lambda one: one[0]):
            if due <= until:
                self.land(due, entry, lease_id)
        self.now = until

    def land(self, at: float, entry: Entry, lease_id: str) -> None:
        """An agent starts a sandbox."""
        self.flying = [one for one in self.flying if one[1].id != entry.id]
        self.running[entry.id] = (entry, lease_id)
        self.events.append((at, entry, lease_id, True))

    @rule(
        gateway=st.integers(0, 1), count=st.integers(1, 12), lost=st.booleans(), old=st.booleans()
    )
    def ask(self, gateway: int, count: int, *, lost: bool, old: bool) -> None:
        """A gateway asks for a slice, or once more; the answer may be lost or late."""
        self.number += 1
        fresh = Lease(f"l{self.number}", f"gw{gateway}", "t/p", {"sandboxes": count}, GUARANTEED, 0)
        mine = [lease for number, lease in self.asked if number == gateway]
        asked = mine[count % len(mine)] if old and mine else fresh
        self.asked.append((gateway, asked))
        found = self.book.grant(asked, self.now)
        if isinstance(found, Lease) and not lost:
            self.answers.append((gateway, found, self.local(gateway)))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def answer_arrives(self, data: st.DataObject) -> None:
        """In any order."""
        position = data.draw(st.integers(0, len(self.answers) - 1))
        gateway, lease, sent_at = self.answers.pop(position)
        self.purses[gateway].put(lease, sent_at)

    @rule(
        gateway=st.integers(0, 1), count=st.integers(1, 6), flight=st.floats(0.0, SAFETY_S / 1.01)
    )
    def spend(self, gateway: int, count: int, flight: float) -> None:
        """A gateway pays and sends the call on its way."""
        entry = self.entry(count)
        paid = self.purses[gateway].spend(entry, self.local(gateway))
        if isinstance(paid, str):
            self.flying.append((self.now + flight, entry, paid))

    @rule(gateway=st.integers(0, 1), renew=st.booleans(), lost=st.booleans())
    def report(self, gateway: int, *, renew: bool, lost: bool) -> None:
        """A gateway reports and renews; reports may come twice and late."""
        purse = self.purses[gateway]
        for lease_id in list(purse.leases):
            sent = list(purse.unreported[lease_id])
            self.reports.append((lease_id, sent))
            asked_at = self.local(gateway)
            if not renew:
                self.book.report(lease_id, sent)
                continue
            found = self.book.renew(lease_id, sent, self.now)
            if found is not None and not lost:
                purse.reported(lease_id, sent)
                self.answers.append((gateway, found, asked_at))

    @rule(gateway=st.integers(0, 1), lost=st.booleans())
    def hand_back(self, gateway: int, *, lost: bool) -> None:
        """A gateway needs its oldest slice no more; the leader may not hear of it."""
        purse = self.purses[gateway]
        for lease_id in list(purse.leases)[:1]:
            sent = list(purse.unreported[lease_id])
            purse.drop(lease_id)
            if not lost:
                self.book.hand_back(lease_id, sent, self.now)

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def late_report(self, data: st.DataObject) -> None:
        """An old report arrives once more."""
        lease_id, sent = data.draw(st.sampled_from(self.reports))
        self.book.report(lease_id, sent)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_sandbox_ends(self, data: st.DataObject) -> None:
        """On its agent; the leader hears of it later."""
        entry, lease_id = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        self.events.append((self.now, entry, lease_id, False))

    @rule(share=st.floats(0.0, 1.0))
    def leader_reads_agents(self, share: float) -> None:
        """All that has happened, or only the first part of it."""
        count = len(self.events) if share > 0.3 else int(len(self.events) * share)
        for _, entry, lease_id, live in self.events[:count]:
            self.book.seen(entry, lease_id, live=live)
        self.events = self.events[count:]
        # strictly before the first event that has not been read
        read = self.events[0][0] - 1e-6 if self.events else self.now
        self.book.expire(self.now, read)

    @rule(count=st.integers(1, 6))
    def leader_places_itself(self, count: int) -> None:
        """Batches and gangs do not go through leases."""
        if not self.book.open(self.now):
            return
        entry = self.entry(count)
        if self.ledger.admit(entry).booked:
            self.running[entry.id] = (entry, "")

    @precondition(lambda self: self.number % 7 == 0)
    @rule(show=st.booleans())
    def leader_dies(self, *, show: bool) -> None:
        """The next one is shown the leases by all gateways, or by none."""
        self.lead(first=False)
        # its own work had landed before it died; answers of the old one are still on their way
        if not show:
            return
        shown = [
            Lease(
                lease_id,
                purse.holder,
                "t/p",
                total([purse.left(lease_id), *(e.amounts for e in purse.unreported[lease_id])]),
                GUARANTEED,
                0,
            )
            for purse in self.purses
            for lease_id in purse.leases
        ]
        unanswered = any(
            lease.id not in p.leases for _, lease, _ in self.answers for p in self.purses
        )
        self.book.restore(shown, self.now, complete=not unanswered)

    @invariant()
    def the_truth_is_within_the_quota(self) -> None:
        """Runs + flies + could still be spent."""
        could = sum(
            purse.left(lease_id).get("sandboxes", 0)
            for gateway, purse in enumerate(self.purses)
            for lease_id in purse.leases
            if purse.valid(lease_id, self.local(gateway))
        )
        runs = [entry for entry, _ in self.running.values()]
        flies = [entry for _, entry, _ in self.flying]
        assert sum(e.amounts["sandboxes"] for e in [*runs, *flies]) + could <= self.QUOTA

    @invariant()
    def the_books_know_of_everything(self) -> None:
        """What runs, flies or can still be spent is in the books of a leader that may admit."""
        if not self.book.open(self.now):
            return
        begun = [*self.running.values(), *((entry, paid) for _, entry, paid in self.flying)]
        for entry, paid in begun:
            assert entry.id in self.ledger.entries or paid in self.ledger.leases
        for gateway, purse in enumerate(self.purses):
            for lease_id in purse.leases:
                if purse.valid(lease_id, self.local(gateway)):
                    assert lease_id in self.ledger.leases

    @invariant()
    def the_books_are_within_the_quota(self) -> None:
        """Used + leased <= quota, and both are what their entries say."""
        used = self.ledger.used("t").get("sandboxes", 0)
        leased = self.ledger.leased("t").get("sandboxes", 0)
        assert used + leased <= self.QUOTA
        assert self.ledger.audit() == []


@pytest.mark.parametrize("machine", [LedgerMachine, LeaseMachine])
def test_a_sample_of_histories(machine: type[RuleBasedStateMachine]) -> None:
    """A seeded sample; the soak has the full count."""
    sample(machine, examples=40, steps=30)


def test_who_borrows_memory_owes_no_cpu() -> None:
    """Reservations fill the cohort's CPU: nobody within its own CPU is asked for it."""
    ledger = Ledger()
    for name in "abc":
        ledger.put(Account(name, dict.fromkeys(DIMENSIONS, 10), dict.fromkeys(DIMENSIONS, 16)))
    for number, kept in enumerate((5, 6, 8)):
        ledger.hold(Entry(f"h{number}", account="a/p", amounts={"cpu_milli": kept}), 99.0)
    soft = {"cpu_milli": 2, "memory_bytes": 4}
    for number in range(3):
        entry = Entry(f"s{number}", "c/p", dict(soft), task_class=TaskClass.PAUSABLE)
        assert ledger.admit(entry).booked
    asker = Entry("asker", "b/p", {"cpu_milli": 6}, task_class=TaskClass.GUARANTEED)
    assert ledger.borrowed("c") == {"memory_bytes": 2}
    assert ledger.check(asker)
    assert give_back(ledger, [asker]) is None


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("machine", [LedgerMachine, LeaseMachine])
def test_100_000_steps(machine: type[RuleBasedStateMachine]) -> None:
    """Two thousand histories of fifty steps."""
    sample(machine, examples=2000, steps=50)
