"""The patrol: looks at every sandbox each five minutes and ends what nobody would miss.

The back-stop behind what agents and experiments end by themselves. Each look asks the agents, who
hold the truth; what is remembered between looks is one object in the store, so that another leader
goes on where this one was. Warnings, catches and what those had wasted are history and metrics.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from dsec.api.internal import ExtendAsk, ExtendOutcome
from dsec.api.reaping import Book, Finding, Mark
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxState
from dsec.api.wire import NodeUse
from dsec.controllers.collector import Collector, closed_status
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.journal.bindings import Binding
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.journal.reaping import ReaperBook
from dsec.scaling.reaping import Act, Look, Policy, Step, extended, step, worth_keeping
from dsec.world.agents import AgentRefusedError, AgentSilentError
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore, ObjectStoreError, PreconditionError

AT_ONCE = 32
"""Nodes that are asked at the same time."""
AT_A_TIME = 500
"""Sandboxes that are looked at in one go: some ten milliseconds."""
PATROL, WARNED, REAPED, EXTENDED = (
    "reaper-patrol",
    "reaper-warned",
    "reaper-ended",
    "reaper-extended",
)
"""Kinds of the history rows."""

log = structlog.get_logger()


@dataclass(slots=True)
class Reaper:
    """Of one term. `run` it; `extend` answers users."""

    bind_log: BindLog
    objects: ObjectStore
    fleet: Fleet
    collector: Collector
    dispatcher: Dispatcher
    clock: Clock
    history: HistoryWriter
    policy: Policy = field(default_factory=Policy)
    warned: Counter[Finding] = field(default_factory=Counter)
    caught: Counter[Finding] = field(default_factory=Counter)
    wasted_seconds: Counter[Finding] = field(default_factory=Counter)
    """Seconds that caught sandboxes had held their room for nothing."""
    wasted_core_seconds: Counter[Finding] = field(default_factory=Counter)
    _memory: dict[str, Mark] = field(default_factory=dict)
    """The newest mark of every sandbox; the book has those that tell something."""
    _book: ReaperBook | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Patrol for ever. Raises FencedError where this term is over."""
        while True:
            try:
                async with self._lock:
                    last = (await self._open()).book.at
                # what a leader before this one looked at is not looked at again at once
                since = self.clock.now().timestamp() - last
                await self.clock.sleep(
                    self.policy.patrol - min(max(0.0, since), self.policy.patrol)
                )
                await self.patrol()
            except (ObjectStoreError, PreconditionError) as problem:
                await self._lost(problem)
                await self.clock.sleep(self.policy.patrol / 10)

    async def patrol(self) -> None:
        """Look at every sandbox once. Raises FencedError, ObjectStoreError, PreconditionError."""
        uses = await self._uses()
        async with self._lock:
            keeper = await self._open()
            now = self.clock.now().timestamp()
            steps: list[tuple[Binding, Step]] = []
            for number, binding in enumerate(list(self.bind_log.state.live()), 1):
                node = uses.get(binding.node)
                look = _look(binding, node, now) if node is not None else None
                if look is not None:
                    found = step(self.policy, self._memory.get(binding.id), look)
                    steps.append((binding, found))
                if number % AT_A_TIME == 0:
                    # whoever waits for a place does not wait for a hundred thousand looks
                    await self.clock.sleep(0)
            live = self.bind_log.state.bound
            kept = {name: mark for name, mark in self._memory.items() if name in live}
            memory = kept | {binding.id: one.mark for binding, one in steps}
            # first what was decided, then the deed: whoever comes next orders it again
            await self._save(keeper, memory, now)
            self._memory = memory
        for binding, one in steps:
            await self._act(binding, one)
        acts = Counter(one.act for _, one in steps if one.act is not None)
        self.history.add(
            PATROL,
            looked=len(steps),
            unheard=len(live) - len(steps),
            warned=acts[Act.WARN],
            ended=acts[Act.END],
        )

    async def extend(self, ask: ExtendAsk) -> ExtendOutcome:
        """Let a sandbox be for a while. Raises ObjectStoreError: nothing is extended then."""
        binding = self.bind_log.state.by_id.get(ask.id)
        if binding is None or not binding.live or binding.spec.identity.project != ask.project:
            return ExtendOutcome(known=False)
        async with self._lock:
            keeper = await self._open()
            now = self.clock.now()
            until = now + timedelta(seconds=ask.seconds)
            old = self._memory.get(ask.id)
            mark = extended(old, now.timestamp(), until.timestamp(), ask.user, SandboxState.BOUND)
            memory = self._memory | {ask.id: mark}
            try:
                await self._save(keeper, memory, keeper.book.at)
            except (ObjectStoreError, PreconditionError) as problem:
                self._book = None
                raise ObjectStoreError(f"the extension is not stored: {problem}") from problem
            self._memory = memory
        self._tell(EXTENDED, binding, until=until.isoformat(), user=ask.user)
        return ExtendOutcome(until=until)

    # ------------------------------------------------------------------ inside

    async def _uses(self) -> dict[str, NodeUse]:
        """Ask every node that has sandboxes; those that do not answer are not looked at."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask(name: str) -> tuple[str, NodeUse | None]:
            watch = self.fleet.watch(name)
            if watch is None or not self.fleet.answers(name):
                return name, None
            async with slots:
                try:
                    return name, await watch.client.use()
                except (AgentSilentError, AgentRefusedError) as problem:
                    log.info("no look at a node", node=name, why=str(problem))
                    return name, None

        answers = await asyncio.gather(*map(ask, self.bind_log.state.nodes()))
        return {name: use for name, use in answers if use is not None}

    async def _act(self, binding: Binding, one: Step) -> None:
        mark, finding = one.mark, one.mark.finding
        if one.act is Act.CLEAR:
            self._tell("reaper-cleared", binding)
        if finding is None or one.act is None:
            return
        if one.act is Act.WARN:
            self.warned[finding] += 1
            due = datetime.fromtimestamp(mark.due or mark.at, UTC).isoformat()
            self._tell(WARNED, binding, finding=finding.value, why=one.words, due=due)
            log.warning("sandbox will be reaped", sandbox=binding.id, why=one.words, due=due)
            return
        if one.act is Act.END:
            cores = binding.spec.resources.cpu_milli / 1000
            self.caught[finding] += 1
            self.wasted_seconds[finding] += round(one.wasted)
            self.wasted_core_seconds[finding] += round(one.wasted * cores)
            self._tell(
                REAPED,
                binding,
                finding=finding.value,
                why=one.words,
                wastedSeconds=round(one.wasted),
                wastedCoreSeconds=round(one.wasted * cores),
            )
        message = f"{one.words}; nobody extended it"
        if finding is Finding.ZOMBIE:
            # its node cannot end it: it is closed here, and whatever is left there is stopped
            status = closed_status(binding, finding.reason, message, self.clock)
            await self.collector.end([status])
            self.dispatcher.stop(binding.node, binding.id, EndReason.FENCED, message)
        elif binding.live:
            self.dispatcher.stop(binding.node, binding.id, finding.reason, message)

    def _tell(self, kind: str, binding: Binding, **body: object) -> None:
        identity = binding.spec.identity
        self.history.add(
            kind,
            tenant=binding.tenant,
            experiment=identity.experiment,
            sandbox=binding.id,
            node=binding.node,
            correlationId=identity.correlation_id,
            **body,
        )

    async def _open(self) -> ReaperBook:
        if self._book is None:
            keeper = ReaperBook(self.objects)
            await keeper.load()
            self._memory = {**self._memory, **keeper.book.marks}
            self._book = keeper
        return self._book

    async def _save(self, keeper: ReaperBook, memory: dict[str, Mark], at: float) -> None:
        marks = {name: mark for name, mark in memory.items() if worth_keeping(self.policy, mark)}
        await keeper.save(Book(at=at, marks=marks))

    async def _lost(self, problem: Exception) -> None:
        """Read the book again the next time. Raises FencedError where another leader wrote it."""
        self._book = None
        log.warning("no patrol", why=str(problem))
        try:
            await self.bind_log.verify()
        except ObjectStoreError:
            return


def _look(binding: Binding, node: NodeUse, now: float) -> Look | None:
    seen = node.sandboxes.get(binding.id)
    if seen is None:
        return None
    spec, beat = binding.spec, seen.last_heartbeat
    return Look(
        at=now,
        state=seen.state,
        running_since=seen.running_since.timestamp() if seen.running_since else None,
        max_run=spec.max_run_seconds,
        cpu_milli=spec.resources.cpu_milli,
        gpus=spec.resources.gpu_count or len(spec.devices),
        cpu_seconds=seen.cpu_seconds,
        # both times are of that node's clock
        beat_age=(node.utc - beat).total_seconds() if beat else None,
    )
