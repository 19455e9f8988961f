"""What the parts of a new leader wait for before they judge: half a view would become a verdict."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from dsec.controllers.fleet import Fleet
from dsec.world.cache import Cache
from dsec.world.clock import Clock, until

HEAR_SECONDS = 2.0
"""A new leader waits this long for the agents' first answers before it writes of experiments:
counts must not drop to zero at each take-over."""
LOOK_SECONDS = 0.1

Work = Callable[[], Awaitable[None]]


class Start:
    """Of one term."""

    def __init__(
        self, caches: Mapping[str, Cache], fleet: Fleet, counted: asyncio.Event, clock: Clock
    ) -> None:
        """`counted` is set once it is known what was spent."""
        self._caches = caches
        self._fleet = fleet
        self._counted = counted
        self._clock = clock

    async def synced(self, work: Work) -> None:
        """Do work once the records of all kinds are known."""
        for cache in self._caches.values():
            await cache.synced.wait()
        await work()

    async def heard(self, work: Work, *, counted: bool = False) -> None:
        """Do work once the agents have been heard, too: who was not asked yet is not silent.

        With `counted` once it is known what was spent, as well.
        """

        async def hear() -> None:
            left = until(self._clock, HEAR_SECONDS)
            while left() > 0 and not (self._fleet.members and self._fleet.heard()):
                await self._clock.sleep(LOOK_SECONDS)
            if counted:
                await self._counted.wait()
            await work()

        await self.synced(hear)
