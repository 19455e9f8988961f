"""The search for the best node of one class of requests, and what it does to the view."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from dsec.placement.accelerators import Claim
from dsec.placement.asked import Asked, amounts_of
from dsec.placement.cards import CardChooser, Flags
from dsec.placement.derived import Derived
from dsec.placement.dimensions import LIMIT, Column
from dsec.placement.filters import room
from dsec.placement.potential import Potential
from dsec.placement.request import Decision, Request
from dsec.placement.scores import LOCAL, STATIC
from dsec.placement.stranding import CANDIDATES, Floats, Ints
from dsec.placement.view import STAGE_COLUMN, ClusterView, Scratch

FIRST_BLOCK = 512
"""Rows looked at first; each further block is twice as large."""
_NOTHING: Ints = np.zeros(0, dtype=np.int64)
_NONE: Flags = np.zeros((0, 0), dtype=bool)
_CPU = int(Column.CPU)


class Search:
    """Candidates of one class of requests, found as they are needed."""

    __slots__ = (
        "_at",
        "_chooser",
        "_compare",
        "_counts",
        "_derived",
        "_order",
        "_record",
        "_rest",
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
    ) -> None:
        self._record = record
        self._view, self._derived, self.potential = view, derived, potential
        self.request, self.asked = request, asked
        self.static = derived.static_class(view, request, asked)
        self._order = self.static.rows
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
        self._chooser: CardChooser | None = None
        if asked.mode:
            self._chooser = CardChooser(view, derived, potential, self.static, asked)
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
        rows: list[Ints] = []
        costs: list[Floats] = []
        size = FIRST_BLOCK
        while count > 0:
            if not len(self._rest) and not self._scan(size):
                break
            size *= 2
            block, self._rest = self._rest[:count], self._rest[count:]
            offers: Ints | Flags = _NONE
            if self._chooser is not None:
                enough, offers = self._chooser.open(block)
                if not enough.all():
                    block, offers = block[enough], offers[enough]
            if len(block):
                rows.append(block)
                costs.append(self._costs(block, offers))
                count -= len(block)
        if len(rows) == 1:
            return rows[0], costs[0]
        return (np.concatenate(rows), np.concatenate(costs)) if rows else (_NOTHING, np.zeros(0))

    def _scan(self, size: int) -> bool:
        """Put rows of the next block that have room for the columns into `_rest`."""
        order, columns = self._order, self._view.columns
        last = len(order) if order is not None else columns.shape[1]
        start = self._at
        if start >= last:
            return False
        end = self._at = min(last, start + size)
        mask = np.ones(end - start, dtype=bool)
        if order is None:
            for column, asked in self._compare:
                amount = asked if isinstance(asked, int) else asked[start:end]
                np.logical_and(mask, columns[column, start:end] >= amount, out=mask)
            self._rest = np.flatnonzero(mask) + start
        else:
            block = order[start:end]
            for column, asked in self._compare:
                amount = asked if isinstance(asked, int) else asked[block]
                np.logical_and(mask, columns[column].take(block) >= amount, out=mask)
            self._rest = block[mask]
        return True

    def _costs(self, rows: Ints, offers: Ints | Flags) -> Floats:
        asked, p, weights = self.asked, self.potential, self._derived.weights
        cost = self.static.base[rows]
        if self._view.cards.shape[2] and self._derived.kinds[1:]:
            cpu = self._view.columns[_CPU][rows]
            left = cpu - self._cpu_of(rows)
            if self._chooser is not None:
                stranded = self._chooser.costs(rows, offers, left)
            else:
                group = p.group[rows]
                stranded = p.tables.strand(group, left, p.usable[rows]) - p.stranded[rows]
            cost = stranded * weights.stranding + cost
        if asked.mode == 0 and weights.balance:
            cost = cost + weights.balance * self._imbalance(rows)
        if self.request.stage in STAGE_COLUMN:
            columns = self._view.columns
            same = columns[STAGE_COLUMN[self.request.stage]][rows]
            every = columns[Column.EXPLORATION :].take(rows, axis=1).sum(axis=0)
            cost = cost + weights.stage * (same / (every + 1))
        if self._counts is not None:
            cost = cost + weights.spread * self._counts[rows]
        return cost

    def _cpu_of(self, rows: Ints) -> int | Ints:
        if self.amounts is not None:
            return self.asked.cpu
        asked = next(asked for column, asked in self._compare if column == _CPU)
        return asked if isinstance(asked, int) else asked[rows]

    def _imbalance(self, rows: Ints) -> Floats:
        columns = self._view.columns
        cpu = columns[_CPU][rows] - self._cpu_of(rows)
        memory = columns[Column.MEMORY][rows] - self.asked.memory
        totals = [self._view.described[row] for row in rows.tolist()]
        cpus = np.array([max(1, one.cpu_milli) for one in totals], dtype=np.float64)
        memories = np.array([max(1, one.memory_bytes) for one in totals], dtype=np.float64)
        return np.asarray(np.abs(cpu / cpus - memory / memories))

    # -- one node -------------------------------------------------------------------------------

    def one(self, scratch: Scratch) -> tuple[float, tuple[Claim, ...]] | None:
        """Return (cost, claims) on one node, or None where it has no room: as `more` would."""
        columns, view, p = scratch.columns, self._view, self.potential
        for column, asked in self._compare:
            amount = asked if isinstance(asked, int) else int(asked[scratch.row])
            if columns[column] < amount:
                return None
        weights = self._derived.weights
        claims: tuple[Claim, ...] = ()
        cost = self.static.base.item(scratch.row)
        if view.cards.shape[2] and self._derived.kinds[1:]:
            amounts = self.amounts or amounts_of(self.asked, scratch.node)
            left = columns[_CPU] - amounts[_CPU]
            if self._chooser is not None:
                found = self._chooser.one(scratch, left)
                if found is None:
                    return None
                stranded, claims = found
            else:
                # what no card changes is kept per row
                group, row = p.plain_groups[scratch.profile], scratch.row
                usable = p.usable.item(row)
                was = p.tables.strand_of(group, max(columns[_CPU], 0), usable)
                stranded = p.tables.strand_of(group, left, usable) - was
            cost = stranded * weights.stranding + cost
        if self.asked.mode == 0 and weights.balance:
            node, amounts = scratch.node, self.amounts or amounts_of(self.asked, scratch.node)
            cpu = (columns[_CPU] - amounts[_CPU]) / max(1, node.cpu_milli)
            memory = (columns[Column.MEMORY] - self.asked.memory) / max(1, node.memory_bytes)
            cost = cost + weights.balance * abs(cpu - memory)
        if self.request.stage in STAGE_COLUMN:
            same = columns[STAGE_COLUMN[self.request.stage]]
            every = sum(columns[Column.EXPLORATION :])
            cost = cost + weights.stage * (same / (every + 1))
        if self._counts is not None:
            count = view.group(self.request.spread).get(scratch.node.name, 0)
            cost = cost + weights.spread * float(count)
        return cost, claims

    # -- placing --------------------------------------------------------------------------------

    def place(self, members: Sequence[Request]) -> list[Decision | None]:
        """Place equal requests, each where it costs least after those before it; None: no room."""
        rows, costs = self.more(self.window)
        if len(members) == 1:
            # no heap: one more quick way out is what single decisions live from
            return [self._first(members[0], rows, costs)]
        places = rows.tolist()
        heap = list(zip(costs.tolist(), range(len(places)), strict=True))
        heapify(heap)
        scratches: dict[int, tuple[Scratch, tuple[Claim, ...]]] = {}
        spare: list[tuple[float, int]] = []
        found: list[Decision | None] = []
        for member in members:
            if not heap:
                found.append(None)
                continue
            at = heap[0][1]
            if at in scratches:
                scratch, claims = scratches[at]
            else:
                scratch = self._load(places[at])
                claims = self._claims(scratch)
            found.append(self._enter(member, scratch, claims))
            again = self.one(scratch)
            if again is not None:
                scratches[at] = (scratch, again[1])
                heapreplace(heap, (again[0], at))
                continue
            scratches[at] = (scratch, ())
            heappop(heap)
            if not spare:
                rows, costs = self.more(CANDIDATES // 4)
                spare = list(zip(costs.tolist(), range(len(places), len(places) + len(rows))))[::-1]  # noqa: B905  equal by construction
                places += rows.tolist()
            if spare:
                heappush(heap, spare.pop())
        for scratch, _ in scratches.values():
            self._store(scratch)
        return found

    def _first(self, member: Request, rows: Ints, costs: Floats) -> Decision | None:
        if not len(rows):
            return None
        scratch = self._load(rows.item(int(costs.argmin())))
        decision = self._enter(member, scratch, self._claims(scratch))
        self._store(scratch)
        return decision

    def _claims(self, scratch: Scratch) -> tuple[Claim, ...]:
        """Return the cards on a node that the search has found to have room."""
        if self._chooser is None:
            return ()
        found = self.one(scratch)
        if found is None:
            raise AssertionError(f"{scratch.node.name}: arrays and figures differ")
        return found[1]

    def _load(self, row: int) -> Scratch:
        return self._view.load(row, cards=self._chooser is not None)

    def _enter(self, member: Request, scratch: Scratch, claims: tuple[Claim, ...]) -> Decision:
        name = scratch.node.name
        amounts = self.amounts or amounts_of(self.asked, scratch.node)
        cpus = self._view.free_cpus(name, amounts[Column.PINS]) if self.asked.pins else ()
        devices = tuple([claim.device for claim in claims]) if claims else ()
        scores = self._scores(scratch) if self._record else ()
        decision = Decision(member.id, name, devices, cpus=cpus, scores=scores)
        self._view.commit(scratch, member, decision, amounts, claims)
        return decision

    def _scores(self, scratch: Scratch) -> tuple[tuple[str, float], ...]:
        """Return the parts of a node's cost by name; they sum to `cost` but for rounding."""
        found = self.one(scratch)
        cost = found[0] if found else 0.0
        node, weights, asked = scratch.node, self._derived.weights, self.asked
        parts = [
            (name, float(getattr(weights, name)) * part(node, self.request, asked))
            for name, part in (*STATIC, *LOCAL)
        ]
        parts.append(("order", self._derived.order.item(scratch.row)))
        if self.request.stage in STAGE_COLUMN:
            same = scratch.columns[STAGE_COLUMN[self.request.stage]]
            every = sum(scratch.columns[Column.EXPLORATION :])
            parts.append(("stage", weights.stage * (same / (every + 1))))
        if self._counts is not None:
            count = self._view.group(self.request.spread).get(node.name, 0)
            parts.append(("spread", weights.spread * count))
        rest = cost - sum(value for _, value in parts)
        named = [(name, value) for name, value in parts if value]
        return (("cost", cost), ("stranding", rest), *named)

    def _store(self, scratch: Scratch) -> None:
        self._view.store(scratch)
        if self._chooser is None:
            self.potential.update_cpu(scratch)
        else:
            self.potential.update(scratch)
        self._view.touched.discard(scratch.row)
