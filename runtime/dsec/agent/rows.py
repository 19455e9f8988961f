"""Shapes of what the agent stores, ships and logs: spool entries, journal rows, state answers."""

from datetime import datetime
from typing import Any

import structlog

from dsec.agent.core import Core
from dsec.agent.entry import Entry, Stop
from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, SandboxSpec, SandboxState, SandboxStatus
from dsec.api.wire import JournalRow

REGION: str = JournalRow.model_fields["region"].default
"""What rows say until a gateway, which knows its region, takes them."""
_IN_SPEC = {"identity", "resources", "image"}
"""Fields of a status that its spec has too: not stored with every change."""
_LOGGED = frozenset({SandboxState.STARTING, SandboxState.RUNNING, SandboxState.ENDED})
"""States that are log lines; all are rows of the journal."""

_log = structlog.get_logger(__name__)


def dump_entry(entry: Entry, *, with_spec: bool = False) -> dict[str, Any]:
    """Return an entry for the spool; the spec is stored with the first record only."""
    data: dict[str, Any] = {
        "id": entry.spec.identity.id,
        "status": entry.status.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude=_IN_SPEC
        ),
        "stop": None,
        "end": None,
        "acknowledged": entry.acknowledged,
        "resting": entry.resting,
    }
    if entry.stop is not None:
        stop = entry.stop
        data["stop"] = {"reason": stop.reason, "message": stop.message, "grace": stop.grace}
    if entry.end is not None and entry.live:
        # of an ended one the status has it
        data["end"] = entry.end.model_dump(mode="json", by_alias=True, exclude_none=True)
    if with_spec:
        # as it is: the spool writes models as they go over the wire
        data["spec"] = entry.spec
    return data


def load_entry(data: dict[str, Any]) -> Entry:
    """Return an entry as `dump_entry` stored it. Raises ValueError for anything else."""
    stop = data.get("stop")
    end = data.get("end")
    spec = SandboxSpec.model_validate(data["spec"])
    known = {name: getattr(spec, name) for name in _IN_SPEC}
    return Entry(
        spec=spec,
        status=SandboxStatus.model_validate({**data["status"], **known}),
        stop=Stop(EndReason(stop["reason"]), stop["message"], stop["grace"]) if stop else None,
        end=End.model_validate(end) if end else None,
        acknowledged=data["acknowledged"],
        # what an earlier version paused lent nothing
        resting=data.get("resting", False),
    )


def row_of(entry: Entry, boot_id: str, seq: int, now: datetime) -> dict[str, Any]:
    """Return the journal row about the state that an entry has just entered.

    Kind is `sandbox-<state>`. The body of `sandbox-bound` has what metering needs, that of
    `sandbox-ended` the end without its output, which is in the archive.
    """
    status, identity = entry.status, entry.spec.identity
    body: dict[str, object] = {
        "state": status.state.value,
        "role": identity.role,
        "index": identity.index,
        "incarnation": identity.incarnation,
        "correlationId": identity.correlation_id,
    }
    if status.message:
        body["message"] = status.message
    if status.state is SandboxState.BOUND:
        body["image"] = status.image
        body["project"] = identity.project
        body["experimentUid"] = identity.experiment_uid
        body["resources"] = status.resources.wire()
        body["devices"] = entry.spec.devices
    if status.state is SandboxState.RUNNING:
        body["registered"] = status.registered
    if entry.stop is not None:
        body["stopReason"] = entry.stop.reason.value
    if status.end is not None:
        body["end"] = status.end.model_copy(update={"stdout": "", "stderr": ""}).wire()
        body["times"] = {name: time.isoformat() for name, time in status.times.items()}
    kind = f"sandbox-{status.state.value}"
    return _row(status.node, kind, body, boot_id=boot_id, seq=seq, now=now) | {
        "tenant": identity.tenant,
        "experiment": identity.experiment,
        "sandbox": identity.id,
    }


def event_row(
    entry: Entry, kind: str, body: dict[str, Any], *, boot_id: str, seq: int, now: datetime
) -> dict[str, Any]:
    """Return a journal row about what happened to a sandbox beside its states."""
    identity = entry.spec.identity
    return _row(entry.status.node, kind, body, boot_id=boot_id, seq=seq, now=now) | {
        "tenant": identity.tenant,
        "experiment": identity.experiment,
        "sandbox": identity.id,
    }


def log(entry: Entry) -> None:
    """Write a line about the state that an entry has just entered, if it is one of the trail's."""
    status, identity = entry.status, entry.spec.identity
    if status.state in _LOGGED:
        _log.info(
            f"sandbox {status.state}",
            sandbox=identity.id,
            registered=status.registered,
            correlation=identity.correlation_id,
        )


def node_row(
    core: Core, *, kind: str, body: dict[str, object], boot_id: str, seq: int, now: datetime
) -> dict[str, Any]:
    """Return a journal row about the node itself."""
    body = {"incarnation": core.incarnation, "live": core.live, **body}
    return _row(core.node, kind, body, boot_id=boot_id, seq=seq, now=now)


def _row(
    node: str, kind: str, body: dict[str, object], *, boot_id: str, seq: int, now: datetime
) -> dict[str, Any]:
    """Return a JournalRow as JSON data; every step of a sandbox is one, so no model is made."""
    return {
        "region": REGION,
        "node": node,
        "bootId": boot_id,
        "seq": seq,
        "utc": now,
        "tenant": "",
        "experiment": "",
        "sandbox": "",
        "kind": kind,
        "body": body,
    }


def fit(entries: list[Entry], seq: int, limit: int) -> tuple[list[SandboxStatus], int]:
    """Return statuses for one answer and the change number it reaches, within a size.

    Size is counted in output characters. An end that does not fit is shown as still being
    archived, and the number stays below it: the next question brings it. The first end always
    fits, so a reader makes progress.
    """
    statuses: list[SandboxStatus] = []
    room, reached = limit, seq
    for entry in entries:
        status, end = entry.status, entry.status.end
        size = len(end.stdout) + len(end.stderr) if end is not None else 0
        if size and size > room and room < limit:
            reached = min(reached, status.seq - 1)
            status = status.model_copy(update={"state": SandboxState.ARCHIVING, "end": None})
        else:
            room -= size
        statuses.append(status)
    return statuses, reached
