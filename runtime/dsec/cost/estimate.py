"""What an experiment may cost, before it is submitted: a lower and an upper figure, in words. Pure.

Lower: every role at its least count, on the cheapest node that holds it, paying only for the part
of the node that it books. Upper: every role at its most, on the dearest such node, with nobody else
on it, so that it pays for whole nodes. Both per hour; a total needs a time. That is the longest run
time of its sandboxes where each runs once, and otherwise what the caller expects. A hard budget of
its own caps the upper figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dsec.api.experiment import Completion, ExperimentSpec, Role
from dsec.cost.amounts import HOUR, ZERO, MoneyError, ceil_micro, over, shown
from dsec.cost.prices import NodePrice, Shape, fit, part_of_price

MILLI = 1000


@dataclass(frozen=True, slots=True)
class RoleEstimate:
    """One role. `words` is set where no priced node holds it; then it is in neither figure."""

    role: str
    least: int
    most: int
    low_per_hour: Decimal
    high_per_hour: Decimal
    low_key: str = ""
    high_key: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Per hour and in all. A total of None is not bounded by anything that was declared."""

    currency: str
    low_per_hour: Decimal
    high_per_hour: Decimal
    lower: Decimal
    upper: Decimal | None
    roles: tuple[RoleEstimate, ...]
    words: tuple[str, ...]


def estimate(
    spec: ExperimentSpec,
    prices: Mapping[str, NodePrice],
    currency: str,
    *,
    expected_seconds: int | None = None,
) -> Estimate:
    """Return what an experiment may cost on nodes of these prices, by name of pool or offering.

    Raises MoneyError where none of the prices is in the currency.
    """
    usable = {key: one for key, one in prices.items() if one.currency == currency}
    if not usable:
        known = ", ".join(sorted({one.currency for one in prices.values()})) or "none"
        raise MoneyError(f"prices: none in {currency}; known currencies are {known}")
    roles = tuple(_role(role, usable) for role in spec.roles)
    low = sum((one.low_per_hour for one in roles), ZERO)
    high = sum((one.high_per_hour for one in roles), ZERO)
    once = all(role.completion is Completion.RUN_TO_END for role in spec.roles)
    longest = expected_seconds or (spec.max_run_seconds if once else None)
    lower = ceil_micro(over(low, expected_seconds)) if expected_seconds else ZERO
    upper = ceil_micro(over(high, longest)) if longest else None
    if any(one.words for one in roles):
        upper = None
    budget = spec.budget
    ceiling = Decimal(budget.limit) if budget and budget.currency in {None, currency} else None
    capped = ceiling is not None and (upper is None or ceiling < upper)
    words = _words((low, high), (lower, upper), currency, longest)
    words += [one.words for one in roles if one.words]
    if capped and ceiling is not None:
        words.append(f"its budget ends it at {shown(ceiling, currency)}")
        upper = ceiling
    return Estimate(currency, low, high, lower, upper, roles, tuple(words))


def _role(role: Role, prices: Mapping[str, NodePrice]) -> RoleEstimate:
    booked = Shape(
        role.resources.cpu_milli or 0,
        role.resources.memory_bytes or 0,
        role.gpu.count * MILLI if role.gpu else 0,
    )
    least = role.replicas if role.min is None else min(role.min, role.replicas)
    most = role.replicas if role.max is None else max(role.max, role.replicas)
    holding = {key: one for key, one in prices.items() if fit(booked, one.shape) > 0}
    if not holding:
        asked = f"{booked.cpu_milli} thousandths of a core, {booked.memory_bytes} bytes"
        words = f"role {role.name}: no priced node holds it ({asked}); its cost is not counted"
        return RoleEstimate(role.name, least, most, ZERO, ZERO, words=words)
    low = {key: part_of_price(booked, one) * least for key, one in holding.items()}
    high = {key: one.per_hour * -(-most // fit(booked, one.shape)) for key, one in holding.items()}
    cheap, dear = min(low, key=lambda key: (low[key], key)), max(high, key=lambda k: (high[k], k))
    return RoleEstimate(role.name, least, most, ceil_micro(low[cheap]), high[dear], cheap, dear)


def _words(
    per_hour: tuple[Decimal, Decimal],
    total: tuple[Decimal, Decimal | None],
    currency: str,
    longest: int | None,
) -> list[str]:
    low, high = (shown(one, currency) for one in per_hour)
    least, most = "least replicas, their part of the cheapest nodes", "most, on dearest nodes alone"
    words = [f"from {low} an hour ({least}) to {high} an hour ({most})"]
    lower, upper = total
    if longest is None or upper is None:
        words.append("no total: neither a longest run time nor an expected time bounds it")
    else:
        both = f"at least {shown(lower, currency)}, at most {shown(upper, currency)}"
        words.append(f"{both} in {longest / HOUR:.2f} h")
    return words


def budgets_that_refuse(
    found: Estimate, left: Sequence[tuple[str, str, Decimal]]
) -> tuple[str, ...]:
    """Return a sentence per budget (name, unit, what is left) that even the lower figure passes."""
    return tuple(
        f"budget {name}: {shown(rest, unit)} is left, and the experiment needs at least "
        f"{shown(found.lower, unit)}"
        for name, unit, rest in left
        if unit == found.currency and rest < found.lower
    )
