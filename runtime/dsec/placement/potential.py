"""The expected stranded capacity of every node of a view, kept up to date row by row.

`stranding` defines it; here it is laid out for many quick reads: all node tables in one padded
array, so that a look-up needs one index, and per row the two figures that a cost is taken from.
Scalars and arrays are computed by the same steps and have the same bits.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from dsec.placement.accelerators import Card, CardState
from dsec.placement.dimensions import WHOLE, Column
from dsec.placement.mix import Group, Mix
from dsec.placement.request import Node
from dsec.placement.spots import Course
from dsec.placement.stranding import CARD, Floats, Ints, Tables, card_table, node_table, stack
from dsec.placement.view import ClusterView

UNLEARNED = stack([(card_table([]), node_table([], WHOLE, 1))], 0)
"""Tables of no mix at all: a broken card is filled before a new one, and nodes in their order."""
MOST_COURSES = 64
"""Remembered of each class of requests, and classes with any."""
Courses = dict[tuple[int, int, bytes], Course | None]
"""What becomes of nodes, by what decides it: description, free CPU and cards."""
_MILLI, _OPEN, _CPU = int(Card.MILLI), int(Card.OPEN), int(Column.CPU)


class Surface:
    """H of all groups as one array, interpolated bilinearly; beyond the grid its edge holds."""

    __slots__ = (
        "_coefficients",
        "_cpu_scale",
        "_kept",
        "_kept_values",
        "_kept_width",
        "_last_column",
        "_last_row",
        "_plain_scales",
        "_usable_scale",
        "_values",
        "_width",
        "keeps",
        "size",
    )

    def __init__(self, tables: Tables) -> None:
        nodes = tables.nodes
        rows = max((one.values.shape[0] for one in nodes), default=1) + 1
        self._width = width = max((one.values.shape[1] for one in nodes), default=1) + 1
        grid = np.zeros((max(1, len(nodes)), rows, width))
        for group, one in enumerate(nodes):
            height, length = one.values.shape
            grid[group] = np.pad(one.values, ((0, rows - height), (0, width - length)), mode="edge")
        self.size = rows * width
        self._last_row, self._last_column = float(rows - 2), float(width - 2)
        near, right = grid[:, :-1, :-1], grid[:, :-1, 1:]
        below, far = grid[:, 1:, :-1], grid[:, 1:, 1:]
        table = np.zeros((*grid.shape, 4))
        table[:, :-1, :-1, 0] = near
        table[:, :-1, :-1, 1] = below - near
        table[:, :-1, :-1, 2] = right - near
        table[:, :-1, :-1, 3] = far - below - right + near
        self._coefficients = table.reshape(-1, 4)
        self._values: list[float] = grid.reshape(-1).tolist()
        scales = [(1 / one.cpu_step, 1 / one.usable_step) for one in nodes]
        self._plain_scales = scales or [(1.0, 1.0)]
        self._cpu_scale = _one_or_many([one[0] for one in self._plain_scales])
        self._usable_scale = _one_or_many([one[1] for one in self._plain_scales])
        self.keeps = bool(tables.kept)
        """Idle cards that are together count."""
        self._kept_width = max((one.shape[1] for one in tables.kept), default=1)
        kept = np.zeros((max(1, len(nodes)), rows, self._kept_width))
        for group, values in enumerate(tables.kept):
            height, length = values.shape
            padding = ((0, rows - height), (0, self._kept_width - length))
            kept[group] = np.pad(values, padding, mode="edge")
        self._kept = kept.reshape(-1)
        self._kept_values: list[float] = self._kept.tolist() if self.keeps else []

    def read(self, group: Ints, cpu: Ints, usable: Floats, idle: Ints | None) -> Floats:
        """Return H of nodes, and what their idle cards are worth where that counts.

        group[n], free CPU milli[n] (not negative), usable milli[n], idle cards[n] where `keeps`.
        """
        cpu_scale, usable_scale = self._cpu_scale, self._usable_scale
        x = cpu * (cpu_scale if isinstance(cpu_scale, float) else cpu_scale[group])
        y = usable * (usable_scale if isinstance(usable_scale, float) else usable_scale[group])
        np.minimum(x, self._last_row, out=x)
        np.minimum(y, self._last_column, out=y)
        # whole numbers as floats: exact, and quicker than mixing the two
        row, column = np.floor(x), np.floor(y)
        x -= row
        y -= column
        column += row * self._width
        at = column.astype(np.int64)
        at += group * self.size
        found = self._coefficients.take(at, axis=0)
        value: Floats = found[:, 1] * x
        value += found[:, 0]
        value += found[:, 2] * y
        x *= y
        value += found[:, 3] * x
        if self.keeps and idle is not None:
            kept = group * (self.size // self._width) + row.astype(np.int64)
            kept *= self._kept_width
            kept += np.minimum(np.maximum(idle, 0), self._kept_width - 1)
            value += self._kept.take(kept)
        return value

    def read_one(self, group: int, cpu: int, usable: float, idle: int) -> float:
        """Return the same of one node."""
        cpu_scale, usable_scale = self._plain_scales[group]
        x, y = cpu * cpu_scale, usable * usable_scale
        x = min(x, self._last_row)
        y = min(y, self._last_column)
        row, column = int(x), int(y)
        x -= row
        y -= column
        values = self._values
        at = group * self.size + row * self._width + column
        near, right = values[at], values[at + 1]
        at += self._width
        below, far = values[at], values[at + 1]
        value = (
            near + (below - near) * x + (right - near) * y + (far - below - right + near) * (x * y)
        )
        if self.keeps:
            at = (group * (self.size // self._width) + row) * self._kept_width
            value += self._kept_values[at + max(0, min(idle, self._kept_width - 1))]
        return value


def _one_or_many(scales: Sequence[float]) -> float | Floats:
    return scales[0] if len(set(scales)) == 1 else np.array(scales)


class Potential:
    """Usable and stranded milli of each row and the codes of its cards, under one set of tables."""

    __slots__ = (
        "bases",
        "bases_of_profile",
        "codes",
        "courses",
        "group",
        "group_of_profile",
        "idle",
        "stranded",
        "surface",
        "tables",
        "usable",
        "whole",
    )

    def __init__(self, view: ClusterView, tables: Tables, groups: list[int]) -> None:
        """Make it anew; `groups` has the group of each of the view's profiles."""
        self.tables = tables
        self.courses: dict[tuple[object, ...], Courses] = {}
        """By class of requests. They depend on descriptions of nodes and tables alone."""
        self.surface = Surface(tables)
        self.group_of_profile = groups
        self.bases_of_profile = [group * CARD for group in groups]
        self.group: Ints = np.array(groups, dtype=np.int64)[view.profile]
        self.bases: Ints = self.group * CARD
        self.whole: Floats = tables.card_values[self.bases + WHOLE]
        """V of an idle card of each row."""
        self.codes: dict[int, Ints] = {}
        """By mode bit: codes[card, row] as a client of that mode sees them, 0 free where closed."""
        # by card first: sums over a row's few cards one after the other are slow
        milli = np.ascontiguousarray(view.cards[Card.MILLI].T)
        cpu = np.maximum(view.columns[Column.CPU], 0)
        usable = tables.card_values.take(milli + self.bases)
        self.usable: Floats = np.subtract(milli, usable, out=usable).sum(axis=0)
        self.idle: Ints = (milli == WHOLE).sum(axis=0, dtype=np.int64)
        """Idle cards; kept up to date while the tables ask for them."""
        self.stranded: Floats = self.surface.read(self.group, cpu, self.usable, self.idle)

    def courses_of(self, key: tuple[object, ...]) -> Courses:
        """Return what became of nodes before that requests of a class came to."""
        found = self.courses.get(key)
        if found is None or len(found) > MOST_COURSES:
            if len(self.courses) > MOST_COURSES:
                self.courses.clear()
            found = self.courses[key] = {}
        return found

    def codes_for(self, view: ClusterView, bit: int) -> Ints:
        """Return codes[card, row] as a client of a mode sees them; kept up to date from now on."""
        found = self.codes.get(bit)
        if found is None:
            cards = view.cards
            milli = np.where(cards[Card.OPEN] & bit, cards[Card.MILLI], 0)
            found = self.codes[bit] = np.ascontiguousarray(milli.T) + self.bases
        return found

    def state_of(
        self, profile: int, states: Sequence[CardState], cpu: int
    ) -> tuple[float, float, int]:
        """Return (usable, stranded, idle cards) of a node of that description."""
        base, values = self.bases_of_profile[profile], self.tables.card_list
        usable, idle = 0.0, 0
        for state in states:
            milli = state[_MILLI]
            usable += milli - values[base + milli]
            idle += milli == WHOLE
        group = self.group_of_profile[profile]
        return usable, self.surface.read_one(group, max(cpu, 0), usable, idle), idle

    def update(
        self,
        row: int,
        profile: int,
        figures: Sequence[float],
        states: Mapping[int, Sequence[int]],
    ) -> None:
        """Take over (usable, stranded, idle cards) of a row, and the states of changed cards."""
        self.usable[row], self.stranded[row], self.idle[row] = figures
        base = self.bases_of_profile[profile]
        for bit, codes in self.codes.items() if states else ():
            for number, state in states.items():
                codes[number, row] = base + state[_MILLI] if state[_OPEN] & bit else base

    def renew(self, view: ClusterView, row: int) -> None:
        """Make the figures of a row anew."""
        states, profile = view.states(row), view.profile.item(row)
        figures = self.state_of(profile, states, view.columns.item(_CPU, row))
        self.update(row, profile, figures, dict(enumerate(states)))

    def fork(self) -> "Potential":
        """Return a copy that can be updated apart."""
        other = object.__new__(Potential)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.codes = {bit: codes.copy() for bit, codes in self.codes.items()}
        other.usable, other.stranded = self.usable.copy(), self.stranded.copy()
        other.idle = self.idle.copy()
        other.courses = {}
        return other


def groups_of(profiles: list[Node], mix: Mix | None) -> list[int]:
    """Return the group of each profile: its pool and the models of its cards."""
    if mix is None:
        return [0] * len(profiles)
    found = []
    for node in profiles:
        models = sorted({card.model for card in node.devices})
        memory = min((card.allocatable_bytes for card in node.devices), default=0)
        size = node.cpu_milli * node.overcommit_milli // WHOLE
        found.append(mix.group(Group(node.pool, "|".join(models), size, len(node.devices), memory)))
    return found
