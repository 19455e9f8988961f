"""dsec beside the real kube-scheduler, in one run on one machine: `make bench-placement`.

- Decisions: ours against the scheduler's own clock (PreFilter, Filter, PreScore, Score), a pod.
- End to end: asked until journalled and acknowledged by an agent, against created until bound;
  `cpu` is the same by the processor time of each side's programs, with all that they do later for
  it (history that is shipped, caches that follow) and without what they need when nobody asks.
- Allocation: both get the same stream until nothing more fits.

Pairs are interleaved, so that whatever else the machine does falls on both. Each figure is the
median over the pairs of the ratio within a pair. A checker replays all our decisions.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import processor
from cluster import ToolsMissingError
from dsec.placement.engine import place
from dsec.placement.mix import Mix
from dsec.placement.request import Decision, Node, Request
from dsec.placement.view import ClusterView
from figures import figure
from kube_peer import KubePeer, kube_peer, node, pod
from peer_work import as_node, as_pods, filled, identical, machines, unique, wrong
from plane_peer import ASKED, CORES, GIB, plane_peer

PAIRS = 5
NODES, PODS = 1000, 300
"""Of one pair of decisions, unique and identical each."""
REPEATS = 20
"""How often ours decides the same on copies of the cluster: 300 decisions are too short to time."""
END_NODES, END_PODS = 50, 2000
SETTLE_SECONDS = 3.0
"""What one side still does after its last answer must not fall on the other, and counts."""
FILL_NODES, FILL_SEEDS = 60, (1, 2, 3)
FILL_PART = 1.3
"""Asked of the cards that there are: more than fit, as in the protocol of the GPU traces."""
QUIET_SECONDS = 10.0
TARGETS = {"unique": 5.0, "batch": 20.0, "end": 10.0}


class Ours:
    """Our placement over the peer's nodes, and all that it decided."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.view = ClusterView(nodes)
        self.mix = Mix()
        self.requests: list[Request] = []
        self.placed: set[str] = set()
        self.wrong: list[str] = []
        self._decisions: list[Decision] = []

    def decide(self, calls: Sequence[Sequence[Request]]) -> None:
        """Place each of `calls` in one call."""
        for call in calls:
            found = place(self.view, call, mix=self.mix)
            self.requests += call
            self._decisions += found
            self.placed |= {one.id for one in found if one.node}

    def time(self, calls: Sequence[Sequence[Request]]) -> float:
        """Place each of `calls` in one call and return the seconds of a request."""
        views = [self.view.fork() for _ in range(REPEATS)]
        for view in views:
            view.settle()
        start = time.perf_counter()
        for view in views:
            for call in calls:
                place(view, call, mix=self.mix, learn=False)
        seconds = time.perf_counter() - start
        self.decide(calls)
        return seconds / REPEATS / sum(map(len, calls))

    def check(self) -> list[str]:
        """Return what was not allowed of all decisions, replayed in their order."""
        return list(wrong(self.nodes, self.requests, self._decisions))


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor time of one side's programs, beyond what they need when nobody asks (a second)."""

    programs: frozenset[int]
    idle: float

    @classmethod
    async def of(cls, programs: Iterable[int]) -> "Spent":
        """Watch programs that have nothing to do now."""
        asked = cls(frozenset(programs), 0.0)
        _, seconds = await asked.on(asyncio.sleep(0, 0.0))
        return replace(asked, idle=seconds / SETTLE_SECONDS)

    async def on(self, work: Awaitable[float]) -> tuple[float, float]:
        """Return what work returns, and its processor time in seconds."""
        before, start = processor.seconds(self.programs), time.perf_counter()
        result = await work
        await asyncio.sleep(SETTLE_SECONDS)
        passed = time.perf_counter() - start
        return result, processor.seconds(self.programs) - before - self.idle * passed


async def theirs(peer: KubePeer, requests: Sequence[Request]) -> float:
    """Have pods scheduled and return the seconds of a pod in the extension points."""
    return await peer.schedule(as_pods(requests)) / len(requests)


async def decisions(peer: KubePeer, pairs: int) -> tuple[list[str], list[Ours]]:
    """Return the figures of decisions, and what we decided."""
    nodes = machines(NODES)
    await peer.add_nodes(map(as_node, nodes))
    runs: list[Ours] = []
    seconds: dict[str, list[tuple[float, float]]] = {"unique": [], "batch": []}
    for pair in range(pairs + 1):
        runs.append(Ours(nodes))
        single, batch = unique(PODS, pair, f"u{pair}"), identical(PODS, pair, f"b{pair}")
        for name, requests, calls in (
            ("unique", single, [[one] for one in single]),
            ("batch", batch, [batch]),
        ):
            spent = await theirs(peer, requests)
            own = runs[-1].time(calls)
            if pair:  # the first one warms both
                seconds[name].append((own, spent))
        await peer.clear()
    return [
        figure(
            f"kube_scheduler_ratio_{name}",
            [peer_s / own for own, peer_s in values],
            unit="ratio",
            target=TARGETS[name],
            ours_us=f"{1e6 * min(own for own, _ in values):.1f}",
            peer_us=f"{1e6 * min(peer_s for _, peer_s in values):.0f}",
            nodes=NODES,
        )
        for name, values in seconds.items()
    ], runs


async def end_to_end(peer: KubePeer, folder: Path, pairs: int) -> tuple[list[str], list[str], int]:
    """Return figures, what was not allowed, and how many sandboxes were asked for."""
    selector = {"simulated": "true"}
    same = [
        node(f"end-{n}", cpus=CORES, memory_gib=GIB, gpus=0, labels=selector)
        for n in range(END_NODES)
    ]
    await peer.add_nodes(same)
    rates: list[tuple[float, float]] = []
    cpu: list[tuple[float, float]] = []
    peer_programs = {one.pid for one in peer.server.processes}
    with plane_peer(peer.server, folder, END_NODES) as plane:
        peer_clock = await Spent.of(peer_programs)
        own_clock = await Spent.of(processor.children() - peer_programs)
        for pair in range(pairs + 1):
            names = [f"e{pair}-{number}" for number in range(END_PODS)]
            pods = [
                pod(
                    name,
                    cpu_milli=ASKED.cpu_milli,
                    memory_bytes=ASKED.memory_bytes,
                    gpus=0,
                    selector=selector,
                )
                for name in names
            ]
            spent, their_cpu = await peer_clock.on(peer.create(pods))
            own, own_cpu = await own_clock.on(plane.create(names))
            if pair:  # the first one opens the connections of both
                rates.append((END_PODS / own, END_PODS / spent))
                cpu.append((own_cpu, their_cpu))
        asked = END_PODS * (pairs + 1)
        mistakes = await plane.wrong(asked)
    line = figure(
        "end_to_end_ratio",
        [own / their for own, their in rates],
        unit="ratio",
        target=TARGETS["end"],
        ours_per_s=f"{max(own for own, _ in rates):.0f}",
        peer_per_s=f"{max(their for _, their in rates):.0f}",
        cpu_ratio=f"{median(their / own for own, their in cpu):.2f}",
        ours_cpu_us=f"{1e6 * min(own for own, _ in cpu) / END_PODS:.0f}",
        peer_cpu_us=f"{1e6 * min(their for _, their in cpu) / END_PODS:.0f}",
        nodes=END_NODES,
    )
    return [line], mistakes, asked


async def allocation(peer: KubePeer) -> tuple[list[str], list[Ours]]:
    """Return the figures of two full clusters, and what we decided."""
    found: dict[str, list[float]] = {}
    runs: list[Ours] = []
    nodes = machines(FILL_NODES)
    await peer.add_nodes(map(as_node, nodes))
    cards = FILL_PART * sum(len(one.devices) for one in nodes)
    for seed in FILL_SEEDS:
        stream, asked = [], 0
        for one in unique(10_000, seed, f"f{seed}"):
            if asked >= cards:
                break
            stream.append(one)
            asked += one.resources.gpu_count
        ours = Ours(nodes)
        ours.decide([[one] for one in stream])
        runs.append(ours)
        bound = await peer.fill(as_pods(stream), QUIET_SECONDS)
        own, their = filled(nodes, stream, ours.placed), filled(nodes, stream, bound)
        for name, value in (
            ("allocation_ours", own.gpu),
            ("allocation_kube", their.gpu),
            ("allocation_ours_cpu", own.cpu),
            ("allocation_kube_cpu", their.cpu),
        ):
            found.setdefault(name, []).append(value)
        await peer.clear()
    more = zip(found["allocation_ours"], found["allocation_kube"], strict=True)
    lines = [figure(name, values, unit="percent", digits=2) for name, values in found.items()]
    margin = [own - their for own, their in more]
    lines.append(figure("allocation_margin_over_kube", margin, unit="points", target=0.0, digits=2))
    return lines, runs


async def run(parts: Sequence[str], pairs: int, folder: Path) -> int:
    """Run the parts, each with a peer of its own, and print; 1 where something was not allowed."""
    mistakes: list[str] = []
    requests = 0
    for part in parts:
        lines: list[str]
        (folder / part).mkdir()
        async with kube_peer(folder / part) as peer:
            runs: list[Ours] = []
            if part == "decisions":
                lines, runs = await decisions(peer, pairs)
            elif part == "allocation":
                lines, runs = await allocation(peer)
            else:
                own = folder / "plane"
                own.mkdir()
                lines, bad, asked = await end_to_end(peer, own, pairs)
                mistakes += bad
                requests += asked
        for one in runs:
            mistakes += one.check()
            requests += len(one.requests)
        load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
        print("\n".join([load, *lines]), flush=True)  # noqa: T201  the figures are the result
    told = [*mistakes[:20], f"CHECK violations={len(mistakes)} requests={requests}"]
    print("\n".join(told))  # noqa: T201  same
    return 1 if mistakes else 0


def main() -> int:
    """Run; 2 where a program of the peer is not on this machine."""
    every = ("decisions", "end-to-end", "allocation")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=every, default=list(every))
    parser.add_argument("--pairs", type=int, default=PAIRS, help="interleaved runs of each side")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="dsec-bench-") as folder:
            return asyncio.run(run(given.parts, max(1, given.pairs), Path(folder)))
    except (FileNotFoundError, ToolsMissingError) as error:
        print(error, file=sys.stderr)  # noqa: T201  a program's message
        return 2


if __name__ == "__main__":
    sys.exit(main())
