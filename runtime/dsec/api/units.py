"""Exact units: sizes, CPU, time, shares and money as whole numbers, never through a float.

Every parser takes text, an int or a Decimal, and raises UnitError, whose text says what is allowed.
"""

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

GB = 10**9
"""Bytes of a decimal gigabyte: what `32G` and `mem_gb: 32` mean. `32Gi` is 32 * 2**30."""

_SIZES = {
    **{unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{
        f"{unit}i": 1024**power
        for power, unit in enumerate(("K", "M", "G", "T", "P", "E"), start=1)
    },
}
_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NUMBER = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)\s*([A-Za-z]*)")
_DURATION = re.compile(r"(?:(\d{1,9})([a-z]+))+")

SIZE_FORM = "a size with unit, such as 512Mi, 8Gi (binary) or 32G (decimal)"
CPU_FORM = "cores such as 2 or 0.5, or thousandths such as 500m"
DURATION_FORM = "seconds such as 600, or text such as 90s, 15m, 12h or 30d"
MONEY_FORM = "an amount of 0 or more with at most 4 decimals, such as 500 or 12.50"


class UnitError(ValueError):
    """The value has no such unit; the text says what is allowed."""


def size(value: object, *, bare: int | None = None) -> int:
    """Return bytes. `bare` is the unit of a plain number, in bytes; without it a unit is required.

    `4Gi` and `4G` differ: Ki, Mi, Gi, Ti, Pi, Ei count by 1024 and k, M, G, T, P, E by 1000; a
    trailing B is allowed. A fraction of a byte (1.1Gi) is rounded up, so that a limit holds what
    was asked for.
    """
    number, unit = _split(value, SIZE_FORM)
    unit = unit.removesuffix("B") or unit
    if unit == "B":
        unit = ""
    elif not unit and bare is None:
        raise UnitError(f"must be {SIZE_FORM}: a plain number has no unit")
    factor = bare if not unit and bare is not None else _SIZES.get("k" if unit == "K" else unit)
    if factor is None:
        near = ", ".join(_SIZES)[2:]
        raise UnitError(f"must be {SIZE_FORM}: unit {unit} is none of {near}")
    return math.ceil(number * factor)


def cpu_milli(value: object) -> int:
    """Return thousandths of a core: `2`, `0.5` and `500m`."""
    number, unit = _split(value, CPU_FORM)
    if unit not in {"", "m"}:
        raise UnitError(f"must be {CPU_FORM}")
    return _whole(number * (1 if unit else 1000), "thousandths of a core")


def seconds(value: object, *, bare: int = 1) -> int:
    """Return seconds. A plain number counts in `bare` seconds (1 s, or 60 for minutes)."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise UnitError(f"must be {DURATION_FORM}")
        return value * bare
    text = value if isinstance(value, str) else ""
    if text.isascii() and text.isdigit():
        return int(text) * bare
    if not _DURATION.fullmatch(text):
        raise UnitError(f"must be {DURATION_FORM}")
    total = 0
    last = None
    for number, unit in re.findall(r"(\d+)([a-z]+)", text):
        factor = _SECONDS.get(unit)
        if factor is None or (last is not None and factor >= last):
            raise UnitError(f"must be {DURATION_FORM}")
        total += int(number) * factor
        last = factor
    return total


def cpu_milli_of_shares(shares: int, *, machine_cores: int | None = None) -> int:
    """Return thousandths of a core for CPU shares (CONF-08).

    Absolute (the default): 12.5 shares are one core everywhere, so a share is 80 thousandths.
    Relative, where the cores of the machine are given: 1000 shares are the whole machine.
    """
    return shares * 80 if machine_cores is None else shares * machine_cores


def gpu_bytes_of_shares(shares: int) -> int:
    """Return bytes of GPU memory for GPU shares: 10 shares are one decimal GB (TEN-06)."""
    return shares * GB // 10


def money(value: object) -> str:
    """Return an exact decimal amount as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise UnitError(f"must be {MONEY_FORM}")
    try:
        amount = Decimal(value)
    except InvalidOperation:
        raise UnitError(f"must be {MONEY_FORM}") from None
    text = f"{amount:f}" if amount.is_finite() else ""
    if not re.fullmatch(r"\d{1,15}(\.\d{1,4})?", text):
        raise UnitError(f"must be {MONEY_FORM}")
    return text


def size_text(count: int) -> str:
    """Return bytes for people: exact, in the largest unit that divides them."""
    for unit, factor in sorted(_SIZES.items(), key=lambda one: -one[1]):
        if unit and count and count % factor == 0:
            return f"{count // factor}{unit}"
    return f"{count} bytes"


def cpu_text(milli: int) -> str:
    """Return cores for people: `2`, `0.5`."""
    return (
        f"{Decimal(milli) / 1000:f}".rstrip("0").rstrip(".") if milli % 1000 else f"{milli // 1000}"
    )


def _split(value: object, form: str) -> tuple[Fraction, str]:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise UnitError(f"must be {form}")
    match = _NUMBER.fullmatch(f"{value:f}" if isinstance(value, Decimal) else str(value).strip())
    if not match:
        raise UnitError(f"must be {form}")
    return Fraction(match[1]), match[2]


def _whole(number: Fraction, unit: str) -> int:
    if number.denominator != 1:
        raise UnitError(f"must be a whole number of {unit}")
    return int(number)
