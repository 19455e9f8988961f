"""How much of a machine and of a link one snapshot may use, and how far it has come."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dsec.world.clock import Clock

MIB = 1 << 20
SMALLEST_PACK = 4 * MIB
"""Two of the longest chunks could not fill less."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one save, restore or verification.

    Memory: for each of `workers` a window of 8 MiB and a pack, `uploads` + 1 packs more, and some
    80 MiB for the interpreter and the libraries.
    """

    workers: int = 2
    uploads: int = 3
    """Requests to the store at the same time."""
    bytes_per_second: float | None = None
    """Of stored bytes sent or fetched; unset: as fast as it goes."""
    pack_bytes: int = 12 * MIB
    """Two in the making and three on their way keep a save well below 256 MiB in all."""
    level: int = 2
    """Of zstd."""

    def __post_init__(self) -> None:
        """Check. Raises ValueError."""
        for name in ("workers", "uploads", "level"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}, must be at least 1")
        if self.pack_bytes < SMALLEST_PACK:
            raise ValueError(f"pack_bytes: {self.pack_bytes}, must be at least {SMALLEST_PACK}")
        if self.bytes_per_second is not None and self.bytes_per_second <= 0:
            raise ValueError(f"bytes_per_second: {self.bytes_per_second}, must be above 0")


@dataclass(slots=True)
class Moved:
    """What was moved so far; for a save `stored_bytes` is what it added to the store."""

    files: int = 0
    bytes: int = 0
    stored_bytes: int = 0


Progress = Callable[[Moved], None]
"""Told now and then, on the event loop."""


class Pace:
    """Keeps a mean rate of bytes: each call waits until its bytes are due."""

    def __init__(self, clock: Clock, bytes_per_second: float | None) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._free_at = clock.monotonic()
        self._turn = asyncio.Lock()

    async def take(self, count: int) -> None:
        """Wait until `count` bytes may be moved."""
        if self._rate is None:
            return
        async with self._turn:
            now = self._clock.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + count / self._rate
            if start > now:
                await self._clock.sleep(start - now)
