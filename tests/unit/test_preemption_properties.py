"""Preemption under any order of events: real placement, real ledger, plans carried out or dropped.

A seeded sample here; 100,000 steps in the soak.
"""

from typing import Any

import pytest
from dsec.api.experiment import TaskClass
from dsec.placement.accounts import Account
from dsec.placement.displacing import Displacing, resumable, resume
from dsec.placement.engine import place
from dsec.placement.entries import Entry, entry_of
from dsec.placement.ledger import Ledger
from dsec.placement.plans import Asking, Plan, PreemptionPolicy
from dsec.placement.preemption import plan
from dsec.placement.reclaim import consents
from dsec.placement.trial import what_if
from dsec.placement.view import ClusterView
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from placement_make import node, request
from quota_make import cpu, too_much

POLICY = PreemptionPolicy(dies_within_s=30.0)
WORK = st.fixed_dictionaries(
    {
        "cores": st.integers(1, 8),
        "gib": st.integers(1, 8),
        "priority": st.integers(-1, 1),
        "task_class": st.sampled_from(TaskClass),
        "queue": st.sampled_from(["default", "eval"]),
        "role": st.sampled_from(["", "", "trainer"]),
    }
)


class PreemptionMachine(RuleBasedStateMachine):
    """Three nodes, two tenants, and a leader that places, plans, displaces and resumes."""

    def __init__(self) -> None:
        super().__init__()
        self.view = ClusterView([node(f"n{n}", 8, 16) for n in range(3)])
        self.ledger = Ledger()
        for tenant in "ab":
            self.ledger.put(Account(tenant, cpu(12), cpu(20)))
        self.displacing = Displacing(self.view, self.ledger, POLICY)
        self.now = 0.0
        self.number = 0
        self.askers: dict[str, Asking] = {}

    def work(self, tenant: str, count: int, work: dict[str, Any]) -> Asking:
        """Return new work that has waited since now."""
        self.number += 1
        fields = dict(work)
        role, gang = fields.pop("role"), f"g{self.number}" if count > 1 else ""
        asked = tuple(request(f"w{self.number}.{n}", gang=gang, **fields) for n in range(count))
        entries = tuple(entry_of(one, f"{tenant}/p", since=self.now, role=role) for one in asked)
        return Asking(asked, entries, self.now)

    def start(self, asking: Asking) -> bool:
        """Admit and place, all or nothing: the entry before the place."""
        if self.ledger.admit(*asking.entries).refusals:
            return False
        if all(decision.node for decision in place(self.view, asking.requests)):
            return True
        for entry in asking.entries:
            self.ledger.end(entry.id)
        return False

    @rule(tenant=st.sampled_from("ab"), count=st.integers(1, 2), work=WORK)
    def submit(self, tenant: str, count: int, work: dict[str, Any]) -> None:
        """New work starts, or waits."""
        asking = self.work(tenant, count, work)
        if not self.start(asking):
            self.askers[asking.id] = asking

    @rule(seconds=st.sampled_from([1.0, 29.0, 59.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        """Plans whose victims did not die are given up."""
        self.now += seconds
        self.ledger.expire_holds(self.now)
        self.displacing.overdue(self.now)

    @precondition(lambda self: self.ledger.entries)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        """Something ends by itself, maybe a victim."""
        chosen = data.draw(st.sampled_from(sorted(self.ledger.entries)))
        if chosen in self.displacing.victims:
            self.view.release(chosen)
            self.displacing.look()
        else:
            self.view.release(chosen)
            self.ledger.end(chosen)

    @precondition(lambda self: self.askers)
    @rule(data=st.data(), patient=st.booleans())
    def preempt(self, data: st.DataObject, *, patient: bool) -> None:
        """A plan is made: whoever leaves may be asked to, is needed, and makes it fit."""
        if patient:
            self.now += 60.0
            self.ledger.expire_holds(self.now)
            self.displacing.overdue(self.now)
        asking = self.askers[data.draw(st.sampled_from(sorted(self.askers)))]
        if asking.id in self.displacing.plans:
            return
        before = self.view.digest(), dict(self.ledger.entries), dict(self.ledger.holds)
        found = plan(
            self.view,
            self.ledger,
            asking,
            POLICY,
            self.now,
            leaving=self.displacing.leaving,
            spared=self.displacing.spared,
        )
        assert before == (self.view.digest(), dict(self.ledger.entries), dict(self.ledger.holds))
        if not isinstance(found, Plan):
            assert not self.could(asking)
            return
        self.right(asking, found)
        self.displacing.start(found, self.now)

    def right(self, asking: Asking, found: Plan) -> None:
        """Check the victims: allowed, each needed, and enough together."""
        waited = self.now - asking.waiting_since
        ids = {one.id: one.stops for one in found.displacements}
        assert not set(ids) & set(self.displacing.victims)
        for id_ in ids:
            victim = self.ledger.entries[id_]
            assert not victim.guaranteed
            assert victim.role != "trainer"
            softer = victim.priority < asking.entries[0].priority and waited >= 60.0
            assert softer or self.gives_way(victim, asking) or self.borrows(victim, asking)
        assert self.fits(asking, ids | self.leaving_now())
        for id_ in ids:
            fewer = {other: stops for other, stops in ids.items() if other != id_}
            assert not self.fits(asking, fewer | self.leaving_now()), "one too many"

    def leaving_now(self) -> dict[str, bool]:
        """Return who is on its way out, without those who do not die."""
        spared = self.displacing.spared
        on = self.view.bookings()
        leaving = self.displacing.leaving.items()
        return {id_: stops for id_, stops in leaving if on[id_].node not in spared}

    def gives_way(self, victim: Entry, asking: Asking) -> bool:
        """Return whether a gap filler leaves for long work."""
        asker = asking.entries[0]
        return (
            victim.queue == "eval" and asker.queue != "eval" and victim.priority <= asker.priority
        )

    def borrows(self, victim: Entry, asking: Asking) -> bool:
        """Return whether a victim's tenant has more than it owns once the asker is in."""
        books = self.ledger.fork()
        for entry in asking.entries:
            books.hold(entry, 1e9)
        branch = books.tree.branch(victim.tenant)
        return branch.total.get("cpu_milli", 0) > branch.nominal["cpu_milli"]

    def fits(self, asking: Asking, left: dict[str, bool]) -> bool:
        """Try it by the real placement."""
        view, books = self.view.fork(), self.ledger.fork()
        for id_, stops in left.items():
            if stops:
                view.release(id_)
                books.end(id_)
            else:
                view.pause(id_)
                books.pause(id_)
        if books.check(*asking.entries):
            return False
        return all(decision.node for decision in what_if(view, asking.requests))

    def could(self, asking: Asking) -> bool:
        """Return whether patient work of an owner goes without though softer work could leave."""
        asker = asking.entries[0]
        waited = self.now - asking.waiting_since
        counted = self.ledger.tree.branch(asker.tenant).total.get("cpu_milli", 0)
        asked = sum(entry.amounts["cpu_milli"] for entry in asking.entries)
        if waited < 60.0 or counted + asked > 12_000 or len(asking.entries) > 1:
            return False
        softer = {
            entry.id: True
            for entry in self.ledger.entries.values()
            if consents(entry)
            and entry.priority < asker.priority
            and self.view.bookings()[entry.id].node not in self.displacing.spared
        }
        return self.fits(asking, softer | self.leaving_now())

    @precondition(lambda self: self.displacing.victims)
    @rule(data=st.data(), works=st.booleans())
    def a_victim_goes(self, data: st.DataObject, *, works: bool) -> None:
        """It stops or rests, or the step fails."""
        victim = data.draw(st.sampled_from(sorted(self.displacing.victims)))
        if works:
            self.displacing.gone(victim)
        else:
            self.displacing.failed(victim)

    @rule()
    def ready_ones_start(self) -> None:
        """Whose victims have gone starts at once: its room was held."""
        for found in self.displacing.ready():
            held = all(entry.id in self.ledger.holds for entry in found.asking.entries)
            admitted = not self.ledger.admit(*found.asking.entries).refusals
            assert admitted or not held
            self.displacing.drop(found.asking.id)
            started = admitted and self.start(found.asking)
            assert started or not held
            if started:
                del self.askers[found.asking.id]

    @rule()
    def paused_ones_go_on(self) -> None:
        """Whoever was displaced goes on as soon as there is room for it."""
        for unit in resumable(self.view, self.ledger):
            if not any(entry.id in self.displacing.victims for entry in unit):
                assert resume(self.view, self.ledger, unit)

    @invariant()
    def nothing_has_too_much(self) -> None:
        """Neither account nor cohort nor node, with what is held left out."""
        assert self.ledger.audit() == []
        tree = self.ledger.tree
        branches = [*tree.branches.values(), *tree.cohorts.values()]
        assert [said for branch in branches for said in too_much(branch)] == []
        held = {
            request.id
            for under in self.displacing.plans.values()
            for request in under.plan.asking.requests
        }
        bare = self.view.fork()
        for id_ in held:
            bare.release(id_)
        for name in bare.nodes:
            room = bare.room(name)
            assert min(room["cpu"], room["memory"]) >= 0
        assert set(self.ledger.entries) == set(bare.bookings())


def sample(examples: int, steps: int) -> None:
    """Run the machine: always the same sample."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]  # hypothesis leaves it untyped
        PreemptionMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_sample_of_histories() -> None:
    """A seeded sample; the soak has the full count."""
    sample(examples=12, steps=30)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_100_000_steps() -> None:
    """Two thousand histories of fifty steps."""
    sample(examples=2000, steps=50)
