"""The controller's internal HTTP API, for gateways only, behind a shared secret."""

import asyncio
import hmac

import structlog
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dsec.api.base import WireModel
from dsec.api.internal import CreatesCall, DumpCall, EndCall, ExtendAsk, LeaseCall, MoveAsk
from dsec.api.wire import ErrorBody
from dsec.controllers.controller import Controller, NotLeadingError
from dsec.controllers.keyed import CallInvalidError
from dsec.journal.bindlog import FencedError
from dsec.world.objects import ObjectStoreError

LARGEST_BODY = 256 << 20
"""Ten thousand creates, each with a large item; the gateway has bounded them before."""


def build_app(controller: Controller, secret: str) -> Starlette:
    """Return the application. Every call but the probes needs `Authorization: Bearer <secret>`.

    Raises ValueError without a secret: an empty one would let everybody in.
    """
    if not secret:
        raise ValueError("the secret between gateways and controllers is empty")

    def refused(request: Request) -> Response | None:
        given = request.headers.get("authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {secret}".encode()):
            return None
        why = "the internal API is for gateways"
        source = request.client.host if request.client else ""
        controller.denied(method=request.method, path=request.url.path, source=source, why=why)
        return _error(403, "denied", why)

    def served(path: str, model: type, act: object) -> Route:
        async def handle(request: Request) -> Response:
            return refused(request) or await _answer(request, model, act)

        return Route(f"/internal/v1/{path}", handle, methods=["POST"])

    async def health(_: Request) -> Response:
        return JSONResponse({"leading": controller.leading, "epoch": controller.epoch})

    return Starlette(
        routes=[
            served("creates", CreatesCall, controller.create),
            served("end", EndCall, controller.end),
            served("extend", ExtendAsk, controller.extend),
            served("move", MoveAsk, controller.move),
            served("leases", LeaseCall, controller.lease),
            served("dump", DumpCall, controller.dump),
            Route("/healthz", health),
            # a candidate is ready, too: it takes over when the leader goes
            Route("/readyz", health),
        ]
    )


async def _answer(request: Request, model: type, act: object) -> Response:
    """Read a call, act on it, and turn what is raised into an answer."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BODY:
            return _error(413, "too-large", f"at most {LARGEST_BODY} bytes")
    try:
        call = model.model_validate_json(bytes(body))  # type: ignore[attr-defined]
    except ValidationError as problem:
        return _error(422, "invalid", str(problem))
    correlation = getattr(call, "correlation_id", "")
    structlog.contextvars.bind_contextvars(correlation=correlation)
    try:
        answer: WireModel = await act(call)  # type: ignore[operator]
    except (NotLeadingError, FencedError, asyncio.CancelledError) as problem:
        if isinstance(problem, asyncio.CancelledError) and not _term_ended():
            raise
        return _error(503, "control-plane", f"no leader answers here: {problem}")
    except ObjectStoreError as problem:
        return _error(503, "control-plane", f"the object store is away: {problem}")
    except CallInvalidError as problem:
        return _error(422, "invalid", str(problem))
    return Response(
        answer.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json"
    )


def _term_ended() -> bool:
    """Tell a cancelled question (the term is over) from a caller that has gone."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def _error(status: int, code: str, message: str) -> Response:
    headers = {"Retry-After": "1"} if status == 503 else {}  # noqa: PLR2004 - HTTP
    return JSONResponse(ErrorBody(code=code, message=message).wire(), status, headers)
