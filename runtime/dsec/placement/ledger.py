"""The ledger of quotas: who has what, who may have more, and why not. Pure; times are passed in.

Offered:

    ledger = Ledger()
    ledger.put(Account("team-a", nominal={...}, ceiling={...}))   # also projects and tasks
    ledger.admit(entry, ...)   -> Admission   # all or none, booked before anything is dispatched
    ledger.end(id)                            # terminal work frees its quota
    ledger.pause(id), ledger.resume(id)       # paused work keeps memory, gives back CPU
    ledger.resize(id, amounts)                # grows within its limits, or changes nothing
    ledger.hold(entry, until)                 # room for work whose victims are on their way out
    ledger.rebuild(entries)                   # from what agents report; leases and holds stay
    ledger.used(path), leased, free, borrowed, room

Rules. Nothing is counted above a ceiling, nor in a cohort above what its tenants own together.
Guaranteed work is admitted within nominal amounts only; what is borrowed is pausable or
preemptible (CONF-16), and a tenant may say that its guaranteed work becomes that above its nominal
amount. Lowering a nominal amount evicts nobody; what is then above it can be asked back.
Used is the sum over live sandboxes at all times (TEN-24): it changes only together with the
entries, and `audit` proves it. Everything is idempotent by the entry's id.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from dsec.placement.accounts import QuotaError, amounts
from dsec.placement.admission import refusals, rooms, spendable
from dsec.placement.branches import Kind
from dsec.placement.entries import GIVEN_BACK_WHEN_PAUSED, Admission, Entry, alike
from dsec.placement.refusal import Refusal
from dsec.placement.tallies import Tallies


class Ledger(Tallies):
    """Accounts and entries. One writer; see the module's docstring for what it holds to."""

    # entries

    def admit(self, *wanted: Entry) -> Admission:
        """Book entries, all or none. One that is booked already is not booked again.

        Raises QuotaError where entries of different tenants claim to belong together, or an id is
        asked again for another account; then nothing has changed.
        """
        found = self._try(self._new(wanted))
        if found.refusals:
            return found
        for entry in found.booked:
            self.entries[entry.id] = entry
        return Admission(tuple(self.entries[entry.id] for entry in wanted))

    def admit_each(self, wanted: Sequence[Entry]) -> list[Admission]:
        """Book entries one by one, in order, each whatever becomes of the others.

        Runs of entries that differ only in their ids are counted in one step. Raises QuotaError as
        `admit` does.
        """
        found: list[Admission] = []
        for _, run in groupby(wanted, key=alike):
            entries = list(run)
            ids = {entry.id for entry in entries}
            known = not ids.isdisjoint(self.entries) or not ids.isdisjoint(self.holds)
            if 1 < len(ids) == len(entries) and not known:
                found += self._admit_run(entries)
            else:
                found += [self.admit(entry) for entry in entries]
        return found

    def check(self, *wanted: Entry) -> tuple[Refusal, ...]:
        """Return why entries would be refused now, empty: they would not. Changes nothing.

        Raises QuotaError as `admit` does.
        """
        new = self._new(wanted)
        held = [self.holds[entry.id] for entry in new if entry.id in self.holds]
        order = list(self.holds)
        found = self._try(new)
        for entry in found.booked:
            self._count(entry, Kind.LIVE, -1)
        if not found.refusals:
            for entry, until in held:
                self.hold(entry, until)
            self.holds = {entry_id: self.holds[entry_id] for entry_id in order}
        return found.refusals

    def book(self, entry: Entry) -> None:
        """Book a fact: a sandbox that an agent says it runs, whatever the quota says."""
        if entry.id not in self.entries:
            self.unhold(entry.id)
            self._count(entry, Kind.LIVE, 1)
            self.entries[entry.id] = entry

    def end(self, entry_id: str) -> bool:
        """Free what an entry counts. Returns whether it was there; a second call does nothing."""
        self.unhold(entry_id)
        entry = self.entries.pop(entry_id, None)
        if entry is None:
            return False
        self._count(entry, Kind.LIVE, -1)
        return True

    def pause(self, entry_id: str) -> None:
        """Count a paused sandbox as what it still takes. Raises KeyError; idempotent."""
        entry = self.entries[entry_id]
        back = {d: v for d, v in entry.amounts.items() if d in GIVEN_BACK_WHEN_PAUSED}
        if back:
            kept = {d: v for d, v in entry.amounts.items() if d not in back}
            self._replace(replace(entry, amounts=kept, given_back=back))

    def resume(self, entry_id: str) -> tuple[Refusal, ...]:
        """Take back what a pause gave up, or say why it cannot be had. Raises KeyError."""
        entry = self.entries[entry_id]
        whole = {**entry.amounts, **entry.given_back}
        return self._regrow(entry, replace(entry, amounts=whole, given_back={}))

    def resize(
        self, entry_id: str, wanted: Mapping[str, object], *, vertical: bool
    ) -> tuple[Refusal, ...]:
        """Change what a live entry counts, or say why not; then nothing has changed.

        Growing needs vertical elasticity and head-room (CONF-33); GPU memory and devices are fixed
        at the start (GPU-11). Raises KeyError, and QuotaError for what can never be.
        """
        entry = self.entries[entry_id]
        after = amounts(wanted, entry_id)
        for dimension in ("gpu_memory_bytes", "gpu_milli", "gpu_shares"):
            if after.get(dimension, 0) != entry.amounts.get(dimension, 0):
                raise QuotaError(
                    f"{entry_id}.{dimension}: {after.get(dimension, 0)}: devices are fixed at the "
                    f"start; checkpoint it and start it again with what it needs"
                )
        if not vertical and any(v > entry.amounts.get(d, 0) for d, v in after.items()):
            raise QuotaError(f"{entry_id}: grows, but its task has no vertical elasticity")
        return self._regrow(entry, replace(entry, amounts=after))

    def rebuild(self, live: Iterable[Entry]) -> None:
        """Replace all live entries by those that agents report. Leases and holds stay."""
        for entry in list(self.entries.values()):
            self._count(entry, Kind.LIVE, -1)
        self.entries.clear()
        for entry in live:
            self.book(entry)

    def fork(self) -> "Ledger":
        """Return a copy for what-if questions."""
        copy = Ledger()
        copy.tree = self.tree.copy()
        copy.entries, copy.leases = dict(self.entries), dict(self.leases)
        copy.holds = dict(self.holds)
        return copy

    # leases and holds

    def lease(self, entry: Entry) -> tuple[Refusal, ...]:
        """Book a slice as used, or say why not. Idempotent by id."""
        if entry.id in self.leases:
            return ()
        found = refusals(self.tree, entry)
        if not found:
            self._count(entry, Kind.LEASE, 1)
            self.leases[entry.id] = entry
        return found

    def spend(self, lease_id: str, entry: Entry, *, live: bool = True) -> None:
        """Turn a part of a lease into an entry; the sum does not change. Idempotent by id.

        `live=False`: it was spent on a sandbox that has ended since, so that part is free again.
        Raises KeyError, and QuotaError where the entry is not within the lease.
        """
        if entry.id in self.entries:
            return
        lease = self.leases[lease_id]
        spendable(self.tree, lease, entry)
        left = {d: v - entry.amounts.get(d, 0) for d, v in lease.amounts.items()}
        self._count(lease, Kind.LEASE, -1)
        self.leases[lease_id] = replace(lease, amounts=left)
        self._count(self.leases[lease_id], Kind.LEASE, 1)
        if live:
            self._count(entry, Kind.LIVE, 1)
            self.entries[entry.id] = entry

    def release(self, lease_id: str) -> None:
        """Free what is left of a lease. Idempotent."""
        lease = self.leases.pop(lease_id, None)
        if lease is not None:
            self._count(lease, Kind.LEASE, -1)

    def hold(self, entry: Entry, until: float) -> None:
        """Keep room for an entry until a time: nobody else is admitted into what frees up.

        A hold counts for everybody but its owner. A second one of the same id replaces it.
        """
        self.unhold(entry.id)
        self._count(entry, Kind.HOLD, 1)
        self.holds[entry.id] = (entry, until)

    def unhold(self, entry_id: str) -> None:
        """Give up a hold. Idempotent."""
        held = self.holds.pop(entry_id, None)
        if held is not None:
            self._count(held[0], Kind.HOLD, -1)

    def expire_holds(self, now: float) -> list[str]:
        """Give up the holds whose time has come; returns their ids."""
        late = [entry_id for entry_id, (_, until) in self.holds.items() if until <= now]
        for entry_id in late:
            self.unhold(entry_id)
        return late

    # inside

    def _new(self, wanted: Sequence[Entry]) -> list[Entry]:
        """Return the entries that are not booked yet, checked for what can never be admitted."""
        tenants = {entry.tenant for entry in wanted}
        if len(tenants) > 1:
            # whoever names a foreign gang would be paid for by it
            raise QuotaError(
                f"{', '.join(e.id for e in wanted)}: one gang of tenants "
                f"{', '.join(sorted(tenants))}; the members of a gang belong to one tenant"
            )
        new: dict[str, Entry] = {}
        for entry in wanted:
            known = self.entries.get(entry.id) or new.get(entry.id)
            if known is None:
                new[entry.id] = entry
            elif known.account != entry.account:
                raise QuotaError(
                    f"{entry.id}: account {entry.account}: it is counted for {known.account}; "
                    f"an id is for one account"
                )
        return list(new.values())

    def _try(self, new: Sequence[Entry]) -> Admission:
        """Count entries, or none of them; own holds are used up, or stay."""
        mine = {entry.id for entry in new if entry.id in self.holds}
        order = list(self.holds)
        # a later hold counts before its victims have gone: it must not crowd out an earlier one
        since = min((order.index(id_) for id_ in mine), default=len(order))
        lifted = [self.holds[id_] for id_ in order[since:]]
        later = [(entry, until) for entry, until in lifted if entry.id not in mine]
        for entry, _ in lifted:
            self.unhold(entry.id)
        found = self._count_all(new)
        if found.refusals and new:
            account = self.tree.branch(new[0].tenant).account
            softer = account.above_nominal if account else None
            if softer:
                # the whole gang gets the softer class: one paused member stops it anyway
                found = self._count_all([replace(entry, task_class=softer) for entry in new])
        for entry, until in lifted if found.refusals else later:
            self.hold(entry, until)
        return found

    def _count_all(self, new: Sequence[Entry]) -> Admission:
        for position, entry in enumerate(new):
            found = refusals(self.tree, entry)
            if found:
                for counted in new[:position]:
                    self._count(counted, Kind.LIVE, -1)
                return Admission(refusals=found)
            self._count(entry, Kind.LIVE, 1)
        return Admission(tuple(new))

    def _admit_run(self, run: Sequence[Entry]) -> list[Admission]:
        """Book the first of a run of equal new entries for which there is room."""
        first = run[0]
        admitted: Sequence[Entry] = ()
        if not refusals(self.tree, first):
            room = rooms(self.tree, first)
            fit = [room[d] // value for d, value in first.amounts.items() if d in room]
            admitted = run[: min(fit, default=len(run))]
            self.tree.count(
                first.account,
                {d: value * len(admitted) for d, value in first.amounts.items()},
                [f"{Kind.LIVE.value} {entry.id}" for entry in admitted],
                Kind.LIVE,
                guaranteed=first.guaranteed,
                sign=1,
            )
            self.entries.update((entry.id, entry) for entry in admitted)
        found = [Admission((entry,)) for entry in admitted]
        rest = run[len(admitted) :]
        if rest:
            refused = self.admit(rest[0])
            found.append(refused)
            if refused.booked and len(rest) > 1:
                # a softer class had room, and may have more
                softer = refused.booked[0].task_class
                rest = [replace(entry, task_class=softer) for entry in rest[1:]]
                found += self._admit_run(rest)
            else:
                found += [refused] * (len(rest) - 1)
        return found

    def _replace(self, entry: Entry) -> None:
        self._count(self.entries[entry.id], Kind.LIVE, -1)
        self._count(entry, Kind.LIVE, 1)
        self.entries[entry.id] = entry

    def _regrow(self, before: Entry, after: Entry) -> tuple[Refusal, ...]:
        more = {
            dimension: value - before.amounts.get(dimension, 0)
            for dimension, value in after.amounts.items()
            if value > before.amounts.get(dimension, 0)
        }
        # what only shrinks is never refused, also above a limit that was lowered
        found = refusals(self.tree, replace(after, amounts=more)) if more else ()
        if not found:
            self._replace(after)
        return found
