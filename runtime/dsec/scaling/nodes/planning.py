"""One plan: what to buy, drain, move, remove and renew now, and what is not done and why. Pure.

Call it on events, at most every 5 s. To carry a plan out: reserve its purchases (limits.reserve)
and persist that, buy, enter what the provider answered (carrying.answered), and
where something failed plan again at once: the next offering is taken in the same pass.
"""

from collections.abc import Sequence
from dataclasses import replace

from dsec.api.elastic_status import Step as Direction
from dsec.api.scaling import NodePreset
from dsec.placement.view import ClusterView
from dsec.scaling.guard import acted
from dsec.scaling.nodes.buying import Buyer
from dsec.scaling.nodes.choices import Choices
from dsec.scaling.nodes.consolidating import consolidations
from dsec.scaling.nodes.draining import forced, renewals
from dsec.scaling.nodes.filling import Group
from dsec.scaling.nodes.load import by_load, closed_pools, growth
from dsec.scaling.nodes.need import Need, need, places_of, with_slack
from dsec.scaling.nodes.plans import Drain, Gate, OpenGate, Plan, Purchase, Refused, Removal, Why
from dsec.scaling.nodes.removing import removals
from dsec.scaling.nodes.rules import NodeRules
from dsec.scaling.nodes.state import SLACK, Buffer, FleetState, Pending, PoolMemory
from dsec.scaling.nodes.units import buy_unit
from dsec.scaling.nodes.virtual import Work, fit, leaving_work, rows_of, serving
from dsec.scaling.nodes.words import work_words

PERCENT = 100
OPEN = OpenGate()
UNITS = 100
"""Most gangs and near groups that nodes are found for in one plan; the rest follow in the next."""
FIRST = (
    Why.BUDGET,
    Why.FROZEN,
    Why.LIMIT,
    Why.SPOT_FIRST,
    Why.BURST_WAIT,
    Why.COOLDOWN,
    Why.LOAD_WINDOW,
    Why.BACKED_OFF,
    Why.RESIDENCY,
)
"""Of several reasons the first is told: what is nearest to a purchase."""


def plan(state: FleetState, rules: NodeRules, gate: Gate = OPEN) -> Plan:
    """Return what to do now. Equal inputs give equal plans."""
    wanted = need(state)
    leaving = {one.request.id for one in leaving_work(state)}
    choices = Choices(state, rules, closed_pools(state, rules))
    buyer = Buyer(choices, gate)
    refused = _buy(buyer, wanted)
    refused += _least(buyer)
    buys = buyer.purchases(leaving)
    cordons, drains = forced(state, rules, wanted)
    spare = with_slack(wanted, state, SLACK)
    removed, kept = removals(state, rules, wanted, spare)
    going = frozenset([one.node for one in drains] + [one.node for one in removed])
    at = state.consolidated_at
    if at is None or state.now - at >= rules.consolidate_every_s or at > state.now:
        at = state.now
        more, stay = consolidations(state, rules, spare, going)
        drains += more
        kept += stay
        going |= {one.node for one in more}
    renewed, unpaid = renewals(state, rules, gate, going)
    return Plan(
        state.now,
        buys,
        tuple(cordons),
        tuple(drains),
        tuple(removed),
        tuple(renewed),
        (*refused, *kept, *unpaid),
        _memories(state, rules, buys, removed, drains),
        at,
    )


# -- what to buy --------------------------------------------------------------------------------


def _buy(buyer: Buyer, wanted: Need) -> list[Refused]:
    """Take nodes for what is uncovered: units first, then single work together with buffers."""
    choices = buyer.choices
    units = [work for work in wanted.uncovered if work.unit]
    view = wanted.view.fork() if units else wanted.view
    refused: list[Refused] = []
    virtual: list[str] = []
    for work in units[:UNITS]:
        names, groups = buy_unit(buyer, view, work)
        virtual += names
        if not names:
            refused += _refusals(groups)
    singles: list[int] = []
    for work in wanted.uncovered:
        if not work.unit:
            left = _beside(view, virtual, work)
            singles += choices.add(left) if left else []
    for buffer, missing in wanted.short:
        # numbered beyond those that `need` and its slack have placed
        places = Work(places_of(buffer, missing, start=2 * buffer.count))
        left = _beside(view, virtual, places)[: _affordable(buyer, wanted, buffer, places)]
        singles += choices.add(left, buffer.name) if left else []
    buyer.buy(singles)
    return refused + _refusals([choices.groups[number] for number in singles])


def _beside(view: ClusterView, virtual: Sequence[str], work: Work) -> list[Pending]:
    """Return what does not fit beside units on their new nodes."""
    if not virtual:
        return work.members
    placed = fit(view, work, rows_of(view, virtual))
    return [one for one in work.members if one.request.id not in placed]


def _affordable(buyer: Buyer, wanted: Need, buffer: Buffer, places: Work) -> int:
    """Return how many places may be bought, so that buffers cost at most their part of the burn."""
    count = len(places.members)
    if buffer.burn_percent >= PERCENT:
        return count
    state = buyer.state
    held = sum(
        float(node.offering.price_per_hour)
        for node in state.nodes
        if node.offering.cloud
        and not node.busy
        and all(one.startswith("buffer/") for one in wanted.promised.get(node.name, ()))
    )
    left = float(state.burn) * buffer.burn_percent / PERCENT - held
    price = buyer.choices.cheapest(places.request)
    return min(count, int(left // price)) if left > 0 and price > 0 else 0


def _least(buyer: Buyer) -> list[Refused]:
    """Take what pools lack of their least number, and what held load asks for (ELAS-14)."""
    state, rules = buyer.state, buyer.rules
    refused = []
    for pool in state.pools:
        have = sum(serving(one, state.now) for one in state.of_pool(pool))
        have += sum(step.count for step in buyer.steps if step.offering.pool == pool)
        lacking = rules.of(pool).bounds(state.now).least - have
        why = Why.MINIMUM
        if lacking <= 0 and by_load(state, rules, pool) and pool not in buyer.choices.closed:
            bought = sum(step.count for step in buyer.steps if step.offering.pool == pool)
            lacking, why = growth(state, rules, pool) - bought, Why.LOAD
        if lacking > 0:
            missing, stop = buyer.more(pool, lacking, why)
            if missing:
                figures = (("detail", stop.detail),)
                refused.append(Refused(stop.why, f"pool {pool}", missing, figures))
    return refused


def _refusals(groups: Sequence[Group]) -> list[Refused]:
    """Return why classes found no node, one line a class and reason."""
    found: dict[tuple[Why, str, str], int] = {}
    for group in groups:
        if not group.left or (group.buffer and not group.blocked):
            continue
        why = next((one for one in FIRST if one in group.blocked), Why.NO_OFFERING)
        what = f"buffer {group.buffer}" if group.buffer else work_words(group.request)
        key = (why, what, group.blocked.get(why, ""))
        found[key] = found.get(key, 0) + group.left
    return [
        Refused(why, what, count, (("detail", detail),) if detail else ())
        for (why, what, detail), count in found.items()
    ]


# -- what is remembered -------------------------------------------------------------------------


def _memories(
    state: FleetState,
    rules: NodeRules,
    buys: Sequence[Purchase],
    removed: Sequence[Removal],
    drains: Sequence[Drain],
) -> tuple[PoolMemory, ...]:
    """Return what pools remember once the plan is carried out.

    Replacements and least numbers are no growth by demand, and what left by itself no shrinking:
    the guard goes by neither.
    """
    pools = {node.name: node.offering.pool for node in state.nodes}
    grown = {one.offering.pool for one in buys if one.reason in (Why.PENDING, Why.BUFFER)}
    shrunk = {one.pool for one in removed if one.reason in (Why.EMPTY, Why.CALM)}
    shrunk |= {pools[one.node] for one in drains if one.reason is Why.CONSOLIDATION}
    stepped = {
        one.offering.pool
        for one in buys
        if rules.of(one.offering.pool).preset_of(one.offering) is NodePreset.NODE_LOAD
        and one.reason in (Why.PENDING, Why.BUFFER, Why.LOAD)
    }
    stepped |= {one.pool for one in removed if one.reason is Why.CALM}
    found = []
    for pool in state.pools:
        memory = state.memory(pool)
        guard = memory.guard
        if pool in grown:
            guard = acted(guard, Direction.GROW, state.now, rules.guard)
        elif pool in shrunk:
            guard = acted(guard, Direction.SHRINK, state.now, rules.guard)
        at = state.now if pool in stepped else memory.acted_at
        found.append(replace(memory, guard=guard, acted_at=at))
    return tuple(found)
