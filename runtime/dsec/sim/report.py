"""What a simulation was like, in the figures that its reader asks for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dsec.sim.measure import Sample
from dsec.sim.run import Outcome


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one simulation. Parts are of the whole cluster, in percent; times in seconds."""

    nodes: int
    requests: int
    started: int
    waited: int
    left: int
    impossible: dict[str, int]
    utilisation: dict[str, float]
    """Booked on average over `span`, of cpu, memory and gpu."""
    allocation: dict[str, float]
    """Booked at most."""
    fragments: dict[str, float]
    """Free GPU that a typical job cannot use: `average`, and `full` when most was booked."""
    waits: dict[str, float]
    """From arrival to start, of those that started: p50, p90, p99, most."""
    decisions_per_second: float
    span: float
    """Virtual seconds from the first arrival to the last event that was looked at."""

    def wire(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "nodes": self.nodes,
            "requests": self.requests,
            "started": self.started,
            "waited": self.waited,
            "left": self.left,
            "impossible": [
                {"reason": reason, "count": count} for reason, count in self.impossible.items()
            ],
            "utilisationPercent": self.utilisation,
            "allocationPercent": self.allocation,
            "fragmentsPercent": self.fragments,
            "waitSeconds": self.waits,
            "decisionsPerSecond": self.decisions_per_second,
            "spanSeconds": self.span,
        }


def report_of(outcome: Outcome) -> Report:
    """Return the figures of an outcome."""
    samples = outcome.samples
    full = max(samples, key=lambda one: one.gpu, default=None)
    waits = sorted(outcome.waits)
    return Report(
        nodes=outcome.nodes,
        requests=outcome.requests,
        started=outcome.started,
        waited=outcome.waited,
        left=outcome.left,
        impossible=outcome.impossible,
        utilisation={name: average(samples, name) for name in ("cpu", "memory", "gpu")},
        allocation={
            name: percent(max((getattr(one, name) for one in samples), default=0.0))
            for name in ("cpu", "memory", "gpu")
        },
        fragments={
            "average": average(samples, "fragments"),
            "full": percent(full.fragments if full else 0.0),
        },
        waits={
            "p50": rank(waits, 0.5),
            "p90": rank(waits, 0.9),
            "p99": rank(waits, 0.99),
            "most": rank(waits, 1.0),
        },
        decisions_per_second=round(outcome.decisions / outcome.seconds, 1)
        if outcome.seconds
        else 0.0,
        span=samples[-1].at - samples[0].at if samples else 0.0,
    )


def average(samples: Sequence[Sample], name: str) -> float:
    """Return the mean over time, in percent; a value holds until the next sample."""
    pairs = list(pairwise(samples))
    span = sum(after.at - before.at for before, after in pairs)
    if not span:
        return percent(getattr(samples[-1], name)) if samples else 0.0
    total = sum((after.at - before.at) * getattr(before, name) for before, after in pairs)
    return percent(total / span)


def percent(part: float) -> float:
    """Return a part in percent, to a hundredth."""
    return round(100 * part, 2)


def rank(ordered: Sequence[float], part: float) -> float:
    """Return the value at a quantile of sorted values: the least that so many do not exceed."""
    if not ordered:
        return 0.0
    return round(ordered[max(0, math.ceil(len(ordered) * part) - 1)], 3)
