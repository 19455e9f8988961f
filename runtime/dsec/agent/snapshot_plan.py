"""When the next snapshot of a sandbox is due, and when it had better wait: decisions alone.

Nothing here looks at a clock, a file or a store; `snapshots.py` does what is decided.
"""

from dataclasses import dataclass

from dsec.api.reasons import EndReason
from dsec.api.sandbox import End
from dsec.api.snapshot import STORED, SnapshotKind, SnapshotPlan

USUAL_SECONDS = 900.0
"""Period of an adaptive plan that names none: the preset `state-15m` (CONF-09)."""
CHANGED_SHARE = 0.05
"""An adaptive period is over when so much of the state has changed (SNAP-06): what is lost at a
failure is then much the same whatever the program does."""
SPREAD = 4.0
"""An adaptive period stays within a quarter and four times of the plan's."""
MISSED_MOST = 2
"""Snapshots that waited for a mark in vain before a program counts as one that makes none."""
MARK_LEAST, MARK_MOST = 5.0, 300.0
"""Seconds that a mark is waited for, at least and at most; between them half the period."""
DEFER_SHARE = 0.1
"""A snapshot in a bad moment is put off by this part of its period."""
DEFER_MOST = 3
"""In a row; then it is taken anyway: a node that is always busy must not lose its work."""
IO_MOST, CPU_MOST = 0.5, 0.9
"""Shares of the last seconds in which something waited for the disk, or for a processor."""
_ORDER = (SnapshotKind.CHECKPOINT, SnapshotKind.STATE, SnapshotKind.DISK)


@dataclass(frozen=True, slots=True)
class Pressure:
    """Shares (0 to 1) of the last ten seconds in which work waited; None: the kernel counts none.

    As /proc/pressure has it, line `some`.
    """

    io: float | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a finished snapshot tells about how fast the state changes."""

    size: int
    """Bytes of the state."""
    fresh: int
    """Bytes that were new since the one before."""
    seconds: float
    """Between the two."""


def kinds_of(plan: SnapshotPlan) -> list[SnapshotKind]:
    """Return what is stored at each point, the most complete last: the newest is restored."""
    return [kind for kind in _ORDER if kind in plan.kinds and kind in STORED]


def interval(plan: SnapshotPlan, change: Change | None) -> float | None:
    """Return the seconds from one snapshot to the next; None: only when asked."""
    if plan.interval_seconds is None and not plan.adaptive:
        return None
    usual = plan.interval_seconds or USUAL_SECONDS
    if not plan.adaptive or change is None or change.seconds <= 0:
        return usual
    if not change.fresh:
        return usual * SPREAD
    speed = change.fresh / change.seconds
    return min(usual * SPREAD, max(usual / SPREAD, CHANGED_SHARE * change.size / speed))


def first_wait(period: float, age: float | None, chance: float) -> float:
    """Return the seconds until the first snapshot that this agent process takes.

    `age` is of the newest one there is (None: none yet), in seconds; `chance` in [0, 1) spreads
    the sandboxes of a node, which often start together, over a tenth of the period.
    """
    spread = DEFER_SHARE * period * chance
    return spread + (period if age is None else max(0.0, period - age))


def patience(period: float | None, *, marks: int, missed: int) -> float:
    """Return how long to wait for the program's mark, in seconds.

    A program that has never made one gets a short while, and is soon not waited for any more.
    """
    if not marks:
        return MARK_LEAST if missed < MISSED_MOST else 0.0
    return min(MARK_MOST, max(MARK_LEAST, (period or 2 * MARK_MOST) / 2))


def deferral(pressure: Pressure, deferred: int, period: float) -> tuple[float, str] | None:
    """Return for how many seconds a snapshot is put off, and why; None: it is taken now.

    Writes that collide with the program's own slow both (SNAP-21); compressing is for moments in
    which a processor is free (SNAP-19).
    """
    if deferred >= DEFER_MOST:
        return None
    for what, share, most in (
        ("the disk", pressure.io, IO_MOST),
        ("a processor", pressure.cpu, CPU_MOST),
    ):
        if share is not None and share > most:
            why = f"work waited for {what} in {share:.0%} of the last 10 s, bound {most:.0%}"
            return max(1.0, DEFER_SHARE * period), why
    return None


def ended_whole(end: End, *, asked: bool) -> bool:
    """Return whether the files of an ended program belong together.

    It left by itself with success, or of its own will after it was asked to: what was killed may
    have been writing (W-21), and the last snapshot before that stands.
    """
    if end.reason in {EndReason.OOM_KILLED, EndReason.DISK_FULL, EndReason.START_FAILED}:
        return False
    return end.exit_code == 0 or (asked and end.exit_code is not None)
