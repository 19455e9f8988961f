"""Hibernation and what is like it: a sandbox leaves its node, and starts from a snapshot later.

Asleep it holds no node and no quota; woken it waits for its place like all work (LIFE-13). Put
back, it goes on from an earlier snapshot, wherever there is room (SNAP-01). Each is one row of the
bind log; until it is written nothing has changed, and the copy goes on.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from dsec.api.internal import MoveAsk, MoveOutcome, MoveVerb
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxState
from dsec.api.snapshot import RestoreFrom, SnapshotCall
from dsec.controllers.creates import Placer
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.controllers.mover import Mover
from dsec.controllers.specs import moved_as
from dsec.journal.bindings import Binding, Row
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.placement.compaction import Move
from dsec.world.agents import AgentRefusedError, AgentSilentError, AgentStaleError, NodeWatch
from dsec.world.clock import Clock

log = structlog.get_logger()


@dataclass(slots=True)
class Sleeper:
    """Of one term."""

    placer: Placer
    mover: Mover
    dispatcher: Dispatcher
    fleet: Fleet
    bind_log: BindLog
    history: HistoryWriter
    clock: Clock
    changed: Callable[[Sequence[Binding]], None]
    busy: set[str] = field(default_factory=set)
    """Who is being saved, to sleep: they are not told to go on meanwhile."""
    _saving: set[asyncio.Task[None]] = field(default_factory=set)

    async def ask(self, ask: MoveAsk) -> MoveOutcome:
        """Do what a user asks of one sandbox. Raises FencedError, ObjectStoreError."""
        binding = self.bind_log.state.by_id.get(ask.id)
        if binding is None or binding.spec.identity.project != ask.project or not binding.live:
            return MoveOutcome(known=False)
        if ask.verb is MoveVerb.MIGRATE:
            return self._migrate(binding, ask)
        if ask.verb is MoveVerb.HIBERNATE:
            return await self._hibernate(binding, ask.user)
        if ask.verb is MoveVerb.WAKE:
            return await self._wake(binding, ask.user)
        if ask.restore is None:
            return MoveOutcome(why="no snapshot is named")
        return await self._put_back(binding, ask.restore, ask.user)

    def save(self, binding: Binding) -> None:
        """Have a sandbox saved that rests from now on: it stays as it is, saved or not."""
        task = asyncio.create_task(self._saved(binding), name=f"save-{binding.id}")
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    async def _saved(self, binding: Binding) -> None:
        watch = self.fleet.watch(binding.node)
        kind = moved_as(binding.spec)
        if watch is None or kind is None:
            return
        call = SnapshotCall(epoch=self.bind_log.epoch, kind=kind, reason="preempted", hold=True)
        try:
            await watch.client.snapshot(binding.id, call)
        except (AgentSilentError, AgentRefusedError, AgentStaleError) as problem:
            # its memory is still there, and the last periodic one is in the store
            log.info("a paused sandbox is not saved", sandbox=binding.id, why=str(problem))

    def _migrate(self, binding: Binding, ask: MoveAsk) -> MoveOutcome:
        if why := self.mover.hindrance(binding.id):
            return MoveOutcome(why=why)
        found = self.mover.places([binding.id], to=ask.node)
        if binding.id not in found:
            where = f"node {ask.node}" if ask.node else "no other node"
            return MoveOutcome(why=f"{where} has {'no ' if ask.node else ''}room for it")
        move = Move(binding.id, binding.node, found[binding.id])
        why = self.mover.ask(move, f"asked for by {ask.user}")
        return MoveOutcome(why=why, node=move.target)

    async def _hibernate(self, binding: Binding, user: str) -> MoveOutcome:
        id_, node = binding.id, binding.node
        if binding.asleep:
            return MoveOutcome()
        if not node:
            # it has no state of its own yet, or that is in what it starts from
            await self._row(binding, Row(kind="bind", at=self.clock.now(), id=id_, asleep=user))
            return MoveOutcome()
        if id_ in self.busy or id_ in self.mover.under_way:
            return MoveOutcome(why="it is being saved or moved; repeat the call")
        watch = self.fleet.watch(node)
        if watch is None or (why := self.mover.hindrance(id_)):
            return MoveOutcome(why=why if watch is not None else f"node {node} is gone")
        known = self.fleet.status(id_, node)
        ran = known is not None and known.state is SandboxState.RUNNING
        self.busy.add(id_)
        try:
            why = await self._lay_down(binding, watch, user)
            if why and ran and not self.dispatcher.ending(node, id_):
                self.dispatcher.turn(node, id_, pause=False)
        finally:
            self.busy.discard(id_)
        if not why:
            self.dispatcher.stop(node, id_, EndReason.FENCED, "it hibernates")
            self._tell("hibernated", binding, user)
            self.placer.kick()
        return MoveOutcome(why=why)

    async def _lay_down(self, binding: Binding, watch: NodeWatch, user: str) -> str:
        """Save a sandbox and record that it sleeps; return why it does not, in words.

        Raises FencedError, ObjectStoreError.
        """
        id_, node, kind = binding.id, binding.node, moved_as(binding.spec)
        call = SnapshotCall(epoch=self.bind_log.epoch, kind=kind, reason="hibernate", hold=True)
        try:
            ref = (await watch.client.snapshot(id_, call)).ref
        except (AgentSilentError, AgentRefusedError, AgentStaleError) as problem:
            return f"it could not be saved: {problem}"
        async with self.placer.rounding:
            if why := self.mover.hindrance(id_) or _elsewhere(binding, node):
                return why
            row = Row(
                kind="bind",
                at=self.clock.now(),
                id=id_,
                incarnation=binding.next_incarnation,
                restore=RestoreFrom(lineage=ref.lineage, seq=ref.seq),
                asleep=user,
            )
            await self.bind_log.append([row])
        return ""

    async def _wake(self, binding: Binding, user: str) -> MoveOutcome:
        if binding.asleep:
            await self._row(binding, Row(kind="bind", at=self.clock.now(), id=binding.id))
            self._tell("woken", binding, user)
            self.placer.kick()
        return MoveOutcome(node=binding.node)

    async def _put_back(self, binding: Binding, wanted: RestoreFrom, user: str) -> MoveOutcome:
        """Let it go on from an earlier snapshot: what it did since is given up."""
        if binding.id in self.busy or binding.id in self.mover.under_way:
            return MoveOutcome(why="it is being saved or moved; repeat the call")
        node = binding.node
        row = Row(
            kind="bind",
            at=self.clock.now(),
            id=binding.id,
            incarnation=binding.next_incarnation,
            restore=wanted,
            asleep=binding.asleep,
        )
        await self._row(binding, row)
        if node:
            message = f"it goes on from {wanted.lineage}@{wanted.seq or 'newest'}"
            self.dispatcher.stop(node, binding.id, EndReason.FENCED, message)
        self._tell("put-back", binding, user, snapshot=f"{wanted.lineage}@{wanted.seq or ''}")
        self.placer.kick()
        return MoveOutcome()

    async def _row(self, binding: Binding, row: Row) -> None:
        async with self.placer.rounding:
            await self.bind_log.append([row])
        self.changed([binding])

    def _tell(self, kind: str, binding: Binding, user: str, **more: object) -> None:
        identity = binding.spec.identity
        self.history.add(
            kind,
            tenant=binding.tenant,
            experiment=identity.experiment,
            sandbox=binding.id,
            user=user,
            correlationId=identity.correlation_id,
            **more,
        )
        self.changed([binding])


def _elsewhere(binding: Binding, node: str) -> str:
    """Return that a sandbox is not on that node any more, in words; empty: it is."""
    return "" if binding.node == node else f"it went to node {binding.node}; repeat the call"
