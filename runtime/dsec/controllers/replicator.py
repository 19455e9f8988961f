"""The leader's copies to other regions: one task of its term, by the ReplicationPolicy records.

Every `LOOK_SECONDS` it looks at the policies, starts the cycles that are due (one at a time for
each policy, so a long one delays no other), and writes beside the snapshots what another region
needs to go on with their experiments: cards, and what their data is bound to. Before anything of an
experiment starts it reads the home epochs of the other regions (`returned`), and parks what lives
elsewhere now. A crash loses nothing: the next leader compares the same lists.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from pydantic import ValidationError

from dsec.api.mistakes import mistakes_of
from dsec.api.records import ReplicationPolicy
from dsec.api.replication import (
    REPLICATE_NOW,
    DeleteRule,
    DestinationStatus,
    ReplicationDestination,
    ReplicationMode,
    ReplicationPolicySpec,
    ReplicationPolicyStatus,
)
from dsec.api.snapshot import SnapshotRef
from dsec.controllers.homes import Homes
from dsec.controllers.outside import World
from dsec.controllers.replication_status import Outcome, after_cycle, invalid
from dsec.journal.history import HistoryWriter
from dsec.rules.replication import mistakes
from dsec.snapshots.limits import Pace
from dsec.snapshots.refs import ReadBefore, list_refs
from dsec.snapshots.replicating import (
    Copied,
    Copier,
    Deletes,
    RepositoryConflictError,
)
from dsec.snapshots.routing import Barred, Route, routes
from dsec.snapshots.surety import Surety
from dsec.world.cache import Cache
from dsec.world.clock import Clock, Randomness, until
from dsec.world.objects import ObjectStore, ObjectStoreError
from dsec.world.records import (
    RecordConflictError,
    RecordNotFoundError,
    Records,
    RecordsError,
)
from dsec.world.remote import OpenStore

LOOK_SECONDS = 10.0
HOMES_SECONDS = 30.0
"""How soon a region that was away for less than its own restart learns what others took."""
CONTINUOUS_PAUSE = 5.0
"""Between two cycles of a continuous policy: a list of both sides costs requests."""
RETURN_SECONDS = 20.0
"""A region that comes back asks the others for so long before it goes on without their answer."""

log = structlog.get_logger()


@dataclass(slots=True)
class Running:
    """One policy's cycles."""

    task: "asyncio.Task[None]"
    generation: int
    began: float


@dataclass(slots=True)
class Replicator:
    """Of one term. `stores` opens other regions' stores; None: nothing is ever copied."""

    records: Records
    objects: ObjectStore
    clock: Clock
    randomness: Randomness
    homes: Homes
    stores: OpenStore | None = None
    returned: asyncio.Event = field(default_factory=asyncio.Event)
    standing: dict[tuple[str, str], DestinationStatus] = field(default_factory=dict)
    """By policy and region, for metrics."""
    sent_bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    _running: dict[str, Running] = field(default_factory=dict)
    _surety: dict[str, Surety] = field(default_factory=dict)
    _read: dict[tuple[str, str], ReadBefore] = field(default_factory=dict)
    """References that were read, by region (empty: this one) and repository."""
    _learned: float | None = None
    """When it last asked the other regions."""

    async def first(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work once it is known what of it lives elsewhere."""
        await self.returned.wait()
        await work()

    async def run(self) -> None:
        """Look, for ever; a store or record store that is away is waited for."""
        try:
            await self._come_back()
            while True:
                try:
                    await self._look()
                except (ObjectStoreError, RecordsError, RecordConflictError) as problem:
                    log.warning("cannot look after copies", error=str(problem))
                await self.clock.sleep(LOOK_SECONDS)
        finally:
            for one in self._running.values():
                one.task.cancel()
            await asyncio.gather(
                *(one.task for one in self._running.values()), return_exceptions=True
            )

    # ------------------------------------------------------------------ what lives elsewhere

    async def _come_back(self) -> None:
        """Learn from the other regions what they took, and let this region's work begin."""
        left = until(self.clock, RETURN_SECONDS)
        try:
            while self.stores is not None:
                try:
                    await self._learn_homes(await self._policies())
                    if not self.homes.unread:
                        break
                except (ObjectStoreError, RecordsError) as problem:
                    log.warning("cannot learn what other regions took", error=str(problem))
                if left() <= 0:
                    log.warning("going on without word of regions", regions=list(self.homes.unread))
                    break
                await self.clock.sleep(1.0)
        finally:
            self.returned.set()

    async def _learn_homes(self, policies: Sequence[ReplicationPolicy]) -> None:
        others: dict[str, ObjectStore] = {}
        unread = set()
        for one in (to for policy in policies for to in policy.spec.destinations):
            try:
                others.setdefault(one.region, await self._store(one))
            except (ObjectStoreError, RecordsError):
                unread.add(one.region)
        if others or unread:
            await self.homes.learn(others, sorted(unread))

    # ------------------------------------------------------------------ one look

    async def _look(self) -> None:
        if self.stores is None:
            return
        policies = await self._policies()
        for name in self._running.keys() - {one.metadata.name for one in policies}:
            self._running.pop(name).task.cancel()
            self.standing = {key: row for key, row in self.standing.items() if key[0] != name}
        if not policies:
            return
        now = self.clock.monotonic()
        if self._learned is None or now - self._learned >= HOMES_SECONDS:
            await self._learn_homes(policies)
            self._learned = now
        await self.homes.keep_cards()
        for policy in policies:
            await self._follow(policy)

    async def _policies(self) -> list[ReplicationPolicy]:
        found = []
        try:
            listed = (await self.records.list("ReplicationPolicy")).items
        except RecordNotFoundError:
            # the definitions of this installation are older than its controller
            return []
        for record in listed:
            try:
                found.append(ReplicationPolicy.model_validate(record))
            except ValidationError as problem:
                text = "; ".join(str(one) for one in mistakes_of(problem))
                log.warning("no policy", name=record["metadata"]["name"], why=text)
        return found

    async def _follow(self, policy: ReplicationPolicy) -> None:
        meta, spec = policy.metadata, policy.spec
        wrong = mistakes(spec, region=self.homes.region)
        if wrong:
            why = "; ".join(str(one) for one in wrong)
            status = invalid(policy.status, why, generation=meta.generation, now=self.clock.now())
            await self._write(meta.name, lambda _: status)
            return
        running = self._running.get(meta.name)
        if running is not None and not running.task.done():
            return
        asked = meta.annotations.get(REPLICATE_NOW, "")
        if self._due(policy, running) or asked != policy.status.handled:
            task = asyncio.ensure_future(self._cycle(policy, asked))
            self._running[meta.name] = Running(task, meta.generation, self.clock.monotonic())

    def _due(self, policy: ReplicationPolicy, running: Running | None) -> bool:
        if policy.spec.paused:
            return False
        if running is not None and running.generation != policy.metadata.generation:
            return True
        continuous = policy.spec.mode is ReplicationMode.CONTINUOUS
        pause = CONTINUOUS_PAUSE if continuous else float(policy.spec.interval_seconds)
        if running is not None:
            return self.clock.monotonic() - running.began >= pause
        last = policy.status.last_cycle
        # a clock that went back must not stop copies: not due is only what lies in between
        age = (self.clock.now() - last).total_seconds() if last is not None else pause
        return not 0 <= age < pause

    # ------------------------------------------------------------------ one cycle

    async def _cycle(self, policy: ReplicationPolicy, asked: str) -> None:
        began, name = self.clock.now(), policy.metadata.name
        try:
            found, barred = await self._routes(policy.spec)
            outcomes = [
                await self._destination(policy, one, found) for one in policy.spec.destinations
            ]
        except (ObjectStoreError, RecordsError) as problem:
            log.warning("no cycle of copies", policy=name, error=str(problem))
            return
        except Exception:
            # what records hold can be anything, too
            log.exception("no cycle of copies", policy=name)
            return
        for one in outcomes:
            sent = sum(copied.bytes for copied in one.copied)
            key = name, one.region
            self.sent_bytes[key] = self.sent_bytes.get(key, 0) + sent
        generation = policy.metadata.generation

        def status(old: ReplicationPolicyStatus) -> ReplicationPolicyStatus:
            fresh = after_cycle(
                old,
                policy.spec,
                outcomes,
                barred,
                generation=generation,
                began=began,
                now=self.clock.now(),
            )
            return fresh.model_copy(update={"handled": asked})

        await self._write(name, status)

    async def _routes(self, spec: ReplicationPolicySpec) -> tuple[list[Route], list[Barred]]:
        repositories = await self.homes.repositories()
        residency = await self.homes.residency(repositories)
        return routes(spec, repositories, residency, home=self.homes.region)

    async def _destination(
        self, policy: ReplicationPolicy, to: ReplicationDestination, found: Sequence[Route]
    ) -> Outcome:
        outcome = Outcome(to.region)
        try:
            target = await self._store(to)
            pace = Pace(self.clock, policy.spec.bandwidth_bytes_per_second)
            for route in found:
                if route.region == to.region:
                    outcome.copied.append(await self._copy(policy.spec, route, target, pace))
        except RepositoryConflictError as problem:
            outcome.conflict = str(problem)
        except (ObjectStoreError, RecordsError) as problem:
            outcome.away = str(problem)
        except Exception as problem:
            # what lies in a store can be anything: one policy's fault must not end a leader's term
            log.exception("copies fail", policy=policy.metadata.name, region=to.region)
            outcome.away = f"a fault of dsec: {problem!r}"
        return outcome

    async def _copy(
        self, spec: ReplicationPolicySpec, route: Route, target: ObjectStore, pace: Pace
    ) -> Copied:
        surety = self._surety.setdefault(
            route.prefix, Surety(self.objects, route.prefix, self.clock)
        )
        mine = self._read.setdefault(("", route.prefix), {})
        refs = (await list_refs(self.objects, route.prefix, read_before=mine)).refs
        deletes = Deletes(
            follow=spec.deletes is DeleteRule.FOLLOW,
            delay=timedelta(seconds=spec.delete_delay_seconds),
            unsure=await surety.why_unsure(ref.created for ref in refs),
        )
        kinds = frozenset(spec.kinds)

        def which(ref: SnapshotRef) -> bool:
            return not kinds or ref.kind in kinds

        return await Copier(
            self.objects,
            target,
            route.prefix,
            self.clock,
            self.randomness,
            pace=pace,
            deletes=deletes,
            which=which,
            read_back=spec.read_back,
            read_source=mine,
            read_target=self._read.setdefault((route.region, route.prefix), {}),
        ).run()

    async def _store(self, to: ReplicationDestination) -> ObjectStore:
        if self.stores is None:
            raise ObjectStoreError(f"{to.region}: this process opens no stores of other regions")
        return await self.stores(to)

    async def _write(
        self, name: str, change: Callable[[ReplicationPolicyStatus], ReplicationPolicyStatus]
    ) -> None:
        try:
            record = await self.records.get("ReplicationPolicy", name)
            old = ReplicationPolicy.model_validate(record).status
            fresh = change(old)
            if fresh != old:
                await self.records.replace_status({**record, "status": fresh.wire()})
        except (RecordConflictError, RecordNotFoundError, RecordsError) as problem:
            log.warning("no status of a policy", policy=name, error=str(problem))
            return
        for row in fresh.destinations:
            self.standing[name, row.region] = row


def replicator(world: World, caches: Mapping[str, Cache], history: HistoryWriter) -> Replicator:
    """Return the replicator of one term."""
    homes = Homes(world.records, world.objects, world.clock, caches, history, world.region)
    return Replicator(
        world.records, world.objects, world.clock, world.randomness, homes, world.stores
    )
