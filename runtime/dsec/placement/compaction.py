"""Compaction: paused sandboxes move away from full nodes, so that a block falls free there. Pure.

Trigger, by preset (CONF-17): `auto-at-limit`, a node has reached its limit watermark (SCHED-04);
`long-queue-only`, it has, work of a long queue waits, and a short task has waited out its time
(SCHED-17).

Moved is only what rests and consents: never guaranteed work, whose reservation stays where it is
(SCHED-19), never a trainer (GPU-17), and nothing that runs. A target is found by the real placement
among nodes below their safe watermark, with the CPU that it needs to go on, and is below its limit
afterwards. What has moved stays: it moves again only when the demand has changed and
`again_after_s` has passed, so that two nodes never hand it back and forth.

Moving needs snapshots. While something moves, for this reason or another, its room is booked on
both nodes:

    plans = compactor.plans(view, ledger, waiting, now)
    compactor.start(view, move, now)       # the source counts, room is kept on the target
    compactor.land(view, move)             # the target counts, room is kept on the source
    compactor.end(view, move, ok=True)     # False: it stays where it was
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from dsec.placement.accounts import total
from dsec.placement.asked import Asked
from dsec.placement.ledger import Ledger
from dsec.placement.queueing import QueuePolicy
from dsec.placement.reclaim import consents
from dsec.placement.request import Decision, Request
from dsec.placement.trial import Place, what_if
from dsec.placement.view import ClusterView

TRIGGERS = ("auto-at-limit", "long-queue-only")
BELOW_SAFE, BELOW_LIMIT = 2, 1
"""Where a node stands, as in Column.HEADROOM."""
TARGETS_TRIED = 8
"""Most targets for one sandbox that would be at their limit with it, before it stays."""


class CompactionError(ValueError):
    """A policy that makes no sense; the message names field, value and what is allowed."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When nodes are compacted. Times in seconds. Raises CompactionError.

    `short_waits_s`: how long a short task waits before a long queue may trigger it.
    `moves_at_once`: most moves of one plan; each costs a snapshot.
    """

    trigger: str = "auto-at-limit"
    short_waits_s: float = 300.0
    again_after_s: float = 900.0
    moves_at_once: int = 16
    queues: QueuePolicy = field(default_factory=QueuePolicy)

    def __post_init__(self) -> None:
        if self.trigger not in TRIGGERS:
            known = " and ".join(TRIGGERS)
            raise CompactionError(f"trigger: {self.trigger!r}; {known} are allowed")
        if self.moves_at_once < 1:
            raise CompactionError(f"moves_at_once: {self.moves_at_once}; 1 or more is allowed")


@dataclass(frozen=True, slots=True)
class Wanting:
    """One piece of waiting work, as far as compaction cares."""

    id: str
    queue: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class Move:
    """One sandbox to another node, with the devices that it will have there."""

    id: str
    source: str
    decision: Decision
    incarnation: int = 0
    """Of the copy on the target, once the move is carried out; 0 in a plan."""
    rested: bool = True
    """It was paused before: it computes nothing on either node until it goes on."""

    @property
    def target(self) -> str:
        """Name of the node that it goes to."""
        return self.decision.node

    @property
    def held(self) -> str:
        """Id of the booking that keeps its room on the target while the source counts."""
        return f"{self.id}@{self.target}"

    @property
    def kept(self) -> str:
        """Id of the booking that keeps its room on the source once the target counts."""
        return f"{self.id}@{self.source}"


@dataclass(frozen=True, slots=True)
class Compaction:
    """The moves that free a block on one node. Amounts in bytes and milli-cores, as in the ledger.

    `stays`: paused work that has no other place.
    """

    node: str
    moves: tuple[Move, ...]
    block: dict[str, int]
    stays: tuple[str, ...] = ()


class Compactor:
    """Finds moves and remembers what has moved; lost in a crash, it may move something again."""

    def __init__(self, policy: CompactionPolicy, place: Place = what_if) -> None:
        self.policy = policy
        self.place = place
        self.can_move: Callable[[str], bool] = lambda _id: True
        """Whether something can go on elsewhere: a plan says so of what cannot, too."""
        self.moving: dict[str, Move] = {}
        self._moved: dict[str, tuple[float, frozenset[str]]] = {}
        self._demand: frozenset[str] = frozenset()

    def plans(
        self, view: ClusterView, ledger: Ledger, waiting: Sequence[Wanting], now: float
    ) -> list[Compaction]:
        """Return what to move now, node by node. View and ledger stay as they are."""
        self._demand = frozenset(one.id for one in waiting)
        if not self._triggered(waiting):
            return []
        on = view.bookings()
        resting = {on[id_].node for id_, one in ledger.entries.items() if one.paused and id_ in on}
        full = [node for node in sorted(resting) if view.room(node)["watermark"] < BELOW_LIMIT]
        if not full:
            return []
        trial = view.fork()
        found = []
        for node in full:
            if trial.room(node)["watermark"] < BELOW_LIMIT:
                plan = self._plan(trial, ledger, node, now)
                if plan.moves:
                    found.append(plan)
        return found

    def start(self, view: ClusterView, move: Move, now: float) -> None:
        """Book the room on the target besides that on the source. Raises OverCapacityError."""
        asked = _there(view.bookings()[move.id].request, move.held)
        view.book(asked, move.decision._replace(id=asked.id))
        if move.rested:
            view.pause(asked.id)
        self.moving[move.id] = move
        self._moved[move.id] = (now, self._demand)

    def adopt(self, view: ClusterView, move: Move, source: Decision | None, now: float) -> None:
        """Take over a move whose target counts already, begun by another leader."""
        booking = view.bookings().get(move.id)
        if booking is not None and source is not None and source.node in view.nodes:
            asked = _there(booking.request, move.kept)
            view.book(asked, source._replace(id=asked.id), force=True)
        self.moving[move.id] = move
        self._moved[move.id] = (now, self._demand)

    def land(self, view: ClusterView, move: Move) -> None:
        """Take note that the copy on the target counts: the room on the source is kept now."""
        booking = view.bookings().get(move.id)
        view.release(move.held)
        if booking is None or booking.node != move.source:
            return  # the books were made anew meanwhile, and have read what is recorded
        source = Decision(move.id, booking.node, booking.devices, cpus=booking.cpus)
        view.release(move.id)
        view.book(booking.request, move.decision, force=True)
        asked = _there(booking.request, move.kept)
        view.book(asked, source._replace(id=asked.id), force=True)
        if move.rested:
            view.pause(move.id)
            view.pause(asked.id)

    def end(self, view: ClusterView, move: Move, *, ok: bool, clears: bool = False) -> None:
        """Give up the room on the node that it is not on. Idempotent.

        `clears`: its other copy is still to go, and it stays among what moves, until the next call.
        """
        if move.id not in self.moving:
            return
        if not clears:
            del self.moving[move.id]
        view.release(move.held)
        kept, here = view.bookings().get(move.kept), view.bookings().get(move.id)
        view.release(move.kept)
        if not ok and kept is not None and here is not None and here.node == move.target:
            source = Decision(move.id, kept.node, kept.devices, cpus=kept.cpus)
            view.release(move.id)
            view.book(here.request, source, force=True)
            if move.rested:
                view.pause(move.id)
        if not ok:
            # nobody has it twice; it is tried again after a while, whatever the demand
            self._moved[move.id] = (self._moved[move.id][0], frozenset({move.held}))

    def settled(self, sandbox: str, now: float) -> bool:
        """Return whether it has moved, or failed to, too lately to move again."""
        at, demand = self._moved.get(sandbox, (None, frozenset()))
        return at is not None and (demand == self._demand or now - at < self.policy.again_after_s)

    def _triggered(self, waiting: Sequence[Wanting]) -> bool:
        if self.policy.trigger == "auto-at-limit":
            return True
        queues = self.policy.queues
        long_waits = any(queues.queue(one.queue).long for one in waiting)
        return long_waits and any(
            one.waited_s >= self.policy.short_waits_s and not queues.queue(one.queue).long
            for one in waiting
        )

    def _plan(self, trial: ClusterView, ledger: Ledger, node: str, now: float) -> Compaction:
        """Find other places for what rests on a node, and book them into `trial`."""
        moves: list[Move] = []
        stays: list[str] = []
        for id_ in self._movable(trial, ledger, node, now):
            move = None
            if len(moves) < self.policy.moves_at_once:
                move = self._elsewhere(trial, id_, node)
            if move is None:
                stays.append(id_)
            else:
                moves.append(move)
        block = total(ledger.entries[move.id].amounts for move in moves)
        return Compaction(node, tuple(moves), block, tuple(stays))

    def _movable(self, view: ClusterView, ledger: Ledger, node: str, now: float) -> Iterable[str]:
        """Return what may move, first what can, largest first: few moves, a large block."""
        found = []
        for id_ in view.on(node):
            entry = ledger.entries.get(id_)
            if entry is None or not view.bookings()[id_].paused or not consents(entry):
                continue
            if id_ in self.moving or self.settled(id_, now):
                continue
            memory = Asked.of(view.bookings()[id_].request).memory
            found.append((not self.can_move(id_), -memory, id_))
        return [id_ for *_, id_ in sorted(found)]

    def _elsewhere(self, trial: ClusterView, id_: str, node: str) -> Move | None:
        request = trial.bookings()[id_].request
        avoid = {name for name in trial.nodes if trial.room(name)["watermark"] < BELOW_SAFE}
        avoid |= {node, *request.avoid}
        for _ in range(TARGETS_TRIED):
            tried = trial.fork()
            tried.release(id_)
            asked = replace(request, avoid=tuple(sorted(avoid)), gang="")
            (decision,) = self.place(tried, [asked])
            if not decision.node:
                return None
            tried.pause(id_)
            if tried.room(decision.node)["watermark"] >= BELOW_LIMIT:
                trial.release(id_)
                trial.book(request, decision)
                trial.pause(id_)
                return Move(id_, node, decision)
            # it would be the next one to be compacted
            avoid.add(decision.node)
        return None


def _there(request: Request, id_: str) -> Request:
    return replace(request, id=id_, gang="", near="", spread="")
