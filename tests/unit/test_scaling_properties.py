"""What must hold of every scaler whatever is read: bounds, calm, cooldowns, clocks, restarts."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from dsec.api.elastic import ReplicaPreset
from dsec.api.elastic_status import RoleScaling, Step
from dsec.api.experiment import ElasticTier
from dsec.scaling.replicas.evaluate import Facts, evaluate
from dsec.scaling.replicas.rules import Rule
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_make import START, Player, changes, readings, reversals, rule

METRIC = {
    ReplicaPreset.CPU_TARGET: "cpu",
    ReplicaPreset.THROUGHPUT: "sample_throughput",
    ReplicaPreset.THROUGHPUT_DYNAMIC: "sample_throughput",
}
NAMES = (
    "queue_depth",
    "cpu",
    "use",
    "latency",
    "sample_throughput",
    "active_agents",
    "retry_rate",
    "io_wait",
)
VALUES = st.one_of(st.none(), st.floats(0, 2000), st.floats(allow_nan=False, allow_infinity=False))
SIGNALS = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUES))
CEILING = st.one_of(st.none(), st.integers(0, 40))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """Draw a rule: preset, tier, bounds, ladder, step, cooldown."""
    preset = draw(st.sampled_from(ReplicaPreset))
    low = draw(st.integers(1, 10))
    high = draw(st.integers(low, 30))
    count = draw(st.integers(low, high))
    elastic: dict[str, Any] = {
        "metric": METRIC.get(preset, "queue_depth"),
        "ladder": draw(st.lists(st.integers(1, 30), max_size=4)),
        "step": draw(st.one_of(st.none(), st.integers(1, 5))),
        "cooldown_seconds": draw(st.sampled_from([None, 0, 120, 600])),
        "mode": draw(st.sampled_from([None, "edge", "level"])),
        "latency_target_ms": draw(st.sampled_from([None, 500])),
    }
    tier = draw(st.sampled_from(ElasticTier))
    return rule(
        replicas=count, low=low, high=high, preset=preset, spec={"elastic_tier": tier}, **elastic
    )


ROUND = st.fixed_dictionaries(
    {
        "signals": SIGNALS,
        "quota": CEILING,
        "budget": CEILING,
        "nodes": CEILING,
        "ready": st.integers(0, 30),
        "jump": st.sampled_from([0, 0, 0, 0, -86_400, 3600, 10**7, 1]),
        "grow": st.booleans(),
        "shrink": st.booleans(),
        "requested": st.one_of(st.none(), st.none(), st.integers(0, 100)),
        "spare": st.booleans(),
    }
)


def holds_always(made: Rule, rounds: list[dict[str, Any]]) -> None:
    """Play rounds and check what no scaler may do."""
    state, count, now = RoleScaling(role="sim"), made.low, START
    changed: list[float] = []
    for one in rounds:
        now += timedelta(seconds=made.period_seconds)
        facts = Facts(count, **{k: v for k, v in one.items() if k not in {"signals", "jump"}})
        after = evaluate(made, state, readings(**one["signals"]), facts, now)
        again = evaluate(
            made,
            RoleScaling.model_validate_json(state.model_dump_json(by_alias=True)),
            readings(**one["signals"]),
            facts,
            now,
        )
        assert again == after, "a restart changes nothing"
        assert after.message
        tops = [
            made.high,
            *(c for c in (one["quota"], one["budget"], one["nodes"]) if c is not None),
        ]
        assert after.count <= max(count, min(tops)), "growth passes no ceiling"
        # below min only where the budget is
        budget = made.high if one["budget"] is None else one["budget"]
        assert after.count >= min(made.low, budget, count), "and nothing falls below min"
        assert after.count <= min(made.high, budget)
        if made.ladder and after.count != count and one["requested"] is None:
            within = [s for s in made.ladder if made.low <= s <= min(made.high, budget)]
            assert after.count in within or not within or after.reason == "bounds"
        if not one["grow"] and after.reason != "bounds":
            assert after.count <= count
        if not one["shrink"] and after.reason != "bounds":
            assert after.count >= count
        state, count = after, after.count
        # on the scaler's own line, which no clock can move
        if state.guard.last_at == state.at and state.reason in {"grown", "shrunk"}:
            if changed and made.cooldown_seconds:
                assert state.at - changed[-1] >= made.cooldown_seconds - 1
            changed.append(state.at)
        elif state.guard.last_at == state.at:
            changed.append(state.at)
        now += timedelta(seconds=one["jump"])


@given(made=rules(), rounds=st.lists(ROUND, min_size=1, max_size=20))
def test_bounds_switches_and_cooldowns_always_hold(
    made: Rule, rounds: list[dict[str, Any]]
) -> None:
    """Random metrics, ceilings, clocks and requests never break them; a restart changes nothing."""
    holds_always(made, rounds)


@pytest.mark.soak
@given(made=rules(), rounds=st.lists(ROUND, min_size=1, max_size=300))
@settings(max_examples=5000, deadline=None)
def test_bounds_switches_and_cooldowns_always_hold_long(
    made: Rule, rounds: list[dict[str, Any]]
) -> None:
    """The same, for longer."""
    holds_always(made, rounds)


@given(
    made=rules(),
    load=st.floats(0.01, 30),
    depth=st.integers(0, 600),
)
def test_constant_load_never_turns_a_count_around(made: Rule, load: float, depth: int) -> None:
    """Constant work, shared by the replicas there are: after settling, no change at all.

    A model of each metric: use is load over count, throughput is what is asked for up to what the
    replicas give, the queue is as long as it is.
    """
    player = Player(made, made.low)
    for _ in range(200):
        use = min(100.0, 100 * load / player.count)
        player.round(
            queue_depth=float(depth),
            cpu=use,
            use=use,
            sample_throughput=min(100 * load, 300.0 * player.count),
            active_agents=50.0,
            retry_rate=0.0,
        )
    assert reversals(player.counts) <= 1, changes(player.counts)
    assert len(set(player.counts[-60:])) == 1, changes(player.counts)


@given(made=rules(), jumps=st.lists(st.integers(-(10**6), 10**6), min_size=60, max_size=60))
def test_clocks_that_are_set_change_no_decision_about_steady_signals(
    made: Rule, jumps: list[int]
) -> None:
    """A clock set between rounds shortens no confirmation, and keeps bounds."""
    still, set_often = Player(made, made.low), Player(made, made.low)
    for jump in jumps:
        signals: dict[str, float | None] = {
            "queue_depth": 90.0,
            "cpu": 90.0,
            "use": 90.0,
            "sample_throughput": 1500.0,
        }
        still.round(**signals)
        set_often.now += timedelta(seconds=jump)
        set_often.round(**signals)
    if not made.cooldown_seconds:
        assert still.counts == set_often.counts
    assert changes(still.counts)[: len(changes(set_often.counts))] == changes(set_often.counts) or (
        changes(set_often.counts)[: len(changes(still.counts))] == changes(still.counts)
    )


def test_a_square_wave_longer_than_the_hold_is_followed() -> None:
    """Twenty minutes up, twenty down: the guard delays the way down by at most its cap."""
    made = rule(low=4, high=12, preset=ReplicaPreset.ROLE_QUEUE, target=64)
    player = Player(made, 4)
    for _ in range(12):
        player.rounds(40, queue_depth=190)
        player.rounds(40, queue_depth=20)
    assert changes(player.counts).count(12) == 12
    assert player.count == 4


def test_flapping_makes_every_shrink_wait_longer() -> None:
    """A load that falls whenever there are enough replicas: the guard ends the bouncing."""
    made = rule(low=4, high=12, preset=ReplicaPreset.ROLE_QUEUE, target=64)
    player = Player(made, 4)
    for _ in range(240):
        player.round(queue_depth=190.0 if player.count < 12 else 20.0)
    actions = [at for at, (a, b) in enumerate(pairwise(player.counts)) if a != b]
    assert len(actions) < 40, "two hours without the guard are 80 changes"
    assert player.state.guard.last in set(Step)
    gaps = [b - a for a, b in pairwise(actions)]
    assert max(gaps[-6:]) >= 15, "ten minutes or so in the end"
