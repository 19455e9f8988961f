"""Lanes of the bind log: where gateways write the creates that they have placed by themselves.

A lane belongs to one gateway process. The leader opens it with a segment of the bind log, so that
no later leader can miss one. Segment N of a lane is the object `bindlog-lanes/<lane>/<N>`, created
only if absent. Two write there: the gateway its rows, and the leader its marks, which take shards
of keys and leases of quota back, or close the lane. Whoever wants number N and finds another's
segment there reads it and obeys: so the order in the lane, not a clock, decides what a gateway may
still bind and spend. The leader copies the rows of gateways into the bind log, lane by lane.

What is lost in a crash of either side: nothing that was written. A segment whose answer was lost
is known by its content.
"""

import asyncio
import zlib
from datetime import datetime

import structlog

from dsec.api.base import WireModel
from dsec.api.decisions import DecisionRecord
from dsec.journal.bindings import Row
from dsec.journal.bindlog import RETAIN, RETRIES, RETRY_SECONDS, BindLogReader, SegmentError
from dsec.world.clock import Clock
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError, PreconditionError

LANES = "bindlog-lanes/"
SHARDS = 64
"""Of each tenant's keys; who holds a shard is the only one to bind new keys of it."""
CLOSED = -1
"""In a segment of the bind log: this lane takes no more rows, and all it had are in the log."""

Shard = tuple[str, int]
"""Of the keys of a tenant: its name, and a number below SHARDS."""

log = structlog.get_logger()


class LaneSegment(WireModel):
    """One object of a lane: rows of its gateway, or a mark of the leader.

    `paid` has, by sandbox, the lease that its quota comes from, `decisions` why it goes where it
    goes. A mark takes back `shards` (by
    tenant) and `leases`, or with `closed` everything, for ever.
    """

    at: datetime
    writer: str
    epoch: int = 0
    rows: list[Row] = []
    paid: dict[str, str] = {}
    decisions: dict[str, DecisionRecord] = {}
    mark: bool = False
    shards: dict[str, list[int]] = {}
    leases: list[str] = []
    closed: bool = False


def shard_of(tenant: str, key: str) -> Shard:
    """Return the shard of a tenant's key. Every process of every version finds the same."""
    return tenant, zlib.crc32(f"{tenant}/{key}".encode()) % SHARDS


def lane_key(lane: str, number: int) -> str:
    """Return the object key of a segment."""
    return f"{LANES}{lane}/{number:020d}"


def encode(segment: LaneSegment) -> bytes:
    """Return a segment as compressed JSON."""
    text = segment.model_dump_json(by_alias=True, exclude_none=True)
    return zlib.compress(text.encode(), 1)


def decode(data: bytes) -> LaneSegment:
    """Return the segment of an object's content. Raises SegmentError where it is none."""
    try:
        return LaneSegment.model_validate_json(zlib.decompress(data))
    except (ValueError, zlib.error) as problem:
        raise SegmentError(f"a segment of a lane is unreadable: {problem}") from problem


async def read_next(objects: ObjectStore, lane: str, number: int) -> LaneSegment | None:
    """Return a segment, None where none is yet. Raises ObjectStoreError, SegmentError of those."""
    try:
        data, _ = await objects.get(lane_key(lane, number))
    except NotFoundError:
        return None
    return decode(data)


async def put_next(
    objects: ObjectStore, clock: Clock, lane: str, number: int, segment: LaneSegment
) -> LaneSegment | None:
    """Write a segment under its number. Returns the other's where one is there, None: it is ours.

    Raises ObjectStoreError when the store is away for about ten seconds: the outcome is unknown;
    SegmentError where another's is there that cannot be read: ours is not.
    """
    key, data = lane_key(lane, number), encode(segment)
    for attempt in range(RETRIES):
        try:
            await objects.put_if_absent(key, data)
        except PreconditionError:
            # ours, if the answer to an earlier attempt was lost (clients retry inside, too)
            there, _ = await objects.get(key)
            return None if there == data else decode(there)
        except ObjectStoreError as problem:
            if attempt == RETRIES - 1:
                raise
            log.warning("lane append has no answer", lane=lane, error=str(problem))
            await clock.sleep(RETRY_SECONDS)
        else:
            return None
    raise AssertionError("the last attempt returns or raises")


class LanedReader(BindLogReader):
    """Follows the bind log and, at its end, the open lanes: what was bound is seen at once.

    A lane's rows are applied when they are read there; their copies in the bind log are then left
    out (`take_copies`), so that each row acts once and in the order of its lane.
    """

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects)
        self._lanes: dict[str, int] = {}
        self._unread: dict[str, int] = {}
        """Segments that cannot be read, by lane; each is told of once."""

    async def _jump(self) -> None:
        before = self.state
        await super()._jump()
        if self.state is not before:
            # what was applied beyond the snapshot is to be read again
            self._lanes = {}

    def applied(self, lane: str, number: int, segment: LaneSegment) -> bool:
        """Take a segment that this process has in hand; False: earlier ones are not read yet."""
        if self._known(lane) == number - 1 and lane in self.state.lanes:
            self._take(lane, number, segment)
        return self._known(lane) >= number

    async def at_end(self) -> None:
        """Read the open lanes to their ends. Raises ObjectStoreError."""
        for gone in self._lanes.keys() - self.state.lanes.keys():
            del self._lanes[gone]
        self._unread = {one: at for one, at in self._unread.items() if one in self.state.lanes}
        await asyncio.gather(*(self._follow(lane) for lane in list(self.state.lanes)))

    async def _follow(self, lane: str) -> None:
        while True:
            number = self._known(lane) + 1
            try:
                segment = await read_next(self._objects, lane, number)
            except SegmentError as problem:
                # the leader closes such a lane; until then the log and all other lanes are read
                if self._unread.get(lane) != number:
                    log.warning("lane not followed", lane=lane, segment=number, error=str(problem))
                self._unread[lane] = number
                return
            if segment is None:
                return
            if self._known(lane) == number - 1:
                self._take(lane, number, segment)

    def _known(self, lane: str) -> int:
        """Return the number of the last segment whose rows are applied."""
        return max(self._lanes.get(lane, 0), self.state.lanes.get(lane, 0))

    def _take(self, lane: str, number: int, segment: LaneSegment) -> None:
        self._lanes[lane] = number
        self.state.apply(segment.rows)

    def take_copies(self, lane: str, number: int) -> bool:
        """Return whether the copies of a lane's rows, up to a segment, are news here."""
        return number == CLOSED or number > self._lanes.get(lane, 0)


async def sweep(objects: ObjectStore, clock: Clock, open_lanes: frozenset[str]) -> None:
    """Remove lanes that were closed longer than RETAIN ago. Raises ObjectStoreError.

    Until then their last segment stands in the way of a gateway that was frozen meanwhile.
    """
    found: dict[str, list[str]] = {}
    for info in await objects.list(LANES):
        found.setdefault(info.key.removeprefix(LANES).rpartition("/")[0], []).append(info.key)
    for lane, keys in found.items():
        if lane in open_lanes:
            continue
        last = decode((await objects.get(keys[-1]))[0])
        if clock.now() - last.at > RETAIN:
            for key in keys:
                await objects.delete(key)
