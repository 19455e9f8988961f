"""What agents call: register, journal, artifacts, inputs. The caller is its client certificate.

An agent holds no credential of any store: the gateway writes for it, after it has checked that the
sandbox is bound to that very node. A copy that does not count is told `fenced` and changes nothing.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dsec.api.meta import API_VERSION
from dsec.api.mistakes import DocumentError, mistakes_of
from dsec.api.records import SandboxNode
from dsec.api.wire import PROTOCOL, JournalPush, NodeAdmission, NodeRegistration
from dsec.gateway.ca import RequestError
from dsec.gateway.calls import CORRELATION, as_error, correlation_of
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, not_found, refused_document
from dsec.journal.history import store
from dsec.journal.inputs import input_key
from dsec.world.objects import NotFoundError, PreconditionError
from dsec.world.records import Record, RecordConflictError, RecordNotFoundError
from dsec.world.tls import AGENT, peer_of

REGISTRATION_BYTES = 1 << 20
JOURNAL_BYTES = 64 << 20
ARTIFACT_BYTES = 1 << 30
DIRECT = "-"
TOKEN_AUDIENCE = "dsec"  # noqa: S105 - the audience of a token, not a token
NODE_EXTRA = "authentication.kubernetes.io/node-name"
ATTEMPTS = 4

log = structlog.get_logger()
M = TypeVar("M", bound=BaseModel)


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
                if error.status in (401, 403):
                    await _audit(gateway, request, str(error))
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
        at("GET", "inputs/{project}/{sha256}", read_input),
    ]


async def register(gateway: Gateway, request: Request) -> Response:
    """Admit a node: by its certificate, else by a token that vouches for its name."""
    asked = await _model(request, NodeRegistration, REGISTRATION_BYTES)
    if abs(asked.protocol - PROTOCOL) > 1:
        raise ApiError(
            422, "protocol", f"protocol {asked.protocol}; {PROTOCOL} and its neighbours are served"
        )
    peer = peer_of(request.scope)
    if peer is None or not peer.acts_as(AGENT):
        await _by_token(gateway, request, asked)
    elif peer.name != asked.name:
        raise ApiError(403, "denied", f"the certificate is {peer.name}'s, not {asked.name}'s")
    now = gateway.clock.now()
    await _record_node(gateway, asked)
    admission = NodeAdmission(
        epoch=await _epoch(gateway),
        ca_pem=gateway.ca.ca_pem,
        clock_offset_seconds=(asked.utc - now).total_seconds(),
        capability_public_key_pem=gateway.ca.capability_public_pem,
    )
    if asked.csr_pem:
        try:
            signed = gateway.ca.sign(asked.csr_pem, asked.name, now)
        except RequestError as problem:
            raise ApiError(422, "invalid", f"csrPem: {problem}") from problem
        admission.certificate_pem, admission.expires = signed
        log.info("certificate signed", node=asked.name, expires=str(admission.expires))
    return JSONResponse(admission.wire())


async def journal(gateway: Gateway, request: Request) -> Response:
    """Store rows of the calling node; repeats are harmless."""
    node = _node(request)
    push = await _model(request, JournalPush, JOURNAL_BYTES)
    foreign = [row.seq for row in push.rows if row.node != node or row.boot_id != push.boot_id]
    if push.node != node or foreign:
        raise ApiError(403, "denied", f"{node} may write rows of its own only")
    for row in push.rows:
        row.region = gateway.config.region
    await store(gateway.objects, push.rows)
    gateway.metrics.rows.inc(len(push.rows))
    return JSONResponse({"rows": len(push.rows)})


async def artifact(gateway: Gateway, request: Request) -> Response:
    """Store one file of a sandbox's scene, if that copy counts."""
    node, params = _node(request), request.path_params
    sandbox, path = params["sandbox"], params["path"]
    data = await _body(request, ARTIFACT_BYTES)
    # the newest state of the log decides: an old copy must not slip in between
    state = (await gateway.views.fresh_log(newest=True)).state
    binding = state.by_id.get(sandbox)
    if binding is None:
        raise ApiError(409, "fenced", f"{sandbox} is not known: nothing of it is taken")
    identity = binding.spec.identity
    place = (identity.project, identity.experiment or DIRECT)
    if place != (params["project"], params["experiment"]):
        raise ApiError(403, "denied", f"{sandbox} is not of {params['project']}")
    if not state.effective(sandbox, node):
        raise ApiError(409, "fenced", f"{sandbox} is not bound to {node}, or has ended")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ApiError(422, "invalid", f"path {path!r} is not a plain relative path")
    key = f"artifacts/{place[0]}/{place[1]}/{sandbox}/{path}"
    await gateway.objects.put(key, data)
    return JSONResponse({"key": key, "size": len(data)})


async def read_input(gateway: Gateway, request: Request) -> Response:
    """Return uploaded items to a node that has a sandbox of that project."""
    node, project = _node(request), request.path_params["project"]
    state = (await gateway.views.fresh_log(newest=True)).state
    if not any(b.spec.identity.project == project for b in state.on_node(node)):
        raise ApiError(403, "denied", f"{node} runs nothing of project {project}")
    digest = request.path_params["sha256"]
    try:
        data, _ = await gateway.objects.get(input_key(project, digest))
    except NotFoundError:
        raise not_found(f"input {digest} of project {project}") from None
    return Response(data, media_type="application/octet-stream")


def _node(request: Request) -> str:
    """Return the node that the client certificate names. Raises ApiError 401, 403."""
    peer = peer_of(request.scope)
    if peer is None:
        raise ApiError(401, "unauthenticated", "agents call with their client certificate")
    if not peer.acts_as(AGENT):
        raise ApiError(403, "denied", f"{peer.name} is no agent")
    return peer.name


async def _by_token(gateway: Gateway, request: Request, asked: NodeRegistration) -> None:
    """Check the bearer token of a node without certificate. Raises ApiError 401, 403."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise ApiError(401, "unauthenticated", "a new node needs a join token or a pod's token")
    secret = gateway.config.join_secret
    if secret and hmac.compare_digest(token.encode(), secret.encode()):
        return
    joined = gateway.ca.read_join_token(token, gateway.clock.now())
    if joined is not None:
        await _spend(gateway, joined[0], asked.name)
        return
    user = await gateway.records.authenticate(token, TOKEN_AUDIENCE)
    if user is None:
        raise ApiError(401, "unauthenticated", "the token is not valid")
    if user.name != gateway.config.agent_account:
        raise ApiError(403, "denied", f"{user.name} may not register nodes")
    bound = user.extra.get(NODE_EXTRA, ())
    if bound and asked.name not in bound:
        raise ApiError(403, "denied", f"the token is of node {bound[0]}, not {asked.name}")
    if not bound and not asked.inventory.simulated:
        raise ApiError(403, "denied", "a token that names no node admits simulated nodes only")


async def _spend(gateway: Gateway, number: str, node: str) -> None:
    """Use up a join token; the same node may repeat its call. Raises ApiError 403."""
    key = f"join-tokens/{hashlib.sha256(number.encode()).hexdigest()}"
    try:
        await gateway.objects.put_if_absent(key, node.encode())
    except PreconditionError:
        owner, _ = await gateway.objects.get(key)
        if owner.decode() != node:
            raise ApiError(403, "denied", "the join token has been used") from None


async def _record_node(gateway: Gateway, asked: NodeRegistration) -> None:
    """Write the SandboxNode record, if it says something new. Raises ApiError 409."""
    records = gateway.records
    for attempt in range(ATTEMPTS):
        try:
            record = await records.get("SandboxNode", asked.name)
        except RecordNotFoundError:
            record = await _create_node(gateway, asked)
        fresh = _registered(record, asked, gateway)
        if fresh is None:
            return
        try:
            await records.replace_status(fresh)
        except RecordConflictError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            log.info("node registered", node=asked.name, endpoint=asked.endpoint)
            return


async def _create_node(gateway: Gateway, asked: NodeRegistration) -> Record:
    spec: dict[str, object] = {"labels": asked.labels}
    if asked.pool:
        spec["pool"] = asked.pool
    body = {
        "apiVersion": API_VERSION,
        "kind": "SandboxNode",
        "metadata": {"name": asked.name},
        "spec": spec,
    }
    try:
        return await gateway.records.create(body)
    except RecordConflictError:
        return await gateway.records.get("SandboxNode", asked.name)


def _registered(record: Record, asked: NodeRegistration, gateway: Gateway) -> Record | None:
    """Return the record with the registration in its status, or None where nothing changes."""
    node = SandboxNode.model_validate(record)
    status = node.status
    if status.uid and status.uid != asked.uid and status.endpoint:
        last = status.last_seen
        recent = last is not None and (gateway.clock.now() - last).total_seconds() < 60  # noqa: PLR2004 - a minute
        if recent and status.incarnation > asked.incarnation:
            raise ApiError(409, "conflict", f"another machine is registered as {asked.name}")
    told = {
        "uid": asked.uid,
        "endpoint": asked.endpoint,
        "boot_id": asked.boot_id,
        "incarnation": asked.incarnation,
        "inventory": asked.inventory,
    }
    if all(getattr(status, name) == value for name, value in told.items()):
        return None
    status = status.model_copy(update={**told, "last_seen": gateway.clock.now()})
    body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**record, "status": body}


async def _epoch(gateway: Gateway) -> int:
    try:
        return await gateway.leader.epoch()
    except ApiError:
        # no leader yet: the agent learns the epoch from the first call of one
        return 0


async def _body(request: Request, limit: int) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > limit:
            raise ApiError(413, "too-large", f"the body may have at most {limit} bytes")
    return bytes(data)


async def _model(request: Request, model: type[M], limit: int) -> M:
    try:
        return model.model_validate_json(await _body(request, limit))
    except ValidationError as problem:
        raise refused_document(DocumentError(mistakes_of(problem))) from problem


async def _audit(gateway: Gateway, request: Request, why: str) -> None:
    peer = peer_of(request.scope)
    gateway.audit.add(
        "denied",
        user=peer.name if peer else "anonymous",
        method=request.method,
        path=request.url.path,
        why=why,
    )
    await gateway.audit.flush()
