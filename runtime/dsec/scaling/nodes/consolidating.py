"""Cloud nodes whose work moves together, so that they fall empty and go. Pure.

Nodes that are little used, the least used first: all of their work fits on other nodes that are
ready and in use, beside what waits and what buffers keep free. And nodes however full, the dearest
first, whose work fits on machines that are paid for anyway; where those are full, less demanding
work there makes room. Only where the saving pays for all the moves, and where nothing of it has
moved for the same demand before. What cannot be moved stays, and so does its node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median

from dsec.api.scaling import NodePreset, Shrinking
from dsec.placement.asked import Asked
from dsec.placement.compaction import Move
from dsec.placement.dimensions import GIB, WHOLE
from dsec.placement.view import ClusterView
from dsec.scaling.guard import hold_seconds
from dsec.scaling.nodes.need import Need
from dsec.scaling.nodes.offerings import FleetNode, NodePhase, Running
from dsec.scaling.nodes.plans import Drain, Refused, Why
from dsec.scaling.nodes.rooms import Rooms, elsewhere, making_room
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import FleetState

HOUR = 3600


@dataclass(frozen=True, slots=True)
class _Candidate:
    node: FleetNode
    use: float
    full: bool
    """Used too much for other cloud nodes to take it over."""

    @property
    def rank(self) -> tuple[bool, float, str]:
        """The order of looking: little used ones first, of the others the dearest."""
        price = float(self.node.offering.price_per_hour)
        return self.full, -price if self.full else self.use, self.node.name


def consolidations(
    state: FleetState, rules: NodeRules, spare: Need, going: frozenset[str]
) -> tuple[list[Drain], list[Refused]]:
    """Return the nodes to drain and what keeps others. `going`: nodes that leave in any case."""
    found = _Pass(state, rules, spare.view, Rooms.of(state, spare.view, going))
    drains: list[Drain] = []
    refused: list[Refused] = []
    targets = set[str]()
    tried = 0
    for one in sorted(_candidates(state, rules, spare, going), key=lambda one: one.rank):
        node, pool = one.node, one.node.offering.pool
        if node.name in targets or (one.full and not found.rooms.hosts):
            continue
        why = _stays(state, rules, node, found.demand)
        if why is None and not found.left[pool]:
            why = Refused(Why.CAP, node.name)
        if why is None and tried >= rules.consolidations_tried:
            break
        if why is None:
            tried += 1
            moves = found.moves(one)
            if moves:
                saving = node.offering.price_per_hour
                drains.append(
                    Drain(node.name, Why.CONSOLIDATION, moves=moves, saving_per_hour=saving)
                )
                targets.update(move.target for move in moves)
                continue
            why = Refused(Why.NO_ROOM, node.name)
        if not one.full:
            refused.append(why)
    return drains, refused


class _Pass:
    """What one look at all candidates goes on with: the view with all moves so far booked."""

    def __init__(
        self, state: FleetState, rules: NodeRules, view: ClusterView, rooms: Rooms
    ) -> None:
        self.state, self.rules, self.view, self.rooms = state, rules, view, rooms
        self.demand = state.demand
        self.left = {pool: _at_once(state, rules, pool) for pool in state.pools}
        self.tries = rules.exchanges_tried
        self._nodes = {one.id: node for node in state.nodes for one in node.work}
        self._running = {one.id: one for node in state.nodes for one in node.work}

    def moves(self, one: _Candidate) -> tuple[Move, ...]:
        """Find the moves that empty a node, and book them; empty: there are none that pay."""
        node = one.node
        view = self.view.fork()
        row = view.row(node.name)
        moves = elsewhere(view, node, self.rooms.outside(row, steady=one.full))
        if moves is None and self.tries:
            made, moves, self.tries = making_room(
                self.view.fork(), node, self.rooms, self._free, self.tries
            )
            view = view if made is None else made
        if not moves or not self._pays(node, moves):
            return ()
        self.view = view
        self.rooms.without.append(row)
        self.rooms.moved.update(move.id for move in moves)
        self.left[node.offering.pool] -= 1
        return moves

    def _free(self, one: Running) -> bool:
        """Return whether work may make room for other work."""
        if one.id in self.rooms.moved or not one.movable:
            return False
        return not _settled(self.rules, one, self.state.now, self.demand)

    def _pays(self, node: FleetNode, moves: Sequence[Move]) -> bool:
        cost = sum(
            (_cost(self.rules, self._nodes[move.id], self._running[move.id]) for move in moves),
            Decimal(0),
        )
        return _saving(node, self.state.now) > Decimal(str(self.rules.payback)) * cost


def _at_once(state: FleetState, rules: NodeRules, pool: str) -> int:
    nodes = [one for one in state.of_pool(pool) if one.phase is not NodePhase.ENDING]
    most = max(1, int(len(nodes) * rules.drains_at_once))
    return max(0, most - sum(one.phase is NodePhase.DRAINING for one in nodes))


def _candidates(
    state: FleetState, rules: NodeRules, spare: Need, going: frozenset[str]
) -> list[_Candidate]:
    found = []
    for node in state.nodes:
        offering = node.offering
        pool = rules.of(offering.pool)
        if (
            node.phase is not NodePhase.READY
            or node.leaving
            or not offering.cloud
            or not node.work
            or node.arriving
            or node.name in going
            or node.name in spare.promised
            or node.ready_at is None
            or state.now - node.ready_at < rules.least_age_s
            or not pool.consolidation
            or pool.frozen
            or pool.shrink is not Shrinking.ON
            or pool.preset_of(offering) is NodePreset.NODE_LOAD
        ):
            continue
        use = use_of(node, state.now)
        found.append(_Candidate(node, use, full=use >= rules.use_below))
    return found


def use_of(node: FleetNode, now: float) -> float:
    """Return the part of a node in use: of its GPUs where it has some, else of CPU or memory."""
    described = node.described(now)
    whole = sum(card.healthy for card in described.devices)
    memory, cpu, cards = 0, 0, 0.0
    for one in node.work:
        asked = Asked.of(one.request)
        memory += asked.memory
        cpu += 0 if one.paused else asked.cpu
        if asked.mode:
            cards += asked.gpus * (asked.milli / 1000 if asked.milli else 1.0)
    if whole:
        return cards / whole
    return max(cpu / described.cpu_milli, memory / max(1, described.memory_bytes))


def _stays(state: FleetState, rules: NodeRules, node: FleetNode, demand: str) -> Refused | None:
    """Return why a node is not drained, before any place is looked for."""
    guard = state.memory(node.offering.pool).guard
    held = hold_seconds(guard, state.now, rules.guard)
    if guard.reversals and guard.last_at is not None and state.now - guard.last_at < held:
        return Refused(Why.GUARD, node.name, figures=(("seconds", f"{held:.0f}"),))
    if node.protected:
        return Refused(Why.PROTECTED, node.name)
    stuck = [one.id for one in node.work if not one.movable]
    if stuck:
        return Refused(Why.NOT_MOVABLE, node.name, len(stuck), (("work", ", ".join(stuck[:3])),))
    for one in node.work:
        if _settled(rules, one, state.now, demand):
            return Refused(Why.SETTLED, node.name, figures=(("work", one.id),))
    saving, cost = _saving(node, state.now), move_cost(rules, node)
    if saving <= Decimal(str(rules.payback)) * cost:
        figures = (("saving", f"{saving:.4f}"), ("cost", f"{cost:.4f}"))
        return Refused(Why.NO_PAYBACK, node.name, figures=figures)
    return None


def _remaining(one: Running, now: float) -> float:
    """Return how long it is likely to go on; for long-tailed lives that is about its age."""
    if one.expected_remaining_s is not None:
        return one.expected_remaining_s
    return max(0.0, now - one.started_at)


def _settled(rules: NodeRules, one: Running, now: float, demand: str) -> bool:
    """Return whether it has moved too lately, or for the same demand."""
    moved = one.last_moved_at
    return moved is not None and (now - moved < rules.move_again_s or one.moved_under == demand)


def _saving(node: FleetNode, now: float) -> Decimal:
    """Return what a node costs for as long as its work is likely to hold it."""
    hold = median(_remaining(one, now) for one in node.work)
    return node.offering.price_per_hour * Decimal(round(hold)) / HOUR


def move_cost(rules: NodeRules, node: FleetNode) -> Decimal:
    """Return what moving all work of a node costs: its pauses at the node's price, and the copies.

    A pause costs the part of the node that stands still. Currency of the node's offering.
    """
    return sum((_cost(rules, node, one) for one in node.work), Decimal(0))


def _cost(rules: NodeRules, node: FleetNode, one: Running) -> Decimal:
    asked, described = Asked.of(one.request), node.offering.node
    pause = rules.pause_gpu_s if asked.mode else rules.pause_s
    cards = described.devices
    share = max(
        asked.cpu / max(1, described.cpu_milli),
        asked.memory / max(1, described.memory_bytes),
        asked.gpus / len(cards) if cards else 0.0,
    )
    total = Decimal(0)
    if not one.paused:
        total += node.offering.price_per_hour * Decimal(str(round(pause * share, 6))) / HOUR
    held = asked.memory
    if cards and asked.gpus:
        held += asked.gpus * (asked.milli or WHOLE) * cards[0].memory_bytes // WHOLE
    return total + rules.move_price_per_gib * Decimal(held) / GIB
