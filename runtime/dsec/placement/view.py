"""The cluster as placement sees it: nodes, what is free, and who holds it. One writer, no clock.

Offered to others: `put`, `remove`, `book`, `release`, `pause`, `resume`, `fork`, `digest`,
`bookings`, `on` (who is on a node), `group` (where a near or spread group runs), `room` (what is
free on a node).
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from dsec.placement.accelerators import Claim, take
from dsec.placement.asked import Asked, OverCapacityError, amounts_of, canonical, claims_of
from dsec.placement.buckets import Buckets
from dsec.placement.dimensions import NAMES, UNMETERED, Column
from dsec.placement.machines import Ints, Machines, Taken
from dsec.placement.request import Decision, Health, Node, Request
from dsec.placement.scratch import Scratch, claim_fits

__all__ = ["Booking", "ClusterView", "Forkable", "Ints"]


class Forkable(Protocol):
    """Something that goes along with a fork."""

    def fork(self) -> "Forkable":
        """Return a copy that can be changed apart."""
        ...


class Booking(NamedTuple):
    """What one sandbox holds."""

    request: Request
    node: str
    devices: tuple[str, ...]
    cpus: tuple[int, ...]
    amounts: tuple[int, ...]
    """Of the columns MEMORY to PINS."""
    claims: tuple[Claim, ...]
    paused: bool = False


class ClusterView(Machines):
    """Nodes and bookings. Not safe for two threads; `fork` for what-if."""

    __slots__ = ("_bookings", "_groups", "_on", "_texts", "cache")

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        super().__init__()
        self._bookings: dict[str, Booking] = {}
        self._on = Buckets()
        self._groups = Buckets()
        self._texts: dict[str, tuple[Node, str]] = {}
        """Of descriptions, for digests."""
        self.cache: Forkable | None = None
        """Of the engine: what it has derived from the view so far."""
        for node in nodes:
            self.put(node)

    def remove(self, name: str) -> bool:
        """Take a node away, and every booking on it; False where it is unknown."""
        self._texts.pop(name, None)
        for id_ in self._on.keys_of(name):
            self._forget(id_, self._bookings.pop(id_))
        return super().remove(name)

    def _taken(self, name: str) -> Iterator[Taken]:
        """Return what is held on a node."""
        for id_ in self._on.keys_of(name):
            booking = self._bookings[id_]
            yield _held(booking), booking.claims, booking.request.stage

    # -- bookings -------------------------------------------------------------------------------

    def bookings(self) -> Mapping[str, Booking]:
        """Return who holds what, by id; a live, read-only view."""
        return MappingProxyType(self._bookings)

    def on(self, name: str) -> list[str]:
        """Return the ids of those that hold something on a node, in the order of booking."""
        return self._on.keys_of(name)

    def group(self, name: str) -> Mapping[str, int]:
        """Return how many members of a near or spread group each node has."""
        return self._groups.get(name)

    def book(self, request: Request, decision: Decision, *, force: bool = False) -> None:
        """Book a decision: all of it, or OverCapacityError and nothing.

        `force` takes what runs already, as a node reports it, even where it is more than there is.
        Booking the same decision under the same id again changes nothing.
        """
        self.settle()
        known = self._bookings.get(request.id)
        if known is not None:
            if known.node == decision.node and known.request == request:
                return
            raise OverCapacityError(f"{request.id} is booked on {known.node} already")
        row = self._rows.get(decision.node)
        if row is None:
            raise OverCapacityError(f"{request.id}: there is no node {decision.node!r}")
        node = self.described[row]
        asked = Asked.of(request)
        amounts = amounts_of(asked, node)
        claims = claims_of(asked, node, decision.devices)
        scratch = self.load(row, cards=bool(claims))
        if not force:
            if node.health is not Health.READY:
                # decided on an older view: what was cordoned since is not bound to
                raise OverCapacityError(f"{request.id}: {node.name} is {node.health.value}")
            self._check(scratch, request.id, amounts, claims, decision.cpus)
        elif any(free - amount < -UNMETERED for free, amount in zip(scratch.columns, amounts)):  # noqa: B905  columns go on
            raise OverCapacityError(f"{request.id}: figures beyond any node")
        scratch.take(amounts, claims, request.stage)
        self.store(scratch)
        held = Booking(request, node.name, decision.devices, decision.cpus, amounts, claims)
        self.enter([held])

    def enter(self, bookings: Sequence[Booking]) -> None:
        """Enter bookings of equal requests, in this order; figures are stored apart."""
        if not bookings:
            return
        known, on = self._bookings, self._on
        for booking in bookings:
            id_ = booking.request.id
            known[id_] = booking
            on.add(booking.node, id_)
        request = bookings[0].request
        if bookings[0].claims and (
            request.resources.gpu_memory_bytes or request.resources.gpu_shares
        ):
            self.uneven = True
        for group in (request.near, request.spread):
            for booking in bookings if group else ():
                self._groups.add(group, booking.node)

    def _check(
        self,
        scratch: Scratch,
        id_: str,
        amounts: tuple[int, ...],
        claims: tuple[Claim, ...],
        cpus: tuple[int, ...],
    ) -> None:
        lacking = scratch.shortfall(amounts)
        if lacking is not None:
            raise OverCapacityError(
                f"{id_} on {scratch.node.name}: {NAMES[lacking]}: asked {amounts[lacking]}, free "
                f"{max(0, scratch.columns[lacking])}"
            )
        if cpus and (
            not set(cpus) <= set(scratch.node.cpus) or set(cpus) & self.pinned(scratch.node.name)
        ):
            raise OverCapacityError(f"{id_} on {scratch.node.name}: CPUs {cpus} are not free")
        trial = {
            card.uuid: (card, list(state))
            for card, state in zip(scratch.node.devices, scratch.cards, strict=False)
        }
        for claim in claims:
            card, state = trial[claim.uuid]
            if not claim_fits(card, state, claim):
                raise OverCapacityError(f"{id_} on {scratch.node.name}: {claim.device} is taken")
            take(state, card, claim)

    def pinned(self, name: str) -> set[int]:
        """Return the CPUs of a node that exclusive sandboxes are pinned to."""
        return {
            cpu
            for id_ in self._on.keys_of(name)
            if not (booking := self._bookings[id_]).paused
            for cpu in booking.cpus
        }

    def release(self, id_: str) -> bool:
        """Give back what a sandbox holds; False where it holds nothing."""
        booking = self._bookings.pop(id_, None)
        if booking is None:
            return False
        self._forget(id_, booking)
        self.settle()
        row = self._rows[booking.node]
        if booking.claims:
            self._rebuild(row)
        else:
            scratch = self.load(row, cards=False)
            scratch.count(_held(booking), booking.request.stage, -1)
            self.store(scratch)
        return True

    def _forget(self, id_: str, booking: Booking) -> None:
        self._on.drop(booking.node, id_)
        if booking.request.near:
            self._groups.drop(booking.request.near, booking.node)
        if booking.request.spread:
            self._groups.drop(booking.request.spread, booking.node)

    def pause(self, id_: str) -> None:
        """Give back CPU and pinned CPUs; memory, disk and cards are kept. KeyError if unknown."""
        booking = self._bookings[id_]
        if not booking.paused:
            self._bookings[id_] = booking._replace(paused=True)
            self._swap(booking, _compressible(booking.amounts), back=True)

    def resume(self, id_: str) -> Booking:
        """Take CPU again, or OverCapacityError and stay paused; pinned CPUs may be others."""
        booking = self._bookings[id_]
        if not booking.paused:
            return booking
        asked = _compressible(booking.amounts)
        scratch = self.load(self.row(booking.node), cards=False)
        lacking = scratch.shortfall(asked)
        if lacking is not None:
            raise OverCapacityError(
                f"{id_} on {booking.node}: {NAMES[lacking]}: asked {asked[lacking]}, free "
                f"{max(0, scratch.columns[lacking])}"
            )
        cpus = self.free_cpus(booking.node, booking.amounts[Column.PINS])
        resumed = self._bookings[id_] = booking._replace(paused=False, cpus=cpus)
        self._swap(booking, asked, back=False)
        return resumed

    def free_cpus(self, name: str, count: int) -> tuple[int, ...]:
        """Return the first `count` CPUs of a node that nobody is pinned to."""
        if not count:
            return ()
        taken = self.pinned(name)
        return tuple([cpu for cpu in self._nodes[name].cpus if cpu not in taken][:count])

    def _swap(self, booking: Booking, amounts: tuple[int, ...], *, back: bool) -> None:
        scratch = self.load(self.row(booking.node), cards=False)
        scratch.count(amounts, times=-1 if back else 1)
        self.store(scratch)

    # -- copies and digests ---------------------------------------------------------------------

    def fork(self) -> "ClusterView":
        """Return a copy that can be changed apart; arrays are copied, descriptions shared."""
        self.settle()
        other = ClusterView()
        other._nodes, other._texts = dict(self._nodes), dict(self._texts)
        other._bookings = dict(self._bookings)
        other._on, other._groups = self._on.fork(), self._groups.fork()
        other._order, other._rows, other.described = self._order, self._rows, self.described
        other.marks = self.marks
        other._profile_numbers = dict(self._profile_numbers)
        other.profiles = list(self.profiles)
        other.columns, other.cards = self.columns.copy(), self.cards.copy()
        other.totals = self.totals.copy()
        other.profile = self.profile.copy()
        other.generation, other.numbering = self.generation, self.numbering
        other.floors = list(self.floors)
        other.uneven = self.uneven
        other.touched = set(self.touched)
        other.cache = self.cache.fork() if self.cache else None
        return other

    def digest(self) -> str:
        """Return a hash of nodes, figures and bookings; equal contents give equal digests."""
        self.settle()
        content = hashlib.sha256()
        for name in sorted(self._nodes):
            scratch = self.load(self._rows[name], cards=True)
            node = self._nodes[name]
            known = self._texts.get(name)
            if known is None or known[0] is not node:
                known = self._texts[name] = (node, canonical(node))
            content.update(f"{known[1]} {scratch.columns} {scratch.cards}".encode())
        # equal requests are many, and their texts are what takes time
        texts: dict[tuple[object, ...], str] = {}
        for id_ in sorted(self._bookings):
            request, *held = self._bookings[id_]
            resources, *wishes = request.class_key()
            key = (id(resources), *wishes)
            text = texts.get(key)
            if text is None:
                text = texts[key] = canonical((resources, wishes))
            content.update(f"{id_!r} {text} {held!r}".encode())
        return content.hexdigest()


def _held(booking: Booking) -> tuple[int, ...]:
    if not booking.paused:
        return booking.amounts
    return tuple(
        a - b for a, b in zip(booking.amounts, _compressible(booking.amounts), strict=True)
    )


def _compressible(amounts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the part that a paused sandbox gives back."""
    return tuple(
        amount if column in (Column.CPU, Column.PINS) else 0
        for column, amount in enumerate(amounts)
    )
