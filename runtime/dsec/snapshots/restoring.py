"""Restoring: make below a directory what a manifest says, with every byte verified on its way.

Entries come in tree order and are worked on in batches: first what has no content (folders, links,
what is to go), then the blobs of all files in the order in which they lie in packs, written by
several threads at their places, then owners, modes and times, of folders when nothing below them is
left. Files are whole or, where an error ends the restore, not to be used: the caller discards a
target whose restore failed.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from dsec.snapshots.fetching import Fetcher, plan
from dsec.snapshots.limits import MIB, Limits, Moved, Progress
from dsec.snapshots.manifest import Entry, Kind
from dsec.snapshots.pieces import HOLE, PIECE
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.snapshots.target import RestoreError, Target, write_all
from dsec.snapshots.threads import in_thread
from dsec.snapshots.walking import read_root, rows_of, walk
from dsec.world.heap import keep_buffers

BATCH_ENTRIES, BATCH_PIECES, BATCH_BYTES = 4096, 16384, 256 * MIB


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore made, and how many bytes it fetched for that."""

    files: int
    bytes: int
    fetched_bytes: int


@dataclass(slots=True)
class Place:
    """Where a slice of a blob goes."""

    entry: Entry
    offset: int
    start: int
    length: int
    whole: bool
    """It is all of the file."""


@dataclass(slots=True)
class Batch:
    """Entries that are made together."""

    entries: int = 0
    size: int = 0
    pieces: int = 0
    lay: list[Entry] = field(default_factory=list)
    create: list[Entry] = field(default_factory=list)
    places: dict[bytes, list[Place]] = field(default_factory=dict)
    finish: list[Entry] = field(default_factory=list)
    """Files of several pieces that end in this batch."""
    links: list[Entry] = field(default_factory=list)
    left: list[Entry] = field(default_factory=list)
    """Folders below which nothing comes any more, inner ones first."""

    @property
    def full(self) -> bool:
        """Whether more would take too much memory."""
        return (
            self.entries >= BATCH_ENTRIES or self.pieces >= BATCH_PIECES or self.size >= BATCH_BYTES
        )

    def add(self, blob: bytes, place: Place) -> None:
        """Want a slice of a blob."""
        self.places.setdefault(blob, []).append(place)
        self.pieces += 1
        self.size += place.length

    def add_row(self, entry: Entry, row: bytes, offset: int) -> int:
        """Want the pieces of a file from an offset on; return where they end."""
        for blob, start, length in PIECE.iter_unpack(row):
            if blob != HOLE:
                self.add(blob, Place(entry, offset, start, length, whole=False))
            offset += length
        return offset


async def restore(
    repo: Repository,
    manifest: str,
    target: Path,
    *,
    verify: bool = True,
    limits: Limits | None = None,
    progress: Progress | None = None,
    only: Sequence[str] = (),
) -> Restored:
    """Make what a manifest says below `target`, a directory that exists.

    What is there already stays unless the snapshot has something at its place, a whiteout, or an
    opaque folder. `only`: these paths and what is below them. Without `verify` the seals of frames
    are checked, but not each blob's name. Raises SnapshotDamagedError, RestoreError,
    ObjectStoreError.
    """
    keep_buffers()
    try:
        root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        raise RestoreError(f"{target}: {problem.strerror}") from problem
    work = _Restore(repo, Target(root), Fetcher(repo, limits or Limits(), verify=verify))
    try:
        moved = await work.run(manifest, _chosen(only), progress)
    finally:
        work.close()
        os.close(root)
    return Restored(moved.files, moved.bytes, work.fetcher.fetched)


def _chosen(only: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(os.fsencode(one).strip(b"/") for one in only)


class _Restore:
    def __init__(self, repo: Repository, target: Target, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self._repo, self._target = repo, target
        self._moved = Moved()
        self._open: list[Entry] = []

    def close(self) -> None:
        self.fetcher.close()
        self._target.close()

    async def run(self, manifest: str, only: tuple[bytes, ...], progress: Progress | None) -> Moved:
        root = await read_root(self._repo, self.fetcher, manifest)
        running: asyncio.Task[None] | None = None
        try:
            async with (
                aclosing(walk(self._repo, self.fetcher, root)) as found,
                aclosing(self._batches(found, only)) as batches,
            ):
                async for batch in batches:
                    await in_thread(self._prepare, batch)
                    if running is not None:
                        await running
                        self._tell(progress)
                    running = asyncio.create_task(self._fill(batch))
            if running is not None:
                await running
        finally:
            if running is not None and not running.done():
                running.cancel()
                await asyncio.wait([running])
        self._tell(progress)
        return self._moved

    def _tell(self, progress: Progress | None) -> None:
        self._moved.stored_bytes = self.fetcher.fetched
        if progress is not None:
            progress(self._moved)

    async def _batches(
        self, found: AsyncIterator[Entry], only: tuple[bytes, ...]
    ) -> AsyncGenerator[Batch, None]:
        batch = Batch()
        async for entry in found:
            if only and not any(entry.path == o or entry.path.startswith(o + b"/") for o in only):
                continue
            batch.entries += 1
            self._leave(batch, entry.path)
            if entry.kind is not Kind.FILE or len(entry.pieces) == PIECE.size:
                self._sort(batch, entry)
            else:
                batch.create.append(entry)
                offset = 0
                async with aclosing(rows_of(self._repo, self.fetcher, entry)) as rows:
                    async for row in rows:
                        offset = batch.add_row(entry, row, offset)
                        if batch.full:
                            yield batch
                            batch = Batch()
                batch.finish.append(entry)
            if batch.full:
                yield batch
                batch = Batch()
        self._leave(batch, None)
        yield batch

    def _sort(self, batch: Batch, entry: Entry) -> None:
        """Put what is not a file of several pieces where it belongs in its batch."""
        if entry.kind is Kind.HARDLINK:
            batch.links.append(entry)
            return
        if entry.kind is not Kind.FILE:
            batch.lay.append(entry)
            if entry.kind is Kind.FOLDER:
                self._open.append(entry)
            return
        blob, start, length = PIECE.unpack(entry.pieces)
        if length != entry.size:
            raise SnapshotDamagedError(f"{entry.path!r} has {length} of {entry.size} bytes")
        if blob == HOLE:
            batch.create.append(entry)
            batch.finish.append(entry)
        else:
            batch.add(blob, Place(entry, 0, start, length, whole=True))

    def _leave(self, batch: Batch, path: bytes | None) -> None:
        """Take down the folders that are complete when the scan comes to a path."""
        while self._open:
            folder = self._open[-1].path
            if path is not None and path.startswith(folder + b"/"):
                return
            batch.left.append(self._open.pop())

    def _prepare(self, batch: Batch) -> None:
        """Make what has no content, and the files that several threads write to."""
        for entry in batch.lay:
            self._target.lay(entry)
        for entry in batch.create:
            handle = self._target.create(entry)
            try:
                os.ftruncate(handle, entry.size)
            finally:
                os.close(handle)

    async def _fill(self, batch: Batch) -> None:
        def use(blob: bytes, content: memoryview) -> None:
            for place in batch.places[blob]:
                data = content[place.start : place.start + place.length]
                if len(data) != place.length:
                    raise SnapshotDamagedError(f"{place.entry.path!r}: a piece leaves its blob")
                if place.whole:
                    self._whole(place.entry, data)
                else:
                    self._target.write(place.entry.path, [(place.offset, data)])

        await self.fetcher.fetch(plan(self._repo, batch.places), use)
        await in_thread(self._complete, batch)

    def _whole(self, entry: Entry, data: memoryview) -> None:
        handle = self._target.create(entry)
        try:
            write_all(handle, data, 0)
            self._target.finish_file(handle, entry)
        finally:
            os.close(handle)

    def _complete(self, batch: Batch) -> None:
        for entry in batch.finish:
            self._target.finish(entry)
        for entry in batch.links:
            self._target.link(entry)
        for entry in batch.left:
            self._target.finish(entry)
        whole = [place.entry for some in batch.places.values() for place in some if place.whole]
        for entry in (*batch.finish, *whole):
            self._moved.files += 1
            self._moved.bytes += entry.size
