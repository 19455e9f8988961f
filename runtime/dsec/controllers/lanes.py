"""The leader's end of gateways' lanes: it opens, reads, marks and closes them, and copies rows.

Each lane is opened by a segment of the bind log, so that a leader that has begun its term knows
every lane that any earlier one opened. It closes them all before it does anything else; what their
gateways had bound until then is in the bind log from there on. Soft state of one term.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from dsec.api.decisions import DecisionRecord
from dsec.journal.bindings import Binding, Row
from dsec.journal.bindlog import BindLog, SegmentError
from dsec.journal.lanes import CLOSED, LaneSegment, Shard, put_next, read_next
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore

log = structlog.get_logger()


@dataclass(slots=True)
class Lane:
    """One open lane. `read` and `marked` are numbers of segments; `until` is monotonic seconds."""

    name: str
    read: int = 0
    copied: int = 0
    marked: int = 0
    until: float = 0.0
    closed: bool = False
    torn: bool = False
    """A segment could not be read: the lane is to be closed."""
    shards: set[Shard] = field(default_factory=set)
    leases: set[str] = field(default_factory=set)
    rows: list[Row] = field(default_factory=list)
    """Read and not copied yet."""
    paid: dict[str, str] = field(default_factory=dict)
    decisions: dict[str, DecisionRecord] = field(default_factory=dict)
    """Why its gateway chose these nodes; not told of yet."""


Booked = Callable[[Lane, Sequence[Binding]], None]


class Lanes:
    """All open lanes of one term. Whoever calls `read`, `mark` or `open` holds `lock`."""

    def __init__(
        self,
        bind_log: BindLog,
        objects: ObjectStore,
        clock: Clock,
        *,
        rounding: asyncio.Lock,
        book: Booked,
        copied: Booked,
    ) -> None:
        """`rounding` keeps rounds of placement out.

        `book` is told of new bindings before they are in the bind log's state, `copied` of all
        that moved once they are.
        """
        self._log = bind_log
        self._objects = objects
        self._clock = clock
        self._rounding = rounding
        self._book = book
        self._copied = copied
        self.lock = asyncio.Lock()
        self.open_lanes: dict[str, Lane] = {}
        self._owner: dict[Shard, Lane] = {}
        self._asked = self._answered = 0

    def owner(self, shard: Shard) -> Lane | None:
        """Return the lane whose gateway alone may bind new keys of a shard; None: the leader."""
        return self._owner.get(shard)

    def give(self, lane: Lane, shards: Iterable[Shard]) -> None:
        """Let a lane have shards that nobody else has; no round may be under way."""
        for shard in shards:
            self._owner[shard] = lane
            lane.shards.add(shard)

    async def close_all(self) -> None:
        """Close what earlier leaders left open. Raises FencedError, ObjectStoreError."""
        for name, copied in list(self._log.state.lanes.items()):
            lane = self.open_lanes[name] = Lane(name, copied, copied, copied)
            await self.mark(lane, closed=True)

    async def open(self, name: str) -> Lane | None:
        """Open a lane, None: there was one of that name, and its segments must not count again.

        Raises FencedError, ObjectStoreError.
        """
        try:
            if await read_next(self._objects, name, 1) is not None:
                return None
        except SegmentError:
            return None
        await self._log.append([], {name: 0})
        lane = self.open_lanes[name] = Lane(name)
        return lane

    async def catch_up(self) -> None:
        """Copy what gateways have bound up to now. Raises FencedError, ObjectStoreError.

        Calls that wait for each other share one look.
        """
        if not self.open_lanes:
            return
        self._asked += 1
        mine = self._asked
        async with self.lock:
            if self._answered >= mine:
                return
            covered = self._asked
            for lane in list(self.open_lanes.values()):
                await self.read(lane)
                await self._copy(lane)
            self._answered = covered

    async def read(self, lane: Lane) -> None:
        """Read a lane to its end. Raises ObjectStoreError."""
        while not lane.closed:
            try:
                segment = await read_next(self._objects, lane.name, lane.read + 1)
            except SegmentError as problem:
                self._skip(lane, problem)
                continue
            if segment is None:
                return
            self._take(lane, segment)

    async def mark(
        self,
        lane: Lane,
        *,
        shards: Iterable[Shard] = (),
        leases: Iterable[str] = (),
        closed: bool = False,
    ) -> None:
        """Take shards and leases back, or close the lane; then its rows so far are copied.

        On return nothing that was taken back is ever used again, and the bind log has whatever
        was done with it. Raises FencedError, ObjectStoreError.
        """
        gone = sorted(set(shards))
        segment = LaneSegment(
            at=self._clock.now(),
            writer=f"leader {self._log.epoch}",
            epoch=self._log.epoch,
            mark=True,
            shards=by_tenant(gone),
            leases=sorted(set(leases)),
            closed=closed,
        )
        while not lane.closed:
            number = lane.read + 1
            try:
                other = await put_next(self._objects, self._clock, lane.name, number, segment)
            except SegmentError as problem:
                self._skip(lane, problem)
                continue
            self._take(lane, other or segment)
            if other is None:
                break
        await self._copy(lane)
        given_up = list(lane.shards) if lane.closed else gone
        for shard in given_up:
            if self._owner.get(shard) is lane:
                del self._owner[shard]
            lane.shards.discard(shard)
        log.info("lane marked", lane=lane.name, shards=len(given_up), closed=lane.closed)

    def _skip(self, lane: Lane, problem: SegmentError) -> None:
        """Go on after a segment that cannot be read: no leader could lead, else.

        What it bound is bound to nothing: its keys are free, and its sandboxes are ended as fenced.
        """
        log.error("lane is torn", lane=lane.name, segment=lane.read + 1, error=str(problem))
        lane.read += 1
        lane.torn = True

    def _take(self, lane: Lane, segment: LaneSegment) -> None:
        lane.read += 1
        if segment.mark:
            lane.marked = lane.read
            lane.closed = lane.closed or segment.closed
        else:
            lane.rows += segment.rows
            lane.paid |= segment.paid
            lane.decisions |= segment.decisions

    async def _copy(self, lane: Lane) -> None:
        """Copy rows into the bind log, in one segment of their own."""
        if not lane.rows and not lane.closed:
            return
        async with self._rounding:
            rows, lane.rows = lane.rows, []
            now = self._clock.now()
            for row in rows:
                # by the leader's clock: keys expire by the times of the log
                row.at = now
            self._book(lane, [row.binding for row in rows if row.binding is not None])
            number = CLOSED if lane.closed else lane.read
            await self._log.append(rows, {lane.name: number})
            lane.copied = lane.read
            if lane.closed:
                self.open_lanes.pop(lane.name, None)
            state = self._log.state
            ids = dict.fromkeys(row.binding.id if row.binding else row.id for row in rows)
            self._copied(lane, [state.by_id[one] for one in ids if one in state.by_id])
            lane.paid.clear()
            lane.decisions.clear()


def by_tenant(shards: Iterable[Shard]) -> dict[str, list[int]]:
    """Return shards as messages have them."""
    found: dict[str, list[int]] = {}
    for tenant, number in shards:
        found.setdefault(tenant, []).append(number)
    return found
