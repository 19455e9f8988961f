"""The observed mix of GPU requests: what it counts, forgets, and when tables are made anew."""

import json

import numpy as np
import pytest
from dsec.placement import mix as mix_module
from dsec.placement.mix import (
    DRIFT,
    HALF_LIFE,
    TURNOVER_LEVELS,
    Demand,
    Group,
    Mix,
    distance,
)
from dsec.placement.potential import Surface
from dsec.placement.stranding import WHOLE, Shape

A100 = Group("train", "a100", 96_000, 8, 80 << 30)
T4 = Group("small", "t4", 32_000, 4, 16 << 30)
SHARE = Demand(4000, 1, 470)
FULL = Demand(12_000, 1)


def weight(mix: Mix, group: Group, milli: int) -> float:
    """Return the part that classes of that size have in a group's mix."""
    return sum(one.weight for one in mix.shapes(group) if one.milli == milli)


def test_a_new_mix_has_tables() -> None:
    """Of generic classes, for groups with and without GPUs."""
    mix = Mix()
    assert [mix.group(A100), mix.group(T4), mix.group(Group("cpu", "", 64_000))] == [0, 1, 2]
    tables = mix.tables()
    assert len(tables.nodes) == 3
    assert mix.tables() is tables
    assert sum(one.weight for one in mix.shapes(A100)) == pytest.approx(1)
    assert all(one.gpus <= 4 for one in mix.shapes(T4))


def test_what_is_asked_for_soon_outweighs_the_start() -> None:
    """A hundred requests count more than the generic classes."""
    mix = Mix()
    mix.observe(SHARE, 100)
    assert weight(mix, A100, 470) > 0.9
    mix.observe(Demand(4000, 0), 100)
    assert mix.seen == 100


def test_only_groups_that_may_serve_a_class_learn_it() -> None:
    """By model, by pool, and by the size of the card where memory was asked for."""
    mix = Mix()
    mix.observe(Demand(1000, 1, 300, models=("a100", "h100")), 50)
    mix.observe(Demand(1000, 1, 400, pools=("small",)), 50)
    mix.observe(Demand(1000, 1, memory_bytes=20 << 30), 50)
    assert weight(mix, A100, 300) > 0.3
    assert weight(mix, T4, 300) == 0
    assert weight(mix, A100, 400) == 0
    assert weight(mix, T4, 400) > 0.3
    assert weight(mix, A100, 250) > 0.3
    assert sum(one.weight for one in mix.shapes(T4)) == pytest.approx(1)


def test_a_model_that_nobody_has_asked_for_keeps_the_generic_classes() -> None:
    """Its tables stay as they were."""
    mix = Mix()
    number = mix.group(T4)
    before = mix.tables()
    mix.observe(Demand(1000, 1, 300, models=("a100",)), 500)
    after = mix.tables()
    np.testing.assert_array_equal(after.card_values, before.card_values)
    np.testing.assert_array_equal(after.nodes[number].values, before.nodes[number].values)


def test_tables_are_made_anew_only_when_the_mix_has_drifted() -> None:
    """The same mix goes on with the same object; another one does not."""
    mix = Mix()
    mix.group(A100)
    mix.observe(SHARE, 1000)
    first = mix.tables()
    mix.observe(SHARE, 5000)
    assert mix.tables() is first
    mix.observe(FULL, 5000)
    second = mix.tables()
    assert second.version == first.version + 1
    assert not np.array_equal(first.card_values, second.card_values) or not np.array_equal(
        first.nodes[0].values, second.nodes[0].values
    )


def test_drift_is_measured_against_what_the_tables_were_made_of() -> None:
    """A mix that creeps does not get away: small steps add up."""
    mix = Mix()
    mix.group(A100)
    mix.observe(SHARE, 20_000)
    version = mix.tables().version
    for _ in range(20):
        mix.observe(FULL, 400)
        mix.tables()
    assert mix.tables().version > version
    old = {Shape(1, 1, 100, 0.0): 1.0}
    assert distance(old, {Shape(1, 1, 200, 0.0): 1.0}) == 1
    assert distance(old, old) == 0
    assert DRIFT < 0.2


def test_old_requests_fade() -> None:
    """After a half-life of others the former favourite counts a third."""
    mix = Mix()
    mix.observe(SHARE, 4 * HALF_LIFE)
    for _ in range(100):
        mix.observe(FULL, HALF_LIFE // 100)
    assert weight(mix, A100, WHOLE) > 0.2
    for _ in range(1000):
        mix.observe(FULL, HALF_LIFE // 100)
    assert weight(mix, A100, 470) < 0.01


def test_many_unlike_requests_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rarest are forgotten: memory and the time of building are bounded."""
    monkeypatch.setattr(mix_module, "MOST_CLASSES", 64)
    mix = Mix()
    mix.observe(SHARE, 50)
    for cpu in range(1000):
        mix.observe(Demand(cpu + 1, 1, 500))
    assert len(mix.state()["classes"]) <= 64
    assert weight(mix, A100, 470) > 0
    assert len(mix.shapes(A100)) <= mix_module.MOST_SHAPES


def test_equal_histories_give_equal_tables() -> None:
    """A replay decides as the first run did."""
    made = []
    for _ in range(2):
        mix = Mix()
        mix.group(A100)
        for step in range(200):
            mix.observe(SHARE if step % 3 else FULL)
            tables = mix.tables()
        made.append(tables)
    assert made[0].version == made[1].version
    np.testing.assert_array_equal(made[0].card_values, made[1].card_values)
    np.testing.assert_array_equal(made[0].nodes[0].values, made[1].nodes[0].values)


def test_a_copy_learns_apart() -> None:
    """What-if leaves no trace."""
    mix = Mix()
    mix.group(A100)
    tables = mix.tables()
    other = mix.copy()
    other.observe(SHARE, 1000)
    other.ended(100)
    assert other.tables() is not tables
    assert mix.tables() is tables
    assert mix.turnover == 0
    assert mix.seen == 0


def test_the_state_survives_json() -> None:
    """A successor goes on with what was learned."""
    mix = Mix()
    mix.observe(SHARE, 70)
    mix.observe(Demand(1000, 2, models=("a100",), pools=("train",)), 30)
    successor = Mix.from_state(json.loads(json.dumps(mix.state())))
    assert successor.seen == mix.seen
    found = {(one.cpu_milli, one.gpus, one.milli): one.weight for one in successor.shapes(A100)}
    for one in mix.shapes(A100):
        assert found[one.cpu_milli, one.gpus, one.milli] == pytest.approx(one.weight)


def busy(requests: int, ends: int) -> Mix:
    """Return a mix that saw requests, and after every eighth some ends."""
    mix = Mix()
    mix.group(A100)
    for _ in range(requests // 8):
        mix.observe(SHARE, 4)
        mix.observe(Demand(40_000, 4), 4)
        mix.ended(ends)
        mix.tables()
    return mix


def test_without_ends_the_order_of_nodes_keeps_whole_ones() -> None:
    """Idle cards by themselves are worth nothing: the tables are those of a filling cluster."""
    mix = busy(8000, 0)
    assert mix.turnover == 0
    assert mix.tables().kept == ()
    assert mix.tables().order_scale == 1


def test_with_ends_idle_cards_are_kept_together() -> None:
    """A node with four idle cards is worth more, unless it lacks the CPU; holes are worth less."""
    mix, filling = busy(8000, 8).tables(), busy(8000, 0).tables()
    (kept,) = mix.kept
    assert kept[96, 4] < -1000
    assert kept[96, 4] == kept[96, 7]
    assert kept[96, 3] > -1000
    assert kept[39, 8] > kept[40, 8]
    assert mix.order_scale == pytest.approx(0.1)
    assert mix.card_values[530] > filling.card_values[530]


def test_with_ends_models_that_others_insist_on_are_left_to_them() -> None:
    """GPU on nodes that half of the requests may not come to is taken first."""
    plain, choosy = busy(8000, 8), Mix()
    choosy.group(A100)
    for _ in range(1000):
        choosy.observe(SHARE, 2)
        choosy.observe(Demand(40_000, 4), 2)
        choosy.observe(Demand(4000, 1, models=("h100",)), 4)
        choosy.ended(8)
        choosy.tables()
    # a full node strands nothing, an empty one what those others would have used
    assert Surface(choosy.tables()).read_one(0, 96_000, 0.0, 0) == 0
    assert Surface(choosy.tables()).read_one(0, 96_000, 8000.0, 0) > 3000
    assert Surface(plain.tables()).read_one(0, 96_000, 8000.0, 0) < 1000


def test_when_ends_cease_the_cluster_counts_as_filling_again() -> None:
    """Back to the very tables, and not to and fro on the way."""
    mix = busy(8000, 8)
    version = mix.tables().version
    for _ in range(2000):
        mix.observe(SHARE, 4)
        mix.observe(Demand(40_000, 4), 4)
        mix.tables()
    assert version < mix.tables().version <= version + TURNOVER_LEVELS
    assert mix.tables().kept == ()
    assert mix.tables().order_scale == 1


def test_the_turnover_survives_in_the_state() -> None:
    """A replay of a dump weighs as the decision did; a dump of an older release as without ends."""
    mix = busy(8000, 2)
    assert 0 < mix.turnover < 1
    state = json.loads(json.dumps(mix.state()))
    successor = Mix.from_state(state)
    successor.group(A100)
    assert successor.turnover == mix.turnover
    assert successor.tables().order_scale == mix.tables().order_scale < 1
    del state["turnover"]
    older = Mix.from_state(state)
    older.group(A100)
    assert older.tables().order_scale == 1


def test_a_larger_node_widens_its_group() -> None:
    """The number stays; the tables reach further."""
    mix = Mix()
    number = mix.group(A100)
    before = mix.tables()
    assert mix.group(Group("train", "a100", 192_000, 16, 80 << 30)) == number
    mix.observe(FULL)
    after = mix.tables()
    assert after.version > before.version
    assert len(after.nodes[number].values) > len(before.nodes[number].values)
