"""The simulation: jobs arrive, are placed by the real engine, wait, run and end, in virtual time.

Whoever finds no room waits. When something ends, all who wait are tried again in the order in
which they came; a smaller one may pass a larger one. What no empty cluster could take is refused
at once, with the words of placement. There is no real clock here: the caller gives one, to time
decisions.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from itertools import islice

from dsec.placement.engine import place
from dsec.placement.mix import Mix
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision, Request
from dsec.placement.view import ClusterView
from dsec.placement.words import sentence
from dsec.sim.cluster import node_of, request_of
from dsec.sim.measure import Meter, Sample
from dsec.sim.trace import Job, Machine

BATCH = 4096
"""Most requests of one call, as the controller does it."""
FEW = 16
"""Tried first after an end: often there is room for no more."""
ROUND_SECONDS = 1.0
"""An end is noticed at the next multiple of this, and those who wait are tried again then."""
SAMPLES = 400
"""Kept at least, and twice as many at most: then every second one goes."""


@dataclass(slots=True)
class Outcome:
    """What a simulation was like. Times in virtual seconds, but `seconds`."""

    requests: int
    nodes: int
    started: int = 0
    waited: int = 0
    """Started, but not at once."""
    left: int = 0
    """Still waiting at the end: nothing ends any more that would give them room."""
    impossible: dict[str, int] = field(default_factory=dict)
    """Reason in words to how many it held for: those that no empty cluster could take."""
    waits: list[float] = field(default_factory=list)
    decisions: int = 0
    seconds: float = 0.0
    """Real time of all calls of `place`."""
    samples: list[Sample] = field(default_factory=list)
    placements: list[tuple[str, str, float]] = field(default_factory=list)
    """(job, node, time of start)."""


def simulate(
    machines: Sequence[Machine],
    jobs: Sequence[Job],
    *,
    timer: Callable[[], float],
    progress: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Run to the last start; `timer` is a real clock in seconds, `progress` is told of arrivals."""
    return _Simulation(machines, jobs, timer).run(progress)


_Class = tuple[object, ...]


def _class_of(job: Job) -> _Class:
    """Return all that decides whether there is room; the image only decides where."""
    return job.cpu_milli, job.memory_bytes, job.gpus, job.milli, job.models, job.isolation


class _Simulation:
    def __init__(
        self, machines: Sequence[Machine], jobs: Sequence[Job], timer: Callable[[], float]
    ) -> None:
        nodes = [node_of(machine) for machine in machines]
        self.view, self.mix, self.timer = ClusterView(nodes), Mix(), timer
        self.empty = ClusterView(nodes)
        self.jobs = sorted(jobs, key=lambda job: job.at)
        self.outcome = Outcome(len(jobs), len(machines))
        self.meter = Meter(machines, jobs)
        self.kinds = [_class_of(job) for job in self.jobs]
        self.waiting: dict[_Class, deque[int]] = {}
        """By class, each in the order of arrival."""
        self.ends: list[tuple[float, int]] = []
        self.requests: dict[int, Request] = {}
        self.full: set[_Class] = set()
        self.verdicts: dict[_Class, tuple[Refusal, ...]] = {}
        span = self.jobs[-1].at - self.jobs[0].at if self.jobs else 0.0
        self.step = span / SAMPLES
        self.now = self.next_sample = self.jobs[0].at if self.jobs else 0.0

    def run(self, progress: Callable[[int], None]) -> Outcome:
        """Go from event to event."""
        position = 0
        while position < len(self.jobs) or (self.waiting and self.ends):
            arrival = self.jobs[position].at if position < len(self.jobs) else float("inf")
            if self.ends and self.ends[0][0] <= arrival:
                now = self.ends[0][0]
                self._end(now)
                self._start_waiting(now)
            else:
                now, first = arrival, position
                while position < len(self.jobs) and self.jobs[position].at == now:
                    position += 1
                self._arrive(range(first, position), now)
                progress(position)
            self._sample(now)
            self.now = now
        self._sample(self.now, last=True)
        self.outcome.left = self._waiting()
        return self.outcome

    def _end(self, now: float) -> None:
        """Release all that end now."""
        while self.ends and self.ends[0][0] <= now:
            index = heappop(self.ends)[1]
            self.view.release(self.requests.pop(index).id)
            self.meter.ended(self.jobs[index])
            if self.jobs[index].gpus:
                self.mix.ended()
        self.full.clear()

    def _arrive(self, indexes: range, now: float) -> None:
        fresh: list[int] = []
        for index in indexes:
            job = self.jobs[index]
            request = request_of(job, f"{index}-{job.name}")
            wrong = self._impossible(job, request)
            if wrong:
                words = "; ".join(sentence(one) for one in wrong)
                self.outcome.impossible[words] = self.outcome.impossible.get(words, 0) + 1
                continue
            self.requests[index] = request
            fresh.append(index)
        self._start_new(fresh, now)

    def _impossible(self, job: Job, request: Request) -> tuple[Refusal, ...]:
        """Return why no empty cluster of these nodes could take it; empty: it could."""
        kind = _class_of(job)
        if kind not in self.verdicts:
            (decision,) = place(self.empty, [request])
            self.empty.release(request.id)
            self.verdicts[kind] = decision.refusals
        return self.verdicts[kind]

    def _start_new(self, indexes: Sequence[int], now: float) -> None:
        """Place those who have just come; who finds no room waits behind the others."""
        for first in range(0, len(indexes), BATCH):
            batch = indexes[first : first + BATCH]
            # room only shrinks until something ends: a class that was refused is not asked again
            asked = [one for one in batch if self.kinds[one] not in self.full]
            placed = self._place(asked, now, learn=True)
            for index in batch:
                if index not in placed:
                    self.waiting.setdefault(self.kinds[index], deque()).append(index)

    def _start_waiting(self, now: float) -> None:
        """Try those who wait, in the order in which they came, until each class is refused."""
        size = FEW
        while True:
            queues = [queue for kind, queue in self.waiting.items() if kind not in self.full]
            asked = list(islice(merge(*queues), size))
            if not asked:
                break
            for index in sorted(self._place(asked, now, learn=False)):
                # of one class the first are placed, or none
                self.waiting[self.kinds[index]].popleft()
            size = min(BATCH, 2 * size)
        self.waiting = {kind: queue for kind, queue in self.waiting.items() if queue}

    def _place(self, asked: Sequence[int], now: float, *, learn: bool) -> set[int]:
        """Place these in order; return those that have started."""
        begin = self.timer()
        found = place(self.view, [self.requests[one] for one in asked], mix=self.mix, learn=learn)
        self.outcome.seconds += self.timer() - begin
        self.outcome.decisions += len(asked)
        placed: set[int] = set()
        for index, decision in zip(asked, found, strict=True):
            if decision.node:
                placed.add(index)
                self._started(index, decision, now)
            else:
                self.full.add(self.kinds[index])
        return placed

    def _started(self, index: int, decision: Decision, now: float) -> None:
        job, outcome = self.jobs[index], self.outcome
        wait = now - job.at
        outcome.started += 1
        outcome.waited += wait > 0
        outcome.waits.append(wait)
        outcome.placements.append((job.name, decision.node, now))
        self.meter.started(job)
        if job.duration is not None:
            end = math.ceil((now + job.duration) / ROUND_SECONDS) * ROUND_SECONDS
            heappush(self.ends, (end, index))

    def _waiting(self) -> int:
        return sum(len(queue) for queue in self.waiting.values())

    def _sample(self, now: float, *, last: bool = False) -> None:
        if now >= self.next_sample or last:
            samples = self.outcome.samples
            samples.append(self.meter.sample(now, self.view, self._waiting()))
            if len(samples) > 2 * SAMPLES:
                del samples[1:-1:2]
                self.step = (samples[-1].at - samples[0].at) / SAMPLES
            self.next_sample = now + self.step
