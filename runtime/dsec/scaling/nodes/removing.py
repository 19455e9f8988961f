"""Which nodes to give back: idle for their time, promised to nobody, above every floor. Pure.

It removes only what the buyer would not buy back: with the nodes gone `need` finds nothing more
uncovered, buffers included, and beyond that the slack of buffers stays free as well.
"""

from collections.abc import Sequence

from dsec.api.scaling import NodePreset, Shrinking
from dsec.scaling.guard import wait_seconds
from dsec.scaling.nodes.load import calm, cooling
from dsec.scaling.nodes.need import Need, need
from dsec.scaling.nodes.offerings import FleetNode, NodePhase
from dsec.scaling.nodes.plans import Refused, Removal, Why
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import FleetState
from dsec.scaling.nodes.virtual import serving

Verdict = Removal | Refused | None


def removals(
    state: FleetState, rules: NodeRules, wanted: Need, spare: Need
) -> tuple[list[Removal], list[Refused]]:
    """Return what goes, and what stays for a reason.

    `wanted` and `spare`: the need without and with slack.
    """
    found: list[Removal] = []
    refused: list[Refused] = []
    for pool in state.pools:
        for one in _of_pool(state, rules, spare, pool):
            (found if isinstance(one, Removal) else refused).append(one)  # type: ignore[arg-type]  # by kind
    certain = [one for one in found if one.reason in (Why.LATE, Why.DRAINED)]
    chosen = [one for one in found if one not in certain]
    while chosen and _worse(state, wanted, [*certain, *chosen]):
        # packed another way some of it is needed after all; seldom, and then few go at a time
        chosen = chosen[: len(chosen) // 2]
    return [*certain, *chosen], refused


def _worse(state: FleetState, wanted: Need, going: Sequence[Removal]) -> bool:
    after = need(state, without=[one.node for one in going])
    short = {buffer.name: count for buffer, count in wanted.short}
    return after.count > wanted.count or any(
        count > short.get(buffer.name, 0) for buffer, count in after.short
    )


def _of_pool(
    state: FleetState, rules: NodeRules, spare: Need, pool: str
) -> list[Removal | Refused]:
    bounds = rules.of(pool).bounds(state.now)
    nodes = list(state.of_pool(pool))
    left = sum(serving(one, state.now) for one in nodes)
    surplus = 0 if bounds.most is None else max(0, len(nodes) - bounds.most)
    # of idle nodes the dearest first, then the longest idle
    nodes.sort(key=lambda one: (-one.offering.price_per_hour, one.idle_since or 0.0, one.name))
    found: list[Removal | Refused] = []
    stepped = False
    for node in nodes:
        verdict = _at_once(node, state.now) or _idle(state, rules, spare, node, surplus > 0)
        if isinstance(verdict, Removal) and verdict.reason in (Why.EMPTY, Why.CALM):
            verdict = _bounded(state, rules, node, verdict, left - bounds.least, stepped=stepped)
        if verdict is None:
            continue
        found.append(verdict)
        if isinstance(verdict, Removal):
            left -= serving(node, state.now)
            surplus -= 1
            stepped = stepped or verdict.reason is Why.CALM
    return found


def _at_once(node: FleetNode, now: float) -> Verdict:
    """Return what does not wait: late nodes, drained ones, and those that are kept for a look."""
    if node.late(now):
        return Removal(node.name, node.offering.pool, Why.LATE, now - node.requested_at)
    if node.phase is NodePhase.ABNORMAL:
        return Refused(
            Why.FAILED_MOVE, node.name, figures=(("work", ", ".join(node.failed_moves)),)
        )
    if node.phase is NodePhase.DRAINING and not node.busy:
        return Removal(node.name, node.offering.pool, Why.DRAINED)
    return None


def _idle(
    state: FleetState,
    rules: NodeRules,
    spare: Need,
    node: FleetNode,
    surplus: bool,
) -> Verdict:
    offering = node.offering
    pool = rules.of(offering.pool)
    empty = node.phase in (NodePhase.READY, NodePhase.CORDONED) and not node.busy
    if not empty or node.name in spare.promised or pool.stays:
        return None
    if node.protected:
        return Refused(Why.PROTECTED, node.name)
    if node.leaving or surplus:
        return Removal(node.name, offering.pool, Why.REBALANCE if node.leaving else Why.SURPLUS)
    why = Why.CALM if pool.preset_of(offering) is NodePreset.NODE_LOAD else Why.EMPTY
    if not _waited(state, rules, node, why):
        return None
    idle = state.now - (state.now if node.idle_since is None else node.idle_since)
    return Removal(node.name, offering.pool, why, idle)


def _waited(state: FleetState, rules: NodeRules, node: FleetNode, why: Why) -> bool:
    """Return whether a node was idle for its time, and its pool is one that shrinks now."""
    now, offering = state.now, node.offering
    if node.idle_since is None or now - node.idle_since < rules.idle_s(offering):
        return False
    began = node.requested_at if node.ready_at is None else node.ready_at
    if now - began < offering.minimum_bill_seconds:
        return False
    if why is Why.CALM:
        return calm(state.memory(offering.pool), now, rules)
    # what is paid for in any case stays, unless somebody says otherwise
    return offering.cloud or rules.of(offering.pool).preset is not None


def _bounded(
    state: FleetState,
    rules: NodeRules,
    node: FleetNode,
    verdict: Removal,
    above: int,
    *,
    stepped: bool,
) -> Removal | Refused:
    """Return the removal, or what forbids it: floor, cooldown, guard, dry run."""
    pool = rules.of(node.offering.pool)
    memory = state.memory(node.offering.pool)
    if above <= 0:
        least = pool.bounds(state.now).least
        return Refused(Why.FLOOR, node.name, figures=(("least", str(least)),))
    if verdict.reason is Why.CALM:
        left = rules.cooldown_s if stepped else cooling(memory, state.now, rules)
        if left > 0:
            return Refused(Why.COOLDOWN, node.name, figures=(("seconds", f"{left:.0f}"),))
    since = state.now if node.idle_since is None else node.idle_since
    wait = wait_seconds(memory.guard, since=since, now=state.now, rule=rules.guard)
    if wait > 0:
        return Refused(Why.GUARD, node.name, figures=(("seconds", f"{wait:.0f}"),))
    if pool.shrink is Shrinking.DRY_RUN:
        return Refused(Why.DRY_RUN, node.name, figures=(("idle", f"{verdict.idle_s:.0f}"),))
    return verdict
