"""A watched cache of the records of one kind: list, watch, and list again when a watch is lost.

Started by a composition root and stopped by cancelling it. Soft state only: a new process lists
everything again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import structlog

from dsec.world.clock import Clock
from dsec.world.records import Record, Records, RecordsError, WatchEvent, WatchExpiredError

RELIST_SECONDS = 300.0
"""A cache lists again after this long without any event: a watch that died silently must not blind
a process for ever."""
RETRY_SECONDS = 1.0

log = structlog.get_logger()
Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped records."""


def key_of(record: Record) -> Key:
    """Return the key of a record."""
    meta = record["metadata"]
    return meta.get("namespace", ""), meta["name"]


class Cache:
    """All records of one kind, as the store last told. Listeners get the key of each change."""

    def __init__(self, records: Records, kind: str, clock: Clock) -> None:
        self.kind = kind
        self._records = records
        self._clock = clock
        self._items: dict[Key, Record] = {}
        self._listeners: list[Callable[[Key], None]] = []
        self.synced = asyncio.Event()

    def listen(self, listener: Callable[[Key], None]) -> None:
        """Call on each change, and once per record at each list."""
        self._listeners.append(listener)

    def get(self, key: Key) -> Record | None:
        """Return a record; callers must not change it."""
        return self._items.get(key)

    def all(self) -> list[Record]:
        """Return all records, in key order; callers must not change them."""
        return [self._items[key] for key in sorted(self._items)]

    def put(self, record: Record) -> None:
        """Take over a record that this process has just written, ahead of the watch."""
        self._items[key_of(record)] = record

    async def run(self) -> None:
        """List and watch for ever."""
        while True:
            try:
                version = await self._list()
                await self._watch(version)
            except WatchExpiredError:
                log.info("watch expired, listing again", kind=self.kind)
            except RecordsError as problem:
                log.warning("record store is away", kind=self.kind, error=str(problem))
                await self._clock.sleep(RETRY_SECONDS)

    async def _list(self) -> str:
        found = await self._records.list(self.kind)
        fresh = {key_of(record): record for record in found.items}
        keys = list(fresh) + [key for key in self._items if key not in fresh]
        self._items = fresh
        self.synced.set()
        self._tell(keys)
        return found.resource_version

    async def _watch(self, version: str) -> None:
        events = self._records.watch(self.kind, version)
        try:
            while True:
                event = await self._next(events)
                if event is None:
                    return
                if event.type == "BOOKMARK":
                    continue
                key = key_of(event.record)
                if event.type == "DELETED":
                    self._items.pop(key, None)
                else:
                    self._items[key] = event.record
                self._tell([key])
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _next(self, events: AsyncIterator[WatchEvent]) -> WatchEvent | None:
        """Return the next event; None at the end of the watch or after a long silence."""
        step = asyncio.ensure_future(anext(events, None))
        timer = asyncio.ensure_future(self._clock.sleep(RELIST_SECONDS))
        try:
            await asyncio.wait({step, timer}, return_when=asyncio.FIRST_COMPLETED)
            return step.result() if step.done() else None
        finally:
            timer.cancel()
            if not step.done():
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)

    def _tell(self, keys: list[Key]) -> None:
        for listener in self._listeners:
            for key in keys:
                listener(key)


async def first_of(*waits: Awaitable[object]) -> None:
    """Wait until one of several is over, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
