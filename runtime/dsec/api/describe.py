"""An experiment in words: what was asked, what is, why it waits, what was decided for it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.decisions import SandboxDecision
from dsec.api.elastic_status import Growth
from dsec.api.experiment import Role
from dsec.api.meta import ConditionStatus, condition_of
from dsec.api.reaping import Mark
from dsec.api.records import Experiment
from dsec.api.sandbox import SandboxState, SandboxStatus
from dsec.api.snapshot_calls import restore_seconds
from dsec.api.status import ExperimentCondition, RoleStatus
from dsec.api.units import cpu_text, size_text

STAGES = ("submit", "image", "bind", "create", "start", "running", "end")
"""The seven stages of source 001, in the order in which they are printed (LIFE-10)."""


class Line(WireModel):
    """One fact: a name, its value in words, and nothing else."""

    name: str
    text: str


class Section(WireModel):
    """Facts that belong together."""

    title: str
    lines: list[Line] = []


class Description(WireModel):
    """The answer to `dsec describe`: one sentence, then sections."""

    name: str
    headline: str = Field(description="The state in one sentence.")
    sections: list[Section] = []


def describe(
    record: Experiment,
    *,
    now: datetime,
    sandboxes: Sequence[SandboxStatus] = (),
    decisions: Mapping[str, SandboxDecision] | None = None,
    marks: Mapping[str, Mark] | None = None,
) -> Description:
    """Describe an experiment from its record and, where known, its live sandboxes.

    Empty sections are left out. `now` (UTC) turns times into ages. `decisions`: the newest one
    about a sandbox of each role. `marks`: what the reaper knows, by sandbox.
    """
    sections = [
        Section(title="Asked", lines=list(_asked(record))),
        Section(title="Roles", lines=list(_roles(record))),
        Section(title="Scaling", lines=list(_scaling(record, now))),
        Section(title="Waits", lines=list(_waits(record))),
        Section(title="Placed", lines=list(_placed(record, sandboxes))),
        Section(title="Snapshots", lines=list(_snapshots(record, sandboxes, now))),
        Section(title="Recycling", lines=list(_recycling(record, sandboxes, marks or {}))),
        Section(title="Decisions", lines=list(_decisions(decisions or {}))),
        Section(title="Stages", lines=list(_stages(record, now))),
        Section(title="Conditions", lines=list(_conditions(record, now))),
        Section(title="Live changes", lines=list(_overrides(record, now))),
        Section(title="Filled in", lines=list(_defaulted(record))),
        Section(title="Warnings", lines=list(_warnings(record))),
        Section(title="Examples", lines=list(_examples(record))),
        Section(title="Results", lines=list(_results(record))),
    ]
    return Description(
        name=record.given_name,
        headline=_headline(record),
        sections=[one for one in sections if one.lines],
    )


def age(since: datetime, now: datetime) -> str:
    """Return a span for people: `5 s`, `3 min`, `2 h`, `4 d`."""
    seconds = max(0, int((now - since) / timedelta(seconds=1)))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _headline(record: Experiment) -> str:
    status, name = record.status, record.given_name
    accepted = condition_of(status.conditions, ExperimentCondition.ACCEPTED)
    if accepted and accepted.status is ConditionStatus.FALSE:
        return f"{name} cannot run: {accepted.message}"
    for kind, words in (
        (ExperimentCondition.FROZEN, "is frozen: its scene is archived and nothing is used"),
        (ExperimentCondition.COMPLETED, f"is complete: {status.ended} replicas have ended"),
    ):
        found = condition_of(status.conditions, kind)
        if found and found.status is ConditionStatus.TRUE:
            return f"{name} {words}."
    if accepted is None:
        return f"{name} is submitted; the control plane has not looked at it yet."
    if status.pending:
        why = f": {status.pending_reasons[0].message}" if status.pending_reasons else ""
        head = "Pending" if status.pending == status.desired else "partly Pending"
        return f"{name} is {head}, {status.pending} of {status.desired} replicas wait{why}"
    if status.desired and status.ready == status.desired:
        return f"{name} is Running: all {status.desired} replicas."
    return f"{name} is starting: {status.ready} of {status.desired} replicas run."


def _asked(record: Experiment) -> Iterable[Line]:
    resolved = record.status.resolved
    spec = resolved.spec if resolved else record.spec
    yield Line(name="record", text=f"{record.metadata.namespace}/{record.metadata.name}")
    if resolved:
        yield Line(name="tenant", text=resolved.tenant)
    yield Line(name="form", text=f"{spec.dialect.value} document")
    yield Line(name="queue", text=f"{spec.queue}, priority {spec.priority.value}")
    yield Line(name="class", text=spec.task_class.value)
    if spec.isolation_level:
        yield Line(name="isolation", text=spec.isolation_level.value)
    pinned = {one.role: one.reference for one in resolved.images} if resolved else {}
    for role in spec.roles:
        yield Line(name=f"role {role.name}", text=_wants(role, pinned.get(role.name, role.image)))
    if spec.budget:
        currency = f" {spec.budget.currency}" if spec.budget.currency else ""
        text = f"{spec.budget.limit}{currency}, then {spec.budget.on_exceed.value}"
        if record.status.budget is not None:
            text += f"; {record.status.budget.spent}{currency} is spent"
        yield Line(name="budget", text=text)
    if spec.snapshot:
        kinds = ", ".join(one.value for one in spec.snapshot.kinds) or "state"
        period = spec.snapshot.interval_seconds
        every = "adaptive" if spec.snapshot.adaptive else f"every {period} s" if period else ""
        yield Line(name="snapshots", text=f"{kinds} {every}".strip())


def _wants(role: Role, image: str) -> str:
    parts = [f"{role.replicas} x "]
    if role.resources.cpu_milli:
        parts.append(f"{cpu_text(role.resources.cpu_milli)} CPU, ")
    if role.resources.memory_bytes:
        parts.append(f"{size_text(role.resources.memory_bytes)} memory, ")
    if role.gpu:
        memory = role.gpu.memory_bytes
        model = f" {role.gpu.model}" if role.gpu.model else ""
        limit = f" with {size_text(memory)}" if memory else ""
        parts.append(f"{role.gpu.count} GPU{model} ({role.gpu.mode.value}){limit}, ")
    if role.max is not None:
        parts.append(f"between {role.min or 0} and {role.max}, ")
    return f"{''.join(parts)}image {image or 'of the tenant'}"


def _roles(record: Experiment) -> Iterable[Line]:
    for role in record.status.roles:
        yield Line(name=role.name, text=_counts(role))


def _counts(role: RoleStatus) -> str:
    counts = [
        ("pending", role.pending),
        ("starting", role.starting),
        ("paused", role.paused),
    ]
    words = [f"{role.ready} of {role.desired} run"]
    words += [f"{count} {name}" for name, count in counts if count]
    words += [f"{one.count} ended {one.reason.value}" for one in role.ended]
    if role.incarnations:
        words.append(f"{role.incarnations} replaced so far")
    return ", ".join(words)


def _scaling(record: Experiment, now: datetime) -> Iterable[Line]:
    """Say of each elastic role what its scaler decided last, why, and how the last growth went."""
    for one in record.status.scaling:
        yield Line(name=one.role, text=one.message)
        if one.advice:
            yield Line(name=f"{one.role} advice", text=one.advice)
        read = ", ".join(
            f"{reading.name} {reading.value:g}"
            for reading in one.readings
            if reading.value is not None
        )
        if read and one.utc:
            yield Line(name=f"{one.role} signals", text=f"{read}, read {age(one.utc, now)} ago")
        if one.growths:
            yield Line(name=f"{one.role} growth", text=_growth(one.growths[-1], now))


def _growth(last: Growth, now: datetime) -> str:
    text = f"{last.count_before} to {last.count_after}, {age(last.acted, now)} ago"
    if last.first_result is None:
        return f"{text}; the first of them does not run yet"
    took = (last.first_result - last.acted) / timedelta(seconds=1)
    return f"{text}; the first of them ran after {took:.0f} s"


def _waits(record: Experiment) -> Iterable[Line]:
    for one in record.status.pending_reasons:
        who = f"{one.count} of {one.role}" if one.role else f"{one.count} replicas"
        yield Line(name=f"{who} ({one.reason.value})", text=one.message)


def _placed(record: Experiment, sandboxes: Sequence[SandboxStatus]) -> Iterable[Line]:
    own = sorted(
        (one.node, one.identity.role)
        for one in sandboxes
        if one.identity.experiment == record.metadata.name and one.state is not SandboxState.ENDED
    )
    for node, group in groupby(own, key=lambda one: one[0]):
        by_role = {
            role: len(list(members)) for role, members in groupby(group, key=lambda one: one[1])
        }
        text = ", ".join(f"{count} {role}" for role, count in by_role.items())
        yield Line(name=node or "no node yet", text=text)


def _snapshots(
    record: Experiment, sandboxes: Sequence[SandboxStatus], now: datetime
) -> Iterable[Line]:
    """Say what would be lost if nodes went now, and how long it takes to go on (SNAP-25).

    Of each role the worst replica counts.
    """
    resolved = record.status.resolved
    if resolved is None or resolved.spec.snapshot is None:
        return
    own = [
        one
        for one in sandboxes
        if one.identity.experiment == record.metadata.name and one.state is not SandboxState.ENDED
    ]
    for role in sorted({one.identity.role for one in own}):
        copies = [one for one in own if one.identity.role == role]
        last = [one.snapshot for one in copies if one.snapshot is not None]
        text = "no good snapshot yet: a lost node costs all that was done"
        if last:
            oldest, largest = min(one.at for one in last), max(one.bytes for one in last)
            took = restore_seconds(largest)
            text = f"last good snapshot {age(oldest, now)} ago; a restore takes about {took:.0f} s"
            lacking = len(copies) - len(last)
            text += f"; {lacking} of {len(copies)} have none yet" if lacking else ""
        yield Line(name=role, text=text)


def _recycling(
    record: Experiment, sandboxes: Sequence[SandboxStatus], marks: Mapping[str, Mark]
) -> Iterable[Line]:
    """Say which sandboxes are about to be ended as of no use, and which somebody extended."""
    for one in sandboxes:
        mark = marks.get(one.identity.id)
        if mark is None or one.identity.experiment != record.metadata.name:
            continue
        if mark.finding is not None and mark.due is not None:
            due = datetime.fromtimestamp(mark.due, UTC).isoformat(timespec="seconds")
            text = f"{mark.finding.value}: ends at {due}, unless `dsec extend {one.identity.id}`"
            yield Line(name=one.identity.id, text=text)
        elif mark.extended_until is not None:
            until = datetime.fromtimestamp(mark.extended_until, UTC).isoformat(timespec="seconds")
            text = f"extended until {until} by {mark.extended_by or 'a user'}"
            yield Line(name=one.identity.id, text=text)


def _decisions(decisions: Mapping[str, SandboxDecision]) -> Iterable[Line]:
    """Say of each role why the last one went where it is, and why not elsewhere."""
    for role, decision in sorted(decisions.items()):
        record = decision.record
        if record is None:
            continue
        where = f"on {decision.node}" if decision.node else "waits"
        yield Line(
            name=role,
            text=f"{decision.sandbox} {where}; {record.placed} of {record.asked} alike were placed",
        )
        if record.scores and decision.node:
            parts = ", ".join(f"{one.name} {one.value:g}" for one in record.scores)
            yield Line(name=f"{role} score", text=parts)
        for rejected in record.rejected:
            nodes = f"{rejected.nodes} nodes: " if rejected.nodes else ""
            yield Line(name=f"{role} not", text=f"{nodes}{rejected.text}")


def _stages(record: Experiment, now: datetime) -> Iterable[Line]:
    times = {one.name: one.at for one in record.status.stages}
    before = None
    for name in STAGES:
        at = times.get(name)
        if at is None:
            continue
        took = (
            f", {(at - before) / timedelta(seconds=1):.1f} s after the one before" if before else ""
        )
        yield Line(name=name, text=f"{at.isoformat()} ({age(at, now)} ago{took})")
        before = at


def _conditions(record: Experiment, now: datetime) -> Iterable[Line]:
    for one in record.status.conditions:
        since = f" for {age(one.last_transition_time, now)}" if one.last_transition_time else ""
        text = f"{one.status.value}{since}: {one.reason}. {one.message}".rstrip()
        yield Line(name=one.type, text=text)


def _overrides(record: Experiment, now: datetime) -> Iterable[Line]:
    for one in record.status.overrides:
        what = f"{one.kind.value} to {one.replicas}" if one.replicas is not None else one.kind.value
        yield Line(
            name=one.role or "experiment", text=f"{what} by {one.by}, {age(one.at, now)} ago"
        )


def _defaulted(record: Experiment) -> Iterable[Line]:
    if record.status.resolved:
        for one in record.status.resolved.defaulted:
            yield Line(name=one.path, text=f"{one.value} from {one.source}")


def _warnings(record: Experiment) -> Iterable[Line]:
    if record.status.resolved:
        for one in record.status.resolved.warnings:
            yield Line(name="warning", text=one)


def _examples(record: Experiment) -> Iterable[Line]:
    for one in record.status.examples:
        where = f" on {one.node}" if one.node else ""
        why = f": {one.reason}" if one.reason else ""
        message = f" {one.message}" if one.message else ""
        yield Line(
            name=one.id, text=f"{one.role}-{one.index} {one.state}{where}{why}{message}".strip()
        )


def _results(record: Experiment) -> Iterable[Line]:
    if record.status.results:
        yield Line(name="results", text=record.status.results)
