"""Safe points that programs mark, and the notices that they get before they are frozen.

A program that knows of snapshots says `POST /v1/snapshot/mark` whenever its files belong together.
Where no snapshot is due it is answered at once and goes on; where one is, it is answered when its
files are copied. `GET /v1/snapshot/notice?after=N` waits for the notice after number N: a snapshot
is due, and the program had better mark its next safe point, or hold its writes. Nothing is sent to
programs that do not ask.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dsec.api.wire import ErrorBody
from dsec.world.clock import Clock, until

MARK, NOTICE = "/v1/snapshot/mark", "/v1/snapshot/notice"
NOTICE_SECONDS = 20.0
"""A question for the next notice is answered after so long, with the number of the last one."""
LISTENS_SECONDS = 60.0
"""A program that asked for notices so recently counts as one that reads them."""
META_BYTES = 64 << 10
_OK, _INVALID, _METHOD, _LARGE = 200, 400, 405, 413


class MetaError(ValueError):
    """What a program says with its mark is not of use; the message names the field."""


@dataclass(slots=True)
class Stop:
    """A program that has marked a safe point and waits there."""

    meta: dict[str, Any]
    passed: asyncio.Future[dict[str, Any]]

    def let_go(self, answer: dict[str, Any]) -> None:
        """Answer the program. Idempotent."""
        if not self.passed.done():
            self.passed.set_result(answer)


@dataclass(slots=True)
class Marks:
    """Of one sandbox. All state is soft: a new agent learns it from the program's next calls."""

    clock: Clock
    made: int = 0
    """Marks so far."""
    number: int = 0
    """Of the last notice."""
    due: bool = False
    _wanted: asyncio.Future[Stop] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _listened: Callable[[], float] | None = None

    @property
    def listens(self) -> bool:
        """Whether a program reads the notices."""
        return self._listened is not None and self._listened() > 0

    def announce(self) -> None:
        """Tell whoever asks that a snapshot is due."""
        self.number += 1
        self.due = True
        self._news.set()
        self._news = asyncio.Event()

    def withdraw(self) -> None:
        """The snapshot is taken, or will not be."""
        self.due = False

    async def next(self, seconds: float) -> Stop | None:
        """Return the program at its next safe point; None: it made no mark in time."""
        wanted = self._wanted = asyncio.get_running_loop().create_future()
        timer = asyncio.create_task(self.clock.sleep(seconds))
        try:
            await asyncio.wait({wanted, timer}, return_when=asyncio.FIRST_COMPLETED)
            return wanted.result() if wanted.done() else None
        finally:
            self._wanted = None
            timer.cancel()

    async def mark(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Serve a mark; returns once the program may go on."""
        self.made += 1
        wanted = self._wanted
        if wanted is None or wanted.done():
            return {"taken": False}
        stop = Stop(meta, asyncio.get_running_loop().create_future())
        wanted.set_result(stop)
        return await stop.passed

    async def notice(self, after: int) -> dict[str, Any]:
        """Serve a question for the notice after a number."""
        self._listened = until(self.clock, LISTENS_SECONDS)
        if self.number <= after:
            timer = asyncio.create_task(self.clock.sleep(NOTICE_SECONDS))
            news = asyncio.create_task(self._news.wait())
            try:
                await asyncio.wait({timer, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                news.cancel()
        return {"number": self.number, "due": self.due and self.number > after}


def read_meta(body: bytes) -> dict[str, Any]:
    """Return what a program says with its mark: a JSON object, or nothing. Raises MetaError."""
    if not body.strip():
        return {}
    try:
        meta = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise MetaError(f"body: no JSON: {problem}") from problem
    if not isinstance(meta, dict):
        raise MetaError("body: a JSON object is wanted, such as step, stage, seq")
    return meta


async def serve(marks: Marks, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Answer a program's call about snapshots: status and JSON."""
    parts = urlsplit(path)
    right = {MARK: "POST", NOTICE: "GET"}[parts.path]
    if method != right:
        return _refused(_METHOD, f"{parts.path} takes {right} only")
    if parts.path == NOTICE:
        after = parse_qs(parts.query).get("after", ["0"])[-1]
        number = -1
        with contextlib.suppress(ValueError):
            number = int(after)
        if number < 0:
            return _refused(_INVALID, f"after: {after[:40]!r}: a number from 0 on is wanted")
        return _OK, json.dumps(await marks.notice(number)).encode()
    if len(body) > META_BYTES:
        return _refused(_LARGE, f"body: {len(body)} bytes; at most {META_BYTES} are kept")
    try:
        meta = read_meta(body)
    except MetaError as problem:
        return _refused(_INVALID, str(problem))
    return _OK, json.dumps(await marks.mark(meta)).encode()


def is_about_snapshots(path: str) -> bool:
    """Return whether a program's call is for this module."""
    return urlsplit(path).path in {MARK, NOTICE}


def _refused(status: int, message: str) -> tuple[int, bytes]:
    body = ErrorBody(code="invalid", message=message)
    return status, body.model_dump_json(by_alias=True, exclude_defaults=True).encode()
