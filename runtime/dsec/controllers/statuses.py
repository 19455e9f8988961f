"""From facts to an experiment's status: counts, conditions, stages and reasons in words. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dsec.api.meta import Condition, ConditionStatus, with_condition
from dsec.api.reasons import PendingReason
from dsec.api.records import Experiment
from dsec.api.sandbox import SandboxState, SandboxStatus
from dsec.api.status import (
    MAX_EXAMPLES,
    Example,
    ExperimentCondition,
    ExperimentReason,
    ExperimentStatus,
    Override,
    PendingCount,
    ReasonCount,
    Resolved,
    RoleStatus,
    StageTime,
)
from dsec.controllers.budget_records import Hold
from dsec.controllers.replicas import Plan
from dsec.journal.bindings import Binding
from dsec.journal.results import results_prefix
from dsec.placement.refusal import Refusal
from dsec.placement.words import explain

STAGES: tuple[tuple[str, SandboxState], ...] = (
    ("bind", SandboxState.BOUND),
    ("image", SandboxState.PULLING),
    ("create", SandboxState.CREATING),
    ("start", SandboxState.STARTING),
    ("running", SandboxState.RUNNING),
)
"""The stages between submit and end (LIFE-10), by the sandbox state that shows them."""
LONGEST = 4000


@dataclass(slots=True)
class Facts:
    """All that a status is made from."""

    plans: Sequence[Plan]
    bindings: Sequence[Binding]
    waiting: Sequence[Binding]
    why: Mapping[str, tuple[Refusal, ...]]
    statuses: Mapping[str, SandboxStatus]
    overrides: Sequence[Override]
    frozen: bool
    moves: Mapping[str, str] = field(default_factory=dict)
    """What is planned for paused sandboxes, in words, by id."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """What is done about nodes for replicas that wait, in words, by id."""
    hold: Hold | None = None
    """What budgets say; None: there is none on its path."""


def refused_status(experiment: Experiment, mistakes: str, now: datetime) -> ExperimentStatus:
    """Return the status of an experiment that cannot run; no mistakes: it has no tenant."""
    reason, message = ExperimentReason.INVALID, mistakes
    if not mistakes:
        reason = ExperimentReason.TENANT_MISSING
        message = (
            f"namespace {experiment.metadata.namespace} belongs to no tenant; add it to the "
            f"projects of a Tenant"
        )
    status = experiment.status.model_copy(
        update={"observed_generation": experiment.metadata.generation}
    )
    row = (ExperimentCondition.ACCEPTED, False, reason, message)
    status.conditions = _with(experiment, status.conditions, row, now)
    return status


def status_of(
    experiment: Experiment, resolved: Resolved, facts: Facts, now: datetime
) -> ExperimentStatus:
    """Return the status that the facts give."""
    roles = [_role(one, facts) for one in facts.plans]
    old = experiment.status
    status = ExperimentStatus(
        observed_generation=experiment.metadata.generation,
        conditions=old.conditions,
        resolved=resolved,
        roles=roles,
        desired=sum(role.desired for role in roles),
        ready=sum(role.ready for role in roles),
        pending=sum(role.pending for role in roles),
        ended=sum(count.count for role in roles for count in role.ended),
        pending_reasons=_pending(facts),
        overrides=list(facts.overrides),
        # the scaler writes it, and everything else of the status is made anew here
        scaling=old.scaling,
        # and the accountant this
        budget=old.budget,
        stages=_stages(experiment, facts, now),
        examples=_examples(facts),
        results=results_prefix(experiment.metadata.namespace, experiment.metadata.name),
    )
    for row in _conditions(status, facts):
        status.conditions = _with(experiment, status.conditions, row, now)
    return status


def _with(
    experiment: Experiment,
    conditions: list[Condition],
    row: tuple[ExperimentCondition, bool, ExperimentReason, str],
    now: datetime,
) -> list[Condition]:
    kind, holds, reason, message = row
    new = Condition(
        type=kind.value,
        status=ConditionStatus.TRUE if holds else ConditionStatus.FALSE,
        reason=reason.value,
        message=message[:LONGEST],
        observed_generation=experiment.metadata.generation,
    )
    # to whole seconds, as the record store keeps them: a re-read status must equal this one
    return with_condition(conditions, new, now=now.replace(microsecond=0))


def _conditions(
    status: ExperimentStatus, facts: Facts
) -> list[tuple[ExperimentCondition, bool, ExperimentReason, str]]:
    kind, why = ExperimentCondition, ExperimentReason
    live = any(binding.live for binding in facts.bindings)
    over = bool(facts.plans) and all(one.over for one in facts.plans)
    bound = status.pending == 0
    ready = status.desired > 0 and status.ready == status.desired
    done = f"{status.ready} of {status.desired} replicas run"
    if resting := sum(role.paused for role in status.roles):
        done += f", {resting} rest until there is room again"
    if moves := facts.moves:
        first = min(moves)
        others = f", and {len(moves) - 1} more alike" if len(moves) > 1 else ""
        done += f"; {first}: {moves[first]}{others}"
    waits = "; ".join(one.message for one in status.pending_reasons[:3])
    rows = [(kind.ACCEPTED, True, why.RESOLVED, "defaults and presets are in status.resolved")]
    if over or (facts.frozen and not live):
        rows.append((kind.READY, False, why.RUN_OVER, "no replica runs any more"))
    elif ready:
        rows.append((kind.READY, True, why.ALL_RUNNING, done))
    else:
        rows.append((kind.READY, False, why.STARTING if bound else why.WAITING, done))
    if bound or facts.frozen:
        rows.append((kind.SCHEDULED, True, why.ALL_BOUND, "every wanted replica has a node"))
    else:
        message = f"{status.pending} of {status.desired} replicas wait: {waits}"
        rows.append((kind.SCHEDULED, False, why.WAITING, message))
    if over:
        ended = ", ".join(f"{count} {reason}" for reason, count in sorted(_ends(facts).items()))
        rows.append((kind.COMPLETED, True, why.ALL_ENDED, f"all replicas have ended: {ended}"))
    else:
        rows.append((kind.COMPLETED, False, why.IN_PROGRESS, "replicas wait or run"))
    rows += _budget(status, facts.hold)
    if not facts.frozen:
        rows.append((kind.FROZEN, False, why.NOT_ASKED, "nobody asked for it"))
    elif live:
        rows.append((kind.FROZEN, False, why.FREEZING, "the scene is being archived"))
    else:
        rows.append((kind.FROZEN, True, why.ARCHIVED, "the scene is archived, nothing runs"))
    return rows


def _budget(
    status: ExperimentStatus, hold: Hold | None
) -> list[tuple[ExperimentCondition, bool, ExperimentReason, str]]:
    """Return whether a budget holds it back (COST-12); nothing where none ever was on its path."""
    kind, why = ExperimentCondition.WITHIN_BUDGET, ExperimentReason
    if hold is not None and hold.action is not None:
        return [(kind, False, why.LEVEL_REACHED, hold.words)]
    if hold is None and all(one.type != kind.value for one in status.conditions):
        return []
    return [(kind, True, why.BUDGET_LEFT, "no budget holds it back")]


def _ends(facts: Facts) -> Counter[str]:
    return Counter(b.reason.value for one in facts.plans for b in one.done if b.reason)


def _role(one: Plan, facts: Facts) -> RoleStatus:
    states = Counter(_state(binding, facts) for binding in one.live)
    waiting = sum(1 for b in facts.waiting if b.spec.identity.role == one.role.name)
    reasons = Counter(b.reason for b in one.done if b.reason is not None)
    if facts.frozen:
        last = [slot.last for slot in one.slots.values()]
        reasons = Counter(b.reason for b in last if b is not None and b.reason is not None)
    copies = sum(len(slot.copies) - 1 for slot in one.slots.values() if slot.copies)
    return RoleStatus(
        name=one.role.name,
        desired=one.desired,
        pending=0 if facts.frozen else min(waiting, one.desired),
        starting=states["starting"],
        ready=states["ready"],
        paused=states["paused"],
        ended=[ReasonCount(reason=r, count=n) for r, n in sorted(reasons.items())],
        incarnations=copies,
    )


def _state(binding: Binding, facts: Facts) -> str:
    status = facts.statuses.get(binding.id)
    if binding.asleep:
        return "paused"
    if status is None or not status.registered:
        return "starting"
    if status.state is SandboxState.RUNNING:
        return "ready"
    return "paused" if status.state is SandboxState.PAUSED else "starting"


def _pending(facts: Facts) -> list[PendingCount]:
    groups: dict[tuple[str, PendingReason, str], int] = {}
    for binding in facts.waiting:
        refusals = facts.why.get(binding.id) or (Refusal(PendingReason.CONTROL_PLANE, "round", 1),)
        words = "; ".join(one for one in (explain(refusals), facts.nodes.get(binding.id)) if one)
        key = (binding.spec.identity.role, refusals[0].reason, words[:LONGEST])
        groups[key] = groups.get(key, 0) + 1
    if facts.frozen:
        return []
    return [
        PendingCount(reason=reason, message=message, count=count, role=role)
        for (role, reason, message), count in sorted(groups.items())[:64]
    ]


def _stages(experiment: Experiment, facts: Facts, now: datetime) -> list[StageTime]:
    """Return the first time of each stage; what was once recorded stays."""
    times = {stage.name: stage.at for stage in experiment.status.stages}
    times.setdefault("submit", experiment.metadata.creation_timestamp or now)
    bound = [b.bound_at for b in facts.bindings if b.bound_at is not None]
    if bound:
        times.setdefault("bind", min(bound))
    for name, state in STAGES:
        seen = [s.times[state.value] for s in facts.statuses.values() if state.value in s.times]
        if seen:
            times.setdefault(name, min(seen))
    ended = [b.ended_at for b in facts.bindings if b.ended_at is not None]
    over = bool(facts.plans) and all(one.over for one in facts.plans)
    if ended and (over or facts.frozen) and not any(b.live for b in facts.bindings):
        times.setdefault("end", max(ended))
    order = ["submit", *(name for name, _ in STAGES), "end"]
    return [
        StageTime(name=name, at=times[name].replace(microsecond=0))
        for name in order
        if name in times
    ]


def _examples(facts: Facts) -> list[Example]:
    """Name the sandboxes worth a look: failed ones first, then those that wait, then running."""
    rows: list[tuple[int, Example]] = []
    for one in facts.plans:
        for slot in one.slots.values():
            last = slot.last
            if last is None:
                continue
            status = facts.statuses.get(last.id)
            bad = last.reason is not None and last.reason.value not in ("completed", "stopped")
            state = "ended" if not last.live else (status.state.value if status else "bound")
            rows.append(
                (
                    0 if bad else 2,
                    Example(
                        id=last.id,
                        role=one.role.name,
                        index=slot.index,
                        node=last.node,
                        state=state,
                        reason=last.reason.value if last.reason else "",
                        message=_message(status, facts.moves.get(last.id, "")),
                    ),
                )
            )
    for binding in facts.waiting[:MAX_EXAMPLES]:
        identity = binding.spec.identity
        reasons = facts.why.get(binding.id, ())
        rows.append(
            (
                1,
                Example(
                    id=binding.id,
                    role=identity.role,
                    index=identity.index,
                    state="pending",
                    reason=reasons[0].reason.value if reasons else "",
                ),
            )
        )
    rows.sort(key=lambda row: (row[0], row[1].role, row[1].index))
    return [example for _, example in rows[:MAX_EXAMPLES]]


def _message(status: SandboxStatus | None, planned: str) -> str:
    """Return what an agent says of a sandbox, and what the leader has planned for it."""
    said = status.message if status else ""
    return "; ".join(part for part in (said, planned) if part)
