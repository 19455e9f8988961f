"""One node's agent: the core's answers made durable, and one life per sandbox.

Started by `run_agent` (a process of its own, standalone mode, or many in one for simulated nodes);
stopped by `close`, which leaves the sandboxes running. After a crash nothing is lost but the
uncommitted tail of the spool: nobody has been told about that.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from dsec.agent import pressure, rows
from dsec.agent.config import AgentConfig
from dsec.agent.core import SEQ_PER_INCARNATION, Core
from dsec.agent.deadline import Deadline
from dsec.agent.entry import Entry, Stop
from dsec.agent.feed import Feed
from dsec.agent.inside import Inside
from dsec.agent.life import Ground, Life, destroy
from dsec.agent.metrics import Metrics
from dsec.agent.nodeinfo import offered
from dsec.agent.snapshot_plan import Pressure
from dsec.agent.snapshot_shelf import Shelves
from dsec.agent.snapshot_taking import Bench
from dsec.agent.snapshots import Snapshots
from dsec.agent.spool import Spool, SpoolError
from dsec.agent.state import NodeFiles, StateError, machine_boot_id
from dsec.agent.uplink import Uplink
from dsec.agent.winddown import WindDown
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxSpec, SandboxState
from dsec.api.snapshot import SnapshotKind, SnapshotRef
from dsec.api.wire import (
    CreateAnswer,
    NodeInventory,
    NodeNotice,
    NodeState,
    NodeUse,
    RunUntilAnswer,
    RunUntilCall,
    SandboxUse,
)
from dsec.journal.denials import Denials
from dsec.snapshots.limits import Limits
from dsec.world.clock import Clock, Randomness
from dsec.world.network import Network
from dsec.world.substrate import Chunk, ExecRequest, Started, Substrate, SubstrateError

HOUSEKEEPING_SECONDS = 60.0

_log = structlog.get_logger(__name__)
S = SandboxState


class UnknownSandboxError(Exception):
    """This node has no such sandbox."""


class NotRunningError(Exception):
    """The sandbox is not in a state in which this can be done; the message says which it is."""


class CannotPauseError(Exception):
    """This node cannot freeze the sandbox; it runs on."""


class CannotResumeError(Exception):
    """This node cannot thaw the sandbox now; it stays paused."""


class NoRoomError(Exception):
    """What a pause lent is in use: the sandbox stays paused."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What an agent reaches the world with. `identified`: it has what says who it is already.

    `stores` makes clients for presigned URLs; None: bytes of snapshots go by the gateway.
    """

    substrate: Substrate
    network: Network
    clock: Clock
    randomness: Randomness
    metrics: Metrics
    identified: bool = True
    stores: Network | None = None


class Agent:
    """All of one node. Create with `run_agent`."""

    def __init__(
        self, config: AgentConfig, outside: Outside, inventory: NodeInventory, boot_id: str
    ) -> None:
        self.config = config
        self.clock = outside.clock
        self.substrate = outside.substrate
        self.metrics = outside.metrics
        self.boot_id = boot_id
        self.files = NodeFiles(config.state_dir, durable=config.durable)
        self.uid = config.uid or self.files.uid(outside.randomness)
        self.core = Core(
            config.node_name,
            self.files.next_incarnation(outside.clock.now()),
            inventory,
            epoch=self.files.load_epoch(),
        )
        self.spool = Spool(config.state_dir / "spool", self._snapshot, durable=config.durable)
        self.uplink = Uplink(
            config.gateway,
            outside.network,
            outside.clock,
            outside.randomness,
            identified=outside.identified,
        )
        self._denials = Denials(outside.clock)
        self.feed = Feed(self.core, outside.clock, boot_id)
        self._ship = asyncio.Event()
        self._lives: dict[str, tuple[Life, asyncio.Task[None]]] = {}
        self._background: list[asyncio.Task[None]] = []
        self._shelves = Shelves(
            self.uplink,
            outside.clock,
            outside.randomness,
            config.state_dir / "snapshots",
            outside=outside.stores,
            spool_bytes=config.snapshot_spool_bytes,
        )
        self._snapshots = Snapshots(self._bench(outside, inventory))
        self._ground = Ground(
            core=self.core,
            substrate=outside.substrate,
            uplink=self.uplink,
            clock=outside.clock,
            randomness=outside.randomness,
            # more at once would only make each slower
            creates=asyncio.Semaphore(int(inventory.cpu_milli / config.cpu_overcommit) // 1000 + 1),
            uploads=asyncio.Semaphore(config.uploads),
            archive_patience=config.archive_patience,
            inline_output=config.inline_output,
            snapshots=self._snapshots,
            final_snapshot_seconds=config.final_snapshot_seconds,
            record=self._record,
            commit=self.spool.commit,
        )
        outside.substrate.on_heartbeat = self._heartbeat
        outside.substrate.on_call = Inside(self.core, self.uplink, self._snapshots.marks).call
        self.deadline = Deadline(config.state_dir, outside.clock, boot_id, durable=config.durable)
        self.wind_down = WindDown(self, self.deadline)
        self.notices: dict[str, NodeNotice] = {}

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Recover what an earlier process left, then take over the node.

        Raises SpoolError, StateError.
        """
        recovered = self.spool.open(self.core.incarnation * SEQ_PER_INCARNATION)
        for stored in recovered.entries.values():
            self.core.restore(rows.load_entry(stored))
        if recovered.damaged_lines:
            _log.warning("spool repaired", damaged_lines=recovered.damaged_lines)
        self._row("node-started", {"damagedLines": recovered.damaged_lines})
        found = {spec.identity.id: (spec, init) for spec, init in await self.substrate.adopt()}
        for entry in self.core:
            if entry.live:
                self._spawn(entry, lost=_lost(entry, entry.spec.identity.id in found))
        for sandbox_id, (spec, init) in found.items():
            await self._take_over(sandbox_id, spec, init)
        await self.spool.commit()
        self.deadline.start(self.config.run_until)
        for work in (
            self.uplink.ship(self.config.node_name, self.spool, self._ship),
            self._keep_house(),
            self.wind_down.run(),
            self._snapshots.run(),
        ):
            task = asyncio.create_task(work)
            task.add_done_callback(self._failed)
            self._background.append(task)

    async def _take_over(self, sandbox_id: str, spec: SandboxSpec, init: Started | None) -> None:
        """Deal with what the substrate has and the spool does not."""
        entry = self.core.get(sandbox_id)
        if entry is not None and not entry.live:
            # a process that cannot be killed now must not keep the agent from its other sandboxes
            destroying = asyncio.create_task(destroy(self._ground, sandbox_id))
            destroying.add_done_callback(self._failed)
            self._background.append(destroying)
        elif entry is None:
            entry = self.core.adopt(spec, self.clock.now())
            entry.status.address = init.address if init else None
            self._record(entry, first=True)
            self._spawn(entry)

    async def close(self) -> None:
        """Stop the agent; sandboxes go on without it. Idempotent."""
        tasks = [task for _, task in self._lives.values()] + self._background
        self._lives, self._background = {}, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.spool.commit()
        self.spool.close()
        await self._shelves.close()
        await self.uplink.close()

    # ------------------------------------------------------------------ calls

    def see_epoch(self, epoch: int) -> None:
        """Keep a leader's epoch, on disk, before anything is done for it.

        Raises StaleEpochError, StateError.
        """
        if self.core.see_epoch(epoch):
            self.files.store_epoch(epoch)

    async def create(self, specs: list[SandboxSpec]) -> list[CreateAnswer]:
        """Say the last word on creates; accepted ones are durable when this returns.

        None begins before: what the spool does not know was never started.
        """
        answers, fresh = [], []
        for spec in specs:
            known = self.core.get(spec.identity.id)
            answer = self.core.admit(self._settled(spec), self.clock.now())
            answers.append(answer)
            if known is not None and self.core.get(spec.identity.id) is known:
                continue
            self.metrics.answered(answer)
            if not answer.accepted:
                continue
            for older in self.core.older_copies(spec):
                message = f"incarnation {spec.identity.incarnation} was created on this node"
                self._stop(older, Stop(EndReason.FENCED, message, 0.0))
            entry = self.core.get(spec.identity.id)
            if entry is not None:
                self._record(entry, first=True)
                fresh.append(entry)
        try:
            await self.spool.commit()
        finally:
            # also where that fails: the life of each then ends as what could not be recorded
            for entry in fresh:
                self._spawn(entry)
        return answers

    async def stop(self, ids: list[str], stop: Stop) -> None:
        """End sandboxes; unknown and ended ones are no error."""
        for sandbox_id in ids:
            self._stop(sandbox_id, stop)
        await self.spool.commit()

    async def acknowledge(self, ids: list[str]) -> None:
        """Take note that these ends are recorded elsewhere."""
        for sandbox_id in ids:
            if self.core.acknowledge(sandbox_id) and (entry := self.core.get(sandbox_id)):
                self.spool.append({"put": rows.dump_entry(entry)})
        await self.spool.commit()

    async def pause(self, sandbox_id: str, message: str = "") -> None:
        """Freeze a running sandbox and give out its CPU; `message` says why in its status.

        Raises UnknownSandboxError, NotRunningError, CannotPauseError.
        """
        try:
            await self._turn(sandbox_id, S.RUNNING, self.substrate.pause, S.PAUSED, message)
        except SubstrateError as error:
            raise CannotPauseError(str(error)) from error

    async def resume(self, sandbox_id: str) -> None:
        """Thaw a paused sandbox.

        Raises UnknownSandboxError, NotRunningError, NoRoomError, CannotResumeError.
        """
        self._running(sandbox_id)
        if why := self.core.take_back(sandbox_id):
            raise NoRoomError(why)
        try:
            await self._turn(sandbox_id, S.PAUSED, self.substrate.resume, S.RUNNING)
        except SubstrateError as error:
            self.core.lend(sandbox_id)
            raise CannotResumeError(str(error)) from error
        self._snapshots.resumed(sandbox_id)

    async def snapshot(
        self, sandbox_id: str, kind: SnapshotKind | None, *, reason: str, hold: bool
    ) -> SnapshotRef:
        """Take a snapshot now; `hold`: it stays paused afterwards, and `resume` lets it go on.

        Raises UnknownSandboxError, NotRunningError, SnapshotFailedError.
        """
        entry = self._running(sandbox_id)
        try:
            return await self._snapshots.take(entry, kind, reason=reason, hold=hold)
        finally:
            await self.spool.commit()

    def exec(self, sandbox_id: str, request: ExecRequest) -> AsyncIterator[Chunk]:
        """Run a command in a running sandbox. Raises UnknownSandboxError, NotRunningError."""
        entry = self._running(sandbox_id)
        if entry.status.state is S.PAUSED:
            raise NotRunningError(f"{sandbox_id} is paused")
        return self.substrate.exec(sandbox_id, request)

    def logs(self, sandbox_id: str, *, follow: bool) -> AsyncIterator[Chunk]:
        """Yield output of a sandbox, live or ended but not yet destroyed, else what its end keeps.

        Raises UnknownSandboxError.
        """
        entry = self.core.get(sandbox_id)
        if entry is None:
            raise UnknownSandboxError(sandbox_id)
        if entry.live and entry.status.state not in {S.BOUND, S.PULLING, S.CREATING}:
            return self.substrate.logs(sandbox_id, follow=follow)
        return _kept_output(entry)

    async def state(self, since: int, wait: float, beat: int | None = None) -> NodeState:
        """Return the changes after a number, waiting at most so many seconds for one.

        With a beat number the answer has the heartbeats after it, too; see `Feed`.
        """
        await self.feed.more(since, beat, wait)
        await self.spool.commit()
        state = self.feed.state(since, beat)
        state.run_until, state.ending = self.deadline.run_until, self.wind_down.ending
        state.notices = list(self.notices.values())
        return state

    async def use(self) -> NodeUse:
        """Return what every live sandbox has used, and when it last gave a sign of life."""
        live = {entry.spec.identity.id: entry.status for entry in self.core if entry.live}
        used = await self.substrate.cpu_seconds(list(live))
        return NodeUse(
            node=self.config.node_name,
            utc=self.clock.now(),
            sandboxes={
                name: SandboxUse(
                    state=status.state,
                    running_since=status.times.get(S.RUNNING),
                    last_heartbeat=status.last_heartbeat,
                    cpu_seconds=used.get(name),
                )
                for name, status in live.items()
            },
        )

    def extend(self, call: RunUntilCall) -> RunUntilAnswer:
        """Move the node's own end, on disk before this returns, unless it winds down already.

        Raises StateError.
        """
        if not self.wind_down.ending and self.deadline.extend(
            call.run_until, call.left_seconds, call.revision
        ):
            self.wind_down.moved()
            self.changed()
        return RunUntilAnswer(
            epoch=self.core.epoch,
            run_until=self.deadline.run_until or call.run_until,
            left_seconds=self.deadline.left() or 0.0,
            revision=self.deadline.revision,
            ending=self.wind_down.ending,
        )

    async def notice(self, notice: NodeNotice) -> None:
        """Take note of what the machine's owner announces, and tell followers and history."""
        known = self.notices.get(notice.kind)
        if known and (known.deadline, known.message) == (notice.deadline, notice.message):
            return
        self.notices[notice.kind] = notice
        self._row(f"node-{notice.kind}", notice.wire())
        self.changed()
        await self.spool.commit()

    async def warn_all(self, message: str) -> None:
        """Put a warning into the status and the history of every live sandbox."""
        for entry in self.core:
            if self.core.warn(entry.spec.identity.id, message):
                self._event(entry, "sandbox-warned", {"message": message})
        await self.spool.commit()

    def limit_archives(self, limit: Callable[[], float]) -> None:
        """Bound the time that archives may take, those under way included."""
        self._ground.archive_limit = limit

    def changed(self) -> None:
        """Let followers read the node's own state anew."""
        self.core.touch()
        self.feed.notify()

    def denied(self, *, user: str, method: str, path: str, why: str) -> None:
        """Note a call that was refused for who made it: a row of the journal, as all history."""
        unwritten = self._denials.take(user)
        if unwritten is not None:
            _log.warning("denied", user=user, method=method, path=path, why=why)
            told = {"user": user, "method": method, "path": path, "why": why}
            self._row("denied", {**told, "unwritten": unwritten})

    # ------------------------------------------------------------------ inside

    def _bench(self, outside: Outside, inventory: NodeInventory) -> Bench:
        """Return what snapshots of this node work with."""
        config = self.config
        return Bench(
            core=self.core,
            substrate=outside.substrate,
            clock=outside.clock,
            randomness=outside.randomness,
            shelves=self._shelves,
            directory=config.state_dir / "snapshots",
            note=self._event,
            pause=self.pause,
            resume=self.resume,
            # a simulated machine is not busy because this one is
            pressure=Pressure if inventory.simulated else pressure.read,
            limits=Limits(bytes_per_second=config.snapshot_bytes_per_second),
            first_passes=asyncio.Semaphore(config.snapshots),
            second_passes=asyncio.Semaphore(config.snapshots),
        )

    def _settled(self, spec: SandboxSpec) -> SandboxSpec:
        """Return a spec with the times that this node's pool sets for its sandboxes."""
        times = {
            "heartbeat_seconds": self.config.sandbox_heartbeat_seconds,
            "start_deadline_seconds": self.config.start_deadline_seconds,
        }
        update = {key: value for key, value in times.items() if value is not None}
        return spec.model_copy(update=update) if update else spec

    def _running(self, sandbox_id: str) -> Entry:
        entry = self.core.get(sandbox_id)
        if entry is None:
            raise UnknownSandboxError(sandbox_id)
        if entry.status.state not in {S.RUNNING, S.PAUSED}:
            raise NotRunningError(f"{sandbox_id} is {entry.status.state}, not running")
        return entry

    async def _turn(
        self,
        sandbox_id: str,
        before: SandboxState,
        action: Callable[[str], Awaitable[None]],
        after: SandboxState,
        message: str = "",
    ) -> None:
        """Pause or resume and record it, unless the sandbox has ended in the meantime."""
        entry = self._running(sandbox_id)
        if entry.status.state is not before:
            return
        await action(sandbox_id)
        if entry.status.state in {S.RUNNING, S.PAUSED} and self.core.advance(
            sandbox_id, after, self.clock.now(), message=message
        ):
            self._record(entry)
        await self.spool.commit()

    def _stop(self, sandbox_id: str, stop: Stop) -> None:
        if not self.core.request_stop(sandbox_id, stop, self.clock.now()):
            return
        entry = self.core.get(sandbox_id)
        if entry is not None:
            self._record(entry)
        if sandbox_id in self._lives:
            self._lives[sandbox_id][0].wake()

    def _spawn(self, entry: Entry, *, lost: str = "") -> None:
        sandbox_id = entry.spec.identity.id
        life = Life(self._ground, entry, lost=lost)
        task = asyncio.create_task(life.run(), name=sandbox_id)
        self._lives[sandbox_id] = (life, task)
        task.add_done_callback(lambda done: self._over(sandbox_id, done))

    def _over(self, sandbox_id: str, task: asyncio.Task[None]) -> None:
        if sandbox_id in self._lives and self._lives[sandbox_id][1] is task:
            # else the same sandbox has come back already
            del self._lives[sandbox_id]
        self._failed(task)
        self.spool.rotate()

    def _failed(self, task: asyncio.Task[None]) -> None:
        """Take no more work once something could not be recorded: a full or broken disk.

        Any other error is one task's own: the node goes on.
        """
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("a task of the agent failed", task=task.get_name(), error=repr(error))
        if isinstance(error, SpoolError | StateError):
            self.core.refuse("disk", str(error))

    def _heartbeat(self, sandbox_id: str, _body: dict[str, object]) -> None:
        if not self.core.heartbeat(sandbox_id, self.clock.now()):
            return
        entry = self.core.get(sandbox_id)
        if entry is not None:
            self.metrics.registered(entry)
            self._record(entry)
        if sandbox_id in self._lives:
            self._lives[sandbox_id][0].wake()

    def _record(self, entry: Entry, *, first: bool = False) -> None:
        """Queue the entry as it is, with its journal row, as one record."""
        row = rows.row_of(entry, self.boot_id, self.spool.next_seq(), self.clock.now())
        self.spool.append({"row": row, "put": rows.dump_entry(entry, with_spec=first)})
        self._ship.set()
        self.feed.notify(entry.status.state)
        rows.log(entry)

    def _event(self, entry: Entry, kind: str, body: dict[str, Any]) -> None:
        """Queue the row of something that happened to a sandbox, with the entry as it is."""
        self.metrics.happened(kind, body)
        seq, now = self.spool.next_seq(), self.clock.now()
        row = rows.event_row(entry, kind, body, boot_id=self.boot_id, seq=seq, now=now)
        self.spool.append({"row": row, "put": rows.dump_entry(entry)})
        self._ship.set()
        self.feed.notify()

    def _row(self, kind: str, body: dict[str, Any]) -> None:
        row = rows.node_row(
            self.core,
            kind=kind,
            body=body,
            boot_id=self.boot_id,
            seq=self.spool.next_seq(),
            now=self.clock.now(),
        )
        self.spool.append({"row": row})
        self._ship.set()

    async def _keep_house(self) -> None:
        while True:
            await self.clock.sleep(HOUSEKEEPING_SECONDS)
            if gone := self.core.forget(self.clock.now()):
                self.spool.append({"forget": gone})
                await self.spool.commit()
            self.spool.rotate()

    def _snapshot(self) -> list[dict[str, Any]]:
        return [rows.dump_entry(entry, with_spec=True) for entry in self.core]


def _lost(entry: Entry, found: bool) -> str:
    """Say why a stored sandbox cannot go on, or nothing: then its life is resumed."""
    begun = entry.status.state in {S.STARTING, S.RUNNING, S.PAUSED, S.STOPPING}
    if begun and not found:
        return "the node lost it (the machine was restarted, or its files were removed)"
    return ""


async def _kept_output(entry: Entry) -> AsyncIterator[Chunk]:
    end = entry.status.end or entry.end
    if end is not None:
        yield Chunk("stdout", end.stdout.encode())
        yield Chunk("stderr", end.stderr.encode())


async def run_agent(
    config: AgentConfig,
    substrate: Substrate,
    network: Network,
    clock: Clock,
    randomness: Randomness,
    *,
    boot_id: str = "",
    metrics: Metrics | None = None,
    identified: bool = True,
    stores: Network | None = None,
) -> Agent:
    """Start an agent in this event loop and return it; serve it with `dsec.agent.app.make_app`.

    `boot_id` is the machine's by default; `metrics` may be shared by the nodes of a process.
    `identified` False: nothing but registrations is sent until there is a certificate. `stores`: as
    in `Outside`.
    Registration is separate: `dsec.agent.register`.
    Raises SpoolError, StateError, SubstrateError, ValueError (a reserve that leaves nothing).
    """
    try:
        inventory = await substrate.inventory()
    except OSError as error:
        raise SubstrateError("infrastructure", f"inventory: {error}") from error
    outside = Outside(
        substrate, network, clock, randomness, metrics or Metrics(), identified, stores
    )
    agent = Agent(config, outside, offered(inventory, config), boot_id or machine_boot_id())
    await agent.start()
    return agent
