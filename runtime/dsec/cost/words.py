"""Budgets in words: refusals, parts of the limit that were passed, what is in force and why."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

from dsec.api.budget import BudgetAction
from dsec.cost.amounts import HOURS, ZERO, shown
from dsec.cost.budgets import Crossing, Standing
from dsec.cost.commitments import Commitment

ACTIONS: Mapping[BudgetAction, str] = {
    BudgetAction.WARN: "nothing changes",
    BudgetAction.STOP_GROWING: "what runs goes on, and nothing is added",
    BudgetAction.DEGRADE: "roles shrink to their least replica count",
    BudgetAction.PAUSE: "sandboxes are paused until there is budget",
    BudgetAction.END: "the work ends as over budget, its results collected first",
}
"""What each action means."""


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


def crossing_words(crossing: Crossing, now: Standing) -> str:
    """Return the sentence of an event: which part was passed, and what happens then."""
    unit = now.allowance.unit
    head = (
        f"budget {crossing.budget} of {crossing.path}: {crossing.fired.percent} % of "
        f"{shown(now.limit, unit)} is reached, {shown(now.spent, unit)} is spent"
    )
    if crossing.action is None:
        return head
    return f"{head}; {crossing.action.value}: {ACTIONS[crossing.action]}"


def standing_words(now: Standing, committed: Decimal) -> str:
    """Return how a budget stands: spent, promised, left, and what is in force until when."""
    unit = now.allowance.unit
    left = max(ZERO, now.limit - now.spent - committed)
    base = (
        f"{shown(now.spent, unit)} of {shown(now.limit, unit)} is spent and "
        f"{shown(committed, unit)} promised, {shown(left, unit)} is left"
    )
    if now.in_force is None:
        return base
    return f"{base}; {now.in_force.value} is in force until {_renews(now)}"


def _renews(standing: Standing) -> str:
    if standing.span.end is not None:
        return f"the limit is raised or the next period begins at {_time(standing.span.end)}"
    return "the limit is raised"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
