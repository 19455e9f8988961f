"""History: append-only rows in immutable segments, written by agents and by the control plane.

A segment is `<prefix>/<day>/<node>/<boot id>/<first seq>-<last seq>.ndjson`, created only if
absent, so that a repeated push changes nothing. Rows may be in several segments (a push repeated
with more rows): readers de-duplicate by (node, boot id, seq) and never order by time.

A `HistoryWriter` commits in groups: while one segment is being stored the next one gathers. What a
crash loses is what `flush` has not returned for.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import structlog
from pydantic import BaseModel
from pydantic_core import to_json

from dsec.api.wire import JournalRow
from dsec.world.cache import first_of
from dsec.world.clock import Clock
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError, PreconditionError

HISTORY = "history"
AUDIT = "audit"
"""Prefix of audit rows where the deployment gives audit no bucket of its own."""
GATHER_SECONDS = 0.1
"""Rows that nobody waits for are gathered this long: a burst becomes one object."""
RETRY_SECONDS = 1.0
FLUSH_SECONDS = 10.0
"""Who waits for a row longer than this is told that the store is away."""
CLOSE_SECONDS = 5.0

log = structlog.get_logger()


class Question(BaseModel):
    """What to look for; empty fields match everything."""

    tenant: str = ""
    experiment: str = ""
    sandbox: str = ""
    kind: str = ""
    since: datetime | None = None

    def matches(self, row: JournalRow) -> bool:
        """Return whether a row is wanted."""
        return (
            self.tenant in ("", row.tenant)
            and self.experiment in ("", row.experiment)
            and self.sandbox in ("", row.sandbox)
            and self.kind in ("", row.kind)
            and (self.since is None or row.utc >= self.since)
        )


def segment_key(prefix: str, rows: list[JournalRow]) -> str:
    """Return the object key of rows of one node and boot, in order of seq."""
    first, last = rows[0], rows[-1]
    day = first.utc.strftime("%Y-%m-%d")
    return f"{prefix}/{day}/{first.node}/{first.boot_id}/{first.seq:012d}-{last.seq:012d}.ndjson"


async def store(objects: ObjectStore, rows: list[JournalRow], prefix: str = HISTORY) -> None:
    """Write rows of one node and boot durably. Idempotent. Raises ObjectStoreError."""
    if not rows:
        return
    data = b"".join(to_json(row, by_alias=True) + b"\n" for row in rows)
    try:
        await objects.put_if_absent(segment_key(prefix, rows), data)
    except PreconditionError:
        return


async def read(
    objects: ObjectStore, question: Question, prefix: str = HISTORY
) -> AsyncIterator[JournalRow]:
    """Yield matching rows once each, by (node, boot id, seq). Raises ObjectStoreError."""
    start = question.since.strftime(f"{prefix}/%Y-%m-%d") if question.since else ""
    found: dict[tuple[str, str, int], JournalRow] = {}
    async for row in rows_below(objects, f"{prefix}/", start):
        if question.matches(row):
            found.setdefault((row.node, row.boot_id, row.seq), row)
    for key in sorted(found):
        yield found[key]


async def rows_below(
    objects: ObjectStore, prefix: str, start_after: str = ""
) -> AsyncIterator[JournalRow]:
    """Yield the rows of all segments below a prefix, repeated ones too. Raises ObjectStoreError."""
    for info in await objects.list(prefix, start_after=start_after):
        try:
            data, _ = await objects.get(info.key)
        except NotFoundError:
            continue
        for line in data.splitlines():
            yield JournalRow.model_validate(json.loads(line))


class HistoryWriter:
    """Rows of one process of the control plane. `run` it; `flush` where durability matters."""

    def __init__(
        self,
        objects: ObjectStore,
        clock: Clock,
        *,
        node: str,
        boot_id: str,
        prefix: str = HISTORY,
        region: str = "local",
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._prefix = prefix
        self._row = JournalRow(
            region=region,
            node=node,
            boot_id=boot_id,
            seq=0,
            utc=datetime.min.replace(tzinfo=UTC),
            kind="",
        )
        """What all rows have in common."""
        self._seq = 0
        self._rows: list[JournalRow] = []
        self._storing: list[JournalRow] = []
        self._stored = 0
        self._wake = asyncio.Event()
        self._awaited = asyncio.Event()
        self._progress = asyncio.Condition()

    def add(
        self,
        kind: str,
        *,
        tenant: str = "",
        experiment: str = "",
        sandbox: str = "",
        **body: object,
    ) -> int:
        """Queue a row and return its number."""
        self._seq += 1
        self._rows.append(
            self._row.varied(
                seq=self._seq,
                utc=self._clock.now(),
                tenant=tenant,
                experiment=experiment,
                sandbox=sandbox,
                kind=kind,
                body=body,
            )
        )
        self._wake.set()
        return self._seq

    async def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait until every row added so far is durable; needs a running `run`.

        Raises ObjectStoreError after so many seconds; the rows are still stored later.
        """
        wanted = self._seq
        self._awaited.set()
        await first_of(self._durable(wanted), self._clock.sleep(seconds))
        if self._stored < wanted:
            raise ObjectStoreError(f"history could not be stored within {seconds:g} s")

    async def _durable(self, wanted: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: self._stored >= wanted)

    async def run(self) -> None:
        """Store rows for ever; an unreachable store is waited for and nothing is dropped."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await first_of(self._awaited.wait(), self._clock.sleep(GATHER_SECONDS))
            self._awaited.clear()
            await self._store_all()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Store what is left, once `run` has ended; gives up after so many seconds, and says it."""
        rows = [*self._storing, *self._rows]
        self._rows, self._storing = [], []
        storing = asyncio.ensure_future(store(self._objects, rows, self._prefix))
        await first_of(asyncio.wait({storing}), self._clock.sleep(seconds))
        if not storing.done():
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)
            log.error("history lost: the object store does not answer", rows=len(rows))
        elif storing.exception() is not None:
            log.error("history lost", rows=len(rows), error=str(storing.exception()))

    async def _store_all(self) -> None:
        rows, self._rows = self._rows, []
        self._storing = rows
        while rows:
            try:
                await store(self._objects, rows, self._prefix)
            except ObjectStoreError as problem:
                log.warning("history is not stored, will repeat", error=str(problem))
                await self._clock.sleep(RETRY_SECONDS)
                continue
            self._storing = []
            async with self._progress:
                self._stored = rows[-1].seq
                self._progress.notify_all()
            return
