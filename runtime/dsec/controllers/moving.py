"""One move of a sandbox while it is under way: its steps, their times, and what is said of it."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from dsec.api.sandbox import SandboxState, SandboxStatus
from dsec.api.snapshot import SnapshotRef
from dsec.placement.compaction import Move

DEADLINE_SECONDS = 900.0
"""How long the target may take from the create until the sandbox runs there."""
REMEMBERED_SECONDS = 900.0
"""What failed is told of for so long, and is not tried again by itself before."""


class Step(StrEnum):
    """Where a move is (SNAP-12)."""

    WAITS = "waits"
    """As many as may be moved at once are."""
    SAVE = "freeze and upload"
    REBUILD = "rebuild and restore"
    FENCE = "fence"


@dataclass(slots=True)
class Moving:
    """One move. Times are UTC; `ref` is its snapshot, unknown to a leader that took it over."""

    move: Move
    why: str
    began: datetime
    step: Step = Step.WAITS
    frozen_at: datetime | None = None
    saved_at: datetime | None = None
    arrived_at: datetime | None = None
    ref: SnapshotRef | None = None
    refused: str = ""
    """Why the target's agent does not take it."""

    @property
    def words(self) -> str:
        """What is said of it to its owner."""
        if self.step is Step.WAITS:
            return f"it moves to node {self.move.target} soon ({self.why})"
        return f"it moves to node {self.move.target} ({self.why}): {self.step.value}"


@dataclass(frozen=True, slots=True)
class Failed:
    """A move that left its sandbox where it was. `at` is monotonic seconds."""

    at: float
    target: str
    why: str

    @property
    def words(self) -> str:
        """What is said of it to its owner."""
        return f"it could not be moved to node {self.target}, and stays: {self.why}"


def steps_of(moving: Moving, there: SandboxStatus | None) -> dict[str, object]:
    """Return the record of a move: seconds of its steps, bytes and rate (SNAP-12, SNAP-13).

    `there` is what the target says. What another leader did is left out.
    """
    found: dict[str, object] = {}
    ref, since, arrived = moving.ref, moving.saved_at, moving.arrived_at
    if moving.frozen_at is not None and since is not None:
        found["saveSeconds"] = _seconds(moving.frozen_at, since)
    if ref is not None:
        found |= {
            "snapshot": f"{ref.lineage}@{ref.seq}",
            "bytes": ref.bytes,
            "storedBytes": ref.stored_bytes,
            "uploadSeconds": round(ref.seconds, 3),
        }
    if since is not None and arrived is not None:
        times = there.times if there is not None else {}
        # of the node's own clock, which is off by less than 0.5 s, or it would have no work
        started = times.get(SandboxState.STARTING.value)
        made = times.get(SandboxState.CREATING.value)
        if started is not None and made is not None:
            found["rebuildSeconds"] = _seconds(since, made)
            found["restoreSeconds"] = _seconds(made, started)
        found["awaySeconds"] = _seconds(moving.frozen_at or since, arrived)
    if ref is not None and moving.frozen_at is not None and arrived is not None:
        took = (arrived - moving.frozen_at).total_seconds()
        found["bytesPerSecond"] = round(ref.bytes / took) if took > 0 else 0
    return found


def _seconds(start: datetime, end: datetime) -> float:
    return round(max(0.0, (end - start).total_seconds()), 3)


@dataclass(slots=True)
class Limits:
    """How many moves are carried out at once: in all, and from or to one node."""

    at_once: int = 32
    per_node: int = 16
    running: dict[str, Moving] = field(default_factory=dict)

    def room(self, move: Move) -> bool:
        """Return whether one more may begin."""
        others = [one.move for one in self.running.values()]
        leaving = sum(one.source == move.source for one in others)
        coming = sum(one.target == move.target for one in others)
        return len(others) < self.at_once and max(leaving, coming) < self.per_node
