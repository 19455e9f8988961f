"""Refusals of the gate in words: whose budget, what is left, what was asked, what would help."""

from datetime import UTC, datetime
from decimal import Decimal

from dsec.cost.amounts import HOURS, ZERO, shown
from dsec.cost.budgets import Standing
from dsec.cost.commitments import Commitment


def refusal_words(
    standing: Standing,
    want: Commitment,
    room: tuple[Decimal, Decimal] | None,
    why: str,
    *,
    width: int = 0,
    asked: int = 1,
    until: float | None = None,
) -> str:
    """Return one sentence. `why` is a `gate.Blocked`; `until` is given for a renewal."""
    allowance = standing.allowance
    unit = allowance.unit
    head = f"budget {allowance.name} of {allowance.path}"
    if why == "stopped" and standing.in_force is not None:
        return (
            f"{head}: {standing.percent} % of {shown(standing.limit, unit)} is spent and "
            f"{standing.in_force.value} is in force; starts when {_renews(standing)}"
        )
    if why == "currency":
        priced = ", ".join(sorted(want.units - HOURS))
        return (
            f"{head}: it counts {unit}, and the price is in {priced}; starts when prices have an "
            f"exchange rate to {unit}"
        )
    left = max(ZERO, room[0]) if room else ZERO
    rate = want.rates.get(unit, ZERO)
    base = f"{head}: {shown(left, unit)} of {shown(standing.limit, unit)} is left"
    price = f"{shown(rate, unit)} an hour with {want.wind_down_seconds} s to wind down"
    remedy = f"starts when other work ends, {_renews(standing)}"
    if until is not None:
        return f"{base}; {want.id} at {price} goes on until {_time(until)}, then {remedy[7:]}"
    if width:
        return f"{base}; at {price} it covers {width} of {asked}; the rest {remedy}"
    return f"{base}; it does not cover one more at {price}; {remedy}"


def _renews(standing: Standing) -> str:
    if standing.span.end is not None:
        return f"the limit is raised or the next period begins at {_time(standing.span.end)}"
    return "the limit is raised"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
