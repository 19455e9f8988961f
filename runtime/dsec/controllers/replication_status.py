"""What a ReplicationPolicy's status says after a cycle. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dsec.api.meta import Condition, ConditionStatus, with_condition
from dsec.api.replication import (
    DestinationStatus,
    ReplicationCondition,
    ReplicationMode,
    ReplicationPolicySpec,
    ReplicationPolicyStatus,
    ReplicationReason,
)
from dsec.snapshots.replicating import Copied
from dsec.snapshots.routing import Barred
from dsec.snapshots.standing import together

CONTINUOUS_TARGET = 900
"""Seconds: what the best known offers promise of nearly all objects."""
NAMED = 3
"""Of many, a message names so many."""


@dataclass(slots=True)
class Outcome:
    """One destination in one cycle. `away` or `conflict` says why nothing came of it."""

    region: str
    copied: list[Copied] = field(default_factory=list)
    away: str = ""
    conflict: str = ""


def target_of(spec: ReplicationPolicySpec) -> int:
    """Return the oldest copy that is in sync, in seconds."""
    if spec.recovery_point_seconds is not None:
        return spec.recovery_point_seconds
    continuous = spec.mode is ReplicationMode.CONTINUOUS
    return CONTINUOUS_TARGET if continuous else 2 * spec.interval_seconds


def invalid(
    status: ReplicationPolicyStatus, why: str, *, generation: int, now: datetime
) -> ReplicationPolicyStatus:
    """Return the status of a policy that contradicts itself."""
    said = _condition(
        ReplicationCondition.READY, ReplicationReason.INVALID, why, good=False, at=generation
    )
    return status.model_copy(
        update={
            "observed_generation": generation,
            "conditions": with_condition(status.conditions, said, now=now),
        }
    )


def after_cycle(
    status: ReplicationPolicyStatus,
    spec: ReplicationPolicySpec,
    outcomes: Sequence[Outcome],
    barred: Sequence[Barred],
    *,
    generation: int,
    began: datetime,
    now: datetime,
) -> ReplicationPolicyStatus:
    """Return the status after a cycle over all destinations."""
    before = {one.region: one for one in status.destinations}
    destinations = [_destination(before.get(one.region), one, now) for one in outcomes]
    conditions = status.conditions
    for said in (
        _ready(outcomes, generation),
        _in_sync(spec, outcomes, destinations, generation),
        _protected(barred, generation),
    ):
        conditions = with_condition(conditions, said, now=now)
    return status.model_copy(
        update={
            "observed_generation": generation,
            "conditions": conditions,
            "destinations": destinations,
            "last_cycle": began,
            "cycle_seconds": max(0, round((now - began).total_seconds())),
        }
    )


def _destination(
    before: DestinationStatus | None, outcome: Outcome, now: datetime
) -> DestinationStatus:
    if outcome.away or outcome.conflict:
        # what was known stays, and grows older
        known = before or DestinationStatus(region=outcome.region)
        return known.model_copy(
            update={
                "message": outcome.away or outcome.conflict,
                "sent_bytes": 0,
                "sent_snapshots": 0,
            }
        )
    all_of = together(one.standing for one in outcome.copied)
    failed = [bad for one in outcome.copied for bad in one.failed]
    whole = all(one.whole for one in outcome.copied)
    point = all_of.recovery_point_seconds
    return DestinationStatus(
        region=outcome.region,
        repositories=len(outcome.copied),
        behind=all_of.behind,
        lag_seconds=round(all_of.lag_seconds),
        recovery_point_seconds=None if point is None else round(point),
        worst=all_of.worst[:256],
        sent_bytes=sum(one.bytes for one in outcome.copied),
        sent_snapshots=sum(one.refs for one in outcome.copied),
        last_success=now if whole else (before.last_success if before else None),
        message="; ".join(f"{one.key}: {one.why}" for one in failed[:NAMED])[:4000],
    )


def _ready(outcomes: Sequence[Outcome], generation: int) -> Condition:
    for kind, reason in (
        ("conflict", ReplicationReason.CONFLICT),
        ("away", ReplicationReason.DESTINATION_AWAY),
    ):
        bad = [f"{one.region}: {getattr(one, kind)}" for one in outcomes if getattr(one, kind)]
        if bad:
            text = "; ".join(bad)
            return _condition(ReplicationCondition.READY, reason, text, good=False, at=generation)
    return _condition(
        ReplicationCondition.READY,
        ReplicationReason.REPLICATING,
        f"copies go to {', '.join(one.region for one in outcomes)}",
        good=True,
        at=generation,
    )


def _in_sync(
    spec: ReplicationPolicySpec,
    outcomes: Sequence[Outcome],
    destinations: Sequence[DestinationStatus],
    generation: int,
) -> Condition:
    target = target_of(spec)

    def said(reason: ReplicationReason, text: str) -> Condition:
        good = reason is ReplicationReason.WITHIN_TARGET
        return _condition(ReplicationCondition.IN_SYNC, reason, text, good=good, at=generation)

    for one in outcomes:
        if any(copied.failed for copied in one.copied):
            found = next(row for row in destinations if row.region == one.region)
            return said(ReplicationReason.DAMAGED, f"{one.region}: {found.message}")
    for row in destinations:
        if row.message and not row.repositories:
            return said(ReplicationReason.BEHIND, f"{row.region}: {row.message}")
        if row.recovery_point_seconds is None and (row.behind or row.worst):
            return said(ReplicationReason.NO_COPY, f"{row.region}: {row.worst} has no copy")
        # what rests has an old newest snapshot: behind is only who has something to copy
        if row.behind and row.lag_seconds > target:
            return said(
                ReplicationReason.BEHIND,
                f"{row.region}: {row.behind} snapshots wait, the oldest for {row.lag_seconds} s; "
                f"asked for are {target} s",
            )
    return said(ReplicationReason.WITHIN_TARGET, f"nothing waits for longer than {target} s")


def _protected(barred: Sequence[Barred], generation: int) -> Condition:
    if not barred:
        return _condition(
            ReplicationCondition.PROTECTED,
            ReplicationReason.ALLOWED,
            "residency allows every copy that was asked for",
            good=True,
            at=generation,
        )
    none = [one for one in barred if not one.copies]
    worst = (none or list(barred))[:NAMED]
    reason = ReplicationReason.NO_DESTINATION if none else ReplicationReason.TOO_FEW
    text = "; ".join(f"{one.prefix}: {one.why}" for one in worst)
    return _condition(ReplicationCondition.PROTECTED, reason, text, good=False, at=generation)


def _condition(
    kind: ReplicationCondition, reason: ReplicationReason, text: str, *, good: bool, at: int
) -> Condition:
    return Condition(
        type=kind.value,
        status=ConditionStatus.TRUE if good else ConditionStatus.FALSE,
        reason=reason.value,
        message=text[:4000],
        observed_generation=at,
    )
