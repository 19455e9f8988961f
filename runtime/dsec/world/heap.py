"""How a long-running process uses its heap: when it looks for cycles, and which memory it keeps.

The standard thresholds suit short programs: a control plane keeps most of what it makes, and a
third of its time went into looking through it. Almost everything is freed by its reference count;
what is left to the collector (tasks and their exceptions) can wait.
"""

import ctypes
import gc
import mmap
from contextlib import suppress

YOUNG, MIDDLE, OLD = 50_000, 20, 20
"""New containers before a look at the young ones, and looks before one further back: with a few
hundred bytes each, about 10 MiB of garbage at most wait for the first look."""


def settle() -> None:
    """Leave out what is loaded by now, which is no garbage, and look less often from now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt."""
KEPT_BLOCK, KEPT_FREE = 64 << 20, 16 << 20


def keep_buffers() -> None:
    """Let the allocator use freed blocks of megabytes again instead of giving each back.

    Threads that get every buffer fresh from the kernel spend their time in page faults, one after
    the other: two of them are slower than one. What is kept is bounded. Without glibc nothing
    happens.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, KEPT_BLOCK)
        mallopt(TRIM_THRESHOLD, KEPT_FREE)


def buffer(size: int) -> memoryview:
    """Return that many bytes of memory, zeros, of which the machine has only what is written to.

    A bytearray is cleared from end to end first: of one for many megabytes that is felt where only
    a little goes into it.
    """
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
