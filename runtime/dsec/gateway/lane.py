"""A gateway's end of its lane: rows of creates that wait for each other are written in one put.

Started by nobody: a task writes while there is something to write. When the leader has taken back
what a row needs, or closed the lane, the row is not written and its create is the leader's. What is
lost in a crash: rows whose write has not begun; nobody was told of those.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from dsec.api.decisions import DecisionRecord
from dsec.journal.bindings import Row
from dsec.journal.bindlog import SegmentError
from dsec.journal.lanes import LanedReader, LaneSegment, Shard, put_next
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore, ObjectStoreError

MOST_ROWS = 500
"""Of one segment: a few hundred kilobytes."""

log = structlog.get_logger()


class LaneLostError(Exception):
    """The row was not written and never will be: the leader decides about its key now."""


class LaneDoubtError(Exception):
    """The store did not answer: whether the row is written will be known to the leader only."""


@dataclass(slots=True)
class _Waiting:
    """One row, with what it needs: a shard (None: its key is bound already) and a lease."""

    row: Row
    shard: Shard | None
    lease: str
    decision: DecisionRecord | None
    done: asyncio.Future[None]


class LaneWriter:
    """One lane of this process, from its opening to its end."""

    def __init__(
        self,
        name: str,
        objects: ObjectStore,
        clock: Clock,
        reader: LanedReader,
        writer: str,
        *,
        unreadable: Callable[[], None] = lambda: None,
    ) -> None:
        """`reader` is told of rows as soon as they are written.

        `unreadable` is told where a segment cannot be read, which ends the lane.
        """
        self._unreadable = unreadable
        self.name = name
        self.marked = 0
        """Number of the leader's last mark that was read here."""
        self.shards: set[Shard] = set()
        self.revoked: set[str] = set()
        self.lost = ""
        """Why the lane takes no more rows; empty: it does."""
        self._objects = objects
        self._clock = clock
        self._reader = reader
        self._writer = writer
        self._written = 0
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    def grant(self, shards: set[Shard], marked: int) -> bool:
        """Take what the leader granted; False: it has been taken back since."""
        if self.lost or marked < self.marked:
            return False
        self.shards |= shards
        return True

    async def commit(
        self,
        row: Row,
        *,
        shard: Shard | None = None,
        lease: str = "",
        decision: DecisionRecord | None = None,
    ) -> None:
        """Write a row, with why it goes to its node; on return it is durable and applied.

        Raises LaneLostError, LaneDoubtError.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one = _Waiting(row, shard, lease, decision, done)
        self._waiting.append(one)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name=f"lane-{self.name}")
        # a caller that goes away takes no row of others with it
        await asyncio.shield(one.done)

    async def close(self) -> None:
        """Write what waits, then nothing more."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self.lose("this gateway stops")

    def lose(self, why: str) -> None:
        """Write nothing more."""
        self.lost = self.lost or why

    async def _write(self) -> None:
        while self._waiting:
            self._drop()
            batch = self._waiting[:MOST_ROWS]
            if not batch:
                return
            try:
                written = await self._put(batch)
            except ObjectStoreError as problem:
                if isinstance(problem, SegmentError):
                    log.warning("lane given up", lane=self.name, error=str(problem))
                    self._unreadable()
                    self.lose(str(problem))
                else:
                    self.lose(f"the object store is away: {problem}")
                for one in batch:
                    _fail(one, LaneDoubtError(self.lost))
                continue
            if written:
                # more have come at the end meanwhile
                del self._waiting[: len(batch)]
                for one in batch:
                    if not one.done.done():
                        one.done.set_result(None)

    async def _put(self, batch: Sequence[_Waiting]) -> bool:
        """Write rows as one segment. False: a mark stands there; those that may still, try again.

        Raises ObjectStoreError: the outcome is unknown.
        """
        segment = LaneSegment(
            at=self._clock.now(),
            writer=self._writer,
            rows=[one.row for one in batch],
            paid={one.row.binding.id: one.lease for one in batch if one.row.binding},
            decisions={
                one.row.binding.id if one.row.binding else one.row.id: one.decision
                for one in batch
                if one.decision is not None
            },
        )
        number = self._written + 1
        other = await put_next(self._objects, self._clock, self.name, number, segment)
        self._written = number
        if other is not None:
            self._obey(number, other)
        if not self._reader.applied(self.name, number, other or segment):
            # it is behind: a key that was bound here must be known before it is asked for again
            await self._reader.refresh()
        return other is None

    def _may(self, one: _Waiting) -> bool:
        if self.lost or one.lease in self.revoked:
            return False
        return one.shard is None or one.shard in self.shards

    def _obey(self, number: int, mark: LaneSegment) -> None:
        """Take note of what the leader took back."""
        if not mark.mark:
            self.lose(f"{mark.writer} writes this lane, too")
            return
        self.marked = number
        for tenant, numbers in mark.shards.items():
            self.shards.difference_update((tenant, one) for one in numbers)
        self.revoked.update(mark.leases)
        if mark.closed:
            self.lose("the leader closed the lane")
        # at once: a shard that is lent again later is not the one that these rows were meant for
        self._drop()
        log.info("lane marked", lane=self.name, closed=mark.closed, shards=len(self.shards))

    def _drop(self) -> None:
        """Give up the rows that may not be written any more."""
        for one in self._waiting:
            if not self._may(one):
                _fail(one, LaneLostError(self.lost or "the leader took it back"))
        self._waiting = [one for one in self._waiting if self._may(one)]


def _fail(one: _Waiting, why: Exception) -> None:
    if not one.done.done():
        one.done.set_exception(why)
        # whoever asked may be gone
        one.done.exception()
