"""The status of a Budget record from what the ledger and the gate say, and back. Pure.

The status is a view: losing it loses only which parts of the limit have been told already.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

from dsec.api.budget import (
    BudgetAlert,
    BudgetCondition,
    BudgetReason,
    BudgetStatus,
)
from dsec.api.meta import Condition, ConditionStatus, with_condition
from dsec.cost.budgets import GROWS, Fired, Standing
from dsec.cost.forecast import Forecast
from dsec.cost.gate import BudgetState
from dsec.cost.words import standing_words

KEPT = 64
"""Alerts in a status; the newest stay."""


def fired_of(status: BudgetStatus) -> tuple[Fired, ...]:
    """Return the parts of the limit that a status says have been told."""
    return tuple(
        Fired(
            one.percent,
            one.period_start.timestamp() if one.period_start else None,
            Decimal(one.limit),
            one.at.timestamp(),
        )
        for one in status.alerts
    )


def status_of(
    old: BudgetStatus,
    standing: Standing,
    state: BudgetState,
    now: float,
    *,
    generation: int = 0,
    forecast: Forecast | None = None,
    escrow: Mapping[str, Decimal] | None = None,
) -> BudgetStatus:
    """Return the status of a budget now; `standing` counts what was told in this pass as well."""
    committed = state.committed(standing.name)
    span, at = standing.span, _time(now)
    left = standing.limit - standing.spent - committed
    held = standing.in_force is None or standing.in_force in GROWS
    room = state.room(standing)
    full = room is not None and room[0] <= 0
    reason = BudgetReason.COMMITTED if full else BudgetReason.ROOM
    conditions = old.conditions
    for kind, holds, why in (
        (BudgetCondition.READY, True, BudgetReason.COUNTED),
        (BudgetCondition.WITHIN_LIMIT, held, reason if held else BudgetReason.LEVEL_REACHED),
    ):
        message = standing_words(standing, committed) if kind is not BudgetCondition.READY else ""
        conditions = with_condition(
            conditions,
            Condition(
                type=kind.value,
                status=ConditionStatus.TRUE if holds else ConditionStatus.FALSE,
                reason=why.value,
                message=message,
                observed_generation=generation,
            ),
            now=at,
        )
    rolls = span.start is not None and span.end is None
    return BudgetStatus(
        observed_generation=generation,
        conditions=conditions,
        period_start=None if span.start is None or rolls else _time(span.start),
        period_end=None if span.end is None else _time(span.end),
        spent=_text(standing.spent),
        committed=_text(committed),
        left=_text(left),
        forecast=_text(forecast.expected) if forecast else None,
        forecast_source=f"{forecast.formula}; {forecast.source}"[:256] if forecast else "",
        action=standing.in_force,
        alerts=[
            BudgetAlert(
                percent=one.percent,
                period_start=None if one.period_start is None else _time(one.period_start),
                limit=_text(one.limit),
                at=_time(one.at),
            )
            for one in standing.fired[-KEPT:]
        ],
        escrow={name: _text(one) for name, one in (escrow or {}).items()},
    )


def invalid_status(
    old: BudgetStatus, message: str, now: float, *, generation: int = 0
) -> BudgetStatus:
    """Return the status of a budget that contradicts itself; it limits nothing until corrected."""
    condition = Condition(
        type=BudgetCondition.READY.value,
        status=ConditionStatus.FALSE,
        reason=BudgetReason.INVALID.value,
        message=message,
        observed_generation=generation,
    )
    conditions = with_condition(old.conditions, condition, now=_time(now))
    return old.model_copy(update={"observed_generation": generation, "conditions": conditions})


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _text(amount: Decimal) -> str:
    return f"{amount:f}"
