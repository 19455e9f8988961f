"""Quota leases: slices of free quota that gateways spend by themselves. Pure; times are passed in.

The leader's side is `LeaseBook`, the gateway's is `Purse`.

used + leased <= quota, under any order of grants, renewals, spends, ends and late reports, because

- a slice is booked as used before it is granted, and what is spent moves out of it;
- a holder counts from when it sent its request, by its own monotonic clock, and stops SAFETY_S
  early, so that calls in flight land before the leader's time is up;
- the leader keeps the slice until MARGIN_S after that time and until it has read from every agent
  what was started before it (`seen_until`), or until the holder hands it back;
- what a holder reports late, about a lease that is gone, is ignored: agents have told it already;
- a new leader knows no leases but those it is shown again. Until `open` it grants nothing, and its
  ledger must admit nothing: until all holders have shown theirs and what they had in flight has
  landed and been read, or until leases of its predecessor can no longer be spent.

What is lost in a crash of a holder: its unspent slices, for at most DURATION_S + MARGIN_S.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dsec.api.experiment import TaskClass
from dsec.api.reasons import PendingReason
from dsec.placement.accounts import DIMENSIONS, Amounts, QuotaError
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.quota_words import Limit
from dsec.placement.refusal import Refusal

DURATION_S = 10.0
"""How long a lease may be spent; renewed at half of it, one lost answer costs nothing."""
SAFETY_S = 2.0
"""A holder stops this much earlier: the longest that one of its calls may take."""
MARGIN_S = 2.0
"""The leader keeps the slice this much longer."""
LARGEST_PART = 4
"""Of what is free, one slice is at most the so many-th part: others want some as well."""
RETIRED_S = 600.0
"""How long an id stays used up: no request is still on its way after that."""
DRIFT = 0.01
"""Most that two monotonic clocks differ in rate; real ones differ by a ten-thousandth of that."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A slice as it goes to its holder. It runs for `duration_s` from when it was asked for."""

    id: str
    holder: str
    account: str
    amounts: Amounts
    task_class: TaskClass
    epoch: int
    duration_s: float = DURATION_S


class LeaseBook:
    """The leader's leases, in its ledger. One leader, one epoch, one book.

    `started`: when the leader took over, by its clock, as all times here; its predecessor must have
    stopped granting by then. `first`: there never was one.
    """

    def __init__(self, ledger: Ledger, epoch: int, started: float, *, first: bool = False) -> None:
        self.ledger = ledger
        self.epoch = epoch
        self.open_at = started if first else started + DURATION_S + MARGIN_S
        self.read_until = started
        self.until: dict[str, float] = {}
        self._spent: dict[str, set[str]] = {}
        self._granted: dict[str, Lease] = {}
        self._revoked: set[str] = set()
        self._retired: dict[str, float] = {}

    def restore(self, shown: Iterable[Lease], now: float, *, complete: bool = False) -> list[str]:
        """Take over leases of the leader before, as their holders show them.

        A holder shows what it has left and what it has spent without an answer, in one. `complete`:
        every holder has shown what it has, so that there can be no others. Returns the ids that no
        longer fit; their holders must stop spending them.
        """
        unfit = []
        for lease in shown:
            if lease.id in self._granted:
                continue
            if self.ledger.lease(_entry(lease)):
                unfit.append(lease.id)
            else:
                self._keep(replace(lease, epoch=self.epoch), now)
        if complete and not unfit:
            self.open_at = min(self.open_at, now + SAFETY_S + MARGIN_S)
        return unfit

    def shown(self) -> list[Lease]:
        """Return all leases, with what is left of each."""
        return [
            replace(lease, amounts=self.ledger.leases[lease_id].amounts)
            for lease_id, lease in self._granted.items()
        ]

    def open(self, now: float) -> bool:
        """Return whether the books are complete, so that new work may be admitted."""
        return min(now, self.read_until) >= self.open_at

    def grant(self, lease: Lease, now: float) -> Lease | tuple[Refusal, ...]:
        """Book and grant a slice, whole, or say why not.

        Idempotent by id, which the holder makes, anew for each slice; asked again, it is a renewal,
        because the holder counts its time from the second request.
        """
        if lease.id in self._granted:
            renewed = self.renew(lease.id, (), now)
            return renewed or (Refusal(PendingReason.CONTROL_PLANE, "lease", 1),)
        if lease.id in self._retired or not self.open(now):
            return (Refusal(PendingReason.CONTROL_PLANE, "lease", 1),)
        granted = replace(lease, epoch=self.epoch, duration_s=DURATION_S)
        refusals = self.ledger.lease(_entry(granted))
        if refusals:
            return refusals
        self._keep(granted, now)
        return granted

    def lend(self, wanted: Lease, least: Amounts, now: float) -> Lease | tuple[Refusal, ...]:
        """Grant a slice, or as large a part of it as leaves most of what is free to others.

        A part below `least` in any dimension is of no use, and is refused.
        """
        like = _entry(wanted)
        room = self.ledger.room(like)
        part = {
            dimension: min(value, room[dimension] // LARGEST_PART) if dimension in room else value
            for dimension, value in like.amounts.items()
        }
        if any(value > part.get(dimension, 0) for dimension, value in least.items()):
            return (Refusal(PendingReason.CONTROL_PLANE, "lease", 1),)
        return self.grant(replace(wanted, amounts=part), now)

    def renew(self, lease_id: str, spent: Sequence[Entry], now: float) -> Lease | None:
        """Take a holder's report and give it a new term, or None: it ends when it would have.

        The amounts of the answer are what is left of the slice.
        """
        self.report(lease_id, spent)
        known = self._granted.get(lease_id)
        if known is None or lease_id in self._revoked or now >= self.until[lease_id] + MARGIN_S:
            return None
        self.until[lease_id] = now + DURATION_S
        return replace(known, amounts=self.ledger.leases[lease_id].amounts)

    def report(self, lease_id: str, spent: Iterable[Entry]) -> None:
        """Book what a holder says it spent. Of a lease that is gone agents have told already."""
        if lease_id in self._granted:
            for entry in spent:
                self.seen(entry, lease_id, live=True)

    def seen(self, entry: Entry, lease_id: str, *, live: bool) -> None:
        """Book what an agent says was started on a lease and lives, or has ended since.

        Idempotent, in any order with the holder's report of the same sandbox.
        """
        spent = self._spent.get(lease_id, set())
        if entry.id not in spent:
            try:
                self.ledger.spend(lease_id, entry, live=live)
                spent.add(entry.id)
            except (KeyError, QuotaError):
                # it runs, whatever it was paid with: a fact is counted
                if live:
                    self.ledger.book(entry)
        if not live:
            self.ledger.end(entry.id)

    def hand_back(self, lease_id: str, spent: Iterable[Entry], now: float) -> None:
        """End a lease at its holder's wish: its last report, then the rest is free at once."""
        self.report(lease_id, spent)
        self._drop(lease_id, now)

    def revoke(self, lease_ids: Iterable[str]) -> None:
        """Renew these no more: their owner asks for what they borrow."""
        self._revoked.update(lease_id for lease_id in lease_ids if lease_id in self._granted)

    def borrowed(self) -> list[str]:
        """Return the leases of tenants that have more than they own: those to revoke first."""
        return [
            lease_id
            for lease_id, lease in self._granted.items()
            if lease.task_class is not TaskClass.GUARANTEED
            and self.ledger.borrowed(lease.account.partition("/")[0])
        ]

    def expire(self, now: float, seen_until: float) -> list[str]:
        """Free the slices that nobody can spend any more; returns their ids.

        `seen_until`: the time up to which every agent's starts are in the ledger, the earliest of
        all agents that are not fenced. A silent agent keeps expired slices booked.
        """
        self.read_until = max(self.read_until, seen_until)
        late = [
            lease_id
            for lease_id, until in self.until.items()
            if until + MARGIN_S <= min(now, self.read_until)
        ]
        for lease_id in late:
            self._drop(lease_id, now)
        old = [lease_id for lease_id, at in self._retired.items() if at + RETIRED_S <= now]
        for lease_id in old:
            del self._retired[lease_id]
        return late

    def _keep(self, lease: Lease, now: float) -> None:
        self._granted[lease.id] = lease
        self.until[lease.id] = now + DURATION_S
        self._spent[lease.id] = set()

    def _drop(self, lease_id: str, now: float) -> None:
        self.ledger.release(lease_id)
        self._retired[lease_id] = now
        for known in (self._granted, self.until, self._spent):
            known.pop(lease_id, None)
        self._revoked.discard(lease_id)


class Purse:
    """The slices that one gateway holds. Times are its own monotonic clock's."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.epoch = 0
        self.leases: dict[str, Lease] = {}
        self.unreported: dict[str, list[Entry]] = {}
        self._left: dict[str, dict[str, int]] = {}
        self._ends: dict[str, float] = {}
        self._dropped: dict[str, float] = {}

    def put(self, lease: Lease, sent_at: float) -> None:
        """Take a grant or renewal that was asked for at `sent_at`.

        Thrown away is one of an older epoch than has been seen, because its leader rules no more,
        and a late answer about a slice that was dropped: it would be spent twice.
        """
        if lease.epoch < self.epoch or lease.id in self._dropped:
            return
        self.epoch = lease.epoch
        if lease.id not in self.leases:
            self._left[lease.id] = dict(lease.amounts)
            self.unreported[lease.id] = []
        self.leases[lease.id] = lease
        ends = sent_at + lease.duration_s * (1 - DRIFT) - SAFETY_S
        self._ends[lease.id] = max(ends, self._ends.get(lease.id, ends))

    def spend(self, entry: Entry, now: float) -> str | tuple[Refusal, ...]:
        """Pay for one sandbox before it is sent to a node: the lease that paid, or why none did."""
        short: tuple[Refusal, ...] = (Refusal(PendingReason.CONTROL_PLANE, "lease", 1),)
        for lease_id, lease in self.leases.items():
            if not self.valid(lease_id, now) or not _covers(lease, entry):
                continue
            left = self._left[lease_id]
            short = self._short(lease, entry)
            if not short:
                for dimension, value in entry.amounts.items():
                    left[dimension] -= value
                self.unreported[lease_id].append(entry)
                return lease_id
        return short

    def refund(self, lease_id: str, entry: Entry) -> None:
        """Take back the price of a sandbox that no node was ever asked to start.

        Only for calls that were certainly not made: an unknown outcome stays paid.
        """
        if entry in self.unreported.get(lease_id, []):
            self.unreported[lease_id].remove(entry)
            for dimension, value in entry.amounts.items():
                self._left[lease_id][dimension] += value

    def reported(self, lease_id: str, sent: Sequence[Entry]) -> None:
        """Forget what the leader has answered for."""
        told = {entry.id for entry in sent}
        mine = self.unreported.get(lease_id, [])
        self.unreported[lease_id] = [entry for entry in mine if entry.id not in told]

    def valid(self, lease_id: str, now: float) -> bool:
        """Return whether a slice may still be spent."""
        return now < self._ends[lease_id]

    def left(self, lease_id: str) -> Mapping[str, int]:
        """Return what may still be spent of a slice."""
        return dict(self._left[lease_id])

    def due(self, now: float) -> list[str]:
        """Return the leases to renew now: half of their time has passed."""
        for lease_id in [one for one, ends in self._dropped.items() if ends + RETIRED_S <= now]:
            del self._dropped[lease_id]
        half = (DURATION_S - SAFETY_S) / 2
        return [lease_id for lease_id, ends in self._ends.items() if ends - now <= half]

    def drop(self, lease_id: str) -> None:
        """Forget a lease: handed back, refused, or long ended with everything reported."""
        if lease_id in self._ends:
            self._dropped[lease_id] = self._ends[lease_id]
        for known in (self.leases, self.unreported, self._left, self._ends):
            known.pop(lease_id, None)

    def _short(self, lease: Lease, entry: Entry) -> tuple[Refusal, ...]:
        left = self._left[lease.id]
        return tuple(
            Refusal(
                PendingReason.QUOTA,
                dimension,
                entry.amounts[dimension],
                left.get(dimension, 0),
                largest=lease.amounts.get(dimension, 0),
                whose=self.holder,
                limit=Limit.LEASE,
            )
            for dimension in DIMENSIONS
            if entry.amounts.get(dimension, 0) > left.get(dimension, 0)
        )


def _covers(lease: Lease, entry: Entry) -> bool:
    below = entry.account == lease.account or entry.account.startswith(lease.account + "/")
    return below and entry.task_class is lease.task_class


def _entry(lease: Lease) -> Entry:
    return Entry(lease.id, lease.account, lease.amounts, lease.task_class)
