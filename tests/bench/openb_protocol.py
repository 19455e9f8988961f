"""The protocol of the openb study: streams of arrivals, measures, and a checker that replays.

Arrivals only: the pod list is shuffled by seed, then pods are drawn from it again until they ask
for 130 % of the GPUs (a list that asks for more loses pods at random instead). A pod is placed at
once or dropped. The checker knows nothing of the rules: it replays what they answered.

With gangs, a part of the arrivals are several replicas of one pod that start together or not at
all; the checker counts a gang that was placed in part as not allowed.

With compaction, pods that run may move when another was refused; a pod that moves counts as idle
for `MOVE_COSTS` arrivals.

With churn, pods end: each lives for a number of arrivals drawn by the seed, so that 110 % of the
GPUs are asked for at any time, and the allocation is averaged once the cluster has filled up.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from types import MappingProxyType

from dsec.sim.trace import Job, Machine, read_jobs, read_nodes

LISTS = ("default", "multigpu50", "gpushare100", "gpuspec33")
LOAD = 1.3
TYPICAL = 0.95
"""Fragmentation is measured against the most frequent classes, up to this part of all pods."""

GANG_SIZES = (2, 4, 8)
"""Replicas of a gang, each as likely."""
MOVE_COSTS = 10
"""Arrivals during which a pod that moves does nothing."""
CHURN_LOAD = 1.1
CHURN_LIVES = 4
"""Length of a stream with churn, in mean lives; the first two are not measured."""

Placement = tuple[int, tuple[int, ...]]
"""Number of the node, or -1, and of its cards."""


def load(data: Path, name: str) -> tuple[list[Machine], list[Job]]:
    """Return the nodes with GPUs and the pods of a list. Raises TraceError, OSError."""
    nodes, pods = data / "openb_node_list_gpu_node.csv", data / f"openb_pod_list_{name}.csv"
    with nodes.open(newline="", encoding="utf-8") as file:
        machines = read_nodes(file, str(nodes))
    with pods.open(newline="", encoding="utf-8") as file:
        return [one for one in machines if one.gpus], read_jobs(file, str(pods))


def arrivals(jobs: Sequence[Job], capacity: int, seed: int) -> list[Job]:
    """Return a stream that asks for `LOAD` of the capacity, in milli."""
    random_ = random.Random(seed)  # noqa: S311  a benchmark, no secret
    stream = list(jobs)
    random_.shuffle(stream)
    target, total = LOAD * capacity, sum(asked(job) for job in stream)
    while total > target:
        total -= asked(stream.pop(random_.randrange(len(stream))))
    while True:
        extra = random_.choice(jobs)
        if total + extra.milli > target:
            return stream
        total += asked(extra)
        stream.append(extra)


def churn(jobs: Sequence[Job], capacity: int, seed: int) -> tuple[list[Job], list[int]]:
    """Return (stream, lives): pod i ends before arrival i + lives[i]."""
    random_ = random.Random(seed)  # noqa: S311  a benchmark, no secret
    mean = CHURN_LOAD * capacity * len(jobs) / sum(asked(job) for job in jobs)
    stream = [random_.choice(jobs) for _ in range(int(CHURN_LIVES * mean))]
    return stream, [max(1, round(random_.expovariate(1 / mean))) for _ in stream]


def gangs(
    jobs: Sequence[Job], capacity: int, seed: int, part: float
) -> tuple[list[Job], list[int]]:
    """Return (stream, sizes): from arrival i on, sizes[i] pods belong together; 0: to one before.

    Drawn with replacement until they ask for `LOAD` of the capacity.
    """
    random_ = random.Random(seed)  # noqa: S311  a benchmark, no secret
    target, total = LOAD * capacity, 0
    stream: list[Job] = []
    sizes: list[int] = []
    while True:
        job = random_.choice(jobs)
        size = random_.choice(GANG_SIZES) if random_.random() < part else 1
        total += size * asked(job)
        if total > target:
            return stream, sizes
        stream += [job] * size
        sizes += [size] + [0] * (size - 1)


class Ends:
    """Which pods end before an arrival."""

    def __init__(self, lives: Sequence[int] | None) -> None:
        self._lives = lives
        self._ends: list[tuple[int, int]] = []

    def placed(self, index: int) -> None:
        """Take note of a pod that runs."""
        if self._lives is not None:
            heappush(self._ends, (index + self._lives[index], index))

    def before(self, index: int) -> Iterator[int]:
        """Yield the pods that end before this arrival."""
        while self._ends and self._ends[0][0] <= index:
            yield heappop(self._ends)[1]


def asked(job: Job) -> int:
    """Return the milli GPU of a pod."""
    return job.gpus * job.milli


@dataclass(frozen=True, slots=True)
class Shape:
    """One typical class."""

    cpu_milli: int
    gpus: int
    milli: int
    models: tuple[str, ...]
    part: float


def typical(jobs: Sequence[Job]) -> list[Shape]:
    """Return the most frequent classes of a list; their parts sum to 1."""
    counts = Counter((job.cpu_milli, job.gpus, job.milli, job.models) for job in jobs)
    chosen: list[tuple[tuple[int, int, int, tuple[str, ...]], int]] = []
    for one in sorted(counts.items(), key=lambda one: (-one[1], one[0])):
        chosen.append(one)
        if sum(count for _, count in chosen) >= TYPICAL * len(jobs):
            break
    total = sum(count for _, count in chosen)
    return [Shape(*key, part=count / total) for key, count in chosen]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a replay found. Allocation and fragments in percent of all GPUs."""

    at_100: float
    at_130: float
    fragments_80: float
    """When 80 % had been asked for: free GPU that a typical pod cannot use, on average."""
    mean: float
    """Allocated on average over the second half of the arrivals."""
    failed: int
    violations: int
    requests: int
    moves: int = 0


class _Cluster:
    """Free room in plain numbers; `take` says whether a placement was allowed."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = machines
        self.cpu = [one.cpu_milli for one in machines]
        self.memory = [one.memory_bytes for one in machines]
        self.cards = [[1000] * one.gpus for one in machines]

    def take(self, job: Job, placement: Placement) -> bool:
        node, chosen = placement
        machine, cards = self.machines[node], self.cards[node]
        right = (
            len(chosen) == job.gpus == len(set(chosen))
            and all(0 <= card < machine.gpus and cards[card] >= job.milli for card in chosen)
            and (not job.gpus or not job.models or machine.model in job.models)
            and self.cpu[node] >= job.cpu_milli
            and self.memory[node] >= job.memory_bytes
        )
        self.cpu[node] -= job.cpu_milli
        self.memory[node] -= job.memory_bytes
        for card in chosen:
            if card < len(cards):
                cards[card] -= job.milli
        return right

    def give(self, job: Job, placement: Placement) -> None:
        """Take back what a pod had."""
        node, chosen = placement
        self.cpu[node] += job.cpu_milli
        self.memory[node] += job.memory_bytes
        for card in chosen:
            if card < len(self.cards[node]):
                self.cards[node][card] += job.milli

    def fragments(self, shapes: Sequence[Shape]) -> float:
        """Return the milli that typical pods cannot use, averaged over them."""
        total = 0.0
        for machine, cpu, cards in zip(self.machines, self.cpu, self.cards, strict=True):
            free = sum(cards)
            for shape in shapes:
                usable = [card for card in cards if card >= shape.milli]
                served = (
                    shape.gpus
                    and len(usable) >= shape.gpus
                    and cpu >= shape.cpu_milli
                    and (not shape.models or machine.model in shape.models)
                )
                total += shape.part * (free - sum(usable) if served else free)
        return total


def partial(placements: Sequence[Placement], sizes: Sequence[int]) -> int:
    """Return the gangs that were placed in part."""
    whole = 0
    for index, size in enumerate(sizes):
        placed = [node >= 0 for node, _ in placements[index : index + size]]
        whole += any(placed) and not all(placed)
    return whole


def replay(
    machines: Sequence[Machine],
    stream: Sequence[Job],
    placements: Sequence[Placement],
    shapes: Sequence[Shape],
    lives: Sequence[int] | None = None,
    *,
    sizes: Sequence[int] | None = None,
    moves: Mapping[int, Sequence[tuple[int, Placement]]] = MappingProxyType({}),
) -> Measured:
    """Replay answers one by one, count what was not allowed, and measure on the way.

    `moves`: pods that move at an arrival, with where they go.
    """
    cluster, capacity = _Cluster(machines), 1000 * sum(one.gpus for one in machines)
    wanted = allocated = failed = late = 0
    ends = Ends(lives)
    violations = abs(len(stream) - len(placements)) + partial(placements, sizes or ())
    at_100 = fragments = None
    now = list(placements)
    for index, (job, placement) in enumerate(zip(stream, placements, strict=False)):
        for ended in ends.before(index):
            cluster.give(stream[ended], now[ended])
            now[ended] = (-1, ())
            allocated -= asked(stream[ended])
        wanted += asked(job)
        moving = moves.get(index, ())
        for pod, _ in moving:
            violations += now[pod][0] < 0 or pod >= index
            cluster.give(stream[pod], now[pod])
            late -= MOVE_COSTS * asked(stream[pod]) if 2 * index >= len(stream) else 0
        if placement[0] < 0:
            failed += 1
        else:
            violations += not cluster.take(job, placement)
            allocated += asked(job)
            ends.placed(index)
        for pod, where in moving:
            violations += not cluster.take(stream[pod], where)
            now[pod] = where
        late += allocated if 2 * index >= len(stream) else 0
        if fragments is None and wanted >= 0.8 * capacity:
            fragments = 100 * cluster.fragments(shapes) / capacity
        if at_100 is None and wanted >= capacity:
            at_100 = 100 * allocated / capacity
    return Measured(
        at_100=at_100 or 0.0,
        at_130=100 * allocated / capacity,
        fragments_80=fragments or 0.0,
        mean=100 * late / capacity / max(1, len(stream) - -(-len(stream) // 2)),
        failed=failed,
        violations=violations,
        requests=len(stream),
        moves=sum(map(len, moves.values())),
    )
