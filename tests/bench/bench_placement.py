"""How many decisions a second placement makes, with every filter on: `make bench-placement`.

The pure core on one processor: view, filters, scores by learned stranding tables, bookings in the
view; no ledger, journal or network. All decisions are replayed by a checker afterwards. Each
figure is the median of the rounds by the wall clock; `cpu` is the same by processor time, which
is what counts where others use the machine as well.
"""

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median

from dsec.placement.asked import Asked
from dsec.placement.engine import demand_of, place
from dsec.placement.mix import Mix
from dsec.placement.request import Decision, Node, Request
from dsec.placement.view import ClusterView
from dsec.world.heap import settle
from figures import figure
from placement_load import batches, cluster, unique, violations

ROUNDS = 5
UNIQUE = {1000: 4000, 5000: 16_000}
"""Requests per round, by nodes: the cluster ends about two thirds full."""
BATCHES, BATCH = 300, 100
BURST = 32_000
BURST_CLASS = 500
"""Equal replicas next to each other in the burst."""
LEARNED = 20_000
"""Requests that the mix has seen, as in a control plane that has run for a while."""
WARM_UP = 400
TARGETS = {
    "decisions_per_s_5000_unique": 8000.0,
    "decisions_per_s_5000_batch": 80_000.0,
    "decision_p99_ms": 0.5,
}


@dataclass(slots=True)
class Tally:
    """What was decided in a round, and how long it took."""

    requests: list[Request] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0
    latencies: list[float] = field(default_factory=list)
    cpu_latencies: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Decisions a second, by the wall clock."""
        return len(self.decisions) / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Decisions a second of processor time."""
        return len(self.decisions) / self.cpu


def warm(nodes: Sequence[Node]) -> tuple[Mix, ClusterView]:
    """Return what a leader holds that has run for a while, with nothing running just now.

    Its mix has learned what comes, and its view has derived what depends on nodes alone.
    """
    mix, view = Mix(), ClusterView(nodes)
    for one in unique(LEARNED, 6):
        asked = Asked.of(one)
        if asked.gpus:
            mix.observe(demand_of(one, asked))
    for one in unique(WARM_UP, 7, "w"):
        place(view, [one], mix=mix)
    for id_ in list(view.bookings()):
        view.release(id_)
    return mix, view


def measure(nodes: Sequence[Node], calls: Sequence[list[Request]]) -> Tally:
    """Place each of `calls` with one call, on an empty cluster."""
    (mix, view), tally = warm(nodes), Tally()
    tally.requests = [one for call in calls for one in call]
    decisions, latencies, clock = tally.decisions, tally.latencies, time.perf_counter
    # as the leader does at its start
    settle()
    begin, cpu = clock(), time.process_time()
    for call in calls:
        start, start_cpu = clock(), time.process_time()
        decisions += place(view, call, mix=mix)
        latencies.append(clock() - start)
        tally.cpu_latencies.append(time.process_time() - start_cpu)
    tally.seconds, tally.cpu = clock() - begin, time.process_time() - cpu
    gc.unfreeze()
    tally.wrong = list(violations(nodes, tally.requests, decisions))
    return tally


def rounds(work: Callable[[int], Tally]) -> list[Tally]:
    """Measure some rounds, each with requests of its own."""
    return [work(seed) for seed in range(1, ROUNDS + 1)]


def rate_line(name: str, tallies: Sequence[Tally]) -> str:
    """Return the figure of decisions a second."""
    return figure(
        name,
        [one.rate for one in tallies],
        unit="1/s",
        target=TARGETS.get(name),
        digits=0,
        cpu=f"{median(one.cpu_rate for one in tallies):.0f}",
        placed=sum(1 for one in tallies for decision in one.decisions if decision.node),
        requests=sum(len(one.decisions) for one in tallies),
    )


def latency_line(name: str, tallies: Sequence[Tally], part: float) -> str:
    """Return the figure of one quantile of single decisions, in milliseconds."""
    cpu = median(quantile(one.cpu_latencies, part) for one in tallies)
    return figure(
        name,
        [quantile(one.latencies, part) for one in tallies],
        unit="ms",
        target=TARGETS.get(name),
        at_most=True,
        cpu=f"{cpu:.3f}",
    )


def quantile(seconds: Sequence[float], part: float) -> float:
    """Return a quantile in milliseconds."""
    return sorted(seconds)[int(len(seconds) * part)] * 1000


def main() -> int:
    """Run and print; 1 where a decision was not allowed."""
    few, many = cluster(1000), cluster(5000)
    small = rounds(lambda seed: measure(few, [[one] for one in unique(UNIQUE[1000], seed)]))
    single = rounds(lambda seed: measure(many, [[one] for one in unique(UNIQUE[5000], seed)]))
    batch = rounds(lambda seed: measure(many, batches(BATCHES, BATCH, seed)))
    burst = rounds(
        lambda seed: measure(
            many, [[*chain.from_iterable(batches(BURST // BURST_CLASS, BURST_CLASS, seed, "x"))]]
        )
    )
    every = [*small, *single, *batch, *burst]
    wrong = [line for one in every for line in one.wrong]
    lines = [
        *wrong[:20],
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors",
        rate_line("decisions_per_s_1000_unique", small),
        rate_line("decisions_per_s_5000_unique", single),
        rate_line("decisions_per_s_5000_batch", batch),
        rate_line("decisions_per_s_5000_burst", burst),
        latency_line("decision_p50_ms", single, 0.5),
        latency_line("decision_p99_ms", single, 0.99),
        f"CHECK violations={len(wrong)} requests={sum(len(one.decisions) for one in every)}",
    ]
    print("\n".join(lines))  # noqa: T201  the figures are the result
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
