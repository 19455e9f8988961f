"""Merging state that comes back in pieces: records of a replay buffer by their sequence numbers.

The third step of a restore (SNAP-09): the increments of the pool are merged, and writing resumes at
the next number. The number is the key (SNAP-10, SHARE-06), so merging is idempotent and free of
order: the same set of pieces gives the same pool, however often and in whatever order they come.

A record that two pieces hold with different content was written twice: by a copy before the
snapshot and by its successor after the restore. The one of the later incarnation holds, and of two
of the same incarnation the one whose digest is larger: by content alone, or the order would decide.
"""

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import blake3

SEQ, INCARNATION = "seq", "incarnation"
"""Fields of a record, where it is an object of JSON."""
MOST_NOTED = 1_000_000
"""Gaps and conflicts of one merge; with more it is no pool."""
LINE_BYTES = 4 << 20
"""Of one record."""


class RecordError(Exception):
    """A line is no record; the message names file, line and what is wanted."""


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """One record. `body` is its bytes as they were written."""

    seq: int
    body: bytes
    incarnation: int = 0

    @property
    def rank(self) -> tuple[int, bytes]:
        """What decides between two of one number."""
        return self.incarnation, blake3.blake3(self.body).digest()


@dataclass(slots=True)
class Merged:
    """What a merge found. Filled while the records are taken out."""

    count: int = 0
    repeated: int = 0
    """Records that another piece had already."""
    conflicts: list[int] = field(default_factory=list)
    """Numbers that were written twice with different content."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Numbers that no piece has: from, to (inclusive)."""
    first: int | None = None
    last: int | None = None

    @property
    def resume(self) -> int:
        """The number that the next record gets."""
        return 1 if self.last is None else self.last + 1


def merge(pieces: Sequence[Iterable[PoolRecord]], report: Merged) -> Iterator[PoolRecord]:
    """Yield each number once, ascending. Each piece is ascending; raises RecordError where not.

    Memory: one record of each piece, and MOST_NOTED numbers: a pool is a stranger's.
    """
    runs = [_ascending(number, piece) for number, piece in enumerate(pieces)]
    merged = heapq.merge(*runs, key=lambda one: one.seq)
    for seq, same in groupby(merged, key=lambda one: one.seq):
        best, repeated, differs = _best(same)
        report.repeated += repeated
        if differs:
            report.conflicts.append(seq)
        if report.last is not None and seq > report.last + 1:
            report.gaps.append((report.last + 1, seq - 1))
        if len(report.gaps) + len(report.conflicts) > MOST_NOTED:
            raise RecordError(f"record {seq}: more than {MOST_NOTED} gaps and conflicts before it")
        report.first = seq if report.first is None else report.first
        report.last = seq
        report.count += 1
        yield best


def read_lines(lines: Iterable[bytes], name: str = "pool") -> Iterator[PoolRecord]:
    """Yield the records of a file with one JSON object a line.

    A last line without its end was being written when the copy was made: it is left out. Raises
    RecordError for everything else that is no record.
    """
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            if len(line) >= LINE_BYTES:
                raise RecordError(f"{name}:{number}: longer than {LINE_BYTES} bytes")
            return
        if not line.strip():
            continue
        yield _record(line, f"{name}:{number}")


def write_lines(records: Iterable[PoolRecord]) -> Iterator[bytes]:
    """Yield the lines of a file that `read_lines` reads."""
    for record in records:
        yield record.body if record.body.endswith(b"\n") else record.body + b"\n"


def _best(same: Iterator[PoolRecord]) -> tuple[PoolRecord, int, bool]:
    """Return which of the records of a number holds, how many more, and whether they differ."""
    best, repeated, differs = next(same), 0, False
    for one in same:
        repeated += 1
        differs = differs or one.body != best.body
        best = max(best, one, key=lambda which: which.rank)
    return best, repeated, differs


def _ascending(number: int, piece: Iterable[PoolRecord]) -> Iterator[PoolRecord]:
    last: int | None = None
    for record in piece:
        if last is not None and record.seq < last:
            raise RecordError(f"piece {number}: record {record.seq} comes after {last}")
        last = record.seq
        yield record


def _record(line: bytes, where: str) -> PoolRecord:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{where}: no JSON: {problem}") from problem
    seq = data.get(SEQ) if isinstance(data, dict) else None
    if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
        raise RecordError(f"{where}: {SEQ}: {seq!r}: a whole number from 0 on is wanted")
    incarnation = data.get(INCARNATION, 0)
    if not isinstance(incarnation, int) or isinstance(incarnation, bool) or incarnation < 0:
        raise RecordError(f"{where}: {INCARNATION}: {incarnation!r}: a whole number is wanted")
    return PoolRecord(seq, line, incarnation)
