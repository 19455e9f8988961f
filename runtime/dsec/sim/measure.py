"""What is booked, what is free, and how much of that nobody can use, at moments of a simulation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsec.placement.accelerators import Card
from dsec.placement.dimensions import Column
from dsec.placement.view import ClusterView, Ints
from dsec.sim.trace import WHOLE, Job, Machine

TYPICAL = 0.95
"""Fragments are measured against the most frequent classes, up to this part of all GPU jobs."""
MOST_CLASSES = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment; parts of the whole cluster, from 0 to 1."""

    at: float
    cpu: float
    memory: float
    gpu: float
    fragments: float
    """GPU that is free and that a typical GPU job cannot use, averaged over them."""
    running: int
    waiting: int


class Meter:
    """Sums over what runs, and samples of it."""

    def __init__(self, machines: Sequence[Machine], jobs: Sequence[Job]) -> None:
        self.cpu_total = sum(one.cpu_milli for one in machines)
        self.memory_total = sum(one.memory_bytes for one in machines)
        self.gpu_total = WHOLE * sum(one.gpus for one in machines)
        self.cpu = self.memory = self.gpu = self.running = 0
        self.classes = typical(jobs)
        self.models = {one.name: one.model for one in machines}

    def started(self, job: Job, sign: int = 1) -> None:
        """Count a job."""
        self.cpu += sign * job.cpu_milli
        self.memory += sign * job.memory_bytes
        self.gpu += sign * job.gpus * job.milli
        self.running += sign

    def ended(self, job: Job) -> None:
        """Count it no more."""
        self.started(job, -1)

    def sample(self, at: float, view: ClusterView, waiting: int) -> Sample:
        """Return the present moment."""
        view.settle()
        return Sample(
            at,
            self.cpu / max(1, self.cpu_total),
            self.memory / max(1, self.memory_total),
            self.gpu / max(1, self.gpu_total),
            self.fragments(view) / max(1, self.gpu_total),
            self.running,
            waiting,
        )

    def fragments(self, view: ClusterView) -> float:
        """Return the milli of free GPU that typical jobs cannot use, averaged over them."""
        cards: Ints = view.cards[Card.MILLI]
        cpu, memory = view.columns[Column.CPU], view.columns[Column.MEMORY]
        models = np.array([self.models[node.name] for node in view.described])
        free = cards.sum(axis=1)
        total = 0.0
        for job, part in self.classes:
            fits = cards >= job.milli
            served = (
                (fits.sum(axis=1) >= job.gpus)
                & (cpu >= job.cpu_milli)
                & (memory >= job.memory_bytes)
            )
            if job.models:
                served &= np.isin(models, job.models)
            usable = np.where(served, (cards * fits).sum(axis=1), 0)
            total += part * float((free - usable).sum())
        return total


def typical(jobs: Sequence[Job]) -> list[tuple[Job, float]]:
    """Return one job of each frequent GPU class with its part; the parts sum to 1."""
    first: dict[tuple[object, ...], Job] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for job in jobs:
        if job.gpus:
            key = (job.cpu_milli, job.memory_bytes, job.gpus, job.milli, job.models)
            first.setdefault(key, job)
            counts[key] += 1
    chosen: list[tuple[Job, int]] = []
    for kind, count in counts.most_common(MOST_CLASSES):
        if sum(one for _, one in chosen) >= TYPICAL * counts.total():
            break
        chosen.append((first[kind], count))
    total = sum(count for _, count in chosen)
    return [(job, count / total) for job, count in chosen]
