"""A leader's replicator over the store of one region: what tests of copies and failover run."""

import asyncio
from dataclasses import dataclass
from typing import Any, Self

from dsec.controllers.homes import Homes
from dsec.controllers.replicator import Replicator
from dsec.journal.history import HistoryWriter
from dsec.world.cache import Cache
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryRecords
from dsec.world.remote import OpenStore
from snapshot_world import Region

TENANT = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "Tenant",
    "metadata": {"name": "team-a"},
    "spec": {"projects": ["p"]},
}


@dataclass(slots=True)
class Leader:
    """One region's store and records, and what its leader does about copies."""

    place: Region
    records: MemoryRecords
    caches: dict[str, Cache]
    replicator: Replicator
    tasks: list[Any]

    @classmethod
    async def begin(
        cls, place: Region, stores: OpenStore, *records: dict[str, Any], **more: Any
    ) -> Self:
        """Start it over some records and the tenant's; `stores` opens those of other regions."""
        own = MemoryRecords()
        for record in (TENANT, *records):
            await own.create(record)
        caches = {kind: Cache(own, kind, SystemClock()) for kind in ("Tenant", "Experiment")}
        tasks = [asyncio.ensure_future(cache.run()) for cache in caches.values()]
        for cache in caches.values():
            await cache.synced.wait()
        history = HistoryWriter(place.objects, place.clock, node="controller", boot_id="1")
        homes = Homes(own, place.objects, place.clock, caches, history, place.name)
        one = Replicator(own, place.objects, place.clock, place.randomness, homes, stores)
        return cls(place, own, caches, one, tasks, **more)

    async def look_once(self) -> None:
        """Look once and wait for what began."""
        await self.replicator._look()
        for running in self.replicator._running.values():
            await running.task

    async def end(self) -> None:
        """Stop the caches."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
