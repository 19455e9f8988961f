"""The worked scenarios about counts of replicas, with their numbers: W-01, W-04, W-05, W-06."""

from collections.abc import Iterator
from datetime import timedelta

from dsec.api.elastic import ElasticWindow, ReplicaPreset
from dsec.api.elastic_status import ScalingReason
from dsec.api.scaling import Weekday
from dsec.cost.savings import saving
from dsec.scaling.replicas.evaluate import first_result
from dsec.scaling.replicas.prewarm import Blob, NodeRoom, coming, warm_ups
from dsec.scaling.replicas.spans import DEFAULT_SPANS
from scaling_make import START, Part, Player, changes, curve, play, rule

GB = 10**9
WEEKDAYS = [Weekday.MON, Weekday.TUE, Weekday.WED, Weekday.THU, Weekday.FRI]


def test_w_01_512_to_768_to_200() -> None:
    """Balanced: a queue and busy workers for 3 x 30 s; 40 s to the first sample; 35 % saved."""
    made = rule(
        replicas=512, low=200, high=768, ladder=[200, 512, 768], metric="queue_depth", target=64
    )
    assert made.preset is ReplicaPreset.THREE_SIGNAL
    player = Player(made, 512)
    # half an hour in which the queue is short
    play(player, curve([Part(1800, 20)], 30), lambda depth, _: {"queue_depth": depth, "use": 70})
    assert changes(player.counts) == [512]
    # it piles up: the simulation is slower than expected
    piles = {"queue_depth": 900.0, "use": 92.0}
    player.round(**piles)
    triggered = player.now
    assert coming(player.state)
    nodes = [NodeRoom(f"n{n}", 32) for n in range(12)]
    image, parameters = Blob("sim:1", 2 * GB), Blob("step-9000", GB // 2)
    brought = warm_ups(768 - 512, [image, parameters], nodes)
    assert len({one.node for one in brought}) == 8, "256 over 32 a node"
    state = player.rounds(2, **piles)
    assert (player.count, state.reason) == (768, ScalingReason.GROWN)
    assert player.now - triggered == timedelta(seconds=60)
    spans = DEFAULT_SPANS.spans()
    assert round(spans.total, 6) <= 40
    shown = first_result(state, 513, player.now + timedelta(seconds=spans.total))
    took = shown.growths[-1].first_result - shown.growths[-1].acted
    assert took <= timedelta(seconds=40)
    # trained for a while, then the end phase: little is left to sample
    play(player, curve([Part(6000, 400)], 30), lambda d, _: {"queue_depth": d, "use": 78})
    assert player.count == 768
    player.rounds(5, queue_depth=0, use=15)
    assert player.count == 200
    assert player.state.reason is ScalingReason.SHRUNK
    freed = (768 - 200) * 2
    assert freed == 1136, "cores for other tasks"
    play(player, curve([Part(5400, 10)], 30), lambda d, _: {"queue_depth": d, "use": 60})
    saved = saving(list(_trace(player)), len(player.counts) * 30.0)
    assert 33 <= saved.percent <= 37, saved.formula


def _trace(player: Player) -> Iterator[tuple[float, int]]:
    last = None
    for at, count in enumerate(player.counts):
        if count != last:
            yield at * 30.0, count
            last = count


def test_w_01_a_cold_start_takes_as_long_as_its_bytes() -> None:
    """Warm parameters cost below 100 ms (ELAS-26); without, their size over the bandwidth."""
    warm = DEFAULT_SPANS.spans()
    assert warm.parameters < 0.1
    cold = [
        DEFAULT_SPANS.spans(parameter_bytes=size * GB, parameters_warm=False).parameters
        for size in (1, 2, 4)
    ]
    assert [round(one - warm.parameters, 3) for one in cold] == [2, 4, 8]
    image = DEFAULT_SPANS.spans(image_warm=False)
    assert image.total - warm.total == 20, "2 GB at 100 MB a second"


def test_w_04_four_to_six_to_four() -> None:
    """Demand 600, 1500, 800 against a threshold of 1200; after growth 1400, and no more growth.

    The demand curves of the test suite play it (ELAS-30).
    """
    made = rule(
        replicas=4,
        low=4,
        high=16,
        metric="sample_throughput",
        target=1200,
        preset=ReplicaPreset.THROUGHPUT,
    )
    player = Player(made, 4)

    def sampled(demand: float, count: int) -> dict[str, float | None]:
        # six instances give 1400 of the 1500 that are asked for
        return {"sample_throughput": min(demand, 1400.0) if count > 4 else demand}

    counts = play(player, curve([Part(300, 600), Part(600, 1500), Part(300, 800)], 30), sampled)
    assert changes(counts) == [4, 6, 4]
    grown = counts.index(6)
    assert grown == 11, "the second evaluation at 1500"
    assert counts.index(4, grown) == 31, "the second evaluation at 800"
    # CONF-04: level goes on growing at the same readings
    level = Player(
        rule(replicas=4, low=4, high=16, mode="level", metric="sample_throughput", target=1200), 4
    )
    play(level, curve([Part(600, 1500)], 30), sampled)
    assert level.count == 16


def test_w_05_eight_by_day_and_three_by_night() -> None:
    """Nights and weekends at three: about 40 % fewer instance-hours in a month."""
    windows = [
        ElasticWindow(days=WEEKDAYS, start="20:00", end="08:00", max=3),
        ElasticWindow(days=[Weekday.SAT, Weekday.SUN], start="00:00", end="00:00", max=3),
    ]
    made = rule(
        replicas=8,
        low=3,
        high=8,
        preset=ReplicaPreset.ROLE_QUEUE,
        per_instance_rate=12,
        schedule=windows,
        time_zone="Asia/Shanghai",
        period_seconds=900,
    )
    player = Player(made, 8)
    for _ in range(28 * 96):
        player.round(queue_depth=96)
    assert set(player.counts) == {3, 8}
    saved = saving(list(_quarters(player)), len(player.counts) * 900.0, static=8)
    assert 37 <= saved.percent <= 43, saved.formula


def _quarters(player: Player) -> Iterator[tuple[float, int]]:
    for at, count in enumerate(player.counts):
        yield at * 900.0, count


def test_w_06_the_two_hours_of_ppo_within_the_bounds_of_conf_03() -> None:
    """Depth over 100, 50, 80, little: 8, 5, 7, 4 with max 8 and 12 an instance."""
    made = rule(
        replicas=8,
        low=4,
        high=8,
        preset=ReplicaPreset.ROLE_QUEUE,
        target=64,
        per_instance_rate=12,
    )
    player = Player(made, 8)
    parts = [Part(1200, 110), Part(2400, 50), Part(1800, 80), Part(1800, 20)]
    counts = play(player, curve(parts, 30), lambda depth, _: {"queue_depth": depth})
    assert changes(counts) == [8, 5, 7, 4]
    assert counts[39] == 8
    assert counts[45] == 5
    assert counts[125] == 7
    assert counts[-1] == 4


def test_w_06_only_figures_between_11_43_and_12_5_give_that_trace() -> None:
    """CONF-03: 16 an instance is the formula of the same source, and does not."""
    for rate, fits in ((16, False), (12, True), (11, False), (13, False)):
        made = rule(preset=ReplicaPreset.ROLE_QUEUE, per_instance_rate=rate, low=1, high=8)
        counts = []
        for depth in (50, 80):
            player = Player(made, 8)
            player.rounds(4, queue_depth=depth)
            counts.append(player.count)
        assert (counts == [5, 7]) is fits, (rate, counts)


def test_the_day_starts_where_the_clock_of_the_zone_says() -> None:
    """In the nights when Berlin turns its clocks, the window still ends at 07:00 there."""
    window = [ElasticWindow(start="22:00", end="07:00", max=3)]
    for month, day, utc_end in ((3, 29, 5), (10, 25, 6)):
        made = rule(
            replicas=8,
            low=1,
            high=8,
            preset=ReplicaPreset.ROLE_QUEUE,
            schedule=window,
            time_zone="Europe/Berlin",
        )
        player = Player(made, 3)
        player.now = START.replace(month=month, day=day, hour=utc_end - 1, minute=50)
        player.rounds(19, queue_depth=128)
        assert player.count == 3, "07:00 has not come"
        player.rounds(6, queue_depth=128)
        assert player.count == 8
