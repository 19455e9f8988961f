"""Parts of scaling beside the look itself: presets, signals, words, worth, vertical, warm-up."""

import tomllib
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from dsec.api.elastic import ReplicaPreset
from dsec.api.elastic_status import Limit, Means, Reading, RoleScaling, ScalingReason
from dsec.api.experiment import ElasticTier
from dsec.api.presets import CONFLICTS
from dsec.api.sandbox import Identity
from dsec.api.scaling import NodePreset
from dsec.scaling.replicas.presets import PRESETS, WORDS
from dsec.scaling.replicas.prewarm import Blob, NodeRoom, WarmUp, coming, warm_ups
from dsec.scaling.replicas.proposals import Recorded, propose, recorded
from dsec.scaling.replicas.requests import own_request
from dsec.scaling.replicas.schedule import Bounds, bounds_at, zone_of
from dsec.scaling.replicas.steps import down, inside, up
from dsec.scaling.replicas.worth import (
    Point,
    Task,
    choose,
    cost_per_sample,
    cut,
    marginal,
    rate_at,
    spend,
    table,
)
from dsec.scaling.signals import Sample, Signal, Window, fresh, mean_of, noted, use_of
from dsec.scaling.vertical import (
    Ceilings,
    Limits,
    Room,
    Sized,
    Use,
    Verdict,
    resize,
    right_size,
)
from dsec.scaling.words import Said, told
from scaling_make import START

R = ScalingReason
NAMES = tomllib.loads((Path(__file__).parents[1] / "data/scaling_presets.toml").read_text())
MIB = 1 << 20

# ------------------------------------------------------------------ presets


@pytest.mark.parametrize("conflict", sorted(NAMES))
def test_every_name_of_the_catalogue_exists(conflict: str) -> None:
    """Presets, tiers and modes under exactly the catalogue's names."""
    listed = NAMES[conflict]
    assert set(listed["names"]) | set(listed.get("tiers", ())) == set(WORDS[conflict])
    if conflict in CONFLICTS:
        assert CONFLICTS[conflict].names == tuple(listed["names"])
        assert CONFLICTS[conflict].default == listed["default"]


def test_replicas_have_each_preset_in_each_tier_and_nodes_have_theirs() -> None:
    """No preset is a name without numbers."""
    assert set(PRESETS) == set(ReplicaPreset)
    for tiers in PRESETS.values():
        assert set(tiers) == set(ElasticTier)
    assert NodePreset(NAMES["CONF-02"]["default_of_nodes"]) is NodePreset.NODE_LOAD


# ------------------------------------------------------------------ signals


def test_what_is_too_old_or_no_number_is_nothing() -> None:
    """No data is not zero."""
    window = Window(keep_seconds=300, stale_seconds=90)
    assert window.last(0) is None
    for at in (0, 30, 60):
        window = window.put(Sample(at, at))
    assert (window.last(150), window.mean(60, 30)) == (60, 45)
    assert (window.last(151), window.mean(151, 300)) == (None, None)
    for bad in (Sample(90, float("nan")), Sample(90, float("inf")), Sample(60, 5)):
        assert window.put(bad) is window
    assert len(window.put(Sample(340, 1)).samples) == 2, "what is older than it keeps goes"
    old = [Reading(name="cpu", value=1, age_seconds=91), Reading(name="use", value=2)]
    assert fresh([*old, Reading(name="gpu")], 90) == {"use": 2}


def test_use_is_the_largest_of_what_is_known() -> None:
    """CPU, memory and GPU; a value of its own wins."""
    assert use_of({Signal.CPU: 30, Signal.GPU: 80}) == 80
    assert use_of({Signal.CPU: 30, Signal.USE: 55}) == 55
    assert use_of({}) is None


def test_the_mean_of_the_last_hour_forgets_the_hour_before() -> None:
    """An hour at 100, an hour at 200; then a gap of two hours."""
    means = Means()
    for at in range(120):
        means = noted(means, at * 30.0, 100)
    assert mean_of(means) == 100
    for at in range(120, 240):
        means = noted(means, at * 30.0, 200)
    assert mean_of(means) == 200
    assert len(means.sums) <= 12
    means = noted(means, 3 * 3600.0 + 7200, 7)
    assert mean_of(means) == 7
    assert mean_of(means, least=2) is None


# ------------------------------------------------------------------ steps and schedules


def test_steps_never_leave_ladder_or_bounds() -> None:
    """Up, down and into bounds."""
    ladder = (4, 8, 12)
    assert up(ladder, 0, 4, 11, 12) == 8, "the next step, whatever was computed"
    assert up(ladder, 0, 8, 11, 11) == 8, "a ceiling between two steps"
    assert down(ladder, 0, 12, 3, 4) == 4
    assert down(ladder, 0, 12, 5, 4) == 8
    assert down(ladder, 0, 4, 1, 5) == 4
    assert (up((), 2, 5, 20, 30), up((), 0, 5, 20, 9), up((), 0, 5, None, 9)) == (20, 9, 6)
    assert (down((), 2, 9, 1, 0), down((), 0, 9, 1, 4)) == (7, 4)
    assert (inside(ladder, 20, 1, 11), inside(ladder, 20, 5, 7), inside((), 1, 3, 9)) == (8, 7, 3)


def test_an_unknown_time_zone_is_named() -> None:
    """Not a traceback of the library."""
    with pytest.raises(ValueError, match="Mars/Olympus: no time zone of that name"):
        zone_of("Mars/Olympus")
    assert bounds_at((), "UTC", START, Bounds(1, 2)) == Bounds(1, 2)


# ------------------------------------------------------------------ words

TABLE = [
    (Said(R.GROWN, "x", 4, 8, 4, 4), "raised from 4 to 8: x for 4 rounds"),
    (Said(R.SHRUNK, "x", 8, 4, 1, 1), "lowered from 8 to 4: x"),
    (Said(R.REQUESTED, "the task asked for 9", 4, 9), "set from 4 to 9: the task asked for 9"),
    (Said(R.BOUNDS, "x", 4, 2), "moved from 4 to 2: x"),
    (Said(R.STEADY, "x", 4, 4), "4 are right: x"),
    (Said(R.CONFIRMING_GROWTH, "x", 4, 8, 1, 3), "4 stay: x, in 1 of 3 rounds that 8 need"),
    (Said(R.CONFIRMING_SHRINK, "x", 8, 4, 1, 2), "8 stay: x, in 1 of 2 rounds that 4 need"),
    (
        Said(R.NO_DATA, "x", 4, 4),
        "4 stay: x; no data is not zero, so the count is held",
    ),
    (Said(R.NO_BASELINE, "x", 4, 4), "4 stay: x; the count is held until then"),
    (Said(R.NOT_CROSSED, "x", 4, 4), "4 stay: x"),
    (
        Said(R.COOLDOWN, "x", 4, 8, seconds=90),
        "4 stay: x, but the last change needs time to show for 90 s more",
    ),
    (
        Said(R.GUARD, "x", 8, 4, seconds=90),
        "8 stay: x, but the last time it was too soon, so it has to be wanted for 90 s more",
    ),
    (Said(R.PROTECTED, "x", 8, 4, seconds=9), "8 stay: x, but what was added is kept for 9 s more"),
    (Said(R.AT_LIMIT, "x", 4, 4, limit=Limit.MAX), "4 stay: x, but the role's max is reached"),
    (
        Said(R.AT_LIMIT, "x", 4, 4, limit=Limit.QUOTA),
        "4 stay: x, but the quota has room for no more",
    ),
    (Said(R.AT_LIMIT, "x", 4, 4, limit=Limit.BUDGET), "4 stay: x, but the budget allows no more"),
    (
        Said(R.AT_LIMIT, "x", 4, 4, limit=Limit.NODES),
        "4 stay: x, but the nodes have room for no more, and no more may be added",
    ),
    (
        Said(R.AT_LIMIT, "x", 4, 4, limit=Limit.WORTH),
        "4 stay: x, but the cost of a sample would rise by more than they bring",
    ),
    (Said(R.AT_FLOOR, "x", 4, 4), "4 stay: x; no less is allowed now"),
    (Said(R.FROZEN, "x", 4, 4), "growth frozen: x; 4 stay until they run well"),
    (Said(R.IO_BOUND, "x", 4, 4), "4 stay: x; growth is withheld"),
    (Said(R.WOULD_SHRINK, "x", 8, 5), "8 stay, would remove 3: x; such changes are only told"),
    (Said(R.WOULD_GROW, "x", 5, 8), "5 stay, would add 3: x; such changes are only told"),
]


@pytest.mark.parametrize(("said", "text"), TABLE)
def test_every_decision_has_its_sentence(said: Said, text: str) -> None:
    """Count, cause, and what holds it."""
    assert told(said) == text


def test_no_reason_is_without_words() -> None:
    """The table above has them all."""
    assert {said.reason for said, _ in TABLE} == set(ScalingReason)


# ------------------------------------------------------------------ what a replica is worth

STEEP = tuple(Point(n, 10.0 * n) for n in (1, 5, 10))
FLAT = (Point(1, 10.0), Point(5, 45.0), Point(10, 50.0))


def task(name: str, curve: tuple[Point, ...], count: int = 10, high: int = 10) -> Task:
    """Return a task at 1.00 an hour and replica."""
    return Task(name, count, 1, high, Decimal("1.00"), curve)


def test_road_09_cost_of_a_valid_sample() -> None:
    """Cost over valid samples, exact; none without samples."""
    assert cost_per_sample(Decimal("3.00"), 400) == Decimal("0.0075")
    assert cost_per_sample(Decimal("3.00"), 0) is None
    rows = table({"a": (Decimal(1), 100), "b": (Decimal(1), 10), "c": (Decimal(1), 0)})
    assert [name for name, _ in rows] == ["b", "a", "c"]


def test_road_10_the_flatter_curve_loses_replicas() -> None:
    """Of two tasks at ten each, five less an hour."""
    assert (rate_at(FLAT, 7), marginal(FLAT, 10), marginal(STEEP, 10)) == (47, 1, 10)
    assert cut([task("flat", FLAT), task("steep", STEEP)], Decimal(5)) == {"flat": 5, "steep": 10}
    assert cut([task("flat", FLAT)], Decimal(100)) == {"flat": 1}, "nobody falls below the least"


def test_road_11_room_in_the_budget_makes_small_tasks_faster() -> None:
    """Without any queue; never above what helps, never past the room."""
    small, large = task("small", STEEP, count=2), task("large", STEEP, count=8)
    assert spend([small, large], Decimal("4.50")) == {"small": 6, "large": 8}
    done = task("done", FLAT, count=10, high=20)
    assert spend([done], Decimal(5)) == {"done": 10}, "flat beyond what was measured"


def test_road_12_the_knob_moves_the_count() -> None:
    """Least money keeps few, the fastest takes all, and between them it only rises."""
    one = task("one", FLAT, count=5)
    counts = [choose(one, 10_000, Decimal(speed) / 10) for speed in range(11)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 10)
    assert len(set(counts)) > 2
    assert choose(task("none", ()), 10, Decimal(1)) == 10, "nothing is known: as it is"


# ------------------------------------------------------------------ vertical

CEILINGS = Ceilings(min_cpu=500, max_cpu=4000, max_memory=1024 * MIB)
NOW = Limits(2000, 512 * MIB)
ROOM = Room(8000, 4096 * MIB)


def test_elas_02_limits_follow_use_within_ceilings_and_room() -> None:
    """Up when held back, down when seen for five minutes, memory only up."""
    held = Use(30, 1900, throttled=0.3)
    assert resize(NOW, held, CEILINGS, ROOM).limits.cpu == 3001
    assert resize(NOW, held, CEILINGS, Room(300, 0)).limits.cpu == 2300
    tight = resize(NOW, held, CEILINGS, Room(0, 0))
    assert (tight.verdict, tight.limits) == (Verdict.NO_ROOM, NOW)
    idle = Use(300, 200, 20)
    assert resize(NOW, idle, CEILINGS, ROOM).limits.cpu == 500
    assert resize(NOW, Use(299, 200, 20), CEILINGS, ROOM).verdict is Verdict.KEEP
    full = Use(30, 1000, memory_peak=500 * MIB)
    grown = resize(NOW, full, CEILINGS, ROOM)
    assert (grown.verdict, grown.limits) == (Verdict.RESIZE, Limits(2000, 640 * MIB))
    assert "in use" in grown.words


def test_conf_33_at_the_hard_ceiling_it_is_frozen_and_reclaimed() -> None:
    """Head-room is used first; at the ceiling there is no more growth."""
    last = Limits(2000, 1024 * MIB)
    over = Use(30, 1000, memory_peak=1024 * MIB)
    assert resize(last, over, CEILINGS, ROOM).verdict is Verdict.FREEZE
    near = Use(30, 1000, memory_peak=900 * MIB)
    assert resize(last, near, CEILINGS, ROOM).verdict is Verdict.KEEP


def test_right_sizing_keeps_the_safe_bound() -> None:
    """A quarter of the request for those that idle, all of it for the busiest tenth and the new."""
    idle = [Sized(f"i{n}", 4000, Use(600, 200, 50)) for n in range(9)]
    busy = [Sized("busy", 4000, Use(600, 3900, 30))]
    sizes = right_size(48_000, [*idle, *busy])
    assert sizes.cpu["busy"] == 4000
    assert {sizes.cpu[one.id] for one in idle} == {1000}
    expected = 9 * 350 + 3990
    assert sizes.room == int(48_000 * 0.7 - expected)
    young = [Sized("new", 4000, Use(10, 10))]
    assert right_size(48_000, [*idle, *young]).cpu["new"] == 4000
    crowd = [Sized(f"c{n}", 4000, Use(600, 3000, 200)) for n in range(10)]
    full = right_size(40_000, crowd)
    assert set(full.cpu.values()) == {4000}, "the bound would break: nobody is squeezed"
    assert full.room == 0


# ------------------------------------------------------------------ warm-up, requests, proposals


def test_elas_19_26_blobs_go_where_the_replicas_will_be() -> None:
    """Nodes that hold everything first; no more nodes than are needed; only what is missing."""
    image, step = Blob("sim:1", 2000), Blob("step-7", 500)
    nodes = [
        NodeRoom("cold", 8),
        NodeRoom("warm", 4, frozenset({"sim:1", "step-7"})),
        NodeRoom("half", 4, frozenset({"sim:1"})),
        NodeRoom("full", 0),
    ]
    assert warm_ups(8, [image, step], nodes) == [WarmUp("half", step)]
    assert warm_ups(9, [image, step], nodes)[1:] == [WarmUp("cold", image), WarmUp("cold", step)]
    assert warm_ups(0, [image], nodes) == []
    assert len(warm_ups(1000, [image], [NodeRoom(f"n{n}", 1) for n in range(500)])) == 256
    assert coming(RoleScaling(role="sim", grow_rounds=1))
    assert not coming(RoleScaling(role="sim", grow_rounds=1, frozen=True))


def test_elas_23_a_sandbox_speaks_for_its_own_role_alone() -> None:
    """Another role, project or experiment is refused, and so is one without an experiment."""
    caller = Identity(
        id="sb-01jf0000000000000000000000", tenant="t", project="lab", experiment="ppo", role="sim"
    )
    ask = {"project": "lab", "experiment": "ppo", "role": "sim", "count": 200}
    assert own_request(caller, **ask) == 200
    for change in ({"role": "trainer"}, {"project": "other"}, {"experiment": "sac"}):
        with pytest.raises(ValueError, match="its own role, lab/ppo/sim"):
            own_request(caller, **(ask | change))
    with pytest.raises(ValueError, match="count -1"):
        own_request(caller, **(ask | {"count": -1}))
    alone = caller.model_copy(update={"experiment": ""})
    with pytest.raises(ValueError, match="own role"):
        own_request(alone, **(ask | {"experiment": ""}))


def test_elas_28_a_recorded_week_proposes_thresholds_and_nights() -> None:
    """Busy from 8 to 20 on weekdays, quiet else; a night per stretch, with its sentences."""
    week = []
    for at in range(7 * 96):
        utc = START + timedelta(minutes=15 * at)
        busy = utc.weekday() < 5 and 8 <= utc.hour < 20
        week.append(Recorded(utc, 10, 84 if busy else 14, 120 if busy else 6))
    found = propose(week)
    assert (found.low, found.high) == (2, 12)
    assert (found.target, found.lower) == (120, 6)
    spans = {(one.start, one.end, len(one.days), one.max) for one in found.windows}
    assert spans == {("00:00", "08:00", 5, 2), ("20:00", "00:00", 5, 2), ("00:00", "00:00", 2, 2)}
    assert not any("were recorded" in one for one in found.words)
    assert any("only 96 of 168 hours" in one for one in propose(week[: 4 * 96]).words)
    with pytest.raises(ValueError, match="run for a week"):
        propose([])


def test_elas_28_samples_come_from_rows_of_history() -> None:
    """A row without the metric or without any use says nothing."""
    body = {"role": "sim", "count": 8, "readings": {"queue_depth": 40.0, "cpu": 55.0}}
    assert recorded(START, body, "queue_depth") == Recorded(START, 8, 55.0, 40.0)
    assert recorded(START, body, "latency") is None
    assert recorded(START, {**body, "readings": {"queue_depth": 4.0}}, "queue_depth") is None
    assert recorded(START, {"readings": 3}, "queue_depth") is None
