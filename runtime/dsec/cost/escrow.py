"""Budgets over regions: each spends its own escrow, and moves what it can spare. Pure.

Regions are cut from each other and go on, so a budget is divided beforehand: a region's gate
compares with its own part and asks nobody. A part of it can be moved. The region that gives books
the move first and counts it at once; the one that receives counts it only when it has read that
row. Between the two, and for ever when the link stays cut, the amount is spendable nowhere: the
parts never add up to more than the limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from dsec.cost.amounts import MICRO, ZERO, MoneyError, shown
from dsec.cost.budgets import Allowance
from dsec.cost.gate import BudgetState


@dataclass(frozen=True, slots=True)
class Move:
    """An amount of a budget that goes from one region to another, in one period."""

    id: str
    budget: str
    source: str
    target: str
    amount: Decimal
    period_start: float | None = None

    def __post_init__(self) -> None:
        """Refuse a move of nothing and one to itself. Raises MoneyError."""
        if self.amount < MICRO:
            raise MoneyError(f"{self.id}.amount: {self.amount}; more than 0 is allowed")
        if self.source == self.target:
            raise MoneyError(f"{self.id}.target: {self.target} is its source")


def moved(allowance: Allowance, region: str, moves: Iterable[Move], start: float | None) -> Decimal:
    """Return what moves add to a region's part in a period, or take from it.

    `moves` are those that this region knows, in any order; one that is repeated counts once.
    """
    known = {
        one.id: one for one in moves if one.budget == allowance.name and one.period_start == start
    }
    came = sum((one.amount for one in known.values() if one.target == region), ZERO)
    went = sum((one.amount for one in known.values() if one.source == region), ZERO)
    return came - went


def may_move(state: BudgetState, move: Move) -> str:
    """Return why a region cannot give an amount, in words; empty: it can."""
    found = [one for one in state.all() if one.name == move.budget]
    if not found:
        return f"budget {move.budget}: is not known in {move.source}"
    standing = found[0]
    if standing.span.start != move.period_start and standing.span.end is not None:
        return f"budget {move.budget}: its period has ended; move from the new one"
    room = state.room(standing)
    left = standing.limit - standing.spent if room is None else room[0]
    if move.amount <= left:
        return ""
    unit = standing.allowance.unit
    return (
        f"budget {move.budget} in {move.source}: asked {shown(move.amount, unit)}, free "
        f"{shown(max(ZERO, left), unit)} of {shown(standing.limit, unit)}; starts when work in "
        f"{move.source} ends"
    )
