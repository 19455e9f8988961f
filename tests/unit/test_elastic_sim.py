"""The elastic simulation: the real planner on a fleet of memory, in a market of its own."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from dsec.api.experiment import TaskClass
from dsec.api.scaling import Market, Shrinking
from dsec.cli.main import app
from dsec.scaling.nodes.rules import NodeRules, PoolRules
from dsec.sim.cluster import request_of
from dsec.sim.elastic.fleet import Fleet, Tally
from dsec.sim.elastic.load import Work, folded, in_order, rollouts
from dsec.sim.elastic.market import OWNED_CPU, SPELL_S, MarketModel, offerings, owned
from dsec.sim.elastic.planned import Planned
from dsec.sim.trace import Job
from typer.testing import CliRunner

HOUR = 3600.0
STEADY = MarketModel(shortage=(), hazard=0.0)


def work(name: str, at: float, seconds: float, *, gpus: int = 0, rollout: bool = True) -> Work:
    """Return one sandbox of 4 cores."""
    request = request_of(Job(name, 4000, 4 << 30, gpus, 1000 * bool(gpus)), name)
    if rollout:
        request = replace(request, task_class=TaskClass.PREEMPTIBLE)
    return Work(name, at, seconds, request, "gpu" if gpus else "rollout")


def run(load: list[Work], market: MarketModel, hours: float = 2.0) -> Tally:
    """Run a load on one own machine and what dsec buys."""
    rules = NodeRules(
        pools=(
            PoolRules("own-cpu", shrink=Shrinking.OFF),
            PoolRules("cloud-cpu", burst_wait_s=0.0),
            PoolRules("cloud-gpu", burst_wait_s=0.0),
        )
    )
    ways = offerings(market, markets=(Market.SPOT, Market.ON_DEMAND))
    end = hours * HOUR
    return Fleet(
        load,
        [owned(OWNED_CPU, 1)],
        market,
        Planned(rules, ways),
        window=(0.0, end),
        end=end,
        move_all=True,
    ).run()


def test_a_burst_beyond_own_machines_is_bought_on_spot_and_given_back() -> None:
    """100 sandboxes of 4 cores on 128 own: 68 wait for spot; in the end only own is left."""
    load = [work(f"r{n}", 100.0, 600.0) for n in range(100)]
    tally = run(load, STEADY)
    assert tally.unfinished == 0
    assert len(tally.waits["rollout"]) == 100
    assert max(tally.waits["rollout"]) <= 10 + max(STEADY.boot_s) + 10
    assert set(tally.bill) <= {"owned CPU", "spot CPU", "moves"}
    assert tally.bill["owned CPU"] == Decimal("3.00"), "two hours at 1.50, used or not"
    assert tally.curve[-1][1] == 1, "only the own machine is left"
    assert tally.delivered_core_h == pytest.approx(100 * 4 * 600 / HOUR)


def test_work_that_may_not_be_interrupted_is_bought_on_demand() -> None:
    """Two jobs with a card each: no own machine has any."""
    tally = run([work(f"g{n}", 10.0, 900.0, gpus=1, rollout=False) for n in range(2)], STEADY)
    assert tally.unfinished == 0
    assert "spot GPU" not in tally.bill
    assert tally.bill["on-demand GPU"] > 0


def test_interruptions_lose_no_work() -> None:
    """Spot nodes end all the time: what ran is paused, goes on elsewhere, and is delivered."""
    rough = replace(STEADY, hazard=20.0)
    load = [work(f"r{n}", 100.0, 900.0) for n in range(60)]
    tally = run(load, rough, hours=4.0)
    assert tally.interruptions > 0
    assert (tally.unfinished, tally.lost_core_h) == (0, 0.0)
    assert tally.delivered_core_h == pytest.approx(60 * 4 * 900 / HOUR)


def test_equal_runs_are_equal() -> None:
    """No run draws from anything but its seed."""
    load = [work(f"r{n}", 60.0 * n, 700.0) for n in range(60)]
    market = MarketModel(seed=3)
    one, two = run(load, market), run(load, market)
    assert (one.bill, one.waits, one.curve) == (two.bill, two.waits, two.curve)


def test_the_market_is_the_same_for_whoever_asks_in_whatever_order() -> None:
    """Shortages and boots depend on offering and time alone (and the seed)."""
    market = MarketModel(seed=7)
    ways = offerings(market, markets=(Market.SPOT,))
    times = [SPELL_S * n for n in range(50)]
    forward = [[market.short(way, at) for at in times] for way in ways]
    backward = [[market.short(way, at) for at in reversed(times)] for way in reversed(ways)]
    assert forward == [list(reversed(row)) for row in reversed(backward)]
    part = sum(map(sum, forward)) / (len(ways) * len(times))
    assert 0.08 < part < 0.16
    assert {MarketModel(seed=n).short(ways[0], 0.0) for n in range(60)} == {True, False}


def test_folding_keeps_the_hour_and_the_amount_of_work() -> None:
    """Thirty days onto three, twice as many: each pod at its hour, durations as they were."""
    jobs = [
        Job(f"p{day}", 1000, 1 << 30, at=day * 86_400 + 7200.0, duration=500.0) for day in range(30)
    ]
    found = folded(jobs, 1, days=3, scale=2.0, busy_from=0.0)
    assert len(found) == 60
    assert all(abs(one.at % 86_400 - 7200) <= 300 for one in found)
    assert {one.seconds for one in found} == {500.0}
    both = in_order(found, rollouts(1, days=1, scale=0.04))
    assert [one.at for one in both] == sorted(one.at for one in both)
    assert {one.kind for one in both} == {"cpu", "rollout"}


def test_what_a_trace_calls_best_effort_may_be_interrupted() -> None:
    """And nothing else of it."""
    jobs = [
        Job(f"p{best}", 1000, 1 << 30, at=7200.0, duration=500.0, best_effort=best)
        for best in (False, True)
    ]
    found = folded(jobs, 1, days=1, scale=1.0, busy_from=0.0)
    assert {one.id: one.interruptible for one in found} == {"pFalse-0": False, "pTrue-0": True}


def test_the_command_tells_bill_and_waits(tmp_path: Path) -> None:
    """A day of few rollouts: JSON that adds up, and a picture."""
    picture = tmp_path / "run.png"
    asked = ["sim", "elastic", "--days", "1", "--scale", "0.02", "--plot", str(picture)]
    told = CliRunner().invoke(app, [*asked, "--output", "json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    assert sum(Decimal(one) for one in report["bill"].values()) == pytest.approx(
        Decimal(report["total"]), abs=Decimal("0.05")
    )
    assert report["waits"][0]["kind"] == "rollout"
    assert picture.stat().st_size > 1000
    wrong = CliRunner().invoke(app, ["sim", "elastic", "--days", "0"])
    assert (wrong.exit_code, "--days" in wrong.output) == (2, True)
