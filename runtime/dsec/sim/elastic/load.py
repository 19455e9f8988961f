"""What arrives: days of a cluster trace folded onto a few, and bursts of rollouts beside it.

Folding keeps the hour of the day of each pod and shuffles which day it comes on; durations stay as
they are, because a compressed time would make boot delays and least bills meaningless.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsec.api.experiment import TaskClass
from dsec.placement.request import Request
from dsec.sim.bursts import CONTAINERS, DAY_SECONDS, day_times, quantile
from dsec.sim.cluster import request_of
from dsec.sim.trace import Job

LONGEST_S = 12 * 3600.0
JITTER_S = 300.0
ROLLOUT_TASKS_A_DAY = 100
ROLLOUT_SIZE = 0.1
"""Of the published sizes of tasks, at scale 4."""
ROLLOUT_CORES, ROLLOUT_GIB = 4, 4
ROLLOUT_LEAST_S = 5.0
STUDY_SCALE = 4.0


@dataclass(frozen=True, slots=True)
class Work:
    """One sandbox that arrives. Seconds."""

    id: str
    at: float
    seconds: float
    request: Request
    kind: str
    """gpu, cpu or rollout: waits are told for each."""

    @property
    def interruptible(self) -> bool:
        """Whether its task consents to being paused at any time, and so to spot nodes."""
        return self.request.task_class is not TaskClass.GUARANTEED

    @property
    def cores(self) -> float:
        """CPU, in cores."""
        return self.request.resources.cpu_milli / 1000

    @property
    def gpus(self) -> float:
        """GPUs, parts of one included."""
        resources = self.request.resources
        return resources.gpu_count * (resources.gpu_milli or 1000) / 1000


def folded(
    jobs: Sequence[Job], seed: int, *, days: int, scale: float, busy_from: float, least: int = 1
) -> list[Work]:
    """Return a trace's pods of its busy time on `days` days, `scale` times as many.

    Pods that never end, or asked for no time, are left out; `least` seconds is the shortest life.
    What a trace calls best effort may be interrupted; nothing else of it may.
    """
    random = np.random.default_rng([seed, 1])
    target: dict[int, int] = {}
    found: list[Work] = []
    for job in jobs:
        if job.at < busy_from or not job.duration:
            continue
        day = int(job.at // DAY_SECONDS)
        if day not in target:
            target[day] = int(random.integers(days))
        copies = int(scale) + (random.random() < scale % 1)
        for copy in range(copies):
            jitter = float(random.uniform(-JITTER_S, JITTER_S)) if copy else 0.0
            at = target[day] * DAY_SECONDS + job.at % DAY_SECONDS + jitter
            name = f"{job.name}-{copy}"
            request = request_of(job, name)
            found.append(
                Work(
                    name,
                    min(max(at, 0.0), days * DAY_SECONDS - 1),
                    min(max(job.duration, least), LONGEST_S),
                    _preemptible(request) if job.best_effort else request,
                    "gpu" if job.gpus else "cpu",
                )
            )
    return found


def rollouts(seed: int, *, days: int, scale: float) -> list[Work]:
    """Return bursts of preemptible sandboxes: many at once, lives with a long tail."""
    random = np.random.default_rng([seed, 2])
    begins = day_times(random, ROLLOUT_TASKS_A_DAY * days, days * DAY_SECONDS)
    found: list[Work] = []
    for number, begin in enumerate(begins):
        size = quantile(CONTAINERS.sizes, float(random.random())) * ROLLOUT_SIZE
        count = max(1, round(size * scale / STUDY_SCALE))
        draws = random.standard_normal(count)
        lives = CONTAINERS.life_median * np.exp(CONTAINERS.life_sigma * draws)
        for index in range(count):
            name = f"task-{number:04d}-{index:04d}"
            job = Job(name, ROLLOUT_CORES * 1000, ROLLOUT_GIB << 30)
            request = request_of(job, name)
            found.append(
                Work(
                    name,
                    begin + index / 1000,
                    max(ROLLOUT_LEAST_S, float(lives[index])),
                    _preemptible(request),
                    "rollout",
                )
            )
    return found


def _preemptible(request: Request) -> Request:
    return replace(request, task_class=TaskClass.PREEMPTIBLE)


def in_order(*parts: Sequence[Work]) -> list[Work]:
    """Return several loads as one, by time."""
    return sorted((one for part in parts for one in part), key=lambda one: (one.at, one.id))
