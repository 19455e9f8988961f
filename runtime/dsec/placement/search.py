"""The search for the best node of one class of requests, and what it does to the view."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from dsec.placement.accelerators import SLICED, Claim
from dsec.placement.asked import Asked, amounts_of
from dsec.placement.cards import Flags, Pick, chooser_for
from dsec.placement.derived import Derived
from dsec.placement.dimensions import LIMIT, Column
from dsec.placement.filters import room
from dsec.placement.potential import Potential
from dsec.placement.request import Decision, Request
from dsec.placement.scores import STATIC, local_parts
from dsec.placement.scratch import STAGE_COLUMN, Scratch
from dsec.placement.stranding import CANDIDATES, Floats, Ints
from dsec.placement.view import SELDOM, ClusterView

FIRST_BLOCK = 512
"""Rows looked at first; each further block is twice as large."""
_NOTHING: Ints = np.zeros(0, dtype=np.int64)
_CPU, _WHOLE = int(Column.CPU), int(Column.WHOLE)
_MEMORY, _PINS = int(Column.MEMORY), int(Column.PINS)
_STAGES = tuple(int(column) for column in STAGE_COLUMN.values())


class Search:
    """Candidates of one class of requests, found as they are needed."""

    __slots__ = (
        "_at",
        "_cards",
        "_chooser",
        "_compare",
        "_counts",
        "_derived",
        "_lacking",
        "_order",
        "_plain",
        "_record",
        "_rest",
        "_varying",
        "_view",
        "amounts",
        "asked",
        "potential",
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
        self._record = record
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
        self.amounts: tuple[int, ...] | None = None
        """What is booked on any node; None where it differs from node to node."""
        self._compare: list[tuple[int, int | Ints]] = []
        for column, amount in room(request, asked, watermarks=derived.watermarked):
            self._compare.append((column, amount))
        self._compare_cpu()
        # what follows from cards is exact in the cards alone while they are being changed
        own = [one for one in self._compare if one[0] < _WHOLE]
        self._plain = [(column, asked) for column, asked in own if isinstance(asked, int)]
        self._varying = [(column, asked) for column, asked in own if not isinstance(asked, int)]
        # one node is always compared in all columns, many only where one of them can lack
        self._lacking = [
            one
            for one in self._compare
            if one[0] not in SELDOM or view.binds(*one)  # type: ignore[arg-type]  # numbers there
        ]
        self._chooser = chooser_for(view, derived, potential, self.static, asked)
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
            self.amounts = amounts_of(asked, view.described[0]) if view.described else ()
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
        size = max(FIRST_BLOCK, self.static.depth)
        while len(self._rest) < count:
            found = self._scan(size)
            if found is None:
                break
            self._rest = np.concatenate((self._rest, found)) if len(self._rest) else found
            size *= 2
        self.static.depth = self._at
        block, self._rest = self._rest[:count], self._rest[count:]
        return block

    def _done(self) -> bool:
        """Return whether `more` has nothing left to give."""
        last = len(self._order) if self._order is not None else self._view.columns.shape[1]
        return self._at >= last and not len(self._rest)

    def _scan(self, size: int) -> Ints | None:
        """Return the rows of the next block that have room in every column; None at the end."""
        order, columns = self._order, self._view.columns
        last = len(order) if order is not None else columns.shape[1]
        start = self._at
        if start >= last:
            return None
        end = self._at = min(last, start + size)
        mask: Flags | None = None
        block = slice(start, end) if order is None else order[start:end]
        for column, asked in self._lacking:
            free = columns[column]
            amount = asked if isinstance(asked, int) else asked[block]
            if mask is None:
                mask = free[block] >= amount
            else:
                mask &= free[block] >= amount
        if isinstance(block, slice):
            found = np.arange(start, end) if mask is None else np.flatnonzero(mask)
            return found + start if start and mask is not None else found
        return block if mask is None else block[mask]

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
                stranded = p.surface.read(p.group[rows], left, p.usable[rows], p.idle[rows])
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
            every = columns[Column.EXPLORATION :].take(rows, axis=1).sum(axis=0)
            cost += weights.stage * (same / np.maximum(every, 1))
        if self._counts is not None:
            cost += weights.spread * self._counts[rows]
        return rows, cost

    def _cpu_of(self, rows: Ints) -> int | Ints:
        if self.amounts is not None:
            return self.asked.cpu
        asked = next(asked for column, asked in self._compare if column == _CPU)
        return asked if isinstance(asked, int) else asked[rows]

    def _imbalance(self, rows: Ints) -> Floats:
        columns, totals = self._view.columns, self._view.totals
        cpu = columns[_CPU][rows] - self._cpu_of(rows)
        memory = columns[_MEMORY][rows] - self.asked.memory
        cpus, memories = np.maximum(totals[_CPU][rows], 1), np.maximum(totals[_MEMORY][rows], 1)
        return np.asarray(np.abs(cpu / cpus - memory / memories))

    # -- one node -------------------------------------------------------------------------------

    def spot(self, row: int) -> "Spot":
        """Return a node that something may be placed on."""
        p = self.potential
        scratch = self._view.load(row, cards=self._chooser is not None)
        return Spot(scratch, p.usable.item(row), p.stranded.item(row), p.idle.item(row))

    def price(self, spot: "Spot") -> bool:
        """Find cards and cost on one node, the same as `more` finds; False where it has no room."""
        scratch = spot.scratch
        columns, row = scratch.columns, scratch.row
        for column, amount in self._plain:
            if columns[column] < amount:
                return False
        for column, amounts in self._varying:
            if columns[column] < amounts.item(row):
                return False
        weights = self._derived.weights
        cost = self.static.base.item(row)
        if self._cards:
            stranded = self._strand(spot)
            if stranded is None:
                return False
            cost += stranded * weights.stranding
        if weights.balance and not self.asked.mode:
            cost += weights.balance * self._imbalance_of(scratch)
        if self.request.stage in STAGE_COLUMN:
            same = columns[STAGE_COLUMN[self.request.stage]]
            every = columns[_STAGES[0]] + columns[_STAGES[1]] + columns[_STAGES[2]]
            cost += weights.stage * (same / max(every, 1))
        if self._counts is not None:
            count = self._view.group(self.request.spread).get(scratch.node.name, 0)
            cost += weights.spread * float(count)
        spot.cost = cost
        return True

    def _strand(self, spot: "Spot") -> float | None:
        """Find cards and what is stranded by giving them; None where they do not suffice."""
        scratch, p = spot.scratch, self.potential
        booked = self.amounts or amounts_of(self.asked, scratch.node)
        group, left = p.group_of_profile[scratch.profile], scratch.columns[_CPU] - booked[_CPU]
        if self._chooser is None:
            spot.next_usable = spot.usable
            spot.next_stranded = p.surface.read_one(group, left, spot.usable, spot.idle)
            return spot.next_stranded - spot.stranded
        pick = spot.pick = self._chooser.pick(scratch)
        if pick is None:
            return None
        spot.next_usable = max(spot.usable - pick.taken - pick.change, 0.0)
        idle = spot.next_idle = spot.idle - pick.broken
        spot.next_stranded = p.surface.read_one(group, left, spot.next_usable, idle)
        return spot.next_stranded + pick.change - spot.stranded + pick.extra

    def _imbalance_of(self, scratch: Scratch) -> float:
        totals, amounts = self._view.totals, self.amounts or amounts_of(self.asked, scratch.node)
        cpu = scratch.columns[_CPU] - amounts[_CPU]
        memory = scratch.columns[_MEMORY] - self.asked.memory
        cpus, memories = totals.item(_CPU, scratch.row), totals.item(_MEMORY, scratch.row)
        # as floats before the division, as arrays do it
        return abs(float(cpu) / max(1, cpus) - float(memory) / max(1, memories))

    # -- placing --------------------------------------------------------------------------------

    def place(self, members: Sequence[Request]) -> list[Decision | None]:
        """Place equal requests, each where it costs least after those before it; None: no room."""
        rows, costs = self.more(self.window)
        if len(members) == 1:
            return [self._first(members[0], rows, costs)]
        places = rows.tolist()
        heap = list(zip(costs.tolist(), range(len(places)), strict=True))
        heapify(heap)
        spots: dict[int, Spot] = {}
        spare: list[tuple[float, int]] = []
        found: list[Decision | None] = []
        for member in members:
            if not heap:
                found.append(None)
                continue
            at = heap[0][1]
            spot = spots.get(at)
            if spot is None:
                spot = spots[at] = self.spot(places[at])
                self._sure(spot)
            found.append(self._enter(member, spot))
            if self.price(spot):
                heapreplace(heap, (spot.cost, at))
                continue
            heappop(heap)
            if not spare and not self._done():
                rows, costs = self.more(CANDIDATES // 4)
                spare = list(zip(costs.tolist(), range(len(places), len(places) + len(rows))))[::-1]  # noqa: B905  equal by construction
                places += rows.tolist()
            if spare:
                heappush(heap, spare.pop())
        for spot in spots.values():
            self._store(spot)
        return found

    def _first(self, member: Request, rows: Ints, costs: Floats) -> Decision | None:
        """Place a single request: no heap, no second look."""
        if not len(rows):
            return None
        spot = self.spot(rows.item(costs.argmin()))
        self._sure(spot)
        decision = self._enter(member, spot)
        self._store(spot)
        return decision

    def _sure(self, spot: "Spot") -> None:
        if not self.price(spot):
            raise AssertionError(f"{spot.scratch.node.name}: arrays and figures differ")

    def _enter(self, member: Request, spot: "Spot") -> Decision:
        """Book a request on a node that was priced."""
        scratch, pick = spot.scratch, spot.pick
        name = scratch.node.name
        amounts = self.amounts or amounts_of(self.asked, scratch.node)
        cpus = self._view.free_cpus(name, amounts[_PINS]) if self.asked.pins else ()
        claims: tuple[Claim, ...] = ()
        devices: tuple[str, ...] = ()
        if pick is not None:
            claims = pick.claims
            devices = tuple([one.device if one.slices else one.uuid for one in claims])
        scores = self._scores(spot) if self._record else ()
        decision = Decision(member.id, name, devices, (), scores, cpus)
        self._view.commit(scratch, member, decision, amounts, claims)
        spot.usable, spot.stranded = spot.next_usable, spot.next_stranded
        spot.idle = spot.next_idle
        return decision

    def _scores(self, spot: "Spot") -> tuple[tuple[str, float], ...]:
        """Return the parts of a priced node's cost by name; they sum to `cost` but for rounding."""
        scratch, weights = spot.scratch, self._derived.weights
        parts = [
            (name, float(getattr(weights, name)) * part(scratch.node, self.request, self.asked))
            for name, part in STATIC
        ]
        parts += local_parts(scratch.node, self.request, weights)
        parts.append(("order", self._derived.order.item(scratch.row)))
        if self.request.stage in STAGE_COLUMN:
            same = scratch.columns[STAGE_COLUMN[self.request.stage]]
            every = sum(scratch.columns[Column.EXPLORATION :])
            parts.append(("stage", weights.stage * (same / max(every, 1))))
        if self._counts is not None:
            count = self._view.group(self.request.spread).get(scratch.node.name, 0)
            parts.append(("spread", weights.spread * count))
        rest = spot.cost - sum(value for _, value in parts)
        named = [(name, value) for name, value in parts if value]
        return (("cost", spot.cost), ("stranding", rest), *named)

    def _store(self, spot: "Spot") -> None:
        scratch = spot.scratch
        self._view.store(scratch)
        if self._chooser is None:
            self.potential.stranded[scratch.row] = spot.stranded
        elif self.asked.mode == SLICED:
            # what was counted as cut may differ from what was
            self.potential.update(scratch)
        else:
            self.potential.update(scratch, (spot.usable, spot.stranded))
        self._view.touched.discard(scratch.row)


class Spot:
    """A node while requests are placed on it: its figures, and what the next one makes of them."""

    __slots__ = (
        "cost",
        "idle",
        "next_idle",
        "next_stranded",
        "next_usable",
        "pick",
        "scratch",
        "stranded",
        "usable",
    )

    def __init__(self, scratch: Scratch, usable: float, stranded: float, idle: int) -> None:
        self.scratch = scratch
        self.usable = self.next_usable = usable
        self.stranded = self.next_stranded = stranded
        self.idle = self.next_idle = idle
        self.pick: Pick | None = None
        self.cost = 0.0
