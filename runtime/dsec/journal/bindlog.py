"""The bind log: decisions in one append-only sequence of objects, and so the fence of leaders.

Segment N is the object `bindlog/<N>`, created only if absent: two leaders that both believe in
themselves want the same N, one of them gets it, and the other then reads a segment of a higher
epoch and must stop (FencedError). A leader's first segment carries its epoch and no rows.

Snapshots (`bindlog-snapshot/<N>`: the state after segment N) keep replay short. Segments that a
snapshot covers are kept for RETAIN, so that a leader frozen for hours still collides; one that was
frozen for longer notices by its own clock (`append` refuses).

What is lost in a crash: nothing that `append` has returned for. A lost answer of the store is
settled by reading the segment back.
"""

import asyncio
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from dsec.api.base import WireModel
from dsec.journal.bindings import Bindings, Row
from dsec.journal.packing import Packed, pack, unpack
from dsec.world.clock import Clock
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError, PreconditionError

SEGMENTS = "bindlog/"
SNAPSHOTS = "bindlog-snapshot/"
SNAPSHOT_EVERY = 200
"""Segments between snapshots: replay reads at most this many small objects."""
RETAIN = timedelta(hours=48)
"""How long covered segments stay as collision marks for frozen leaders."""
LOOK_AGAIN = 256
"""A reader that found nothing new this often looks for a newer snapshot: the segment after its
position may have been removed while nobody asked it to read."""
EXPIRE_EVERY = timedelta(hours=1)
"""How often a reader drops old keys, by the times in the log: it has no clock of its own."""
RETRY_SECONDS = 0.2
RETRIES = 50
"""Attempts at one append while the store does not answer: about ten seconds, then the leader
gives up its office rather than hold decisions that nobody can read."""

log = structlog.get_logger()


class SegmentError(ObjectStoreError):
    """Under a segment's number there is something that this version cannot read."""


class FencedError(Exception):
    """Another leader of a higher epoch writes the log; this process must stop deciding."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One object of the log.

    `lanes`: gateways' lanes of which this opens one (0), or copies the rows up to a segment's
    number (-1: all, it is closed); `rows` are then such copies and nothing else.
    """

    epoch: int
    writer: str
    rows: Sequence[Row]
    lanes: Mapping[str, int] = field(default_factory=dict)


class _Stored(WireModel):
    """A segment as it is stored.

    `rows` is the form of earlier versions, which they need: they stop at a segment without, rather
    than leave out what they cannot read.
    """

    epoch: int
    writer: str
    lanes: dict[str, int] = {}
    rows: list[Row] | None = None
    packed: Packed | None = None


def encode(segment: Segment) -> bytes:
    """Return a segment as compressed JSON."""
    stored = _Stored(
        epoch=segment.epoch,
        writer=segment.writer,
        lanes=dict(segment.lanes),
        packed=pack(segment.rows),
    )
    return zlib.compress(stored.model_dump_json(by_alias=True, exclude_none=True).encode(), 1)


def decode(data: bytes) -> Segment:
    """Return the segment of an object's content. Raises SegmentError where it is none."""
    try:
        stored = _Stored.model_validate_json(zlib.decompress(data))
        rows = unpack(stored.packed) if stored.packed is not None else stored.rows
    except (ValueError, zlib.error) as problem:
        raise SegmentError(f"a segment of the bind log is unreadable: {problem}") from problem
    if rows is None:
        raise SegmentError("a segment of the bind log has neither rows nor packed ones")
    return Segment(stored.epoch, stored.writer, rows, stored.lanes)


def segment_key(number: int) -> str:
    """Return the object key of a segment."""
    return f"{SEGMENTS}{number:020d}"


class BindLogReader:
    """Follows the log: `refresh` reads what is new. Readers never write."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.state = Bindings()
        self.position = 0
        self._reading = asyncio.Lock()
        # calls of `refresh`, and up to which of them the end of the log has been seen
        self._asked = self._answered = 0
        self._nothing_new = 0
        self._newest: datetime | None = None
        self._expired = datetime.min.replace(tzinfo=UTC)

    async def open(self) -> None:
        """Start from the newest snapshot and read to the end. Raises ObjectStoreError."""
        await self._jump()
        await self.refresh()

    async def _jump(self) -> None:
        """Take over the newest snapshot where it is ahead."""
        snapshots = await self._objects.list(SNAPSHOTS)
        if snapshots:
            number = int(snapshots[-1].key.removeprefix(SNAPSHOTS))
            if number > self.position:
                data, _ = await self._objects.get(snapshots[-1].key)
                self.state = Bindings.load(json.loads(zlib.decompress(data)))
                self.position = number

    async def refresh(self) -> None:
        """Read and apply new segments. Raises ObjectStoreError.

        Calls that wait for each other share one look at the end of the log: a look that began
        after a call says as much as one of its own would.
        """
        self._asked += 1
        mine = self._asked
        async with self._reading:
            while self._answered < mine:
                covered = self._asked
                try:
                    data, _ = await self._objects.get(segment_key(self.position + 1))
                except NotFoundError:
                    position = self.position
                    self._nothing_new += 1
                    if self._nothing_new % LOOK_AGAIN == 0:
                        await self._jump()
                    if self.position == position:
                        await self.at_end()
                        self._expire()
                        self._answered = covered
                    continue
                self._apply(decode(data))

    async def at_end(self) -> None:
        """Read what goes on where the log ends; here nothing does."""

    def take_copies(self, _lane: str, _number: int) -> bool:
        """Return whether copies of a lane's rows, up to a segment, are news; here all are."""
        return True

    def _expire(self) -> None:
        """Drop old keys as the leader does, or a process that only reads grows without bound."""
        if self._newest is not None and self._newest - self._expired > EXPIRE_EVERY:
            self._expired = self._newest
            self.state.expire(self._newest)

    def _apply(self, segment: Segment) -> None:
        newest = max((row.at for row in segment.rows), default=self._newest)
        if newest is not None and (self._newest is None or newest > self._newest):
            self._newest = newest
        self.state.epoch = max(self.state.epoch, segment.epoch)
        if not segment.lanes or any(self.take_copies(*one) for one in segment.lanes.items()):
            self.state.apply(segment.rows)
        self.state.follow_lanes(segment.lanes)
        self.position += 1


class BindLog(BindLogReader):
    """The leader's end of the log: appends are serialised and atomic.

    Create one per term of office, `open` it, then `begin` the epoch.
    """

    def __init__(self, objects: ObjectStore, clock: Clock, writer: str) -> None:
        super().__init__(objects)
        self._clock = clock
        self._writer = writer
        self._writing = asyncio.Lock()
        self._last_append = clock.monotonic()
        self._since_snapshot = 0
        self.epoch = 0

    async def begin(self, epoch: int) -> None:
        """Fence all earlier leaders. Raises FencedError where a later one was here."""
        async with self._writing:
            if self.state.epoch >= epoch:
                raise FencedError(f"epoch {epoch} is over: the log is at {self.state.epoch}")
            if await self._behind():
                # the next number may be one that was removed: writing it would fork the log
                raise FencedError("the log went on while this process waited")
            self.epoch = epoch
            while not await self._try_append(Segment(epoch=epoch, writer=self._writer, rows=[])):
                # an earlier leader got this number; it is fenced by the next one
                await self.refresh()
                if self.state.epoch >= epoch:
                    raise FencedError(f"epoch {epoch} is over: the log is at {self.state.epoch}")

    async def append(self, rows: list[Row], lanes: dict[str, int] | None = None) -> None:
        """Commit rows; when this returns they are durable and applied.

        `lanes` as in Segment. Raises FencedError when this leader's term is over, ObjectStoreError
        when the store is away for long: the caller must then give up its office, because the
        outcome is unknown.
        """
        if not rows and not lanes:
            return
        async with self._writing:
            if self._clock.monotonic() - self._last_append > RETAIN.total_seconds() / 2:
                # the segments that would collide may be gone: prove that nobody else was here
                await self.refresh()
                if await self._behind():
                    raise FencedError("the log went on while this process stood still")
            if not await self._try_append(
                Segment(epoch=self.epoch, writer=self._writer, rows=rows, lanes=lanes or {})
            ):
                raise FencedError(f"epoch {self.epoch} is over: another leader wrote the log")
            self._since_snapshot += 1

    async def verify(self) -> None:
        """Prove by the log that this leader's term lasts. Raises FencedError, ObjectStoreError."""
        async with self._writing:
            later = await self._behind()
            try:
                await self._objects.get(segment_key(self.position + 1))
            except NotFoundError:
                if not later:
                    return
            raise FencedError(f"epoch {self.epoch} is over: another leader wrote the log")

    async def _behind(self) -> bool:
        """Return whether a snapshot covers segments that were not read here."""
        newest = await self._objects.list(SNAPSHOTS)
        return bool(newest) and int(newest[-1].key.removeprefix(SNAPSHOTS)) > self.position

    async def compact(self, *, force: bool = False) -> None:
        """Write a snapshot where one is due, and remove segments older than RETAIN."""
        if self._since_snapshot < SNAPSHOT_EVERY and not force:
            return
        async with self._writing:
            now = self._clock.now()
            self.state.expire(now)
            number, state = self.position, self.state.dump()
            self._since_snapshot = 0
        raw = json.dumps(state | {"at": now.isoformat()}, separators=(",", ":")).encode()
        await self._objects.put(f"{SNAPSHOTS}{number:020d}", zlib.compress(raw, 1))
        await self._trim(now)

    async def _trim(self, now: datetime) -> None:
        """Remove what an old enough snapshot covers, oldest snapshot of the two kept first."""
        snapshots = await self._objects.list(SNAPSHOTS)
        covered = 0
        for info in snapshots[:-1]:
            data, _ = await self._objects.get(info.key)
            written = datetime.fromisoformat(json.loads(zlib.decompress(data))["at"])
            if now - written < RETAIN:
                break
            covered = int(info.key.removeprefix(SNAPSHOTS))
            await self._objects.delete(info.key)
        if not covered:
            return
        for info in await self._objects.list(SEGMENTS):
            if int(info.key.removeprefix(SEGMENTS)) > covered:
                break
            await self._objects.delete(info.key)

    async def _try_append(self, segment: Segment) -> bool:
        """Write the next segment. False: someone else has that number."""
        number = self.position + 1
        data = encode(segment)
        for attempt in range(RETRIES):
            try:
                await self._objects.put_if_absent(segment_key(number), data)
            except PreconditionError:
                # ours, if the answer to an earlier attempt was lost (clients retry inside, too)
                if (await self._objects.get(segment_key(number)))[0] != data:
                    return False
                break
            except ObjectStoreError as problem:
                if attempt == RETRIES - 1:
                    raise
                log.warning("bind log append has no answer", segment=number, error=str(problem))
                await self._clock.sleep(RETRY_SECONDS)
            else:
                break
        self._last_append = self._clock.monotonic()
        self._apply(segment)
        return True
