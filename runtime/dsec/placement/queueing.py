"""The order of waiting work. Pure: the order follows from what waits and the policy, not from now.

1. A weight of 0 is last, whatever else is said about the work.
2. Higher priority first (TEN-08).
3. With the order `phase`: evaluation, training, exploration, then work of no phase (TEN-23).
4. Arrival, less a head start by weight (TEN-13, SCHED-16): a factor of two in the weights of queue
   and kind is worth HEAD_START_S of waiting. Equal weights are first come, first served; nobody
   starves, since every wait outgrows every head start.
5. Order of arrival among equals.

Displaced work does not go before the work it was displaced for, however long it has existed: it
arrives when it is displaced. That is later than its preemptor's arrival, but a head start could
still overtake, so it also stands behind by name (`behind`).

A head that cannot start stays the head; those behind it may start where that does not delay it,
which is the business of gangs and their backfill. Work without anything to start is passed over.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log2

from dsec.api.experiment import Stage

HEAD_START_S = 3600.0
"""Worth of a doubled weight: trainings wait for hours, so an hour puts short work before them, and
no training waits more than that hour longer."""
DEFAULT_WEIGHT = 1.0
PHASES = (Stage.EVALUATION.value, Stage.TRAINING.value, Stage.EXPLORATION.value)
KIND_PRESETS: Mapping[str, Mapping[str, float]] = {
    "equal": {},
    "evaluation-first": {Stage.EVALUATION.value: 2.0},
}
"""Presets of TEN-13; `equal` is the default, the other is recommended."""
ORDERS = ("arrival", "phase")


class QueueError(ValueError):
    """A queue policy that makes no sense; the message names field, value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A named queue (SCHED-16).

    `preempts`: whether its waiting work may displace other work. `gives_way`: whether long work
    gets its room back at once, without a wait (evaluation fills gaps, SCHED-18). `long`: whether
    it may trigger compaction under the preset `long-queue-only` (SCHED-17).
    """

    weight: float = DEFAULT_WEIGHT
    preempts: bool = True
    gives_way: bool = False
    long: bool = True


QUEUES: Mapping[str, Queue] = {
    "default": Queue(),
    "debug": Queue(weight=4.0, long=False),
    "training": Queue(),
    "eval": Queue(gives_way=True, long=False),
}
"""The queues that are there without being declared."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Queues and weights of one installation. Raises QueueError."""

    queues: Mapping[str, Queue] = field(default_factory=lambda: QUEUES)
    kinds: Mapping[str, float] = field(default_factory=lambda: KIND_PRESETS["equal"])
    order: str = "arrival"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise QueueError(f"order: {self.order!r}; {' and '.join(ORDERS)} are allowed")
        for kind in self.kinds:
            if kind not in PHASES:
                raise QueueError(f"kinds.{kind}: no such kind; known are {', '.join(PHASES)}")
        weights = {f"queues.{name}.weight": queue.weight for name, queue in self.queues.items()}
        weights |= {f"kinds.{kind}": weight for kind, weight in self.kinds.items()}
        for where, weight in weights.items():
            if not 0 <= weight < inf:
                raise QueueError(f"{where}: {weight}; 0 (last) or more is allowed")

    def queue(self, name: str) -> Queue:
        """Return a queue. Raises QueueError where it was not declared."""
        found = self.queues.get(name)
        if found is None:
            known = ", ".join(sorted(self.queues))
            raise QueueError(f"queue: {name!r}: no such queue; known are {known}")
        return found

    def weight(self, queue: str, kind: str) -> float:
        """Return the weight of work: its queue's times its kind's."""
        return self.queue(queue).weight * self.kinds.get(kind, DEFAULT_WEIGHT)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One piece of waiting work: a sandbox or a whole gang. Times in seconds.

    `kind` is its stage, empty for none. `number` is its place in the order of arrival. `size` is
    how many sandboxes it would start. `behind`: the work that it was displaced for, while that
    waits.
    """

    id: str
    arrived: float
    number: int
    queue: str = "default"
    kind: str = ""
    priority: int = 0
    size: int = 1
    behind: str = ""


Key = tuple[bool, int, int, float, int, str]


def key(work: Waiting, policy: QueuePolicy) -> Key:
    """Return what waiting work is sorted by. Raises QueueError for a queue that is not declared."""
    weight = policy.weight(work.queue, work.kind)
    phase = 0
    if policy.order == "phase":
        phase = PHASES.index(work.kind) if work.kind in PHASES else len(PHASES)
    start = work.arrived - HEAD_START_S * log2(weight) if weight else work.arrived
    return weight == 0, -work.priority, phase, start, work.number, work.id


def ordered(waiting: Iterable[Waiting], policy: QueuePolicy) -> list[Waiting]:
    """Return waiting work in the order in which it is tried; what would start nothing is left out.

    Raises QueueError for a queue that is not declared.
    """
    line = sorted((w for w in waiting if w.size > 0), key=lambda work: key(work, policy))
    return _behind(line) if any(work.behind for work in line) else line


def _behind(line: Sequence[Waiting]) -> list[Waiting]:
    """Move what stands before its own preemptor to right behind it."""
    present = {work.id for work in line}
    followers: dict[str, list[Waiting]] = {}
    found: list[Waiting] = []
    out: set[str] = set()

    def emit(work: Waiting) -> None:
        stack = [work]
        while stack:
            one = stack.pop()
            if one.id not in out:
                out.add(one.id)
                found.append(one)
                stack.extend(reversed(followers.pop(one.id, [])))

    for work in line:
        if work.behind in present and work.behind not in out and work.behind != work.id:
            followers.setdefault(work.behind, []).append(work)
        else:
            emit(work)
    # a ring (each displaced for the other) has no first one: the order of the line decides
    for work in line:
        emit(work)
    return found
