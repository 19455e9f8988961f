"""Compaction on the leader: paused sandboxes leave nodes that are at their limit.

Each look asks `placement.compaction` for plans, at the occasion that the policy names, and has the
mover carry out what can be moved: what saves its state. What cannot is told, and stays.
"""

from collections.abc import Callable, Iterable, Sequence

from dsec.api.units import size_text
from dsec.controllers.creates import Placer
from dsec.controllers.mover import Mover
from dsec.controllers.specs import movable
from dsec.journal.bindings import Binding
from dsec.journal.bindlog import BindLog
from dsec.placement.compaction import Compaction, Compactor, Move, Wanting
from dsec.world.clock import Clock

LOOK_SECONDS = 10.0
NAMED = 3
"""Most moves named in words; the others are counted."""
WAITS = "waits for snapshots"


class Compacting:
    """Of one term. `run` is its task; `plans` is what the last look found."""

    def __init__(
        self,
        compactor: Compactor,
        mover: Mover,
        *,
        placer: Placer,
        bind_log: BindLog,
        clock: Clock,
        changed: Callable[[Sequence[Binding]], None],
    ) -> None:
        """`changed` is told of what something else is said about than before."""
        self._compactor = compactor
        self._mover = mover
        self._placer = placer
        self._log = bind_log
        self._clock = clock
        self._changed = changed
        self.plans: tuple[Compaction, ...] = ()
        compactor.can_move = self._can

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self.look()
            for move in _moves(self.plans):
                if not self._mover.failed(move.id):
                    self._mover.ask(move, f"{move.source} is at its limit")

    # ------------------------------------------------------------------ what others ask

    def about(self, sandbox: str) -> str:
        """Return what is planned for a sandbox, in words; empty: nothing."""
        if words := self._mover.about(sandbox):
            return words
        for plan in self.plans:
            for move in plan.moves:
                if move.id == sandbox:
                    when = "soon" if self._can(sandbox) else WAITS
                    return f"moves to node {move.target}, as {plan.node} is at its limit: {when}"
        return ""

    def moves(self, node: str) -> bool:
        """Return whether something of what is planned for a node is carried out."""
        return any(self._can(move.id) for move in _moves(self.plans) if move.source == node)

    def _can(self, sandbox: str) -> bool:
        binding = self._log.state.by_id.get(sandbox)
        return binding is not None and movable(binding.spec)

    def about_node(self, node: str) -> str:
        """Return what is planned for a node at its limit, in words; empty: nothing."""
        plan = next((one for one in self.plans if one.node == node), None)
        if plan is None:
            return ""
        moves = [f"{move.id} to {move.target}" for move in plan.moves[:NAMED]]
        more = f" and {len(plan.moves) - NAMED} more" if len(plan.moves) > NAMED else ""
        memory = size_text(plan.block.get("memory_bytes", 0))
        stays = f"; {len(plan.stays)} that rest have no other place" if plan.stays else ""
        how = "is under way" if self.moves(node) else WAITS
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


def _moves(plans: Iterable[Compaction]) -> Iterable[Move]:
    return (move for plan in plans for move in plan.moves)
