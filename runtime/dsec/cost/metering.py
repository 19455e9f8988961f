"""Metering: what each second of a node cost, and whose it was. Pure.

A node is metered in *cells* of five minutes on the clock's grid, shortened by its start and end.
Its cost in a cell is C(end) - C(start), where C(t) is rate * (t - start) rounded up to a millionth.
The differences add up to the bill whatever the cells are, so restarts and late runs change nothing.

Division of a cell, whose parts always sum to the node's cost exactly:

1. A sandbox *uses* the part of the price that its booking is of the node, by the prices of CPU,
   memory and GPU, for the seconds that it was there. Bookings above the node share it.
2. What nobody uses is *idle*. On a node with payers (a cloud node, bought for somebody) the cost is
   first divided among the payers by the weights of the commitment in force, then within each among
   its sandboxes and its idle rest. So what budgets pay is what they promised, and who leaves early
   pays until the commitment is divided anew.
3. On a node without payers (owned) idle cost stays with the pool, or is divided among those who
   use it in proportion to their use (`IdleRule`).

Remainders of a millionth go to the largest remainders. A provider's minimum bill is idle time.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import cache, lru_cache, partial
from types import MappingProxyType

from dsec.cost.amounts import (
    CPU_HOURS,
    GPU_HOURS,
    HOURS,
    ZERO,
    added,
    ceil_micro,
    divided,
    near_micro,
    over,
)
from dsec.cost.budgets import POOL
from dsec.cost.commitments import Payer
from dsec.cost.entries import Entry, EntryKind
from dsec.cost.prices import NodePrice, Shape

CELL = 300
"""Seconds; a quarter of an hour is a whole number of cells."""
NO_POOL = "none"
_SOLD = ("cpu", "memory", "gpu")


class IdleRule(StrEnum):
    """Who pays for idle time on nodes without payers."""

    POOL = "pool"
    """A line of its own of the pool (COST-17)."""
    USERS = "users"
    """Those who use the node, in proportion to their use; nobody there: the pool."""


class LineKind(StrEnum):
    """What a line is for."""

    USE = "use"
    IDLE = "idle"
    STORAGE = "storage"
    EGRESS = "egress"


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node's life. `started` is when its provider starts to bill; `ended` None: it still runs.

    `priced_since`: since when this price holds, where it changed during its life.
    """

    node: str
    price: NodePrice
    started: float
    ended: float | None = None
    pool: str = ""
    region: str = ""
    minimum_seconds: int = 0
    payers: tuple[Payer, ...] = ()
    priced_since: float | None = None

    @property
    def begin(self) -> int:
        """First second that is billed."""
        return math.floor(self.started)

    @property
    def end(self) -> int | None:
        """First second that is not billed any more, None: not known yet."""
        if self.ended is None:
            return None
        return max(math.ceil(self.ended), self.begin + self.minimum_seconds)

    @property
    def anchor(self) -> int:
        """From when cost is counted: rounding adds up from here."""
        return self.begin if self.priced_since is None else math.floor(self.priced_since)


@dataclass(frozen=True, slots=True)
class SandboxUse:
    """A stretch of a sandbox's life with one booking; a pause begins another stretch."""

    id: str
    path: str
    booked: Shape
    since: float
    until: float | None = None

    def seconds(self, since: int, until: int) -> Fraction:
        """Return how long of a cell it was there."""
        if self.since <= since and (self.until is None or self.until >= until):
            return Fraction(until - since)
        end = until if self.until is None else min(until, self.until)
        return max(Fraction(0), Fraction(end) - Fraction(max(since, self.since)))


@dataclass(frozen=True, slots=True)
class Line:
    """One line item. Idle lines have no sandbox; those of a pool have its path."""

    kind: LineKind
    path: str
    amounts: Mapping[str, Decimal]
    source: str
    since: int
    until: int
    sandbox: str = ""
    pool: str = ""
    region: str = ""
    price_source: str = ""
    """Where the unit price is from: owned, list, override (COST-04)."""
    used: Mapping[str, Decimal] = field(default_factory=dict)
    """GPU-hours and CPU-hours that a sandbox booked, for reports."""


def cells(
    node: NodeUse, now: float, charged_until: float | None = None, *, partial: bool = False
) -> Iterator[tuple[int, int]]:
    """Yield the cells of a node that are over and not booked; `partial`: the running one too."""
    begin = node.begin if charged_until is None else max(node.begin, math.floor(charged_until))
    last = node.end if node.end is not None and node.end <= now else None
    until = last if last is not None else math.floor(now)
    while begin < until:
        edge = min((begin // CELL + 1) * CELL, until)
        if edge % CELL and edge != last and not partial:
            return
        yield begin, edge
        begin = edge


def meter(
    node: NodeUse,
    sandboxes: Sequence[SandboxUse],
    cell: tuple[int, int],
    *,
    idle: IdleRule = IdleRule.POOL,
) -> tuple[Line, ...]:
    """Return the lines of one cell; their sum is the node's cost in it, to the millionth."""
    since, until = cell
    there = [(one, one.seconds(since, until)) for one in sandboxes]
    # most of what runs on a node is booked alike
    share = cache(partial(_share, node))
    length = until - since
    present = [(one, share(one.booked) * time / length) for one, time in there if time > 0]
    # bookings above the whole node share it
    whole = sum((part for _, part in present), Fraction(0))
    if whole > 1:
        present = [(one, part / whole) for one, part in present]
    if node.payers:
        return _with_payers(node, present, cell)
    return _without_payers(node, present, cell, idle)


def cost_in(node: NodeUse, unit: str, cell: tuple[int, int]) -> Decimal:
    """Return what a node costs in a cell, in one unit: a difference of running sums."""
    rate = node.price.rates.get(unit, ZERO)
    since, until = (ceil_micro(over(rate, at - node.anchor)) for at in cell)
    return until - since


def bill(node: NodeUse, now: float) -> Decimal:
    """Return what a provider charges for a node up to now, in its currency, by whole seconds."""
    until = math.floor(now) if node.end is None else min(node.end, math.floor(now))
    return ceil_micro(over(node.price.per_hour, max(0, until - node.anchor)))


@dataclass(frozen=True, slots=True)
class StoredUse:
    """Bytes that lie somewhere, at a price per GB and hour."""

    id: str
    path: str
    gigabytes: Decimal
    per_gb_hour: Decimal
    currency: str
    since: float
    until: float | None = None
    region: str = ""


def stored(one: StoredUse, cell: tuple[int, int]) -> Line:
    """Return what stored bytes cost in a cell."""
    begin = math.floor(one.since)
    end = cell[1] if one.until is None else min(cell[1], math.ceil(one.until))
    rate = one.gigabytes * one.per_gb_hour
    edges = (max(begin, cell[0]), max(begin, cell[0], end))
    amount = [ceil_micro(over(rate, at - begin)) for at in edges]
    return Line(
        LineKind.STORAGE,
        one.path,
        {one.currency: amount[1] - amount[0]},
        one.id,
        *edges,
        region=one.region,
    )


def egress(
    path: str, transfer: str, cost: Decimal, currency: str, at: float, *, region: str = ""
) -> Line:
    """Return the line of bytes that left, at what their tier costs (`TieredPrice.cost`)."""
    when = math.floor(at)
    return Line(LineKind.EGRESS, path, {currency: cost}, transfer, when, when, region=region)


def entries(lines: Iterable[Line], at: float) -> list[Entry]:
    """Return the ledger entries of lines: one per source, cell, payer and kind.

    Their ids follow from those, so that a cell that is metered again is not booked again.
    """
    sums: dict[str, tuple[Line, dict[str, Decimal]]] = {}
    for one in lines:
        entry_id = f"consume/{one.source}/{one.since}/{one.path}/{one.kind.value}"
        # the last one's price source is as good as any: they are of one node and cell
        amounts = sums[entry_id][1] if entry_id in sums else {}
        sums[entry_id] = one, amounts
        for unit, amount in one.amounts.items():
            amounts[unit] = amounts.get(unit, ZERO) + amount
    return [
        Entry(
            entry_id,
            EntryKind.CONSUME,
            at,
            one.path,
            added(amounts),
            one.source,
            float(one.since),
            float(one.until),
            one.region,
            # what a pool pays is counted by its path; the pool beside it would count it twice
            "" if one.path.startswith(POOL) else one.pool,
            what=one.kind.value,
            priced=one.price_source,
        )
        for entry_id, (one, amounts) in sums.items()
    ]


def _share(node: NodeUse, booked: Shape) -> Fraction:
    """Return which part of the node's cost a booking is."""
    shape, price = node.price.shape.quantities, node.price.parts
    shares = {
        name: amount / shape[name] for name, amount in booked.quantities.items() if shape[name] > 0
    }
    sold = sum((Fraction(price.get(name, ZERO)) for name in _SOLD), Fraction(0))
    if sold:
        value = sum(
            (Fraction(price.get(name, ZERO)) * part for name, part in shares.items()), Fraction(0)
        )
        return value / sold
    # without a price for any part the scarcest one decides
    return max(shares.values(), default=Fraction(0))


def _with_payers(
    node: NodeUse, present: list[tuple[SandboxUse, Fraction]], cell: tuple[int, int]
) -> tuple[Line, ...]:
    weights = [one.weight for one in node.payers]
    total = sum(weights)
    units = {unit: divided(cost_in(node, unit, cell), weights) for unit in sorted(node.price.rates)}
    lines: list[Line] = []
    payer_of = {one.id: _payer(node.payers, one.path) for one, _ in present}
    for at, payer in enumerate(node.payers):
        mine = [(one, part) for one, part in present if payer_of[one.id] == payer]
        rest = Fraction(payer.weight, total) - sum((part for _, part in mine), Fraction(0))
        shares = [*(part for _, part in mine), max(Fraction(0), rest)]
        split = {unit: divided(parts[at], shares) for unit, parts in units.items()}
        lines += _lines(node, cell, [one for one, _ in mine], split, payer.path)
    return tuple(lines)


def _payer(payers: Sequence[Payer], path: str) -> Payer | None:
    """Return the payer nearest above a path, None: it is a guest of those who pay."""
    above = [one for one in payers if f"{path}/".startswith(f"{one.path}/")]
    return max(above, key=lambda one: len(one.path), default=None)


def _without_payers(
    node: NodeUse,
    present: list[tuple[SandboxUse, Fraction]],
    cell: tuple[int, int],
    idle: IdleRule,
) -> tuple[Line, ...]:
    currency = node.price.currency
    rest = 1 - sum((part for _, part in present), Fraction(0))
    if idle is IdleRule.USERS and any(part for _, part in present):
        rest = Fraction(0)
    shares = [*(part for _, part in present), rest]
    if not any(shares):
        # nothing was booked on a node without a price for its parts: all of it is idle
        shares[-1] = Fraction(1)
    split = {currency: divided(cost_in(node, currency, cell), shares)}
    users = [one for one, _ in present]
    hours = [_booked(one, cell) for one in users]
    for unit in HOURS:
        split[unit] = (*(one.get(unit, ZERO) for one in hours), ZERO)
    return tuple(_lines(node, cell, users, split, f"{POOL}{node.pool or NO_POOL}"))


def _lines(
    node: NodeUse,
    cell: tuple[int, int],
    users: Sequence[SandboxUse],
    split: Mapping[str, Sequence[Decimal]],
    idle_path: str,
) -> Iterator[Line]:
    """Yield a line per sandbox, and one of what is idle where that costs anything."""
    for at, one in enumerate([*users, None]):
        amounts = {unit: parts[at] for unit, parts in split.items() if parts[at]}
        if one is None and not amounts:
            continue
        yield Line(
            LineKind.IDLE if one is None else LineKind.USE,
            idle_path if one is None else one.path,
            amounts,
            node.node,
            *cell,
            sandbox="" if one is None else one.id,
            pool=node.pool,
            region=node.region,
            price_source=node.price.source,
            used={} if one is None else _booked(one, cell),
        )


def _booked(one: SandboxUse, cell: tuple[int, int]) -> Mapping[str, Decimal]:
    return _hours(one.booked.cpu_milli, one.booked.gpu_milli, one.seconds(*cell))


@lru_cache(maxsize=1024)
def _hours(cpu_milli: int, gpu_milli: int, seconds: Fraction) -> Mapping[str, Decimal]:
    hours = {
        CPU_HOURS: near_micro(Fraction(cpu_milli, 1000) * seconds / 3600),
        GPU_HOURS: near_micro(Fraction(gpu_milli, 1000) * seconds / 3600),
    }
    return MappingProxyType({unit: amount for unit, amount in hours.items() if amount})
