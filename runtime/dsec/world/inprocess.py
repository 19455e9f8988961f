"""A network inside one process: base URLs route to ASGI applications, and messages may be lost.

Used by standalone mode (no faults), by tests and by the simulator. Responses stream: a frame that
the application sends is readable at once, as over a socket.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import httpx2
from starlette.types import ASGIApp

from dsec.world.tls import PEER_KEY, Peer


class Fault(StrEnum):
    """What happens to one request."""

    NONE = "none"
    LOSE_REQUEST = "lose-request"
    """The server never sees it."""
    LOSE_REPLY = "lose-reply"
    """The server acts on it; the caller sees silence."""
    REPEAT = "repeat"
    """The server sees it twice; the caller gets the second answer."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as the fault function sees it."""

    source: str
    method: str
    url: str


def no_faults(_call: Call) -> Fault:
    """Deliver everything."""
    return Fault.NONE


class InProcessNetwork:
    """A Network over a table of applications, keyed by the longest matching URL prefix.

    The table may be shared by many networks, one per caller: `peer` is whom the callee sees.
    """

    def __init__(
        self,
        routes: MutableMapping[str, ASGIApp],
        *,
        peer: Peer | None = None,
        fault: Callable[[Call], Fault] = no_faults,
    ) -> None:
        self.routes = routes
        self.peer = peer
        self.fault = fault

    def client(self, base_url: str, *, timeout: float = 10.0) -> httpx2.AsyncClient:
        """Return a client; a URL that no route serves raises httpx2.ConnectError."""
        return httpx2.AsyncClient(
            base_url=base_url, timeout=timeout, transport=_Transport(self), trust_env=False
        )

    def resolve(self, url: str) -> ASGIApp | None:
        """Return the application whose prefix matches, the longest first."""
        matches = [
            prefix
            for prefix in self.routes
            if url == prefix.rstrip("/") or url.startswith(prefix.rstrip("/") + "/")
        ]
        return self.routes[max(matches, key=len)] if matches else None


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(self, network: InProcessNetwork) -> None:
        self._network = network

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        network = self._network
        app = network.resolve(str(request.url))
        if app is None:
            raise httpx2.ConnectError(f"nothing listens at {request.url}", request=request)
        source = network.peer.name if network.peer else ""
        fault = network.fault(Call(source, request.method, str(request.url)))
        if fault is Fault.LOSE_REQUEST:
            raise httpx2.ReadTimeout("request lost", request=request)
        body = await request.aread()
        if fault in {Fault.LOSE_REPLY, Fault.REPEAT}:
            exchange = _Exchange(app, request, body, network.peer)
            await exchange.drain()
            if fault is Fault.LOSE_REPLY:
                raise httpx2.ReadTimeout("reply lost", request=request)
        exchange = _Exchange(app, request, body, network.peer)
        read_timeout = (request.extensions.get("timeout") or {}).get("read")
        return await exchange.response(read_timeout)


class _Exchange(httpx2.AsyncByteStream):
    """One request being served; also the byte stream of its response."""

    def __init__(
        self, app: ASGIApp, request: httpx2.Request, body: bytes, peer: Peer | None
    ) -> None:
        self._request = request
        self._body: bytes | None = body
        self._events: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue(16)
        self._gone = asyncio.Event()
        self._finished = False
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(key.lower(), value) for key, value in request.headers.raw],
            "server": (request.url.host, request.url.port),
            "client": ("127.0.0.1", 0),
            "extensions": {PEER_KEY: peer} if peer else {},
            "state": {},
        }
        self._task = asyncio.create_task(self._serve(app, scope))

    async def _serve(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, cast("Any", self._send))
        except Exception as error:  # noqa: BLE001 - a crash of the server is a broken connection
            await self._events.put(error)
        else:
            await self._events.put(None)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self._events.put(dict(message))

    async def _next(self) -> dict[str, Any] | None:
        event = await self._events.get()
        if isinstance(event, BaseException):
            self._finished = True
            raise httpx2.RemoteProtocolError(
                f"the server failed: {event!r}", request=self._request
            ) from event
        if event is None:
            self._finished = True
        return event

    async def response(self, limit: float | None) -> httpx2.Response:
        """Wait for the head of the response, at most that many seconds."""
        try:
            async with asyncio.timeout(limit):
                head = await self._next()
        except TimeoutError as error:
            await self.aclose()
            raise httpx2.ReadTimeout("no reply in time", request=self._request) from error
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if head is None:
            raise httpx2.RemoteProtocolError("no response", request=self._request)
        return httpx2.Response(
            head["status"],
            headers=list(head.get("headers", [])),
            stream=self,
            request=self._request,
        )

    async def drain(self) -> None:
        """Let the server finish and throw its answer away."""
        with contextlib.suppress(httpx2.TransportError):
            while await self._next() is not None:
                pass

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._finished and (event := await self._next()) is not None:
            if body := event.get("body", b""):
                yield body

    async def aclose(self) -> None:
        """Hang up: the application sees a disconnect, and is cancelled if it goes on."""
        self._gone.set()
        if not self._task.done():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
