"""A provider without machines: what exists is one object in the store, what happens is `weather`.

It outlives whoever buys from it, as a cloud does: a process that dies between two calls finds all
again. A node's phase follows from the clock: it boots, runs, is taken away, and at its run-until it
ends by itself, whether anybody looks or not.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from dsec.providers.provider import (
    BuyAnswer,
    EndAnswer,
    EventKind,
    Failure,
    FailureKind,
    Fence,
    Holdings,
    Phase,
    ProviderEvent,
    ProviderNode,
    Scope,
    Wanted,
)
from dsec.providers.weather import (
    Weather,
    boot_seconds,
    interrupted_at,
    is_out,
    is_throttled,
    reply_is_lost,
)
from dsec.world.clock import Clock
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError, PreconditionError

REMEMBERED_SECONDS = 3600.0
"""How long an ended node is still told of, as with AWS."""
ATTEMPTS = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Machine:
    """One node, as it was bought, and when it ends or ended. Times are UTC seconds."""

    id: str
    offering: str
    pool: str
    market: str
    zone: str
    token: str
    epoch: int
    launched_at: float
    ready_at: float | None
    """None: it never comes up."""
    run_until: float
    taken_at: float | None
    """When its owner takes it away."""
    ended_at: float | None = None
    """When its end was asked for."""

    @property
    def end(self) -> float:
        """When it stops to cost, as things stand."""
        ends = [self.run_until, self.taken_at, self.ended_at]
        return max(self.launched_at, min(end for end in ends if end is not None))

    def phase(self, now: float) -> Phase:
        """Return what the provider says of it."""
        if now >= self.end:
            return Phase.GONE
        return (
            Phase.RUNNING if self.ready_at is not None and now >= self.ready_at else Phase.STARTING
        )


@dataclass(frozen=True, slots=True)
class Billed:
    """What one machine costs: from `start` to `end`, still running where `final` is False."""

    machine: str
    offering: str
    token: str
    start: float
    end: float
    final: bool


State = dict[str, Machine]


class SimulatedProvider:
    """One installation's simulated nodes. `name` is the object's key in the store."""

    def __init__(
        self, objects: ObjectStore, clock: Clock, weather: Weather, *, name: str = "simulated"
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._weather = weather
        self._key = f"providers/{name}.json"
        self._fence = Fence()
        self._tries: dict[str, int] = {}

    async def buy(self, purchase: Wanted, *, epoch: int, run_until: float) -> BuyAnswer:
        """See `NodeProvider.buy`."""
        self._fence.admit(epoch)
        now, offering = self._now(), purchase.offering
        failure = self._turned_away(now)
        if failure is not None:
            return BuyAnswer(purchase.token, purchase.count, failure=failure)

        def launch(state: State) -> Failure | None:
            if any(machine.token == purchase.token for machine in state.values()):
                return None
            if is_out(self._weather, offering.key, str(offering.market), now):
                words = f"none of {offering.key} now"
                return Failure(FailureKind.CAPACITY, Scope.OFFERING, "out", words)
            for index in range(purchase.count):
                machine = self._machine(purchase, index, now, epoch, run_until)
                state[machine.id] = machine
            return None

        try:
            failure, state = await self._change(launch)
        except ObjectStoreError as error:
            return BuyAnswer(purchase.token, purchase.count, failure=_unsure(str(error)))
        tries = self._tries[purchase.token] = self._tries.get(purchase.token, 0) + 1
        if failure is None and reply_is_lost(self._weather, purchase.token, tries):
            return BuyAnswer(purchase.token, purchase.count, failure=_unsure("the reply was lost"))
        mine = tuple(
            self._node(machine, now)
            for machine in state.values()
            if machine.token == purchase.token and machine.phase(now) is not Phase.GONE
        )
        return BuyAnswer(purchase.token, purchase.count, mine, failure)

    async def list(self) -> Holdings:
        """See `NodeProvider.list`."""
        now = self._now()
        failure = self._turned_away(now)
        if failure is not None:
            return Holdings(complete=False, failure=failure)
        try:
            state, _ = await self._read()
        except ObjectStoreError as error:
            return Holdings(complete=False, failure=_unsure(str(error)))
        alive = (one for one in state.values() if one.phase(now) is not Phase.GONE)
        nodes = tuple(self._node(machine, now) for machine in alive)
        self._fence.learn(node.epoch for node in nodes)
        return Holdings(nodes)

    async def end(self, nodes: Iterable[str], *, epoch: int) -> EndAnswer:
        """See `NodeProvider.end`."""
        now = self._now()
        return await self._each(
            nodes,
            epoch,
            lambda machine: (
                machine if machine.ended_at is not None else replace(machine, ended_at=now)
            ),
            absent_is_done=True,
        )

    async def extend(self, nodes: Iterable[str], run_until: float, *, epoch: int) -> EndAnswer:
        """See `NodeProvider.extend`. It is the node's own end at once: no agent has to be told."""
        now = self._now()

        def later(machine: Machine) -> Machine | None:
            if machine.phase(now) is Phase.GONE:
                return None
            taken = interrupted_at(
                self._weather,
                machine.offering,
                machine.market,
                launched_at=machine.launched_at,
                index=_index(machine.id),
                until=run_until,
            )
            return replace(machine, run_until=run_until, epoch=epoch, taken_at=taken)

        return await self._each(nodes, epoch, later, absent_is_done=False)

    async def remove_volumes(self, volumes: Iterable[str], *, epoch: int) -> EndAnswer:
        """See `NodeProvider.remove_volumes`: its machines have none."""
        self._fence.admit(epoch)
        return EndAnswer(frozenset(volumes))

    async def events(self) -> tuple[ProviderEvent, ...]:
        """See `NodeProvider.events`."""
        now = self._now()
        try:
            state, _ = await self._read()
        except ObjectStoreError:
            return ()
        found = []
        for machine in state.values():
            noticed = None if machine.taken_at is None else machine.taken_at - self._weather.notice
            if machine.phase(now) is Phase.GONE:
                if now - machine.end > REMEMBERED_SECONDS:
                    continue
                words = "taken away" if machine.end == machine.taken_at else "ended"
                found.append(ProviderEvent(EventKind.GONE, machine.id, machine.end, None, words))
            elif noticed is not None and now >= noticed:
                kind, words = EventKind.SPOT_NOTICE, "will be taken away"
                found.append(ProviderEvent(kind, machine.id, noticed, machine.taken_at, words))
        return tuple(found)

    async def bill(self, minimum_seconds: float = 60.0) -> tuple[Billed, ...]:
        """Return what each machine that was ever bought costs up to now. Raises ObjectStoreError.

        Per second from its launch, booting included, at least `minimum_seconds`.
        """
        now = self._now()
        state, _ = await self._read()
        return tuple(
            Billed(
                machine.id,
                machine.offering,
                machine.token,
                machine.launched_at,
                max(min(now, machine.end), machine.launched_at + minimum_seconds),
                now >= machine.end,
            )
            for machine in state.values()
        )

    async def close(self) -> None:
        """See `NodeProvider.close`: nothing is held."""

    # ------------------------------------------------------------------ inside

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _machine(
        self, purchase: Wanted, index: int, now: float, epoch: int, run_until: float
    ) -> Machine:
        offering = purchase.offering
        market = str(offering.market)
        boots = boot_seconds(self._weather, offering.key, now, index)
        return Machine(
            id=f"sim-{_short(purchase.token)}-{index}",
            offering=offering.key,
            pool=offering.pool,
            market=market,
            zone=offering.zone,
            token=purchase.token,
            epoch=epoch,
            launched_at=now,
            ready_at=None if boots is None else now + boots,
            run_until=run_until,
            taken_at=interrupted_at(
                self._weather,
                offering.key,
                market,
                launched_at=now,
                index=index,
                until=run_until,
            ),
        )

    @staticmethod
    def _node(machine: Machine, now: float) -> ProviderNode:
        return ProviderNode(
            id=machine.id,
            name=machine.id,
            offering=machine.offering,
            pool=machine.pool,
            token=machine.token,
            phase=machine.phase(now),
            launched_at=machine.launched_at,
            run_until=machine.run_until,
            epoch=machine.epoch,
            market=machine.market,
            zone=machine.zone,
        )

    def _turned_away(self, now: float) -> Failure | None:
        if not is_throttled(self._weather, now):
            return None
        words = "no more calls for some seconds"
        return Failure(FailureKind.THROTTLED, Scope.PROVIDER, "throttled", words, retry_after=10.0)

    async def _each(
        self,
        nodes: Iterable[str],
        epoch: int,
        change: Callable[[Machine], Machine | None],
        *,
        absent_is_done: bool,
    ) -> EndAnswer:
        """Change machines; `change` returns None for one that cannot be changed any more."""
        self._fence.admit(epoch)
        names = list(nodes)
        failure = self._turned_away(self._now())
        if failure is not None:
            return EndAnswer(failed=dict.fromkeys(names, failure))

        def apply(state: State) -> frozenset[str]:
            done = set()
            for name in names:
                known = state.get(name)
                changed = change(known) if known is not None else None
                if changed is not None:
                    state[name] = changed
                if changed is not None or (known is None and absent_is_done):
                    done.add(name)
            return frozenset(done)

        try:
            done, _ = await self._change(apply)
        except ObjectStoreError as error:
            return EndAnswer(failed=dict.fromkeys(names, _unsure(str(error))))
        gone = Failure(FailureKind.REFUSED, Scope.OFFERING, "gone", "the machine has ended")
        return EndAnswer(done, {name: gone for name in names if name not in done})

    async def _read(self) -> tuple[State, str]:
        try:
            data, etag = await self._objects.get(self._key)
        except NotFoundError:
            return {}, ""
        return {one["id"]: Machine(**one) for one in json.loads(data)}, etag

    async def _change(self, change: Callable[[State], T]) -> tuple[T, Mapping[str, Machine]]:
        """Change the state as one step, however many do so at once. Raises ObjectStoreError."""
        for _ in range(ATTEMPTS):
            state, etag = await self._read()
            before = dict(state)
            answer = change(state)
            if state == before:
                return answer, state
            data = json.dumps([asdict(machine) for machine in state.values()]).encode()
            try:
                if etag:
                    await self._objects.put_if_match(self._key, data, etag)
                else:
                    await self._objects.put_if_absent(self._key, data)
            except PreconditionError:
                continue
            return answer, state
        raise ObjectStoreError(f"{self._key}: {ATTEMPTS} others changed it in between")


def _short(token: str) -> str:
    """Return a part of a node's name that says which purchase it is of."""
    return hashlib.blake2b(token.encode(), digest_size=6).hexdigest()


def _index(machine: str) -> int:
    return int(machine.rpartition("-")[2])


def _unsure(words: str) -> Failure:
    return Failure(FailureKind.UNKNOWN, Scope.PROVIDER, "connection", words, unsure=True)
