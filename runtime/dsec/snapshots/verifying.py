"""Verifying a snapshot without restoring it: its figures, its parts, and on demand every byte."""

from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from dsec.snapshots.fetching import Fetcher, locate, plan
from dsec.snapshots.limits import Limits
from dsec.snapshots.pieces import HOLE, PIECE
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.snapshots.walking import read_root, rows_of, walk
from dsec.world.heap import keep_buffers

BLOBS_AT_ONCE = 4096
MOST_PROBLEMS = 100


@dataclass(slots=True)
class Report:
    """What was found. Files and bytes as the manifest says; `problems` in words, at most 100."""

    files: int = 0
    bytes: int = 0
    entries: int = 0
    checked_bytes: int = 0
    """Of blobs that were fetched and compared with their names."""
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the snapshot can be restored."""
        return not self.problems


async def verify(
    repo: Repository, manifest: str, *, data: bool = True, limits: Limits | None = None
) -> Report:
    """Check a snapshot: the manifest whole and in itself consistent, everything it names in packs.

    With `data` every blob is fetched and compared. Damage is reported, not raised. Raises
    ObjectStoreError: nothing is known then.
    """
    keep_buffers()
    report = Report()
    fetcher = Fetcher(repo, limits or Limits())
    seen: set[bytes] = set()
    waiting: list[bytes] = []
    try:
        root = await read_root(repo, fetcher, manifest)
        report.files, report.bytes, report.entries = root.files, root.size, root.entries
        async with aclosing(walk(repo, fetcher, root)) as found:
            async for entry in found:
                async with aclosing(rows_of(repo, fetcher, entry)) as rows:
                    async for row in rows:
                        for blob, start, length in PIECE.iter_unpack(row):
                            if blob == HOLE:
                                continue
                            _check_place(repo, report, entry.path, (blob, start, length))
                            if data and blob not in seen:
                                seen.add(blob)
                                waiting.append(blob)
                if len(waiting) >= BLOBS_AT_ONCE:
                    await _check_data(repo, fetcher, report, waiting)
                    waiting.clear()
        await _check_data(repo, fetcher, report, waiting)
    except SnapshotDamagedError as problem:
        _add(report, str(problem))
    finally:
        fetcher.close()
    return report


def _check_place(
    repo: Repository, report: Report, path: bytes, piece: tuple[bytes, int, int]
) -> None:
    blob, start, length = piece
    try:
        where = locate(repo, blob)
    except SnapshotDamagedError as problem:
        _add(report, f"{path!r}: {problem}")
        return
    if start + length > where.length:
        _add(report, f"{path!r}: a piece leaves its blob {blob.hex()}")


async def _check_data(
    repo: Repository, fetcher: Fetcher, report: Report, blobs: Iterable[bytes]
) -> None:
    def use(blob: bytes, content: memoryview) -> None:
        del blob
        report.checked_bytes += len(content)

    stored = [blob for blob in blobs if repo.index.find(blob) is not None]
    spans = plan(repo, stored)
    try:
        await fetcher.fetch(spans, use)
    except SnapshotDamagedError as problem:
        _add(report, str(problem))


def _add(report: Report, problem: str) -> None:
    if len(report.problems) < MOST_PROBLEMS and problem not in report.problems:
        report.problems.append(problem)
