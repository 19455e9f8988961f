"""Rows of the catalogue about nodes: growth, shrinking, floors, drains, budgets, regions."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

import pytest
from dsec.api.scaling import Market, NodePreset, PoolScaling, ScheduleWindow, Shrinking, Weekday
from dsec.placement.engine import place
from dsec.placement.view import ClusterView
from dsec.scaling.nodes.draining import drained
from dsec.scaling.nodes.load import observed
from dsec.scaling.nodes.need import need
from dsec.scaling.nodes.offerings import FleetNode, Offering
from dsec.scaling.nodes.planning import plan
from dsec.scaling.nodes.plans import GateAnswer, Purchase
from dsec.scaling.nodes.rules import NodeRules, floor_of, pool_rules
from dsec.scaling.nodes.words import plan_words, refused_words
from nodes_make import (
    NOW,
    PREEMPTIBLE,
    FleetState,
    NodePhase,
    PoolMemory,
    PoolRules,
    Why,
    become,
    bought,
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

OWNED = offering("own", 16, 64, price="0.5", market=Market.OWNED, limit=10)
CLOUD = offering("c16", 16, 64, price="1")
SPOT = offering("c16", 16, 64, price="0.4", market=Market.SPOT)
HELD = PoolMemory("owned", backlog_since=NOW - 10)


# -- ELAS: growth and shrinking by load -----------------------------------------------------------


def test_elas_14_a_backlog_held_for_its_window_grows_by_the_computed_number() -> None:
    """40 requests of 4 cores need 10 nodes of 16: none before the window, then all at once."""
    work = tuple(waiting(40, cores=4, gib=4, burst_wait_s=3600))
    early = FleetState(NOW, pending=work, offerings=(OWNED,))
    early = early.remembering(PoolMemory("owned", backlog_since=NOW - 9))
    made = planned(early)
    assert bought(made) == {}
    assert [one.count for one in refusals(made, Why.LOAD_WINDOW)] == [40]
    assert bought(planned(early.remembering(HELD))) == {"own owned": 10}


def test_elas_14_cpu_above_70_for_five_minutes_grows() -> None:
    """Four nodes at 90 % need 6 for 70 %: two more; not after four minutes, not at 60 %."""
    nodes = tuple(fleet_node(f"n{n}", OWNED, work=[running(f"r{n}", 14)]) for n in range(4))
    state = FleetState(NOW, nodes, offerings=(OWNED,))
    memory = PoolMemory("owned")
    for second in range(0, 301, 30):
        memory = observed(memory, NOW - 300 + second, rules(), cpu_percent=90.0, waiting=0)
        expected = {"own owned": 2} if second == 300 else {}
        at = replace(state, now=NOW - 300 + second).remembering(memory)
        assert bought(planned(at)) == expected, second
    (buy,) = planned(at).buys
    assert buy.reason is Why.LOAD
    assert observed(memory, NOW, rules(), cpu_percent=60.0, waiting=0).busy_since is None


def test_no_sample_is_not_a_sample_of_zero() -> None:
    """A short gap leaves the window as it is; a long one ends it, and starts no calm."""
    memory = observed(PoolMemory("owned"), NOW, rules(), cpu_percent=90.0, waiting=0)
    gap = observed(memory, NOW + 60, rules(), cpu_percent=None, waiting=0)
    assert gap.busy_since == NOW
    gone = observed(gap, NOW + 301, rules(), cpu_percent=None, waiting=0)
    assert (gone.busy_since, gone.calm_since) == (None, None)


def test_elas_15_idle_nodes_go_while_high_risk_work_keeps_its_node() -> None:
    """CPU below 30 % for five minutes: the idle node goes, one that is protected does not."""
    nodes = (
        fleet_node("busy", OWNED, work=[running("r", 2)]),
        fleet_node("risky", OWNED, protected=True),
        fleet_node("idle", OWNED),
    )
    calm = PoolMemory("owned", calm_since=NOW - 300, cpu_percent=20.0, cpu_at=NOW)
    state = FleetState(NOW, nodes, offerings=(OWNED,)).remembering(calm)
    made = planned(state)
    assert [(one.node, one.reason) for one in made.removals] == [("idle", Why.CALM)]
    assert [one.subject for one in refusals(made, Why.PROTECTED)] == ["risky"]
    short = state.remembering(replace(calm, calm_since=NOW - 299))
    assert planned(short).removals == ()


def test_elas_16_two_triggers_within_the_cooldown_are_one_action() -> None:
    """The first backlog buys; four minutes later nothing; after ten minutes again."""
    state = FleetState(NOW, pending=tuple(waiting(4, cores=16, burst_wait_s=3600)))
    state = replace(state, offerings=(OWNED,)).remembering(HELD)
    made = planned(state)
    assert bought(made) == {"own owned": 4}
    after = become(state, made)
    more = tuple(waiting(8, "x", cores=16, burst_wait_s=3600))
    second = replace(after, now=NOW + 240, pending=(*state.pending, *more))
    held = planned(second)
    assert bought(held) == {}
    assert {one.reason for one in held.refusals} == {Why.COOLDOWN}
    assert bought(planned(replace(second, now=NOW + 600))) == {"own owned": 6}


@pytest.mark.parametrize(("minutes", "goes"), [(9, False), (11, True)])
def test_elas_17_a_node_is_idle_ten_minutes_before_it_may_go(minutes: int, goes: bool) -> None:
    """Node idle 9 min: kept; 11 min: candidate."""
    node = fleet_node("n", OWNED, idle_since=NOW - minutes * 60)
    state = FleetState(NOW, (node,), offerings=(OWNED,))
    state = state.remembering(PoolMemory("owned", calm_since=NOW - 400))
    assert bool(planned(state).removals) is goes


def test_elas_18_at_night_the_pool_shrinks_to_its_floor_and_never_to_zero() -> None:
    """Six idle nodes, a night window with least 0 and a floor of 2: two stay, one a step."""
    asked = PoolScaling(
        min_nodes=6,
        max_nodes=6,
        floor=2,
        schedule=[ScheduleWindow(start="20:00", end="06:00", min_nodes=0)],
        time_zone="Europe/Berlin",
    )
    by = rules(pool_rules("owned", asked))
    night = datetime(2026, 1, 15, 22, 0, tzinfo=UTC).timestamp()
    nodes = tuple(
        fleet_node(f"n{n}", OWNED, idle_since=night - 7200, ready_at=night - 9000) for n in range(6)
    )
    state = FleetState(night, nodes, offerings=(OWNED,))
    for step in range(12):
        memory = replace(state.memory("owned"), calm_since=night - 400)
        state = state.remembering(memory)
        made = planned(state, by)
        gone = {one.node for one in made.removals}
        state = replace(
            state,
            now=night + (step + 1) * 600,
            nodes=tuple(one for one in state.nodes if one.name not in gone),
            memories=made.memories,
        )
    assert len(state.nodes) == 2
    assert {one.reason for one in planned(state, by).refusals} == {Why.FLOOR}
    day = replace(state, now=datetime(2026, 1, 16, 8, 0, tzinfo=UTC).timestamp())
    assert [(one.count, one.reason) for one in planned(day, by).buys] == [(4, Why.MINIMUM)]


def test_elas_18_a_floor_is_computed_from_what_was_used() -> None:
    """The middle of the samples; never 0."""
    assert floor_of([0, 0, 3, 5, 9]) == 3
    assert floor_of([0, 0, 0, 1]) == 1
    assert floor_of([]) == 1


def test_elas_19_new_nodes_know_what_to_fetch_while_they_boot() -> None:
    """Images and data sets of what a purchase is for, the most wanted first."""
    work = [
        *waiting(3, "a", cores=4, image="one", datasets=("d",)),
        *waiting(5, "b", cores=4, image="two"),
    ]
    (buy,) = planned(FleetState(NOW, pending=tuple(work), offerings=(CLOUD,))).buys
    assert buy.images == ("two", "one")
    assert buy.datasets == ("d",)


def test_elas_20_room_on_present_nodes_comes_before_nodes() -> None:
    """What fits beside what runs buys nothing; one more than fits buys one node."""
    node = fleet_node("n", CLOUD, work=[running("r", 8)])
    state = FleetState(NOW, (node,), tuple(waiting(8)), (CLOUD,))
    assert bought(planned(state)) == {}
    assert bought(planned(replace(state, pending=tuple(waiting(9))))) == {"c16 on-demand": 1}


def test_elas_22_what_cannot_be_moved_keeps_its_node_flagged_abnormal() -> None:
    """Two drained nodes: one move fails. That node stays abnormal, the other is removed."""
    good = fleet_node("good", CLOUD, NodePhase.DRAINING, [running("a")])
    bad = fleet_node("bad", CLOUD, NodePhase.DRAINING, [running("b"), running("c")])
    good = drained(good, {"a": True}, NOW)
    bad = drained(bad, {"b": False, "c": True}, NOW)
    assert (bad.phase, bad.failed_moves) == (NodePhase.ABNORMAL, ("b",))
    assert [one.id for one in bad.work] == ["b"]
    made = planned(FleetState(NOW, (good, bad), offerings=(CLOUD,)))
    assert [(one.node, one.reason) for one in made.removals] == [("good", Why.DRAINED)]
    (kept,) = refusals(made, Why.FAILED_MOVE)
    assert refused_words(kept) == (
        "bad: kept and flagged abnormal with its scene: b could not be moved"
    )


def test_elas_22_running_work_is_never_part_of_a_removal() -> None:
    """However idle the pool is, a node with something on it is not removed."""
    node = fleet_node("n", CLOUD, work=[running("r", 1, movable=False)], idle_since=NOW - 9999)
    assert planned(FleetState(NOW, (node,), offerings=(CLOUD,))).removals == ()


def test_elas_25_a_growth_record_says_what_triggered_it_and_when() -> None:
    """Since when the oldest of what a node is for has waited; with a boot of 25 s, 40 s in all."""
    quick = offering("c16", 16, 64, boot_seconds=25)
    work = (pending(request("a"), 15.0), pending(request("b"), 11.0))
    (buy,) = planned(FleetState(NOW, pending=work, offerings=(quick,))).buys
    assert buy.triggered_at == NOW - 15.0
    ready = NOW + quick.boot_seconds
    assert ready - buy.triggered_at == 40.0


def test_elas_29_in_a_dry_run_removals_are_told_and_not_made() -> None:
    """Growth goes on; the count stays, and the words say what would happen."""
    by = rules(PoolRules("cloud", shrink=Shrinking.DRY_RUN))
    state = FleetState(NOW, (fleet_node("n", CLOUD),), offerings=(CLOUD,))
    made = planned(state, by)
    assert made.removals == ()
    (told,) = refusals(made, Why.DRY_RUN)
    assert "would be removed, idle for 3600 s" in refused_words(told)
    more = replace(state, pending=tuple(waiting(17)))
    assert bought(planned(more, by)) == {"c16 on-demand": 1}


def test_elas_32_a_burst_of_evaluations_comes_and_goes() -> None:
    """40 sandboxes: nodes come, the work ends, the count is what it was."""
    own = fleet_node("own", OWNED, work=[running("base", 16, 16)])
    state = FleetState(NOW, (own,), tuple(waiting(40, cores=4, gib=4)), (OWNED, CLOUD))
    made = planned(state)
    assert bought(made) == {"c16 on-demand": 10}
    after = become(state, made, NodePhase.READY)
    nodes = tuple(
        one if one.name == "own" else replace(one, ready_at=NOW + 90, idle_since=NOW + 600)
        for one in after.nodes
    )
    ended = replace(after, nodes=nodes, pending=(), now=NOW + 661)
    assert len(planned(ended).removals) == 10
    assert planned(replace(ended, now=NOW + 659)).removals == ()


def test_elas_33_no_trigger_passes_the_pools_most() -> None:
    """A hundred nodes wanted, three allowed; two of them run, so one is bought."""
    by = rules(PoolRules("cloud", max_nodes=3))
    full = [fleet_node(f"n{n}", CLOUD, work=[running(f"r{n}", 16)]) for n in range(2)]
    state = FleetState(NOW, tuple(full), tuple(waiting(100, cores=16)), (CLOUD,))
    made = planned(state, by)
    assert bought(made) == {"c16 on-demand": 1}
    (limit,) = refusals(made, Why.LIMIT)
    assert refused_words(limit) == (
        "16 cores, 1 GiB: 99 wait: a limit is reached: pool cloud: 3 nodes; raise it or wait"
    )


# -- COST ---------------------------------------------------------------------------------------


def test_cost_05_cloud_is_bought_after_the_wait_and_not_before() -> None:
    """With owned room nothing bursts; without, at the burst wait of the task."""
    own = fleet_node("own", OWNED)
    base = FleetState(NOW, (own,), offerings=(replace(OWNED, limit=1), CLOUD))
    room = replace(base, pending=tuple(waiting(16, waited=3000)))
    assert bought(planned(room)) == {}
    wait = 120.0
    for waited, expected in ((119.0, {}), (120.0, {"c16 on-demand": 1})):
        work = tuple(waiting(17, waited=waited, burst_wait_s=wait))
        made = planned(replace(base, pending=work))
        assert bought(made) == expected
    (held,) = refusals(
        planned(replace(base, pending=tuple(waiting(17, waited=9, burst_wait_s=10)))),
        Why.BURST_WAIT,
    )
    assert "cloud nodes are bought after 10 s in the queue" in refused_words(held)


def test_cost_05_owned_then_reserved_then_cloud() -> None:
    """Each tier up to its limit, then the next, in one plan."""
    reserved = offering("r16", market=Market.RESERVED, limit=2, pool="cloud", price="0.6")
    state = FleetState(
        NOW,
        pending=tuple(waiting(6, cores=16, task_class=PREEMPTIBLE)),
        offerings=(CLOUD, SPOT, reserved, replace(OWNED, limit=1)),
    ).remembering(HELD)
    assert bought(planned(state)) == {"own owned": 1, "r16 reserved": 2, "c16 spot": 3}


def test_cost_10_eight_by_day_three_by_night_eight_in_the_morning() -> None:
    """Replay of two days of a schedule, in Berlin, each minute: 8 -> 3 -> 8 -> 3 -> 8."""
    asked = PoolScaling(
        min_nodes=8,
        max_nodes=8,
        floor=1,
        schedule=[ScheduleWindow(start="22:00", end="07:00", min_nodes=3, max_nodes=3)],
        time_zone="Europe/Berlin",
    )
    by = rules(pool_rules("cloud", asked))
    start = datetime(2026, 3, 27, 12, 0, tzinfo=UTC).timestamp()
    nodes = tuple(
        fleet_node(f"n{n}", CLOUD, ready_at=start - 99, idle_since=start) for n in range(8)
    )
    state = FleetState(start, nodes, offerings=(CLOUD,))
    seen = []
    for minute in range(0, 48 * 60, 10):
        state = replace(state, now=start + minute * 60)
        made = plan(state, by)
        gone = {one.node for one in made.removals}
        state = become(state, made, NodePhase.READY)
        state = replace(
            state,
            nodes=tuple(
                replace(one, ready_at=one.ready_at or state.now, idle_since=state.now - 60)
                for one in state.nodes
                if one.name not in gone
            ),
        )
        seen.append(len(state.nodes))
    changes = [seen[0], *(after for before, after in pairwise(seen) if before != after)]
    assert changes == [8, 3, 8, 3, 8]


def test_cost_11_after_the_load_the_cloud_goes_and_owned_nodes_stay() -> None:
    """All idle for half an hour: cloud nodes leave down to their floor."""
    by = rules(PoolRules("cloud", min_nodes=1))
    nodes = [fleet_node(f"c{n}", CLOUD, idle_since=NOW - 1800) for n in range(4)]
    nodes += [fleet_node(f"o{n}", OWNED, idle_since=NOW - 1800) for n in range(2)]
    made = planned(FleetState(NOW, tuple(nodes), offerings=(CLOUD, OWNED)), by)
    assert sorted(one.node for one in made.removals) == ["c0", "c1", "c2"]
    assert [one.subject for one in refusals(made, Why.FLOOR)] == ["c3"]


class _Gate:
    """Budgets by path: each covers so many nodes."""

    def __init__(self, **left: int) -> None:
        self.left = left

    def width(
        self,
        offering: Offering,
        count: int,
        paths: Sequence[str],
        taken: Sequence[Purchase],
    ) -> GateAnswer:
        """Return the least that a path covers beyond what was taken for it."""
        del offering
        for path in paths:
            used = sum(one.count for one in taken if path in one.paths)
            if self.left[path] - used < count:
                words = f"budget {path} is at 100 %"
                return GateAnswer(max(0, self.left[path] - used), path, words)
        return GateAnswer(count)

    def extend(self, node: FleetNode, until: float) -> float:
        """Return what was asked, for nodes of which nothing is known."""
        return until if node.name != "broke" else 0.0


def test_cost_12_growth_by_cloud_is_refused_at_the_end_of_a_budget() -> None:
    """One project has spent all, the other may have two nodes of its three."""
    work = [
        *waiting(3, "a", cores=16, budget="spent"),
        *waiting(3, "b", cores=16, budget="half"),
    ]
    state = FleetState(NOW, pending=tuple(work), offerings=(CLOUD,))
    made = planned(state, gate=_Gate(spent=0, half=2))
    assert bought(made) == {"c16 on-demand": 2}
    assert {one[0] for buy in made.buys for one in buy.covers} == {"b"}
    told = {one.count: refused_words(one) for one in refusals(made, Why.BUDGET)}
    assert "budget spent is at 100 %" in told[3]
    assert "budget half is at 100 %" in told[1]


def test_cost_12_run_until_is_extended_at_half_time_and_only_where_a_budget_covers_it() -> None:
    """L = 30 min: nothing at 16 min left, renewed at 14; the broke node drains before its end."""
    nodes = (
        fleet_node("fresh", CLOUD, work=[running("a", 9)], run_until=NOW + 960),
        fleet_node("half", CLOUD, work=[running("b", 9)], run_until=NOW + 840),
        fleet_node("broke", CLOUD, work=[running("c", 9)], run_until=NOW + 840),
    )
    state = FleetState(NOW, nodes, offerings=(CLOUD,))
    gate = _Gate()
    made = planned(state, gate=gate)
    assert [one.node for one in made.renewals] == ["half"]
    assert NOW + 0.9 * 1800 <= made.renewals[0].run_until <= NOW + 1.1 * 1800
    assert [one.subject for one in refusals(made, Why.BUDGET)] == ["broke"]
    late = planned(replace(state, now=NOW + 545), gate=gate)
    drains = {one.node: one for one in late.drains}
    assert drains["broke"].reason is Why.EXPIRY
    assert (drains["broke"].rests, drains["broke"].deadline) == (("c",), NOW + 840)


def test_w_18_own_first_then_cloud_at_its_price_then_nothing() -> None:
    """A task with a ceiling: own room, after the wait cloud nodes, and no more past the ceiling."""
    own = fleet_node("own", OWNED)
    base = FleetState(NOW, (own,), offerings=(replace(OWNED, limit=1), CLOUD))
    gate = _Gate(task=1)
    early = replace(base, pending=tuple(waiting(40, waited=5, budget="task")))
    assert need(early).count == 24
    assert bought(planned(early, gate=gate)) == {}
    late = replace(base, pending=tuple(waiting(40, waited=30, budget="task")))
    made = planned(late, gate=gate)
    assert bought(made) == {"c16 on-demand": 1}
    assert made.buys[0].price_per_hour == Decimal(1)
    (over,) = refusals(made, Why.BUDGET)
    assert over.count == 8


# -- spot, presets, regions, overrides ------------------------------------------------------------


def test_spot_is_for_work_that_may_be_interrupted() -> None:
    """Guaranteed work goes on-demand, preemptible work on spot, in one plan."""
    work = [*waiting(2, "g", cores=16), *waiting(2, "p", cores=16, task_class=PREEMPTIBLE)]
    made = planned(FleetState(NOW, pending=tuple(work), offerings=(CLOUD, SPOT)))
    by_market = {one.offering.market: set(one.covers) for one in made.buys}
    assert by_market == {Market.ON_DEMAND: {"g0", "g1"}, Market.SPOT: {"p0", "p1"}}


def test_preemptible_work_fills_what_guaranteed_work_leaves_of_a_node() -> None:
    """An on-demand node of 16 with 8 guaranteed cores takes 8 preemptible ones: no spot node."""
    work = [*waiting(1, "g", cores=8), *waiting(8, "p", cores=1, task_class=PREEMPTIBLE)]
    made = planned(FleetState(NOW, pending=tuple(work), offerings=(CLOUD, SPOT)))
    assert bought(made) == {"c16 on-demand": 1}


@pytest.mark.parametrize("preset", [None, *NodePreset])
def test_conf_37_presets(preset: NodePreset | None) -> None:
    """Owned nodes by node-load, cloud by wait and budget, unless a pool says otherwise."""
    of = PoolRules("x", preset=preset)
    assert of.preset_of(OWNED) is (preset or NodePreset.NODE_LOAD)
    assert of.preset_of(CLOUD) is (preset or NodePreset.WAIT_AND_BUDGET)


def test_a_window_may_pass_midnight_and_knows_days() -> None:
    """Friday's night ends on Saturday morning; the hour that a change of clocks repeats is once."""
    asked = PoolScaling(
        min_nodes=5,
        max_nodes=9,
        schedule=[ScheduleWindow(days=[Weekday.FRI], start="22:00", end="06:00", min_nodes=2)],
        time_zone="Europe/Berlin",
    )
    of = pool_rules("p", asked)

    def least(*at: int) -> int:
        return of.bounds(datetime(*at, tzinfo=UTC).timestamp()).least  # type: ignore[arg-type]  # year to minute

    assert least(2026, 10, 23, 19, 59) == 5  # Friday 21:59 in summer
    assert least(2026, 10, 23, 20, 0) == 2
    assert least(2026, 10, 24, 3, 59) == 2  # Saturday 05:59
    assert least(2026, 10, 24, 4, 0) == 5
    assert least(2026, 10, 24, 22, 0) == 5  # Saturday night is no Friday night
    assert least(2026, 11, 6, 20, 59) == 5  # 21:59 in winter
    assert least(2026, 11, 6, 21, 0) == 2


def test_road_05_data_that_may_not_leave_pulls_its_nodes_there() -> None:
    """Never bought elsewhere, even when cheaper; where nothing is offered the refusal says so."""
    dear = offering("w16", region="west", zone="west-1", price="2")
    work = tuple(waiting(1, cores=16, regions=("west",)))
    made = planned(FleetState(NOW, pending=work, offerings=(CLOUD, dear)))
    assert bought(made) == {"w16 on-demand": 1}
    none = planned(FleetState(NOW, pending=work, offerings=(CLOUD,)))
    assert bought(none) == {}
    (told,) = refusals(none, Why.RESIDENCY)
    assert "its data may be in west only" in refused_words(told)


def test_road_06_and_07_loose_work_goes_by_price_and_the_record_has_two_stages() -> None:
    """Prices 1.0 and 0.6: low, not sensitive work goes to the second; other work stays home."""
    cheap = offering("w16", region="west", zone="west-1", price="0.6")
    by = NodeRules(home_region="east")
    low = tuple(waiting(1, "low", cores=16, priority=-1))
    state = FleetState(NOW, pending=low, offerings=(CLOUD, cheap))
    (buy,) = planned(state, by).buys
    assert buy.region is not None
    assert (buy.region.region, buy.region.why) == ("west", "price")
    assert buy.region.considered == (("west", "0.6 USD"), ("east", "1 USD"))
    assert "region west by price (of west 0.6 USD, east 1 USD)" in plan_words(planned(state, by))[0]
    secret = tuple(waiting(1, "low", cores=16, priority=-1, sensitive=True))
    assert bought(planned(replace(state, pending=secret), by)) == {"c16 on-demand": 1}
    normal = replace(state, pending=tuple(waiting(1, cores=16)))
    assert bought(planned(normal, by)) == {"c16 on-demand": 1}


def test_road_08_a_group_that_exchanges_often_is_in_one_region() -> None:
    """Two limits of two nodes: four members of a near group do not spread over both regions."""
    here, there = replace(CLOUD, limit=2), offering("w16", region="west", zone="w", limit=2)
    loose = tuple(waiting(4, cores=16))
    state = FleetState(NOW, pending=loose, offerings=(here, there))
    assert {one.offering.region for one in planned(state).buys} == {"east", "west"}
    near = tuple(waiting(4, cores=16, near="ps"))
    made = planned(replace(state, pending=near))
    assert len({one.offering.region for one in made.buys}) == 1


def test_gangs_buy_whole_or_not_at_all() -> None:
    """Four members of 16 cores: with a limit of three nodes nothing is bought for them."""
    gang = tuple(waiting(4, cores=16, gang="g"))
    state = FleetState(NOW, pending=gang, offerings=(CLOUD,))
    assert bought(planned(state)) == {"c16 on-demand": 4}
    by = rules(PoolRules("cloud", max_nodes=3))
    made = planned(state, by)
    assert bought(made) == {}
    assert {one.reason for one in made.refusals} == {Why.LIMIT}
    beside = replace(state, pending=(*gang, *waiting(2, "x", cores=16)))
    assert bought(planned(beside, by)) == {"c16 on-demand": 2}


def test_ops_28_a_frozen_pool_buys_and_removes_nothing() -> None:
    """Stopped by hand; the words say so."""
    by = rules(PoolRules("cloud", frozen=True, min_nodes=3))
    state = FleetState(NOW, (fleet_node("n", CLOUD),), tuple(waiting(2, cores=16)), (CLOUD,))
    made = planned(state, by)
    assert (made.buys, made.removals) == ((), ())
    assert {one.reason for one in made.refusals} == {Why.FROZEN}


def test_gpu_work_takes_the_node_with_the_best_fit() -> None:
    """One card asked: the node with one card, not the one with eight at four times the price."""
    one, eight = offering("g1", 16, 64, 1, price="2"), offering("g8", 128, 512, 8, price="11")
    state = FleetState(NOW, pending=(pending(gpu("a", cores=8)),), offerings=(one, eight))
    assert bought(planned(state)) == {"g1 on-demand": 1}
    many = tuple(pending(gpu(f"a{n}", cores=8)) for n in range(8))
    assert bought(planned(replace(state, pending=many))) == {"g8 on-demand": 1}


def test_cards_of_a_bought_node_can_be_booked_by_name() -> None:
    """A decision on a virtual node holds as it is on the node that comes."""
    made = offering("g8", 96, 768, gpus=8)
    asked = gpu("r")
    (decision,) = place(ClusterView([made.named("n1")]), [asked])
    view = ClusterView([made.named("n1")])
    view.book(asked, decision)
    assert view.bookings()["r"].devices == decision.devices
