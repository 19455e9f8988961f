"""One part of a large file: what changed of it is cut and stored, the rest goes on as it was."""

import errno
import os
from dataclasses import dataclass

import numpy as np

from dsec.snapshots.chunking import BLOCK, PAGE, WINDOW
from dsec.snapshots.dirty import MOST_PIECES, NO_PRINTS, PRINT_BYTES, SAME, ZERO, Prints
from dsec.snapshots.limits import MIB
from dsec.snapshots.pieces import HOLE, PIECE, Row, Slices
from dsec.snapshots.storing import Lane

PATCH = 64 << 10
"""Changed runs shorter than this lie together in one blob; longer ones are cut by content."""
LARGEST_PATCH = MIB


@dataclass(frozen=True, slots=True)
class Segment:
    """What a part of a file consists of, and how to see next time what changed."""

    pieces: bytes = b""
    prints: Prints = NO_PRINTS
    changed: int = 0
    """Bytes that were not as before."""


class _Writer:
    """Turns runs into pieces; `begin` is where in the segment the bytes at hand start."""

    def __init__(self, lane: Lane, old: Segment | None) -> None:
        self._lane = lane
        self.row = Row()
        self._old = Slices(old.pieces) if old else None
        self._patch = bytearray()
        self.changed = 0

    def same(self, start: int, end: int) -> None:
        """Go on with old pieces."""
        if self._old is not None:
            self._old.into(self.row, start, end)

    def dirty(self, data: memoryview, *, more: bool) -> int:
        """Store a run, and return how many bytes at its end wait for what follows."""
        if len(data) < PATCH:
            if more:
                return len(data)
            if self._old is not None:
                self._lay(data)
                return 0
        lengths = list(self._lane.cutter.cut(data))
        left = lengths.pop() if more else 0
        at = 0
        for length in lengths:
            self.row.add(self._lane.keep(data[at : at + length]), 0, length)
            at += length
        self.changed += at
        return left

    def _lay(self, data: memoryview) -> None:
        if len(self._patch) + len(data) > LARGEST_PATCH:
            self.settle()
        self.row.reserve(len(self._patch), len(data))
        self._patch += data
        self.changed += len(data)

    def settle(self) -> None:
        if self._patch:
            self.row.settle(self._lane.keep(self._patch))
            self._patch = bytearray()


def save_segment(
    lane: Lane, handle: int, place: tuple[int, int], old: Segment | None, *, sparse: bool
) -> Segment:
    """Save a part of an open file; `place` is its offset and length.

    Where the file has become shorter, zeros stand in. Raises OSError, StoppedError.
    """
    offset, length = place
    writer = _Writer(lane, old)
    crowded = _crowded(old)
    window, left, at = lane.window, 0, 0
    blocks, pages = [], []
    while at < length:
        lane.store.check()
        size = min(WINDOW, length - at)
        before = _part(old, at, size)
        last = at + size == length
        if sparse and size % BLOCK == 0 and _empty(handle, offset + at, size):
            if left:
                writer.dirty(window[:left], more=False)
                left = 0
            writer.row.add(HOLE, 0, size)
            prints = lane.looker.zeros(size)
        else:
            data = window[left : left + size]
            _fill(handle, data, offset + at)
            here = frozenset(block - at // BLOCK for block in crowded)
            prints, runs = lane.looker.look(data, before, here)
            for begin, end, kind in runs:
                if left and begin == 0 and kind not in {SAME, ZERO}:
                    run = window[: left + end]
                else:
                    if left:
                        writer.dirty(window[:left], more=False)
                    run = data[begin:end]
                left = 0
                if kind == SAME:
                    writer.same(at + begin, at + end)
                elif kind == ZERO:
                    writer.row.add(HOLE, 0, end - begin)
                else:
                    left = writer.dirty(run, more=end == size and not last)
                    rest = run[len(run) - left :]
            if left:
                window[:left] = bytes(rest)
        blocks.append(prints.blocks)
        pages.append(prints.pages)
        at += size
    writer.settle()
    return Segment(
        writer.row.packed(), Prints(b"".join(blocks), b"".join(pages)), changed=writer.changed
    )


def _part(old: Segment | None, at: int, size: int) -> Prints:
    if old is None:
        return NO_PRINTS
    blocks = (at // BLOCK * PRINT_BYTES, -(-(at + size) // BLOCK) * PRINT_BYTES)
    pages = (at // PAGE * PRINT_BYTES, -(-(at + size) // PAGE) * PRINT_BYTES)
    return Prints(old.prints.blocks[slice(*blocks)], old.prints.pages[slice(*pages)])


def _crowded(old: Segment | None) -> frozenset[int]:
    """Return the blocks that consist of too many pieces."""
    if old is None or len(old.pieces) <= MOST_PIECES * PIECE.size:
        return frozenset()
    starts = np.array(Slices(old.pieces).starts)
    return frozenset(np.flatnonzero(np.bincount(starts // BLOCK) > MOST_PIECES).tolist())


def _empty(handle: int, offset: int, size: int) -> bool:
    """Return whether a part of a file is a hole."""
    try:
        return os.lseek(handle, offset, os.SEEK_DATA) >= offset + size
    except OSError as problem:
        if problem.errno == errno.ENXIO:
            return True
        raise


def _fill(handle: int, buffer: memoryview, offset: int) -> None:
    """Read exactly; zeros stand for what is behind the end of the file."""
    done = 0
    while done < len(buffer):
        count = os.preadv(handle, [buffer[done:]], offset + done)
        if count == 0:
            buffer[done:] = bytes(len(buffer) - done)
            return
        done += count
