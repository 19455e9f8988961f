"""Simulated runs: bursts have their shape, nothing is over-booked, and who waits is counted."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

import pytest
from dsec.cli.main import run
from dsec.sim.bursts import CONTAINERS, MICROVMS, Kind, burst, quantile
from dsec.sim.measure import Meter
from dsec.sim.report import average, rank, report_of
from dsec.sim.run import Outcome, simulate
from dsec.sim.trace import Job, Machine

GIB = 1 << 30
MACHINES = [Machine(f"n{number}", 32_000, 128 * GIB, 4, "a100") for number in range(3)]


def simulated(machines: list[Machine], jobs: list[Job]) -> Outcome:
    """Run with a clock that ticks a millisecond a look."""
    ticks = count()
    return simulate(machines, jobs, timer=lambda: next(ticks) / 1000)


def test_a_burst_has_the_published_shape() -> None:
    """Sizes, lives, images and the rate of creates of 60,000 sandboxes."""
    jobs = burst(60_000, 5, hours=6, scale=1.0, gpus=False)
    assert len(jobs) == 60_000
    tasks: dict[str, list[Job]] = {}
    for job in jobs:
        tasks.setdefault(job.task, []).append(job)
    lives = [job.duration or 0.0 for job in jobs if job.isolation == "container"]
    assert median(lives) == pytest.approx(17.4 * 60, rel=0.05)
    assert sorted(lives)[int(len(lives) * 0.99)] == pytest.approx(231.5 * 60, rel=0.15)
    for members in tasks.values():
        begin, end = members[0].at, members[-1].at
        assert end - begin <= len(members) / 1000 + 0.1
        assert len({(one.cpu_milli, one.memory_bytes, one.isolation) for one in members}) == 1
    fanout = [
        times
        for members in tasks.values()
        if members[0].isolation == "container"
        for times in Counter(one.image for one in members).values()
    ]
    assert 2 <= median(fanout) <= 4
    assert {job.gpus for job in jobs} == {0}


@pytest.mark.parametrize("kind", [CONTAINERS, MICROVMS])
def test_sizes_of_tasks_have_the_published_quantiles(kind: Kind) -> None:
    """In the middle, at nine tenths, and at 99 of a hundred."""
    sizes = dict(kind.sizes)
    assert [round(quantile(kind.sizes, part)) for part in (0.5, 0.9, 0.99)] == [
        sizes[0.5],
        sizes[0.9],
        sizes[0.99],
    ]
    assert sizes[0.5] < quantile(kind.sizes, 0.7) < sizes[0.9]


def test_a_seed_makes_one_burst() -> None:
    """Another seed another; small bursts have several tasks, too."""
    assert burst(500, 7) == burst(500, 7)
    assert burst(500, 7) != burst(500, 8)
    assert [len(burst(size, 1)) for size in (1, 10, 500)] == [1, 10, 500]
    assert len({job.task for job in burst(500, 7)}) > 2
    jobs = burst(500, 7, hours=2)
    assert all(0 <= job.at <= 2 * 3600 + 1 for job in jobs)
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)


def test_nothing_is_over_booked_and_everything_starts() -> None:
    """A checker of its own adds up what runs on each node at each moment."""
    jobs = burst(300, 3, hours=0.2)
    outcome = simulated(MACHINES, jobs)
    assert outcome.started + outcome.left + sum(outcome.impossible.values()) == 300
    assert outcome.waited > 0
    assert outcome.left == 0
    by_name = {job.name: job for job in jobs}
    events: list[tuple[float, int, str, Job]] = []
    for name, node, start in outcome.placements:
        job = by_name[name]
        assert start >= job.at
        events += [(start, 1, node, job), (start + (job.duration or 0), -1, node, job)]
    used: dict[str, list[int]] = {one.name: [0, 0, 0] for one in MACHINES}
    # ends come before starts of the same moment
    for _, sign, node, job in sorted(events, key=lambda one: (one[0], one[1])):
        room = used[node]
        room[0] += sign * job.cpu_milli
        room[1] += sign * job.memory_bytes
        room[2] += sign * job.gpus * job.milli
        assert room[0] <= 32_000
        assert room[1] <= 128 * GIB
        assert room[2] <= 4000


def test_who_finds_no_room_waits_for_an_end() -> None:
    """The wait is the time to it; a small one may pass."""
    jobs = [
        Job("first", 32_000, GIB, at=0, duration=100),
        Job("second", 32_000, GIB, at=10, duration=50),
        Job("third", 1000, GIB, at=20, duration=50),
        Job("never", 64_000, GIB, at=30),
    ]
    outcome = simulated(MACHINES[:1], jobs)
    assert [(name, start) for name, _, start in outcome.placements] == [
        ("first", 0),
        ("second", 100),
        ("third", 150),
    ]
    (words,) = outcome.impossible
    assert "CPU: asked 64 cores" in words
    report = report_of(outcome)
    assert report.waits == {"p50": 90.0, "p90": 130.0, "p99": 130.0, "most": 130.0}
    assert (report.started, report.waited, report.left) == (3, 2, 0)


def test_who_waits_for_what_never_ends_is_left() -> None:
    """Jobs without an end hold their room."""
    jobs = [Job("first", 32_000, GIB), Job("second", 32_000, GIB, at=1)]
    outcome = simulated(MACHINES[:1], jobs)
    assert (outcome.started, outcome.left) == (1, 1)


def test_equal_runs_are_equal() -> None:
    """Placements, times and samples; the timer decides nothing."""
    jobs = burst(200, 9, hours=0.1)
    first = simulated(MACHINES, jobs)
    second = simulate(MACHINES, jobs, timer=lambda: 0.0)
    assert first.placements == second.placements
    assert first.samples == second.samples
    assert report_of(second).decisions_per_second == 0


def test_utilisation_and_fragments_are_those_of_the_cluster() -> None:
    """Half a card on each of two: a job for a whole card can use none of what is left."""
    machine = [Machine("n", 8000, 16 * GIB, 2, "a100")]
    jobs = [Job("a", 2000, GIB, 1, 600, at=0, duration=10), Job("b", 2000, GIB, 1, 600, at=0)]
    outcome = simulated(machine, [*jobs, Job("end", 1, GIB, at=20, duration=1)])
    first = outcome.samples[0]
    assert (first.cpu, first.gpu, first.running) == (0.5, 0.6, 2)
    assert first.fragments == pytest.approx(0.4)
    assert average(outcome.samples, "gpu") == pytest.approx(45.0)
    assert Meter(machine, []).classes == []


def test_ranks() -> None:
    """The least value that so many do not exceed."""
    assert [rank([1, 2, 3, 4], part) for part in (0.5, 0.9, 1.0)] == [2, 4, 4]
    assert rank([], 0.5) == 0


def test_a_run_without_jobs_is_empty() -> None:
    """And has a report."""
    assert report_of(simulated(MACHINES, [])).requests == 0


Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run one `dsec sim run`; return exit code, stdout and stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = run(["sim", "run", *words])
        sys.stdout.flush()
        return code, *capfd.readouterr()

    return call


def test_help_says_what_is_not_simulated(cli: Cli) -> None:
    """Who sizes a cluster with quota or queues has to know."""
    code, out, _ = cli("--help")
    assert code == 0
    told = " ".join(out.replace("│", " ").split())
    assert "Not there yet: quota, queues, backfill and preemption." in told
    page = Path(__file__).parents[2] / "docs/platform-engineers.md"
    assert "quota, queues, backfill and preemption" in " ".join(page.read_text().split())


def test_the_command_tells_people_and_programs_the_same(cli: Cli, tmp_path: Path) -> None:
    """Words by default; JSON with the fields of docs/cli-json.md; a picture on the side."""
    words = ("--burst", "60", "--count", "2", "--seed", "4")
    code, out, _ = cli(*words)
    assert code == 0
    assert "jobs              60 on 2 nodes" in out
    assert "decisions" in out
    picture = tmp_path / "run.png"
    code, out, err = cli(*words, "--output", "json", "--plot", str(picture))
    assert code == 0
    found = json.loads(out)
    assert list(found) == [
        "nodes",
        "requests",
        "started",
        "waited",
        "left",
        "impossible",
        "utilisationPercent",
        "allocationPercent",
        "fragmentsPercent",
        "waitSeconds",
        "decisionsPerSecond",
        "spanSeconds",
    ]
    assert (found["requests"], found["started"] + found["left"]) == (60, 60)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in err


def test_the_command_reads_traces(cli: Cli, tmp_path: Path) -> None:
    """Node and pod lists; what cannot run says why."""
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,8000,16384,2,P100\n")
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
        "a,4000,1024,1,500,P100\nb,4000,1024,1,1000,T4\n"
    )
    code, out, _ = cli("--nodes", str(nodes), "--trace", str(pods), "--output", "json")
    assert code == 0
    found = json.loads(out)
    assert (found["started"], found["allocationPercent"]["gpu"]) == (1, 25.0)
    (impossible,) = found["impossible"]
    assert (impossible["count"], "T4" in impossible["reason"]) == (1, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--trace or --burst"),
        (("--burst", "5", "--trace", "x"), "--trace or --burst"),
        (("--burst", "0"), "--burst"),
        (("--burst", "5", "--profile", "16xb200"), "8xa100"),
        (("--burst", "5", "--plot", "run.txt"), ".png"),
        (("--burst", "5", "--plot", "/no/such/dir/run.png"), "no directory"),
        (("--trace", "/no/such/file"), "No such file"),
        (("--burst", "5", "--hours", "0"), "hours"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    cli: Cli, words: tuple[str, ...], told: str
) -> None:
    """In words, with exit code 2, before it has begun."""
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert told in err


def test_a_broken_trace_is_told_line_by_line(cli: Cli, tmp_path: Path) -> None:
    """File, line, field, value and what is allowed."""
    pods = tmp_path / "pods.csv"
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,-4,1,0,0\nb,1,1,x,0\n")
    code, out, err = cli("--trace", str(pods))
    assert (code, out) == (2, "")
    assert f"{pods}:2: cpu_milli: '-4'; allowed: a whole number from 0 to" in err
    assert f"{pods}:3: num_gpu: 'x'" in err
