"""What is needed beyond what is there and coming: one function for whoever buys and removes.

Waiting work is placed for real on the fleet as it will be: on ready nodes beside what runs there,
and on the full size of every node that is coming, oldest first; then the buffers. What finds no
place is the need. What is placed on a node promises the node to it: such a node is not idle.

The remover asks for more slack than the buyer: between the two nothing is bought and nothing
removed, so that they never undo each other.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dsec.placement.request import Request
from dsec.placement.view import ClusterView, Ints
from dsec.scaling.nodes.offerings import FleetNode, tolerant
from dsec.scaling.nodes.state import Buffer, FleetState, Pending
from dsec.scaling.nodes.virtual import (
    Work,
    fit,
    leaving_work,
    rows_of,
    serving,
    unit_of,
    view_of,
    works,
)


@dataclass(slots=True)
class Need:
    """What found no place, and what did.

    `uncovered`: by class, the oldest class first. `short`: places missing of each buffer.
    `promised`: node -> what is to go there; places of buffers as `buffer/...`. `view`: the fleet
    with all of it booked; whoever plans on works on this view.
    """

    uncovered: list[Work]
    short: list[tuple[Buffer, int]]
    promised: dict[str, list[str]]
    view: ClusterView
    places: dict[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many requests are uncovered."""
        return sum(len(work.members) for work in self.uncovered)


def need(state: FleetState, *, slack: float = 1.0, without: Iterable[str] = ()) -> Need:
    """Return what waiting work and buffers times `slack` lack, on the fleet without some nodes."""
    gone = frozenset(without)
    if gone:
        state = replace(state, nodes=tuple(one for one in state.nodes if one.name not in gone))
    seen = view_of(state)
    preferred = firm(state, seen)
    found = Need([], [], {}, seen)
    pending = _as_bought(state, found)
    for work in works((*leaving_work(state), *pending)):
        placed = fit(seen, work, preferred)
        left = [one for one in work.members if one.request.id not in placed]
        if left:
            found.uncovered.append(Work(left, work.unit))
        _promise(found, placed)
    for buffer in state.buffers:
        count = math.ceil(buffer.count * slack)
        placed = fit(seen, Work(places_of(buffer, count)), preferred) if count else {}
        if len(placed) < count:
            found.short.append((buffer, count - len(placed)))
        _promise(found, placed)
    return found


def _as_bought(state: FleetState, found: Need) -> list[Pending]:
    """Place what nodes on their way were bought for on them; return what else waits.

    Placed another way, by age, it might not fit again, and be bought for a second time.
    """
    where = {
        id_: node.name
        for node in state.nodes
        if node.coming and node.name in found.view.nodes
        for id_ in node.covers
    }
    if not where:
        return list(state.pending)
    bound: dict[str, list[Pending]] = {}
    rest = []
    for one in state.pending:
        name = where.get(one.request.id)
        if name is None or unit_of(one.request):
            rest.append(one)
        else:
            bound.setdefault(name, []).append(one)
    for name, some in bound.items():
        row = rows_of(found.view, [name])
        for work in works(some):
            placed = fit(found.view, work, row, only=True)
            rest += [one for one in work.members if one.request.id not in placed]
            _promise(found, placed)
    return rest


def with_slack(found: Need, state: FleetState, slack: float) -> Need:
    """Return what `need` with more slack would return; goes on in the view of `found`.

    Buffers are placed last, so that more of them change nothing for what was placed before.
    """
    preferred = firm(state, found.view)
    made = Need(found.uncovered, [], dict(found.promised), found.view, dict(found.places))
    short = {buffer.name: count for buffer, count in found.short}
    for buffer in state.buffers:
        extra = math.ceil(buffer.count * slack) - buffer.count
        missing = short.get(buffer.name, 0)
        if extra > 0:
            more = Work(places_of(buffer, extra, start=buffer.count))
            placed = fit(made.view, more, preferred)
            missing += extra - len(placed)
            _promise(made, placed)
        if missing:
            made.short.append((buffer, missing))
    return made


def places_of(buffer: Buffer, count: int, start: int = 0) -> list[Pending]:
    """Return the places of a buffer as requests that wait."""
    # all but the id is the same; made by position, which is much faster than by name
    rest = tolerant(buffer.request).class_key()
    return [
        Pending(Request(f"buffer/{buffer.name}/{number}", *rest), math.inf, 0.0)
        for number in range(start, start + count)
    ]


def firm(state: FleetState, view: ClusterView) -> Ints:
    """Return the rows of nodes that stay in any case: those with work, and what is paid anyway."""
    names = [node.name for node in state.nodes if serving(node, state.now) and not _loose(node)]
    return rows_of(view, names) if names else np.zeros(0, dtype=np.int64)


def _loose(node: FleetNode) -> bool:
    return node.offering.cloud and not node.work and not node.arriving


def _promise(found: Need, placed: Mapping[str, str]) -> None:
    found.places |= placed
    for id_, node in placed.items():
        found.promised[node] = [*found.promised.get(node, ()), id_]
