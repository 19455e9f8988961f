"""What one more request of a class costs on one node, and booking it there: in plain numbers.

The same as `search` finds for arrays, to the last bit. Figures of the view are written back once,
when all requests of the class have their places.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from dsec.placement.accelerators import SLICED, summary
from dsec.placement.asked import Asked, amounts_of
from dsec.placement.cards import Chooser
from dsec.placement.derived import Derived, StaticClass
from dsec.placement.dimensions import Column
from dsec.placement.filters import low
from dsec.placement.potential import Potential
from dsec.placement.request import Decision, Request
from dsec.placement.scores import STATIC, local_parts
from dsec.placement.scratch import STAGE_COLUMN, SUMMARY, Need, book, needs_of, room
from dsec.placement.spots import Course, Spot, States
from dsec.placement.view import Booking, ClusterView

_CPU, _MEMORY, _PINS = int(Column.CPU), int(Column.MEMORY), int(Column.PINS)


_STAGES = slice(int(Column.EXPLORATION), int(Column.EVALUATION) + 1)
_NONE: tuple[Any, ...] = ()
# all fields at once: in half the time that a call by fields takes
_booking: Callable[[tuple[Any, ...]], Booking] = partial(tuple.__new__, Booking)
_decision: Callable[[tuple[Any, ...]], Decision] = partial(tuple.__new__, Decision)


class Kind(NamedTuple):
    """A class of requests, with what was found out about it."""

    request: Request
    asked: Asked
    static: StaticClass
    chooser: Chooser | None
    """None where it asks for no cards."""
    amounts: tuple[int, ...] | None
    """What is booked on any node; None where it differs from node to node."""


class Pricing:
    """Nodes of one class of requests, opened where something is placed, and closed afterwards."""

    __slots__ = (
        "_asked",
        "_chooser",
        "_derived",
        "_entered",
        "_kind",
        "_level",
        "_needs",
        "_plain",
        "_potential",
        "_record",
        "_request",
        "_stage",
        "_strands",
        "_view",
        "_weights",
    )

    def __init__(
        self, view: ClusterView, derived: Derived, potential: Potential, kind: Kind, *, record: bool
    ) -> None:
        self._view, self._derived, self._potential = view, derived, potential
        self._kind, self._record = kind, record
        self._request, self._asked, self._chooser = kind.request, kind.asked, kind.chooser
        self._weights = derived.weights
        self._strands = len(derived.kinds) > 1
        self._stage = STAGE_COLUMN.get(kind.request.stage)
        self._level = (1 if low(kind.request) else 2) if derived.watermarked else 0
        self._needs: tuple[Need, ...] = needs_of(kind.amounts or ())
        balanced = self._weights.balance and not kind.asked.mode
        self._plain = not (balanced or kind.request.spread or self._stage is not None)
        """Nothing but cards makes one node cost more than before."""
        self._entered: list[Booking] = []

    # -- opening --------------------------------------------------------------------------------

    def open(self, rows: Sequence[int], *, several: bool = True) -> list[Spot]:
        """Return nodes that something may be placed on; without `several` once."""
        view, request = self._view, self._request
        described, profiles, marks = view.described, view.profile, view.marks
        base, stage = self._kind.static.base, self._stage
        spots = []
        courses = self._courses(rows) if self._strands else [None] * len(rows)
        for row, columns, course in zip(rows, view.load_all(rows), courses, strict=True):
            node = described[row]
            amounts, needs = self._kind.amounts, self._needs
            if amounts is None:
                amounts = amounts_of(self._asked, node)
                needs = needs_of(amounts)
            # whoever opens a node has compared it with one request
            fits = room(columns, amounts, needs, marks[row], self._level) if several else 1
            profile = profiles.item(row)
            spot = Spot(row, node, profile, columns, amounts, needs, fits, base.item(row), course)
            if stage is not None:
                spot.same, spot.every = columns[stage], sum(columns[_STAGES])
            if request.spread:
                spot.members = view.group(request.spread).get(node.name, 0)
            if amounts[_PINS]:
                spot.cpus = view.free_cpus(node.name, len(node.cpus))
            spots.append(spot)
        return spots

    def _courses(self, rows: Sequence[int]) -> list[Course | None]:
        """Return what will become of nodes; those in one state share it."""
        view = self._view
        if len(rows) == 1 or self._chooser is None:
            return [self._course(row) for row in rows]
        known = self._potential.courses_of((self._kind.static.key, self._asked))
        cards = np.ascontiguousarray(view.cards.take(rows, axis=1).transpose(1, 2, 0))
        text, size = cards.tobytes(), cards[0].nbytes
        found: list[Course | None] = []
        for at, row in enumerate(rows):
            state = text[at * size : (at + 1) * size]
            key = view.profile.item(row), view.columns.item(_CPU, row), state
            course = known.get(key)
            if course is None:
                course = known[key] = self._course(row)
            found.append(course)
        return found

    def _course(self, row: int) -> Course | None:
        """Return the beginning of what will become of a node; None: nothing can be stranded."""
        p, view, chooser = self._potential, self._view, self._chooser
        usable, idle = p.usable.item(row), p.idle.item(row)
        if chooser is None and not usable and not (idle and p.surface.keeps):
            return None
        profile, cpu = view.profile.item(row), view.columns.item(_CPU, row)
        states = view.states(row) if chooser is not None else []
        course = Course(row, profile, states, cpu, usable, p.stranded.item(row), idle)
        if chooser is not None:
            chooser.begin(course)
        return course

    def _go_on(self, course: Course, amount: int) -> bool:
        """Work out one more request of a course; False where the cards do not suffice."""
        p, chooser = self._potential, self._chooser
        if course.full:
            return False
        usable = course.usable
        if chooser is not None:
            if not chooser.offer(course):
                course.full = True
                return False
            usable = max(usable - course.taken - course.change, 0.0)
        group, cpu, idle = p.group_of_profile[course.profile], course.cpu - amount, course.idle
        idle -= course.broken
        stranded = p.surface.read_one(group, cpu, usable, idle)
        course.costs.append(stranded + course.change - course.stranded + course.extra)
        course.cpu, course.usable, course.stranded, course.idle = cpu, usable, stranded, idle
        if chooser is not None:
            chooser.take(course)
            if self._asked.mode == SLICED:
                # what was counted as cut may differ from what was
                usable, stranded, idle = p.state_of(course.profile, course.states, cpu)
        course.after.append((usable, stranded, idle, summary(course.states)))
        return True

    def price(self, spot: Spot) -> bool:
        """Return whether a node has room for one more request, and find its cost."""
        turn = spot.count
        if turn >= spot.room:
            return False
        weights, course, cost = self._weights, spot.course, spot.base
        if course is not None:
            costs = course.costs
            if turn >= len(costs) and not self._go_on(course, spot.amounts[_CPU]):
                return False
            cost += costs[turn] * weights.stranding
        if self._plain:
            spot.cost = cost
            return True
        if weights.balance and not self._asked.mode:
            cost += weights.balance * self._imbalance(spot)
        if spot.every:
            cost += weights.stage * (spot.same / spot.every)
        if self._request.spread:
            cost += weights.spread * float(spot.members)
        spot.cost = cost
        return True

    def _imbalance(self, spot: Spot) -> float:
        totals, columns, row = self._view.totals, spot.columns, spot.row
        cpu = columns[_CPU] - (spot.count + 1) * spot.amounts[_CPU]
        memory = columns[_MEMORY] - (spot.count + 1) * spot.amounts[_MEMORY]
        cpus, memories = totals.item(_CPU, row), totals.item(_MEMORY, row)
        # as floats before the division, as arrays do it
        return abs(float(cpu) / max(1, cpus) - float(memory) / max(1, memories))

    # -- booking --------------------------------------------------------------------------------

    def enter(self, member: Request, spot: Spot) -> Decision:
        """Book a request on a node that was priced."""
        amounts, name, chooser, course = spot.amounts, spot.node.name, self._chooser, spot.course
        scores = self._scores(spot) if self._record else _NONE
        claims, devices, cpus = _NONE, _NONE, _NONE
        if chooser is not None and course is not None:
            claims, devices = chooser.held(spot, course, spot.count)
        if spot.cpus:
            cpus, spot.cpus = spot.cpus[: amounts[_PINS]], spot.cpus[amounts[_PINS] :]
        spot.count += 1
        if not self._plain:
            spot.members += 1
            if self._stage is not None:
                spot.same += 1
                spot.every += 1
        self._entered.append(_booking((member, name, devices, cpus, amounts, claims, False)))
        return _decision((member.id, name, devices, (), scores, cpus))

    def _scores(self, spot: Spot) -> tuple[tuple[str, float], ...]:
        """Return the parts of a priced node's cost by name; they sum to `cost` but for rounding."""
        weights, request = self._weights, self._request
        if not spot.parts:
            spot.parts = self._parts(spot)
        parts = [*spot.parts]
        if spot.every:
            parts.append(("stage", weights.stage * (spot.same / spot.every)))
        if request.spread:
            parts.append(("spread", weights.spread * spot.members))
        rest = spot.cost - sum(value for _, value in parts)
        named = [(name, value) for name, value in parts if value]
        return (("cost", spot.cost), ("stranding", rest), *named)

    def _parts(self, spot: Spot) -> tuple[tuple[str, float], ...]:
        """Return the parts that do not change as requests come."""
        node, weights, request = spot.node, self._weights, self._request
        return (
            *(
                (name, float(getattr(weights, name)) * part(node, request, self._asked))
                for name, part in STATIC
            ),
            *local_parts(node, request, weights),
            ("order", self._derived.order.item(spot.row)),
        )

    def close(self, spots: Sequence[Spot]) -> None:
        """Write everything back: figures of nodes, and who holds what."""
        view, stage, update = self._view, self._request.stage, self._potential.update
        marks = view.marks
        figures: list[tuple[int, list[int]]] = []
        states: list[tuple[int, States]] = []
        for spot in spots:
            count, course, columns, row = spot.count, spot.course, spot.columns, spot.row
            if not count:
                continue
            book(columns, spot.needs, marks[row], stage, count)
            figures.append((row, columns))
            if course is not None:
                *after, summed = course.after[count - 1]
                changed: States = {}
                if course.changes:
                    changed.update(chain.from_iterable(course.changes[:count]))
                    columns[SUMMARY] = summed
                    states.append((row, changed))
                update(row, spot.profile, after, changed)
        view.store_all(figures, states)
        view.touched.difference_update([row for row, _ in figures])
        view.enter(self._entered)
