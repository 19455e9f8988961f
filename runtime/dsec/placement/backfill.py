"""One round over waiting work in its order: what starts now, what is kept for whom, and until when.

The order is that of `dsec.placement.queueing`. Work that finds room starts. The first work that has
waited long enough and still finds none becomes the *head*: the room that it will use, once running
work has ended, is kept for it, and later work starts only where that does not delay it (EASY
backfilling: Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, 2001). What is
kept expires, so that a head which cannot start after all does not hold others up for ever. There
is one head at a time and it holds nothing that runs, so two gangs never wait for each other.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from dsec.api.reasons import PendingReason
from dsec.placement.asked import OverCapacityError
from dsec.placement.engine import place
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision, Request
from dsec.placement.view import ClusterView

MOMENTS = 16
"""At which it is tried whether a head fits, at most: of more, a later one may be promised."""
DEPTH = 1000
"""Works that are looked at behind a head, at most, in one round: the rest is looked at later."""
HEAD_SEARCHES = 4
"""Works for which a round looks for room in the future, at most: each look is at the whole cluster.
Who never fits rests afterwards, so that the next rounds come to the others."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work that starts together or not at all: one request, a gang, or a group of gangs."""

    name: str
    requests: tuple[Request, ...]
    since: float
    """When it began to wait, in seconds."""
    run_seconds: float = math.inf
    """Longest that it runs once started; infinite where it declares no limit."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room kept for a head. `start` is when it will be free at the latest; infinite: not known."""

    name: str
    decisions: tuple[Decision, ...]
    start: float
    expires: float


@dataclass(frozen=True, slots=True)
class BackfillRules:
    """When room is kept, and how long. Seconds."""

    head_after: float = 30.0
    """Work that has waited less may be overtaken freely: short waits sort themselves out."""
    keep: float = 600.0
    """Room is kept this long at most."""
    rest: float = 300.0
    """After its room expired, work does not become the head again for this long."""


@dataclass(slots=True)
class Round:
    """What a round decided. `kept` and `rested` are handed to the next round."""

    decisions: dict[str, Decision] = field(default_factory=dict)
    """By request id, of every request that was looked at."""
    kept: Reservation | None = None
    rested: dict[str, float] = field(default_factory=dict)
    """Until when work cannot become the head again, by name."""
    overtaken: list[str] = field(default_factory=list)
    """Work that had room but would have delayed the head."""


class Start(Protocol):
    """Starts work on the view of a round: quota, then room."""

    def place(self, requests: Sequence[Request]) -> list[Decision]:
        """Return a decision each, in order, and book what has a node."""

    def undo(self, ids: Sequence[str]) -> None:
        """Take back what `place` booked."""


class _Head:
    """The work that room is kept for, and the nodes that it will use as they will be then."""

    def __init__(self, reservation: Reservation, future: ClusterView) -> None:
        self.reservation = reservation
        self._future = future

    def takes(self, work: Work, found: Sequence[Decision], now: float) -> bool:
        """Return whether work may start where it was placed without delaying the head."""
        if now + work.run_seconds <= self.reservation.start < math.inf:
            return True
        booked: list[str] = []
        try:
            for request, decision in zip(work.requests, found, strict=True):
                if decision.node in self._future.nodes:
                    self._future.book(request, decision)
                    booked.append(request.id)
        except OverCapacityError:
            for one in booked:
                self._future.release(one)
            return False
        return True


def run_round(
    view: ClusterView,
    waiting: Sequence[Work],
    start: Start,
    *,
    ends: Mapping[str, float],
    now: float,
    kept: Reservation | None = None,
    rested: Mapping[str, float] | None = None,
    rules: BackfillRules | None = None,
) -> Round:
    """Decide over waiting work in order; `start` books what starts into `view`.

    `ends` tells when running bookings end at the latest, by id and in the seconds of `now`; those
    without an entry run for ever. Deterministic. Work starts whole or not at all.
    """
    rules = rules or BackfillRules()
    outcome = Round(rested={name: until for name, until in (rested or {}).items() if until > now})
    if kept is not None and now >= kept.expires:
        outcome.rested[kept.name] = now + rules.rest
    until = dict(ends)
    head: _Head | None = None
    behind = searches = 0
    for run in _runs(waiting):
        rest = run
        while rest and head is None:
            wanting = _wanting(outcome, now, rules) if searches < HEAD_SEARCHES else _nobody
            stuck = _start_all(start, rest, outcome, wanting, until=until, now=now)
            if stuck is None:
                rest = []
                break
            searches += 1
            head = _head(view, rest[stuck], until, now=now, kept=kept, rules=rules)
            if head is None:
                # not even with everything ended: neither it nor its like is looked at again soon
                kind = _kind(rest[stuck])
                alike = (work.name for work in rest[stuck:] if _kind(work) == kind)
                outcome.rested |= dict.fromkeys(alike, now + rules.rest)
            rest = rest[stuck + 1 :]
        for work in rest[: max(0, DEPTH - behind)]:
            if head is not None:
                _start_behind(start, work, head, outcome, now)
        behind += len(rest)
    outcome.kept = head.reservation if head else None
    return outcome


def _runs(waiting: Sequence[Work]) -> Iterator[list[Work]]:
    """Yield stretches of single requests, which are placed in one pass, and gangs one by one."""
    for single, works in groupby(waiting, lambda work: len(work.requests) == 1):
        if single:
            yield list(works)
        else:
            yield from ([work] for work in works)


def _kind(work: Work) -> list[object]:
    """Return what decides where work fits: all but its names."""
    return [request.class_key() for request in work.requests]


Wanting = Callable[[Work, Decision], bool]
"""Whether work may become the head, given the decision about its first request."""


def _nobody(_work: Work, _first: Decision) -> bool:
    return False


def _wanting(outcome: Round, now: float, rules: BackfillRules) -> Wanting:
    def wants(work: Work, first: Decision) -> bool:
        return (
            not first.node
            and now - work.since >= rules.head_after
            and work.name not in outcome.rested
            # room is of no use to what its quota does not admit: others would lose it
            and not any(one.reason is PendingReason.QUOTA for one in first.refusals)
        )

    return wants


def _start_all(
    start: Start,
    run: Sequence[Work],
    outcome: Round,
    wanting: Wanting,
    *,
    until: dict[str, float],
    now: float,
) -> int | None:
    """Start what has room; return the place of the first work that room must be kept for.

    What comes after that work is left as it was.
    """
    answers = iter(start.place([request for work in run for request in work.requests]))
    found = [[next(answers) for _ in work.requests] for work in run]
    stuck = next(
        (position for position, work in enumerate(run) if wanting(work, found[position][0])), None
    )
    through = len(run) if stuck is None else stuck + 1
    for work, decisions in zip(run[:through], found[:through], strict=True):
        outcome.decisions.update((one.id, one) for one in decisions)
        if decisions[0].node:
            until.update((one.id, now + work.run_seconds) for one in decisions)
    start.undo([one.id for decisions in found[through:] for one in decisions if one.node])
    return stuck


def _start_behind(start: Start, work: Work, head: _Head, outcome: Round, now: float) -> None:
    found = start.place(work.requests)
    if found[0].node and not head.takes(work, found, now):
        start.undo([one.id for one in found])
        why = Refusal(PendingReason.RESERVED, head.reservation.name, len(found))
        found = [Decision(one.id, refusals=(why,)) for one in found]
        outcome.overtaken.append(work.name)
    outcome.decisions.update((one.id, one) for one in found)


def _head(
    view: ClusterView,
    work: Work,
    until: Mapping[str, float],
    *,
    now: float,
    kept: Reservation | None,
    rules: BackfillRules,
) -> _Head | None:
    """Keep what was kept for work while that holds, else find where it fits first; None: never."""
    mine = kept if kept is not None and kept.name == work.name else None
    if mine is None or not _holds(view, work, mine, now):
        found = _first_fit(view, work, until)
        if found is None:
            return None
        start, decisions = found
        mine = Reservation(work.name, decisions, start, mine.expires if mine else now + rules.keep)
    return _Head(mine, _future(view, work, mine, until))


def _holds(view: ClusterView, work: Work, kept: Reservation, now: float) -> bool:
    """Return whether a reservation still tells where and when work starts.

    It does until its start: what starts behind it respects it, and what runs only ends earlier.
    """
    return (
        now < min(kept.start, kept.expires)
        and [one.id for one in kept.decisions] == [one.id for one in work.requests]
        and all(one.node in view.nodes for one in kept.decisions)
    )


def _first_fit(
    view: ClusterView, work: Work, until: Mapping[str, float]
) -> tuple[float, tuple[Decision, ...]] | None:
    """Return the first of some moments at which work fits, and where; None where it never does."""
    ending = sorted((until.get(one, math.inf), one) for one in view.bookings())
    every = sorted({moment for moment, _ in ending})
    step = max(1, math.ceil(len(every) / MOMENTS))
    # the last moment, when all has ended, is always among them
    moments = every[::-1][::step][::-1]
    low, high = 0, len(moments) - 1
    best: tuple[float, tuple[Decision, ...]] | None = None
    # room only grows as work ends, so the first moment that is enough is found by halving; the
    # last one goes first, because what does not fit then never does
    probe = high
    while low <= high:
        moment = moments[probe]
        if best is None:
            future = ClusterView(view.nodes.values())
        else:
            future = view.fork()
            for end, one in ending:
                if end <= moment:
                    future.release(one)
        found = place(future, work.requests)
        if found[0].node:
            best, high = (moment, tuple(found)), probe - 1
        elif best is None:
            return None
        else:
            low = probe + 1
        probe = (low + high) // 2
    return best


def _future(
    view: ClusterView, work: Work, kept: Reservation, until: Mapping[str, float]
) -> ClusterView:
    """Return the nodes that work will use, as they are when it starts there."""
    names = {one.node for one in kept.decisions}
    future = ClusterView(view.nodes[name] for name in sorted(names))
    for name in sorted(names):
        for one in view.on(name):
            booking = view.bookings()[one]
            if until.get(one, math.inf) > kept.start:
                decision = Decision(one, name, booking.devices, cpus=booking.cpus)
                future.book(booking.request, decision, force=True)
    for request, decision in zip(work.requests, kept.decisions, strict=True):
        future.book(request, decision, force=True)
    return future
