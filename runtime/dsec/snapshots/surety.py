"""Whether the time may be trusted enough to delete by it.

A rule that counts days is only as good as the clock, and a wrong one deletes what is needed. Three
things are compared: the store's own date of an object that was just written (read again before it
is judged: a late answer looks like a wrong clock), what others wrote last, and how far this
process's clock went beside its monotonic one. Where one disagrees nothing is deleted, with the
reason in words.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from dsec.snapshots.layout import under
from dsec.world.clock import Clock
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError

TOLERANCE = timedelta(minutes=5)
READS = 4
READ_AGAIN_SECONDS = 2.0


@runtime_checkable
class Dated(Protocol):
    """A store that says when it wrote an object, by its own clock."""

    async def modified(self, key: str) -> datetime:
        """Return when an object was last written (UTC). Raises NotFoundError, ObjectStoreError."""
        ...


@dataclass(slots=True)
class Surety:
    """Of one process and one store. Remembers when it looked last."""

    objects: ObjectStore
    prefix: str
    clock: Clock
    _last: tuple[datetime, float] | None = None

    async def why_unsure(self, written: Iterable[datetime] = ()) -> str:
        """Return why nothing may be deleted by time now; empty: nothing speaks against it.

        `written` are times that others wrote into what is stored. Raises ObjectStoreError.
        """
        now, ticks = self.clock.now(), self.clock.monotonic()
        before, self._last = self._last, (now, ticks)
        if before is not None:
            drift = (now - before[0]) - timedelta(seconds=ticks - before[1])
            if abs(drift) > TOLERANCE:
                return f"this clock jumped by {drift.total_seconds():.0f} s since the last look"
        ahead = max(written, default=now) - now
        if ahead > TOLERANCE:
            return f"something was written {ahead.total_seconds():.0f} s after now, says this clock"
        return await self._store_disagrees()

    async def _store_disagrees(self) -> str:
        if not isinstance(self.objects, Dated):
            return ""
        key = under(self.prefix, "gc", "clock")
        await self.objects.put(key, self.clock.now().isoformat().encode())
        off = timedelta(0)
        for _ in range(READS):
            now = self.clock.now()
            try:
                off = await self.objects.modified(key) - now
            except NotFoundError as problem:
                raise ObjectStoreError(f"{key}: just written, not there") from problem
            if abs(off) <= TOLERANCE:
                return ""
            await self.clock.sleep(READ_AGAIN_SECONDS)
        return f"the store's clock and this one are {abs(off.total_seconds()):.0f} s apart"
