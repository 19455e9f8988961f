"""Leaves of the manifest that a node remembers: where nothing changed, a leaf goes on as a whole.

Beside the records of a `StatCache`, in the same order: for each leaf its id, the paths and stats of
its entries of all kinds, the ids of all blobs that it needs, and how long its files' records are.
A scan that meets exactly these entries, beginning where a leaf begins, makes no entry of its own.
"""

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from blake3 import blake3

from dsec.snapshots.manifest import order
from dsec.snapshots.sealing import ID_BYTES

HEAD = struct.Struct(f"<IIIIQQ{ID_BYTES}s")
"""Entries, bytes of paths, of ids; files, their sizes, bytes of records; the leaf."""
STAT = struct.Struct("<IIIQqqQ")
UNSURE = bytes(STAT.size)
"""Stands for an entry that may have changed since: no file has this stat."""
LARGEST = 2 << 20
"""Bytes of ids; a leaf that needs more is not kept, its entries are looked at one by one."""


@dataclass(slots=True)
class KnownLeaf:
    """A leaf as it was stored. `start` and `end`: where its records lie in the file of records."""

    leaf: bytes
    entries: int
    files: int
    size: int
    ids: bytes
    start: int
    end: int
    paths: list[bytes]
    stats: bytes
    raw: bytes
    last: bytes
    """What its last entry sorts by."""


class LeafReader:
    """Leaves in tree order, followed by a scan."""

    def __init__(self, file: BinaryIO | None, start: int) -> None:
        self._file = file
        self._end = start
        self._leaf: KnownLeaf | None = None
        self._at = 0
        self._next()

    def follow(self, path: bytes, stat: bytes, aligned: Callable[[], bool]) -> KnownLeaf | bool:
        """Take the next path of a scan. True: all is as in a leaf so far; a leaf: it is complete.

        False: not, and what was so far has to be looked at by itself. `aligned` tells whether a
        leaf of the new manifest begins here.
        """
        if self._at == 0:
            while self._leaf is not None and order(path) > self._leaf.last:
                self._next()
        leaf, at = self._leaf, self._at
        self._at = 0
        if leaf is None or path != leaf.paths[at] or (at == 0 and not aligned()):
            return False
        if stat != leaf.stats[at * STAT.size : (at + 1) * STAT.size]:
            return False
        if at + 1 == leaf.entries:
            self._next()
            return leaf
        self._at = at + 1
        return True

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()

    def _next(self) -> None:
        self._leaf = None
        while self._file is not None and self._leaf is None:
            head = self._file.read(HEAD.size)
            if len(head) < HEAD.size:
                # the hash at the end is shorter
                return
            count, paths, ids, files, size, records, leaf = HEAD.unpack(head)
            body = self._file.read(count * 2 + paths + count * STAT.size + ids)
            start, self._end = self._end, self._end + records
            if count == 0:
                continue
            found, at = [], count * 2
            for length in array("H", body[:at]):
                found.append(body[at : at + length])
                at += length
            stats = body[at : at + count * STAT.size]
            rest = body[at + count * STAT.size :]
            place = (start, self._end)
            last = order(found[-1])
            self._leaf = KnownLeaf(
                leaf, count, files, size, rest, *place, found, stats, head + body, last
            )


class LeafWriter:
    """Takes the leaves of a save."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = blake3()

    def add(
        self,
        leaf: bytes,
        keys: Sequence[tuple[bytes, bytes]],
        figures: tuple[int, int, int],
        ids: bytes,
    ) -> None:
        """Write a leaf: paths and stats of its entries, and the ids of the blobs that it needs.

        `figures`: how many files, the sum of their sizes, the bytes of their records.
        """
        if len(ids) > LARGEST:
            keys, ids = (), b""
        paths = [path for path, _ in keys]
        head = HEAD.pack(len(keys), sum(map(len, paths)), len(ids), *figures, leaf)
        lengths = array("H", map(len, paths)).tobytes()
        stats = b"".join(stat or UNSURE for _, stat in keys)
        self.add_raw(b"".join((head, lengths, *paths, stats, ids)))

    def add_raw(self, raw: bytes) -> None:
        """Write a leaf that did not change."""
        self._hash.update(raw)
        self._file.write(raw)

    def finish(self, records: bytes) -> None:
        """End the file, bound to the hash of its file of records."""
        self._hash.update(records)
        self._file.write(self._hash.digest())
        self._file.close()
