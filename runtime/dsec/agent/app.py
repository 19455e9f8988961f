"""The agent's HTTP API, one application for any number of nodes, each below /n/<node>/v1.

Callers are known by their client certificate (role dsec-controller or dsec-gateway); exec and logs
need the gateway's capability for that very sandbox besides. Bodies are bounded before they are
read. Errors are ErrorBody with a stable code.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TypeVar

import structlog
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dsec.agent import capability
from dsec.agent.agent import (
    Agent,
    CannotPauseError,
    CannotResumeError,
    NoRoomError,
    NotRunningError,
    UnknownSandboxError,
)
from dsec.agent.core import StaleEpochError
from dsec.agent.entry import Stop
from dsec.agent.snapshot_taking import SnapshotFailedError
from dsec.agent.spool import SpoolError
from dsec.agent.state import StateError
from dsec.api import frames
from dsec.api.reasons import EndReason
from dsec.api.snapshot import SnapshotAnswer, SnapshotCall
from dsec.api.wire import (
    AckCall,
    CreateAnswers,
    CreateCall,
    EpochCall,
    ErrorBody,
    PauseCall,
    RunUntilCall,
    StopCall,
)
from dsec.world.substrate import Chunk, ExecRequest, SubstrateError
from dsec.world.tls import CONTROLLER, GATEWAY, peer_of

CALL_BYTES = 64 << 20
"""Largest create call: 2,000 specs with a line of a batch each."""
STDIN_BYTES = 16 << 20
"""Input of one exec is held in memory until its command is started."""
LONGEST_WAIT = 60.0
CORRELATION = "x-dsec-correlation-id"
_DENIED = 403
_LONGEST_TOLD = 1024
"""Characters of a caller's path in a row of the journal."""

_ANSWERS: tuple[tuple[type[Exception], int, str], ...] = (
    (StaleEpochError, 409, "stale-epoch"),
    (NotRunningError, 409, "not-running"),
    (CannotPauseError, 409, "cannot-pause"),
    (CannotResumeError, 409, "cannot-resume"),
    (NoRoomError, 409, "capacity"),
    (capability.CapabilityError, 403, "denied"),
    (SpoolError, 503, "disk"),
    (StateError, 503, "disk"),
)
_SNAPSHOT_STATUS = {"away": 503, "invalid": 400, "failed": 500}
_log = structlog.get_logger(__name__)
M = TypeVar("M", bound=BaseModel)


class ApiError(Exception):
    """An answer that is not a success."""

    def __init__(
        self, status: int, code: str, message: str, details: list[dict[str, object]] | None = None
    ) -> None:
        """Keep what the answer says."""
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(code=code, message=message, details=details or [])


class Node(BaseModel):
    """What the application knows of one node besides its agent."""

    model_config = {"arbitrary_types_allowed": True}

    agent: Agent
    capability_key_pem: str = ""


Nodes = Mapping[str, Node]
Handler = Callable[[Request, Node], Awaitable[Response]]


def make_app(nodes: Nodes) -> Starlette:
    """Return the application over a table that may change while it serves.

    Mount it at the root: endpoints are <base>/n/<node>.
    """

    def at(
        path: str, method: str, handler: Handler, roles: tuple[str, ...] = (CONTROLLER, GATEWAY)
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answer(request, nodes, handler, roles)

        return Route("/n/{node}/v1/" + path, endpoint, methods=[method])

    return Starlette(
        routes=[
            at("state", "GET", _state),
            at("use", "GET", _use),
            at("sandboxes", "POST", _create),
            at("stop", "POST", _stop),
            at("ack", "POST", _ack),
            at("epoch", "POST", _epoch),
            at("run-until", "POST", _run_until, (CONTROLLER,)),
            at("sandboxes/{id}/pause", "POST", _pause),
            at("sandboxes/{id}/resume", "POST", _resume),
            at("sandboxes/{id}/snapshot", "POST", _snapshot),
            at("sandboxes/{id}/exec", "POST", _exec, (GATEWAY,)),
            at("sandboxes/{id}/logs", "GET", _logs, (GATEWAY,)),
        ]
    )


# ---------------------------------------------------------------------- handlers


async def _state(request: Request, node: Node) -> Response:
    agent = node.agent
    since = _number(request, "since", 0)
    wait = min(_number(request, "wait", 0), LONGEST_WAIT)
    beat = int(_number(request, "beat", -1)) if "beat" in request.query_params else None
    if request.query_params.get("boot", agent.boot_id) != agent.boot_id:
        since = -1
    state = await agent.state(int(since), wait, beat)
    return _json(state)


async def _use(_: Request, node: Node) -> Response:
    return _json(await node.agent.use())


async def _create(request: Request, node: Node) -> Response:
    call = await _body(request, CreateCall)
    node.agent.see_epoch(call.epoch)
    if call.before is not None and node.agent.clock.now() > call.before:
        raise ApiError(409, "late", f"this call was for a start before {call.before.isoformat()}")
    return _json(CreateAnswers(answers=await node.agent.create(call.specs)))


async def _stop(request: Request, node: Node) -> Response:
    call = await _body(request, StopCall)
    if call.reason not in set(EndReason):
        allowed = [reason.value for reason in EndReason]
        detail: dict[str, object] = {"path": "reason", "value": call.reason, "allowed": allowed}
        raise ApiError(400, "invalid", f"reason {call.reason!r} is no end reason", [detail])
    node.agent.see_epoch(call.epoch)
    stop = Stop(EndReason(call.reason), call.message, max(0.0, call.grace_seconds))
    await node.agent.stop(call.ids, stop)
    return _json(EpochCall(epoch=node.agent.core.epoch))


async def _ack(request: Request, node: Node) -> Response:
    call = await _body(request, AckCall)
    node.agent.see_epoch(call.epoch)
    await node.agent.acknowledge(call.ids)
    return _json(EpochCall(epoch=node.agent.core.epoch))


async def _epoch(request: Request, node: Node) -> Response:
    node.agent.see_epoch((await _body(request, EpochCall)).epoch)
    return _json(EpochCall(epoch=node.agent.core.epoch))


async def _run_until(request: Request, node: Node) -> Response:
    call = await _body(request, RunUntilCall)
    node.agent.see_epoch(call.epoch)
    return _json(node.agent.extend(call))


async def _pause(request: Request, node: Node) -> Response:
    call = await _body(request, PauseCall)
    node.agent.see_epoch(call.epoch)
    await node.agent.pause(request.path_params["id"], call.message)
    return _json(EpochCall(epoch=node.agent.core.epoch))


async def _resume(request: Request, node: Node) -> Response:
    node.agent.see_epoch((await _body(request, EpochCall)).epoch)
    await node.agent.resume(request.path_params["id"])
    return _json(EpochCall(epoch=node.agent.core.epoch))


async def _snapshot(request: Request, node: Node) -> Response:
    call = await _body(request, SnapshotCall)
    node.agent.see_epoch(call.epoch)
    sandbox_id = request.path_params["id"]
    try:
        ref = await node.agent.snapshot(sandbox_id, call.kind, reason=call.reason, hold=call.hold)
    except SnapshotFailedError as error:
        status = _SNAPSHOT_STATUS.get(error.code, 409)
        raise ApiError(status, f"snapshot-{error.code}", str(error)) from error
    return _json(SnapshotAnswer(epoch=node.agent.core.epoch, ref=ref))


async def _exec(request: Request, node: Node) -> Response:
    sandbox_id = request.path_params["id"]
    _authorise(request, node, sandbox_id, "exec")
    call, stdin = await _exec_call(request)
    command = ExecRequest(
        command=tuple(call.command),
        env=call.env,
        workdir=call.workdir,
        user=call.user,
        stdin=stdin,
        timeout=call.timeout,
        output_cap=call.output_cap,
    )
    chunks = node.agent.exec(sandbox_id, command)
    return StreamingResponse(_framed(chunks, ends=True), media_type=frames.MEDIA_TYPE)


async def _logs(request: Request, node: Node) -> Response:
    sandbox_id = request.path_params["id"]
    _authorise(request, node, sandbox_id, "logs")
    follow = request.query_params.get("follow", "false") in {"1", "true"}
    chunks = node.agent.logs(sandbox_id, follow=follow)
    return StreamingResponse(_framed(chunks, ends=False), media_type=frames.MEDIA_TYPE)


# ---------------------------------------------------------------------- parts


async def _answer(
    request: Request, nodes: Nodes, handler: Handler, roles: tuple[str, ...]
) -> Response:
    """Authenticate, call the handler and turn what it raises into an answer."""
    try:
        response = await handler(request, _node(request, nodes, roles))
    except Exception as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        if refusal.status_code == _DENIED:
            _note_denial(request, nodes, error)
        response = refusal
    if correlation := request.headers.get(CORRELATION, ""):
        response.headers[CORRELATION] = correlation
    return response


def _node(request: Request, nodes: Nodes, roles: tuple[str, ...]) -> Node:
    """Return the node that is called, if the caller's certificate has one of the roles."""
    peer = peer_of(request.scope)
    if peer is None or not peer.acts_as(*roles):
        who = peer.name if peer else "a caller without certificate"
        raise ApiError(403, "denied", f"{who} may not call this; {' or '.join(roles)} may")
    name = request.path_params["node"]
    if (node := nodes.get(name)) is None:
        raise ApiError(404, "not-found", f"no node {name} here")
    return node


def _note_denial(request: Request, nodes: Nodes, error: Exception) -> None:
    """Have the node that was called write who was denied what."""
    peer = peer_of(request.scope)
    if (node := nodes.get(request.path_params["node"])) is not None:
        path = request.url.path[:_LONGEST_TOLD]
        user = peer.name if peer else "anonymous"
        node.agent.denied(user=user, method=request.method, path=path, why=str(error))


def _refusal(error: Exception) -> Response | None:
    """Return the answer for an expected error; None for a bug."""
    if isinstance(error, ApiError):
        return _json(error.body, error.status)
    if isinstance(error, UnknownSandboxError):
        return _error(404, "not-found", f"no sandbox {error} on this node")
    if isinstance(error, SubstrateError):
        return _error(500, error.reason, error)
    for kind, status, code in _ANSWERS:
        if isinstance(error, kind):
            return _error(status, code, error)
    return None


def _authorise(request: Request, node: Node, sandbox_id: str, verb: str) -> None:
    token = request.headers.get(capability.HEADER, "")
    if not token:
        raise ApiError(403, "denied", f"header {capability.HEADER} is missing")
    grant = capability.verify(token, node.capability_key_pem, node.agent.clock.now())
    entry = node.agent.core.get(sandbox_id)
    if entry is None:
        raise UnknownSandboxError(sandbox_id)
    identity = entry.spec.identity
    capability.check(grant, identity, verb)
    _log.info(
        f"sandbox {verb}",
        sandbox=sandbox_id,
        correlation=identity.correlation_id,
        call=request.headers.get(CORRELATION, ""),
    )


async def _body(request: Request, model: type[M]) -> M:
    """Read a JSON body of bounded size. Raises ApiError with every mistake."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > CALL_BYTES:
            raise ApiError(413, "too-large", f"a body may have {CALL_BYTES} bytes")
    try:
        return model.model_validate_json(bytes(data))
    except ValidationError as error:
        details: list[dict[str, object]] = [
            {
                "path": ".".join(map(str, mistake["loc"])),
                "value": repr(mistake["input"])[:200],
                "message": mistake["msg"],
            }
            for mistake in error.errors()
        ]
        raise ApiError(400, "invalid", "the body is not valid", details) from error


async def _exec_call(request: Request) -> tuple[frames.ExecCall, bytes]:
    """Read the frames of an exec request up to the end of input. Raises ApiError."""
    decoder, call, stdin = frames.Decoder(), None, bytearray()
    try:
        async for piece in request.stream():
            for frame in decoder.feed(piece):
                if call is None and frame.type is frames.FrameType.REQUEST:
                    call = frames.ExecCall.model_validate_json(frame.payload)
                elif call is not None and frame.type is frames.FrameType.STDIN:
                    stdin += frame.payload
                else:
                    raise ApiError(400, "invalid", f"a {frame.type.name} frame has no place here")
            if len(stdin) > STDIN_BYTES:
                raise ApiError(413, "too-large", f"input may have {STDIN_BYTES} bytes")
    except (frames.FrameError, ValidationError) as error:
        raise ApiError(400, "invalid", f"exec request: {error}") from error
    if call is None or decoder.pending:
        raise ApiError(400, "invalid", "exec request: the stream ends within a frame")
    return call, bytes(stdin)


async def _framed(chunks: AsyncIterator[Chunk], *, ends: bool) -> AsyncIterator[bytes]:
    """Turn chunks into frames. Logs end with an END frame of their own; execs with the command's.

    A substrate that fails under way cuts the stream: the outcome is then unknown, as it must be.
    """
    ended = False
    try:
        async for chunk in chunks:
            if chunk.data:
                stderr = chunk.stream == "stderr"
                kind = frames.FrameType.STDERR if stderr else frames.FrameType.STDOUT
                for frame in frames.encode_all(kind, chunk.data):
                    yield frame
            if _is_end(chunk):
                ended = True
                yield frames.encode_end(_end_of(chunk))
    except SubstrateError as error:
        _log.warning("stream cut", error=str(error))
        return
    if not ends and not ended:
        yield frames.encode_end(frames.ExecEnd())


def _is_end(chunk: Chunk) -> bool:
    return chunk.exit_code is not None or chunk.signal is not None or bool(chunk.reason)


def _end_of(chunk: Chunk) -> frames.ExecEnd:
    values = asdict(chunk)
    return frames.ExecEnd(**{name: values[name] for name in frames.ExecEnd.model_fields})


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    try:
        return default if text is None else float(text)
    except ValueError as error:
        detail: dict[str, object] = {"path": name, "value": text, "allowed": "a number"}
        raise ApiError(400, "invalid", f"{name}: {text!r} is no number", [detail]) from error


def _json(model: BaseModel, status: int = 200) -> Response:
    body = model.model_dump_json(by_alias=True, exclude_none=True)
    return Response(body, status, media_type="application/json")


def _error(status: int, code: str, message: object) -> Response:
    return _json(ErrorBody(code=code, message=str(message)), status)
