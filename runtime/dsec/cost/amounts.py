"""Exact amounts: millionths of a unit, rounded in one stated way, divided without a remainder.

A unit is an ISO 4217 currency or one of `gpu-hours` and `cpu-hours`. The smallest step of every
amount is a millionth (`MICRO`), so that a price per second of a cheap node is not rounded to none.
"""

import math
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction

MICRO = Decimal("0.000001")
CENT = Decimal("0.01")
ZERO = Decimal(0)
HOUR = 3600
GPU_HOURS, CPU_HOURS = "gpu-hours", "cpu-hours"
HOURS = frozenset({GPU_HOURS, CPU_HOURS})
"""Units that count use and not money."""

Amounts = Mapping[str, Decimal]
"""Unit to amount."""

_CURRENCY = re.compile(r"[A-Z]{3}")
_MICROS = 1_000_000
_DIGITS = 60
"""Digits of intermediate results: a trillion to the millionth, squared, still fits."""


class MoneyError(ValueError):
    """An amount, unit, price or entry that makes no sense; names field, value and remedy."""


def exact(value: object, field: str = "amount") -> Decimal:
    """Return an amount from text, an int or a Decimal.

    Raises MoneyError for a float, a truth value, and what is no finite number.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        kind = type(value).__name__
        raise MoneyError(f"{field}: {value!r} is a {kind}; write an exact number as text")
    try:
        amount = Decimal(value)
    except ArithmeticError:
        raise MoneyError(f"{field}: {value!r} is no number such as 12.50") from None
    if not amount.is_finite():
        raise MoneyError(f"{field}: {value!r} is no finite number")
    return amount


def unit_of(value: str, field: str = "unit") -> str:
    """Return a unit. Raises MoneyError for one that is unknown."""
    if value in HOURS or _CURRENCY.fullmatch(value):
        return value
    allowed = f"an ISO 4217 code such as USD, {CPU_HOURS} and {GPU_HOURS}"
    raise MoneyError(f"{field}: {value!r}; allowed are {allowed}")


def ceil_micro(value: Fraction) -> Decimal:
    """Return the least amount of millionths that is not below."""
    return _of(-((-value * _MICROS).__floor__()))


def near_micro(value: Fraction) -> Decimal:
    """Return the nearest amount of millionths; a half goes to the even one."""
    return _of(round(value * _MICROS))


def floor_micro(amount: Decimal) -> Decimal:
    """Return the largest amount of millionths that is not above."""
    return _quantize(amount, MICRO, ROUND_FLOOR)


def cents(amount: Decimal) -> Decimal:
    """Return an amount as bills print it: to the cent, a half to the even one."""
    return _quantize(amount, CENT, ROUND_HALF_EVEN)


def up_to_micro(amount: Decimal) -> Decimal:
    """Return the least amount of millionths that is not below."""
    return _quantize(amount, MICRO, ROUND_CEILING)


def over(per_hour: Decimal, seconds: Fraction | int) -> Fraction:
    """Return what a rate per hour comes to over seconds, exactly."""
    return Fraction(per_hour) * seconds / HOUR


def divided(total: Decimal, weights: Sequence[Fraction | int | Decimal]) -> tuple[Decimal, ...]:
    """Divide an amount by weights into millionths whose sum is exactly the amount.

    Largest remainder: each gets its share rounded down; the millionths that are left go one each
    to the largest remainders, the earlier part first among equals. Without any weight all goes to
    the first part. Raises MoneyError for no parts, a negative weight and an amount that is no whole
    number of millionths.
    """
    ratios = [one.as_integer_ratio() for one in weights]
    if not ratios or min(top for top, _ in ratios) < 0:
        raise MoneyError(f"weights: {list(weights)!r}; one or more, none below 0")
    top, bottom = total.as_integer_ratio()
    whole, rest = divmod(top * _MICROS, bottom)
    if rest:
        raise MoneyError(f"total: {total} is no whole number of millionths")
    # whole numbers from here on: fractions would be the slowest part of metering
    common = math.lcm(*(bottom for _, bottom in ratios))
    shares = [top * (common // bottom) for top, bottom in ratios]
    if not any(shares):
        shares[0] = 1
    sum_of = sum(shares)
    parts = [divmod(whole * one, sum_of) for one in shares]
    down = [one for one, _ in parts]
    left = whole - sum(down)
    order = sorted(range(len(parts)), key=lambda at: (-parts[at][1], at))
    for at in order[:left]:
        down[at] += 1
    return tuple(_of(one) for one in down)


def added(*many: Amounts) -> dict[str, Decimal]:
    """Return the sum per unit; units that come to nothing are left out."""
    sums: dict[str, Decimal] = {}
    for one in many:
        for unit, amount in one.items():
            sums[unit] = sums.get(unit, ZERO) + amount
    return {unit: amount for unit, amount in sums.items() if amount}


def shown(amount: Decimal, unit: str) -> str:
    """Return an amount for people: two to six decimals and its unit."""
    text = f"{_quantize(amount, MICRO, ROUND_HALF_EVEN):f}"
    whole, _, rest = text.partition(".")
    rest = rest.rstrip("0").ljust(2, "0")
    return f"{whole}.{rest} {unit}"


def _of(micro: int) -> Decimal:
    return Decimal(micro).scaleb(-6)


def _quantize(amount: Decimal, step: Decimal, rounding: str) -> Decimal:
    with localcontext() as context:
        context.prec = _DIGITS
        return amount.quantize(step, rounding=rounding)
