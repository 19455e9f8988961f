"""The agent's side of the socket of dsec-init: orders out, output and ends in.

Frame: kind u8, id u32, length u32 (big endian), payload; the Rust side has the same numbers.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from dsec.api.wire import ErrorBody

_log = structlog.get_logger(__name__)
START, EXEC, KILL, STOP, ARM, FORWARDS, ANSWER = 1, 2, 3, 4, 5, 6, 7
READY, STDOUT, STDERR, EXIT, HEARTBEAT, END, NOTE, CALL = 16, 17, 18, 19, 20, 21, 22, 23
CALLS_SINCE = 2
"""Version of an init that passes calls of programs on."""
MOST_CALLS = 8
"""Calls of one sandbox at once, as on the Rust side."""
MOST_ANSWER = 4 << 20
"""Bytes of one answer: init holds it, outside of the sandbox's memory limit."""
_HEADER = struct.Struct(">BII")
_MAX_BUFFERED = 16 << 20
MOST_PAYLOAD = 64 << 20
"""Bytes of one frame, as on the Rust side: a guest that took init over cannot fill the agent."""


OnCall = Callable[[str, str, bytes], Awaitable[tuple[int, bytes]]]
"""From method, path and body of a program's call to status and JSON body of its answer."""


class LinkClosedError(Exception):
    """The connection to init ended."""


def bind_listener(directory: Path, name: str) -> socket.socket:
    """Bind and listen on a Unix socket in a directory, however long its path is."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{fd}/{name}")
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(fd)
    return listener


@dataclass(slots=True)
class ExecStream:
    """What init says about one exec: (kind, payload) in order; None when the link is lost."""

    queue: asyncio.Queue[tuple[int, bytes] | None] = field(default_factory=asyncio.Queue)
    buffered: int = 0
    drained: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, item: tuple[int, bytes] | None) -> None:
        """Append; `buffered` counts the payload bytes that nobody has taken yet."""
        self.buffered += len(item[1]) if item else 0
        self.queue.put_nowait(item)

    async def get(self) -> tuple[int, bytes] | None:
        """Wait for the next item."""
        item = await self.queue.get()
        self.buffered -= len(item[1]) if item else 0
        if self.buffered < _MAX_BUFFERED:
            self.drained.set()
        return item


class InitLink:
    """One connection to one init."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_heartbeat: Callable[[dict[str, object]], None],
        on_call: OnCall | None = None,
    ) -> None:
        """Take over a fresh connection; `connect` makes one."""
        self._reader = reader
        self._writer = writer
        self._on_heartbeat = on_heartbeat
        self._on_call = on_call
        self._calls: set[asyncio.Task[None]] = set()
        self._streams: dict[int, ExecStream] = {}
        # ids of an earlier agent process may still be in use by init
        self._next_id = int.from_bytes(os.urandom(3), "big") + 1
        self.ready: dict[str, object] = {}
        self.end: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        directory: Path,
        name: str,
        on_heartbeat: Callable[[dict[str, object]], None],
        on_call: OnCall | None = None,
    ) -> "InitLink":
        """Connect and wait for init's first words. Raises OSError, LinkClosedError.

        Without `on_call`, programs are told that this node passes no calls on.
        """
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            path = f"/proc/self/fd/{fd}/{name}"
            reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
        finally:
            os.close(fd)
        link = cls(reader, writer, on_heartbeat, on_call)
        try:
            kind, _, payload = await link._frame()
        except (OSError, asyncio.IncompleteReadError) as error:
            writer.close()
            raise LinkClosedError("init closed the connection") from error
        except LinkClosedError:
            writer.close()
            raise
        if kind != READY:
            writer.close()
            raise LinkClosedError(f"init began with frame kind {kind}")
        link.ready = json.loads(payload)
        version = link.ready.get("version")
        if on_call is not None and isinstance(version, int) and version >= CALLS_SINCE:
            await link.send(FORWARDS)
        link._task = asyncio.create_task(link._read(), name="initlink")
        return link

    async def _frame(self) -> tuple[int, int, bytes]:
        kind, command, length = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
        if length > MOST_PAYLOAD:
            raise LinkClosedError(f"init sent a frame of {length} bytes; {MOST_PAYLOAD} is allowed")
        return kind, command, await self._reader.readexactly(length)

    async def _read(self) -> None:
        try:
            while True:
                kind, command, payload = await self._frame()
                await self._dispatch(kind, command, payload)
        except (OSError, asyncio.IncompleteReadError, json.JSONDecodeError):
            pass
        except LinkClosedError as error:
            _log.warning("link to init closed", error=str(error))
        finally:
            for call in self._calls:
                call.cancel()
            self.closed.set()
            self._news.set()
            for stream in self._streams.values():
                stream.put(None)
            if not self.end.done():
                self.end.set_exception(LinkClosedError("the connection to init ended"))
                self.end.exception()
            self._writer.close()

    async def _dispatch(self, kind: int, command: int, payload: bytes) -> None:
        if kind == HEARTBEAT:
            self._on_heartbeat(json.loads(payload))
        elif kind == CALL and self._on_call is not None:
            task = asyncio.create_task(self._serve(self._on_call, command, payload))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        elif kind == END:
            if not self.end.done():
                self.end.set_result(json.loads(payload))
            self._news.set()
        elif kind == NOTE:
            self._news.set()
        elif (stream := self._streams.get(command)) is not None:
            stream.put((kind, payload))
            while stream.buffered > _MAX_BUFFERED and command in self._streams:
                stream.drained.clear()
                await stream.drained.wait()

    async def _serve(self, on_call: OnCall, call: int, payload: bytes) -> None:
        """Have one call made and send its answer: beside all other frames, which wait for none."""
        status, body = 429, _refusal("busy", f"{MOST_CALLS} calls are on their way already")
        if len(self._calls) <= MOST_CALLS:
            try:
                size = int.from_bytes(payload[:4], "big")
                head = json.loads(payload[4 : 4 + size])
                method, path = str(head["method"]), str(head["path"])
            except (ValueError, TypeError, KeyError):
                status, body = 400, _refusal("invalid", "this is no call")
            else:
                status, body = await on_call(method, path, payload[4 + size :])
        if len(body) > MOST_ANSWER:
            why = f"the answer has {len(body)} bytes; at most {MOST_ANSWER} are given here"
            status, body = 413, _refusal("too-large", why)
        text = json.dumps({"status": status}).encode()
        with contextlib.suppress(LinkClosedError):
            await self.send(ANSWER, call, len(text).to_bytes(4, "big") + text + body)

    async def send(self, kind: int, command: int = 0, payload: bytes = b"") -> None:
        """Send one frame. Raises LinkClosedError."""
        if self.closed.is_set():
            raise LinkClosedError("the connection to init ended")
        try:
            self._writer.write(_HEADER.pack(kind, command, len(payload)) + payload)
            await self._writer.drain()
        except OSError as error:
            raise LinkClosedError("the connection to init ended") from error

    async def order(self, kind: int, command: int, value: dict[str, object], stdin: bytes) -> None:
        """Send START or EXEC: JSON, then the bytes for standard input."""
        text = json.dumps(value).encode()
        await self.send(kind, command, len(text).to_bytes(4, "big") + text + stdin)

    def open_stream(self) -> tuple[int, ExecStream]:
        """Reserve an id for an exec and a place for what comes back."""
        self._next_id += 1
        stream = ExecStream()
        self._streams[self._next_id] = stream
        return self._next_id, stream

    def close_stream(self, command: int) -> None:
        """Forget an exec."""
        stream = self._streams.pop(command, None)
        if stream is not None:
            stream.drained.set()

    async def news(self, seen_out: int, seen_err: int) -> None:
        """Wait until the main command has written more than was seen, or ended, or init is gone."""
        self._news.clear()
        with contextlib.suppress(LinkClosedError):
            await self.send(ARM, 0, struct.pack(">QQ", seen_out, seen_err))
        if self.end.done() or self.closed.is_set():
            return
        await self._news.wait()

    async def close(self) -> None:
        """End the connection; init goes on without it."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._writer.close()


def _refusal(code: str, message: str) -> bytes:
    return ErrorBody(code=code, message=message).model_dump_json(by_alias=True).encode()
