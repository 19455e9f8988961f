"""One term of office: everything a leader runs, from its epoch to its end.

Started by `Controller` once the office is won; it ends when any part fails for good (fenced, store
away, office lost) and then nothing of it goes on. All state here is soft: the bind log, the records
and the agents hold what counts.
"""

import asyncio
from collections.abc import Sequence

import structlog

from dsec.api.internal import CreatesCall, EndCall, EndOutcome
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxStatus
from dsec.api.wire import KeyedAnswers, NodeState
from dsec.controllers.accountant import accountant
from dsec.controllers.buyer import buyer
from dsec.controllers.candidates import Candidates
from dsec.controllers.collector import Collector, closed_status
from dsec.controllers.compactor import Compacting
from dsec.controllers.creates import Placer
from dsec.controllers.digests import Digests
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.drainer import Drainer
from dsec.controllers.experiments import Experiments, Parts
from dsec.controllers.fleet import Fleet
from dsec.controllers.housekeeping import keep_house, watch_failures
from dsec.controllers.images import DeclaredImages, Images
from dsec.controllers.keyed import KeyedCreates
from dsec.controllers.leasing import Leasing
from dsec.controllers.mover import Mover
from dsec.controllers.nodes import NodePools, Nodes, Traits
from dsec.controllers.outside import World
from dsec.controllers.reaper import Reaper
from dsec.controllers.replica_scaler import ReplicaScaler, Switches
from dsec.controllers.replicator import replicator
from dsec.controllers.runtime import WorkQueue
from dsec.controllers.scaling_signals import ScalingSignals
from dsec.controllers.sleeper import Sleeper
from dsec.controllers.starting import Start
from dsec.controllers.sweeper import Sweeper
from dsec.controllers.tenants import Tenants
from dsec.journal.bindings import Binding
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.journal.inputs import Inputs
from dsec.journal.results import ResultReader
from dsec.placement.compaction import CompactionPolicy, Compactor
from dsec.placement.plans import PreemptionPolicy
from dsec.world.agents import NodeMemory
from dsec.world.cache import Cache

STOP_SECONDS = 5.0
KINDS = (
    "Experiment",
    "Tenant",
    "Namespace",
    "SandboxNode",
    "SandboxNodePool",
    "SandboxImage",
    "Budget",
)

log = structlog.get_logger()


class Term:
    """The parts of one term, wired together."""

    def __init__(
        self,
        world: World,
        bind_log: BindLog,
        history: HistoryWriter,
        preemption: PreemptionPolicy,
        switches: Switches,
        *,
        compaction: CompactionPolicy,
    ) -> None:
        clock = world.clock
        self.world = world
        self.bind_log = bind_log
        self.history = history
        self.caches = {kind: Cache(world.records, kind, clock) for kind in KINDS}
        self.traits = Traits(self.caches["SandboxNodePool"])
        self.fleet = Fleet(world.network, clock, self._answered, self.traits.of)
        compactor = Compactor(compaction)
        self.collector = Collector(
            bind_log,
            world.objects,
            clock,
            history,
            changed=self._changed,
            unarrived=self._unarrived,
        )
        self.leasing = Leasing(bind_log, world.objects, clock)
        self.dispatcher = Dispatcher(
            bind_log.epoch,
            bind_log.state,
            self.fleet,
            clock=clock,
            randomness=world.randomness,
            on_refused=self._refused,
            on_unsendable=self._unsendable,
            on_unturned=self._unturned,
            held=self.leasing.held,
        )
        self.tenants = Tenants(
            world.records,
            self.caches["Tenant"],
            self.caches["Namespace"],
            self.caches["Experiment"],
            bind_log,
            self.collector,
            self.dispatcher,
            self.leasing,
            clock,
        )
        self.placer = Placer(
            bind_log,
            self.fleet,
            self.dispatcher,
            clock=clock,
            history=history,
            tenants=self.tenants.specs,
            changed=self._changed,
            preemption=preemption,
            mine=self.leasing.mine,
            snapshots=world.objects,
            moving=compactor.moving,
        )
        self.mover = Mover(
            compactor,
            placer=self.placer,
            dispatcher=self.dispatcher,
            fleet=self.fleet,
            bind_log=bind_log,
            history=history,
            clock=clock,
            changed=self._changed,
        )
        self.compacting = Compacting(
            compactor,
            self.mover,
            placer=self.placer,
            bind_log=bind_log,
            clock=clock,
            changed=self._changed,
        )
        self.sleeper = Sleeper(
            self.placer,
            self.mover,
            self.dispatcher,
            self.fleet,
            bind_log,
            history,
            clock,
            self._changed,
        )
        self.drainer = Drainer(self.mover, self.fleet, bind_log.state, self.dispatcher, clock)
        digests = Digests(world.registry, clock)
        declared = DeclaredImages(self.caches["SandboxImage"])
        self.keyed = KeyedCreates(
            self.caches["Namespace"],
            self.caches["Tenant"],
            bind_log,
            self.placer,
            digests,
            declared,
            self.leasing,
            clock,
            world.randomness,
        )
        self.accountant = accountant(
            self.caches, bind_log, world.objects, world.records, history, clock, self.tenants.specs
        )
        self.placer.displacer.rests = self._rests
        self.placer.displacer.save = self.sleeper.save
        self.keyed.money = self.accountant.refusal
        self.experiments = experiments = Experiments(
            Parts(
                world.records,
                world.objects,
                self.caches["Experiment"],
                self.caches["Namespace"],
                self.caches["Tenant"],
                bind_log,
                self.placer,
                self.dispatcher,
                self.collector,
                self.fleet,
                Candidates(
                    Inputs(world.objects),
                    ResultReader(world.objects),
                    clock,
                    world.randomness,
                    world.objects,
                ),
                history,
                clock,
                digests,
                declared,
                self.compacting,
                self.accountant.hold,
            )
        )
        nodes = Nodes(
            world.records,
            self.caches["SandboxNode"],
            self.fleet,
            self.dispatcher,
            self.placer,
            clock,
            self.compacting,
            self.drainer,
        )
        pools = NodePools(
            world.records, self.caches["SandboxNodePool"], self.caches["SandboxNode"], clock
        )
        images = Images(
            world.records,
            self.caches["SandboxImage"],
            self.caches["Namespace"],
            self.caches["Tenant"],
            world.registry,
            clock,
        )
        # the controllers of dsec: kind, reconcile, records reconciled at once
        self.queues = {
            "Experiment": WorkQueue("experiments", experiments.reconcile, clock, workers=8),
            "Tenant": WorkQueue("tenants", self.tenants.reconcile, clock, workers=2),
            "SandboxNode": WorkQueue("nodes", nodes.reconcile, clock, workers=8),
            "SandboxNodePool": WorkQueue("nodepools", pools.reconcile, clock, workers=1),
            "SandboxImage": WorkQueue("images", images.reconcile, clock, workers=4),
        }
        for kind, queue in self.queues.items():
            self.caches[kind].listen(queue.add)
        self.accountant.turned = self.queues["Experiment"].add
        scaler = ReplicaScaler(
            world.records,
            self.caches["Experiment"],
            bind_log.state,
            ScalingSignals(world.objects, clock, world.metrics),
            history,
            clock,
            lambda uid, role: self.placer.rounds.planner.room(bind_log.state, uid, role),
            switches,
            self.accountant.ceilings,
        )
        self.scaling = WorkQueue("scaling", scaler.reconcile, clock, workers=4)
        self.caches["Experiment"].listen(self.scaling.add)
        self.caches["Namespace"].listen(lambda _: self._all("Tenant", "Experiment"))
        self.caches["Tenant"].listen(lambda _: self._all("Experiment"))
        self.caches["SandboxNode"].listen(lambda _: self._all("SandboxNodePool"))
        self.caches["Tenant"].listen(lambda _: self.placer.kick())
        self.reaper = Reaper(
            bind_log,
            world.objects,
            self.fleet,
            self.collector,
            self.dispatcher,
            clock,
            history,
        )
        self.buyer = buyer(
            (world.records, world.clock, world.suppliers, self.caches),
            bind_log,
            self.fleet,
            self.dispatcher,
            placer=self.placer,
            accountant=self.accountant,
            tenants=self.tenants.specs,
            history=history,
            changed=self._changed,
            mover=self.mover,
        )
        experiments.parts.nodes = self.buyer.about
        self.sweeper = Sweeper(
            world.objects,
            bind_log.state,
            self.tenants.specs,
            self._known,
            history,
            clock,
            world.region,
        )
        self.replicator = replicator(world, self.caches, history)
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Serve until something ends the term; raises what ended it."""
        bind_log = self.bind_log
        await self.leasing.begin(self.placer, self.dispatcher)
        once = Start(self.caches, self.fleet, self.accountant.ready, self.world.clock)
        tasks = [
            *(cache.run() for cache in self.caches.values()),
            *(
                once.synced(queue.run)
                for kind, queue in self.queues.items()
                if kind != "Experiment"
            ),
            # without what was spent, nobody knows what may grow
            once.heard(self._experiments, counted=True),
            once.heard(self.scaling.run, counted=True),
            # the agents are asked meanwhile
            once.synced(self._place),
            once.synced(self.experiments.sweep),
            self.collector.sweep(self.fleet, self.dispatcher),
            once.synced(self.compacting.run),
            once.heard(self.mover.run),
            once.heard(self.drainer.run),
            once.synced(self.sweeper.run),
            once.synced(self.accountant.run),
            once.synced(self.replicator.run),
            once.heard(self.reaper.run),
            once.heard(self.buyer.run, counted=True),
            self.leasing.run(),
            keep_house(bind_log, self.world.clock),
            watch_failures(self.fleet, self.dispatcher, bind_log, self.world.clock),
        ]
        running = [asyncio.ensure_future(task) for task in tasks]
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.ready.clear()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self.dispatcher.close()
            await self.fleet.close()

    # ------------------------------------------------------------------ calls from gateways

    async def create(self, call: CreatesCall) -> KeyedAnswers:
        """Bind a batch of keyed creates. Raises FencedError, LookupError without a tenant."""
        await self.accountant.ready.wait()
        return KeyedAnswers(answers=await self.keyed.create(call))

    async def end(self, call: EndCall) -> EndOutcome:
        """End sandboxes of a project; repeating it changes nothing."""
        if any(sandbox not in self.bind_log.state.by_id for sandbox in call.ids):
            await self.leasing.lanes.catch_up()
        state = self.bind_log.state
        unknown = [
            sandbox
            for sandbox in call.ids
            if (b := state.by_id.get(sandbox)) is None or b.spec.identity.project != call.project
        ]
        live = [state.by_id[i] for i in call.ids if i not in unknown and state.by_id[i].live]
        placed = [b for b in live if b.node]
        await self.collector.stop(live, call.reason, call.message, self.dispatcher)
        taken = await self.dispatcher.stopped([b.id for b in placed], STOP_SECONDS)
        return EndOutcome(unknown=unknown, taken=taken)

    # ------------------------------------------------------------------ wiring

    async def _answered(self, memory: NodeMemory, state: NodeState) -> None:
        await self.leasing.learn(memory.name, state)
        await self.collector.take(memory, state, self.dispatcher)

    def _refused(self, sandbox: str, node: str, reason: str) -> None:
        if not self.mover.refused(sandbox, node, reason):
            self.placer.refused(sandbox, node, reason)

    def _known(self) -> set[str]:
        return {one["metadata"]["uid"] for one in self.caches["Experiment"].all()}

    def _rests(self, binding: Binding) -> bool:
        return binding.id in self.sleeper.busy or self.accountant.keeps_paused(binding)

    def _unarrived(self, status: SandboxStatus) -> bool:
        return self.mover.unarrived(status)

    def _unturned(self, sandbox: str, why: str) -> None:
        self.placer.displacer.turned_down(sandbox, why)

    async def _unsendable(self, binding: Binding, why: str) -> None:
        status = closed_status(binding, EndReason.START_FAILED, why, self.world.clock)
        await self.collector.end([status])

    def _changed(self, bindings: Sequence[Binding]) -> None:
        self.accountant.note(bindings)
        keys = {
            (b.spec.identity.project, b.spec.identity.experiment)
            for b in bindings
            if b.spec.identity.experiment
        }
        for key in keys:
            self.queues["Experiment"].add(key)
        if any(not b.live for b in bindings) or self.placer.displacer.concerns(
            b.id for b in bindings
        ):
            # room came free: whoever waits may start
            self.placer.kick()

    def _all(self, *kinds: str) -> None:
        for kind in kinds:
            for record in self.caches[kind].all():
                meta = record["metadata"]
                self.queues[kind].add((meta.get("namespace", ""), meta["name"]))

    async def _experiments(self) -> None:
        # what another region has taken meanwhile must not start here
        await self.replicator.first(self.queues["Experiment"].run)

    async def _place(self) -> None:
        self.ready.set()
        self.history.add("leader", epoch=self.bind_log.epoch)
        await self.placer.run()
