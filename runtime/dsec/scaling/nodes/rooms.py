"""Where the work of a node can go: rooms on other nodes, and room that is made there. Pure.

Rooms are on nodes that are ready and in use, machines that are paid for anyway first. Where such a
machine has no room for large work but holds less demanding work, that makes room: it moves to free
rooms elsewhere, and the large work to its place. All of it by the real placement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dsec.api.scaling import Market
from dsec.placement.asked import Asked, OverCapacityError
from dsec.placement.compaction import Move
from dsec.placement.engine import place, place_class
from dsec.placement.request import Decision
from dsec.placement.view import ClusterView, Ints
from dsec.scaling.nodes.offerings import CLOUD, TIERS, FleetNode, NodePhase, Running, tolerant
from dsec.scaling.nodes.state import FleetState
from dsec.scaling.nodes.virtual import rows_of

Size = tuple[int, int, int]
"""Cards, CPU, memory."""


@dataclass(slots=True)
class Host:
    """A machine that is paid for anyway. `most`: what larger work could have there, in sums."""

    node: FleetNode
    most: Size | None = None


@dataclass(slots=True)
class Rooms:
    """Possible targets of one plan. Rows are those of its view, by market in the order of use."""

    every: list[Ints]
    steady: list[Ints]
    """Of machines that are paid for anyway."""
    hosts: list["Host"]
    """Those machines."""
    without: list[int] = field(default_factory=list)
    """Rows of nodes that are being emptied."""
    moved: set[str] = field(default_factory=set)
    """Ids that this plan moves; each is moved once."""

    @classmethod
    def of(cls, state: FleetState, view: ClusterView, going: frozenset[str]) -> "Rooms":
        """Return the rooms of nodes that are ready, in use and stay."""
        names: dict[Market, list[str]] = {market: [] for market in TIERS}
        hosts = []
        for node in state.nodes:
            cloud = node.offering.cloud
            empty = cloud and not node.work and not node.arriving
            if node.phase is NodePhase.READY and not (node.leaving or empty or node.name in going):
                names[node.offering.market].append(node.name)
                if not cloud and not node.protected:
                    hosts.append(Host(node))
        rows = {market: rows_of(view, names[market]) for market in TIERS if names[market]}
        steady = [some for market, some in rows.items() if market not in CLOUD]
        return cls(list(rows.values()), steady, hosts)

    def outside(self, node: int, *, steady: bool = False) -> list[Ints]:
        """Return the targets but for one row and those that are being emptied."""
        out = {*self.without, node}
        return [
            np.array([row for row in some.tolist() if row not in out], dtype=np.int64)
            for some in (self.steady if steady else self.every)
        ]


def elsewhere(
    view: ClusterView, node: FleetNode, targets: Sequence[Ints]
) -> tuple[Move, ...] | None:
    """Find places for all of a node's work and book them into `view`; None where some has none."""
    moves = []
    for one in sorted(node.work, key=_largest):
        move = _moved(view, node, one, targets)
        if move is None:
            return None
        moves.append(move)
    return tuple(moves)


def making_room(
    view: ClusterView,
    node: FleetNode,
    rooms: Rooms,
    free: Callable[[Running], bool],
    tries: int,
) -> tuple[ClusterView | None, tuple[Move, ...], int]:
    """Find places on machines that are paid for anyway, where less demanding work makes room.

    `free`: whether work may be moved for that. Returns the view with all moves booked (None: there
    is no way), the moves in the order in which they are made, and how many tries are left.
    """
    row = view.row(node.name)
    steady, every = rooms.outside(row, steady=True), rooms.outside(row)
    moves: list[Move] = []
    gone: set[str] = set()
    for one in sorted(node.work, key=_largest):
        move = _moved(view, node, one, steady)
        if move is not None:
            moves.append(move)
            continue
        for host in rooms.hosts:
            if tries <= 0:
                return None, (), 0
            if not _could_hold(host, one, free):
                continue
            less = [
                other
                for other in host.node.work
                if free(other) and other.id not in gone and _size(other) < _size(one)
            ]
            tries -= 1
            made = _swapped(view.fork(), (node, host.node), one, less, every)
            if made is not None:
                view, more = made
                moves += more
                gone |= {some.id for some in more}
                break
        else:
            return None, (), tries
    return view, tuple(moves), tries


def _swapped(
    view: ClusterView,
    nodes: tuple[FleetNode, FleetNode],
    one: Running,
    less: Sequence[Running],
    targets: Sequence[Ints],
) -> tuple[ClusterView, list[Move]] | None:
    """Put work of the first node onto the second, and what has no room beside it elsewhere."""
    node, host = nodes
    before = view.bookings()
    held = [(other, before[other.id]) for other in less if other.id in before]
    held = [pair for pair in held if pair[1].node == host.name]
    if not held:
        return None
    for other, _ in held:
        view.release(other.id)
    taken = _moved(view, node, one, [rows_of(view, [host.name])])
    if taken is None:
        return None
    moves = []
    for other, booking in sorted(held, key=lambda pair: _largest(pair[0])):
        stays = Decision(other.id, host.name, booking.devices, cpus=booking.cpus)
        try:
            view.book(tolerant(other.request), stays)
        except OverCapacityError:
            move = _moved(view, host, other, targets)
            if move is None:
                return None
            moves.append(move)
        else:
            if other.paused:
                view.pause(other.id)
    return view, [*moves, taken]


def _moved(
    view: ClusterView, node: FleetNode, one: Running, targets: Sequence[Ints]
) -> Move | None:
    """Find a place for one sandbox of a node and book it; None: it has none, and holds nothing."""
    spread = one.request.spread
    before = dict(view.group(spread)) if spread else {}
    view.release(one.id)
    decision = _one(view, one, targets)
    if decision is None:
        return None
    most = max([1, before.get(node.name, 0)])
    if spread and view.group(spread).get(decision.node, 0) > most:
        # it would come closer to its group than it is: somebody would buy a node to undo that
        view.release(one.id)
        return None
    if one.paused:
        view.pause(one.id)
    return Move(one.id, node.name, decision)


def _could_hold(host: Host, one: Running, free: Callable[[Running], bool]) -> bool:
    """Return whether a machine could hold work if all that may move made room: in sums."""
    node = host.node.offering.node
    if host.most is None:
        cards, cpu, memory = len(node.devices), node.cpu_milli, node.memory_bytes
        for other in host.node.work:
            if not free(other):
                asked = Asked.of(other.request)
                # parts of cards may share some: not counted here
                cards -= asked.gpus if not asked.milli else 0
                cpu -= 0 if other.paused else asked.cpu
                memory -= asked.memory
        host.most = cards, cpu, memory
    size = _size(one)
    return bool(size[0]) == bool(node.devices) and all(
        wanted <= left for wanted, left in zip(size, host.most, strict=True)
    )


def _size(one: Running) -> Size:
    asked = Asked.of(one.request)
    return asked.gpus, asked.cpu, asked.memory


def _largest(one: Running) -> tuple[int, int, int, str]:
    gpus, cpu, memory = _size(one)
    return -gpus, -cpu, -memory, one.id


def _one(view: ClusterView, one: Running, targets: Sequence[Ints]) -> Decision | None:
    request = tolerant(one.request)
    if request.gang:
        request = replace(request, gang="", gang_group="")
    if request.near:
        rows = np.concatenate(targets) if targets else np.zeros(0, dtype=np.int64)
        allowed = {view.described[row].name for row in rows.tolist()}
        outside = tuple(name for name in view.nodes if name not in allowed)
        asked = replace(request, avoid=(*request.avoid, *outside))
        (decision,) = place(view, [asked], learn=False)
        return decision if decision.node else None
    for rows in targets:
        if not len(rows):
            continue
        (decision,) = place_class(view, [request], rows, learn=False, explain=False)
        if decision.node:
            return decision
    return None
