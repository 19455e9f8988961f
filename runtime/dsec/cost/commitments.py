"""What is promised to be paid: a node until its run-until time, its end, a slice of budget lent.

A commitment costs, per unit that it has a rate in:

    rate * (run_until - charged_until)        what is still to be used, at least the minimum bill
    + rate * wind_down_seconds + closing      drain, snapshot, archive, first storage period
    + held                                    a lease: a fixed amount

It is divided among its payers by weight, rounded up to a millionth for each budget. Times are
seconds since the epoch, widened to whole seconds: the second is what is billed.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from dsec.cost.amounts import HOUR, ZERO, MoneyError
from dsec.cost.budgets import POOL, Allowance, ancestors
from dsec.cost.periods import Span

_MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Payer:
    """Who pays a part of a commitment: a path and the weight of the part."""

    path: str
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Commitment:
    """One node, sandbox or lease that budgets answer for.

    `rates` are per hour and unit, the highest that can come to be charged: for a spot node the
    price that its request allows. `charged_until`: metering has booked its use up to there.
    `revision` grows with each change; of two of one id the higher counts.
    """

    id: str
    rates: Mapping[str, Decimal]
    payers: tuple[Payer, ...]
    started: float
    run_until: float
    charged_until: float | None = None
    wind_down_seconds: int = 300
    closing: Mapping[str, Decimal] = field(default_factory=dict)
    held: Mapping[str, Decimal] = field(default_factory=dict)
    minimum_seconds: int = 60
    pool: str = ""
    region: str = ""
    revision: int = 0
    source: str = ""
    """What metering books its use under; empty: its id. Of a sandbox: the node that it is on."""

    def __post_init__(self) -> None:
        """Refuse what no budget could be compared with. Raises MoneyError."""
        if not self.payers or min(one.weight for one in self.payers) < 1:
            raise MoneyError(f"{self.id}.payers: {self.payers!r}; one or more, weights from 1")
        for part in (self.rates, self.closing, self.held):
            for unit, amount in part.items():
                if amount < 0:
                    raise MoneyError(f"{self.id}: {amount} {unit}; 0 or more is allowed")
        if self.wind_down_seconds < 0 or self.minimum_seconds < 0:
            raise MoneyError(f"{self.id}: seconds below 0; 0 or more is allowed")

    @property
    def charged_from(self) -> float:
        """From when its use is not booked yet."""
        return max(self.started, self.charged_until or self.started)

    @property
    def units(self) -> frozenset[str]:
        """Units that it has any amount in."""
        return frozenset({*self.rates, *self.closing, *self.held})

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path whose budgets it counts against, each once."""
        found = {path: None for one in self.payers for path in ancestors(one.path)}
        if self.pool:
            found[POOL + self.pool] = None
        return tuple(found)

    def part_of(self, path: str) -> tuple[int, int]:
        """Return the part that counts against a path, as a numerator and a denominator."""
        total = sum(one.weight for one in self.payers)
        if path.startswith(POOL):
            return (total if path == POOL + self.pool else 0), total
        mine = sum(one.weight for one in self.payers if path in ancestors(one.path))
        return mine, total


@dataclass(frozen=True, slots=True)
class Terms:
    """What a commitment comes to for one budget: per second, and at its end. Millionths."""

    rate: tuple[int, int]
    """Millionths per second, as a fraction."""
    closing: int
    """Wind-down, closing amounts and held ones."""

    def cost(self, seconds: int) -> int:
        """Return what seconds cost, rounded up."""
        top, bottom = self.rate
        return -(-top * max(0, seconds) // bottom)

    def seconds(self, micro: int) -> int | None:
        """Return how many whole seconds an amount covers; None: it costs nothing."""
        top, bottom = self.rate
        return None if top == 0 else max(0, micro) * bottom // top


def terms(commitment: Commitment, allowance: Allowance) -> Terms:
    """Return what a commitment comes to for a budget, in the budget's unit."""
    unit = allowance.unit
    mine, total = commitment.part_of(allowance.path)
    top, bottom = commitment.rates.get(unit, ZERO).as_integer_ratio()
    rate = (top * mine * _MICRO, bottom * total * HOUR)
    fixed = commitment.closing.get(unit, ZERO) + commitment.held.get(unit, ZERO)
    wide, deep = fixed.as_integer_ratio()
    closing = -(-wide * mine * _MICRO // (deep * total))
    closing += Terms(rate, 0).cost(commitment.wind_down_seconds)
    return Terms(rate, closing)


def promised(
    commitment: Commitment, allowance: Allowance, span: Span, found: Terms | None = None
) -> tuple[Decimal, Decimal]:
    """Return what is still promised in the budget's period, and in the one that follows it.

    The end of a commitment may come early, so its wind-down counts now; it counts next too where
    it could last into that.
    """
    found = found or terms(commitment, allowance)
    since = math.floor(commitment.charged_from)
    least = math.floor(commitment.started) + commitment.minimum_seconds if commitment.rates else 0
    until = max(math.ceil(commitment.run_until), least)
    if span.start is not None and span.end is not None:
        since = max(since, math.floor(span.start))
    if span.end is None:
        return _money(found.cost(until - since) + found.closing), ZERO
    edge = math.floor(span.end)
    now = found.cost(min(until, edge) - since) + found.closing
    later = found.cost(until - max(since, edge))
    if until + commitment.wind_down_seconds > edge:
        later += found.closing
    return _money(now), _money(later)


def furthest(
    found: Terms, since: float, wind_down: int, span: Span, room: tuple[Decimal, Decimal]
) -> float | None:
    """Return until when a budget covers a commitment of these terms that is charged from `since`.

    `room` is what is left in the period and in the next one. None: without end. A time before
    `since` says that not even its end is covered.
    """
    begin = math.floor(since)
    now, later = (int(one * _MICRO) for one in room)
    if now < found.closing:
        return begin - 1.0
    seconds = found.seconds(now - found.closing)
    end = None if seconds is None else begin + seconds
    if span.end is None:
        return end
    edge = math.floor(span.end)
    if end is not None and end >= edge:
        end = None
    if end is not None and end + wind_down <= edge:
        return end
    if later < found.closing:
        before = edge - wind_down
        return before if end is None else min(before, end)
    seconds = found.seconds(later - found.closing)
    after = None if seconds is None else max(begin, edge) + seconds
    ends = [one for one in (end, after) if one is not None]
    return min(ends, default=None)


def latest(commitments: Iterable[Commitment]) -> dict[str, Commitment]:
    """Return the newest revision of each commitment by its id."""
    found: dict[str, Commitment] = {}
    for one in commitments:
        known = found.get(one.id)
        if known is None or known.revision <= one.revision:
            found[one.id] = one
    return found


def _money(micro: int) -> Decimal:
    return Decimal(micro).scaleb(-6)
