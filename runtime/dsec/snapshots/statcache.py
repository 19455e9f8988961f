"""What a node remembers of a save, so that the next one reads only what changed.

One file for each lineage and set of sources: records of regular files in tree order, read in step
with the next scan and written anew by it, so that neither is ever held in memory. Its last bytes
are a hash of the rest; a file that is damaged, of another repository or from before a collection is
worth less or nothing, never wrong. While a save runs a mark lies beside it: one that is found tells
of a save that was cut off.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from dsec.snapshots.dirty import Prints
from dsec.snapshots.leafcache import STAT, LeafReader, LeafWriter
from dsec.snapshots.manifest import Entry, order, pack_xattrs, unpack_xattrs
from dsec.snapshots.segments import Segment

MAGIC = b"dsecstat2"
START = len(MAGIC) + 40
"""Where the first record lies: behind magic, id of the repository and epoch."""
HASH_BYTES = 32
HEAD = struct.Struct("<HBHII")
"""Lengths of path, stat, pieces and attributes; number of segments."""
SEGMENT = struct.Struct("<IIII")
"""Lengths of the id of the list, of pieces, of the prints of blocks and of pages."""
BUFFER = 1 << 20
PARTS = 256
"""Records that are written together; at most a few hundred KiB."""


@dataclass(slots=True)
class Remembered:
    """One regular file as it was saved; a large one is told by its segments."""

    path: bytes
    stat: bytes
    pieces: bytes
    xattrs: tuple[tuple[bytes, bytes], ...]
    segments: int
    record: bytes = b""
    """As it was written, to be written again."""


@dataclass(slots=True)
class KnownSegment:
    """A segment, and the id of the blob that lists its pieces, where there is one."""

    segment: Segment
    list_id: bytes = b""


def pack_stat(stat: os.stat_result) -> bytes:
    """Return all that changes when a file's content or attributes do."""
    return STAT.pack(
        stat.st_mode,
        stat.st_uid,
        stat.st_gid,
        stat.st_size,
        stat.st_mtime_ns,
        stat.st_ctime_ns,
        stat.st_ino,
    )


class StatCache:
    """Of one lineage and set of sources. One save at a time."""

    def __init__(self, path: Path) -> None:
        """Name the file; its folder is made where it is missing."""
        self.path = path

    @property
    def _mark(self) -> Path:
        return self.path.with_name(self.path.name + ".saving")

    def begin(self) -> bool:
        """Mark that a save runs; return whether one was cut off before."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        cut_off = self._mark.exists()
        self._mark.touch(mode=0o600)
        return cut_off

    def end(self) -> None:
        """Take the mark away: what was saved is in the index."""
        self._mark.unlink(missing_ok=True)

    @property
    def _leaves(self) -> Path:
        return self.path.with_name(self.path.name + ".leaves")

    def reader(self, repository: str) -> "Reader":
        """Return what is remembered of a repository; nothing where that is not sure."""
        file, end = _whole(self.path, b"")
        if file is None:
            return Reader(None, None, 0)
        head = file.read(START)
        if head[: len(MAGIC)] != MAGIC or head[len(MAGIC) : -8] != repository.encode():
            file.close()
            return Reader(None, None, 0)
        leaves, _ = _whole(self._leaves, end)
        return Reader(file, leaves, *struct.unpack("<q", head[-8:]))

    def writer(self, repository: str, epoch: int) -> "Writer":
        """Return what takes the records of a save. `repository`: 32 hex digits."""
        head = MAGIC + repository.encode() + struct.pack("<q", epoch)
        return Writer(self.path, self._leaves, head)


class Reader:
    """Records in tree order, read in step with a scan."""

    def __init__(self, file: BinaryIO | None, leaves: BinaryIO | None, epoch: int) -> None:
        self._file = file
        self.leaves = LeafReader(leaves, START)
        self.epoch = epoch
        self._left = 0
        # the file is asked for its place once: each time is a system call
        self._unread = 0 if file is None else _size(file) - HASH_BYTES - file.tell()
        self._ahead = self._following()
        self._order = order(self._ahead.path) if self._ahead else b""

    def find(self, path: bytes) -> Remembered | None:
        """Return what is remembered of a path; each path asked for comes after the one before."""
        if self._ahead is None or self._ahead.path == path:
            return self._ahead
        wanted = order(path)
        while self._ahead is not None and self._order < wanted:
            for _ in range(self._left):
                self._skip()
            self._left = 0
            self._ahead = self._following()
            self._order = order(self._ahead.path) if self._ahead else b""
        if self._ahead is not None and self._order == wanted:
            return self._ahead
        return None

    def segments(self) -> Iterator[KnownSegment]:
        """Yield the segments of the file that was found last, once."""
        while self._left:
            self._left -= 1
            lengths = SEGMENT.unpack(self._read(SEGMENT.size))
            list_id, pieces, blocks, pages = map(self._read, lengths)
            yield KnownSegment(Segment(pieces, Prints(blocks, pages)), list_id)

    def jump(self, place: int) -> None:
        """Go on at a place of the file: all files before it are dealt with."""
        if self._file is not None:
            self._unread = _size(self._file) - HASH_BYTES - self._file.seek(place)
            self._ahead = self._following()
            self._order = order(self._ahead.path) if self._ahead else b""

    def parts(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of the file between two places, wherever its reading is."""
        while start < end and self._file is not None:
            part = os.pread(self._file.fileno(), min(BUFFER, end - start), start)
            start += len(part)
            yield part

    def close(self) -> None:
        """Let the files go."""
        self.leaves.close()
        if self._file is not None:
            self._file.close()

    def _read(self, length: int) -> bytes:
        self._unread -= length
        return b"" if self._file is None else self._file.read(length)

    def _skip(self) -> None:
        length = sum(SEGMENT.unpack(self._read(SEGMENT.size)))
        self._unread -= length
        if self._file is not None:
            self._file.seek(length, os.SEEK_CUR)

    def _following(self) -> Remembered | None:
        if self._unread <= 0:
            return None
        head = self._read(HEAD.size)
        path, stat, pieces, xattrs, self._left = HEAD.unpack(head)
        rest = self._read(path + stat + pieces + xattrs)
        stat += path
        pieces += stat
        return Remembered(
            rest[:path],
            rest[path:stat],
            rest[stat:pieces],
            unpack_xattrs(rest[pieces:]) if xattrs else (),
            self._left,
            head + rest,
        )


class Writer:
    """Takes records in tree order."""

    def __init__(self, path: Path, leaves: Path, head: bytes) -> None:
        self._finals = (path, leaves)
        self._paths = tuple(one.with_name(one.name + ".next") for one in self._finals)
        self._file, second = (one.open("wb", buffering=BUFFER) for one in self._paths)
        self.leaves = LeafWriter(second)
        self._second = second
        for one in self._paths:
            one.chmod(0o600)
        self._hash = blake3()
        self._parts = [head]
        self.length = len(head)

    def add(self, entry: Entry, stat: bytes, segments: int) -> None:
        """Write the record of a file; that many segments follow."""
        xattrs = pack_xattrs(entry.xattrs) if entry.xattrs else b""
        parts = (entry.path, stat, entry.pieces, xattrs)
        self.add_record(b"".join((HEAD.pack(*map(len, parts), segments), *parts)))

    def add_record(self, record: bytes) -> None:
        """Write the record of a file that did not change, as it was read."""
        self.length += len(record)
        self._parts.append(record)
        if len(self._parts) >= PARTS:
            self._spill()

    def add_segment(self, known: KnownSegment) -> None:
        """Write one segment of the file that was added last."""
        one = known.segment
        parts = (known.list_id, one.pieces, one.prints.blocks, one.prints.pages)
        self.add_part(b"".join((SEGMENT.pack(*map(len, parts)), *parts)))

    def add_part(self, data: bytes) -> None:
        """Write bytes that may be many."""
        self.length += len(data)
        self._parts.append(data)
        self._spill()

    def finish(self) -> None:
        """Put the new files in the place of the old ones; between the two moves neither counts."""
        self._spill()
        self._file.write(self._hash.digest())
        self._file.close()
        self.leaves.finish(self._hash.digest())
        for path, final in zip(self._paths, self._finals, strict=True):
            path.replace(final)

    def abandon(self) -> None:
        """Leave the old files."""
        self._file.close()
        self._second.close()
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _spill(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        self._hash.update(data)
        self._file.write(data)


def _whole(path: Path, bound: bytes) -> tuple[BinaryIO | None, bytes]:
    """Open a file whose last bytes are the hash of all others and of `bound`; return it and them.

    None where it is not so.
    """
    try:
        file = path.open("rb", buffering=BUFFER)
    except OSError:
        return None, b""
    with suppress(OSError):
        size = _size(file)
        file.seek(max(size - HASH_BYTES, 0))
        end = file.read()
        hasher = blake3()
        file.seek(0)
        left = size - HASH_BYTES
        while left > 0 and (part := file.read(min(left, BUFFER))):
            hasher.update(part)
            left -= len(part)
        hasher.update(bound)
        if left == 0 and hasher.digest() == end:
            file.seek(0)
            return file, end
    file.close()
    return None, b""


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
