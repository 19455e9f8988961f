"""What a node costs an hour, and how that divides into CPU, memory, GPU and the rest. Pure.

A price is either a *total* (a bill, a list price, an owned machine's cost), divided into parts by
reference rates, or it is built from *rates* that somebody configured, each counted as it stands
and never scaled to a total of its own. In both cases the sum of the parts is the price, to the
millionth, and everything is per hour: nothing is ever divided by the hours of a month again.

Owned machines. Per node-hour:

    amortisation = (purchase - residual) / (years * 8766)
    energy       = watts / 1000 * pue * price per kWh
    overhead     = monthly overhead * 12 / 8766
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction

from dsec.cost.amounts import (
    CPU_HOURS,
    GPU_HOURS,
    MICRO,
    ZERO,
    MoneyError,
    ceil_micro,
    divided,
    near_micro,
    unit_of,
    up_to_micro,
)

HOURS_A_YEAR = Decimal(8766)
"""Of 365.25 days."""
MONTHS_A_YEAR = 12
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node has to sell: whole cores in thousandths, bytes, whole GPUs in thousandths."""

    cpu_milli: int
    memory_bytes: int
    gpu_milli: int = 0

    @property
    def quantities(self) -> dict[str, Fraction]:
        """Cores, GiB of memory and GPUs."""
        return {
            "cpu": Fraction(self.cpu_milli, 1000),
            "memory": Fraction(self.memory_bytes, GIB),
            "gpu": Fraction(self.gpu_milli, 1000),
        }


@dataclass(frozen=True, slots=True)
class Rates:
    """Price per hour of one core, one GiB of memory and one GPU, and of a node beside them."""

    cpu: Decimal
    memory: Decimal
    gpu: Decimal = ZERO
    node: Decimal = ZERO

    def parts(self, shape: Shape) -> dict[str, Fraction]:
        """Return what each part of a node of that shape comes to."""
        per = {"cpu": self.cpu, "memory": self.memory, "gpu": self.gpu}
        found = {name: Fraction(per[name]) * one for name, one in shape.quantities.items()}
        return {**found, "node": Fraction(self.node)}


REFERENCE = Rates(Decimal("0.031611"), Decimal("0.004237"), Decimal("0.95"))
"""Weights that divide a total where none are given. Only their ratios count: about 7.5 GiB or
a thirtieth of a GPU are worth a core."""


@dataclass(frozen=True, slots=True)
class NodePrice:
    """The price of a node: parts per hour whose sum is the price."""

    currency: str
    parts: Mapping[str, Decimal]
    shape: Shape
    source: str = ""
    """Where it is from, for people: list, owned, override."""
    idle_parts: Mapping[str, Decimal] = field(default_factory=dict)
    """Of an owned machine: what the hour costs whether it is used or not, such as amortisation."""

    @property
    def per_hour(self) -> Decimal:
        """The price of the node."""
        return sum(self.parts.values(), ZERO)

    @property
    def rates(self) -> dict[str, Decimal]:
        """What an hour counts in every unit that budgets may have."""
        hours = {
            CPU_HOURS: Decimal(self.shape.cpu_milli) / 1000,
            GPU_HOURS: Decimal(self.shape.gpu_milli) / 1000,
        }
        counted = {unit: amount for unit, amount in hours.items() if amount}
        return {self.currency: self.per_hour, **counted}


@dataclass(frozen=True, slots=True)
class OwnedCost:
    """What an owned machine costs. Money in `currency`; `watts` is its mean draw."""

    currency: str
    purchase: Decimal
    years: Decimal
    residual: Decimal = ZERO
    watts: int = 0
    pue: Decimal = Decimal(1)
    per_kwh: Decimal = ZERO
    monthly_overhead: Decimal = ZERO
    """Room, network, service, people, per machine."""

    def __post_init__(self) -> None:
        """Refuse what is no cost. Raises MoneyError: field, value, what is allowed."""
        amounts = {
            "purchase": self.purchase,
            "residual": self.residual,
            "perKwh": self.per_kwh,
            "monthlyOverhead": self.monthly_overhead,
            "watts": Decimal(self.watts),
        }
        for name, value in amounts.items():
            if value < 0:
                raise MoneyError(f"{name}: {value}; 0 or more is allowed")
        if self.years <= 0:
            raise MoneyError(f"years: {self.years}; more than 0 is allowed")
        if self.pue < 1:
            raise MoneyError(f"pue: {self.pue}; 1 or more is allowed")
        if self.residual > self.purchase:
            raise MoneyError(f"residual: {self.residual}; at most the purchase {self.purchase}")
        unit_of(self.currency, "currency")

    @property
    def per_hour(self) -> dict[str, Decimal]:
        """Amortisation, energy and overhead of an hour, each rounded to a millionth."""
        life = Fraction(self.years) * Fraction(HOURS_A_YEAR)
        energy = Fraction(self.watts, 1000) * Fraction(self.pue) * Fraction(self.per_kwh)
        overhead = Fraction(self.monthly_overhead) * MONTHS_A_YEAR / Fraction(HOURS_A_YEAR)
        return {
            "amortisation": near_micro(Fraction(self.purchase - self.residual) / life),
            "energy": near_micro(energy),
            "overhead": near_micro(overhead),
        }


def of_total(
    total: Decimal,
    shape: Shape,
    currency: str,
    *,
    weights: Rates = REFERENCE,
    source: str = "list",
) -> NodePrice:
    """Return a price whose sum is given; its parts are divided by weights, largest remainder.

    A total finer than a millionth an hour is rounded up to one: a bill is never above what was
    reserved. Raises MoneyError for a total below 0 and an unknown currency.
    """
    _checked(total, currency)
    found = weights.parts(shape)
    parts = divided(up_to_micro(total), list(found.values()))
    named = dict(zip(found, parts, strict=True))
    return NodePrice(unit_of(currency), _kept(named), shape, source)


def of_rates(rates: Rates, shape: Shape, currency: str, *, source: str = "override") -> NodePrice:
    """Return a price built from rates: each counts as it is configured, their sum is the price.

    Raises MoneyError for a rate below 0 and an unknown currency.
    """
    for rate in (rates.cpu, rates.memory, rates.gpu, rates.node):
        _checked(rate, currency)
    parts = {name: near_micro(one) for name, one in rates.parts(shape).items()}
    return NodePrice(unit_of(currency), _kept(parts), shape, source)


def of_owned(cost: OwnedCost, shape: Shape, *, weights: Rates = REFERENCE) -> NodePrice:
    """Return the price of an owned machine: its cost, divided like a total.

    What it costs while nothing uses it (all of it: the power of a machine that is on hardly falls)
    is kept by name for the report of idle cost.
    """
    parts = cost.per_hour
    price = of_total(
        sum(parts.values(), ZERO), shape, cost.currency, weights=weights, source="owned"
    )
    return replace(price, idle_parts=_kept(parts))


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices in force, by key of an offering or pool, each from a time on. Immutable."""

    prices: Mapping[str, tuple[tuple[float, NodePrice], ...]] = field(default_factory=dict)
    overrides: Mapping[str, NodePrice] = field(default_factory=dict)
    exchange: Mapping[str, Decimal] = field(default_factory=dict)
    """`EUR/USD`: how many USD one EUR is. Only what is listed is ever converted."""

    def price(self, key: str, at: float) -> NodePrice:
        """Return the price of a key at a time; an override wins. Raises MoneyError without one."""
        if key in self.overrides:
            return self.overrides[key]
        known = [price for since, price in self.prices.get(key, ()) if since <= at]
        if not known:
            raise MoneyError(f"price of {key}: none is known at {at:.0f}; add one or an override")
        return known[-1]

    def with_price(self, key: str, price: NodePrice, since: float) -> "PriceBook":
        """Return the book with a price from a time on; one of the same time is replaced."""
        rest = [one for one in self.prices.get(key, ()) if one[0] != since]
        row = tuple(sorted([*rest, (since, price)], key=lambda one: one[0]))
        return replace(self, prices={**self.prices, key: row})

    def changes(self, key: str, since: float, until: float) -> tuple[float, ...]:
        """Return the times within an interval at which the price of a key changes."""
        if key in self.overrides:
            return ()
        return tuple(at for at, _ in self.prices.get(key, ()) if since < at < until)

    def rates(self, key: str, at: float) -> dict[str, Decimal]:
        """Return what an hour counts in every unit, with the currencies that it converts to."""
        price = self.price(key, at)
        found = price.rates
        for pair, rate in self.exchange.items():
            source, _, target = pair.partition("/")
            if source == price.currency and target not in found:
                found[target] = up_to_micro(price.per_hour * rate)
        return found


def part_of_price(booked: Shape, price: NodePrice) -> Fraction:
    """Return what a booking costs an hour when it pays for its part of a node only."""
    shape = price.shape.quantities
    wanted = {name: one for name, one in booked.quantities.items() if one}
    sold = sum((price.parts.get(name, ZERO) for name in shape), ZERO)
    if not sold:
        return Fraction(price.per_hour) * max(
            (one / shape[name] for name, one in wanted.items()), default=Fraction(0)
        )
    value = sum(
        (Fraction(price.parts.get(name, ZERO)) * one / shape[name] for name, one in wanted.items()),
        Fraction(0),
    )
    return Fraction(price.per_hour) * value / Fraction(sold)


def fit(booked: Shape, shape: Shape) -> int:
    """Return how many of a booking a node holds."""
    pairs = (
        (booked.cpu_milli, shape.cpu_milli),
        (booked.memory_bytes, shape.memory_bytes),
        (booked.gpu_milli, shape.gpu_milli),
    )
    return min((have // need for need, have in pairs if need), default=0)


def booking_rates(booked: Shape, price: NodePrice) -> dict[str, Decimal]:
    """Return what an hour of a booking counts in every unit: the rates of its commitment."""
    hours = {
        CPU_HOURS: Decimal(booked.cpu_milli) / 1000,
        GPU_HOURS: Decimal(booked.gpu_milli) / 1000,
    }
    counted = {unit: one for unit, one in hours.items() if one}
    return {price.currency: ceil_micro(part_of_price(booked, price)), **counted}


def dearest(prices: Iterable[NodePrice]) -> NodePrice | None:
    """Return the dearest of prices in one currency, None of none. Raises MoneyError for several."""
    found = list(prices)
    if len({one.currency for one in found}) > 1:
        raise MoneyError("prices: of several currencies; compare prices of one")
    return max(found, key=lambda one: one.per_hour, default=None)


def _checked(amount: Decimal, currency: str) -> None:
    if amount < 0:
        raise MoneyError(f"price: {amount} {currency}; 0 or more is allowed")


def _kept(parts: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: one for name, one in parts.items() if one >= MICRO}
