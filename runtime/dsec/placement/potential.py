"""The expected stranded capacity of every node of a view, kept up to date row by row."""

import numpy as np

from dsec.placement.accelerators import Card
from dsec.placement.dimensions import Column
from dsec.placement.mix import Group, Mix
from dsec.placement.request import Node
from dsec.placement.stranding import CARD, Floats, Ints, Tables, card_table, node_table, stack
from dsec.placement.view import ClusterView, Scratch

UNLEARNED = stack([(card_table([]), node_table([], 1000, 1))], 0)
"""Tables of no mix at all: a broken card is filled before a new one, and nodes in their order."""


class Potential:
    """Codes of cards, usable and stranded milli of each row, under one set of tables."""

    __slots__ = ("bases", "codes", "group", "plain_groups", "stranded", "tables", "usable")

    def __init__(self, view: ClusterView, tables: Tables, groups: list[int]) -> None:
        """Make it anew; `groups` has the group of each of the view's profiles."""
        self.tables = tables
        self.plain_groups = groups
        self.group: Ints = np.array(groups, dtype=np.int64)[view.profile]
        self.bases: Ints = self.group * CARD
        self.codes: Ints = view.cards[Card.MILLI] + self.bases[:, None]
        cpu = np.maximum(view.columns[Column.CPU], 0)
        self.usable, self.stranded = self._state(cpu)

    def _state(self, cpu: Ints) -> tuple[Floats, Floats]:
        if not len(cpu):
            return np.zeros(0), np.zeros(0)
        return self.tables.state(self.group, cpu, self.codes)

    def codes_of(self, scratch: Scratch) -> list[int]:
        """Return the codes of a node's cards."""
        base = self.plain_groups[scratch.profile] * CARD
        return [base + state[Card.MILLI] for state in scratch.cards]

    def update(self, scratch: Scratch) -> None:
        """Take over the figures of one row."""
        row, group = scratch.row, self.plain_groups[scratch.profile]
        codes = self.codes_of(scratch)
        cpu = max(scratch.columns[Column.CPU], 0)
        usable, stranded = self.tables.state_of(group, cpu, codes)
        if codes:
            self.codes[row, : len(codes)] = codes
        self.usable[row] = usable
        self.stranded[row] = stranded

    def update_cpu(self, scratch: Scratch) -> None:
        """Take over the free CPU of one row; its cards are as before."""
        row, group = scratch.row, self.plain_groups[scratch.profile]
        cpu = max(scratch.columns[Column.CPU], 0)
        self.stranded[row] = self.tables.strand_of(group, cpu, self.usable.item(row))

    def fork(self) -> "Potential":
        """Return a copy that can be updated apart."""
        other = object.__new__(Potential)
        other.tables, other.plain_groups = self.tables, self.plain_groups
        other.group, other.bases = self.group, self.bases
        other.codes = self.codes.copy()
        other.usable, other.stranded = self.usable.copy(), self.stranded.copy()
        return other


def groups_of(profiles: list[Node], mix: Mix | None) -> list[int]:
    """Return the group of each profile: its pool and the models of its cards."""
    if mix is None:
        return [0] * len(profiles)
    found = []
    for node in profiles:
        models = sorted({card.model for card in node.devices})
        memory = min((card.allocatable_bytes for card in node.devices), default=0)
        size = node.cpu_milli * node.overcommit_milli // 1000
        found.append(mix.group(Group(node.pool, "|".join(models), size, len(node.devices), memory)))
    return found
