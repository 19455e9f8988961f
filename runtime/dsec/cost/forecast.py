"""What will have been spent at the end of a period, with the formula and where it is from. Pure.

    expected = max(spent + committed, spent + spent in the last day / its length * time left)

The last day and not the whole period, because work comes and goes; shorter where the period is
younger. A rolling window has no end: expected is one window at the pace of the last day.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from dsec.cost.amounts import HOUR, ZERO, near_micro, shown
from dsec.cost.budgets import Allowance, Standing
from dsec.cost.periods import Span

DAY = 24 * HOUR
LEAST = HOUR
"""A pace over less than an hour says nothing."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """`expected` at `at`; `per_hour` is the pace. `passes` says when the limit would be reached."""

    expected: Decimal
    at: float | None
    per_hour: Decimal
    passes: float | None
    formula: str
    source: str


def forecast(
    standing: Standing,
    committed: Decimal,
    now: float,
    spent: Callable[[Allowance, Span, str], Decimal],
    *,
    region: str = "",
) -> Forecast | None:
    """Return the forecast of a budget, None: its period has no end, or is too young to tell.

    `spent` is `Ledger.spent`, `committed` what is promised (`BudgetState.committed`).
    """
    allowance, span = standing.allowance, standing.span
    rolls = allowance.period.rolling_seconds if span.end is None else 0
    if span.start is None or (span.end is None and not rolls):
        return None
    window = min(Fraction(DAY), Fraction(now) - Fraction(span.start))
    if window < LEAST:
        return None
    begin = now - float(window)
    recent = spent(allowance, Span(begin, now), region)
    pace = Fraction(recent) / window
    left = Fraction(rolls) if rolls or span.end is None else Fraction(span.end) - Fraction(now)
    base = ZERO if rolls else standing.spent
    by_pace = base + near_micro(pace * left)
    expected = max(standing.spent + committed, by_pace)
    unit = allowance.unit
    hours = f"{float(window) / HOUR:.0f} h"
    per_hour = near_micro(pace * HOUR)
    formula = (
        f"max(spent {shown(standing.spent, unit)} + committed {shown(committed, unit)}, "
        f"{shown(base, unit)} + {shown(per_hour, unit)} an hour * {float(left) / HOUR:.1f} h)"
    )
    passes = None
    if pace > 0 and standing.spent < standing.limit:
        passes = now + float(Fraction(standing.limit - standing.spent) / pace)
    elif standing.spent >= standing.limit:
        passes = now
    return Forecast(expected, span.end, per_hour, passes, formula, f"ledger, the last {hours}")
