"""Compaction on the leader: paused sandboxes leave nodes that are at their limit.

Each look asks `placement.compaction` for plans, at the occasion that the policy names. Where there
is a `Mover`, moves are carried out one after the other: their room is held on both nodes, the mover
lets a copy rest on the target, the bind log says that this one counts from now on (same id, next
incarnation), and the copy on the source is fenced. It goes on there like everything that rests.

Until the row is written the source's copy counts, and a leader that dies leaves at most a paused
copy that the next one fences; after it, the same holds for the other copy. So none runs twice, and
none is lost.

Agents cannot save the state of a sandbox yet. Without a mover plans are kept and told, and nothing
moves.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxState
from dsec.api.units import size_text
from dsec.controllers.creates import Placer
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.fleet import Fleet
from dsec.journal.bindings import Binding, Row
from dsec.journal.bindlog import BindLog
from dsec.journal.history import HistoryWriter
from dsec.placement.asked import OverCapacityError
from dsec.placement.compaction import Compaction, Compactor, Move, Mover, Wanting
from dsec.placement.view import ClusterView
from dsec.world.clock import Clock, until

LOOK_SECONDS = 10.0
HEARD_SECONDS = 10.0
"""How long the target's agent may take to say that the copy rests there."""
STEP_SECONDS = 0.2
NAMED = 3
"""Most moves named in words; the others are counted."""
WAITS = "waits for snapshots"

log = structlog.get_logger()


class Compacting:
    """Of one term. `run` is its task; `plans` is what the last look found."""

    def __init__(
        self,
        compactor: Compactor,
        mover: Mover | None,
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
        self._mover = mover
        self._placer = placer
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._log = bind_log
        self._history = history
        self._clock = clock
        self._changed = changed
        self.moves = mover is not None
        """Whether plans are carried out."""
        self.plans: tuple[Compaction, ...] = ()
        self.moved = 0
        """Sandboxes moved in this term."""

    async def run(self) -> None:
        """Look again and again. Raises FencedError, ObjectStoreError: the term is over then."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self.look()
            if self._mover is not None:
                for plan in self.plans:
                    for move in plan.moves:
                        await self._carry_out(move, self._mover)

    # ------------------------------------------------------------------ what others ask

    def about(self, sandbox: str) -> str:
        """Return what is planned for a sandbox, in words; empty: nothing."""
        under = self._compactor.moving.get(sandbox)
        if under is not None:
            return f"it moves to node {under.target}: {under.source} is at its limit"
        for plan in self.plans:
            for move in plan.moves:
                if move.id == sandbox:
                    when = "soon" if self.moves else WAITS
                    return f"moves to node {move.target}, as {plan.node} is at its limit: {when}"
        return ""

    def about_node(self, node: str) -> str:
        """Return what is planned for a node at its limit, in words; empty: nothing."""
        plan = next((one for one in self.plans if one.node == node), None)
        if plan is None:
            return ""
        moves = [f"{move.id} to {move.target}" for move in plan.moves[:NAMED]]
        more = f" and {len(plan.moves) - NAMED} more" if len(plan.moves) > NAMED else ""
        memory = size_text(plan.block.get("memory_bytes", 0))
        stays = f"; {len(plan.stays)} that rest have no other place" if plan.stays else ""
        how = "is under way" if self.moves else WAITS
        return (
            f"it is at its limit; moving {', '.join(moves)}{more}, which rest, frees {memory} of "
            f"memory: this {how}{stays}"
        )

    # ------------------------------------------------------------------ one look

    def look(self) -> None:
        """Plan anew, and tell those of whom something else is planned than before."""
        rounds, now = self._placer.rounds, self._clock.now().timestamp()
        rounds.refresh()
        planner, displacer = rounds.planner, rounds.displacer
        waiting = [
            Wanting(one.id, planner.queue(one), displacer.waited(one, now))
            for one in rounds.waiting
        ]
        before = {move.id: move.target for move in _moves(self.plans)}
        self.plans = tuple(
            self._compactor.plans(planner.view, planner.ledger, waiting, now)
            # a new leader does not know yet who waits, and who is about to go on
            if displacer.settled
            else ()
        )
        after = {move.id: move.target for move in _moves(self.plans)}
        self._tell(id_ for id_ in {*before, *after} if before.get(id_) != after.get(id_))

    def _tell(self, ids: Iterable[str]) -> None:
        found = [self._log.state.by_id.get(id_) for id_ in sorted(ids)]
        news = [binding for binding in found if binding is not None and binding.live]
        if news:
            self._changed(news)

    # ------------------------------------------------------------------ one move

    async def _carry_out(self, planned: Move, mover: Mover) -> None:
        """Move one sandbox, or leave it where it is."""
        if not self._may(planned):
            return
        binding = self._log.state.by_id[planned.id]
        move = replace(planned, incarnation=binding.spec.identity.incarnation + 1)
        try:
            self._compactor.start(self._view, move, self._clock.now().timestamp())
        except OverCapacityError:
            return  # somebody else was faster
        ok = False
        try:
            ok = await mover.move(move) and await self._rests(move)
            async with self._placer.rounding:
                # it may have been told to go on or to end, or its node is lost, in the meantime
                ok = ok and self._may(move)
                if ok:
                    await self._rebind(move)
        finally:
            with suppress(OverCapacityError):
                # where the books were made anew meanwhile, the next round books what is recorded
                self._compactor.end(self._view, move, ok=ok)
        self._close(binding, move, ok=ok)

    @property
    def _view(self) -> ClusterView:
        return self._placer.rounds.planner.view

    def _may(self, move: Move) -> bool:
        """Return whether a sandbox rests on its source, and nobody wants anything else of it."""
        binding = self._log.state.by_id.get(move.id)
        known = self._fleet.status(move.id, move.source)
        return (
            self._log.state.effective(move.id, move.source)
            and binding is not None
            and not binding.behind
            and known is not None
            and known.state is SandboxState.PAUSED
            and self._fleet.answers(move.target)
            and self._placer.displacer.at_rest(move.id)
            and not self._dispatcher.stopping(move.source, move.id)
            and not self._dispatcher.stopping(move.target, move.id)
        )

    async def _rests(self, move: Move) -> bool:
        """Wait until the target's agent has said that the copy rests there."""
        left = until(self._clock, HEARD_SECONDS)
        while True:
            known = self._fleet.status(move.id, move.target)
            here = known is not None and known.identity.incarnation == move.incarnation
            if here and known is not None and known.state is SandboxState.PAUSED:
                return True
            if left() <= 0:
                return False
            await self._clock.sleep(STEP_SECONDS)

    async def _rebind(self, move: Move) -> None:
        """Record that the copy on the target counts. Raises FencedError, ObjectStoreError."""
        await self._log.append(
            [
                Row(
                    kind="bind",
                    at=self._clock.now(),
                    id=move.id,
                    node=move.target,
                    devices=list(move.decision.devices),
                    cpus=list(move.decision.cpus),
                    incarnation=move.incarnation,
                )
            ]
        )

    def _close(self, binding: Binding, move: Move, *, ok: bool) -> None:
        """End the copy that does not count, and tell of the move."""
        node = move.source if ok else move.target
        message = f"it rests on node {move.target} now" if ok else "it did not move here after all"
        self._dispatcher.stop(node, move.id, EndReason.FENCED, message)
        log.info("moved" if ok else "not moved", sandbox=move.id, node=move.target)
        if not ok:
            return
        self.moved += 1
        self._dispatcher.wake(move.target)
        self._history.add(
            "moved",
            tenant=binding.tenant,
            experiment=binding.spec.identity.experiment,
            sandbox=move.id,
            node=move.target,
            source=move.source,
            incarnation=move.incarnation,
            correlationId=binding.spec.identity.correlation_id,
        )
        self._changed([binding])


def _moves(plans: Iterable[Compaction]) -> Iterable[Move]:
    return (move for plan in plans for move in plan.moves)
