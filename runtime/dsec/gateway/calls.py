"""What surrounds each handler: who calls, may they, correlation, audit, errors, body limits.

A route names its access; the caller is authenticated and authorised before its handler runs. Every
mutating call and every denied one leaves an audit row, durable before the answer is sent.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from ulid import ULID

from dsec.api.mistakes import DocumentError, mistakes_of
from dsec.api.names import dns_name
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, away, invalid, refused_document
from dsec.world.objects import ObjectStoreError
from dsec.world.records import (
    Access,
    RecordConflictError,
    RecordInvalidError,
    RecordNotFoundError,
    RecordsError,
    User,
)

CORRELATION = "X-Dsec-Correlation-Id"
LONGEST_CORRELATION = 64
LONGEST_TOLD = 1024
"""Of a caller's own text, in characters, in an audit row."""
BODY_BYTES = 1 << 20
DOCUMENT_BYTES = 1 << 18
"""Of a task document, in any dialect; a reader has to look at every value of it."""
BATCH_BYTES = 64 << 20
INPUT_BYTES = 256 << 20
READS = frozenset({"get", "list", "watch"})

log = structlog.get_logger()
M = TypeVar("M", bound=BaseModel)


@dataclass(slots=True)
class Call:
    """One authorised request."""

    gateway: Gateway
    request: Request
    user: User
    correlation: str

    def path(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    @property
    def project(self) -> str:
        """The project of the path."""
        return self.path("project")

    def flag(self, name: str) -> bool:
        """Return a boolean of the query string. Raises ApiError for anything else."""
        text = self.request.query_params.get(name, "false")
        if text not in ("true", "false"):
            detail: dict[str, object] = {"path": name, "value": text, "allowed": "true or false"}
            raise ApiError(422, "invalid", f"{name}: must be true or false", [detail])
        return text == "true"

    async def body(self, limit: int, what: str = "the body") -> bytes:
        """Read the body. Raises ApiError 413 above the limit (bytes); `what` names it there."""
        return await read_body(self.request, limit, what)

    async def model(self, model: type[M], limit: int = BODY_BYTES) -> M:
        """Read a body of a type. Raises ApiError with every mistake."""
        return await read_model(self.request, model, limit)


async def read_body(request: Request, limit: int, what: str = "the body") -> bytes:
    """Return a request's body. Raises ApiError 413 above the limit (bytes)."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > limit:
            raise ApiError(413, "too-large", f"{what} may have at most {limit} bytes")
    return bytes(data)


async def read_model(request: Request, model: type[M], limit: int) -> M:
    """Return a body of a type. Raises ApiError with every mistake."""
    try:
        return model.model_validate_json(await read_body(request, limit))
    except ValidationError as problem:
        raise refused_document(DocumentError(mistakes_of(problem))) from problem


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the route table. An empty verb: any authenticated caller."""

    method: str
    path: str
    handler: Handler
    verb: str = ""
    resource: str = ""
    subresource: str = ""
    audited: bool = True

    def access(self, request: Request) -> Access:
        """Return the question for the authoriser."""
        params = request.path_params
        return Access(
            verb=self.verb,
            resource=self.resource,
            subresource=self.subresource,
            namespace=params.get("project", ""),
            name=next((params[key] for key in ("name", "sandbox", "node") if key in params), ""),
        )


def route(gateway: Gateway, api: Api) -> Route:
    """Return the Starlette route of a row."""

    async def endpoint(request: Request) -> Response:
        correlation = correlation_of(gateway, request)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(correlation=correlation)
        started = gateway.clock.monotonic()
        call = Call(gateway, request, User("anonymous"), correlation)
        try:
            call.user = await gateway.authoriser.user(request.headers.get("authorization", ""))
            if api.verb:
                await gateway.authoriser.require(call.user, api.access(request))
            _check_project(request)
            response = await api.handler(call)
        except Exception as problem:
            error = as_error(problem)
            if error.status == 500:  # noqa: PLR2004 - HTTP
                log.exception("request failed", path=request.url.path)
            response = error.response(correlation)
            if error.denial:
                await record_denial(gateway, request, call.user, correlation, error)
        response.headers[CORRELATION] = correlation
        gateway.metrics.seconds.labels(api.path).observe(gateway.clock.monotonic() - started)
        answer = f"{response.status_code // 100}xx"
        gateway.metrics.requests.labels(api.path, api.method, answer).inc()
        try:
            await record(gateway, api, call, response.status_code)
        except ObjectStoreError as problem:
            # no change is confirmed that the audit does not have
            response = away(f"the audit is not written: {problem}").response(correlation)
            response.headers[CORRELATION] = correlation
        return response

    return Route(api.path, endpoint, methods=[api.method])


def _check_project(request: Request) -> None:
    """Let no path of another record hide in a project's name. Raises ApiError 422."""
    project = request.path_params.get("project")
    if project is not None and dns_name(project) != project:
        raise invalid("project", project[:LONGEST_TOLD], "a DNS label", "is no name of a project")


async def record(gateway: Gateway, api: Api, call: Call, status: int) -> None:
    """Write the audit row of a call that was to change something and was not denied."""
    if status in (401, 403) or api.verb in READS or not api.verb or not api.audited:
        return
    request = call.request
    log.info(
        "call", method=request.method, path=request.url.path, user=call.user.name, status=status
    )
    gateway.audit.add(
        "call",
        experiment=request.path_params.get("name", ""),
        sandbox=request.path_params.get("sandbox", ""),
        user=call.user.name,
        groups=list(call.user.groups),
        method=request.method,
        path=request.url.path,
        project=request.path_params.get("project", ""),
        status=status,
        source=request.client.host if request.client else "",
        correlationId=call.correlation,
    )
    await gateway.audit.flush()


async def record_denial(
    gateway: Gateway, request: Request, user: User, correlation: str, error: ApiError
) -> None:
    """Write who was denied what and why; of a flood only a part, with the number of the rest."""
    gateway.metrics.denied.inc()
    source = request.client.host if request.client else ""
    unwritten = gateway.denials.take(f"{user.name}@{source}")
    if unwritten is None:
        return
    gateway.audit.add(
        "denied",
        experiment=request.path_params.get("name", "")[:LONGEST_TOLD],
        sandbox=request.path_params.get("sandbox", "")[:LONGEST_TOLD],
        user=user.name,
        groups=list(user.groups),
        method=request.method,
        path=request.url.path[:LONGEST_TOLD],
        project=request.path_params.get("project", "")[:LONGEST_TOLD],
        why=str(error)[:LONGEST_TOLD],
        status=error.status,
        source=source,
        correlationId=correlation,
        unwritten=unwritten,
    )
    try:
        await gateway.audit.flush()
    except ObjectStoreError as problem:
        # nothing was changed: the denial stands, and its row is stored when the store is back
        log.warning("denial not stored yet", error=str(problem))


_ANSWERS: tuple[tuple[type[Exception], int, str], ...] = (
    (RecordNotFoundError, 404, "not-found"),
    (RecordConflictError, 409, "conflict"),
    (RecordInvalidError, 422, "invalid"),
)


def as_error(problem: Exception) -> ApiError:
    """Return the answer to any failure of a handler."""
    if isinstance(problem, ApiError):
        return problem
    if isinstance(problem, DocumentError):
        return refused_document(problem)
    for kind, status, code in _ANSWERS:
        if isinstance(problem, kind):
            return ApiError(status, code, str(problem))
    if isinstance(problem, RecordsError | ObjectStoreError):
        return away(str(problem))
    return ApiError(500, "internal", "the gateway failed; the log has the correlation id")


def correlation_of(gateway: Gateway, request: Request) -> str:
    """Return the caller's correlation id where it is usable, else a fresh one."""
    given = request.headers.get(CORRELATION, "")
    if (
        given
        and len(given) <= LONGEST_CORRELATION
        and given.isascii()
        and given.replace("-", "").isalnum()
    ):
        return given
    milliseconds = int(gateway.clock.now().timestamp() * 1000)
    raw = milliseconds.to_bytes(6, "big") + gateway.randomness.randbytes(10)
    return str(ULID.from_bytes(raw)).lower()
