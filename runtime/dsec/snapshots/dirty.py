"""Which pages of a file changed since it was saved last, by hashes that were kept on this node.

Seeded XXH3 with 128 bits: fast, and its seed is a secret of the repository, so that who writes the
files cannot aim at a collision.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

from dsec.snapshots.chunking import BLOCK, PAGE

PRINT_BYTES = 16
PAGES = BLOCK // PAGE
HOLE_PAGES = 16
"""Zeros become a hole from this many pages on; shorter runs would only make more pieces."""
MOST_PIECES = 16
"""A block that consists of more is stored anew: it bounds what a file costs to list and to read,
and for how long a page keeps an old blob alive."""
SAME, DIRTY, ZERO = 0, 1, 2

Run = tuple[int, int, int]
"""First byte, byte after the last, and SAME, DIRTY or ZERO."""


@dataclass(frozen=True, slots=True)
class Prints:
    """Hashes of a part of a file: of its blocks, of its pages, each in a row."""

    blocks: bytes = b""
    pages: bytes = b""


NO_PRINTS = Prints()


class Looker:
    """Compares windows of data with prints; for one repository."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._zero = xxh3_128_digest(bytes(PAGE), seed)
        self._zero_block = xxh3_128_digest(bytes(BLOCK), seed)
        self._zero_pair = np.frombuffer(self._zero, "<u8")

    def zeros(self, length: int) -> Prints:
        """Return the prints of whole blocks of zeros."""
        return Prints(self._zero_block * (length // BLOCK), self._zero * (length // PAGE))

    def look(
        self, data: memoryview, old: Prints, crowded: frozenset[int]
    ) -> tuple[Prints, list[Run]]:
        """Return the prints of a window and its runs, relative to its start.

        `old` are the prints of the same place; of an empty one everything differs. `crowded` are
        blocks that are to be stored anew if anything in them changed.
        """
        count = -(-len(data) // PAGE)
        state = np.full(count, DIRTY, np.int8)
        blocks, pages = [], []
        for number, at in enumerate(range(0, len(data), BLOCK)):
            block = data[at : at + BLOCK]
            first, size = number * PAGES, -(-len(block) // PAGE)
            own = xxh3_128_digest(block, self._seed)
            blocks.append(own)
            before = old.pages[first * PRINT_BYTES : (first + size) * PRINT_BYTES]
            if old.blocks[number * PRINT_BYTES : (number + 1) * PRINT_BYTES] == own:
                pages.append(before)
                state[first : first + size] = SAME
                continue
            now = b"".join(
                [
                    xxh3_128_digest(block[start : start + PAGE], self._seed)
                    for start in range(0, len(block), PAGE)
                ]
            )
            pages.append(now)
            self._mark(state[first : first + size], now, before, crowded=number in crowded)
        return Prints(b"".join(blocks), b"".join(pages)), _runs(state, len(data))

    def _mark(self, state: npt.NDArray[np.int8], now: bytes, old: bytes, *, crowded: bool) -> None:
        mine = np.frombuffer(now, "<u8").reshape(-1, 2)
        known = np.frombuffer(old, "<u8").reshape(-1, 2)
        same = np.zeros(len(mine), bool)
        common = min(len(mine), len(known))
        same[:common] = (mine[:common] == known[:common]).all(axis=1)
        if not crowded and 2 * int(same.sum()) > len(mine):
            state[same] = SAME
        state[(mine == self._zero_pair).all(axis=1)] = ZERO


def _runs(state: npt.NDArray[np.int8], length: int) -> list[Run]:
    edges = [0, *(np.flatnonzero(np.diff(state)) + 1).tolist(), len(state)]
    runs: list[Run] = []
    for first, end in pairwise(edges):
        kind = int(state[first])
        if kind == ZERO and end - first < HOLE_PAGES:
            kind = DIRTY
        begin, stop = first * PAGE, min(end * PAGE, length)
        if runs and runs[-1][2] == kind:
            runs[-1] = (runs[-1][0], stop, kind)
        else:
            runs.append((begin, stop, kind))
    return runs
