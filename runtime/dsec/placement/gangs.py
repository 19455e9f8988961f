"""Gangs: whole or not at all, and packed where their members exchange often. Pure.

A unit is a gang, or all gangs of one group: it is placed as a whole on the view and taken back as
a whole, so nothing of a unit that lacks room is ever left behind for others to wait on. Inside a
unit the largest requests go first, since what is left of a node suits small ones only.

Members that are `near` one another are packed (SCHED-07): one host, else one rack, zone, region,
else anywhere, unless the group must not leave a level. Where members of the group run already the
domains with them are tried, else those that may have room, the tightest first. Domains are compared
by their whole path, so `rack-1` of one zone is not that of another, and no name is a prefix.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dsec.api.reasons import PendingReason
from dsec.placement.accelerators import EXCLUSIVE
from dsec.placement.asked import Asked
from dsec.placement.dimensions import Column
from dsec.placement.machines import Ints
from dsec.placement.refusal import Refusal
from dsec.placement.request import LEVELS, Decision, Request
from dsec.placement.view import ClusterView

TRIES = 64
"""Domains of a level that are tried: the sums that choose them are seldom wrong."""


class PlaceClass(Protocol):
    """Places equal requests on some rows (None: all) and books them; see `engine.place_class`."""

    def __call__(
        self, members: Sequence[Request], rows: Ints | None = None, *, explain: bool = True
    ) -> list[Decision]:
        """Return a decision each; without `explain` refusals say nothing."""


def place_unit(view: ClusterView, members: Sequence[Request], place: PlaceClass) -> list[Decision]:
    """Place all members, or none; those that had room are told what the unit lacks."""
    order = sorted(range(len(members)), key=lambda one: (*_size(members[one]), one))
    found: dict[str, Decision] = {}
    for run in _runs([members[one] for one in order]):
        near = run[0].near
        decisions = pack(view, run, place) if near else place(run)
        # also after one that lacks room: each is to be told what it lacks itself
        found.update((one.id, one) for one in decisions)
    placed = [one for one in found.values() if one.node]
    if len(placed) == len(members):
        return [found[one.id] for one in members]
    for one in placed:
        view.release(one.id)
    lacking = next(one.refusals for one in found.values() if not one.node)
    unit = Refusal(PendingReason.GANG, "replicas together", len(members), len(placed))
    return [
        Decision(one.id, refusals=found[one.id].refusals or (unit, *lacking)) for one in members
    ]


def pack(view: ClusterView, members: Sequence[Request], place: PlaceClass) -> list[Decision]:
    """Place members of a near group in the narrowest domain that has room for all of them.

    Where none has and the group may leave every level, each goes as near as it can, and some may
    find no room.
    """
    required = members[0].required_level
    demand = _demand(members)
    for level in LEVELS:
        for rows in _domains(view, level, members[0].near, demand, all_of_them=bool(required)):
            found = _all(view, members, place, rows)
            if found is not None:
                return found
        if level == required:
            why = Refusal(PendingReason.TOPOLOGY, level, len(members))
            return [Decision(one.id, refusals=(why,)) for one in members]
    return [decision for run in _runs(members) for decision in place(run)]


def _all(
    view: ClusterView, members: Sequence[Request], place: PlaceClass, rows: Ints
) -> list[Decision] | None:
    found: list[Decision] = []
    for run in _runs(members):
        found += place(run, rows, explain=False)
        if not found[-1].node or not all(one.node for one in found[-len(run) :]):
            for one in found:
                view.release(one.id)
            return None
    return found


def _runs(members: Sequence[Request]) -> list[list[Request]]:
    """Return stretches of requests: equal ones, or of one near group."""
    runs: list[list[Request]] = []
    for one in members:
        last = runs[-1][0] if runs else None
        same = last is not None and (
            (one.near and one.near == last.near) or one.class_key() == last.class_key()
        )
        if same:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs


def _size(request: Request) -> tuple[int, int, int, int]:
    """Return what requests are sorted by, the largest first."""
    asked = request.resources
    cards = asked.gpu_count * (asked.gpu_milli or 1000)
    return -cards, -asked.gpu_memory_bytes, -asked.cpu_milli, -asked.memory_bytes


Demand = tuple[tuple[Column, int], ...]
"""Sums over a group: what a domain must have at least."""


def _demand(members: Sequence[Request]) -> Demand:
    sums: dict[Column, int] = {}
    for one in members:
        asked = Asked.of(one)
        parts = {
            Column.CPU: asked.cpu,
            Column.MEMORY: asked.memory,
            Column.DISK: asked.disk,
            Column.PIDS: asked.pids,
            Column.DENSITY: 1,
            Column.WHOLE: asked.gpus if asked.mode in EXCLUSIVE else 0,
        }
        for column, amount in parts.items():
            sums[column] = sums.get(column, 0) + amount
    return tuple((column, amount) for column, amount in sums.items() if amount)


def _domains(
    view: ClusterView, level: str, near: str, demand: Demand, *, all_of_them: bool
) -> list[Ints]:
    """Return rows of the domains that may have room, in the order in which they are tried.

    With `all_of_them` only domains that hold every present member of the group.
    """
    numbers = view.domains(level)
    count = int(numbers.max(initial=-1)) + 1
    if not count:
        return []
    known = numbers >= 0
    own = numbers[known]
    enough = np.ones(count, dtype=bool)
    tight = np.zeros(count)
    for column, amount in demand:
        figures = view.columns[column][known].astype(float)
        free = np.bincount(own, weights=figures, minlength=count).astype(float)
        enough &= free >= amount
        if column in (Column.CPU, Column.WHOLE):
            # cards are scarcer than cores: they decide
            tight = free if column is Column.WHOLE else tight + free / 1e12
    present = np.zeros(count)
    members = 0
    for name, number in view.group(near).items():
        members += number
        place = numbers[view.row(name)]
        if place >= 0:
            present[place] += number
    if members:
        # close to the others before close to one another
        enough &= present == members if all_of_them else present > 0
    order = np.lexsort((np.arange(count), tight, -present))
    chosen = [domain for domain in order.tolist() if enough[domain]][:TRIES]
    return [np.flatnonzero(numbers == domain) for domain in chosen]
