"""The rows of money: append-only segments in the object store, one writer at a time.

Segment N is the object `money/rows/<N>`, created only if absent, with the epoch of its writer. Who
finds a segment of a later epoch under its number leads no more. A segment of an earlier epoch there
was written by a leader that was slow to go: its rows count, and the writer decides again on them.
Segments are never removed: they are what bills are proved by. Snapshots (`money/state/<N>`) keep a
leader's start short, and `money/now` says what has been used and is not in a segment yet.

Rows are JSON objects that this module does not look into; each has an id that makes it count once.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from dsec.journal.bindlog import FencedError
from dsec.world.clock import Clock
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError, PreconditionError

SEGMENTS, SNAPSHOTS, NOW = "money/rows/", "money/state/", "money/now"
SNAPSHOT_EVERY = 300
"""Segments: about a day."""
KEEP_SNAPSHOTS = 2
RETRIES, RETRY_SECONDS = 30, 0.2

Row = dict[str, Any]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Opened:
    """What was read at a start: the state of the newest snapshot, and all rows after it."""

    state: dict[str, Any] | None
    rows: list[Row]


class MoneyReader:
    """Follows the segments from the first one. Readers never write."""

    def __init__(self, objects: ObjectStore, take: Callable[[list[Row]], None]) -> None:
        """`take` gets the rows of each segment once, in order."""
        self._objects = objects
        self._take = take
        self.position = 0

    async def refresh(self) -> None:
        """Read to the end. Raises ObjectStoreError."""
        while True:
            try:
                data, _ = await self._objects.get(_key(self.position + 1))
            except NotFoundError:
                return
            self._take(_decode(data)["rows"])
            self.position += 1

    async def now(self) -> Row:
        """Return what has been used since the last segment: `at` and `rows`; empty: nothing."""
        return await read_now(self._objects)


class MoneyBook:
    """The leader's hand on the rows, of one term."""

    def __init__(self, objects: ObjectStore, clock: Clock, *, epoch: int, writer: str) -> None:
        self._objects = objects
        self._clock = clock
        self._epoch = epoch
        self._writer = writer
        self._position = 0
        self._number = 0
        self._since_snapshot = 0

    async def open(self) -> Opened:
        """Read the newest snapshot and what came after it. Raises FencedError, ObjectStoreError."""
        state, self._position = None, 0
        snapshots = await self._objects.list(SNAPSHOTS)
        if snapshots:
            data, _ = await self._objects.get(snapshots[-1].key)
            state = _decode(data)
            self._position = int(snapshots[-1].key.removeprefix(SNAPSHOTS))
        rows: list[Row] = []
        while (segment := await self._segment(self._position + 1)) is not None:
            self._check(segment)
            rows += segment["rows"]
            self._position += 1
        self._since_snapshot = 0 if state is not None else self._position
        return Opened(state, rows)

    async def append(self, rows: list[Row]) -> bool:
        """Store rows in one segment, all or none. False: rows of an earlier leader came first.

        Then read all again (`open`) and decide anew. Raises FencedError, and ObjectStoreError where
        it is not known whether they are stored.
        """
        self._number += 1
        number = self._position + 1
        mark = f"{self._writer}:{self._number}"
        data = _encode({"epoch": self._epoch, "writer": mark, "rows": rows})
        for attempt in range(RETRIES):
            try:
                await self._objects.put_if_absent(_key(number), data)
            except PreconditionError:
                # ours, if the answer to an earlier attempt was lost
                found = await self._segment(number)
                if found is None or found["writer"] != mark or found["epoch"] != self._epoch:
                    self._check(found or {})
                    return False
                break
            except ObjectStoreError as problem:
                if attempt == RETRIES - 1:
                    raise
                log.warning("rows of money have no answer", segment=number, error=str(problem))
                await self._clock.sleep(RETRY_SECONDS)
            else:
                break
        self._position = number
        self._since_snapshot += 1
        return True

    @property
    def snapshot_due(self) -> bool:
        """Whether a start would have to read many segments."""
        return self._since_snapshot >= SNAPSHOT_EVERY

    async def snapshot(self, state: dict[str, Any]) -> None:
        """Store what all rows so far come to. Raises ObjectStoreError."""
        await self._objects.put(f"{SNAPSHOTS}{self._position:020d}", _encode(state))
        self._since_snapshot = 0
        for info in (await self._objects.list(SNAPSHOTS))[:-KEEP_SNAPSHOTS]:
            await self._objects.delete(info.key)

    async def say_now(self, at: float, rows: list[Row]) -> None:
        """Say what has been used since the last segment. Raises ObjectStoreError."""
        data = _encode({"epoch": self._epoch, "at": at, "rows": rows})
        await self._objects.put(NOW, data)

    async def said_now(self) -> Row:
        """Return what was said last, by whoever led; empty: nothing."""
        return await read_now(self._objects)

    async def _segment(self, number: int) -> dict[str, Any] | None:
        try:
            return _decode((await self._objects.get(_key(number)))[0])
        except NotFoundError:
            return None

    def _check(self, segment: dict[str, Any]) -> None:
        if segment.get("epoch", 0) > self._epoch:
            raise FencedError(f"epoch {self._epoch} is over: a later leader books money")


async def read_now(objects: ObjectStore) -> Row:
    """Return what has been used since the last segment; empty: nothing was said yet."""
    try:
        return _decode((await objects.get(NOW))[0])
    except NotFoundError:
        return {}


def _key(number: int) -> str:
    return f"{SEGMENTS}{number:020d}"


def _encode(data: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 1)


def _decode(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zlib.decompress(data))
    return found
