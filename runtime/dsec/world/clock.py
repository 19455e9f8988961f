"""Time and randomness, as the outside gives them."""

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Time. Durations use `monotonic`; what survives a restart is a UTC time."""

    def now(self) -> datetime:
        """Return the current UTC time, timezone-aware."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back and that count suspended time (BOOTTIME)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the current UTC time."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return CLOCK_BOOTTIME, in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        """Wait that long on the running event loop."""
        await asyncio.sleep(seconds)


class Randomness(Protocol):
    """Where identifiers, samples and jitter come from."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...

    def randbytes(self, n: int) -> bytes:
        """Return n random bytes; fit for identifiers and, in the real one, for secrets."""
        ...

    def sample(self, population: list[T], k: int) -> list[T]:
        """Return k distinct members."""
        ...


def system_randomness() -> Randomness:
    """Return the operating system's random source."""
    return random.SystemRandom()


def until(clock: Clock, seconds: float) -> Callable[[], float]:
    """Return a function that says how many seconds are left of a span that starts now."""
    end = clock.monotonic() + seconds
    return lambda: end - clock.monotonic()
