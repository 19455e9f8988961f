"""Which replicas an experiment should have, and what became of those it had. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dsec.api.experiment import Completion, RestartPolicy, Role
from dsec.api.meta import ConditionStatus
from dsec.api.reasons import EndReason
from dsec.api.status import ExperimentCondition, Override, OverrideKind
from dsec.journal.bindings import Binding
from dsec.world.records import Record

FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
"""Seconds before a replica that failed is started again, doubling with each failure in a row."""
RETRIES = 5
"""Restarts of one replica of a run-to-end role for failures of its own; then the failure stands."""
PLATFORM_RETRIES = 20
"""The same for failures of the platform, which say nothing about the program."""
IMAGE_TRIES = 3
"""Nodes, different ones where there are, that may fail to use the image of a replica that is never
restarted; then the failure stands."""

_FINAL = frozenset({EndReason.COMPLETED, EndReason.STOPPED})
_MEANT = frozenset({EndReason.FROZEN, EndReason.OVER_BUDGET, EndReason.IDLE})
"""Ends that were to free room or money: started again, a replica would take it back."""


@dataclass(slots=True)
class Slot:
    """One replica number of a role: its copies, oldest first."""

    index: int
    copies: list[Binding] = field(default_factory=list)

    @property
    def last(self) -> Binding | None:
        """The newest copy."""
        return self.copies[-1] if self.copies else None

    @property
    def incarnation(self) -> int:
        """The number of the next copy."""
        return self.last.next_incarnation if self.last else 1

    @property
    def shunned(self) -> list[str]:
        """Nodes that could not use its image, one after the other: the next copy avoids them."""
        tried = self.copies[len(self.copies) - _in_a_row(self, _image) :]
        return sorted({copy.node for copy in tried})


@dataclass(slots=True)
class Plan:
    """What to do about one role now."""

    role: Role
    desired: int
    slots: dict[int, Slot]
    create: list[Slot] = field(default_factory=list)
    held: list[Slot] = field(default_factory=list)
    """Missing for a while: a node could not use the image, and the next try is not due yet."""
    surplus: list[Binding] = field(default_factory=list)
    done: list[Binding] = field(default_factory=list)
    next_look: float | None = None
    ended: bool = False
    """A budget has ended its work: what is not there is not wanted."""

    @property
    def live(self) -> list[Binding]:
        """Copies that hold room."""
        return [s.last for s in self.slots.values() if s.last is not None and s.last.live]

    @property
    def over(self) -> bool:
        """True where every replica has ended for good: of a role that runs once or never again."""
        if self.ended:
            return not self.live
        batch = self.role.completion is Completion.RUN_TO_END
        never = self.role.restart_policy is RestartPolicy.NEVER and self.desired > 0
        spent = self.desired > 0 and all(b.reason is EndReason.OVER_BUDGET for b in self.done)
        return (batch or never or spent) and len(self.done) >= self.desired


def completed(record: Record) -> bool:
    """Return whether a task's record says that all its replicas have ended for good."""
    conditions = (record.get("status") or {}).get("conditions") or ()
    return any(
        one.get("type") == ExperimentCondition.COMPLETED.value
        and one.get("status") == ConditionStatus.TRUE.value
        for one in conditions
    )


def desired_of(role: Role, overrides: Sequence[Override]) -> int:
    """Return the replicas wanted now: a live override, else the declared count."""
    for override in overrides:
        if override.kind is OverrideKind.SCALE and override.role == role.name:
            return override.replicas if override.replicas is not None else role.replicas
    return role.replicas


def requested_of(role: Role, overrides: Sequence[Override]) -> int | None:
    """Return the count that the task itself asked for and nobody has looked at; None: none."""
    for override in overrides:
        if override.kind is OverrideKind.REQUEST and override.role == role.name:
            return override.replicas
    return None


def current(overrides: Sequence[Override], roles: Sequence[Role], now: datetime) -> list[Override]:
    """Return the overrides that still hold: not lapsed, and their declared field is unchanged."""
    declared = {role.name: role.replicas for role in roles}
    return [
        one
        for one in overrides
        if (one.until is None or one.until > now)
        and (one.kind is not OverrideKind.SCALE or declared.get(one.role) == one.declared)
    ]


def plan(role: Role, desired: int, bindings: Sequence[Binding], now: datetime) -> Plan:
    """Return what to create and what to stop so that a role has its replicas."""
    slots: dict[int, Slot] = {}
    for binding in bindings:
        identity = binding.spec.identity
        if identity.role == role.name:
            slots.setdefault(identity.index, Slot(identity.index)).copies.append(binding)
    result = Plan(role, desired, slots)
    for index in range(desired):
        slot = slots.get(index) or Slot(index)
        last = slot.last
        if last is None:
            result.create.append(slot)
        elif not last.live:
            wait = restart_in(role, slot, now)
            if wait is None:
                result.done.append(last)
            elif wait <= 0:
                result.create.append(slot)
            else:
                if last.reason is EndReason.IMAGE_PULL_FAILED:
                    result.held.append(slot)
                soonest = result.next_look
                result.next_look = wait if soonest is None else min(soonest, wait)
    result.surplus = [b for b in result.live if b.spec.identity.index >= desired]
    return result


def restart_in(role: Role, slot: Slot, now: datetime) -> float | None:
    """Return seconds until an ended replica is started again, or None: its end stands."""
    last = slot.last
    if last is None or last.ended_at is None or last.reason is None:
        return None
    reason, batch = last.reason, role.completion is Completion.RUN_TO_END
    if reason in _MEANT or (batch and reason in _FINAL):
        return None
    if reason in {EndReason.STOPPED, EndReason.PREEMPTED}:
        # no failure: it waits for room again, whatever the policy says about failures
        return 0.0
    never = role.restart_policy is RestartPolicy.NEVER
    if reason is EndReason.COMPLETED:
        failures, limit = _in_a_row(slot, lambda r: r is EndReason.COMPLETED), None
    elif never and _image(reason):
        failures, limit = _in_a_row(slot, _image), IMAGE_TRIES - 1
    elif reason.blames_platform:
        failures = _in_a_row(slot, lambda r: r.blames_platform)
        limit = PLATFORM_RETRIES if batch else None
    else:
        failures = _in_a_row(slot, lambda r: not r.blames_platform)
        limit = 0 if never else RETRIES if batch else None
    stands = limit is not None and failures > limit
    return None if stands else _after(last, failures, now)


def _image(reason: EndReason) -> bool:
    return reason is EndReason.IMAGE_PULL_FAILED


def _in_a_row(slot: Slot, same: Callable[[EndReason], bool]) -> int:
    count = 0
    for copy in reversed(slot.copies):
        if copy.reason is None or not same(copy.reason):
            break
        count += 1
    return count


def _after(last: Binding, failures: int, now: datetime) -> float:
    pause = min(LAST_PAUSE, FIRST_PAUSE * 2.0 ** min(max(failures - 1, 0), 16))
    ended = last.ended_at or now
    return max(0.0, pause - max(0.0, (now - ended).total_seconds()))
