"""What a budget's action means for the replicas of a task. Pure but for the calls it returns.

| action | running replicas | missing ones |
|---|---|---|
| stop-growing | go on | those that never ran, or were removed, wait |
| degrade | above the least count of their role they end | wait as above |
| pause | pausable ones rest, the others are stopped | wait |
| end | end as over budget, results first | are not wanted any more |
"""

from collections.abc import Iterable, Iterator, Sequence

from dsec.api.budget import BudgetAction
from dsec.api.experiment import Role, TaskClass
from dsec.api.reasons import EndReason, PendingReason
from dsec.controllers.budget_records import Hold
from dsec.controllers.replica_scaler import NO_CEILINGS, Ceilings
from dsec.controllers.replicas import Plan
from dsec.journal.bindings import Binding
from dsec.placement.refusal import Refusal

_AGAIN = frozenset({EndReason.STOPPED, EndReason.OVER_BUDGET})
"""Ends after which a replica that starts is growth, not the same work going on."""


def least_of(role: Role) -> int:
    """Return the count that a role shrinks to; without `min` it is what was declared."""
    return role.replicas if role.min is None else min(role.min, role.replicas)


def wanted(role: Role, desired: int, hold: Hold | None) -> int:
    """Return how many replicas a role may have."""
    if hold is not None and hold.action is BudgetAction.DEGRADE:
        return min(desired, least_of(role))
    return desired


def ceilings(role: Role, desired: int, hold: Hold | None) -> Ceilings:
    """Return what money says about the count of an elastic role."""
    if hold is None or hold.action is None:
        return NO_CEILINGS
    return Ceilings(budget=wanted(role, desired, hold))


def end(plans: Iterable[Plan]) -> None:
    """Want nothing any more: what runs ends, what waits is not started."""
    for one in plans:
        one.ended = True
        one.desired = max((index + 1 for index in one.slots), default=0)
        one.create, one.held, one.surplus, one.next_look = [], [], [], None
        last = [slot.last for slot in one.slots.values()]
        one.done = [copy for copy in last if copy is not None and not copy.live]


def waits(
    plans: Sequence[Plan], missing: Iterable[Binding], hold: Hold | None
) -> Iterator[tuple[str, tuple[Refusal, ...]]]:
    """Yield which missing replicas wait for budget, by id."""
    if hold is None or hold.action is None:
        return
    refusal = Refusal(PendingReason.BUDGET, "budget", hold.words)
    by_role = {one.role.name: one for one in plans}
    for binding in missing:
        identity = binding.spec.identity
        slot = by_role[identity.role].slots.get(identity.index)
        last = slot.last if slot is not None else None
        new = last is None or last.reason in _AGAIN
        if new or hold.action is BudgetAction.PAUSE:
            yield binding.id, (refusal,)


def to_rest(bindings: Iterable[Binding]) -> tuple[list[Binding], list[Binding]]:
    """Divide what runs into what can be paused and what has to stop."""
    live = [one for one in bindings if one.live and one.node]
    rests = [one for one in live if one.needs.task_class is TaskClass.PAUSABLE]
    return rests, [one for one in live if one.needs.task_class is not TaskClass.PAUSABLE]
