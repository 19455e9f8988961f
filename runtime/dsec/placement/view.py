"""The cluster as placement sees it: nodes, what is free, and who holds it. One writer, no clock.

Offered to others: `put`, `remove`, `book`, `release`, `pause`, `resume`, `fork`, `digest`,
`bookings`, `on` (who is on a node), `group` (where a near or spread group runs), `room` (what is
free on a node).

Inside it is arrays with one column per node in a fixed order: by a hash of the name, real nodes
before simulated ones. The order depends on nothing but the set of names, so that equal contents
give equal decisions whatever the history. Adding and removing nodes is gathered and done in one
step before the next read. Figures of one node are changed through `Scratch`, plain Python numbers
that are written back at once: numpy is slow on single values.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dsec.placement.accelerators import Card, CardState, Claim, idle, summary, take
from dsec.placement.asked import Asked, OverCapacityError, amounts_of, canonical, claims_of
from dsec.placement.buckets import Buckets
from dsec.placement.dimensions import NAMES, UNMETERED, Column
from dsec.placement.request import LEVELS, Decision, Health, Node, Request
from dsec.placement.scratch import SUMMARY, Marks, Scratch, claim_fits, marks_of, totals

Ints = NDArray[np.int64]
_COLUMNS = len(Column)
_FEW = 3
"""Rows, or cards, that are quicker handled one by one."""
_WISHES = attrgetter(*(name for name in Request.__slots__ if name not in ("id", "resources")))
SPARE_PROFILES = 64
"""Descriptions beyond two a node that are kept although no node has them any more."""
SELDOM = (int(Column.PIDS), int(Column.DISK), int(Column.DENSITY))
"""Columns that seldom lack room: a lower bound over all nodes mostly saves comparing them."""


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


class ClusterView:
    """Nodes and bookings. Not safe for two threads; `fork` for what-if."""

    __slots__ = (
        "_bookings",
        "_domains",
        "_gone",
        "_groups",
        "_nodes",
        "_on",
        "_order",
        "_pending",
        "_profile_numbers",
        "_rows",
        "_texts",
        "cache",
        "cards",
        "columns",
        "described",
        "floors",
        "generation",
        "marks",
        "numbering",
        "profile",
        "profiles",
        "totals",
        "touched",
        "uneven",
    )

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes: dict[str, Node] = {}
        self._bookings: dict[str, Booking] = {}
        self._on = Buckets()
        self._groups = Buckets()
        self._order: list[tuple[bool, bytes, str]] = []
        self._rows: dict[str, int] = {}
        self._pending: set[str] = set()
        self._gone: set[str] = set()
        self._texts: dict[str, tuple[Node, str]] = {}
        """Of descriptions, for digests."""
        self._domains: dict[str, tuple[int, Ints]] = {}
        self._profile_numbers: dict[tuple[object, ...], int] = {}
        self.profiles: list[Node] = []
        """One node of each static description: filters look at these, not at every node."""
        self.numbering = 0
        """Grows when the numbers of profiles begin anew."""
        self.described: list[Node] = []
        """Descriptions by row."""
        self.marks: list[Marks | None] = []
        """Watermarks by row."""
        self.columns: Ints = np.zeros((_COLUMNS, 0), dtype=np.int64)
        """[column, row]: free amounts and what follows from them."""
        self.totals: Ints = np.zeros((_COLUMNS, 0), dtype=np.int64)
        """[column, row]: what there is in all."""
        self.cards: Ints = np.zeros((len(Card), 0, 1), dtype=np.int64)
        """[field, row, card]; a card that a node lacks is 0 in every field."""
        self.profile: Ints = np.zeros(0, dtype=np.int64)
        self.floors = [UNMETERED] * _COLUMNS
        """No node has less free than this, in the columns of `SELDOM`."""
        self.generation = 0
        """Grows with every change of descriptions, never repeats."""
        self.uneven = False
        """Some client took another part of a card's memory than of its milli. Until then a card
        with enough milli has enough memory."""
        self.touched: set[int] = set()
        """Rows whose figures have changed since the engine last looked."""
        self.cache: Forkable | None = None
        """Of the engine: what it has derived from the view so far."""
        for node in nodes:
            self.put(node)

    # -- nodes ----------------------------------------------------------------------------------

    def put(self, node: Node) -> None:
        """Add a node, or replace its description; bookings are kept."""
        known = self._nodes.get(node.name)
        if known == node:
            return
        self.generation += 1
        self._nodes[node.name] = node
        if known is not None and known.simulated is node.simulated and node.name in self._rows:
            if node.name not in self._pending:
                self._redescribe(node)
            return
        if node.name in self._rows:
            self._gone.add(node.name)
        self._pending.add(node.name)

    def remove(self, name: str) -> None:
        """Take a node away, and every booking on it; unknown names are ignored."""
        if self._nodes.pop(name, None) is None:
            return
        self.generation += 1
        self._texts.pop(name, None)
        for id_ in self._on.keys_of(name):
            self._forget(id_, self._bookings.pop(id_))
        self._pending.discard(name)
        if name in self._rows:
            self._gone.add(name)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Descriptions by name."""
        return MappingProxyType(self._nodes)

    def _redescribe(self, node: Node) -> None:
        row = self._rows[node.name]
        self.uneven = self.uneven or bool(self._on.get(node.name))
        # lists are shared with forks: replaced, never changed in place
        self.described = [*self.described]
        self.described[row] = node
        self.marks = [*self.marks]
        self.profile[row] = self._profile_of(node)
        self._widen(len(node.devices))
        self._rebuild(row)

    def _profile_of(self, node: Node) -> int:
        key = (
            node.labels,
            node.taints,
            node.pool,
            node.kind,
            node.size,
            node.isolation,
            node.features,
            node.simulated,
            node.health,
            tuple(
                (d.model, d.memory_bytes, d.modes, d.slicing, d.healthy, d.clients)
                for d in node.devices
            ),
            node.cpu_milli,
            node.overcommit_milli,
            node.cpus,
            node.price_micro,
            node.segment,
        )
        number = self._profile_numbers.get(key)
        if number is None:
            number = self._profile_numbers[key] = len(self.profiles)
            self.profiles.append(node)
        return number

    def _renumber(self) -> None:
        """Forget the descriptions that no node has any more."""
        self.profiles, self._profile_numbers = [], {}
        numbers = [self._profile_of(node) for node in self.described]
        self.profile = np.array(numbers, dtype=np.int64)
        self.generation += 1
        self.numbering += 1

    def _widen(self, cards: int) -> None:
        lacking = cards - self.cards.shape[2]
        if lacking > 0:
            self.cards = np.pad(self.cards, ((0, 0), (0, 0), (0, lacking)))

    def settle(self) -> None:
        """Bring the arrays up to date with nodes that came and went."""
        if len(self.profiles) > 2 * len(self._nodes) + SPARE_PROFILES:
            self._renumber()
        if not self._pending and not self._gone:
            return
        if self._gone:
            rows = sorted(self._rows[name] for name in self._gone)
            self.columns = np.delete(self.columns, rows, axis=1)
            self.totals = np.delete(self.totals, rows, axis=1)
            self.cards = np.delete(self.cards, rows, axis=1)
            self.profile = np.delete(self.profile, rows)
            gone = set(rows)
            self._order = [one for row, one in enumerate(self._order) if row not in gone]
            self.described = [one for row, one in enumerate(self.described) if row not in gone]
            self.marks = [one for row, one in enumerate(self.marks) if row not in gone]
        new = sorted(_order_key(self._nodes[name]) for name in self._pending)
        if new:
            nodes = [self._nodes[name] for _, _, name in new]
            self._widen(max(len(node.devices) for node in nodes))
            at = [bisect_left(self._order, key) for key in new]
            empty = np.zeros((_COLUMNS, len(new)), np.int64)
            self.columns = np.insert(self.columns, at, empty, axis=1)
            self.totals = np.insert(self.totals, at, empty, axis=1)
            self.cards = np.insert(self.cards, at, 0, axis=1)
            self.profile = np.insert(self.profile, at, [self._profile_of(one) for one in nodes])
            self._order = sorted([*self._order, *new])
            self.described = [self._nodes[name] for _, _, name in self._order]
            self.marks = [marks_of(node) for node in self.described]
        self._rows = {name: row for row, (_, _, name) in enumerate(self._order)}
        added = self._pending
        self._pending, self._gone = set(), set()
        for name in added:
            self._rebuild(self._rows[name])
        self.touched.clear()

    def _rebuild(self, row: int) -> None:
        """Make a row anew from the description and the bookings."""
        node = self.described[row]
        cards = [idle(card) for card in node.devices]
        every = totals(node)
        self.totals[:, row] = every
        self.marks[row] = marks_of(node)
        scratch = Scratch((row, node, self.profile.item(row)), every, cards, self.marks[row])
        for id_ in self._on.keys_of(node.name):
            booking = self._bookings[id_]
            scratch.take(_held(booking), booking.claims, booking.request.stage)
        scratch.changed.update(range(len(cards)))
        self.cards[:, row, :] = 0
        self.store(scratch)

    def domains(self, level: str) -> Ints:
        """Return the number of the domain of each row at a level of `LEVELS`; -1: it is in none.

        Numbers follow the fixed order of nodes, and go with the view's generation.
        """
        self.settle()
        known = self._domains.get(level)
        if known is not None and known[0] == self.generation and len(known[1]) == len(self._order):
            return known[1]
        numbers: dict[tuple[str, ...], int] = {}
        found = np.full(len(self.described), -1, dtype=np.int64)
        for row, node in enumerate(self.described):
            path = (node.region, node.zone, node.rack, node.name)[: 4 - LEVELS.index(level)]
            if path[-1]:
                found[row] = numbers.setdefault(path, len(numbers))
        self._domains[level] = (self.generation, found)
        return found

    # -- figures of one node --------------------------------------------------------------------

    def row(self, name: str) -> int:
        """Return the place of a node in the fixed order; KeyError where it is unknown."""
        self.settle()
        return self._rows[name]

    def __len__(self) -> int:
        return len(self._nodes)

    def load(self, row: int, *, cards: bool) -> Scratch:
        """Return the figures of a row; without `cards` those are left out."""
        node = self.described[row]
        states: list[CardState] = []
        if cards and node.devices:
            states = self.cards[:, row, : len(node.devices)].T.tolist()
        columns = self.columns[:, row].tolist()
        return Scratch((row, node, self.profile.item(row)), columns, states, self.marks[row])

    def load_all(self, rows: Sequence[int]) -> list[list[int]]:
        """Return the columns of several rows."""
        if len(rows) <= _FEW:
            return [self.columns[:, row].tolist() for row in rows]
        found: list[list[int]] = self.columns[:, rows].T.tolist()
        return found

    def states(self, row: int) -> list[CardState]:
        """Return the states of the cards of a row."""
        found: list[CardState] = self.cards[:, row, : len(self.described[row].devices)].T.tolist()
        return found

    def store(self, scratch: Scratch) -> None:
        """Write figures back."""
        if scratch.changed:
            scratch.columns[SUMMARY] = summary(scratch.cards)
        states = {number: scratch.cards[number] for number in scratch.changed}
        self.store_all([(scratch.row, scratch.columns)], [(scratch.row, states)])

    def store_all(
        self,
        columns: Sequence[tuple[int, list[int]]],
        cards: Sequence[tuple[int, Mapping[int, Sequence[int]]]],
    ) -> None:
        """Write (row, its columns) back, and (row, states of cards by number)."""
        floors = self.floors
        for _, figures in columns:
            for column in SELDOM:
                floors[column] = min(floors[column], figures[column])
        self.touched.update([row for row, _ in columns])
        if len(columns) <= _FEW:
            for row, figures in columns:
                self.columns[:, row] = figures
        else:
            rows = [row for row, _ in columns]
            self.columns[:, rows] = np.array([one for _, one in columns], dtype=np.int64).T
        states = [(row, number, one) for row, of in cards for number, one in of.items()]
        if len(states) <= _FEW:
            for row, number, one in states:
                self.cards[:, row, number] = one
        elif states:
            at = [row for row, _, _ in states], [number for _, number, _ in states]
            self.cards[:, at[0], at[1]] = np.array([one for _, _, one in states], np.int64).T

    def binds(self, column: int, amount: int) -> bool:
        """Return whether some node may lack that amount."""
        if amount <= self.floors[column]:
            return False
        free = self.columns[column]
        self.floors[column] = least = int(free.min()) if len(free) else UNMETERED
        return amount > least

    def room(self, name: str) -> dict[str, int]:
        """Return what is free on a node, by the names of refusals."""
        columns = self.load(self.row(name), cards=False).columns
        return {NAMES[column]: columns[column] for column in NAMES}

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
            wishes = _WISHES(request)
            key = (id(request.resources), wishes)
            text = texts.get(key)
            if text is None:
                text = texts[key] = canonical((request.resources, wishes))
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


def _order_key(node: Node) -> tuple[bool, bytes, str]:
    hashed = hashlib.blake2b(node.name.encode(), digest_size=8).digest()
    return node.simulated, hashed, node.name
