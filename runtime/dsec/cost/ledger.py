"""The money ledger: append-only entries, and the sums that they make. Pure; one writer.

Offered:

    ledger = Ledger.rebuild(rows)              # in any order, repeated rows count once
    ledger.append(entry) -> bool               # False: it is there already; the caller stores rows
    ledger.spent(allowance, span, region)      # what the gate compares with
    ledger.balance(path)                       # allocated - consumed - returned - given to children
    ledger.open() -> commitments               # promised, charged up to what was booked
    ledger.charged_until(source)               # where metering of a source goes on
    ledger.books()                             # all sums: equal books are equal ledgers
    ledger.forget(before), ledger.checkpoint() # old rows become sums, so that memory stays bounded

The state is the sum of the entries and nothing else, so the rows rebuild it exactly after a crash,
whatever order they are read in. Consumption is booked by adjoining intervals per source: one that
starts before the last one ended is refused, since it would be paid twice.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from dsec.cost.amounts import ZERO, MoneyError
from dsec.cost.budgets import Allowance, ancestors
from dsec.cost.commitments import Commitment
from dsec.cost.entries import QUARTER, Entry, EntryKind, entry_of
from dsec.cost.folding import Folded, spending
from dsec.cost.periods import ALL_TIME, Span

_DAY = 96
"""Quarters of an hour."""


@dataclass(slots=True)
class _Sums:
    """Amounts by quarter of an hour, and by day so that a month is summed in no time."""

    quarters: dict[int, Decimal] = field(default_factory=dict)
    days: dict[int, Decimal] = field(default_factory=dict)

    def add(self, at: float, amount: Decimal) -> None:
        quarter = int(at // QUARTER)
        day = quarter // _DAY
        self.quarters[quarter] = self.quarters.get(quarter, ZERO) + amount
        self.days[day] = self.days.get(day, ZERO) + amount

    def within(self, span: Span) -> Decimal:
        """Return the sum; a quarter that the span cuts counts whole, on the safe side."""
        first = None if span.start is None else int(span.start // QUARTER)
        last = None if span.end is None else -int(-span.end // QUARTER)
        total = ZERO
        for day, amount in self.days.items():
            begin, end = day * _DAY, (day + 1) * _DAY
            if (first is None or begin >= first) and (last is None or end <= last):
                total += amount
            elif (first is None or end > first) and (last is None or begin < last):
                total += sum(
                    (
                        self.quarters.get(one, ZERO)
                        for one in range(begin, end)
                        if (first is None or one >= first) and (last is None or one < last)
                    ),
                    ZERO,
                )
        return total


class Ledger:
    """Entries by id, and their sums."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._spent: dict[tuple[str, str, str], _Sums] = {}
        """(path or pool, unit, region) to sums; the region is empty for all together."""
        self._balance: dict[str, dict[str, Decimal]] = {}
        self._charged: dict[str, float] = {}
        self._promised: dict[str, dict[int, Commitment]] = {}
        self._released: set[tuple[str, int]] = set()
        self._folded = Folded()

    @classmethod
    def rebuild(
        cls, rows: Iterable[Mapping[str, Any]], checkpoint: Mapping[str, Any] | None = None
    ) -> "Ledger":
        """Return the ledger of rows. They are facts: what overlaps is summed, not refused.

        Rows that a checkpoint contains may be there or not. Raises MoneyError for a malformed row,
        and for one id with two contents.
        """
        ledger = cls()
        if checkpoint is not None:
            ledger._load(Folded.of(checkpoint))
        for row in rows:
            entry = entry_of(row)
            if ledger._is_new(entry):
                ledger._book(entry)
        return ledger

    def append(self, entry: Entry) -> bool:
        """Book an entry; returns whether it is new. Raises MoneyError for what would count twice.

        That is the same id with another content, and use before `charged_until` of its source.
        """
        return bool(self.extend([entry]))

    def extend(self, entries: Iterable[Entry]) -> list[Entry]:
        """Book entries of one moment; returns those that are new, to be stored in one segment.

        Several payers of one source and time belong together: half of them stored would lose the
        others. Raises MoneyError as `append`; then nothing of this call is booked.
        """
        new = [one for one in entries if self._is_new(one)]
        for one in new:
            if one.kind is EntryKind.CONSUME and one.since is not None:
                charged = self._charged.get(one.source)
                if charged is not None and one.since < charged:
                    raise MoneyError(
                        f"{one.id}: use of {one.source} from {one.since:.0f} is booked already up "
                        f"to {charged:.0f}; book from there"
                    )
        for one in new:
            self._book(one)
        return new

    def spent(self, allowance: Allowance, span: Span, region: str = "") -> Decimal:
        """Return what was spent on a budget in a span: in its region where it has escrow."""
        where = region if allowance.regions else ""
        sums = self._spent.get((allowance.path, allowance.unit, where))
        return sums.within(span) if sums else ZERO

    def total(self, path: str, unit: str) -> Decimal:
        """Return everything that was ever consumed at a path and below it."""
        sums = self._spent.get((path, unit, ""))
        return sums.within(ALL_TIME) if sums else ZERO

    def balance(self, path: str, unit: str) -> Decimal:
        """Return what an account was given and has neither consumed, given on nor returned."""
        return self._balance.get(path, {}).get(unit, ZERO)

    def balances(self, path: str) -> dict[str, Decimal]:
        """Return the balance of an account per unit; those that are zero are left out."""
        return {unit: one for unit, one in self._balance.get(path, {}).items() if one}

    def charged_until(self, source: str) -> float | None:
        """Return up to when the use of a source is booked, None: nothing is."""
        return self._charged.get(source)

    def open(self, path: str = "") -> list[Commitment]:
        """Return what is promised and not released, of a path and below it; newest revisions.

        Each is charged up to what is booked of its source.
        """
        found = []
        for name, revisions in sorted(self._promised.items()):
            live = [at for at in revisions if (name, at) not in self._released]
            if not live:
                continue
            one = revisions[max(live)]
            charged = self._charged.get(one.source or name)
            if charged is not None and (one.charged_until is None or charged > one.charged_until):
                one = replace(one, charged_until=charged)
            if not path or path in one.paths:
                found.append(one)
        return found

    def revisions(self, name: str) -> list[Commitment]:
        """Return the revisions of a commitment that are not released, oldest first."""
        held = self._promised.get(name, {})
        return [held[at] for at in sorted(held) if (name, at) not in self._released]

    def consumed(self) -> Iterator[Entry]:
        """Yield the entries of use, in the order in which they were booked."""
        return (one for one in self.entries.values() if one.kind is EntryKind.CONSUME)

    def books(self) -> dict[str, Any]:
        """Return every sum as plain data, without zeros: equal books are equal ledgers."""
        return {
            "spent": {
                key: {at: one for at, one in sorted(sums.quarters.items()) if one}
                for key, sums in sorted(self._spent.items())
            },
            "balance": {path: self.balances(path) for path in sorted(self._balance)},
            "charged": dict(sorted(self._charged.items())),
            "open": self.open(),
        }

    def forget(self, before: float) -> int:
        """Fold old entries into sums; returns how many. Nothing that is asked of them changes.

        Use that ended before, and promises that were released before. Reports about that time need
        the stored rows. What is folded is still known: booking it again books nothing.
        """
        old = [
            one
            for one in self.entries.values()
            if (one.kind is EntryKind.CONSUME and (one.until or 0.0) <= before)
            or (
                one.commitment is not None
                and one.at <= before
                and (one.commitment.id, one.commitment.revision) in self._released
            )
        ]
        for one in old:
            del self.entries[one.id]
            self._folded.add(one)
            if one.commitment is not None:
                self._promised.get(one.source, {}).pop(one.commitment.revision, None)
                self._released.discard((one.source, one.commitment.revision))
        return len(old)

    def checkpoint(self) -> dict[str, Any]:
        """Return what was folded as JSON data, for `rebuild` with the rows of what is left."""
        return self._folded.plain()

    def _load(self, folded: Folded) -> None:
        self._folded = folded
        for path, units in folded.spent.items():
            for (unit, region), quarters in units.items():
                sums = self._spent.setdefault((path, unit, region), _Sums())
                for quarter, amount in quarters.items():
                    sums.add(quarter * QUARTER, amount)
        for path, balance in folded.balance.items():
            for unit, amount in balance.items():
                self._move(path, unit, amount)
        self._charged.update(folded.charged)

    def _is_new(self, entry: Entry) -> bool:
        known = self.entries.get(entry.id)
        if known is None:
            return not self._folded.holds(entry)
        if replace(known, at=entry.at) != entry:
            raise MoneyError(f"{entry.id}: is booked with another content; an id is for one entry")
        return False

    def _book(self, entry: Entry) -> None:
        self.entries[entry.id] = entry
        if entry.commitment is not None:
            self._promise(entry, entry.commitment)
            return
        sign = 1 if entry.kind is EntryKind.ALLOCATE else -1
        above = ancestors(entry.path)[-2:-1] if entry.kind is not EntryKind.CONSUME else ()
        for unit, amount in entry.amounts.items():
            self._move(entry.path, unit, sign * amount)
            for parent in above:
                self._move(parent, unit, -sign * amount)
        if entry.kind is EntryKind.CONSUME:
            self._consume(entry)

    def _promise(self, entry: Entry, commitment: Commitment) -> None:
        if entry.kind is EntryKind.COMMIT:
            self._promised.setdefault(commitment.id, {})[commitment.revision] = commitment
        else:
            self._released.add((commitment.id, commitment.revision))

    def _consume(self, entry: Entry) -> None:
        until = entry.until or 0.0
        self._charged[entry.source] = max(self._charged.get(entry.source, until), until)
        for path, unit, region, amount in spending(entry):
            self._spent.setdefault((path, unit, region), _Sums()).add(entry.since or 0.0, amount)

    def _move(self, path: str, unit: str, amount: Decimal) -> None:
        held = self._balance.setdefault(path, {})
        held[unit] = held.get(unit, ZERO) + amount
