"""What a gateway has been lent: quota, shards of keys, and a lane to write in.

A project whose single creates came often lately is asked for; what is idle is given back. All of it
is lost without harm: the leader closes the lane of a gateway that is silent, and frees the rest.
Times are of the gateway's own clock, which counts suspended time.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from dsec.api.experiment import TaskClass
from dsec.api.internal import LeaseAnswer, LeaseCall, LeaseWant
from dsec.gateway.errors import ApiError, away
from dsec.gateway.lane import LaneWriter
from dsec.gateway.leader import Leader
from dsec.journal.lanes import LanedReader, Shard
from dsec.placement.entries import Entry
from dsec.placement.leases import Lease, Purse
from dsec.world.cache import first_of
from dsec.world.clock import Clock, Randomness
from dsec.world.objects import ObjectStore, ObjectStoreError

LOOK_SECONDS = 1.0
WINDOW_SECONDS = 10.0
"""How long single creates count as lately."""
OFTEN = 3
"""So many of a project within the window are worth a lease."""
IDLE_SECONDS = 30.0
"""A project without a single create for so long gives everything back."""
AHEAD = 2
"""A lease is for so many times what was created within the window."""
LEAST = 8
"""Of the largest create lately: a lease is for so many at least."""
ASK_SECONDS = 3.0
"""How long an answer is waited for: creates wait for it, too."""
AGAIN_SECONDS = 0.25
"""When more is asked for again at the earliest, once it was refused."""
IMAGES = 64
"""Most images of a project that are asked for."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Project:
    """What a project asked for lately, and what its images are until a time."""

    creates: deque[tuple[float, Mapping[str, int]]] = field(
        default_factory=lambda: deque(maxlen=4096)
    )
    images: dict[str, float] = field(default_factory=dict)
    last: float = 0.0
    pins: dict[str, str] = field(default_factory=dict)
    pinned_until: float = 0.0
    refused_until: float = 0.0


class Leases:
    """Of one gateway process; `run` is one of its tasks."""

    def __init__(
        self,
        leader: Leader,
        objects: ObjectStore,
        reader: LanedReader,
        *,
        clock: Clock,
        randomness: Randomness,
        identity: str,
        unreadable: Callable[[], None] = lambda: None,
    ) -> None:
        """`unreadable` is told of each lane that ends with a segment which cannot be read."""
        self._unreadable = unreadable
        self.holder = f"{identity}-{randomness.randbytes(6).hex()}"
        self.purse = Purse(self.holder)
        self.lane: LaneWriter | None = None
        self._leader = leader
        self._objects = objects
        self._reader = reader
        self._clock = clock
        self._randomness = randomness
        self._projects: dict[str, _Project] = {}
        self._wake = asyncio.Event()
        self._asking = asyncio.Lock()
        self._turn = 0
        self._lanes = 0
        self._silent = False

    # ------------------------------------------------------------------ what placing asks

    def note(self, project: str, amounts: Mapping[str, int], image: str) -> None:
        """Take note of a single create."""
        one, now = self._projects.setdefault(project, _Project()), self._clock.monotonic()
        one.creates.append((now, amounts))
        one.last = now
        one.images.pop(image, None)
        one.images[image] = now
        if len(one.images) > IMAGES:
            del one.images[next(iter(one.images))]
        if self.lane is None and len(one.creates) >= OFTEN:
            self._wake.set()

    def holds(self, shard: Shard) -> LaneWriter | None:
        """Return the lane to write in where this gateway may bind keys of a shard."""
        lane = self.lane
        return lane if lane is not None and not lane.lost and shard in lane.shards else None

    async def image(self, project: str, asked: str) -> str | None:
        """Return what sandboxes use of an image; None: only the leader can tell."""
        one = self._projects.get(project)
        if one is None:
            return None
        if asked not in one.pins:
            await self._more(project)
        return one.pins.get(asked) if self._clock.monotonic() < one.pinned_until else None

    async def pay(self, project: str, entry: Entry) -> str:
        """Pay for a sandbox before it is bound; the lease that paid, empty: none does."""
        paid = self.purse.spend(entry, self._clock.monotonic())
        if not isinstance(paid, str):
            await self._more(project)
            paid = self.purse.spend(entry, self._clock.monotonic())
        return paid if isinstance(paid, str) else ""

    def valid(self) -> int:
        """Return how many leases may be spent now."""
        now = self._clock.monotonic()
        return sum(self.purse.valid(one, now) for one in self.purse.leases)

    def words(self) -> str:
        """Return why this gateway does not place a create itself, for whom the leader is away."""
        if self.valid():
            return "its quota or key is not lent to this gateway, so only a controller can place it"
        return "this gateway has no lease of quota now, so only a controller can place it"

    def drop_lost(self) -> None:
        """Forget what the leader took back."""
        lane = self.lane
        if lane is None:
            return
        for lease_id in list(self.purse.leases):
            if lane.lost or lease_id in lane.revoked:
                self.purse.drop(lease_id)
        if lane.lost:
            log.info("lane lost", lane=lane.name, why=lane.lost)
            self.lane = None

    # ------------------------------------------------------------------ asking

    async def run(self) -> None:
        """Ask, renew and give back, for ever."""
        while True:
            await first_of(self._wake.wait(), self._clock.sleep(LOOK_SECONDS))
            self._wake.clear()
            async with self._asking:
                await self._ask_now()

    async def close(self) -> None:
        """Give everything back, if the leader answers at once."""
        lane = self.lane
        if lane is None:
            return
        await lane.close()
        await first_of(self._hand_back(lane.name), self._clock.sleep(LOOK_SECONDS))

    async def _hand_back(self, lane: str) -> None:
        # where nobody answers, the leader closes the lane after a while
        with contextlib.suppress(ApiError):
            await self._leader.lease(LeaseCall(holder=self.holder, lane=lane, done=True))

    async def _more(self, project: str) -> None:
        """Ask at once for more of what a project has used up, unless that was just refused."""
        turn = self._turn
        async with self._asking:
            one = self._projects.get(project)
            asked = self._turn != turn
            if asked or one is None or self._clock.monotonic() < one.refused_until:
                return
            await self._ask_now()

    async def _ask_now(self) -> None:
        """Ask what is to be asked now; whoever calls holds `_asking`."""
        self.drop_lost()
        now = self._clock.monotonic()
        call = self._call(now)
        if call is None:
            return
        self._turn += 1
        for want in call.wants:
            # until there is an answer that says otherwise
            self._projects[want.project].refused_until = now + AGAIN_SECONDS
        try:
            await self._take(call, await self._asked(call), now)
        except (ApiError, ObjectStoreError) as problem:
            if not self._silent:
                log.warning("no lease of quota", why=str(problem))
            self._silent = True
            return
        self._silent = False

    async def _asked(self, call: LeaseCall) -> LeaseAnswer:
        """Ask, and wait for an answer no longer than creates can. Raises ApiError."""
        asking = asyncio.ensure_future(self._leader.lease(call))
        await first_of(asyncio.wait({asking}), self._clock.sleep(ASK_SECONDS))
        if not asking.done():
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            raise away("the leading controller is silent")
        return asking.result()

    def _call(self, now: float) -> LeaseCall | None:
        """Return what is to be asked now; None: nothing."""
        active = {name for name, one in self._projects.items() if self._active(name, one, now)}
        self._projects = {
            name: one
            for name, one in self._projects.items()
            if name in active or now - one.last < IDLE_SECONDS
        }
        lane = self.lane.name if self.lane is not None else f"{self.holder}-{self._lanes + 1}"
        if self.lane is not None and not active:
            self.lane.lose("nothing was created lately")
            self.drop_lost()
            return LeaseCall(holder=self.holder, lane=lane, done=True)
        wants = [
            LeaseWant(
                id=self._randomness.randbytes(8).hex(),
                project=name,
                amounts=amounts,
                least=self._largest(name),
            )
            for name in sorted(active)
            if (amounts := self._wanted(name, now))
        ]
        back, renew = [], []
        for lease_id, lease in list(self.purse.leases.items()):
            spent = not all(self.purse.left(lease_id).values())
            if _project(lease) not in active or spent or not self.purse.valid(lease_id, now):
                # not to be spent from here on, whatever becomes of the call
                self.purse.drop(lease_id)
                back.append(lease_id)
        due = self.purse.due(now)
        if due or back or wants or any(self._unpinned(name) for name in active):
            renew = list(self.purse.leases)
        if not (wants or renew or back):
            return None
        images = {name: list(self._projects[name].images) for name in sorted(active)}
        return LeaseCall(
            holder=self.holder,
            lane=lane,
            wants=wants,
            renew=renew if self.lane is not None else [],
            give_back=back,
            images=images,
        )

    def _unpinned(self, name: str) -> bool:
        """Return whether the leader has not told of an image yet."""
        one = self._projects[name]
        return bool(one.pins) and not one.pins.keys() >= one.images.keys()

    def _active(self, name: str, one: _Project, now: float) -> bool:
        while one.creates and now - one.creates[0][0] > WINDOW_SECONDS:
            one.creates.popleft()
        known = any(_project(lease) == name for lease in self.purse.leases.values())
        return len(one.creates) >= OFTEN or (known and now - one.last < IDLE_SECONDS)

    def _wanted(self, name: str, now: float) -> dict[str, int]:
        """Return what is still to be lent for a project; empty: it has enough."""
        creates = [amounts for _, amounts in self._projects[name].creates]
        if not creates:
            return {}
        dimensions = {dimension for amounts in creates for dimension in amounts}
        lately = {d: sum(amounts.get(d, 0) for amounts in creates) for d in dimensions}
        least = {d: LEAST * value for d, value in self._largest(name).items()}
        enough = {d: max(lately[d], least[d]) for d in dimensions}
        left = dict.fromkeys(dimensions, 0)
        for lease_id, lease in self.purse.leases.items():
            if _project(lease) == name and self.purse.valid(lease_id, now):
                for dimension, value in self.purse.left(lease_id).items():
                    left[dimension] = left.get(dimension, 0) + value
        if all(left[d] * 2 >= enough[d] for d in dimensions):
            return {}
        return {d: max(AHEAD * lately[d], least[d]) for d in dimensions if enough[d]}

    def _largest(self, name: str) -> dict[str, int]:
        """Return the most that one create of a project took lately, per dimension."""
        found: dict[str, int] = {}
        for _, amounts in self._projects[name].creates:
            for dimension, value in amounts.items():
                found[dimension] = max(value, found.get(dimension, 0))
        return found

    # ------------------------------------------------------------------ answers

    async def _take(self, call: LeaseCall, answer: LeaseAnswer, sent: float) -> None:
        """Take what was lent. Raises ObjectStoreError: then it is of no use here."""
        if answer.epoch < self.purse.epoch:
            return
        if not answer.opened:
            self._lanes += 1
            if self.lane is not None and self.lane.name == call.lane:
                self.lane.lose(answer.why or "the leader knows nothing of it")
            self.drop_lost()
            return
        lane = await self._lane(call.lane, answer.position)
        shards = {(tenant, one) for tenant, numbers in answer.shards.items() for one in numbers}
        if lane is None or not lane.grant(shards, answer.marked):
            return
        self.lane = lane
        for one in answer.leases:
            lease = Lease(
                one.id,
                self.holder,
                one.account,
                one.amounts,
                task_class=TaskClass.GUARANTEED,
                epoch=answer.epoch,
                duration_s=one.duration_s,
            )
            self.purse.put(lease, sent)
            if (known := self._projects.get(_project(lease))) is not None:
                known.refused_until = 0.0
            # the lane tells the leader what was spent
            self.purse.reported(one.id, self.purse.unreported.get(one.id, []))
        self._pin(answer, sent)

    async def _lane(self, name: str, position: int) -> LaneWriter | None:
        """Return the lane, once what the leader bound before is known; None: it is closed."""
        lane = self.lane
        if lane is None:
            self._lanes += 1
            lane = LaneWriter(
                name,
                self._objects,
                self._clock,
                self._reader,
                self.holder,
                unreadable=self._unreadable,
            )
        reader = self._reader
        while reader.position < position or name not in reader.state.lanes:
            before = reader.position
            await reader.refresh()
            if reader.position == before:
                return None
        return lane

    def _pin(self, answer: LeaseAnswer, sent: float) -> None:
        """Take what sandboxes use of images, for as long as the leases are."""
        for project, pins in answer.pins.items():
            if (known := self._projects.get(project)) is not None and answer.leases:
                known.pins = pins
                known.pinned_until = sent + min(one.duration_s for one in answer.leases)


def _project(lease: Lease) -> str:
    return lease.account.partition("/")[2]
