"""Lends gateways slices of free quota and shards of keys, so that they place single creates alone.

A gateway that lately took single creates asks for both and renews them. What it binds stands in its
lane (lanes.py), so taking back is a mark there: on its return nothing more is bound or spent with
what was taken, whatever the gateway believes, and what was spent before is known exactly. Clocks
decide only when a silent gateway's lane is closed.

used + leased <= quota: a slice is booked as used when it is granted, and what a gateway binds moves
out of it as its row is copied. Work that waits comes first: while room is kept or made for work,
nothing is lent, and a tenant whose work waits for quota gets its slices back at once.

A sandbox that a gateway has bound is its gateway's for HOLD_SECONDS: it calls the agent, and goes
to another node where that refuses. Whoever is not seen to run by then is the leader's, which
closes the lane first.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count

import structlog

from dsec.api.experiment import TaskClass
from dsec.api.internal import LeaseAnswer, LeaseCall, LeaseTerm
from dsec.api.reasons import PendingReason
from dsec.api.tenant import Amounts
from dsec.api.wire import NodeState
from dsec.controllers.creates import Placer
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.holding import Holding
from dsec.controllers.lanes import Lane, Lanes, by_tenant
from dsec.journal.bindings import Binding
from dsec.journal.bindlog import BindLog
from dsec.journal.keyed import replaceable
from dsec.journal.lanes import SHARDS, Shard, shard_of, sweep
from dsec.placement.accounts import QuotaError
from dsec.placement.leases import DURATION_S, MARGIN_S, Lease, LeaseBook
from dsec.placement.refusal import Refusal
from dsec.placement.words import explain
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore, ObjectStoreError

TICK_SECONDS = 0.5
TAKE_BACK_TICKS = 4
"""Ticks between two looks at all that waits, which may be very many."""
REST_SECONDS = 60.0
"""Keys that another gateway was asked for stay with the leader for so long."""
CLASS = TaskClass.GUARANTEED
"""Of single creates: nobody may take their place."""
SWEEP_SECONDS = 3600.0

log = structlog.get_logger()


class Leasing:
    """Of one term. `run` is one of its tasks, after `begin`."""

    def __init__(self, bind_log: BindLog, objects: ObjectStore, clock: Clock) -> None:
        self._log = bind_log
        self._objects = objects
        self._clock = clock
        self._placer: Placer
        self._dispatcher: Dispatcher
        self.lanes: Lanes
        self._book: LeaseBook | None = None
        self._unfit: set[str] = set()
        self._resting: dict[Shard, float] = {}
        self._claimed: Counter[Shard] = Counter()
        self._holding = Holding(bind_log.state, clock)
        self._swept = clock.monotonic()

    async def begin(self, placer: Placer, dispatcher: Dispatcher) -> None:
        """Close what earlier leaders lent. Raises FencedError, ObjectStoreError.

        Nothing else of the term may run before.
        """
        self._placer, self._dispatcher = placer, dispatcher
        self.lanes = Lanes(
            self._log,
            self._objects,
            self._clock,
            rounding=placer.rounding,
            book=self._spent,
            copied=self._copied,
        )
        async with self.lanes.lock:
            await self.lanes.close_all()

    async def run(self) -> None:
        """Follow gateways for ever. Raises FencedError, ObjectStoreError."""
        for tick in count():
            await self._clock.sleep(TICK_SECONDS)
            await self.lanes.catch_up()
            async with self.lanes.lock:
                if tick % TAKE_BACK_TICKS == 0:
                    await self._take_back()
                await self._expire()
            await self._sweep()

    # ------------------------------------------------------------------ who may bind a key

    def mine(self, tenant: str, key: str) -> bool:
        """Return whether the leader may bind a new key now."""
        return self.lanes.owner(shard_of(tenant, key)) is None

    def held(self, sandbox: str) -> bool:
        """Return whether a sandbox is its gateway's still: the leader calls no agent for it."""
        return self._holding.holds(sandbox, self._dispatcher)

    @asynccontextmanager
    async def claimed(self, tenant: str, keys: Iterable[str]) -> AsyncIterator[None]:
        """Hold keys for the leader: inside, each is known here, or the leader's to bind.

        Shards that are lent are taken back first. Raises FencedError, ObjectStoreError.
        """
        state = self._log.state
        known = {key: state.key(tenant, key) for key in keys}
        wanted = {
            shard_of(tenant, key) for key, one in known.items() if one is None or replaceable(one)
        }
        self._claimed.update(wanted)
        try:
            if any(self.lanes.owner(shard) is not None for shard in wanted):
                async with self.lanes.lock:
                    await self._claim(wanted)
            yield
        finally:
            self._claimed.subtract(wanted)
            self._claimed += Counter()

    async def _claim(self, wanted: Iterable[Shard]) -> None:
        lent: dict[str, set[Shard]] = {}
        for shard in wanted:
            if (lane := self.lanes.owner(shard)) is not None:
                lent.setdefault(lane.name, set()).add(shard)
        for name, shards in lent.items():
            until = self._clock.monotonic() + REST_SECONDS
            self._resting |= dict.fromkeys(shards, until)
            await self.lanes.mark(self.lanes.open_lanes[name], shards=shards)

    async def withhold(self, tenant: str) -> None:
        """Let gateways bind nothing more for a tenant. Raises FencedError, ObjectStoreError."""
        async with self.lanes.lock:
            for lane in list(self.lanes.open_lanes.values()):
                shards = {one for one in lane.shards if one[0] == tenant}
                if shards:
                    await self._revoke(lane, shards, self._of_tenants(lane, {tenant}))

    # ------------------------------------------------------------------ what gateways ask

    async def lease(
        self, call: LeaseCall, tenants: Mapping[str, str], pins: dict[str, dict[str, str]]
    ) -> LeaseAnswer:
        """Renew, grant and take back what a gateway asks. `tenants` has those of its projects.

        Raises FencedError, ObjectStoreError.
        """
        async with self.lanes.lock:
            lane = self.lanes.open_lanes.get(call.lane)
            if lane is not None:
                await self.lanes.read(lane)
                if call.done or lane.closed or lane.torn:
                    await self._close(lane)
                    lane = None
                elif call.give_back:
                    await self._revoke(lane, (), lane.leases.intersection(call.give_back))
            if lane is not None:
                # of projects that are its tenant's no more, or whose tenant may make nothing now
                paying = {f"{tenant}/{project}" for project, tenant in tenants.items()}
                known = self._books().ledger.leases
                await self._revoke(
                    lane,
                    (),
                    {
                        one
                        for one in lane.leases
                        if one in known and known[one].account not in paying
                    },
                )
            if call.done or (lane is None and call.renew):
                return LeaseAnswer(epoch=self._log.epoch, opened=False)
            await self._take_back()
            if call.lane not in self.lanes.open_lanes:
                lane = None
            granted, why = self._granted(call, tenants, lane)
            if lane is None:
                if not granted:
                    return LeaseAnswer(epoch=self._log.epoch, opened=False, why=why)
                lane = await self.lanes.open(call.lane)
                if lane is None:
                    self._hand_back([one.id for one in granted])
                    return LeaseAnswer(epoch=self._log.epoch, opened=False)
            return await self._answer(lane, granted, why, pins)

    def _granted(
        self, call: LeaseCall, tenants: Mapping[str, str], lane: Lane | None
    ) -> tuple[list[Lease], str]:
        """Return what is granted and renewed, and why the rest is not."""
        book, now, why = self._books(), self._clock.monotonic(), ""
        found: list[Lease] = []
        if lane is not None:
            renewed = [book.renew(one, (), now) for one in lane.leases.intersection(call.renew)]
            found += [one for one in renewed if one is not None]
        if call.wants and self._placer.crowded:
            waits = Refusal(PendingReason.CONTROL_PLANE, "lease", 1)
            return found, explain((waits,))
        if call.wants:
            self._placer.rounds.refresh()
        short = self._placer.short_of_quota()
        for want in call.wants:
            tenant = tenants.get(want.project, "")
            if not tenant or tenant in short:
                continue
            account = f"{tenant}/{want.project}"
            try:
                lease = Lease(want.id, call.holder, account, want.amounts, CLASS, book.epoch)
                answer = book.lend(lease, want.least, now)
            except QuotaError as problem:
                why = str(problem)
                continue
            if isinstance(answer, Lease):
                found.append(answer)
            else:
                why = explain(answer)
        return found, why

    async def _answer(
        self, lane: Lane, granted: Sequence[Lease], why: str, pins: dict[str, dict[str, str]]
    ) -> LeaseAnswer:
        now = self._clock.monotonic()
        if granted:
            lane.until = now + DURATION_S
        lane.leases.update(one.id for one in granted)
        tenants = {one.account.partition("/")[0] for one in granted}
        async with self._placer.rounding:
            # no round is under way: what it binds is below `position`, or asks `mine` later
            self._resting = {one: until for one, until in self._resting.items() if until > now}
            every = ((tenant, number) for tenant in tenants for number in range(SHARDS))
            kept = self._resting.keys() | self._claimed.keys()
            free = [one for one in every if one not in kept and self.lanes.owner(one) is None]
            self.lanes.give(lane, free)
            position = self._log.position
        return LeaseAnswer(
            epoch=self._log.epoch,
            opened=True,
            marked=lane.marked,
            position=position,
            shards=by_tenant(sorted(lane.shards)),
            leases=[
                LeaseTerm(
                    id=one.id,
                    account=one.account,
                    amounts=dict(one.amounts),
                    duration_s=one.duration_s,
                )
                for one in granted
            ],
            pins=pins,
            why=why,
        )

    # ------------------------------------------------------------------ what gateways did

    def _spent(self, lane: Lane, bindings: Sequence[Binding]) -> None:
        """Book what was bound, out of the lease that paid."""
        book, planner = self._books(), self._placer.rounds.planner
        for binding in bindings:
            book.seen(planner.entry(binding), lane.paid.get(binding.id, ""), live=True)

    def _copied(self, lane: Lane, bindings: Sequence[Binding]) -> None:
        """Leave what is bound to its gateway for a while, and tell of it."""
        placed = [one for one in bindings if one.live and one.node]
        self._holding.take(lane, placed)
        self._placer.teller.bound(placed, lane.decisions)
        if any(one.live and not one.node for one in bindings):
            # no agent took it: it waits in line now
            self._placer.kick()

    async def learn(self, node: str, answer: NodeState) -> None:
        """Copy what gateways have bound before an agent's word about it is judged.

        A sandbox stands in a lane before an agent is asked for it. Raises FencedError,
        ObjectStoreError.
        """
        state = self._log.state
        for status in answer.sandboxes:
            binding = state.by_id.get(status.identity.id)
            if binding is None or (binding.live and binding.node != node):
                await self.lanes.catch_up()
                return

    def leased(self, tenant: str) -> Amounts:
        """Return what gateways hold of a tenant's quota and have not spent."""
        held = self._books().ledger.leased(tenant)
        return Amounts(
            cpu_milli=held.get("cpu_milli", 0),
            memory_bytes=held.get("memory_bytes", 0),
            gpu_count=held.get("gpu_milli", 0) // 1000,
            sandboxes=held.get("sandboxes", 0),
        )

    # ------------------------------------------------------------------ taking back

    async def _take_back(self) -> None:
        """Take back what others wait for."""
        if not self.lanes.open_lanes:
            return
        book = self._books()
        crowded = self._placer.crowded
        short = self._placer.short_of_quota()
        borrowed = set(book.borrowed()) if short else set()
        for lane in list(self.lanes.open_lanes.values()):
            if crowded:
                await self._close(lane)
                continue
            taken = self._of_tenants(lane, short) | lane.leases.intersection(borrowed | self._unfit)
            if taken:
                await self._revoke(lane, (), taken)
        self._unfit.clear()

    async def _expire(self) -> None:
        """Close the lanes of gateways that are silent, or that leave a create undone."""
        now = self._clock.monotonic()
        late = self._holding.late(self._dispatcher)
        for lane in list(self.lanes.open_lanes.values()):
            if lane.torn or lane.name in late or now >= lane.until + MARGIN_S:
                log.info("lane closed", lane=lane.name, undone=lane.name in late)
                await self._close(lane)
                continue
            until = self._books().until
            over = {one for one in lane.leases if until.get(one, 0.0) + MARGIN_S <= now}
            await self._revoke(lane, (), over)
        for node in self._holding.give_up():
            self._dispatcher.wake(node)
        # what could still be spent of them has been read
        self._books().expire(now, now)

    async def _close(self, lane: Lane) -> None:
        await self.lanes.mark(lane, closed=True)
        self._hand_back(lane.leases)
        lane.leases.clear()

    async def _revoke(self, lane: Lane, shards: Iterable[Shard], leases: set[str]) -> None:
        if not shards and not leases:
            return
        self._books().revoke(leases)
        await self.lanes.mark(lane, shards=shards, leases=leases)
        self._hand_back(leases)
        lane.leases -= leases

    def _hand_back(self, leases: Iterable[str]) -> None:
        """Free what was not spent of leases that a mark has ended."""
        book, now = self._books(), self._clock.monotonic()
        for lease_id in leases:
            book.hand_back(lease_id, (), now)
        self._placer.kick()

    def _of_tenants(self, lane: Lane, tenants: Iterable[str]) -> set[str]:
        known = self._books().ledger.leases
        wanted = set(tenants)
        return {one for one in lane.leases if one in known and known[one].tenant in wanted}

    def _books(self) -> LeaseBook:
        """Return the book in the ledger of now.

        Its predecessors' lanes are closed and copied, so there are no leases that it does not
        know. A planner that had to begin anew has an empty ledger: what is lent is booked again.
        """
        ledger = self._placer.rounds.planner.ledger
        if self._book is None or self._book.ledger is not ledger:
            before, now = self._book, self._clock.monotonic()
            self._book = LeaseBook(ledger, self._log.epoch, now, first=True)
            if before is not None:
                self._placer.rounds.refresh()
                self._unfit.update(self._book.restore(before.shown(), now))
        return self._book

    async def _sweep(self) -> None:
        now = self._clock.monotonic()
        if now - self._swept < SWEEP_SECONDS:
            return
        self._swept = now
        try:
            await sweep(self._objects, self._clock, frozenset(self._log.state.lanes))
        except ObjectStoreError as problem:
            # what is left over only takes room
            log.warning("closed lanes not removed", error=str(problem))
