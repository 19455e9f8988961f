"""The search for the best node of one class of requests, and what it does to the view."""

from bisect import insort
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from dsec.placement.accelerators import EXCLUSIVE, SLICED
from dsec.placement.asked import Asked, amounts_of
from dsec.placement.cards import Chooser, ClientChooser, Flags, WholeChooser
from dsec.placement.derived import Derived, StaticClass
from dsec.placement.dimensions import LIMIT, Column
from dsec.placement.filters import room
from dsec.placement.machines import SELDOM
from dsec.placement.potential import Potential
from dsec.placement.pricing import Kind, Pricing
from dsec.placement.request import Decision, Request
from dsec.placement.scratch import STAGE_COLUMN
from dsec.placement.slices import SliceChooser
from dsec.placement.spots import Spot
from dsec.placement.stranding import CANDIDATES, Floats, Ints
from dsec.placement.view import ClusterView

FIRST_BLOCK = 512
"""Rows looked at first; each further block is twice as large."""
OPENED = 8
"""Nodes that are opened together: many are quicker than each by itself, but some go unused."""
_NOTHING: Ints = np.zeros(0, dtype=np.int64)
_CPU, _WHOLE = int(Column.CPU), int(Column.WHOLE)
_MEMORY, _PINS = int(Column.MEMORY), int(Column.PINS)
_STAGES = [int(column) for column in STAGE_COLUMN.values()]
_NOBODY = (float("inf"), 0)


class Search:
    """Candidates of one class of requests, found as they are needed."""

    __slots__ = (
        "_amounts",
        "_at",
        "_cards",
        "_chooser",
        "_compare",
        "_counts",
        "_derived",
        "_order",
        "_rest",
        "_view",
        "asked",
        "potential",
        "pricing",
        "request",
        "static",
        "window",
    )

    def __init__(
        self,
        view: ClusterView,
        derived: Derived,
        potential: Potential,
        request: Request,
        asked: Asked,
        *,
        record: bool = False,
        within: Ints | None = None,
    ) -> None:
        self._view, self._derived, self.potential = view, derived, potential
        self.request, self.asked = request, asked
        self.static = derived.static_class(view, request, asked)
        self._order = self.static.rows
        if within is not None:
            order = np.arange(len(view.described)) if self._order is None else self._order
            self._order = order[np.isin(order, within)]
        if request.avoid:
            avoided = [view.row(name) for name in request.avoid if name in view.nodes]
            order = np.arange(len(view.described)) if self._order is None else self._order
            self._order = order[~np.isin(order, avoided)]
        self._amounts: tuple[int, ...] | None = None
        # of the columns that seldom lack room only those where some node may
        self._compare: list[tuple[int, int | Ints]] = [
            (column, amount)
            for column, amount in room(request, asked, watermarks=derived.watermarked)
            if column not in SELDOM or view.binds(column, amount)
        ]
        self._compare_cpu()
        self._chooser = _chooser_for(view, derived, potential, self.static, asked)
        kind = Kind(request, asked, self.static, self._chooser, self._amounts)
        self.pricing = Pricing(view, derived, potential, kind, record=record)
        self._cards = len(derived.kinds) > 1
        self.window = CANDIDATES
        self._counts: Floats | None = None
        if request.spread:
            # the emptiest node may be the last: every node is looked at
            self.window = max(1, len(view.described))
            self._counts = self._members(request.spread)
        self.restart()

    def _compare_cpu(self) -> None:
        asked, view = self.asked, self._view
        if not asked.relative_shares and not asked.pins:
            self._amounts = amounts_of(asked, view.described[0]) if view.described else ()
            self._compare.append((_CPU, asked.cpu))
            return
        amounts = [amounts_of(asked, node) for node in view.profiles]
        for column in (_CPU, int(Column.PINS)):
            figures = [min(one[column], LIMIT) for one in amounts]
            self._compare.append((column, np.array(figures, dtype=np.int64)[view.profile]))

    def _members(self, group: str) -> Floats:
        counts = np.zeros(len(self._view.described))
        for name, count in self._view.group(group).items():
            counts[self._view.row(name)] = count
        return counts

    def restart(self) -> None:
        """Look from the first row again: something else was booked."""
        self._at = 0
        self._rest: Ints = _NOTHING

    # -- candidates -----------------------------------------------------------------------------

    def more(self, count: int) -> tuple[Ints, Floats]:
        """Return the next `count` rows with room, and their costs; fewer at the end."""
        rows, costs = self._priced(self._next(count))
        while len(rows) < count:
            block = self._next(count - len(rows))
            if not len(block):
                break
            found, cost = self._priced(block)
            rows, costs = np.concatenate((rows, found)), np.concatenate((costs, cost))
        return rows, costs

    def _next(self, count: int) -> Ints:
        """Return up to `count` further rows that have room in every column."""
        size, first = FIRST_BLOCK, not self._at
        if first:
            # nodes at the front have become a little fuller since
            size = max(size, self.static.depth + self.static.depth // 8)
        while len(self._rest) < count:
            found = self._scan(size)
            if found is None:
                break
            self._rest = np.concatenate((self._rest, found)) if len(self._rest) else found
            size *= 2
        block, self._rest = self._rest[:count], self._rest[count:]
        if first:
            self.static.depth = block.item(-1) + 1 if len(block) == count else self._at
        return block if self._order is None else self._order[block]

    def done(self) -> bool:
        """Return whether `more` has nothing left to give."""
        last = len(self._order) if self._order is not None else self._view.columns.shape[1]
        return self._at >= last and not len(self._rest)

    def _scan(self, size: int) -> Ints | None:
        """Return the places in the order of the next rows with room; None at the end."""
        order, columns = self._order, self._view.columns
        last = len(order) if order is not None else columns.shape[1]
        start = self._at
        if start >= last:
            return None
        end = self._at = min(last, start + size)
        mask: Flags | None = None
        block = slice(start, end) if order is None else order[start:end]
        for column, asked in self._compare:
            fits = columns[column][block] >= (asked if isinstance(asked, int) else asked[block])
            if mask is None:
                mask = fits
            else:
                mask &= fits
        found: Ints = np.arange(end - start) if mask is None else mask.nonzero()[0]
        return found + start if start else found

    def _priced(self, rows: Ints) -> tuple[Ints, Floats]:
        """Return those rows whose cards suffice as well, and what each costs."""
        if not len(rows):
            return rows, np.zeros(0)
        p, weights = self.potential, self._derived.weights
        stranded: Floats | None = None
        if self._cards:
            left = self._view.columns[_CPU][rows]
            left -= self._cpu_of(rows)
            if self._chooser is not None:
                rows, stranded = self._chooser.candidates(rows, left)
            else:
                idle = p.idle[rows] if p.surface.keeps else None
                stranded = p.surface.read(p.group[rows], left, p.usable[rows], idle)
                stranded -= p.stranded[rows]
        cost = self.static.base[rows]
        if stranded is not None:
            stranded *= weights.stranding
            cost += stranded
        if weights.balance and not self.asked.mode:
            cost += weights.balance * self._imbalance(rows)
        if self.request.stage in STAGE_COLUMN:
            columns = self._view.columns
            same = columns[STAGE_COLUMN[self.request.stage]][rows]
            every = columns[_STAGES[0]][rows]
            for column in _STAGES[1:]:
                every += columns[column][rows]
            np.maximum(every, 1, out=every)
            part = same / every
            part *= weights.stage
            cost += part
        if self._counts is not None:
            cost += weights.spread * self._counts[rows]
        return rows, cost

    def _cpu_of(self, rows: Ints) -> int | Ints:
        if self._amounts is not None:
            return self.asked.cpu
        asked = next(asked for column, asked in self._compare if column == _CPU)
        return asked if isinstance(asked, int) else asked[rows]

    def _imbalance(self, rows: Ints) -> Floats:
        columns, totals = self._view.columns, self._view.totals
        cpu = columns[_CPU][rows] - self._cpu_of(rows)
        memory = columns[_MEMORY][rows] - self.asked.memory
        cpus, memories = np.maximum(totals[_CPU][rows], 1), np.maximum(totals[_MEMORY][rows], 1)
        return np.asarray(np.abs(cpu / cpus - memory / memories))

    # -- placing --------------------------------------------------------------------------------

    def place(self, members: Sequence[Request]) -> list[Decision]:
        """Place equal requests, each where it costs least after those before it.

        The last of them may lack room: decisions are only of those that have some.
        """
        rows, costs = self.more(self.window)
        if not len(rows) or not members:
            return []
        pricing = self.pricing
        if len(members) == 1:
            (spot,) = spots = pricing.open([rows.item(costs.argmin())], several=False)
            _sure(pricing, spot)
            only = pricing.enter(members[0], spot)
            pricing.close(spots)
            return [only]
        turns = _Turns(self, rows, costs, len(members))
        found = turns.take(members)
        pricing.close(turns.spots)
        return found


def _sure(pricing: Pricing, spot: Spot) -> None:
    if not pricing.price(spot):
        raise AssertionError(f"{spot.node.name}: arrays and figures differ")


class _Turns:
    """Whose turn it is: of the nodes that were opened and those that were not, the cheapest."""

    def __init__(self, search: Search, rows: Ints, costs: Floats, most: int) -> None:
        self._search, self._pricing = search, search.pricing
        # each request opens one at most
        order = costs.argsort(kind="stable")[: most + OPENED]
        self._closed = list(zip(costs[order].tolist(), order.tolist(), strict=True))
        """Those that were not opened, from `_first` on; of equal ones in the order of nodes."""
        self._first = 0
        self._rows: list[int] = rows.tolist()
        self._spare: list[tuple[float, int]] = []
        self._opened: list[tuple[float, int]] = []
        """A heap of (cost, number of candidate)."""
        self._ready: dict[int, Spot] = {}
        self.spots: list[Spot] = []

    def take(self, members: Sequence[Request]) -> list[Decision]:
        """Place requests one after the other; whoever has a turn keeps it while it is cheapest."""
        enter, price = self._pricing.enter, self._pricing.price
        opened, closed = self._opened, self._closed
        found: list[Decision] = []
        left = iter(members)
        member = next(left, None)
        while member is not None:
            turn = self._next()
            if turn is None:
                break
            at, spot = turn
            rival = closed[self._first] if self._first < len(closed) else _NOBODY
            if opened and opened[0] < rival:
                rival = opened[0]
            found.append(enter(member, spot))
            member = None
            for following in left:
                if not price(spot):
                    self._refill()
                elif (spot.cost, at) < rival:
                    found.append(enter(following, spot))
                    continue
                else:
                    heappush(opened, (spot.cost, at))
                member = following
                break
        return found

    def _next(self) -> tuple[int, Spot] | None:
        """Take out the cheapest node, with its number; None where no node has room."""
        closed, opened, first = self._closed, self._opened, self._first
        if opened and (first == len(closed) or opened[0] < closed[first]):
            at = heappop(opened)[1]
            return at, self._ready[at]
        if first == len(closed):
            return None
        at = closed[first][1]
        if at not in self._ready:
            # with those that come next
            block = [one for _, one in closed[first : first + OPENED] if one not in self._ready]
            spots = self._pricing.open([self._rows[one] for one in block])
            self._ready.update(zip(block, spots, strict=True))
            self.spots += spots
        self._first += 1
        _sure(self._pricing, self._ready[at])
        return at, self._ready[at]

    def _refill(self) -> None:
        """Put another candidate in the place of one that is full."""
        if not self._spare and not self._search.done():
            rows, costs = self._search.more(CANDIDATES // 4)
            first = len(self._rows)
            self._rows += rows.tolist()
            numbers = range(first, len(self._rows))
            self._spare = list(zip(costs.tolist(), numbers, strict=True))[::-1]
        if self._spare:
            insort(self._closed, self._spare.pop(), self._first)


def _chooser_for(
    view: ClusterView, derived: Derived, potential: Potential, static: StaticClass, asked: Asked
) -> Chooser | None:
    """Return the chooser for a class of requests; None where it asks for no cards."""
    if not asked.mode:
        return None
    if asked.mode in EXCLUSIVE:
        return WholeChooser(view, derived, potential, static, asked)
    if asked.mode == SLICED:
        return SliceChooser(view, derived, potential, static, asked)
    return ClientChooser(view, derived, potential, static, asked)
