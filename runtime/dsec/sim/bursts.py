"""Bursts of sandboxes as agent training makes them: few tasks, thousands of sandboxes each.

The shape is that of one published production week (the DSec paper, 2026): tasks arrive by a Poisson
process that follows the day; the sizes of tasks and the lives of sandboxes have long tails; all
sandboxes of a task are asked for within seconds, from few images. What was not published is an
assumption of ours: what a sandbox asks for, and which part of the tasks wants GPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsec.sim.trace import WHOLE, Job

LARGEST_TASK = 32_768
DAY_SECONDS = 86_400.0
DAY_SWING = 0.8
"""Arrivals at the height of the day are (1 + this) / (1 - this) of those at its depth."""
CREATES_PER_SECOND = (1000.0, 5000.0)
CATALOGUE = 11_266
"""Images to choose from; low numbers are asked for more."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Sandboxes of one isolation: how many a task has, and how long they live."""

    isolation: str
    sizes: tuple[tuple[float, float], ...]
    """(quantile, sandboxes of a task); log-linear between them."""
    life_median: float
    """Seconds."""
    life_sigma: float
    """Of the logarithm: from median and 99th percentile."""
    fanout_median: float
    """Sandboxes of a task that run the same image."""
    fanout_sigma: float


CONTAINERS = Kind(
    "container",
    ((0.0, 64), (0.5, 2528), (0.9, 7969), (0.99, 16_388), (1.0, LARGEST_TASK)),
    17.4 * 60,
    1.113,
    3.0,
    1.74,
)
MICROVMS = Kind(
    "microvm",
    ((0.0, 16), (0.5, 352), (0.9, 1835), (0.99, 4044), (1.0, LARGEST_TASK)),
    15.5 * 60,
    1.128,
    1.0,
    0.86,
)


@dataclass(frozen=True, slots=True)
class Ask:
    """What one sandbox asks for, and how often tasks ask so."""

    weight: float
    cpu_milli: int
    memory_gib: int
    gpus: int = 0
    milli: int = 0


ASKS = (
    Ask(0.30, 1000, 2),
    Ask(0.25, 2000, 4),
    Ask(0.15, 4000, 8),
    Ask(0.08, 2000, 8, 1, 100),
    Ask(0.08, 4000, 16, 1, 250),
    Ask(0.06, 6000, 24, 1, 500),
    Ask(0.05, 12_000, 64, 1, WHOLE),
    Ask(0.02, 24_000, 128, 2, WHOLE),
    Ask(0.01, 96_000, 512, 8, WHOLE),
)
"""An assumption. Where nodes have no GPUs, only those without are drawn."""
CONTAINER_PART = 0.75
"""Of all tasks; an assumption."""


def burst(
    count: int, seed: int, *, hours: float = 1.0, gpus: bool = True, scale: float | None = None
) -> list[Job]:
    """Return `count` sandboxes in order of time; equal arguments give equal jobs.

    `scale` multiplies the sizes of tasks; by default a tenth of the sandboxes is a median task,
    and sizes are as published from 25,280 sandboxes on.
    """
    random = np.random.default_rng(seed)
    scale = min(1.0, count / 25_280) if scale is None else scale
    asks = ASKS if gpus else tuple(one for one in ASKS if not one.gpus)
    tasks: list[_Task] = []
    left = count
    while left > 0:
        kind = CONTAINERS if random.random() < CONTAINER_PART else MICROVMS
        ask = asks[_choose(random, [one.weight for one in asks])]
        size = quantile(kind.sizes, float(random.random())) * scale
        # large machines are asked for by the dozen, not by the thousand
        size /= max(1, ask.gpus * ask.milli / 100) if ask.gpus else 1
        tasks.append(_Task(len(tasks), kind, ask, min(left, max(1, round(size)))))
        left -= tasks[-1].size
    begins = day_times(random, len(tasks), hours * 3600)
    jobs: list[Job] = []
    for begin, task in zip(begins, tasks, strict=True):
        jobs += _jobs(random, begin, task)
    return sorted(jobs, key=lambda job: (job.at, job.name))


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    kind: Kind
    ask: Ask
    size: int


def _jobs(random: np.random.Generator, begin: float, task: _Task) -> list[Job]:
    name, kind, ask, size = f"task-{task.number:04d}", task.kind, task.ask, task.size
    rate = float(random.uniform(*CREATES_PER_SECOND))
    lives = kind.life_median * np.exp(kind.life_sigma * random.standard_normal(size))
    images: list[str] = []
    while len(images) < size:
        fanout = kind.fanout_median * math.exp(kind.fanout_sigma * float(random.standard_normal()))
        # the square makes low numbers, the popular ones, more likely
        image = f"image-{int(CATALOGUE * float(random.random()) ** 2):05d}"
        images += [image] * max(1, round(fanout))
    return [
        Job(
            name=f"{name}-{index:05d}",
            cpu_milli=ask.cpu_milli,
            memory_bytes=ask.memory_gib << 30,
            gpus=ask.gpus,
            milli=ask.milli,
            # creates come in calls: what is asked within a tenth of a second is one batch
            at=round(begin + math.floor(index / rate * 10) / 10, 3),
            duration=round(float(lives[index]), 3),
            task=name,
            isolation=kind.isolation,
            image=images[index],
        )
        for index in range(size)
    ]


def quantile(points: Sequence[tuple[float, float]], part: float) -> float:
    """Return the value at a quantile; logarithms are linear between the points."""
    quantiles = [point[0] for point in points]
    logarithms = [math.log(point[1]) for point in points]
    return math.exp(float(np.interp(part, quantiles, logarithms)))


def day_times(random: np.random.Generator, count: int, seconds: float) -> list[float]:
    """Return times of `count` arrivals of a Poisson process that follows the day.

    Given their number, such arrivals are independent draws from its intensity; the span begins at
    noon, and the height of the day is in the afternoon.
    """
    times: list[float] = []
    while len(times) < count:
        at = float(random.random()) * seconds
        height = 1 + DAY_SWING * math.sin(2 * math.pi * (at / DAY_SECONDS + 1 / 8))
        if float(random.random()) * (1 + DAY_SWING) < height:
            times.append(at)
    return sorted(times)


def _choose(random: np.random.Generator, weights: Sequence[float]) -> int:
    bounds = np.cumsum(weights)
    return int(np.searchsorted(bounds, float(random.random()) * bounds[-1], side="right"))
