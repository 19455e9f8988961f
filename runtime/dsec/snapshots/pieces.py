"""What a file consists of: a row of pieces, each a slice of a blob, or a hole.

Slices let a file with a few changed pages go on using its old blobs: the new pages are a blob of
their own, laid between slices of the old ones.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator

from dsec.snapshots.sealing import ID_BYTES

PIECE = struct.Struct(f"<{ID_BYTES}sII")
HOLE = bytes(ID_BYTES)
"""The id of what is not stored: zeros."""

Piece = tuple[bytes, int, int]
"""Blob, start in it, length."""


def unpack(data: bytes) -> Iterator[Piece]:
    """Yield the pieces of a packed row."""
    return PIECE.iter_unpack(data)


def blobs_in(row: bytes) -> Iterator[bytes]:
    """Yield the ids of the blobs that a packed row takes slices of."""
    return (blob for blob, _, _ in PIECE.iter_unpack(row) if blob != HOLE)


class Row:
    """Pieces in the making; what continues the piece before becomes one with it."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._open: list[int] = []
        self.length = 0

    def add(self, blob: bytes, start: int, length: int) -> None:
        """Append a piece."""
        self.length += length
        if self._pieces:
            last, begin, size = self._pieces[-1]
            follows = last == blob and (blob == HOLE or begin + size == start)
            if follows and self._open[-1:] != [len(self._pieces) - 1]:
                self._pieces[-1] = (blob, begin, size + length)
                return
        self._pieces.append((blob, start, length))

    def reserve(self, start: int, length: int) -> None:
        """Append a piece of a blob whose id is not known yet."""
        self._open.append(len(self._pieces))
        self._pieces.append((HOLE, start, length))
        self.length += length

    def settle(self, blob: bytes) -> None:
        """Give all reserved pieces their blob."""
        for at in self._open:
            _, start, length = self._pieces[at]
            self._pieces[at] = (blob, start, length)
        self._open.clear()

    def packed(self) -> bytes:
        """Return the row."""
        return b"".join(PIECE.pack(*piece) for piece in self._pieces)


class Slices:
    """A packed row, to take parts of."""

    def __init__(self, data: bytes) -> None:
        self._pieces = list(unpack(data))
        self.starts = []
        at = 0
        for _, _, length in self._pieces:
            self.starts.append(at)
            at += length
        self.length = at

    def into(self, row: Row, start: int, end: int) -> None:
        """Append the pieces of the bytes from start to end."""
        at = bisect_right(self.starts, start) - 1
        while start < end:
            blob, begin, length = self._pieces[at]
            skip = start - self.starts[at]
            take = min(length - skip, end - start)
            row.add(blob, 0 if blob == HOLE else begin + skip, take)
            start += take
            at += 1
