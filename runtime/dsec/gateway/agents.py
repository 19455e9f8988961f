"""What agents call, for themselves and for programs inside. Who calls, its certificate says.

An agent holds no credential of any store: the gateway writes for it, after it has checked that the
sandbox is bound to that very node. A copy that does not count is told `fenced` and changes nothing.
"""

import re
from collections.abc import Awaitable, Callable, Sequence

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dsec.api.wire import JournalPush, JournalRow
from dsec.gateway import inside, snapshot_bytes
from dsec.gateway.calls import (
    CORRELATION,
    as_error,
    correlation_of,
    read_model,
    record_denial,
)
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, invalid, not_found
from dsec.gateway.registration import register
from dsec.gateway.scenes import store_file, store_files
from dsec.gateway.standing import calling_node
from dsec.journal.bindings import Binding, Bindings
from dsec.journal.history import store
from dsec.journal.inputs import input_key
from dsec.world.objects import NotFoundError
from dsec.world.records import User
from dsec.world.tls import peer_of

JOURNAL_BYTES = 64 << 20
WORD = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,127}")
"""What a boot id may look like: it becomes part of an object's key."""

log = structlog.get_logger()


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes for agents."""

    def at(
        method: str, path: str, handler: Callable[[Gateway, Request], Awaitable[Response]]
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            correlation = correlation_of(gateway, request)
            structlog.contextvars.clear_contextvars()
            structlog.contextvars.bind_contextvars(correlation=correlation)
            try:
                response = await handler(gateway, request)
            except Exception as problem:
                error = as_error(problem)
                if error.denial:
                    await record_denial(gateway, request, _caller(request), correlation, error)
                elif error.status == 500:  # noqa: PLR2004 - HTTP
                    log.exception("agent call failed", path=request.url.path)
                response = error.response(correlation)
            response.headers[CORRELATION] = correlation
            return response

        return Route(f"/agent/v1/{path}", endpoint, methods=[method])

    return [
        at("POST", "register", register),
        at("POST", "journal", journal),
        at("PUT", "artifacts/{project}/{experiment}/{sandbox}/{path:path}", artifact),
        at("POST", "artifacts/{project}/{experiment}/{sandbox}", scene),
        at("GET", "inputs/{project}/{sha256}", read_input),
        at("GET", "sandboxes/{sandbox}/queues/{queue}", inside.queue),
        at("POST", "sandboxes/{sandbox}/queues/{queue}/{verb}", inside.queue),
        at("POST", "sandboxes/{sandbox}/scale", inside.scale),
        at("POST", "snapshots/access", snapshot_bytes.access),
        at("GET", "snapshots/objects", snapshot_bytes.list_objects),
        at("GET", "snapshots/objects/{key:path}", snapshot_bytes.read_object),
        at("PUT", "snapshots/objects/{key:path}", snapshot_bytes.write_object),
        at("DELETE", "snapshots/objects/{key:path}", snapshot_bytes.delete_object),
        at("POST", "snapshots/urls", snapshot_bytes.urls),
        at("POST", "snapshots/publish", snapshot_bytes.publish_ref),
    ]


async def journal(gateway: Gateway, request: Request) -> Response:
    """Store rows of the calling node; repeats are harmless."""
    node = await calling_node(gateway, peer_of(request.scope))
    push = await read_model(request, JournalPush, JOURNAL_BYTES)
    foreign = [row.seq for row in push.rows if row.node != node or row.boot_id != push.boot_id]
    if push.node != node or foreign:
        raise ApiError(403, "denied", f"{node} may write rows of its own only")
    if not WORD.fullmatch(push.boot_id):
        raise invalid("bootId", push.boot_id[:200], WORD.pattern, "is no boot id")
    await _check_rows(gateway, node, push.rows)
    region = gateway.config.region
    for row in push.rows:
        if row.region != region:
            row.region = region
    await store(gateway.objects, push.rows)
    gateway.metrics.rows.inc(len(push.rows))
    return JSONResponse({"rows": len(push.rows)})


async def artifact(gateway: Gateway, request: Request) -> Response:
    """Store one file of a sandbox's scene, if that copy counts."""
    return await store_file(gateway, await calling_node(gateway, peer_of(request.scope)), request)


async def scene(gateway: Gateway, request: Request) -> Response:
    """Store several files of a sandbox's scene, if that copy counts."""
    return await store_files(gateway, await calling_node(gateway, peer_of(request.scope)), request)


async def read_input(gateway: Gateway, request: Request) -> Response:
    """Return uploaded items to a node that has a sandbox of that project."""
    node = await calling_node(gateway, peer_of(request.scope))
    project = request.path_params["project"]
    state = (await gateway.views.fresh_log(newest=True)).state
    if not any(b.spec.identity.project == project for b in state.on_node(node)):
        raise ApiError(403, "denied", f"{node} runs nothing of project {project}")
    digest = request.path_params["sha256"]
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise invalid("sha256", digest[:200], "64 hexadecimal digits", "is no SHA-256")
    try:
        data, _ = await gateway.objects.get(input_key(project, digest))
    except NotFoundError:
        raise not_found(f"input {digest} of project {project}") from None
    return Response(data, media_type="application/octet-stream")


def _hosts(binding: Binding, node: str) -> bool:
    """Return whether a node has a copy that counts, or that a move under way leaves behind."""
    return node in {binding.node, binding.kept.node if binding.kept is not None else binding.node}


async def _check_rows(gateway: Gateway, node: str, rows: Sequence[JournalRow]) -> None:
    """Check that rows tell of sandboxes of this node under their own tenant. Raises ApiError 403.

    What the bind log has forgotten (its experiment is gone) is kept without an owner: a tenant's
    history holds what the log confirms, and nothing else.
    """

    def doubtful(state: Bindings) -> list[JournalRow]:
        found = []
        for row in rows:
            binding = state.by_id.get(row.sandbox)
            if row.sandbox and (binding is None or not _hosts(binding, node)):
                found.append(row)
        return found

    state = (await gateway.views.fresh_log()).state
    if doubtful(state):
        state = (await gateway.views.fresh_log(newest=True)).state
    for row in rows:
        binding = state.by_id.get(row.sandbox)
        if binding is None:
            if row.tenant or row.experiment:
                row.body["claimed"] = {"tenant": row.tenant, "experiment": row.experiment}
                row.tenant = row.experiment = ""
            continue
        told = (row.tenant, row.experiment)
        if not _hosts(binding, node) or told != (binding.tenant, binding.spec.identity.experiment):
            raise ApiError(403, "denied", f"{row.sandbox} is no sandbox of {node}, or not so owned")


def _caller(request: Request) -> User:
    """Return who calls, for the audit: what the certificate says."""
    peer = peer_of(request.scope)
    return User(peer.name, tuple(sorted(peer.units))) if peer else User("anonymous")
