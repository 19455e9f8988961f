"""Field reports about scaling of nodes: each as it happened, and what has to happen instead."""

import math
from dataclasses import replace

import pytest
from dsec.api.scaling import Market
from dsec.rules import POOL_RULES, Severity, check
from dsec.scaling.nodes.backoff import allowance, failed, keys_of, succeeded, taken_back
from dsec.scaling.nodes.dumps import FleetDump
from dsec.scaling.nodes.limits import reserve
from dsec.scaling.nodes.need import need
from dsec.scaling.nodes.offerings import LATE_LEAST_S
from dsec.scaling.nodes.state import Buffer
from nodes_make import (
    NOW,
    PREEMPTIBLE,
    FleetState,
    NodePhase,
    PoolRules,
    Why,
    become,
    bought,
    counts,
    fleet_node,
    offering,
    pending,
    planned,
    refusals,
    rules,
    running,
    waiting,
)
from placement_make import gpu, request

C16 = offering("c16", 16, 64, price="1")
C32 = offering("c32", 32, 128, price="2")
SPOT = offering("c16", 16, 64, price="0.4", market=Market.SPOT)


# -- consolidation --------------------------------------------------------------------------------


def _two(first: float, second: float, **fields: object) -> FleetState:
    """Return two nodes of 16 cores with one sandbox of so many cores each."""
    nodes = (
        fleet_node("a", C16, work=[running("wa", first, **fields)]),
        fleet_node("b", C16, work=[running("wb", second, **fields)]),
    )
    return FleetState(NOW, nodes, offerings=(C16,))


@pytest.mark.case("karpenter#1019", "aws#7146")
def test_merged_once_and_never_again_for_the_same_demand() -> None:
    """Two nodes at 3 and 7 cores become one; what has moved stays while demand stays."""
    state = _two(3, 7)
    (drain,) = planned(state).drains
    assert (drain.node, drain.reason) == ("a", Why.CONSOLIDATION)
    assert [(move.id, move.target) for move in drain.moves] == [("wa", "b")]
    # it moved; ten minutes later another node offers room, for the same demand
    moved = replace(state.nodes[0].work[0], last_moved_at=NOW, moved_under=state.demand)
    target = replace(state.nodes[1], work=(moved,))
    other = fleet_node("c", C16, work=[replace(state.nodes[1].work[0], movable=False)])
    later = replace(state, now=NOW + 1200, nodes=(target, other))
    assert later.demand == state.demand
    made = planned(later)
    assert made.drains == ()
    assert {one.subject: one.reason for one in made.refusals} == {
        "b": Why.SETTLED,
        "c": Why.NOT_MOVABLE,
    }
    changed = planned(replace(later, pending=tuple(waiting(1, waited=1))))
    assert [one.node for one in changed.drains] == ["b"]


@pytest.mark.case("karpenter#1019", "aws#3577", "aws#8536")
def test_a_merge_that_would_need_a_new_node_is_none() -> None:
    """10 and 7 cores do not fit one node of 16: nothing moves, nothing is bought, for 14 hours."""
    state = _two(10, 7)
    for minute in range(0, 14 * 60, 4):
        made = planned(replace(state, now=NOW + minute * 60, consolidated_at=None))
        assert (made.drains, made.buys, made.removals) == ((), (), ())
    assert [one.reason for one in made.refusals] == [Why.NO_ROOM]


@pytest.mark.case("karpenter#1019", "karpenter#2388")
def test_full_nodes_are_not_exchanged_for_their_like() -> None:
    """A node that is 90 % full stays, whatever else there is."""
    state = _two(14.4, 1)
    made = planned(state)
    assert [one.node for one in made.drains] == ["b"]
    full = replace(state, nodes=state.nodes[:1])
    assert planned(full).drains == ()


def test_a_saving_that_does_not_pay_for_the_moves_is_none() -> None:
    """Work that is likely to end in a second is left to end."""
    state = _two(3, 7, expected_remaining_s=1.0)
    made = planned(state)
    assert made.drains == ()
    assert len(refusals(made, Why.NO_PAYBACK)) == 2


def test_a_node_whose_work_cannot_be_moved_waits_and_says_so() -> None:
    """Until a mover can take it; half of a node is never drained."""
    made = planned(_two(3, 7, movable=False))
    assert made.drains == ()
    assert len(refusals(made, Why.NOT_MOVABLE)) == 2


def test_drains_are_capped_per_pool() -> None:
    """Of 40 nodes four at once."""
    nodes = tuple(fleet_node(f"n{n}", C16, work=[running(f"w{n}", 2)]) for n in range(40))
    made = planned(FleetState(NOW, nodes, offerings=(C16,)))
    assert len(made.drains) == 4
    assert refusals(made, Why.CAP)


@pytest.mark.case("karpenter#1256")
def test_nodes_that_a_group_is_spread_over_are_not_merged() -> None:
    """Members that avoid each other stay apart; without the wish they are merged."""
    assert planned(_two(3, 7)).drains != ()
    apart = planned(_two(3, 7, spread="replicas"))
    assert apart.drains == ()
    assert {one.reason for one in apart.refusals} == {Why.NO_ROOM}


def test_work_that_may_not_be_interrupted_is_never_moved_to_spot() -> None:
    """The only room elsewhere is on a spot node."""
    nodes = (
        fleet_node("od", C16, work=[running("g", 3)]),
        fleet_node("spot", SPOT, work=[running("p", 4, task_class=PREEMPTIBLE)]),
    )
    made = planned(FleetState(NOW, nodes, offerings=(C16, SPOT)))
    assert "od" not in {one.node for one in made.drains}


OWN = offering("own16", 16, 64, price="1", market=Market.OWNED, pool="own")


def _exchange(**fields: object) -> FleetState:
    """Return an own machine of 16 cores full of small work, a small cloud node, and a full one."""
    small = [running(f"s{n}", 2, task_class=PREEMPTIBLE) for n in range(8)]
    nodes = (
        fleet_node("own", OWN, work=small),
        fleet_node("room", C16, work=[running("r", 4, movable=False)]),
        fleet_node("big", C16, work=[running("large", 12, **fields)]),
    )
    return FleetState(NOW, nodes, offerings=(OWN, C16))


def test_less_demanding_work_makes_room_on_a_machine_that_is_paid_for_anyway() -> None:
    """12 cores of a full cloud node: six of the eight small ones move beside other work first."""
    (drain,) = planned(_exchange()).drains
    assert (drain.node, drain.reason) == ("big", Why.CONSOLIDATION)
    assert (drain.moves[-1].id, drain.moves[-1].target) == ("large", "own")
    first = drain.moves[:-1]
    assert {(move.source, move.target) for move in first} == {("own", "room")}
    assert len({move.id for move in first}) == len(first) == 6


@pytest.mark.parametrize(
    "wrong", ["not movable", "moved lately", "no room elsewhere", "as large", "does not pay"]
)
def test_room_is_not_made_at_any_price(wrong: str) -> None:
    """What may not move, or is as large, stays; a move that saves less than it costs is none."""
    state = _exchange(**({"expected_remaining_s": 1.0} if wrong == "does not pay" else {}))
    own, room, big = state.nodes
    if wrong == "not movable":
        own = replace(own, work=tuple(replace(one, movable=False) for one in own.work))
    if wrong == "moved lately":
        own = replace(own, work=tuple(replace(one, last_moved_at=NOW - 60) for one in own.work))
    if wrong == "no room elsewhere":
        room = replace(room, work=(running("r", 15, movable=False),))
    if wrong == "as large":
        own = replace(own, work=(running("other", 12),))
    made = planned(replace(state, nodes=(own, room, big)))
    assert "big" not in {one.node for one in made.drains}


def test_a_full_cloud_node_goes_where_a_paid_machine_has_room() -> None:
    """However full: its work fits beside what the own machine runs. To cloud it would not move."""
    big = fleet_node("big", C16, work=[running("large", 12)])
    own = fleet_node("own", OWN, work=[running("s", 2)])
    (drain,) = planned(FleetState(NOW, (own, big), offerings=(OWN, C16))).drains
    assert [(move.id, move.target) for move in drain.moves] == [("large", "own")]
    other = fleet_node("other", C32, work=[running("s", 17)])
    assert planned(FleetState(NOW, (other, big), offerings=(C16, C32))).drains == ()


# -- failures of providers ------------------------------------------------------------------------


@pytest.mark.case("karpenter-oci#64")
def test_a_lack_of_spot_says_nothing_of_on_demand() -> None:
    """The key of a failure is the offering's own, and what is asked later is looked up by it."""
    backoffs = failed((), SPOT, NOW, code="InsufficientInstanceCapacity")
    state = FleetState(NOW, offerings=(C16, SPOT), backoffs=backoffs)
    assert allowance(state, SPOT) == (0, SPOT.key)
    assert allowance(state, C16) == (None, "")
    assert [one.key for one in backoffs] == [SPOT.key]


@pytest.mark.case("karpenter-oci#64")
def test_a_node_is_launched_as_the_offering_that_was_chosen() -> None:
    """Work that may be on spot, spot gone, patience over: what is bought says on-demand."""
    work = tuple(waiting(2, cores=16, task_class=PREEMPTIBLE, waited=61))
    state = FleetState(NOW, pending=work, offerings=(C16, SPOT))
    (spot,) = planned(state).buys
    assert spot.offering.market is Market.SPOT
    gone = replace(state, backoffs=failed((), SPOT, NOW - 1))
    (instead,) = planned(gone).buys
    assert instead.offering is C16
    early = replace(gone, pending=tuple(waiting(2, cores=16, task_class=PREEMPTIBLE, waited=59)))
    assert planned(early).buys == ()
    assert [one.reason for one in planned(early).refusals] == [Why.SPOT_FIRST]


@pytest.mark.case("karpenter-provider-oci#33", "skypilot#831")
def test_a_failure_that_nobody_knows_backs_off_and_the_next_offering_is_taken() -> None:
    """180 s, doubled to 30 min, one probe; in the same pass the next offering is bought."""
    state = FleetState(NOW, pending=tuple(waiting(2, cores=16)), offerings=(C16, C32))
    first = planned(state)
    assert bought(first) == {"c32 on-demand": 1}
    told = replace(state, backoffs=failed((), C32, NOW, scope="no such scope", code="E-17"))
    assert bought(planned(told)) == {"c16 on-demand": 2}
    waits, backoffs, at = [], (), NOW
    for _ in range(6):
        backoffs = failed(backoffs, C32, at)
        waits.append(backoffs[0].until - at)
        at = backoffs[0].until
    assert waits == [180, 360, 720, 1440, 1800, 1800]
    probing = replace(told, now=NOW + 181, pending=tuple(waiting(64, cores=32, gib=2)))
    made = planned(probing)
    assert bought(made) == {"c32 on-demand": 1}
    assert [one.count for one in refusals(made, Why.BACKED_OFF)] == [63]
    under_way = become(probing, made)
    assert bought(planned(under_way)) == {}
    assert counts(planned(replace(under_way, backoffs=succeeded(told.backoffs, C32))).buys) == 63


@pytest.mark.case("karpenter-provider-oci#33")
def test_too_many_calls_stop_all_calls_to_that_provider_and_no_other() -> None:
    """429 is no lack of room: the provider as a whole is left alone."""
    other = replace(C16, provider="other", instance_type="o16")
    backoffs = failed((), C32, NOW, scope="provider", code="429", retry_after_s=600)
    state = FleetState(
        NOW, pending=tuple(waiting(1, cores=16)), offerings=(C16, C32, other), backoffs=backoffs
    )
    assert bought(planned(state)) == {"o16 on-demand": 1}
    assert allowance(replace(state, now=NOW + 599), C16) == (0, "provider/simulated")


def test_failures_that_were_under_way_together_count_once() -> None:
    """Ten nodes asked for at once and refused one by one are one failure."""
    backoffs = ()
    for second in range(10):
        backoffs = failed(backoffs, C32, NOW + second)
    assert (backoffs[0].failures, backoffs[0].until) == (1, NOW + 9 + 180)


@pytest.mark.case("skypilot#2234")
def test_a_region_that_takes_nodes_back_is_left_for_another() -> None:
    """Spot in east was taken back: the replacement is bought in west, though it is dearer."""
    west = replace(SPOT, region="west", zone="west-1", price_per_hour=SPOT.price_per_hour * 2)
    noticed = fleet_node(
        "n", SPOT, work=[running("p", 16, task_class=PREEMPTIBLE)], spot_notice_at=NOW
    )
    state = FleetState(NOW, (noticed,), offerings=(SPOT, west, C16))
    state = replace(state, backoffs=taken_back((), SPOT, NOW))
    (buy,) = planned(state).buys
    assert (buy.offering.region, buy.reason) == ("west", Why.REPLACEMENT)
    alone = replace(state, offerings=(SPOT, C16))
    (buy,) = planned(alone).buys
    assert buy.offering == SPOT, "with no other region, spot stays better than dearer nodes"
    again = taken_back(taken_back((), SPOT, NOW), SPOT, NOW + 200)
    assert again[0].until == NOW + 200 + 360
    assert succeeded(again, SPOT) == again, "a node that came is no proof that it will stay"


def test_a_spot_notice_buys_first_then_pauses_and_saves_within_the_notice() -> None:
    """The plan holds the replacement, the cordon and the drain with its deadline, in this order."""
    work = [running("p", 16, task_class=PREEMPTIBLE)]
    noticed = fleet_node("n", SPOT, work=work, spot_notice_at=NOW - 3)
    made = planned(FleetState(NOW, (noticed,), offerings=(SPOT, C16)))
    (buy,) = made.buys
    assert (buy.reason, buy.covers) == (Why.REPLACEMENT, ("p",))
    assert made.cordons == ("n",)
    (drain,) = made.drains
    assert (drain.rests, drain.deadline) == (("p",), NOW - 3 + 100)
    # the queue holds it already: it is counted once
    queued = FleetState(NOW, (noticed,), (pending(work[0].request, 0.0),), offerings=(SPOT, C16))
    assert need(queued).count == 1


def test_a_rebalance_recommendation_moves_once_the_replacement_is_ready() -> None:
    """Until then nothing is interrupted."""
    work = [running("p", 16, task_class=PREEMPTIBLE)]
    told = fleet_node("n", SPOT, work=work, rebalance_at=NOW)
    state = FleetState(NOW, (told,), offerings=(SPOT,))
    first = planned(state)
    assert (counts(first.buys), first.drains) == (1, ())
    boots = become(state, first)
    assert (planned(boots).buys, planned(boots).drains) == ((), ())
    ready = become(state, first, NodePhase.READY)
    (drain,) = planned(ready).drains
    assert (drain.reason, drain.moves[0].target) == (Why.REBALANCE, first.buys[0].names[0])


# -- limits ---------------------------------------------------------------------------------------


@pytest.mark.case("karpenter#2915", "karpenter#2657")
def test_a_limit_of_one_node_holds_for_two_plans_made_at_once() -> None:
    """Both planned from the same state; the second finds the first's node reserved."""
    by = rules(PoolRules("cloud", max_nodes=1))
    state = FleetState(NOW, offerings=(C16,), scope="one")
    first = planned(replace(state, pending=tuple(waiting(1, "a", cores=16))), by)
    other = replace(state, pending=tuple(waiting(1, "b", cores=16)), scope="two")
    second = planned(other, by)
    assert (counts(first.buys), counts(second.buys)) == (1, 1)
    held, allowed = reserve(state, by, first.buys)
    assert counts(allowed) == 1
    held, allowed = reserve(held, by, second.buys)
    assert allowed == ()
    assert [node.phase for node in held.nodes] == [NodePhase.REQUESTED]
    assert reserve(held, by, first.buys)[1] == first.buys, "a repeat is the same purchase"


def test_a_repeat_of_what_a_limit_cut_buys_no_more_than_was_reserved() -> None:
    """Three were planned and two allowed: whoever comes again with the plan gets these two."""
    made = planned(FleetState(NOW, (), tuple(waiting(3, cores=16)), (C16,)), rules())
    assert counts(made.buys) == 3
    by = rules(PoolRules("cloud", max_nodes=2))
    held, allowed = reserve(FleetState(NOW, offerings=(C16,)), by, made.buys)
    assert counts(allowed) == 2
    again, repeated = reserve(held, by, made.buys)
    assert (repeated, again.nodes) == (allowed, held.nodes)


@pytest.mark.case("karpenter#2854")
def test_what_is_only_asked_for_counts_with_its_whole_size() -> None:
    """A limit of 64 cores, 32 asked for on behalf of one core: one more of 32, not two."""
    by = rules(PoolRules("cloud", max_cpu_milli=64_000))
    asked_for = fleet_node("n", C32, NodePhase.REQUESTED)
    state = FleetState(NOW, (asked_for,), tuple(waiting(10, cores=16)), (C32,))
    assert bought(planned(state, by)) == {"c32 on-demand": 1}


@pytest.mark.case("aws#6328")
def test_a_limit_that_whole_nodes_miss_is_told() -> None:
    """2063 cores with nodes of 32: 2048 can be reached; with others of 15 as well all of it."""
    offers = [{"instanceType": "c32", "cpuMilli": 32_000}]
    asked = {"maxNodes": 99, "maxCpuMilli": 2_063_000, "offerings": offers}
    (told,) = check({"scaling": asked}, name="p", rules=POOL_RULES, kind="SandboxNodePool")
    assert told.severity is Severity.WARNING
    assert "2063 cores cannot be reached with nodes of 32 cores: 2048 are" in told.message
    asked["offerings"] = [*offers, {"instanceType": "c15", "cpuMilli": 15_000}]
    assert check({"scaling": asked}, name="p", rules=POOL_RULES) == []


# -- what is coming, what is idle -----------------------------------------------------------------


@pytest.mark.case("autoscaler#1949")
def test_a_node_whose_gpus_are_not_advertised_yet_counts_with_them() -> None:
    """It registered without cards: still coming for ten minutes, then what it says counts."""
    made = offering("g4", 32, 128, 4, price="4")
    bare = replace(made.named("n"), devices=())
    up = fleet_node("n", made, registered=bare, ready_at=NOW - 60)
    work = tuple(pending(gpu(f"w{n}")) for n in range(4))
    state = FleetState(NOW, (up,), work, (made,))
    assert bought(planned(state)) == {}
    dead = replace(state, now=NOW + LATE_LEAST_S)
    assert bought(planned(dead)) == {"g4 on-demand": 1}


def test_what_boots_covers_and_what_never_comes_does_not() -> None:
    """A node on its way covers what fits its full size; overdue it is removed and bought anew."""
    boots = fleet_node("n", C16, NodePhase.BOOTING)
    state = FleetState(NOW, (boots,), tuple(waiting(17)), (C16,))
    assert need(state).count == 1
    late = replace(state, now=NOW + 700)
    made = planned(late)
    assert [(one.node, one.reason) for one in made.removals] == [("n", Why.LATE)]
    assert counts(made.buys) == 2


@pytest.mark.case("autoscaler#7873", "autoscaler#7875")
def test_a_restart_forgets_nothing_of_how_long_a_node_is_idle() -> None:
    """State written and read again, in the middle of every wait: the node goes in time."""
    state = FleetState(NOW, (fleet_node("n", C16, idle_since=NOW - 30),), offerings=(C16,))
    made = planned(state)
    assert made.removals == ()
    text = FleetDump.of(replace(state, memories=made.memories), rules(), made).model_dump_json()
    restarted = replace(FleetDump.model_validate_json(text).state(), now=NOW + 31)
    assert [one.node for one in planned(restarted).removals] == ["n"]


@pytest.mark.case("ray#50783")
def test_a_node_promised_to_work_that_needs_two_is_not_idle() -> None:
    """One is ready and long idle, the other boots: nothing goes, and nothing comes."""
    nodes = (fleet_node("a", C16), fleet_node("b", C16, NodePhase.BOOTING))
    state = FleetState(NOW, nodes, tuple(waiting(2, cores=16, gang="g")), (C16,))
    for minute in range(5):
        made = planned(replace(state, now=NOW + minute * 60))
        assert (made.buys, made.removals) == ((), ())


@pytest.mark.case("ray#19124")
def test_no_cpu_node_beside_what_the_gpu_node_brings() -> None:
    """Head of 16 cores, 31 cores and one GPU asked: one GPU node of 16 cores, no CPU node."""
    head = fleet_node("head", offering("head", 16, 64, price="1"))
    worker = offering("worker", 16, 64, 1, price="3")
    work = [*waiting(31), pending(gpu("g", cores=1))]
    state = FleetState(NOW, (head,), tuple(work), (C16, worker))
    assert bought(planned(state)) == {"worker on-demand": 1}


# -- buffers --------------------------------------------------------------------------------------


def test_buyer_and_remover_agree_on_buffers() -> None:
    """Below B it buys, above 1.5 B it removes, between them neither: one function decides both."""
    places = _buffer(16)
    free: dict[int, str] = {}
    for nodes in range(5):
        ready = tuple(fleet_node(f"n{n}", C16) for n in range(nodes))
        state = FleetState(NOW, ready, offerings=(C16,), buffers=(places,))
        made = planned(state)
        free[nodes] = f"+{counts(made.buys)} -{len(made.removals)}"
    # one node has 16 places: B = 16 is there; the remover keeps 24, which takes two
    assert free == {0: "+1 -0", 1: "+0 -0", 2: "+0 -0", 3: "+0 -1", 4: "+0 -2"}


def _buffer(count: int, percent: int = 100) -> Buffer:
    return Buffer("b", request("place"), count, burn_percent=percent)


def test_a_buffer_costs_at_most_its_part_of_the_burn() -> None:
    """5 % of ten nodes is half a node's price: 8 places of 16; with no burn nothing."""
    full = tuple(fleet_node(f"n{n}", C16, work=[running(f"w{n}", 16)]) for n in range(10))
    state = FleetState(NOW, full, offerings=(C16,), buffers=(_buffer(64, 5),))
    assert counts(planned(state).buys) == 1
    assert counts(planned(replace(state, nodes=())).buys) == 0
    assert math.isclose(float(state.burn), 10)


def test_keys_of_failures_are_made_in_one_place() -> None:
    """Offering, quota, provider and region are told apart, and markets never share one."""
    spot, steady = keys_of(SPOT), keys_of(C16)
    assert spot["provider"] == steady["provider"]
    assert all(spot[one] != steady[one] for one in ("offering", "quota", "region"))
