"""The controller: stands for election, and serves one term after the other.

`run` is started by the composition root and ends by cancelling, or with the exception that ended a
term when `exit_on_loss` is set: a real process then exits and starts afresh, because a process that
lost its office may be late in everything it believes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from dsec.api.internal import (
    CreatesCall,
    DumpCall,
    EndCall,
    EndOutcome,
    ExtendAsk,
    ExtendOutcome,
    LeaseAnswer,
    LeaseCall,
    MoveAsk,
    MoveOutcome,
)
from dsec.api.wire import KeyedAnswers
from dsec.controllers.election import Election, OfficeLostError
from dsec.controllers.keyed import CallInvalidError
from dsec.controllers.outside import World
from dsec.controllers.replica_scaler import Switches
from dsec.controllers.term import Term
from dsec.journal.bindlog import BindLog, FencedError
from dsec.journal.denials import Denials
from dsec.journal.history import AUDIT, HistoryWriter
from dsec.placement.compaction import CompactionPolicy
from dsec.placement.dumps import DecisionDump
from dsec.placement.plans import PreemptionPolicy
from dsec.world.objects import ObjectStoreError
from dsec.world.records import RecordsError

RETRY_SECONDS = 1.0

log = structlog.get_logger()


class NotLeadingError(Exception):
    """This controller does not lead now, or its records are not read yet: try again."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """One controller process. `endpoint` is where gateways reach its internal API."""

    identity: str
    endpoint: str
    namespace: str = "dsec-system"
    region: str = "local"
    exit_on_loss: bool = True
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    switches: Switches = field(default_factory=Switches)
    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)


class Controller:
    """One candidate and, while it leads, its term."""

    def __init__(
        self,
        world: World,
        config: ControllerConfig,
        *,
        hold: Callable[[Election], Callable[[], Awaitable[None]]] = lambda e: e.hold,
    ) -> None:
        """`hold` returns how an election's office is kept; by default a task of this loop."""
        self._world = world
        self._config = config
        self._hold = hold
        self.term: Term | None = None
        self.epoch = 0
        self._denials = Denials(world.clock)
        self._audit = HistoryWriter(
            world.objects,
            world.clock,
            node=f"controller-{config.identity}",
            boot_id=world.randomness.randbytes(8).hex(),
            prefix=AUDIT,
            region=config.region,
        )

    async def run(self) -> None:
        """Stand for election and serve, for ever."""
        auditing = asyncio.ensure_future(self._audit.run())
        try:
            await self._serve()
        finally:
            auditing.cancel()
            await asyncio.gather(auditing, return_exceptions=True)
            await self._audit.close()

    def denied(self, *, method: str, path: str, source: str, why: str) -> None:
        """Note a call of somebody without the secret: in the log, and in the audit soon."""
        unwritten = self._denials.take(source)
        if unwritten is None:
            return
        log.warning("denied", method=method, path=path, source=source, why=why)
        self._audit.add(
            "denied",
            user="anonymous",
            method=method,
            path=path,
            source=source,
            why=why,
            unwritten=unwritten,
        )

    async def _serve(self) -> None:
        while True:
            try:
                await self._serve_once()
            except (FencedError, OfficeLostError) as problem:
                log.warning("term is over", epoch=self.epoch, why=str(problem))
                if self._config.exit_on_loss:
                    raise
            except (ObjectStoreError, RecordsError) as problem:
                log.warning("cannot lead now", why=str(problem))
            await self._world.clock.sleep(RETRY_SECONDS)

    async def create(self, call: CreatesCall) -> KeyedAnswers:
        """Bind a batch of keyed creates. Raises NotLeadingError, CallInvalidError."""
        return await self._leading().create(call)

    async def end(self, call: EndCall) -> EndOutcome:
        """End sandboxes of a project. Raises NotLeadingError."""
        return await self._leading().end(call)

    async def extend(self, ask: ExtendAsk) -> ExtendOutcome:
        """Have the reaper leave a sandbox alone. Raises NotLeadingError, ObjectStoreError."""
        return await self._leading().reaper.extend(ask)

    async def move(self, ask: MoveAsk) -> MoveOutcome:
        """Move a sandbox, let it sleep, wake it. Raises NotLeadingError, ObjectStoreError."""
        return await self._leading().sleeper.ask(ask)

    async def lease(self, call: LeaseCall) -> LeaseAnswer:
        """Lend a gateway quota and keys. Raises NotLeadingError."""
        return await self._leading().keyed.lease(call)

    async def dump(self, _: DumpCall) -> DecisionDump:
        """Dump the next round of decisions.

        Raises NotLeadingError, and CallInvalidError where nothing waits.
        """
        found = await self._leading().placer.dump()
        if found is None:
            raise CallInvalidError("nothing waits for a place, so there is no decision to dump")
        return found

    @property
    def leading(self) -> bool:
        """True while this controller takes calls."""
        return self.term is not None and self.term.ready.is_set()

    def _leading(self) -> Term:
        if self.term is None or not self.term.ready.is_set():
            raise NotLeadingError("this controller does not lead")
        return self.term

    async def _serve_once(self) -> None:
        world, config = self._world, self._config
        bind_log = BindLog(world.objects, world.clock, config.identity)
        await bind_log.open()
        election = Election(
            world.records,
            world.clock,
            identity=config.identity,
            endpoint=config.endpoint,
            namespace=config.namespace,
        )
        epoch = await election.acquire(bind_log.state.epoch)
        holding = asyncio.ensure_future(self._hold(election)())
        try:
            await self._serve_term(bind_log, epoch, holding)
        finally:
            self.term = None
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            await election.release()

    async def _serve_term(
        self, bind_log: BindLog, epoch: int, holding: "asyncio.Future[None]"
    ) -> None:
        # what was written while this candidate waited, perhaps for days: from the newest snapshot
        await bind_log.open()
        await bind_log.begin(epoch)
        self.epoch = epoch
        history = HistoryWriter(
            self._world.objects,
            self._world.clock,
            node=f"controller-{self._config.identity}",
            boot_id=f"epoch-{epoch}",
            region=self._config.region,
        )
        config = self._config
        self.term = Term(
            self._world,
            bind_log,
            history,
            config.preemption,
            config.switches,
            compaction=config.compaction,
        )
        log.info("term begins", epoch=epoch, live=sum(1 for _ in bind_log.state.live()))
        serving = asyncio.ensure_future(self.term.run())
        writing = asyncio.ensure_future(history.run())
        try:
            await asyncio.wait({serving, holding}, return_when=asyncio.FIRST_COMPLETED)
            for task in (holding, serving):
                if task.done():
                    task.result()
        finally:
            self.term = None
            serving.cancel()
            writing.cancel()
            await asyncio.gather(serving, writing, return_exceptions=True)
            await history.close()
