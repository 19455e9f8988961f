"""What the catalogue of elasticity (ELAS) promises about replicas, each by its 'shows when'."""

from itertools import pairwise
from typing import Any

import pytest
from dsec.api.elastic import ElasticWindow, ReplicaPreset, ScalingDirection
from dsec.api.elastic_status import Limit, Reading, ScalingReason, Step
from dsec.api.experiment import ElasticTier, Stage
from dsec.rules import Severity, check
from dsec.rules.elasticity import ELASTICITY
from dsec.scaling.replicas.evaluate import Facts, evaluate, first_result
from dsec.scaling.replicas.presets import PRESETS
from scaling_make import START, Part, Player, changes, curve, play, readings, rule

R = ScalingReason
QUEUE = ReplicaPreset.ROLE_QUEUE
FLOW = {"metric": "sample_throughput", "target": 1200}


def queue(count: int = 8, *, low: int = 4, high: int = 12, **elastic: Any) -> Player:
    """Return a player of `role-queue` with the figures of source 000."""
    elastic = {"preset": QUEUE, "target": 64} | elastic
    return Player(rule(replicas=count, low=low, high=high, **elastic), count)


def three(count: int = 10, *, high: int = 100, tier: str = "balanced", **elastic: Any) -> Player:
    """Return a player of `three-signal`."""
    spec = {"elastic_tier": ElasticTier(tier)}
    return Player(rule(replicas=count, low=1, high=high, spec=spec, target=64, **elastic), count)


def flow(count: int = 4, *, low: int = 4, high: int = 16, **elastic: Any) -> Player:
    """Return a player of `throughput` with the figures of source 002."""
    return Player(rule(replicas=count, low=low, high=high, **(FLOW | elastic)), count)


# ------------------------------------------------------------------ presets


def test_elas_03_depth_64_with_eight_shrinks_to_four_after_two_periods() -> None:
    """64 over 16 is 4; one period is not enough."""
    player = queue()
    state = player.round(queue_depth=64)
    assert (player.count, state.reason) == (8, R.CONFIRMING_SHRINK)
    state = player.round(queue_depth=64)
    assert (player.count, state.reason) == (4, R.SHRUNK)
    assert state.message == "lowered from 8 to 4: queue depth 64 needs 4 for 2 rounds"


def test_elas_03_depth_100_grows_one_step_after_the_third_period() -> None:
    """More than three periods: the fourth changes the count, by one step."""
    player = queue(4, ladder=[4, 8, 12])
    assert player.until_change(queue_depth=100) == 4
    assert player.count == 8


def test_elas_04_a_ladder_is_all_there_is_and_direct_is_the_computed_count() -> None:
    """With [4, 8, 12] no other value, whatever the demand; without it the formula's."""
    player = queue(4, ladder=[4, 8, 12])
    play(player, curve([Part(3000, 0, 300), Part(3000, 300, 0)], 30), _depth)
    assert set(player.counts) == {4, 8, 12}
    direct = queue(4)
    assert direct.until_change(queue_depth=150) == 4
    assert direct.count == 10


def test_elas_04_plus_n() -> None:
    """A fixed step adds so many at once."""
    player = queue(4, step=3)
    player.rounds(4, queue_depth=100)
    assert player.count == 7


def test_elas_05_a_window_below_a_minute_gives_a_warning() -> None:
    """And the window is what confirms a change, both ways."""
    elastic = {"metric": "queue_depth", "windowSeconds": 45}
    spec = {"roles": [{"name": "sim", "max": 8, "elastic": elastic}]}
    (found,) = check(spec, name="walk", rules=[ELASTICITY])
    assert (found.severity, found.path) == (Severity.WARNING, "spec.roles[0].elastic.windowSeconds")
    player = queue(4, window_seconds=90)
    assert player.until_change(queue_depth=190) == 3
    assert player.until_change(queue_depth=0) == 3


def test_elas_06_cpu_90_at_ten_leads_to_13_and_35_to_5() -> None:
    """The set-point is 70 %."""
    for use, wanted in ((90, 13), (35, 5)):
        player = Player(rule(replicas=10, low=1, high=96, metric="cpu", target=70), 10)
        assert player.rule.preset is ReplicaPreset.CPU_TARGET
        player.until_change(cpu=use)
        assert player.count == wanted


def test_elas_06_replicas_that_start_are_counted_as_coming() -> None:
    """Ten run at 90 % while three more start: 13 are enough, and stay 13."""
    player = Player(rule(replicas=13, low=1, high=96, metric="cpu", target=70), 13)
    player.facts = {"ready": 10}
    state = player.rounds(6, cpu=90)
    assert (player.count, state.reason) == (13, R.STEADY)


def test_elas_07_1500_grows_by_two_in_the_second_round_and_800_takes_two() -> None:
    """The first round marks a candidate; the count never falls below 4."""
    player = flow()
    state = player.round(sample_throughput=1500)
    assert (player.count, state.reason) == (4, R.CONFIRMING_GROWTH)
    player.round(sample_throughput=1500)
    assert player.count == 6
    assert player.until_change(sample_throughput=800) == 2
    assert player.count == 4
    state = player.rounds(10, sample_throughput=800)
    assert (player.count, state.reason) == (4, R.AT_FLOOR)


def test_elas_08_depth_alone_does_not_grow() -> None:
    """Ten periods at 60 % use: nothing. Three at 85 %: growth."""
    player = three()
    player.rounds(10, queue_depth=500, use=60)
    assert player.count == 10
    assert player.until_change(queue_depth=500, use=85) == 3
    assert player.count == 15


def test_elas_08_an_empty_queue_and_idle_replicas_shrink_after_five_periods() -> None:
    """Depth near zero and use below 40 %."""
    player = three()
    assert player.until_change(queue_depth=0, use=20) == 5
    assert player.count == 4  # 10 x 20 % at 60 %
    busy = three()
    assert busy.until_change(most=20, queue_depth=30, use=20) == 0


def test_elas_08_latency_counts_like_a_queue() -> None:
    """A sampling latency above its own bound grows, and keeps what is there."""
    player = three(latency_target_ms=2000)
    assert player.until_change(queue_depth=0, use=85, latency=3.0) == 3
    kept = three(latency_target_ms=2000)
    assert kept.until_change(most=20, queue_depth=0, use=20, latency=3.0) == 0


def test_elas_09_more_active_agents_want_more_instances() -> None:
    """Throughput is between its bounds all the time."""
    player = flow(high=32)
    player.rounds(5, sample_throughput=1000, active_agents=100)
    assert player.count == 4
    state = player.rounds(2, sample_throughput=1000, active_agents=200)
    assert player.count == 8
    assert "200 agents are active, and the count was right for 100" in state.message


def test_elas_09_exploration_at_full_throughput_keeps_what_it_has() -> None:
    """The stage label only tunes: without it the same readings take instances away."""
    exploring = {"stage": Stage.EXPLORATION}
    for spec, kept in ((exploring, True), ({}, False)):
        made = rule(
            replicas=8,
            low=1,
            high=16,
            spec=spec,
            metric="sample_throughput",
            target=1200,
            preset=ReplicaPreset.ROLE_QUEUE,
            per_instance_rate=400,
        )
        player = Player(made, 8)
        player.rounds(4, sample_throughput=1250 if kept else 1150)
        assert (player.count == 8) is kept


def test_elas_10_the_aggressive_role_grows_first() -> None:
    """One load that rises: aggressive, balanced, conservative, in that order, in every preset."""
    for preset in ReplicaPreset:
        when = []
        for tier in ElasticTier:
            made = _tier_player(preset, tier)
            counts = play(made, curve([Part(900, 1.0), Part(3000, 1.0, 2.5)], 30), _any)
            when.append(next(at for at, (a, b) in enumerate(pairwise(counts)) if b > a))
        assert when == sorted(when), preset
        assert len(set(when)) == 3, (preset, when)


def _tier_player(preset: ReplicaPreset, tier: ElasticTier) -> Player:
    metrics = {
        ReplicaPreset.CPU_TARGET: "cpu",
        ReplicaPreset.THROUGHPUT: "sample_throughput",
        ReplicaPreset.THROUGHPUT_DYNAMIC: "sample_throughput",
    }
    made = rule(
        replicas=10,
        low=1,
        high=200,
        preset=preset,
        metric=metrics.get(preset, "queue_depth"),
        spec={"elastic_tier": tier},
    )
    return Player(made, 10)


def _any(level: float, _: int) -> dict[str, float | None]:
    return {
        "queue_depth": 110 * (level - 0.6),
        "cpu": 50 * level,
        "use": 50 * level,
        "sample_throughput": 1030 * level,
    }


def _depth(level: float, _: int) -> dict[str, float | None]:
    return {"queue_depth": level}


def test_elas_11_around_its_own_mean_of_500() -> None:
    """601 for two rounds grows, 399 shrinks, 550 does nothing."""
    for value, after in ((601, 10), (399, 6), (550, 8)):
        player = flow(8, low=1, preset=ReplicaPreset.THROUGHPUT_DYNAMIC)
        player.rounds(120, sample_throughput=500)
        assert player.count == 8
        player.rounds(2, sample_throughput=value)
        assert player.count == after, value


def test_elas_11_without_an_hour_nothing_is_usual() -> None:
    """The first rounds hold the count and say why."""
    player = flow(8, preset=ReplicaPreset.THROUGHPUT_DYNAMIC)
    state = player.rounds(9, sample_throughput=500)
    assert (player.count, state.reason) == (8, R.NO_BASELINE)


def test_elas_11_a_count_does_not_chase_its_own_throughput() -> None:
    """More instances make more samples; the baseline lags, and growth does not run to max."""
    player = flow(4, high=64, preset=ReplicaPreset.THROUGHPUT_DYNAMIC)
    player.rounds(120, sample_throughput=500)
    player.rounds(2, sample_throughput=610)
    assert player.count == 6
    state = player.rounds(30, sample_throughput=900)
    assert (player.count, state.reason) == (6, R.NOT_CROSSED)


# ------------------------------------------------------------------ what holds a change back


def test_elas_12_climbing_retries_freeze_growth() -> None:
    """The queue is deep, and the count stays; calm rounds thaw it."""
    player = queue(4)
    player.rounds(20, queue_depth=40, retry_rate=0.01)
    state = player.rounds(10, queue_depth=200, retry_rate=0.5)
    assert (player.count, state.reason) == (4, R.FROZEN)
    assert state.message.startswith("growth frozen: retry rate 0.5 per replica and minute")
    state = player.rounds(2, queue_depth=200, retry_rate=0.01)
    assert (player.count, state.frozen) == (4, True)
    player.rounds(1, queue_depth=200, retry_rate=0.01)
    assert player.count == 12


def test_elas_12_a_steady_small_rate_freezes_nothing() -> None:
    """What always fails a little is not a rise."""
    player = queue(4)
    player.rounds(20, queue_depth=40, retry_rate=0.08)
    player.rounds(4, queue_depth=200, retry_rate=0.09)
    assert player.count == 12


@pytest.mark.parametrize("preset", list(ReplicaPreset))
@pytest.mark.parametrize("tier", list(ElasticTier))
def test_elas_13_one_dip_removes_nothing(preset: ReplicaPreset, tier: ElasticTier) -> None:
    """Whatever the preset and tier, also where the document asks for a single period."""
    metric = "cpu" if preset is ReplicaPreset.CPU_TARGET else "sample_throughput"
    made = rule(
        replicas=10,
        low=1,
        high=20,
        preset=preset,
        metric=metric,
        target=70,
        shrink_periods=1,
        cooldown_seconds=0,
        spec={"elastic_tier": tier},
    )
    player = Player(made, 10)
    steady: dict[str, float | None] = {metric: 70, "use": 60}
    player.rounds(20, **steady)
    before = player.count
    for _ in range(5):
        player.round(**{metric: 0, "use": 0})
        player.rounds(3, **steady)
    assert min(player.counts) >= min(before, 10)
    assert PRESETS[preset][tier].shrink_periods >= 2


def test_elas_16_two_triggers_four_minutes_apart_give_one_action() -> None:
    """cpu-target: ten minutes between changes; the second is made when they are over."""
    player = Player(rule(replicas=10, low=1, high=96, metric="cpu", target=70), 10)
    player.rounds(2, cpu=90)
    assert player.count == 13
    player.rounds(6, cpu=70)
    state = player.rounds(2, cpu=90)
    assert (player.count, state.reason) == (13, R.COOLDOWN)
    assert "for 360 s more" in state.message
    assert player.until_change(cpu=90) == 12
    assert player.count == 17


def test_elas_21_a_bottleneck_of_data_is_not_grown_into() -> None:
    """Much waiting and idle processors: growth is withheld, with advice."""
    player = queue(4)
    state = player.rounds(10, queue_depth=200, io_wait=55, cpu=15)
    assert (player.count, state.reason) == (4, R.IO_BOUND)
    assert "look at data loading" in state.advice
    state = player.round(queue_depth=200, io_wait=5, cpu=85)
    assert (player.count, state.advice) == (12, "")


def test_elas_33_growth_stops_at_each_ceiling_and_says_which() -> None:
    """Max, quota, budget and nodes."""
    for name, limit in (("quota", Limit.QUOTA), ("budget", Limit.BUDGET), ("nodes", Limit.NODES)):
        player = queue(4)
        player.facts = {name: 6}
        player.rounds(5, queue_depth=500)
        assert player.count == 6
        state = player.round(queue_depth=500)
        assert (player.count, state.reason, state.limit) == (6, R.AT_LIMIT, limit)
    player = queue(4)
    assert player.rounds(6, queue_depth=500).limit is Limit.MAX
    assert player.count == 12


def test_elas_33_a_spent_budget_takes_at_once_and_a_full_quota_takes_nothing() -> None:
    """Budgets win over min, guard and switched-off shrinking; a quota is another's business."""
    player = queue(8)
    player.facts = {"budget": 2, "shrink": False}
    state = player.round(queue_depth=100)
    assert (player.count, state.reason) == (2, R.BOUNDS)
    assert "the budget allows no more" in state.message
    player = queue(8)
    player.facts = {"quota": 5}
    player.rounds(3, queue_depth=120)
    assert player.count == 8


def test_elas_34_a_metric_of_the_task_that_is_missing_holds_the_count() -> None:
    """An exploration ratio as metric; no data for ten rounds removes nothing and says so."""
    made = rule(
        replicas=8,
        low=1,
        high=16,
        preset=QUEUE,
        metric="exploration_ratio",
        target=50,
        per_instance_rate=5,
    )
    player = Player(made, 8)
    player.round(exploration_ratio=10)
    state = player.rounds(10, exploration_ratio=None)
    assert (player.count, state.reason) == (8, R.NO_DATA)
    assert state.message == (
        "8 stay: exploration_ratio is missing or too old; no data is not zero, so the count is held"
    )
    player.round(exploration_ratio=10)
    assert player.count == 8, "the round before the gap is no confirmation"
    player.round(exploration_ratio=10)
    assert player.count == 2


def test_elas_34_an_old_reading_is_no_reading() -> None:
    """Older than three periods."""
    made = rule(replicas=8, low=1, high=16, preset=QUEUE)
    old = [Reading(name="queue_depth", value=0, age_seconds=91)]
    state = evaluate(made, Player(made, 8).state, old, Facts(8, 8), START)
    assert state.reason is R.NO_DATA


# ------------------------------------------------------------------ ways to use it


def test_elas_18_28_a_night_goes_to_its_floor_and_can_be_switched_off() -> None:
    """At 22:00 in Shanghai the bounds change; with the switch off it is only not removed."""
    night = [ElasticWindow(start="22:00", end="07:00", min=0, max=3)]
    for shrink, after in ((True, 3), (False, 8)):
        player = queue(
            8, high=8, schedule=night, time_zone="Asia/Shanghai", scheduled_shrink=shrink
        )
        player.now = START.replace(hour=13, minute=58)  # 21:58 there
        player.round(queue_depth=120)
        assert player.count == 8
        player.rounds(4, queue_depth=120)
        assert player.count == after
    empty = queue(8, low=0, schedule=night, time_zone="Asia/Shanghai")
    empty.now = START.replace(hour=15)
    empty.rounds(10, queue_depth=0)
    assert empty.count == 1, "a schedule never takes the last one"


def test_elas_23_a_task_asks_for_its_own_role() -> None:
    """100 to 200 at once, within bounds; below min and above max are cut."""
    player = Player(rule(replicas=100, low=50, high=300, preset=QUEUE), 100)
    for asked, after in ((200, 200), (1000, 300), (1, 50)):
        player.facts = {"requested": asked}
        state = player.round(queue_depth=None)
        assert player.count == after
        assert state.reason is R.REQUESTED
    player.facts = {"requested": 200, "quota": 60}
    player.round(queue_depth=None)
    assert player.count == 60


def test_elas_25_a_growth_has_its_times() -> None:
    """Trigger, action and first result, each recorded once."""
    player = queue(4)
    player.rounds(4, queue_depth=100)
    (growth,) = player.state.growths
    assert (growth.acted - growth.triggered).total_seconds() == 90
    assert first_result(player.state, 4, player.now) == player.state
    later = first_result(player.state, 5, player.now)
    assert later.growths[0].first_result == player.now
    assert first_result(later, 6, START) == later


def test_elas_29_growth_only_tells_what_it_would_remove() -> None:
    """In the document, or by the switch of the installation (OPS-18)."""
    for elastic, facts in (
        ({"direction": ScalingDirection.GROW_ONLY}, {}),
        ({}, {"shrink": False}),
    ):
        player = queue(8, **elastic)
        player.facts = facts
        state = player.rounds(5, queue_depth=64)
        assert (player.count, state.reason, state.would) == (8, R.WOULD_SHRINK, 4)
        assert "would remove 4" in state.message
        player.rounds(4, queue_depth=190)
        assert player.count == 12


def test_elas_29_growth_can_be_switched_off_too() -> None:
    """A role's min still holds."""
    player = queue(3)
    player.facts = {"grow": False}
    player.round(queue_depth=190)
    assert player.count == 4
    state = player.rounds(5, queue_depth=190)
    assert (player.count, state.reason, state.would) == (4, R.WOULD_GROW, 12)


def test_elas_31_the_reversed_demand_gives_the_reversed_counts() -> None:
    """No phase is hard-coded: little early and more late, or the other way round."""
    parts = [Part(1800, 60), Part(1800, 110), Part(1800, 180)]
    there = play(queue(4), curve(parts, 30), _depth)
    back = play(queue(12), curve(parts[::-1], 30), _depth)
    assert changes(there) == [4, 7, 12]
    assert changes(back) == [12, 7, 4]


def test_elas_32_an_evaluation_burst_comes_and_goes() -> None:
    """Forty, and back to the least when nothing is left to evaluate."""
    player = Player(rule(replicas=1, low=1, high=40, preset=QUEUE, per_instance_rate=1), 1)
    player.rounds(4, queue_depth=400)
    assert player.count == 40
    player.rounds(4, queue_depth=0)
    assert player.count == 1


def test_the_preset_of_a_role_follows_its_metric() -> None:
    """What CONF-02 leaves open is decided by what can be read."""
    cases = {
        "cpu": ReplicaPreset.CPU_TARGET,
        "sample_throughput": ReplicaPreset.THROUGHPUT,
        "queue_depth": ReplicaPreset.THREE_SIGNAL,
        "anything": ReplicaPreset.THREE_SIGNAL,
    }
    for metric, preset in cases.items():
        assert rule(metric=metric).preset is preset
    chosen = {"presets": {"CONF-02": "role-queue"}}
    assert rule(metric="anything", spec=chosen).preset is QUEUE
    dynamic = {"presets": {"CONF-04": "throughput-dynamic"}}
    assert rule(metric="x_throughput", spec=dynamic).preset is ReplicaPreset.THROUGHPUT_DYNAMIC
    assert Player(rule(metric="cpu"), 4).state.guard.last is not Step.GROW
    assert readings(cpu=1.0)[0].name == "cpu"
