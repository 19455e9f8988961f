"""What two stores have of the same references: which count, and how far a copy is behind. Pure.

Recovery point: how much work would be lost if the source went away now, as the age of the newest
copy. Lag: since when something waits to be copied; 0 where nothing does.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.refs import Tombstone, body_of, in_force, superseded

Identity = tuple[str, int, int, str]


@dataclass(frozen=True, slots=True)
class LineageStanding:
    """One lineage. `recovery_point_seconds` is None where no copy of it exists."""

    lineage: str
    newest: int
    copied: int | None
    recovery_point_seconds: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A repository, or several, at one destination."""

    behind: int = 0
    """References that wait."""
    lag_seconds: float = 0.0
    recovery_point_seconds: float | None = 0.0
    """Of the lineage that would lose most; None: one has no copy at all."""
    worst: str = ""
    """That lineage."""
    lineages: tuple[LineageStanding, ...] = ()


def identity_of(ref: SnapshotRef) -> Identity:
    """Return what makes two references the same one."""
    return ref.lineage, ref.seq, ref.home_epoch, ref.manifest


def by_lineage(refs: Iterable[SnapshotRef]) -> dict[str, list[SnapshotRef]]:
    """Return the references that count, of each lineage that has any, newest first."""
    return {lineage: in_force(known) for lineage, known in _grouped(refs).items()}


def age_of(ref: SnapshotRef, now: datetime) -> float:
    """Return how old a snapshot is in seconds; never negative."""
    return max(0.0, (now - ref.created).total_seconds())


def standing(
    source: Iterable[SnapshotRef], target: Iterable[SnapshotRef], now: datetime
) -> Standing:
    """Return how far the target is behind the source.

    Ages are never negative: a clock that is ahead makes nothing safer.
    """
    mine, theirs = by_lineage(source), by_lineage(target)
    rows, waits = [], []
    for lineage, refs in sorted(mine.items()):
        there = {identity_of(ref) for ref in theirs.get(lineage, ())}
        copied = [ref for ref in refs if identity_of(ref) in there]
        waits += [ref for ref in refs if identity_of(ref) not in there]
        age = age_of(copied[0], now) if copied else None
        rows.append(LineageStanding(lineage, refs[0].seq, copied[0].seq if copied else None, age))
    lag = max((age_of(ref, now) for ref in waits), default=0.0)
    return _worst(rows, len(waits), lag)


def rank(ref: SnapshotRef) -> tuple[object, ...]:
    """Return what decides between two references of one number, the same in every region."""
    return ref.home_epoch, ref.incarnation, ref.created, body_of(ref)


def buried(ref: SnapshotRef, stones: Iterable[Tombstone]) -> bool:
    """Return whether somebody deleted this reference on purpose."""
    return any(stone.buries(ref) for stone in stones)


def lost(refs: Iterable[SnapshotRef]) -> frozenset[Identity]:
    """Return the references that count no more, of any lineages (see `superseded`)."""
    found = set()
    for known in _grouped(refs).values():
        gone = superseded(known)
        found |= {identity_of(ref) for ref in known if (ref.home_epoch, ref.seq) in gone}
    return frozenset(found)


def together(standings: Iterable[Standing]) -> Standing:
    """Return the standing of several repositories as one."""
    known = list(standings)
    rows = [row for one in known for row in one.lineages]
    return _worst(
        rows, sum(one.behind for one in known), max((o.lag_seconds for o in known), default=0.0)
    )


def _worst(rows: Sequence[LineageStanding], behind: int, lag: float) -> Standing:
    without = [row for row in rows if row.recovery_point_seconds is None]
    if without:
        return Standing(behind, lag, None, without[0].lineage, tuple(rows))
    worst = max(rows, key=lambda row: row.recovery_point_seconds or 0.0, default=None)
    if worst is None:
        return Standing(behind, lag, 0.0, "", ())
    return Standing(behind, lag, worst.recovery_point_seconds, worst.lineage, tuple(rows))


def _grouped(refs: Iterable[SnapshotRef]) -> dict[str, list[SnapshotRef]]:
    found: dict[str, list[SnapshotRef]] = defaultdict(list)
    for ref in refs:
        found[ref.lineage].append(ref)
    return found
