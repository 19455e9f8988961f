"""Single plans of random fleets: everything that waits is placed, bought for or refused; all holds.

Own, reserved, spot and on-demand nodes with and without cards in two regions; single work, gangs,
near groups, parts of cards, budgets, residency, backoffs, buffers, limits.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from dsec.api.sandbox import GpuMode
from dsec.api.scaling import Market
from dsec.placement.request import Decision
from dsec.scaling.nodes.backoff import failed
from dsec.scaling.nodes.need import need
from dsec.scaling.nodes.offerings import Offering
from dsec.scaling.nodes.planning import plan
from dsec.scaling.nodes.plans import GateAnswer, OpenGate, Plan, Purchase, Why
from dsec.scaling.nodes.state import Backoff, Buffer
from dsec.scaling.nodes.virtual import view_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nodes_make import (
    GUARANTEED,
    NOW,
    PREEMPTIBLE,
    FleetState,
    Limit,
    NodePhase,
    PoolMemory,
    PoolRules,
    become,
    fleet_node,
    offering,
    pending,
    rules,
    running,
)
from placement_make import request

OFFERS = (
    offering("own", 16, 64, price="0.3", market=Market.OWNED, limit=4),
    offering("res", 16, 64, price="0.6", market=Market.RESERVED, limit=2),
    offering("c16", 16, 64, price="1"),
    offering("c64", 64, 256, price="3.7"),
    offering("c16", 16, 64, price="0.4", market=Market.SPOT),
    offering("g1", 16, 64, 1, price="2"),
    offering("g4", 64, 256, 4, price="7"),
    offering("g4", 64, 256, 4, price="2.8", market=Market.SPOT),
    offering("w16", 16, 64, price="0.8", region="west", zone="west-1"),
)
SIZES = ((1, 1), (4, 8), (12, 16), (40, 100))


@st.composite
def waits(draw: st.DrawFn) -> FleetState:
    """Return a fleet in which something may have to be done."""
    work = []
    for number in range(draw(st.integers(0, 6))):
        cores, gib = draw(st.sampled_from(SIZES))
        fields: dict[str, object] = {
            "task_class": draw(st.sampled_from([GUARANTEED, PREEMPTIBLE])),
            "priority": draw(st.sampled_from([-1, 0])),
        }
        cards = draw(st.sampled_from([0, 0, 1, 2]))
        if cards:
            fields |= {"gpu_count": cards, "gpu_mode": GpuMode.WHOLE}
        elif draw(st.booleans()):
            fields |= {"gpu_count": 1, "gpu_milli": draw(st.sampled_from([250, 600]))}
        together = draw(st.sampled_from(["", "", "gang", "near"]))
        if together:
            fields[together] = f"{together}{number}"
        own = {
            "budget": draw(st.sampled_from(["a", "b"])),
            "regions": draw(st.sampled_from([(), (), ("west",), ("north",)])),
            "burst_wait_s": draw(st.sampled_from([None, 0.0, 300.0])),
        }
        waited = draw(st.sampled_from([5.0, 40.0, 400.0]))
        work += [
            pending(request(f"w{number}-{one}", cores, gib, **fields), waited, **own)
            for one in range(draw(st.integers(1, 9)))
        ]
    nodes = []
    for number in range(draw(st.integers(0, 6))):
        made = draw(st.sampled_from(OFFERS))
        phase = draw(st.sampled_from([NodePhase.READY, NodePhase.READY, NodePhase.BOOTING]))
        held = []
        if phase is NodePhase.READY:
            soft = GUARANTEED if made.market is not Market.SPOT else PREEMPTIBLE
            held = [
                running(f"r{number}-{one}", 3, 8, task_class=soft)
                for one in range(draw(st.integers(0, 4)))
            ]
        fields = {}
        if held and made.market is Market.SPOT:
            fields["spot_notice_at"] = draw(st.sampled_from([None, NOW - 5]))
        nodes.append(fleet_node(f"n{number}", made, phase, held, **fields))
    backoffs: tuple[Backoff, ...] = ()
    for broken in draw(st.lists(st.sampled_from(OFFERS), max_size=3)):
        backoffs = failed(backoffs, broken, NOW - draw(st.sampled_from([10.0, 500.0])))
    buffers = (Buffer("b", request("place"), draw(st.sampled_from([4, 30]))),)
    ready = PoolMemory("owned", backlog_since=NOW - draw(st.sampled_from([1.0, 100.0])))
    state = FleetState(
        NOW,
        tuple(nodes),
        tuple(work),
        OFFERS,
        backoffs,
        draw(st.sampled_from([(), buffers])),
        (Limit("all", gpus=draw(st.sampled_from([3, 50]))),),
    )
    return state.remembering(ready)


class _Purse(OpenGate):
    """Budget `a` pays for three nodes in all, `b` for everything."""

    def width(
        self, offering: Offering, count: int, paths: Sequence[str], taken: Sequence[Purchase]
    ) -> GateAnswer:
        """Return what is covered."""
        del offering
        if "a" not in paths:
            return GateAnswer(count)
        used = sum(one.count for one in taken if "a" in one.paths)
        return GateAnswer(min(count, max(0, 3 - used)), "a", "a has spent it")


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]
BY = rules(
    PoolRules("cloud", max_nodes=30, max_cost_per_hour=Decimal(40)),
    PoolRules("owned", max_nodes=4),
    home_region="east",
)


@settings(suppress_health_check=QUIET)
@given(waits())
def test_every_plan_holds(state: FleetState) -> None:
    """Accounted for, within limits, without touching what runs; the same again."""
    made = plan(state, BY, _Purse())
    assert made == plan(state, BY, _Purse())
    _accounted(state, made)
    _limits(state, made)
    _removals(state, made)
    _moves(state, made)


@settings(suppress_health_check=QUIET)
@given(waits())
def test_what_was_bought_is_not_bought_again(state: FleetState) -> None:
    """Once nodes boot, nothing that was covered is bought for a second time.

    Where all is covered: what is left waiting may be older, and take the place of what was bought
    for.
    """
    first = plan(state, BY)
    assume(all("core" not in one.subject for one in first.refusals))
    covered = {id_ for buy in first.buys for id_ in buy.covers}
    # gangs of one group and shared cards may pack another way among more nodes; single work not
    single = {one.request.id for one in state.pending if not (one.request.gang or one.request.near)}
    second = plan(become(state, first), BY)
    again = {id_ for buy in second.buys for id_ in buy.covers} & covered & single
    assert len(again) <= len(covered) // 20, again


def _accounted(state: FleetState, made: Plan) -> None:
    """Each request is placed, covered once, or refused; nothing else is covered."""
    wanted = need(state)
    covers = Counter(id_ for buy in made.buys for id_ in buy.covers)
    assert not covers or max(covers.values()) == 1
    left = {one.request.id for work in wanted.uncovered for one in work.members}
    assert covers.keys() <= left
    units = {one.request.id for work in wanted.uncovered if work.unit for one in work.members}
    told = sum(
        one.count
        for one in made.refusals
        if "core" in one.subject and not one.subject.startswith("buffer")
    )
    if not units:
        # beside the new nodes of a unit other work is neither bought for nor refused
        assert told + len(covers) == len(left)
    by_id = {one.request.id: one for one in state.pending}
    for buy in made.buys:
        assert len(set(buy.names)) == buy.count
        for id_ in buy.covers:
            one = by_id.get(id_)
            if one is None:
                assert buy.reason is Why.REPLACEMENT
                continue
            assert not one.regions or buy.offering.region in one.regions
            if buy.offering.market is Market.SPOT:
                assert one.request.task_class is PREEMPTIBLE
            if buy.offering.cloud and buy.reason is Why.PENDING:
                wait = 10.0 if one.burst_wait_s is None else one.burst_wait_s
                assert state.now - one.since >= wait


def _limits(state: FleetState, made: Plan) -> None:
    offers = [one.offering for one in state.nodes]
    new = [buy.offering for buy in made.buys for _ in range(buy.count)]
    both = Counter(one.key for one in (*offers, *new))
    for one in new:
        assert one.limit is None or both[one.key] <= one.limit
    if new:
        cloud = [one for one in (*offers, *new) if one.pool == "cloud"]
        if any(one.pool == "cloud" for one in new):
            assert len(cloud) <= 30
            assert sum(one.price_per_hour for one in cloud) <= 40
    if any(one.node.devices for one in new):
        most = state.limits[0].gpus or 0
        assert sum(len(one.node.devices) for one in (*offers, *new)) <= most
    paid = sum(buy.count for buy in made.buys if "a" in buy.paths)
    assert paid <= 3 + sum(buy.count for buy in made.buys if buy.paths == ("a", "b"))
    for backoff in state.backoffs:
        if state.now < backoff.until:
            assert all(one.key != backoff.key for one in new)
        else:
            assert sum(one.key == backoff.key for one in new) <= 1


def _removals(state: FleetState, made: Plan) -> None:
    by_name = {one.name: one for one in state.nodes}
    for one in made.removals:
        node = by_name[one.node]
        assert not node.busy
        assert node.offering.cloud or one.reason is not Why.EMPTY
    gone = [one.node for one in made.removals]
    assert need(state, without=gone).count <= need(state).count


def _moves(state: FleetState, made: Plan) -> None:
    """All moves can be made at once, beside everything that runs."""
    view = view_of(state)
    by_name = {one.name: one for one in state.nodes}
    for move in made.moves:
        target = by_name[move.target]
        assert target.phase is NodePhase.READY
        assert target.name not in {drain.node for drain in made.drains}
        booking = view.bookings()[move.id]
        assert booking.node == move.source
        asked = replace(booking.request, id=f"{move.id}@")
        where = move.decision
        view.book(asked, Decision(asked.id, where.node, where.devices, cpus=where.cpus))
