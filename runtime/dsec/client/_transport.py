"""Calls over HTTP: credentials, correlation ids, typed errors and the rule of what may be repeated.

A call is *repeatable* when sending it twice is the same as sending it once: every read, and every
write that carries a key, a digest or a name chosen by the caller. Only those are sent again after
an unknown outcome. What never reached a server, or was refused for now, is always sent again.
"""

import ssl
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
from pydantic import ValidationError
from ulid import ULID

from dsec.api.wire import ErrorBody
from dsec.client._retry import persist
from dsec.client.context import Context
from dsec.client.errors import (
    BusyError,
    ConflictError,
    DeniedError,
    DsecError,
    InvalidError,
    NotFoundError,
    ServerError,
    UnknownOutcomeError,
    UnreachableError,
)

CORRELATION_HEADER = "X-Dsec-Correlation-Id"

CALL_TIMEOUT = 30.0
"""Seconds for one try; the gateway answers within ten, the rest is for a slow machine."""

PATIENCE = 45.0
"""Seconds in which a call is tried again: four times the ten that a new leader may need."""

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_PLAIN: dict[int, type[DsecError]] = {
    httpx2.codes.UNAUTHORIZED: DeniedError,
    httpx2.codes.FORBIDDEN: DeniedError,
    httpx2.codes.NOT_FOUND: NotFoundError,
    httpx2.codes.CONFLICT: ConflictError,
}
_LOOPBACK = ("127.", "localhost", "[::1]")
_TRUST_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: reading the machine's certificates takes longer than most commands."""


def _trust(ca_file: str) -> ssl.SSLContext:
    """Return what to verify a server with: this file, or the machine's own store."""
    return ssl.create_default_context(cafile=ca_file or None)


def new_id() -> str:
    """Return a fresh identifier for keys and correlation: 26 lower-case letters and digits."""
    return str(ULID()).lower()


class Transport:
    """One server and one credential. Owned by a client, which opens and closes it.

    `inner` replaces the network, for tests and for a gateway in the same process.
    """

    def __init__(
        self,
        context: Context,
        *,
        timeout: float = CALL_TIMEOUT,
        patience: float = PATIENCE,
        inner: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._context = context.checked()
        self._patience = patience
        url = urlsplit(context.server)
        headers = {"Authorization": f"Bearer {context.api_key}"} if context.api_key else {}
        self._http = httpx2.AsyncClient(
            base_url=context.server,
            headers=headers,
            timeout=httpx2.Timeout(timeout, pool=None),
            verify=_trust(context.ca_file) if url.scheme == "https" else _TRUST_NOBODY,
            transport=inner,
            # a proxy cannot reach this machine's own loopback
            trust_env=not url.netloc.startswith(_LOOPBACK),
        )

    async def close(self) -> None:
        """Close the pooled connections."""
        await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        repeatable: bool | None = None,
        keys: list[str] | None = None,
    ) -> httpx2.Response:
        """Send a request, again where that is safe, and return the successful answer.

        `repeatable` is by default true for GET, PUT and DELETE. Raises the errors of
        `dsec.client.errors`; an unknown outcome names the `keys` to ask about.
        """
        if repeatable is None:
            repeatable = method in {"GET", "PUT", "DELETE"}
        correlation = new_id()

        def again(error: DsecError) -> bool:
            if isinstance(error, BusyError | UnreachableError):
                return True
            return repeatable and isinstance(error, UnknownOutcomeError | ServerError)

        async def attempt() -> httpx2.Response:
            return await self.once(
                method,
                path,
                correlation=correlation,
                params=params,
                json=json,
                content=content,
                keys=keys,
            )

        return await persist(attempt, again, what=f"{method} {path}", patience=self._patience)

    async def once(
        self,
        method: str,
        path: str,
        *,
        correlation: str = "",
        params: dict[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        keys: list[str] | None = None,
    ) -> httpx2.Response:
        """Send a request a single time. Raises as `call` does."""
        correlation = correlation or new_id()
        try:
            response = await self._http.request(
                method,
                path,
                params=params,
                json=json,
                content=content,
                headers={CORRELATION_HEADER: correlation},
            )
        except httpx2.HTTPError as error:
            raise self._silent(error, method, path, correlation, keys or []) from error
        if response.is_success:
            return response
        raise error_of(response, reading=method == "GET", keys=keys or [])

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        media_type: str = "",
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a streamed answer and yield its bytes. Never sent twice, but connected again.

        There is no timeout between bytes: a command may be silent for as long as it runs.
        """
        correlation = new_id()
        headers = {CORRELATION_HEADER: correlation}
        if media_type and content is not None:
            headers["Content-Type"] = media_type
        timeout = httpx2.Timeout(CALL_TIMEOUT, read=None, write=None, pool=None)

        async def opened() -> httpx2.Response:
            request = self._http.build_request(
                method, path, params=params, content=content, headers=headers, timeout=timeout
            )
            try:
                response = await self._http.send(request, stream=True)
                if not response.is_success:
                    await response.aread()
            except httpx2.HTTPError as error:
                raise self._silent(error, method, path, correlation, []) from error
            if not response.is_success:
                raise error_of(response, reading=method == "GET", keys=[])
            return response

        response = await persist(
            opened,
            lambda error: isinstance(error, UnreachableError),
            what=f"{method} {path}",
            patience=self._patience,
        )
        try:
            yield response.aiter_bytes()
        except httpx2.HTTPError as error:
            raise self._silent(error, method, path, correlation, []) from error
        finally:
            await response.aclose()

    def _silent(
        self, error: httpx2.HTTPError, method: str, path: str, correlation: str, keys: list[str]
    ) -> DsecError:
        """Tell a request that never left from one whose answer is missing."""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, (*_NOT_SENT, httpx2.UnsupportedProtocol)):
            return UnreachableError(
                f"{self._context.server} cannot be reached ({what}); nothing was changed",
                correlation_id=correlation,
                code="unreachable",
            )
        if method == "GET":
            return UnreachableError(
                f"{self._context.server} did not answer {path} ({what})",
                correlation_id=correlation,
                code="unreachable",
            )
        return UnknownOutcomeError(
            f"no answer to {method} {path} ({what}); it may or may not have taken effect",
            keys=keys,
            correlation_id=correlation,
        )


def error_of(response: httpx2.Response, *, reading: bool, keys: list[str]) -> DsecError:
    """Turn an answer that is no success into its typed error."""
    body = _body(response)
    status = response.status_code
    about = {"correlation_id": body.correlation_id, "code": body.code}
    if status in _PLAIN:
        return _PLAIN[status](body.message, **about)
    if status in {httpx2.codes.TOO_MANY_REQUESTS, httpx2.codes.SERVICE_UNAVAILABLE}:
        return BusyError(body.message, retry_after=_retry_after(response), **about)
    if status < httpx2.codes.INTERNAL_SERVER_ERROR:
        return InvalidError(body.message, details=body.details, **about)
    if reading:
        return ServerError(body.message, **about)
    return UnknownOutcomeError(
        f"{body.message}; it may or may not have taken effect",
        keys=keys,
        correlation_id=body.correlation_id,
    )


def _body(response: httpx2.Response) -> ErrorBody:
    """Read the error; an answer of something that is not dsec gets a plain sentence."""
    try:
        return ErrorBody.model_validate_json(response.content)
    except ValidationError:
        text = response.text.strip().splitlines()
        first = f": {text[0][:200]}" if text else ""
        return ErrorBody(
            code=f"http-{response.status_code}",
            message=f"the server answered {response.status_code} {response.reason_phrase}{first}",
            correlation_id=response.headers.get(CORRELATION_HEADER, ""),
        )


def _retry_after(response: httpx2.Response) -> float | None:
    try:
        return min(max(float(response.headers["Retry-After"]), 0.0), PATIENCE)
    except (KeyError, ValueError):
        return None
