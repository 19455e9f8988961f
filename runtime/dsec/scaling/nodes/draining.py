"""Nodes that are to be empty: taken back by the provider, not paid for any more, drained. Pure.

A spot notice: no new work at once, what runs is paused and saved within the time left and goes to
the head of the queue; its replacement was bought first, by the same plan. A rebalance
recommendation: a replacement is bought, and once there is room for all of it the work moves there.
The end of what is paid for: the same as a notice, at a time that is known.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from dsec.placement.compaction import Move
from dsec.placement.request import Decision
from dsec.scaling.nodes.need import Need
from dsec.scaling.nodes.offerings import FleetNode, NodePhase
from dsec.scaling.nodes.plans import Drain, Gate, Refused, Renewal, Why
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import FleetState

AT_WORK = frozenset({NodePhase.READY, NodePhase.CORDONED})


def forced(state: FleetState, rules: NodeRules, wanted: Need) -> tuple[list[str], list[Drain]]:
    """Return the nodes that take no new work, and the drains that do not wait for anything."""
    cordons, drains = [], []
    for node in state.nodes:
        if node.phase not in AT_WORK:
            continue
        if node.leaving and node.phase is NodePhase.READY:
            cordons.append(node.name)
        drain = None
        if node.spot_notice_at is not None:
            drain = _rest(node, Why.SPOT_NOTICE, node.spot_notice_at + rules.spot_notice_s)
        elif node.run_until is not None and state.now >= node.run_until - rules.wind_down_s:
            drain = _rest(node, Why.EXPIRY, node.run_until)
        elif node.rebalance_at is not None and node.work:
            drain = _moved(state, node, wanted)
        if drain is not None:
            drains.append(drain)
    return cordons, drains


def _rest(node: FleetNode, why: Why, deadline: float) -> Drain:
    return Drain(node.name, why, rests=tuple(one.id for one in node.work), deadline=deadline)


def _moved(state: FleetState, node: FleetNode, wanted: Need) -> Drain | None:
    """Return a drain to nodes that are ready; None: it waits for its replacement."""
    ready = {one.name for one in state.nodes if one.phase is NodePhase.READY and not one.leaving}
    moves = []
    for one in node.work:
        booking = wanted.view.bookings().get(one.id)
        if booking is None or booking.node not in ready or not one.movable:
            return None
        decision = Decision(one.id, booking.node, booking.devices, cpus=booking.cpus)
        moves.append(Move(one.id, node.name, decision))
    return Drain(node.name, Why.REBALANCE, moves=tuple(moves))


def renewals(
    state: FleetState, rules: NodeRules, gate: Gate, going: frozenset[str]
) -> tuple[list[Renewal], list[Refused]]:
    """Return the nodes that are paid for until later, and those that no budget covers.

    Renewed at half of the time; ends are spread by a tenth, so that saving what runs does not
    happen everywhere in one minute.
    """
    found, refused = [], []
    for node in state.nodes:
        if node.run_until is None or node.name in going or node.phase not in AT_WORK:
            continue
        ahead = rules.of(node.offering.pool).run_until_s
        if node.spot_notice_at is not None or node.run_until - state.now > ahead / 2:
            continue
        until = state.now + ahead * _spread(node.name)
        given = min(until, gate.extend(node, until))
        if given > node.run_until + 1.0:
            found.append(Renewal(node.name, given))
        else:
            figures = (("seconds", f"{max(0.0, node.run_until - state.now):.0f}"),)
            refused.append(Refused(Why.BUDGET, node.name, figures=figures))
    return found, refused


def _spread(name: str) -> float:
    drawn = hashlib.sha256(name.encode()).digest()
    return 0.9 + 0.2 * int.from_bytes(drawn[:4], "big") / 2**32


def drained(node: FleetNode, outcomes: Mapping[str, bool], now: float) -> FleetNode:
    """Return a draining node after moves ended, id -> whether it rests on its target (ELAS-22).

    What has moved is not on it any more. Once one has failed the node is kept, flagged abnormal,
    with what failed on it; the caller archives the scene.
    """
    failed = tuple(sorted({*node.failed_moves, *(one for one, ok in outcomes.items() if not ok)}))
    work = tuple(one for one in node.work if not outcomes.get(one.id, False))
    phase = NodePhase.ABNORMAL if failed else node.phase
    since = now if phase is not node.phase else node.since
    return replace(node, work=work, failed_moves=failed, phase=phase, since=since)
