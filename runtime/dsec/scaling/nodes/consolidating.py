"""Cloud nodes that are little used: their work moves together, and they fall empty. Pure.

The least used first. A node is drained only where all of its work fits on other nodes that are
ready and in use, by the real placement with every constraint, beside what waits and what buffers
keep free; where the saving pays for the moves; and where nothing on it has moved for the same
demand before. What cannot be moved stays, and so does its node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import median

import numpy as np

from dsec.api.scaling import Market, NodePreset, Shrinking
from dsec.placement.asked import Asked
from dsec.placement.compaction import Move
from dsec.placement.dimensions import GIB
from dsec.placement.engine import place, place_class
from dsec.placement.request import Decision
from dsec.placement.view import ClusterView, Ints
from dsec.scaling.guard import hold_seconds
from dsec.scaling.nodes.filling import Shape
from dsec.scaling.nodes.need import Need
from dsec.scaling.nodes.offerings import TIERS, FleetNode, NodePhase, Running, tolerant
from dsec.scaling.nodes.plans import Drain, Refused, Why
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import FleetState
from dsec.scaling.nodes.virtual import rows_of

HOUR = 3600


@dataclass(frozen=True, slots=True)
class _Candidate:
    node: FleetNode
    use: float


def consolidations(
    state: FleetState, rules: NodeRules, spare: Need, going: frozenset[str]
) -> tuple[list[Drain], list[Refused]]:
    """Return the nodes to drain and what keeps others. `going`: nodes that leave in any case."""
    drains: list[Drain] = []
    refused: list[Refused] = []
    left = {pool: _at_once(state, rules, pool) for pool in state.pools}
    leaving, targets = set[str](), set[str]()
    demand = state.demand
    tried = 0
    view = spare.view
    rows = _rows(state, view, going)
    for one in sorted(_candidates(state, rules, spare, going), key=lambda one: one.use):
        node, pool = one.node, one.node.offering.pool
        if node.name in targets:
            continue
        why = _stays(state, rules, node, demand)
        if why is None and not left[pool]:
            why = Refused(Why.CAP, node.name)
        if why is None and tried >= rules.consolidations_tried:
            break
        if why is None:
            tried += 1
            trial = view.fork()
            moves = _elsewhere(trial, node, rows, [view.row(name) for name in leaving])
            if moves is None:
                why = Refused(Why.NO_ROOM, node.name)
            else:
                view = trial
                drains.append(
                    Drain(
                        node.name,
                        Why.CONSOLIDATION,
                        moves=moves,
                        saving_per_hour=node.offering.price_per_hour,
                    )
                )
                leaving.add(node.name)
                targets.update(move.target for move in moves)
                left[pool] -= 1
        if why is not None:
            refused.append(why)
    return drains, refused


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
        if use < rules.use_below:
            found.append(_Candidate(node, use))
    return found


def use_of(node: FleetNode, now: float) -> float:
    """Return the part of a node in use: of its GPUs where it has some, else of CPU or memory."""
    shape = Shape(node.described(now))
    memory, cpu, cards = 0, 0, 0.0
    for one in node.work:
        asked = Asked.of(one.request)
        memory += asked.memory
        cpu += 0 if one.paused else asked.cpu
        if asked.mode:
            cards += asked.gpus * (asked.milli / 1000 if asked.milli else 1.0)
    if shape.cards:
        return cards / shape.cards
    described = shape.node
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
        moved = one.last_moved_at
        if moved is not None and (
            state.now - moved < rules.move_again_s or one.moved_under == demand
        ):
            return Refused(Why.SETTLED, node.name, figures=(("work", one.id),))
    hold = median(_remaining(one, state.now) for one in node.work)
    saving = node.offering.price_per_hour * Decimal(round(hold)) / HOUR
    cost = move_cost(rules, node)
    if saving <= Decimal(str(rules.payback)) * cost:
        figures = (("saving", f"{saving:.4f}"), ("cost", f"{cost:.4f}"))
        return Refused(Why.NO_PAYBACK, node.name, figures=figures)
    return None


def _remaining(one: Running, now: float) -> float:
    """Return how long it is likely to go on; for long-tailed lives that is about its age."""
    if one.expected_remaining_s is not None:
        return one.expected_remaining_s
    return max(0.0, now - one.started_at)


def move_cost(rules: NodeRules, node: FleetNode) -> Decimal:
    """Return what moving all work of a node costs: its pauses at the node's price, and the copies.

    A pause costs the part of the node that stands still. Currency of the node's offering.
    """
    total = Decimal(0)
    described = node.offering.node
    for one in node.work:
        asked = Asked.of(one.request)
        pause = rules.pause_gpu_s if asked.mode else rules.pause_s
        share = max(
            asked.cpu / max(1, described.cpu_milli),
            asked.memory / max(1, described.memory_bytes),
            asked.gpus / len(described.devices) if described.devices else 0.0,
        )
        if not one.paused:
            total += node.offering.price_per_hour * Decimal(str(round(pause * share, 6))) / HOUR
        total += rules.move_price_per_gib * Decimal(asked.memory) / GIB
    return total


def _elsewhere(
    view: ClusterView, node: FleetNode, rows: Sequence[Ints], without: Sequence[int]
) -> tuple[Move, ...] | None:
    """Find places for all of a node's work and book them into `view`; None where some has none.

    `rows`: possible targets by market, but for the node itself and rows `without`.
    """
    out = np.array([*without, view.row(node.name)], dtype=np.int64)
    targets = [one[~np.isin(one, out)] for one in rows]
    moves = []
    for one in sorted(node.work, key=_largest):
        spread = one.request.spread
        before = dict(view.group(spread)) if spread else {}
        view.release(one.id)
        decision = _one(view, one, targets)
        if decision is None:
            return None
        most = max([1, before.get(node.name, 0)])
        if spread and view.group(spread).get(decision.node, 0) > most:
            # it would come closer to its group than it is: somebody would buy a node to undo that
            return None
        if one.paused:
            view.pause(one.id)
        moves.append(Move(one.id, node.name, decision))
    return tuple(moves)


def _largest(one: Running) -> tuple[int, int, int, str]:
    asked = Asked.of(one.request)
    return -asked.gpus, -asked.cpu, -asked.memory, one.id


def _rows(state: FleetState, view: ClusterView, going: frozenset[str]) -> Sequence[Ints]:
    """Return the rows of nodes that are ready, in use and stay, by market: own machines first."""
    names: dict[Market, list[str]] = {market: [] for market in TIERS}
    for node in state.nodes:
        empty = node.offering.cloud and not node.work and not node.arriving
        if node.phase is NodePhase.READY and not (node.leaving or empty or node.name in going):
            names[node.offering.market].append(node.name)
    return [rows_of(view, names[market]) for market in TIERS if names[market]]


def _one(view: ClusterView, one: Running, targets: Sequence[Ints]) -> Decision | None:
    request = replace(tolerant(one.request), gang="", gang_group="")
    if request.near:
        rows = np.concatenate(targets) if targets else np.zeros(0, dtype=np.int64)
        allowed = {view.described[row].name for row in rows.tolist()}
        outside = tuple(name for name in view.nodes if name not in allowed)
        asked = replace(request, avoid=(*request.avoid, *outside))
        (decision,) = place(view, [asked], learn=False)
        return decision if decision.node else None
    for rows in targets:
        if not len(rows):
            continue
        (decision,) = place_class(view, [request], rows, learn=False, explain=False)
        if decision.node:
            return decision
    return None
