"""The fleet as a view for the real placement: ready nodes as they are, coming ones empty and whole.

Placement on it is the placement that runs; only nodes that do not exist yet are described by what
was bought. Work that may be interrupted tolerates spot nodes here as it does there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from dsec.placement.asked import Asked
from dsec.placement.engine import place, place_class
from dsec.placement.request import Decision, Health, Request
from dsec.placement.view import ClusterView, Ints
from dsec.scaling.nodes.offerings import FleetNode, NodePhase, Running, tolerant
from dsec.scaling.nodes.state import FleetState, Pending

_WISHES = attrgetter(*(name for name in Request.__slots__ if name not in ("id", "resources")))
Key = tuple[object, ...]


@dataclass(slots=True)
class Work:
    """Pending requests that are equal for placement and may be in the same regions, oldest first.

    `unit`: a gang, a group of gangs, or a group that must stay near: placed by one call.
    """

    members: list[Pending]
    unit: str = ""

    @property
    def request(self) -> Request:
        """The first of them."""
        return self.members[0].request

    @property
    def regions(self) -> tuple[str, ...]:
        """Where they may be; empty: anywhere."""
        return self.members[0].regions


def serving(node: FleetNode, now: float) -> bool:
    """Return whether a node counts as capacity: ready, or coming and not overdue; not leaving."""
    return not node.leaving and (
        node.phase is NodePhase.READY or (node.coming and not node.late(now))
    )


def view_of(state: FleetState) -> ClusterView:
    """Return a view of what counts as capacity, with what runs there booked."""
    served = [node for node in state.nodes if serving(node, state.now)]
    if state.view is not None:
        view = state.view.fork()
        names = {node.name for node in served}
        for name in [one for one in view.nodes if one not in names]:
            view.remove(name)
        for node in served:
            if node.name not in view.nodes or node.coming:
                view.put(replace(node.described(state.now), health=Health.READY))
        return view
    view = ClusterView(replace(node.described(state.now), health=Health.READY) for node in served)
    for node in served:
        for running in (*node.work, *node.arriving):
            book(view, node.name, running)
    return view


def book(view: ClusterView, name: str, running: Running) -> None:
    """Enter what runs on a node; its cards are chosen where they are not known."""
    request = running.request
    if request.id in view.bookings():
        return
    devices, resources = running.devices, request.resources
    wants = resources.gpu_count or resources.gpu_milli or resources.gpu_shares
    if (wants or request.gpu_slices) and len(devices) != Asked.of(request).gpus:
        alone = replace(request, avoid=(), gang="", tolerations=("*",))
        rows = np.array([view.row(name)], dtype=np.int64)
        (decision,) = place_class(view, [alone], rows, learn=False, explain=False)
        if decision.node and running.paused:
            view.pause(request.id)
        return
    view.book(request, Decision(request.id, name, devices, cpus=running.cpus), force=True)
    if running.paused:
        view.pause(request.id)


def works(pending: Iterable[Pending]) -> list[Work]:
    """Return pending requests by class, the class with the oldest first; each its oldest first."""
    known: dict[int, Key] = {}
    found: dict[Key, Work] = {}
    for one in sorted(pending, key=lambda one: one.since):
        request = one.request
        unit = unit_of(request)
        if unit:
            key: Key = (unit,)
        else:
            resources = known.get(id(request.resources))
            if resources is None:
                values = request.resources
                resources = tuple(getattr(values, name) for name in type(values).model_fields)
                known[id(request.resources)] = resources
            key = (resources, _WISHES(request), one.regions)
        work = found.get(key)
        if work is None:
            found[key] = Work([one], unit)
        else:
            work.members.append(one)
    return list(found.values())


def unit_of(request: Request) -> str:
    """Return the unit that a request is placed with; empty: alone."""
    if request.gang:
        return f"gang {request.tenant}/{request.gang_group or request.gang}"
    return f"near {request.tenant}/{request.near}" if request.near else ""


def fit(
    view: ClusterView,
    work: Work,
    preferred: Ints | None = None,
    *,
    regions: Sequence[str] = (),
    only: bool = False,
) -> dict[str, str]:
    """Place what fits and book it; return id -> node of those that do.

    Rows of `preferred` come first, so that nodes which could go stay empty; or are the only ones.
    A unit is whole or not at all where it is a gang, and in one region in any case (ROAD-08).
    """
    regions = regions or work.regions
    if work.unit:
        requests = [tolerant(one.request) for one in work.members]
        return _fit_unit(view, requests, regions)
    requests = [one.request for one in work.members]
    first = tolerant(work.request)
    if first is not work.request:
        rest = first.class_key()
        requests = [Request(one.id, *rest) for one in requests]
    everywhere = rows_in(view, regions)
    found: dict[str, str] = {}
    stages = [everywhere]
    if preferred is not None and everywhere is not None:
        stages.insert(0, np.intersect1d(preferred, everywhere))
    elif preferred is not None:
        stages.insert(0, preferred)
    for rows in stages[:1] if only else stages:
        left = [one for one in requests if one.id not in found] if found else requests
        if not left or not len(view) or (rows is not None and not len(rows)):
            continue
        decisions = place_class(view, left, rows, learn=False, explain=False)
        found |= {one.id: one.node for one in decisions if one.node}
    return found


def _fit_unit(
    view: ClusterView, requests: Sequence[Request], regions: Sequence[str]
) -> dict[str, str]:
    """Place a unit in one region: where it is already, else in the first that takes all of it."""
    if not len(view):
        return {}
    places = sorted({node.region for node in view.nodes.values()})
    home = {
        view.nodes[name].region
        for one in requests
        for name in (view.group(one.near) if one.near else ())
    }
    allowed = [one for one in places if (not regions or one in regions)]
    if home:
        allowed = [one for one in allowed if one in home]
    best: dict[str, str] = {}
    for region in allowed:
        outside = tuple(name for name, node in view.nodes.items() if node.region != region)
        asked = [replace(one, avoid=(*one.avoid, *outside)) for one in requests]
        found = {one.id: one.node for one in place(view, asked, learn=False) if one.node}
        if len(found) == len(requests):
            return found
        if len(found) > len(best) and len(allowed) == 1:
            return found
        for id_ in found:
            view.release(id_)
        best = found if len(found) > len(best) else best
    if best:
        region = view.nodes[next(iter(best.values()))].region
        outside = tuple(name for name, node in view.nodes.items() if node.region != region)
        asked = [replace(one, avoid=(*one.avoid, *outside)) for one in requests]
        return {one.id: one.node for one in place(view, asked, learn=False) if one.node}
    return {}


def rows_in(view: ClusterView, regions: Sequence[str]) -> Ints | None:
    """Return the rows of nodes in some regions; None: all."""
    if not regions:
        return None
    view.settle()
    return np.array(
        [row for row, node in enumerate(view.described) if node.region in regions], dtype=np.int64
    )


def rows_of(view: ClusterView, names: Iterable[str]) -> Ints:
    """Return the rows of nodes by name."""
    return np.array(sorted(view.row(name) for name in names if name in view.nodes), dtype=np.int64)


def leaving_work(state: FleetState) -> Iterator[Pending]:
    """Yield what runs on nodes that the provider takes back: it needs a place first of all."""
    waiting = {one.request.id for one in state.pending}
    for node in state.nodes:
        if node.leaving:
            for running in node.work:
                if running.id not in waiting:
                    request = replace(running.request, avoid=())
                    yield Pending(request, float("-inf"), 0.0, running.budget)
