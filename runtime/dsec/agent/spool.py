"""The agent's memory on disk: one append-only log of journal rows and sandbox statuses.

A record is one line, `crc32 json`, and is durable when `commit` returns. A status change and the
journal row about it share a record, so that a kill between the two cannot lose or double either.
The log is a series of segments; each starts with a snapshot of all statuses, so the newest segment
alone restores the node, and older ones are kept only for rows that are not shipped yet.

Written by the agent alone. After kill -9 a half-written last line is cut off; a segment whose
snapshot line is incomplete is removed. Lost in a power failure: nothing that was committed.
"""

import asyncio
import contextlib
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pydantic_core import to_json

SEGMENT_BYTES = 16 << 20
"""A new segment starts here, so a reader never holds more than this besides the snapshot."""
ROWS_IN_MEMORY = 20_000
"""Unshipped rows kept ready; more stay on disk until these are gone (a long outage)."""
SUFFIX = ".jsonl"
SET_ASIDE = "refused.lines"
"""Rows that the gateway refused for good, each with the reason; never read by the agent."""

_log = structlog.get_logger(__name__)

Record = dict[str, Any]
"""Keys: `row` (a journal row), `put` (an entry), `forget` (ids); a head has `snapshot`."""


class SpoolError(Exception):
    """The log cannot be written; the node must not accept work."""


def encode(record: Record) -> bytes:
    """Return a record as its line. Times and models in it are written as they go over the wire."""
    body = to_json(record, by_alias=True, exclude_none=True)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> Record | None:
    """Return the record of a line (with or without line feed), or None where it is damaged."""
    body = line.rstrip(b"\n")[9:]
    try:
        if int(line[:8], 16) != zlib.crc32(body) or line[8:9] != b" ":
            return None
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


@dataclass(slots=True)
class Recovered:
    """What the log held: the last status of each sandbox, and rows that may be unshipped."""

    entries: dict[str, Record] = field(default_factory=dict)
    rows: list[Record] = field(default_factory=list)
    last_seq: int = 0
    damaged_lines: int = 0


def merge(old: Record | None, put: Record) -> Record:
    """Return an entry after a change: what a change leaves out (the spec) stays as it was."""
    return {**(old or {}), **put}


class Spool:
    """The open log. `snapshot` returns all entries, for the head of a new segment.

    `durable` False skips fsync: for simulated nodes, which do not outlive their process.
    """

    def __init__(
        self, directory: Path, snapshot: Callable[[], list[Record]], *, durable: bool = True
    ) -> None:
        self._directory = directory
        self._snapshot = snapshot
        self._durable = durable
        self._file: int = -1
        self._size = 0
        self._limit = SEGMENT_BYTES
        self._pending: list[bytes] = []
        self._appended = self._written = 0
        self._flushing: asyncio.Task[None] | None = None
        self._broken: SpoolError | None = None
        # numbers of rows: the last given out, the last on disk, the last shipped
        self._seq = self._committed = self._cursor = 0
        self._rows: dict[int, Record] = {}
        self._overflow = False
        self._last_rows: dict[Path, int] = {}

    # ------------------------------------------------------------------ opening

    def open(self, floor: int = 0) -> Recovered:
        """Read and repair what an earlier process wrote, and start a segment.

        Row numbers go on after `floor`: with one that grows at each start, a log whose files were
        lost never gives out a number a second time.

        The caller restores its entries before the first `append`; the head of the new segment is
        written from what was recovered. Raises SpoolError.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            recovered = self._recover()
        except OSError as error:
            raise SpoolError(f"{self._directory}: {error}") from error
        self._seq = self._committed = max(recovered.last_seq, floor)
        self._overflow = len(recovered.rows) > ROWS_IN_MEMORY
        self._rows = {int(row["seq"]): row for row in recovered.rows[:ROWS_IN_MEMORY]}
        self._start_segment(list(recovered.entries.values()))
        return recovered

    def _recover(self) -> Recovered:
        found = Recovered()
        shipped = found.last_seq = self._cursor = self._read_cursor()
        segments = self._segments()
        for position, path in enumerate(segments):
            newest = position == len(segments) - 1
            lines = path.read_bytes().splitlines(keepends=True)
            good = 0
            for line in lines:
                record = decode(line) if line.endswith(b"\n") else None
                if record is None:
                    if newest:
                        break
                    found.damaged_lines += 1
                    continue
                good += len(line)
                self._replay(record, found, shipped)
            if newest and good < sum(map(len, lines)):
                found.damaged_lines += 1
                if good:
                    os.truncate(path, good)
                else:
                    path.unlink()
            self._last_rows[path] = found.last_seq
        self._last_rows = {p: seq for p, seq in self._last_rows.items() if p.exists()}
        return found

    @staticmethod
    def _replay(record: Record, found: Recovered, shipped: int) -> None:
        if "snapshot" in record:
            found.entries = {entry["id"]: entry for entry in record["snapshot"]}
            found.last_seq = max(found.last_seq, int(record["seq"]))
        if (put := record.get("put")) is not None:
            found.entries[put["id"]] = merge(found.entries.get(put["id"]), put)
        for sandbox_id in record.get("forget", ()):
            found.entries.pop(sandbox_id, None)
        if (row := record.get("row")) is not None:
            found.last_seq = max(found.last_seq, int(row["seq"]))
            if row["seq"] > shipped:
                found.rows.append(row)

    # ------------------------------------------------------------------ writing

    def next_seq(self) -> int:
        """Return the number of the next journal row; the caller puts it in the row at once."""
        self._seq += 1
        return self._seq

    def append(self, record: Record) -> None:
        """Queue a record, in order. It is durable after the next `commit`."""
        if (row := record.get("row")) is not None:
            self._overflow = self._overflow or len(self._rows) >= ROWS_IN_MEMORY
            if not self._overflow:
                self._rows[int(row["seq"])] = row
        self._pending.append(encode(record))
        self._appended += 1

    async def commit(self) -> None:
        """Wait until all that was appended before is on disk; callers share one fsync.

        Raises SpoolError, and again at every later call: a log with a hole is no log.
        """
        target = self._appended
        while self._written < target:
            if self._broken is not None:
                raise self._broken
            if self._flushing is None:
                self._flushing = asyncio.create_task(self._flush())
            # shielded: a caller that gives up must not stop the write of the others
            await asyncio.shield(self._flushing)

    async def _flush(self) -> None:
        data, upto, seq = b"".join(self._pending), self._appended, self._seq
        self._pending.clear()
        try:
            if self._durable:
                await asyncio.to_thread(self._write, data)
            else:
                self._write(data)
            self._size += len(data)
            self._written, self._committed = upto, seq
        except SpoolError as error:
            self._broken = error
            raise
        finally:
            self._flushing = None

    def _write(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._write_to(self._file, data)
        except OSError as error:
            raise SpoolError(f"{self._directory}: {error}") from error

    def _write_to(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if self._durable:
            os.fdatasync(descriptor)

    def rotate(self) -> None:
        """Start a new segment when this one is full; called between commits by the owner.

        Where that fails the present one goes on, and the next call tries again.
        """
        if self._size >= self._limit and not self._pending and self._flushing is None:
            try:
                self._start_segment(self._snapshot())
            except SpoolError as error:
                _log.warning("no new segment yet", error=str(error))

    def _start_segment(self, entries: list[Record]) -> None:
        number = max((int(path.stem) for path in self._segments()), default=0) + 1
        path = self._directory / f"{number:020d}{SUFFIX}"
        head = encode({"snapshot": entries, "seq": self._seq})
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        fresh = -1
        try:
            fresh = os.open(path, flags, 0o600)
            self._write_to(fresh, head)
            self._sync_directory()
        except OSError as error:
            if fresh >= 0:
                os.close(fresh)
                with contextlib.suppress(OSError):
                    path.unlink()
            raise SpoolError(f"{path}: {error}") from error
        # only now: the old descriptor's number may be another file's as soon as it is closed
        old, self._file, self._size = self._file, fresh, len(head)
        if old >= 0:
            os.close(old)
        # a large snapshot must not make each following append a rotation
        self._limit = max(SEGMENT_BYTES, 4 * len(head))
        for older in self._last_rows:
            self._last_rows[older] = min(self._last_rows[older], self._seq)
        self._last_rows[path] = 1 << 62
        self._drop_segments()

    # ------------------------------------------------------------------ shipping

    def unshipped(self, limit: int) -> list[Record]:
        """Return the oldest rows that are on disk and not shipped yet, in order, at most so many.

        Reads them from the segments when more are waiting than memory holds.
        """
        if not self._rows and self._overflow:
            self._rows = {
                int(row["seq"]): row
                for row in itertools.islice(
                    (r for r in read_rows(self._directory) if r["seq"] > self._cursor),
                    ROWS_IN_MEMORY,
                )
            }
            self._overflow = next(reversed(self._rows), self._seq) < self._seq
        rows = itertools.islice(self._rows.items(), limit)
        return [row for seq, row in rows if seq <= self._committed]

    @property
    def backlog(self) -> int:
        """Rows in memory that are not shipped; during a long outage more are on disk alone."""
        return len(self._rows)

    def shipped(self, seq: int) -> None:
        """Take note that all rows up to a number are stored elsewhere.

        The cursor itself is not synced, and may fail to be stored on a full disk: a repeat after a
        crash is harmless, a loss is not.
        """
        self._cursor = max(self._cursor, seq)
        for number in list(itertools.takewhile(lambda n: n <= seq, self._rows)):
            del self._rows[number]
        temporary = self._directory / "shipped.new"
        with contextlib.suppress(OSError):
            temporary.write_text(str(self._cursor))
            temporary.replace(self._directory / "shipped")
            self._drop_segments()

    def set_aside(self, row: Record, why: str) -> None:
        """Count a row as shipped that nobody takes; it stays in a file of its own.

        Raises SpoolError: then it is still unshipped.
        """
        line = encode({"row": row, "why": why})
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(self._directory / SET_ASIDE, flags, 0o600)
            try:
                self._write_to(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SpoolError(f"{self._directory / SET_ASIDE}: {error}") from error
        self.shipped(int(row["seq"]))

    def close(self) -> None:
        """Close the file; what was not committed is written first."""
        if self._file >= 0:
            self._write(b"".join(self._pending))
            self._pending.clear()
            os.close(self._file)
            self._file = -1

    # ------------------------------------------------------------------ inside

    def _read_cursor(self) -> int:
        try:
            return int((self._directory / "shipped").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _segments(self) -> list[Path]:
        return sorted(self._directory.glob(f"*{SUFFIX}"))

    def _drop_segments(self) -> None:
        for path in self._segments()[:-1]:
            if self._last_rows.get(path, 0) <= self._cursor:
                path.unlink(missing_ok=True)
                self._last_rows.pop(path, None)

    def _sync_directory(self) -> None:
        if not self._durable:
            return
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_rows(directory: Path) -> Iterator[Record]:
    """Yield every journal row that a spool still holds, oldest first: for tools and tests."""
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        for line in path.read_bytes().splitlines():
            record = decode(line)
            if record is not None and record.get("row") is not None:
                yield record["row"]
