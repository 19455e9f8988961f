"""Windows of metrics: samples with their times, and what may still be believed.

No data is not zero: whatever is missing, not a number or too old is None, and the caller holds what
it has. Times are seconds on one line of the caller's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dsec.api.elastic_status import Means, Reading

SPAN_SECONDS = 300.0
SPANS = 12
"""Twelve spans of five minutes: the last hour (ELAS-11)."""
LARGEST = 1e15
"""Beyond it a value is a fault of its source: sums of it would leave the numbers that JSON has."""


class Signal(StrEnum):
    """Signals with a meaning of their own; every other name is a metric of the task (ELAS-34)."""

    QUEUE_DEPTH = "queue_depth"
    """Items that wait and that nobody works on."""
    USE = "use"
    """Mean use of the replicas in percent: the largest of CPU, memory and GPU."""
    CPU = "cpu"
    """Mean CPU use of the replicas, percent of their limit."""
    MEMORY = "memory"
    GPU = "gpu"
    LATENCY = "latency"
    """Sampling latency in seconds: request sent to result in hand."""
    SAMPLE_THROUGHPUT = "sample_throughput"
    """Samples a second, all replicas together."""
    ACTIVE_AGENTS = "active_agents"
    RETRY_RATE = "retry_rate"
    """Failed replicas that were started again, per replica and minute."""
    IO_WAIT = "io_wait"
    """Percent of the replicas' time spent waiting for input and output."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value at one time."""

    at: float
    value: float


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of one metric, oldest first. Immutable: `put` returns the next one."""

    keep_seconds: float
    stale_seconds: float
    samples: tuple[Sample, ...] = ()

    def put(self, sample: Sample) -> "Window":
        """Add a sample. One that is no number, or no newer than the last, changes nothing."""
        if not abs(sample.value) <= LARGEST or (self.samples and sample.at <= self.samples[-1].at):
            return self
        kept = tuple(one for one in self.samples if sample.at - one.at < self.keep_seconds)
        return Window(self.keep_seconds, self.stale_seconds, (*kept, sample))

    def last(self, now: float) -> float | None:
        """Return the newest value; None where it is too old or there is none."""
        if not self.samples or now - self.samples[-1].at > self.stale_seconds:
            return None
        return self.samples[-1].value

    def mean(self, now: float, seconds: float) -> float | None:
        """Return the mean of the last so many seconds; None where the newest value is too old."""
        if self.last(now) is None:
            return None
        values = [one.value for one in self.samples if now - one.at <= seconds]
        return sum(values) / len(values) if values else None


def fresh(readings: Iterable[Reading], stale_seconds: float) -> dict[str, float]:
    """Return the values that may be believed, by name."""
    return {
        one.name: one.value
        for one in readings
        if one.value is not None and abs(one.value) <= LARGEST and one.age_seconds <= stale_seconds
    }


def use_of(values: Mapping[str, float]) -> float | None:
    """Return the mean use: as read, else the largest of CPU, memory and GPU that is known."""
    if Signal.USE in values:
        return values[Signal.USE]
    parts = [values[one] for one in (Signal.CPU, Signal.MEMORY, Signal.GPU) if one in values]
    return max(parts, default=None)


def noted(means: Means, at: float, value: float) -> Means:
    """Return the sums of the last hour with one more value."""
    if not means.sums or at < means.start:
        return Means(start=at, sums=[value], counts=[1])
    sums, counts, start = list(means.sums), list(means.counts), means.start
    steps = int((at - start) / SPAN_SECONDS)
    if steps:
        # spans without any value are kept as such: the mean is of what was seen
        empty = min(steps, SPANS)
        sums, counts = [*sums, *([0.0] * empty)], [*counts, *([0] * empty)]
        start += steps * SPAN_SECONDS
    sums[-1] += value
    counts[-1] += 1
    return Means(start=start, sums=sums[-SPANS:], counts=counts[-SPANS:])


def mean_of(means: Means, least: int = 1) -> float | None:
    """Return the mean of the last hour; None where fewer than `least` values were seen."""
    count = sum(means.counts)
    return sum(means.sums) / count if count >= max(1, least) else None
