"""Entries that have become sums: what a ledger keeps of them, and how it knows them again. Pure.

A folded entry of use is known by the time of its source: use is booked by adjoining intervals, so
everything up to the last folded one has been booked. A folded promise is known by its revision.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from dsec.cost.amounts import ZERO, exact
from dsec.cost.budgets import POOL, ancestors
from dsec.cost.entries import QUARTER, Entry, EntryKind


@dataclass(slots=True)
class Folded:
    """Sums of folded entries. `spent`: path to (unit, region) to quarter of an hour to amount."""

    spent: dict[str, dict[tuple[str, str], dict[int, Decimal]]] = field(default_factory=dict)
    balance: dict[str, dict[str, Decimal]] = field(default_factory=dict)
    charged: dict[str, float] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)

    def holds(self, entry: Entry) -> bool:
        """Return whether an entry has been folded."""
        if entry.commitment is not None:
            return entry.commitment.revision <= self.released.get(entry.source, -1)
        until = self.charged.get(entry.source)
        used = entry.kind is EntryKind.CONSUME and entry.until is not None
        return used and until is not None and (entry.until or 0.0) <= until

    def add(self, entry: Entry) -> None:
        """Fold one entry of use, or one promise that was released."""
        if entry.commitment is not None:
            before = self.released.get(entry.source, -1)
            self.released[entry.source] = max(before, entry.commitment.revision)
            return
        until = entry.until or 0.0
        self.charged[entry.source] = max(self.charged.get(entry.source, until), until)
        quarter = int((entry.since or 0.0) // QUARTER)
        for path, unit, region, amount in spending(entry):
            sums = self.spent.setdefault(path, {}).setdefault((unit, region), {})
            sums[quarter] = sums.get(quarter, ZERO) + amount
        mine = self.balance.setdefault(entry.path, {})
        for unit, amount in entry.amounts.items():
            mine[unit] = mine.get(unit, ZERO) - amount

    def plain(self) -> dict[str, Any]:
        """Return JSON data; amounts are text."""
        return {
            "spent": [
                [path, unit, region, {str(at): f"{one:f}" for at, one in sorted(sums.items())}]
                for path, units in sorted(self.spent.items())
                for (unit, region), sums in sorted(units.items())
            ],
            "balance": {
                path: {unit: f"{one:f}" for unit, one in sorted(units.items())}
                for path, units in sorted(self.balance.items())
            },
            "charged": dict(sorted(self.charged.items())),
            "released": dict(sorted(self.released.items())),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Folded":
        """Return what `plain` wrote. Raises MoneyError, KeyError, TypeError for other data."""
        found = cls(
            balance={
                path: {unit: exact(one) for unit, one in units.items()}
                for path, units in data["balance"].items()
            },
            charged={source: float(until) for source, until in data["charged"].items()},
            released={name: int(revision) for name, revision in data["released"].items()},
        )
        for path, unit, region, sums in data["spent"]:
            found.spent.setdefault(path, {})[unit, region] = {
                int(at): exact(one) for at, one in sums.items()
            }
        return found


def spending(entry: Entry) -> Iterator[tuple[str, str, str, Decimal]]:
    """Yield what an entry of use counts as: path or pool, unit, region ("" is all), amount."""
    paths = [*ancestors(entry.path), *([POOL + entry.pool] if entry.pool else [])]
    for unit, amount in entry.amounts.items():
        for path in paths:
            yield path, unit, "", amount
            if entry.region:
                yield path, unit, entry.region, amount
