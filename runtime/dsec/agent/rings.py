"""Kept output: files that dsec-init writes as rings and that outlive it and the agent.

Layout: magic (8 bytes), capacity and total ever written (u64, little endian), at 4096 the ring.
"""

import os
import struct
from pathlib import Path

HEADER = 4096
_MAGIC = b"DSECRNG1"
_LONGEST_CUT_LINE = 4096


def create(path: Path, capacity: int) -> int:
    """Make an empty ring file of `capacity` bytes; return a descriptor for init."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.ftruncate(fd, HEADER + capacity)
    return fd


def read(path: Path, since: int = 0) -> tuple[bytes, int, int]:
    """Return (data, position after it, bytes lost before it), from position `since` on.

    Safe against a writer: what was overwritten while being read counts as lost.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        capacity, total = _state(fd)
        if total <= since:
            return b"", since, 0
        start = max(since, total - capacity)
        data = _slice(fd, capacity, start, total)
        _, newer = _state(fd)
        spoilt = min(len(data), max(0, newer - capacity - start))
        return data[spoilt:], total, start + spoilt - since
    finally:
        os.close(fd)


def _state(fd: int) -> tuple[int, int]:
    head = os.pread(fd, 24, 0)
    if len(head) < 24 or head[:8] != _MAGIC:  # noqa: PLR2004 - the size of the header's fields
        return 1, 0
    capacity, total = struct.unpack_from("<QQ", head, 8)
    return capacity, total


def _slice(fd: int, capacity: int, start: int, end: int) -> bytes:
    first = start % capacity
    head = os.pread(fd, min(end - start, capacity - first), HEADER + first)
    return head + os.pread(fd, end - start - len(head), HEADER)


def tail(data: bytes, lost: int, cap: int) -> tuple[bytes, int]:
    """Keep the newest `cap` bytes; return them and how many bytes are lost in all.

    A line that is cut at its start is dropped, since half a line misleads its reader; a character
    that is cut is dropped in any case.
    """
    cut = max(0, len(data) - cap)
    kept = data[cut:]
    lost += cut
    if lost:
        newline = kept.find(b"\n", 0, _LONGEST_CUT_LINE)
        start = newline + 1 if newline >= 0 else 0
        while start < min(len(kept), 4) and newline < 0 and kept[start] & 0xC0 == 0x80:  # noqa: PLR2004 - UTF-8 continuation bytes
            start += 1
        kept = kept[start:]
        lost += start
    return kept, lost
