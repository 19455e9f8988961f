"""Reports of cost from the ledger: by tenant, project, task, pool or day. Pure.

The rows of every report add up to its total, and the total of every report over the same time is
the same: each entry of use falls into one row. What a pool pays itself (its idle time, COST-17) is
the row of the pool, whatever the report goes by.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dsec.cost.amounts import CPU_HOURS, GPU_HOURS, HOURS, ZERO, added, cents
from dsec.cost.budgets import POOL
from dsec.cost.entries import Entry, EntryKind
from dsec.cost.metering import NO_POOL, LineKind
from dsec.cost.periods import ALL_TIME, Span, zone_of


class By(StrEnum):
    """What the rows of a report are."""

    TENANT = "tenant"
    PROJECT = "project"
    TASK = "task"
    POOL = "pool"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `money` is per currency; `idle` is the part of it that nobody used."""

    key: str
    money: Mapping[str, Decimal]
    idle: Mapping[str, Decimal] = field(default_factory=dict)
    storage: Mapping[str, Decimal] = field(default_factory=dict)
    egress: Mapping[str, Decimal] = field(default_factory=dict)
    cpu_hours: Decimal = ZERO
    gpu_hours: Decimal = ZERO


@dataclass(frozen=True, slots=True)
class Item:
    """A line item of a bill: one payer, one pool, one kind, one kind of price (COST-04)."""

    path: str
    pool: str
    what: str
    priced: str
    money: Mapping[str, Decimal]
    cpu_hours: Decimal
    gpu_hours: Decimal

    def per_cpu_hour(self, currency: str) -> Decimal | None:
        """Return the unit price by CPU-hours, None where there are none."""
        return self.money.get(currency, ZERO) / self.cpu_hours if self.cpu_hours else None


def report(
    entries: Iterable[Entry], by: By, *, span: Span = ALL_TIME, zone: str = "UTC"
) -> tuple[Row, ...]:
    """Return the rows of a report, the dearest first; days in order. `zone` decides the day.

    Raises MoneyError for an unknown zone.
    """
    where = zone_of(zone)
    groups: dict[str, list[Entry]] = {}
    for one in _used(entries, span):
        if by is By.DAY:
            key = datetime.fromtimestamp(one.since or 0.0, where).date().isoformat()
        else:
            key = _key(one, by)
        groups.setdefault(key, []).append(one)
    rows = [_row(key, found) for key, found in groups.items()]
    if by is By.DAY:
        return tuple(sorted(rows, key=lambda one: one.key))
    return tuple(sorted(rows, key=lambda one: (-sum(one.money.values(), ZERO), one.key)))


def total(entries: Iterable[Entry], *, span: Span = ALL_TIME) -> Row:
    """Return the sum of all use in a span."""
    return _row("total", list(_used(entries, span)))


def items(entries: Iterable[Entry], *, span: Span = ALL_TIME) -> tuple[Item, ...]:
    """Return the line items of a bill, by payer, pool, kind and kind of price."""
    groups: dict[tuple[str, str, str, str], list[Entry]] = {}
    for one in _used(entries, span):
        groups.setdefault((one.path, _pool(one), one.what, one.priced), []).append(one)
    found = []
    for key, some in sorted(groups.items()):
        sums = added(*(one.amounts for one in some))
        found.append(Item(*key, _money(sums), sums.get(CPU_HOURS, ZERO), sums.get(GPU_HOURS, ZERO)))
    return tuple(found)


def plain(row: Row) -> dict[str, Any]:
    """Return a row as JSON data: exact amounts as text, and what a bill would print."""
    return {
        "key": row.key,
        "money": _texts(row.money),
        "rounded": {unit: f"{cents(one):f}" for unit, one in sorted(row.money.items())},
        "idle": _texts(row.idle),
        "storage": _texts(row.storage),
        "egress": _texts(row.egress),
        "cpuHours": f"{row.cpu_hours:f}",
        "gpuHours": f"{row.gpu_hours:f}",
    }


def _used(entries: Iterable[Entry], span: Span) -> Iterable[Entry]:
    return (
        one
        for one in entries
        if one.kind is EntryKind.CONSUME and one.since is not None and one.since in span
    )


def _key(entry: Entry, by: By) -> str:
    if by is By.POOL:
        return _pool(entry)
    if entry.path.startswith(POOL):
        return entry.path
    names = entry.path.split("/")
    depth = {By.TENANT: 1, By.PROJECT: 2, By.TASK: 3}[by]
    # what no task pays for is the project's own row
    return "/".join(names[:depth])


def _pool(entry: Entry) -> str:
    return entry.path.removeprefix(POOL) if entry.path.startswith(POOL) else entry.pool or NO_POOL


def _row(key: str, entries: list[Entry]) -> Row:
    sums = added(*(one.amounts for one in entries))
    kinds = {
        kind: _money(added(*(one.amounts for one in entries if one.what == kind.value)))
        for kind in (LineKind.IDLE, LineKind.STORAGE, LineKind.EGRESS)
    }
    return Row(
        key,
        _money(sums),
        kinds[LineKind.IDLE],
        kinds[LineKind.STORAGE],
        kinds[LineKind.EGRESS],
        sums.get(CPU_HOURS, ZERO),
        sums.get(GPU_HOURS, ZERO),
    )


def _money(sums: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {unit: one for unit, one in sums.items() if unit not in HOURS}


def _texts(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    return {unit: f"{one:f}" for unit, one in sorted(amounts.items())}
