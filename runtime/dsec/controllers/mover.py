"""Moves sandboxes to other nodes: freeze and save, bind elsewhere, restore there, fence the source.

Whoever wants a move asks for it here: compaction, a drain, the buyer of nodes, a user. It is
carried out as (SNAP-12):

1. the source's agent takes a snapshot and holds the sandbox still; nothing has changed for others;
2. one row of the bind log says that the target counts: same id, next incarnation, what it is
   restored from, and that the copy on the source is kept, frozen;
3. the target's agent is told to create it like any other, and restores it first;
4. once it runs there a row settles the move, and the source's copy is fenced.

What fails before the row leaves the source as it was, and it goes on. What fails after it is taken
back by a row, and the source goes on. The row is all that a new leader needs: it follows a kept
copy to its end, whoever made it. So at every moment one copy counts, one runs at most, and state is
in the store or on the source, mostly on both.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import structlog

from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxState, SandboxStatus
from dsec.api.snapshot import RestoreFrom, SnapshotCall
from dsec.controllers.creates import Placer
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.controllers.moving import (
    DEADLINE_SECONDS,
    REMEMBERED_SECONDS,
    Failed,
    Limits,
    Moving,
    Step,
    steps_of,
)
from dsec.controllers.specs import movable, moved_as
from dsec.journal.bindings import Binding, Kept, Row
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.placement.asked import OverCapacityError
from dsec.placement.compaction import Compactor, Move
from dsec.placement.request import Decision
from dsec.placement.view import ClusterView
from dsec.world.agents import AgentRefusedError, AgentSilentError, AgentStaleError
from dsec.world.clock import Clock, until

STEP_SECONDS = 0.2
AT_WORK = frozenset({SandboxState.RUNNING, SandboxState.PAUSED})
STOPS = frozenset({EndReason.PREEMPTED, EndReason.FENCED})
"""Ends that were asked for, though the platform is to blame."""

log = structlog.get_logger()


class _FailedError(Exception):
    """It stays where it was; the message says why."""


class _OverError(Exception):
    """There is nothing to move any more: it has ended, or was bound elsewhere."""


class Mover:
    """Of one term. `run` is its task."""

    def __init__(
        self,
        compactor: Compactor,
        *,
        placer: Placer,
        dispatcher: Dispatcher,
        fleet: Fleet,
        bind_log: BindLog,
        history: HistoryWriter,
        clock: Clock,
        changed: Callable[[Sequence[Binding]], None],
    ) -> None:
        """`changed` is told of what moved, and of what is said about otherwise than before."""
        self._compactor = compactor
        self._placer = placer
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._log = bind_log
        self._history = history
        self._clock = clock
        self._changed = changed
        self._limits = Limits()
        self._under: dict[str, Moving] = {}
        self._failed: dict[str, Failed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._adopted = False
        self.moved = 0
        """Sandboxes moved in this term."""
        self.moved_at: dict[str, float] = {}
        """When each did last, in UTC seconds; what has ended is forgotten."""

    async def run(self) -> None:
        """Follow what is under way. Raises FencedError, ObjectStoreError: the term is over then."""
        try:
            while True:
                self._adopt()
                for task in [one for one in self._tasks if one.done()]:
                    self._tasks.discard(task)
                    task.result()
                await self._clock.sleep(STEP_SECONDS)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------ what others ask

    @property
    def under_way(self) -> Collection[str]:
        """Ids of what is being moved, or is about to be."""
        return self._under

    def about(self, sandbox: str) -> str:
        """Return what is known of a move, in words; empty: nothing is under way or has failed."""
        if (under := self._under.get(sandbox)) is not None:
            return under.words
        binding = self._log.state.by_id.get(sandbox)
        if binding is not None and binding.live and binding.asleep:
            return f"it hibernates, as {binding.asleep} asked; `dsec wake` lets it go on"
        failed = self._failed.get(sandbox)
        return failed.words if failed is not None and self.failed(sandbox) else ""

    def failed(self, sandbox: str) -> bool:
        """Return whether a move of it has failed a short while ago."""
        found = self._failed.get(sandbox)
        return found is not None and self._clock.monotonic() - found.at < REMEMBERED_SECONDS

    def hindrance(self, sandbox: str) -> str:
        """Return why a sandbox cannot be moved now, in words; empty: it can."""
        binding = self._log.state.by_id.get(sandbox)
        if binding is None or not binding.live or not binding.node:
            return "it has ended, or has no node"
        if not movable(binding.spec):
            return "it saves no state: its task has no snapshot policy of kind state or disk"
        known = self._fleet.status(sandbox, binding.node)
        if not self._fleet.answers(binding.node) or known is None:
            return f"node {binding.node} is silent"
        if known.state not in AT_WORK:
            return f"it is {known.state.value}"
        leaves = binding.behind or not self._placer.displacer.at_rest(sandbox)
        if leaves or self._dispatcher.ending(binding.node, sandbox):
            return "it was told to go on or to end a moment ago"
        return ""

    def places(self, ids: Iterable[str], *, to: str = "") -> dict[str, Decision]:
        """Return where sandboxes could go, one after the other; those without a place are left out.

        Never to the nodes that they are on. `to`: to this node or to none.
        """
        rounds = self._placer.rounds
        rounds.refresh()
        trial = rounds.planner.view.fork()
        found = {}
        for id_ in ids:
            booking = trial.bookings().get(id_)
            if booking is None:
                continue
            others = [name for name in trial.nodes if to and name != to]
            avoid = (*booking.request.avoid, booking.node, *others)
            asked = replace(booking.request, avoid=avoid, gang="", near="", spread="")
            trial.release(id_)
            (decision,) = self._compactor.place(trial, [asked])
            if decision.node:
                trial.book(asked, decision)
                found[id_] = decision
        return found

    def ask(self, planned: Move, why: str) -> str:
        """Begin a move, or say why not, in words. What is under way goes on as it is."""
        if planned.id in self._under:
            return ""
        if problem := self.hindrance(planned.id):
            return problem
        binding = self._log.state.by_id[planned.id]
        known = self._fleet.status(planned.id, binding.node)
        if binding.node != planned.source or not self._fleet.answers(planned.target):
            return f"the cluster has changed since node {planned.target} was chosen"
        move = replace(
            planned,
            incarnation=binding.next_incarnation,
            rested=known is not None and known.state is SandboxState.PAUSED,
        )
        try:
            self._compactor.start(self._view, move, self._clock.now().timestamp())
        except (OverCapacityError, KeyError):
            return f"the room on node {planned.target} is taken"
        self._failed.pop(move.id, None)
        self._begin(Moving(move, why, self._clock.now()))
        self._changed([binding])
        return ""

    def refused(self, sandbox: str, node: str, why: str) -> bool:
        """Take note that a target's agent turned a create down; False: it is no move's."""
        under = self._under.get(sandbox)
        if under is None or under.move.target != node:
            return False
        under.refused = f"node {node} refuses it: {why}"
        return True

    def unarrived(self, status: SandboxStatus) -> bool:
        """Take note of the end of a copy; True: it never ran, and the kept one counts again.

        Called before the end is recorded.
        """
        sandbox, end = status.identity.id, status.end
        binding = self._log.state.by_id.get(sandbox)
        if binding is None or binding.kept is None or end is None:
            return False
        ours = end.reason.blames_platform or end.reason is EndReason.START_FAILED
        if SandboxState.RUNNING.value in status.times or not ours or end.reason in STOPS:
            return False
        self._adopt_one(binding)
        self._under[sandbox].refused = f"it did not start there: {end.message or end.reason.value}"
        return True

    # ------------------------------------------------------------------ tasks

    @property
    def _view(self) -> ClusterView:
        return self._placer.rounds.planner.view

    def _begin(self, moving: Moving) -> None:
        self._under[moving.move.id] = moving
        self._tasks.add(asyncio.create_task(self._carry(moving), name=f"move-{moving.move.id}"))

    def _adopt(self) -> None:
        """Follow the moves that an earlier leader has begun."""
        if self._adopted:
            return
        self._adopted = True
        self._placer.rounds.refresh()
        for binding in list(self._log.state.live()):
            self._adopt_one(binding)

    def _adopt_one(self, binding: Binding) -> None:
        kept = binding.kept
        if kept is None or binding.id in self._under:
            return
        decision = Decision(
            binding.id, binding.node, tuple(binding.spec.devices), cpus=tuple(binding.spec.cpus)
        )
        source = Decision(binding.id, kept.node, tuple(kept.devices), cpus=tuple(kept.cpus))
        incarnation = binding.spec.identity.incarnation
        move = Move(binding.id, kept.node, decision, incarnation, rested=kept.rested)
        now = self._clock.now()
        self._compactor.adopt(self._view, move, source, now.timestamp())
        self._begin(Moving(move, "begun before", now, Step.REBUILD, saved_at=binding.bound_at))

    async def _carry(self, moving: Moving) -> None:
        """Carry a move to its end. Raises FencedError, ObjectStoreError."""
        id_ = moving.move.id
        try:
            try:
                if moving.step is Step.WAITS:
                    await self._turn(moving)
                    self._limits.running[id_] = moving
                    await self._save(moving)
                    await self._rebind(moving)
                self._limits.running[id_] = moving
                await self._arrive(moving)
                await self._settle(moving)
            except _FailedError as problem:
                await self._back(moving, str(problem))
            except _OverError:
                self._leave(moving)
        finally:
            self._limits.running.pop(id_, None)
            self._under.pop(id_, None)

    async def _turn(self, moving: Moving) -> None:
        """Wait until there is room for one more move."""
        while not self._limits.room(moving.move):
            await self._clock.sleep(STEP_SECONDS)

    async def _save(self, moving: Moving) -> None:
        """Have the source frozen and saved."""
        move, binding = moving.move, self._binding(moving)
        if binding.node != move.source:
            # it fell asleep, or was put back, while the move waited for its turn
            raise _OverError
        watch = self._fleet.watch(move.source)
        if watch is None or (why := self.hindrance(move.id)):
            raise _FailedError(why if watch is not None else f"node {move.source} is gone")
        moving.step, moving.frozen_at = Step.SAVE, self._clock.now()
        call = SnapshotCall(
            epoch=self._log.epoch, kind=moved_as(binding.spec), reason="move", hold=True
        )
        try:
            answer = await watch.client.snapshot(move.id, call)
        except AgentStaleError as problem:
            self._dispatcher.stale.set()
            raise _FailedError(str(problem)) from problem
        except (AgentSilentError, AgentRefusedError) as problem:
            raise _FailedError(f"it could not be saved: {problem}") from problem
        moving.ref, moving.saved_at = answer.ref, self._clock.now()

    async def _rebind(self, moving: Moving) -> None:
        """Record that the copy on the target counts. Raises FencedError, ObjectStoreError."""
        move, ref = moving.move, moving.ref
        async with self._placer.rounding:
            # it may have been told to end, or its node is lost, in the meantime
            binding = self._binding(moving)
            if binding.node != move.source:
                raise _OverError
            if ref is None or (why := self.hindrance(move.id)):
                raise _FailedError(why if ref is not None else "it was not saved")
            if not self._fleet.answers(move.target):
                raise _FailedError(f"node {move.target} is silent")
            spec = binding.spec
            kept = Kept(
                node=binding.node,
                devices=spec.devices,
                cpus=spec.cpus,
                incarnation=spec.identity.incarnation,
                rested=move.rested,
            )
            row = Row(
                kind="bind",
                at=self._clock.now(),
                id=move.id,
                node=move.target,
                devices=list(move.decision.devices),
                cpus=list(move.decision.cpus),
                incarnation=move.incarnation,
                kept=kept,
                restore=RestoreFrom(lineage=ref.lineage, seq=ref.seq),
            )
            await self._log.append([row])
            self._compactor.land(self._view, move)
        moving.step = Step.REBUILD
        self._dispatcher.wake(move.target)
        self._changed([binding])

    async def _arrive(self, moving: Moving) -> None:
        """Wait until it runs on the target."""
        move, left = moving.move, until(self._clock, DEADLINE_SECONDS)
        while True:
            binding = self._binding(moving)
            if binding.node != move.target:
                raise _OverError
            known = self._fleet.status(move.id, move.target)
            if (
                known is not None
                and known.identity.incarnation == move.incarnation
                and known.state in AT_WORK
            ):
                moving.arrived_at = self._clock.now()
                return
            if moving.refused:
                raise _FailedError(moving.refused)
            if self._fleet.silent_for(move.target) > binding.patience:
                raise _FailedError(f"node {move.target} has fallen silent")
            if left() <= 0:
                raise _FailedError(f"it did not run there within {DEADLINE_SECONDS:.0f} s")
            await self._clock.sleep(STEP_SECONDS)

    async def _settle(self, moving: Moving) -> None:
        """Let the copy on the source go. Raises FencedError, ObjectStoreError."""
        move = moving.move
        moving.step = Step.FENCE
        async with self._placer.rounding:
            binding = self._binding(moving)
            if binding.node != move.target:
                raise _OverError
            await self._log.append([self._same(binding)])
            self._compactor.end(self._view, move, ok=True)
        message = f"it goes on on node {move.target}"
        self._dispatcher.stop(move.source, move.id, EndReason.FENCED, message)
        if move.rested:
            # it rested for want of room, and goes on when there is room, as all that rests
            self._dispatcher.turn(move.target, move.id, pause=True, message="it rested before")
        self.moved += 1
        live = self._log.state.bound
        self.moved_at = {one: at for one, at in self.moved_at.items() if one in live}
        self.moved_at[move.id] = self._clock.now().timestamp()
        self._tell("moved", moving, binding)

    async def _back(self, moving: Moving, why: str) -> None:
        """Let the source count, and go on. Raises FencedError, ObjectStoreError."""
        move = moving.move
        self._failed[move.id] = Failed(self._clock.monotonic(), move.target, why)
        async with self._placer.rounding:
            binding = self._log.state.by_id.get(move.id)
            if binding is not None and binding.live and binding.node == move.target:
                await self._log.append([self._returned(binding)])
            if binding is not None and binding.live:
                # until the other copy is gone nobody else lets it go on
                clears = binding.node == move.source
                self._compactor.end(self._view, move, ok=False, clears=clears)
        if binding is None or not binding.live:
            self._leave(moving)
            return
        self._tell("move-failed", moving, binding, why=why)
        if binding.node != move.target:
            await self._clear(moving, binding)
        self._compactor.end(self._view, move, ok=False)
        again = self._log.state.effective(move.id, move.source) and not move.rested
        ends = self._dispatcher.ending(move.source, move.id)
        if again and not ends and self._placer.displacer.at_rest(move.id):
            self._dispatcher.turn(move.source, move.id, pause=False)
        self._placer.kick()

    def _returned(self, binding: Binding) -> Row:
        """Return the row that takes a move back: to its source, or to wherever there is room."""
        kept, now = binding.kept, self._clock.now()
        known = self._fleet.status(binding.id, kept.node) if kept is not None else None
        if kept is None or known is None or known.state is SandboxState.ENDED:
            # what was saved is all that is left of it
            incarnation = binding.next_incarnation
            return Row(kind="bind", at=now, id=binding.id, node="", incarnation=incarnation)
        return Row(
            kind="bind",
            at=now,
            id=binding.id,
            node=kept.node,
            devices=kept.devices,
            cpus=kept.cpus,
            incarnation=kept.incarnation,
        )

    async def _clear(self, moving: Moving, binding: Binding) -> None:
        """End what there is on the target, and wait until it is gone: two must not run at once.

        However long that takes while its agent answers; one that is silent is given up as any node
        is that was lost.
        """
        move = moving.move
        known = self._fleet.status(move.id, move.target)
        if known is not None and known.state is SandboxState.ENDED:
            self._dispatcher.acknowledge(move.target, [move.id])
            return
        if known is None and moving.step in {Step.WAITS, Step.SAVE}:
            return  # nobody was told of it there
        message = "it did not move here after all"
        self._dispatcher.stop(move.target, move.id, EndReason.FENCED, message)
        while binding.live and self._fleet.silent_for(move.target) <= binding.patience:
            await self._clock.sleep(STEP_SECONDS)
            known = self._fleet.status(move.id, move.target)
            gone = known is None or known.state is SandboxState.ENDED
            if gone and not self._dispatcher.stopping(move.target, move.id):
                return

    def _leave(self, moving: Moving) -> None:
        """Forget a move of what has ended, or went elsewhere."""
        move = moving.move
        self._compactor.end(self._view, move, ok=True)
        for node in (move.source, move.target):
            there = self._fleet.status(move.id, node) is not None
            if there and not self._log.state.effective(move.id, node):
                message = "it has ended, or went elsewhere"
                self._dispatcher.stop(node, move.id, EndReason.FENCED, message)

    def _same(self, binding: Binding) -> Row:
        """Return the row that settles a move to a binding's node."""
        return Row(
            kind="bind",
            at=self._clock.now(),
            id=binding.id,
            node=binding.node,
            devices=binding.spec.devices,
            behind=binding.behind,
            settled=True,
        )

    def _binding(self, moving: Moving) -> Binding:
        binding = self._log.state.by_id.get(moving.move.id)
        if binding is None or not binding.live:
            raise _OverError
        return binding

    def _tell(self, kind: str, moving: Moving, binding: Binding, why: str = "") -> None:
        """Write what became of a move (SNAP-22)."""
        move, identity = moving.move, binding.spec.identity
        there = self._fleet.status(move.id, move.target)
        log.info(kind, sandbox=move.id, source=move.source, node=move.target, why=why or moving.why)
        self._history.add(
            kind,
            tenant=binding.tenant,
            experiment=identity.experiment,
            sandbox=move.id,
            node=move.target,
            source=move.source,
            incarnation=move.incarnation,
            reason=moving.why,
            correlationId=identity.correlation_id,
            **({"why": why} if why else {}),
            **steps_of(moving, there),
        )
        self._changed([binding])
