"""Plans of preemption as plain data: who asks, who leaves, in which steps, and who comes."""

from dataclasses import dataclass, field
from enum import StrEnum

from dsec.placement.entries import Entry
from dsec.placement.queueing import QueuePolicy
from dsec.placement.request import Decision, Request


class Step(StrEnum):
    """What controllers do to a victim, in order."""

    SYNC = "sync"
    """Save its state: it resumes where it was (TEN-11)."""
    PAUSE = "pause"
    """Freeze it; it keeps memory and devices."""
    STOP = "stop"
    """End it; it starts again from what was synced."""


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """When work may be displaced. Times in seconds.

    `pools`: where priority may displace (TEN-15); None: everywhere. `dies_within_s`: how long a
    victim may take before its place is given up.
    """

    preempt_after_s: float = 60.0
    reclaim_after_s: float = 0.0
    dies_within_s: float = 120.0
    pools: frozenset[str] | None = None
    queues: QueuePolicy = field(default_factory=QueuePolicy)


@dataclass(frozen=True, slots=True)
class Asking:
    """Waiting work: a sandbox or a whole gang, as placement and as the ledger see it, by id."""

    requests: tuple[Request, ...]
    entries: tuple[Entry, ...]
    waiting_since: float

    @property
    def id(self) -> str:
        """Name of the whole: its first sandbox."""
        return self.requests[0].id


@dataclass(frozen=True, slots=True)
class Displacement:
    """One victim and what is done to it, in order."""

    id: str
    node: str
    steps: tuple[Step, ...]

    @property
    def stops(self) -> bool:
        """Whether it ends, rather than rests."""
        return Step.STOP in self.steps


@dataclass(frozen=True, slots=True)
class Plan:
    """Who leaves for whom, and where the asker will be.

    `after`: victims of earlier plans whose leaving it counts on.
    """

    asking: Asking
    displacements: tuple[Displacement, ...]
    decisions: tuple[Decision, ...]
    after: tuple[str, ...] = ()
