"""Drains over HTTP: a node that is to be empty says so in its record, and the leader sees to it."""

from starlette.responses import JSONResponse, Response

from dsec.api.nodes import DRAIN, EVICT, MOVE
from dsec.api.records import SandboxNode
from dsec.api.snapshot_calls import DrainCall, Drained
from dsec.gateway.calls import Call
from dsec.gateway.errors import not_found
from dsec.world.records import RecordConflictError

ATTEMPTS = 5


async def node(call: Call) -> Response:
    """Have a node emptied, or let work come back to it."""
    asked = await call.model(DrainCall)
    await _write(call, call.path("node"), asked)
    return JSONResponse(Drained(nodes=[call.path("node")]).wire(), 202)


async def pool(call: Call) -> Response:
    """Have every node of a pool emptied."""
    asked, name = await call.model(DrainCall), call.path("pool")
    nodes = [SandboxNode.model_validate(one) for one in call.gateway.caches["SandboxNode"].all()]
    members = sorted(one.metadata.name for one in nodes if one.spec.pool == name)
    if not members:
        raise not_found(f"a node of pool {name}")
    for member in members:
        await _write(call, member, asked)
    return JSONResponse(Drained(nodes=members).wire(), 202)


async def _write(call: Call, name: str, asked: DrainCall) -> None:
    """Write a drain into a record. Raises RecordNotFoundError, RecordConflictError."""
    records = call.gateway.records
    for attempt in range(ATTEMPTS):
        record = await records.get("SandboxNode", name)
        notes = dict(record["metadata"].get("annotations") or {})
        notes.pop(DRAIN, None)
        if not asked.undo:
            notes[DRAIN] = EVICT if asked.evict else MOVE
        metadata = {**record["metadata"], "annotations": notes}
        spec = {**(record.get("spec") or {}), "unschedulable": not asked.undo}
        try:
            await records.replace({**record, "metadata": metadata, "spec": spec})
        except RecordConflictError:
            # its controller writes it often
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return
