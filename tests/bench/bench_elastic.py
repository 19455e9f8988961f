"""What elastic fleets cost and how long work waits: `make bench-elastic DATA=folder`.

Days of the openb trace and bursts of rollouts on owned machines and a simulated cloud: dsec's real
planner beside imitated rules of Karpenter and cluster-autoscaler, and beside the smallest static
fleet whose waits are no longer. All complete the same work; what peers throw away is told.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import elastic_runs as runs
import numpy as np
from dsec.sim.elastic.fleet import Tally
from dsec.sim.elastic.plot import draw
from dsec.sim.trace import TraceError
from elastic_runs import Case, p99
from figures import figure
from rich.console import Console
from rich.progress import Progress

BILL_VS_STATIC, BILL_VS_PEER, MEAN_WAIT = 0.50, 0.85, 1.5
SAME = 1.02
"""Streams of luck differ by about this much: a p99 within it is no worse."""


@dataclass(frozen=True, slots=True)
class Static:
    """The smallest static fleet: nodes of 8 cards, of 4 cards, of 128 cores, and its runs."""

    counts: tuple[int, int, int]
    gpu: Tally
    cpu: Tally

    @property
    def both(self) -> Tally:
        """Waits and delivered work of both sides; the bill is told by who pays how."""
        return Tally(
            waits=self.gpu.waits | self.cpu.waits,
            delivered_core_h=self.gpu.delivered_core_h + self.cpu.delivered_core_h,
        )


@dataclass(frozen=True, slots=True)
class Seed:
    """What one seed came to."""

    seed: int
    tallies: dict[str, Tally]
    static: "Static"

    @property
    def best_peer(self) -> str:
        """The cheapest peer whose p99 is no worse than ours."""
        limit = p99(self.tallies["dsec"]) * SAME
        fit = [name for name in self.peers if p99(self.tallies[name]) <= limit]
        # where all are worse, the cheapest of all is what we are held against
        return min(fit or self.peers, key=lambda name: self.tallies[name].total)

    @property
    def peers(self) -> list[str]:
        """The peers that were run."""
        return [name for name in runs.PEERS if name in self.tallies]


def search(case: Case, limits: dict[str, float]) -> Static:
    """Return the smallest static fleet whose p99 is within ours, GPU and CPU side by themselves.

    Nodes of 8 cards are as many as what needs them holds at its peak: so little work is blind to
    a p99 of all, and would wait for hours.
    """
    n8, most4, most_cpu = runs.static_start(runs.load_of(case.data, case.seed, case.scale))

    def least(policy: str, most: int, where: int, kinds: Sequence[str]) -> tuple[int, Tally]:
        def tried(middle: int) -> Tally:
            counts = [n8 if policy == "static gpu" else 0, 0, 0]
            counts[where] = middle
            trial = replace(case, policy=policy, static=(counts[0], counts[1], counts[2]))
            return runs.run(trial)[1]

        low, high, best = 0, most, None
        while high - low > max(1, high // 50):
            middle = (low + high) // 2
            tally = tried(middle)
            good = all(p99(tally, [kind]) <= limits[kind] * SAME for kind in kinds)
            # work that never started waits for ever, and is in no list
            if good and tally.unfinished <= len(kinds) * 200:
                high, best = middle, tally
            else:
                low = middle
        return high, best or tried(high)

    n4, gpu = least("static gpu", most4, 1, ["gpu"])
    cores, cpu = least("static cpu", most_cpu, 2, ["cpu", "rollout"])
    return Static((n8, n4, cores), gpu, cpu)


def measure(
    data: Path, seeds: Sequence[int], policies: Sequence[str], scale: float, jobs: int
) -> list[Seed]:
    """Run everything in that many processes and show how far it is, on stderr."""
    cases = [Case(data, policy, seed, scale) for seed in seeds for policy in policies]
    found: dict[int, dict[str, Tally]] = {seed: {} for seed in seeds}
    console = Console(stderr=True)
    with ProcessPoolExecutor(jobs) as pool, Progress(console=console, transient=True) as bar:
        task = bar.add_task("runs", total=len(cases) + len(seeds))

        def told(text: str) -> None:
            bar.advance(task)
            if not console.is_terminal:
                console.print(text)

        for done in as_completed([pool.submit(runs.run, case) for case in cases]):
            case, tally = done.result()
            found[case.seed][case.policy] = tally
            told(f"seed {case.seed} {case.policy}: {tally.total:.0f}, p99 {p99(tally):.0f} s")
        waiting = {}
        for seed in seeds:
            ours = found[seed]["dsec"]
            limits = {kind: p99(ours, [kind]) for kind in runs.KINDS}
            waiting[pool.submit(search, Case(data, "static", seed, scale), limits)] = seed
        static = {}
        for ended in as_completed(waiting):
            static[waiting[ended]] = ended.result()
            counts = ended.result().counts
            told(f"seed {waiting[ended]} static: {counts} nodes of 8, 4 cards, 128 cores")
    return [
        Seed(seed, {name: found[seed][name] for name in policies}, static[seed]) for seed in seeds
    ]


def table(seeds: Sequence[Seed]) -> Iterator[str]:
    """Return lines for people: means over the seeds."""
    yield (
        f"{'policy':<42}{'bill':>8}{'moves':>7}{'p99':>6}{'gpu':>6}{'cpu':>6}{'roll':>6}"
        f"{'max':>7}{'mean':>7}{'launch':>8}{'evicted':>9}{'moved':>7}{'lost core-h':>12}"
        f"{'delivered':>10}"
    )
    for policy in seeds[0].tallies:
        some = [one.tallies[policy] for one in seeds]
        yield _row(policy, some, [float(one.total) for one in some])
    for way in ("on-demand", "reserved", "owned"):
        bills = [float(runs.static_price(one.static.counts)[way]) for one in seeds]
        yield _row(f"static, at the price {way}", [one.static.both for one in seeds], bills)


def _row(name: str, some: Sequence[Tally], bills: Sequence[float]) -> str:
    def average(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    most = max(wait for one in some for waits in one.waits.values() for wait in waits)
    moved = average(float(one.bill.get("moves", 0)) for one in some)
    return (
        f"{name:<42}{average(bills):>8.0f}{moved:>7.0f}{average(map(p99, some)):>6.0f}"
        + "".join(f"{average(p99(one, [kind]) for one in some):>6.0f}" for kind in runs.KINDS)
        + f"{most:>7.0f}{average(map(runs.mean, some)):>7.1f}"
        f"{average(one.launches for one in some):>8.0f}"
        f"{average(one.evictions for one in some):>9.0f}"
        f"{average(one.moves for one in some):>7.0f}"
        f"{average(one.lost_core_h for one in some):>12.0f}"
        f"{average(one.delivered_core_h for one in some):>10.0f}"
    )


def figures(seeds: Sequence[Seed]) -> Iterator[str]:
    """Return the lines of the figures."""
    ours = [one.tallies["dsec"] for one in seeds]
    best = [one.tallies[one.best_peer] for one in seeds]
    static = [float(runs.static_price(one.static.counts)["reserved"]) for one in seeds]
    bills = [float(one.total) for one in ours]
    yield figure(
        "bill_vs_static",
        [bill / other for bill, other in zip(bills, static, strict=True)],
        unit="ratio",
        target=BILL_VS_STATIC,
        at_most=True,
        static="reserved",
    )
    yield figure(
        "bill_vs_best_peer",
        [bill / float(other.total) for bill, other in zip(bills, best, strict=True)],
        unit="ratio",
        target=BILL_VS_PEER,
        at_most=True,
        peers="own-imitation",
    )
    yield figure(
        "p99_wait_ratio",
        [p99(one) / max(1.0, p99(other)) for one, other in zip(ours, best, strict=True)],
        unit="ratio",
        target=SAME,
        at_most=True,
    )
    yield figure(
        "mean_wait_ratio",
        [
            runs.mean(one) / max(1.0, runs.mean(other))
            for one, other in zip(ours, best, strict=True)
        ],
        unit="ratio",
        target=MEAN_WAIT,
        at_most=True,
    )
    cheapest = [min(float(one.tallies[name].total) for name in one.peers) for one in seeds]
    yield figure(
        "bill_vs_cheapest_peer",
        [bill / other for bill, other in zip(bills, cheapest, strict=True)],
        unit="ratio",
        p99="any",
    )


def checked(seeds: Sequence[Seed]) -> tuple[int, int]:
    """Return (violations, runs): who delivers less work than the others by more than a percent."""
    wrong = count = 0
    for one in seeds:
        delivered = [
            tally.delivered_core_h for name, tally in one.tallies.items() if name not in runs.SIZED
        ]
        delivered.append(one.static.both.delivered_core_h)
        count += len(delivered)
        wrong += sum(value < 0.99 * median(delivered) for value in delivered)
    return wrong, count


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def main() -> int:
    """Run the benchmark; exit 0 also where a target is missed, 2 where the data cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the openb lists")
    parser.add_argument("--seeds", default="1-5", help="first-last (default 1-5)")
    parser.add_argument("--scale", type=float, default=1.0, help="1: a fourth of the study's load")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--quick", action="store_true", help="only dsec and the peers that may use spot"
    )
    parser.add_argument("--plot", type=Path, default=None, help="picture to write")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    try:
        load = runs.load_of(asked.data, seeds[0], asked.scale)
    except (OSError, TraceError) as error:
        sys.stderr.write(f"bench-elastic: {error}\n")
        return 2
    say(f"mix of seed {seeds[0]} at scale {asked.scale:g}: {runs.mix_of(load)}")
    policies = [*runs.OURS, *runs.PEERS, *runs.SIZED]
    if asked.quick:
        policies = ["dsec", *(name for name in runs.PEERS if "+ spot" in name)]
    found = measure(asked.data, list(seeds), policies, asked.scale, asked.jobs)
    say("peers: own imitation; bills in USD for 48 h, waits in s, means over the seeds")
    for line in table(found):
        say(line)
    say(f"cheapest peer with p99 no worse: {', '.join(one.best_peer for one in found)}")
    for line in figures(found):
        say(line)
    violations, count = checked(found)
    say(f"CHECK violations={violations} requests={count}")
    if asked.plot is not None:
        first_seed = found[0]
        names = ("dsec", first_seed.best_peer)
        draw({name: first_seed.tallies[name].curve for name in names}, asked.plot)
        say(f"picture: {asked.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
