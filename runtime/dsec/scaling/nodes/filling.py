"""How many of each class one empty node of a shape takes: plain arithmetic, for comparing shapes.

Only what is chosen is then placed by the real placement (see `verified`); sums over thousands of
requests and dozens of shapes are too many for that. Cards of a node count as alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from dsec.placement.accelerators import EXCLUSIVE, SLICED
from dsec.placement.asked import Asked, amounts_of, mistakes
from dsec.placement.dimensions import WHOLE
from dsec.placement.engine import place_class
from dsec.placement.filters import client_shape, mismatch
from dsec.placement.request import Node, Request
from dsec.placement.scratch import totals
from dsec.placement.view import ClusterView
from dsec.scaling.nodes.plans import Why
from dsec.scaling.nodes.state import Pending

AMOUNTS = 8
"""Columns of a view that bookings change by subtraction."""
MEMORY, CPU = 0, 6
Fill = list[tuple[int, int]]
"""(number of the class, how many of it) on one node."""


@dataclass(slots=True)
class Group:
    """Waiting requests that are alike in every way that matters to buying, oldest first."""

    request: Request
    members: list[Pending]
    buffer: str = ""
    """Name of the buffer whose places they are; empty: real work."""
    left: int = 0
    ref: float = 0.0
    """Worth: the least proportional price per hour."""
    blocked: dict[Why, str] = field(default_factory=dict)
    """Why -> detail: what kept it from being bought for."""
    regions: tuple[str, ...] = ()
    """Where it may be."""
    why_there: str = ""

    @property
    def budget(self) -> str:
        """Path that pays."""
        return self.members[0].budget

    def take(self, count: int) -> list[Pending]:
        """Return the next so many members, and count them as covered."""
        start = len(self.members) - self.left
        self.left -= count
        return self.members[start : start + count]


@dataclass(frozen=True, slots=True)
class Takes:
    """What one member takes of a node of a shape. `part`: milli of one card, `cards` so many."""

    amounts: tuple[int, ...]
    cards: int = 0
    part: int = 0


class Shape:
    """An empty node of one description."""

    __slots__ = ("cards", "node", "takes", "total")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.total = totals(node)[:AMOUNTS]
        self.cards = sum(card.healthy for card in node.devices)
        self.takes: dict[int, Takes | None] = {}
        """By the number of the class; None: it can never be here."""

    def ask(self, number: int, request: Request) -> Takes | None:
        """Return what a class takes here; None: it can never be here."""
        if number not in self.takes:
            self.takes[number] = self.takes_of(request)
        return self.takes[number]

    def takes_of(self, request: Request) -> Takes | None:
        """Return what a request takes here; None: it can never be here."""
        asked = Asked.of(request)
        if mistakes(request, asked) or mismatch(self.node, request, asked) is not None:
            return None
        amounts = amounts_of(asked, self.node)[:AMOUNTS]
        cards, part = 0, 0
        if asked.mode:
            if asked.gpus > self.cards:
                return None
            cards, card = asked.gpus, self.node.devices[0]
            if asked.mode in EXCLUSIVE:
                if card.memory_bytes < asked.gpu_memory:
                    return None
            elif asked.mode == SLICED:
                profile = card.slicing.profile(asked.profile) if card.slicing else None
                if profile is None or card.slicing is None:
                    return None
                most = max(one.length for one in card.slicing.profiles)
                part = -(-WHOLE * profile.length // most)
            else:
                shape = client_shape(asked, card)
                memory = -(-WHOLE * shape.memory // max(1, card.memory_bytes))
                part = min(WHOLE, max(1, shape.milli, memory))
        if any(amount > total for amount, total in zip(amounts, self.total, strict=True)):
            return None
        return Takes(amounts, cards, part)

    def share(self, takes: Takes) -> float:
        """Return the part of the node that a member takes, of what it takes most of."""
        found = 0.0
        for column in (MEMORY, CPU):
            if self.total[column]:
                found = max(found, takes.amounts[column] / self.total[column])
        if takes.cards:
            whole = takes.part / WHOLE if takes.part else 1.0
            found = max(found, takes.cards * whole / self.cards)
        return found

    def fill(self, order: Sequence[int], groups: Sequence[Group]) -> tuple[Fill, int]:
        """Return how many of each class fit together, first come first, and idle cards left."""
        room = list(self.total)
        idle, spare = self.cards, 0
        found: Fill = []
        for number in order:
            group = groups[number]
            takes = self.takes[number]
            if not group.left or takes is None:
                continue
            most = group.left
            for free, amount in zip(room, takes.amounts, strict=True):
                if amount and free < amount * most:
                    most = free // amount
                    if most <= 0:
                        break
            if most <= 0:
                continue
            if takes.cards:
                most, idle, spare = _cards(most, takes, idle, spare)
                if most <= 0:
                    continue
            found.append((number, most))
            room = [free - amount * most for free, amount in zip(room, takes.amounts, strict=True)]
        return found, idle


def _cards(most: int, takes: Takes, idle: int, spare: int) -> tuple[int, int, int]:
    """Return how many get their cards, cards that stay idle, and milli left of an open card."""
    if not takes.part:
        most = min(most, idle // takes.cards)
        return most, idle - most * takes.cards, spare
    each = WHOLE // takes.part
    if takes.cards > 1:
        # one client on each of several cards: as if the cards were opened together
        most = min(most, (idle // takes.cards) * each)
        opened = -(-most // each) * takes.cards
        return most, idle - opened, spare
    in_open = spare // takes.part
    most = min(most, in_open + idle * each)
    rest = max(0, most - in_open)
    opened = -(-rest // each)
    if opened:
        spare = WHOLE - (rest - (opened - 1) * each) * takes.part
    else:
        spare -= most * takes.part
    return most, idle - opened, spare


def verified(node: Node, fill: Fill, groups: Sequence[Group]) -> Fill:
    """Return what of a fill the real placement puts on one such node."""
    view = ClusterView([node])
    found: Fill = []
    for number, count in fill:
        request = groups[number].request
        members = [replace(request, id=f"{number}/{one}") for one in range(count)]
        placed = place_class(view, members, learn=False, explain=False)
        fits = sum(bool(one.node) for one in placed)
        if fits:
            found.append((number, fits))
    return found


def least_price(price: Decimal) -> float:
    """Return a price that can be divided by: what is free still counts as a little."""
    return max(float(price), 1e-6)
