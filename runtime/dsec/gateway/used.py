"""What has been used and paid, as a gateway reads it from the money book: by hour and payer."""

from dataclasses import replace

from dsec.cost.amounts import added
from dsec.cost.entries import Entry, EntryKind, entry_of
from dsec.journal.moneybook import MoneyReader, Row
from dsec.world.objects import ObjectStore

BUCKET = 3600
"""Seconds: use is kept by the hour, so that years of it fit in memory."""


class Costs:
    """What was used, by hour and payer, as far as this gateway has read. Soft."""

    def __init__(self, objects: ObjectStore) -> None:
        self._reader = MoneyReader(objects, self._take)
        self._sums: dict[tuple[float, str, str, str, str], Entry] = {}
        self._charged: dict[str, float] = {}

    async def read(self) -> tuple[list[Entry], float | None]:
        """Return all use and the time up to which it is known. Raises ObjectStoreError."""
        await self._reader.refresh()
        said = await self._reader.now()
        running = [
            entry
            for row in said.get("rows", ())
            if (entry := entry_of(row)).since is not None
            and entry.since >= self._charged.get(entry.source, 0.0)
        ]
        times = [*self._charged.values(), *([float(said["at"])] if said else [])]
        return [*self._sums.values(), *running], max(times, default=None)

    def _take(self, rows: list[Row]) -> None:
        for row in rows:
            entry = entry_of(row)
            if entry.kind is not EntryKind.CONSUME or entry.since is None:
                continue
            until = entry.until or entry.since
            self._charged[entry.source] = max(self._charged.get(entry.source, until), until)
            hour = float(entry.since // BUCKET * BUCKET)
            key = hour, entry.path, entry.pool, entry.what, entry.priced
            known = self._sums.get(key)
            amounts = added(known.amounts if known else {}, entry.amounts)
            self._sums[key] = replace(
                entry, since=hour, until=hour, amounts=amounts, source="sum", commitment=None
            )
