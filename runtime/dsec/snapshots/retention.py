"""Which snapshots go, and why: pure, over what is listed, and never on half a view.

The rule of CONF-28 as data. A live task keeps its newest `retain`; the others go at the daily
sweep. A task that has been idle for 7 days loses what is older than 3 days before its newest; after
30 days all go that nobody has pinned. Idle counts from its end or its newest snapshot, whichever
came later. Never removed: what is pinned, what somebody is restoring from, and of a live task the
newest that is not known to be damaged, whatever `retain` says.

Nothing here looks at a clock: `now` is the caller's, who has made sure of it (see `surety`).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.refs import Pin, Tombstone, in_force

SWEEP_SECONDS = 86_400.0
"""How often the leader applies the rule: what nobody needs may lie for a day."""


@dataclass(frozen=True, slots=True)
class IdleRule:
    """What goes once a task has been idle for some time; without `spare` everything."""

    idle: timedelta
    spare: timedelta | None = None
    """What is at most so much older than the newest one stays."""


IDLE_RULES = (
    IdleRule(timedelta(days=7), spare=timedelta(days=3)),
    IdleRule(timedelta(days=30)),
)
"""CONF-28; the last one that applies holds."""

RETAIN = 3
"""Newest ones that stay: with one alone, the one that is kept may be the bad one (SNAP-07)."""

TOMBSTONE_AGE = timedelta(days=90)
"""Tombstones stay longer than any region is away before somebody gives it up."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule for one repository."""

    retain: int = RETAIN
    idle: Sequence[IdleRule] = IDLE_RULES

    def __post_init__(self) -> None:
        """Raise ValueError where the rule would keep nothing, or its steps are out of order."""
        if self.retain < 1:
            raise ValueError(f"retain: {self.retain}: at least 1 is kept of a live task")
        steps = [rule.idle for rule in self.idle]
        if steps != sorted(set(steps)) or any(step <= timedelta(0) for step in steps):
            raise ValueError("idle: the rules have to be in the order of their times, each later")


@dataclass(frozen=True, slots=True)
class Activity:
    """What is known of the task that a lineage belongs to.

    `ended` is None while it lives, and also where nobody knows: then it counts as live.
    """

    ended: datetime | None = None
    retain: int | None = None
    """What the task asks for; None: the rule's."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A snapshot that the rule removes."""

    ref: SnapshotRef
    why: str


def sweep(
    refs: Iterable[SnapshotRef],
    *,
    now: datetime,
    activity: Activity = Activity(),
    pins: Collection[Pin] = (),
    held: Collection[int] = (),
    bad: Collection[int] = (),
    rule: Retention = Retention(),
) -> list[Leaving]:
    """Return what goes of one lineage, oldest first.

    `held` are numbers that somebody restores from now, `bad` numbers that are known to be damaged:
    they do not count as kept. What a region wrote after it had lost the lineage is not judged here,
    it is parked.
    """
    order = in_force(refs)
    if not order:
        return []
    keep = {pin.seq for pin in pins if pin.holds(now)} | set(held)
    found: dict[int, Leaving] = {}
    good = [ref for ref in order if ref.seq not in set(bad)]
    retain = max(1, activity.retain if activity.retain is not None else rule.retain)
    retained = {ref.seq for ref in good[:retain]}
    for ref in order:
        if ref.seq not in retained and (good or ref.seq != order[0].seq):
            found[ref.seq] = Leaving(ref, f"not among the newest {retain}")
    newest = max(ref.created for ref in order)
    if activity.ended is not None:
        idle = now - max(activity.ended, newest)
        applying = [one for one in rule.idle if idle >= one.idle]
        if applying:
            last = applying[-1]
            found |= {
                ref.seq: Leaving(ref, _why(last)) for ref in order if _goes(ref, newest, last)
            }
    return [leaving for seq, leaving in sorted(found.items()) if seq not in keep]


def outlived(stones: Iterable[Tombstone], *, now: datetime) -> list[Tombstone]:
    """Return the tombstones that may go: old, and not of the highest number of their lineage.

    That one stays for ever, or its number could be given again.
    """
    known = list(stones)
    highest: dict[str, int] = {}
    for stone in known:
        highest[stone.lineage] = max(stone.seq, highest.get(stone.lineage, 0))
    return [
        stone
        for stone in known
        if stone.seq != highest[stone.lineage] and now - stone.at >= TOMBSTONE_AGE
    ]


def _goes(ref: SnapshotRef, newest: datetime, rule: IdleRule) -> bool:
    return rule.spare is None or newest - ref.created > rule.spare


def _why(rule: IdleRule) -> str:
    if rule.spare is None:
        return f"idle for {rule.idle.days} days"
    return f"idle for {rule.idle.days} days, and {rule.spare.days} days older than the newest"
