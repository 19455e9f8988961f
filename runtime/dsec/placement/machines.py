"""Nodes as arrays with one column each, in a fixed order, and what is free on them.

The order is by a hash of the name, real nodes before simulated ones. It depends on nothing but the
set of names, so that equal contents give equal decisions whatever the history. Adding and removing
nodes is gathered and done in one step before the next read. Figures of one node are changed as
plain Python numbers that are written back at once: numpy is slow on single values.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dsec.placement.accelerators import Card, CardState, Claim, idle, summary
from dsec.placement.dimensions import NAMES, UNMETERED, Column
from dsec.placement.request import LEVELS, Node
from dsec.placement.scratch import SUMMARY, Marks, Scratch, marks_of, totals

Ints = NDArray[np.int64]
_COLUMNS = len(Column)
_FEW = 3
"""Rows, or cards, that are quicker handled one by one."""
SPARE_PROFILES = 64
"""Descriptions beyond two a node that are kept although no node has them any more."""
SELDOM = (int(Column.PIDS), int(Column.DISK), int(Column.DENSITY))
"""Columns that seldom lack room: a lower bound over all nodes mostly saves comparing them."""
Taken = tuple[tuple[int, ...], tuple[Claim, ...], str]
"""Amounts of the columns, claims on cards, and the stage of one who holds something."""


class Machines:
    """Descriptions and figures of nodes. `view.ClusterView` adds who holds what."""

    __slots__ = (
        "_domains",
        "_gone",
        "_nodes",
        "_order",
        "_pending",
        "_profile_numbers",
        "_rows",
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

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._order: list[tuple[bool, bytes, str]] = []
        self._rows: dict[str, int] = {}
        self._pending: set[str] = set()
        self._gone: set[str] = set()
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

    def _taken(self, name: str) -> Iterable[Taken]:
        """Return what is held on a node."""
        raise NotImplementedError

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

    def remove(self, name: str) -> bool:
        """Take a node away; False where it is unknown."""
        if self._nodes.pop(name, None) is None:
            return False
        self.generation += 1
        self._pending.discard(name)
        if name in self._rows:
            self._gone.add(name)
        return True

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Descriptions by name."""
        return MappingProxyType(self._nodes)

    def _redescribe(self, node: Node) -> None:
        row = self._rows[node.name]
        self.uneven = self.uneven or any(True for _ in self._taken(node.name))
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
        for amounts, claims, stage in self._taken(node.name):
            scratch.take(amounts, claims, stage)
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
        found: list[list[int]] = self.columns.take(rows, axis=1).T.tolist()
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
            self.columns[:, rows] = _array([one for _, one in columns]).T
        states = [(row, number, one) for row, of in cards for number, one in of.items()]
        if len(states) <= _FEW:
            for row, number, one in states:
                self.cards[:, row, number] = one
        elif states:
            at = [row for row, _, _ in states], [number for _, number, _ in states]
            self.cards[:, at[0], at[1]] = _array([one for _, _, one in states]).T

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


def _array(figures: Sequence[Sequence[int]]) -> Ints:
    """Return figures of equal length as an array: in half the time that `np.array` takes."""
    size = len(figures) * len(figures[0])
    return np.fromiter(chain.from_iterable(figures), np.int64, size).reshape(len(figures), -1)


def _order_key(node: Node) -> tuple[bool, bytes, str]:
    hashed = hashlib.blake2b(node.name.encode(), digest_size=8).digest()
    return node.simulated, hashed, node.name
