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

from dsec.api.meta import ConditionStatus
from dsec.api.mistakes import mistakes_of
from dsec.api.records import Experiment, ReplicationPolicy, Tenant
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
from dsec.api.status import ExperimentCondition, Override, OverrideKind
from dsec.controllers.outside import World
from dsec.controllers.replication_status import Outcome, after_cycle, invalid
from dsec.journal.history import HistoryWriter
from dsec.rules.replication import mistakes
from dsec.snapshots.bounds import remember
from dsec.snapshots.cards import Card, write_card
from dsec.snapshots.failover import RESTORE_FROM, returning
from dsec.snapshots.homes import Home
from dsec.snapshots.layout import prefix_of, under
from dsec.snapshots.limits import Pace
from dsec.snapshots.refs import list_refs
from dsec.snapshots.replicating import (
    REPOSITORY,
    Copied,
    Copier,
    Deletes,
    RepositoryConflictError,
)
from dsec.snapshots.routing import Barred, Residency, Route, routes
from dsec.snapshots.surety import Surety
from dsec.world.cache import Cache
from dsec.world.clock import Clock, Randomness, until
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError
from dsec.world.records import (
    Record,
    RecordConflictError,
    RecordNotFoundError,
    Records,
    RecordsError,
)
from dsec.world.remote import OpenStore

LOOK_SECONDS = 10.0
CONTINUOUS_PAUSE = 5.0
"""Between two cycles of a continuous policy: a list of both sides costs requests."""
RETURN_SECONDS = 20.0
"""A region that comes back asks the others for so long before it goes on without their answer."""
PARKED_BY = "failover"

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
    caches: Mapping[str, Cache]
    history: HistoryWriter
    region: str
    stores: OpenStore | None = None
    returned: asyncio.Event = field(default_factory=asyncio.Event)
    standing: dict[tuple[str, str], DestinationStatus] = field(default_factory=dict)
    """By policy and region, for metrics."""
    sent_bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    _running: dict[str, Running] = field(default_factory=dict)
    _carded: dict[str, tuple[int, bool]] = field(default_factory=dict)
    _parked: dict[str, Home] = field(default_factory=dict)
    _surety: dict[str, Surety] = field(default_factory=dict)
    _unread: tuple[str, ...] = ()
    _known: set[str] = field(default_factory=set)
    """Repositories that exist."""

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
                    if not self._unread:
                        break
                except (ObjectStoreError, RecordsError) as problem:
                    log.warning("cannot learn what other regions took", error=str(problem))
                if left() <= 0:
                    log.warning("going on without word of regions", regions=list(self._unread))
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
        if not others and not unread:
            self._unread = ()
            return
        roots = {f"exp/{record['metadata']['uid']}" for record in self.caches["Experiment"].all()}
        found = await returning(
            self.objects, others, await self._repositories(), roots, here=self.region
        )
        self._unread = tuple(sorted(unread | set(found.unread)))
        self._parked = dict(found.parked)
        for record in self.caches["Experiment"].all():
            home = self._parked.get(f"exp/{record['metadata']['uid']}")
            if home is not None:
                await self._park(record, home)

    async def _park(self, record: Record, home: Home) -> None:
        """Freeze an experiment that another region has; its scene stays."""
        experiment = Experiment.model_validate(record)
        if any(one.kind is OverrideKind.FREEZE for one in experiment.status.overrides):
            return
        by = f"{PARKED_BY}: home is {home.region} since epoch {home.epoch}"
        fresh = Override(kind=OverrideKind.FREEZE, by=by, at=self.clock.now())
        kept = [*experiment.status.overrides, fresh]
        wire = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in kept]
        status = {**(record.get("status") or {}), "overrides": wire}
        try:
            written = await self.records.replace_status({**record, "status": status})
        except (RecordConflictError, RecordNotFoundError):
            return  # it changed: the next look sees it as it is then
        self.caches["Experiment"].put(written)
        self.history.add(
            "parked",
            experiment=experiment.metadata.name,
            project=experiment.metadata.namespace,
            region=home.region,
            home_epoch=home.epoch,
        )

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
        await self._learn_homes(policies)
        await self._keep_cards()
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
        wrong = mistakes(spec, region=self.region)
        if wrong:
            why = "; ".join(str(one) for one in wrong)
            status = invalid(policy.status, why, generation=meta.generation, now=self.clock.now())
            await self._write(meta.name, lambda _: status)
            return
        running = self._running.get(meta.name)
        if running is not None and not running.task.done():
            return
        if running is not None and (problem := running.task.exception()) is not None:
            # nothing that a store can do ends here: it is a fault of ours, and the term's
            raise problem
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
        repositories = await self._repositories()
        residency = await self.residency(repositories)
        return routes(spec, repositories, residency, home=self.region)

    async def residency(self, repositories: Sequence[str]) -> Residency:
        """Return where data may be, by the records and by what is remembered beside it."""
        tenants = {
            record["metadata"]["name"]: Tenant.model_validate(record).spec
            for record in self.caches["Tenant"].all()
        }
        owners = {project: name for name, one in tenants.items() for project in one.projects}
        named: dict[str, set[tuple[str, ...]]] = {}
        for record in self.caches["Experiment"].all():
            regions = (record.get("spec") or {}).get("residency") or ()
            owner = owners.get(record["metadata"].get("namespace", ""))
            if owner and regions and set(regions) != set(tenants[owner].residency):
                named.setdefault(owner, set()).add(tuple(sorted(regions)))
        tighter = {}
        for tenant in tenants:
            prefix = prefix_of(tenant)
            if prefix in repositories:
                tighter[tenant] = await remember(self.objects, prefix, named.get(tenant, set()))
        return Residency({name: one.residency for name, one in tenants.items()}, tighter)

    async def _repositories(self) -> list[str]:
        """Return the repositories of tenants that exist: their names are known, none is listed."""
        wanted = set()
        for record in self.caches["Tenant"].all():
            name = record["metadata"]["name"]
            usual = (record.get("spec") or {}).get("residency") or ()
            wanted.add(prefix_of(name))
            wanted |= {
                prefix_of(name, (one.get("spec") or {}).get("residency") or (), usual)
                for one in self.caches["Experiment"].all()
            }
        for prefix in sorted(wanted - self._known):
            try:
                await self.objects.size(under(prefix, REPOSITORY))
            except NotFoundError:
                continue
            self._known.add(prefix)
        return sorted(self._known)

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
        return outcome

    async def _copy(
        self, spec: ReplicationPolicySpec, route: Route, target: ObjectStore, pace: Pace
    ) -> Copied:
        surety = self._surety.setdefault(
            route.prefix, Surety(self.objects, route.prefix, self.clock)
        )
        refs = (await list_refs(self.objects, route.prefix)).refs
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

    # ------------------------------------------------------------------ cards

    async def _keep_cards(self) -> None:
        """Write what another region needs of each experiment that keeps snapshots."""
        tenants = {
            project: record["metadata"]["name"]
            for record in self.caches["Tenant"].all()
            for project in (record.get("spec") or {}).get("projects") or ()
        }
        repositories = frozenset(await self._repositories())
        for record in self.caches["Experiment"].all():
            card = self._card(record, tenants)
            if card is None or prefix_of(card.tenant) not in repositories:
                continue
            mark = card.generation, card.ended
            if self._carded.get(card.root) != mark:
                await write_card(self.objects, prefix_of(card.tenant), card)
                self._carded[card.root] = mark

    def _card(self, record: Record, tenants: Mapping[str, str]) -> Card | None:
        meta = record["metadata"]
        tenant, root = tenants.get(meta.get("namespace", "")), f"exp/{meta['uid']}"
        if tenant is None or root in self._parked or not (record.get("spec") or {}).get("snapshot"):
            return None
        return Card(
            root=root,
            tenant=tenant,
            project=meta.get("namespace", ""),
            name=meta["name"],
            region=self.region,
            generation=int(meta.get("generation", 1)),
            origin=(meta.get("annotations") or {}).get(RESTORE_FROM, ""),
            ended=_ended(record),
            record={
                "apiVersion": record.get("apiVersion"),
                "kind": record.get("kind"),
                "metadata": {key: meta[key] for key in ("labels", "annotations") if meta.get(key)},
                "spec": record.get("spec", {}),
            },
            at=self.clock.now(),
        )


def replicator(world: World, caches: Mapping[str, Cache], history: HistoryWriter) -> Replicator:
    """Return the replicator of one term."""
    return Replicator(
        world.records,
        world.objects,
        world.clock,
        world.randomness,
        caches,
        history,
        world.region,
        world.stores,
    )


def _ended(record: Record) -> bool:
    """Return whether an experiment has nothing to continue."""
    conditions = (record.get("status") or {}).get("conditions") or ()
    return bool(record["metadata"].get("deletionTimestamp")) or any(
        one.get("type") == ExperimentCondition.COMPLETED.value
        and one.get("status") == ConditionStatus.TRUE.value
        for one in conditions
    )
