"""Where a run of bytes is cut into blobs: at places that its content names (FastCDC)."""

from collections.abc import Iterator

from pyfastcdc import FastCDC

from dsec.snapshots.limits import MIB
from dsec.snapshots.sealing import Buffer

SHORTEST, USUAL, LONGEST = MIB // 2, MIB, 4 * MIB
"""Small changes in a file are found page by page (`dirty`), so that blobs need not be small: what
one costs (its id in manifest, index and footer) counts more for data that does not compress."""
SEGMENT = 64 * MIB
"""Files are worked on in parts of this size, beside one another; no blob crosses their ends."""
SMALL = 128 << 10
"""Files up to this size are one blob, and lie with others in one frame."""
WINDOW = 8 * MIB
"""Read and looked at in one go."""
PAGE = 4096
"""Changes in a file are found at this grain: it is how programs and kernels write."""
BLOCK = 256 << 10
"""Pages that are compared by one hash first."""


class Cutter:
    """For one thread at a time."""

    def __init__(self, seed: int) -> None:
        self._cdc = FastCDC(
            USUAL,
            min_size=SHORTEST,
            max_size=LONGEST,
            normalized_chunking=2,
            seed=seed & 0x7FFF_FFFF,
        )

    def cut(self, data: Buffer) -> Iterator[int]:
        """Yield the lengths of the chunks; the last ends where the data does, by no rule."""
        return (chunk.length for chunk in self._cdc.cut_buf(data))
