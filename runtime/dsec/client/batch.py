"""One-call batches: from count, image and command to an experiment, and back to ordered results.

Pure functions over documents and records; the clients do the talking.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from ulid import ULID

from dsec.api.experiment import MAX_REPLICAS
from dsec.api.frames import ExecEnd
from dsec.api.meta import API_VERSION, Condition, ConditionStatus, condition_of
from dsec.api.reasons import EndReason
from dsec.api.records import Experiment
from dsec.api.sandbox import SandboxStatus
from dsec.api.status import ExperimentCondition
from dsec.api.units import cpu_milli, size
from dsec.client.errors import InvalidError, ServerError, UnknownOutcomeError

ROLE = "worker"
"""The single role of a batch."""


def run_name() -> str:
    """Return a fresh name for a batch that was given none."""
    return f"run-{str(ULID()).lower()}"


@dataclass(frozen=True, slots=True)
class ExecResult:
    """A command that ran in a live sandbox: how it ended and what it wrote."""

    end: ExecEnd
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an experiment is, in replicas. `waiting` says in words what pending ones wait for."""

    desired: int = 0
    pending: int = 0
    ready: int = 0
    ended: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """What `run` was asked for. `cpu` in cores; `memory` and `disk` in bytes or as `512Mi`."""

    name: str
    image: str
    command: list[str]
    count: int | None
    items: list[bytes] | None
    cpu: float | str
    memory: int | str
    pids: int
    disk: int | str
    env: dict[str, str]
    max_run_seconds: int | None

    @property
    def size(self) -> int:
        """The number of sandboxes."""
        return len(self.items or []) if self.count is None else self.count

    def checked(self) -> "Batch":
        """Return this batch, or raise InvalidError with every mistake."""
        wrong = [
            *self._wrong_count(),
            *_wrong_unit("cpu", self.cpu, milli_of),
            *_wrong_unit("memory", self.memory, bytes_of),
            *_wrong_unit("disk", self.disk, bytes_of),
        ]
        if wrong:
            raise InvalidError("the batch cannot run", details=wrong)
        return self

    def _wrong_count(self) -> list[dict[str, Any]]:
        if self.count is None and self.items is None:
            return [_mistake("count", None, "a count, items, or both", "nothing says how many")]
        if self.items is not None and not self.items:
            return [_mistake("items", "0 items", f"1 to {MAX_REPLICAS}", "there is nothing to run")]
        if not 1 <= self.size <= MAX_REPLICAS:
            return [_mistake("count", self.size, f"1 to {MAX_REPLICAS}", "not a possible number")]
        if self.items is not None and self.count not in {None, len(self.items)}:
            allowed = str(len(self.items))
            return [_mistake("count", self.count, allowed, "differs from the number of items")]
        return []


def _mistake(path: str, value: object, allowed: str, message: str) -> dict[str, Any]:
    return {"path": path, "value": value, "allowed": allowed, "message": message}


def _wrong_unit(path: str, value: float | str, parse: Callable[[Any], int]) -> list[dict[str, Any]]:
    try:
        wrong = "must be more than 0" if parse(value) <= 0 else ""
    except ValueError as error:
        wrong = str(error)
    return [_mistake(path, value, "", wrong)] if wrong else []


def bytes_of(value: int | str) -> int:
    """Return a size in bytes, from bytes or from text with a unit. Raises UnitError."""
    return size(value, bare=1)


def milli_of(value: float | str) -> int:
    """Return thousandths of a core, from cores or from text such as 500m. Raises UnitError."""
    return cpu_milli(str(value))


def item_lines(items: Iterable[Any]) -> list[bytes]:
    """Return one line of JSON per item; a text or bytes item is a line already.

    Raises InvalidError where such a line holds a line break, or a value has no JSON form.
    """
    lines = []
    for index, item in enumerate(items):
        try:
            line = (
                item
                if isinstance(item, bytes)
                else (item if isinstance(item, str) else json.dumps(item)).encode()
            )
        except (TypeError, ValueError) as error:
            raise _bad_item(index, item, "a value that JSON can hold") from error
        if b"\n" in line:
            raise _bad_item(index, item, "one line, without line breaks")
        lines.append(line)
    return lines


def _bad_item(index: int, item: object, allowed: str) -> InvalidError:
    detail = _mistake(f"items[{index}]", repr(item)[:80], allowed, "not usable as an item")
    return InvalidError("the batch cannot run", details=[detail])


def experiment_of(batch: Batch, items_ref: str | None) -> dict[str, Any]:
    """Return the experiment that runs the batch: one role, each replica once, no retry."""
    role: dict[str, Any] = {
        "name": ROLE,
        "replicas": batch.size,
        "command": batch.command,
        "resources": {
            "cpuMilli": milli_of(batch.cpu),
            "memoryBytes": bytes_of(batch.memory),
            "pids": batch.pids,
            "diskBytes": bytes_of(batch.disk),
        },
        "completion": "run-to-end",
        "restartPolicy": "never",
    }
    if batch.image:
        role["image"] = batch.image
    if batch.env:
        role["env"] = batch.env
    if items_ref:
        role["itemsRef"] = items_ref
    spec: dict[str, Any] = {"roles": [role]}
    if batch.max_run_seconds is not None:
        spec["maxRunSeconds"] = batch.max_run_seconds
    return {
        "apiVersion": API_VERSION,
        "kind": "Experiment",
        "metadata": {"name": batch.name},
        "spec": spec,
    }


def _experiment(record: dict[str, Any]) -> Experiment:
    try:
        return Experiment.model_validate(record)
    except ValidationError as error:
        raise ServerError(f"the server's answer is no Experiment: {error}") from error


def _current(experiment: Experiment, kind: ExperimentCondition) -> Condition | None:
    """Return a condition, unless it speaks of an older spec."""
    condition = condition_of(experiment.status.conditions, kind)
    if condition and condition.observed_generation >= experiment.metadata.generation:
        return condition
    return None


def refused(record: dict[str, Any]) -> str:
    """Return why an experiment can never run; empty where it can."""
    condition = _current(_experiment(record), ExperimentCondition.ACCEPTED)
    if condition and condition.status is ConditionStatus.FALSE:
        return condition.message or condition.reason
    return ""


def ended(record: dict[str, Any]) -> bool:
    """Say whether an experiment is completed or frozen."""
    experiment = _experiment(record)
    conditions = (
        _current(experiment, ExperimentCondition.COMPLETED),
        _current(experiment, ExperimentCondition.FROZEN),
    )
    return any(one and one.status is ConditionStatus.TRUE for one in conditions)


def progress_of(record: dict[str, Any]) -> Progress:
    """Return the counts of an experiment's status."""
    status = _experiment(record).status
    reasons: dict[str, int] = {}
    for role in status.roles:
        for one in role.ended:
            reasons[one.reason] = reasons.get(one.reason, 0) + one.count
    return Progress(
        desired=status.desired,
        pending=status.pending,
        ready=status.ready,
        ended=status.ended,
        reasons=reasons,
        waiting=tuple(one.message for one in status.pending_reasons),
    )


def in_order(found: list[SandboxStatus], size: int) -> list[SandboxStatus]:
    """Return the results of a batch by index: the last incarnation of each replica.

    Raises UnknownOutcomeError where some are missing: a shorter list would shift every result.
    """
    last: dict[int, SandboxStatus] = {}
    for status in found:
        known = last.get(status.identity.index)
        if known is None or known.identity.incarnation < status.identity.incarnation:
            last[status.identity.index] = status
    missing = [index for index in range(size) if index not in last or last[index].end is None]
    if missing:
        shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")  # noqa: PLR2004  a display width
        raise UnknownOutcomeError(f"{len(missing)} of {size} results are missing: {shown}")
    return [last[index] for index in range(size)]


def passed(status: SandboxStatus) -> bool:
    """Say whether a sandbox did its work."""
    return status.end is not None and status.end.reason is EndReason.COMPLETED
