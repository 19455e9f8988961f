"""Serving an ASGI application on a socket, inside an event loop that belongs to someone else."""

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from dsec.world.tls import PeerProtocol

GRACE_SECONDS = 2
"""Long polls and streams are cut this long after a stop was asked for."""
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections (30 s): a server that hangs up first loses requests."""


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set, in place of ending the process."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def run_until(work: "asyncio.Future[None]", stop: asyncio.Event) -> None:
    """Wait until work ends by itself, raising what it raised, or until a stop is asked for."""
    stopping = asyncio.ensure_future(stop.wait())
    either: set[asyncio.Future[Any]] = {work, stopping}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        stopping.cancel()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process decides what a signal means."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say when connections are accepted."""
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


class Listener:
    """A bound TCP socket, and later the application that answers on it.

    Binding comes first, so that the port is known before anybody is told of it.
    """

    def __init__(self, host: str, port: int) -> None:
        """Bind; port 0 takes a free one. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self.host = host
        self.port = int(self._socket.getsockname()[1])
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Return IP:PORT, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self, app: ASGIApp, tls: ssl.SSLContext | None = None) -> None:
        """Serve until `close`; returns once connections are accepted."""
        config = uvicorn.Config(
            app,
            http=PeerProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            ssl_context_factory=(lambda _config, _default: tls) if tls is not None else None,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            await self._task

    async def close(self) -> None:
        """Stop to accept, cut what is open after the grace, release the port. Idempotent."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._server = self._task = None
        self._socket.close()
