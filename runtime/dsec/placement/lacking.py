"""What the cards of nodes lack for a request: their number, memory, milli, slices, or clients."""

from typing import NamedTuple

import numpy as np

from dsec.api.reasons import PendingReason
from dsec.placement.accelerators import EXCLUSIVE, SLICED, Accelerator, Card
from dsec.placement.asked import Asked, claim_of
from dsec.placement.cards import Flags
from dsec.placement.dimensions import LIMIT, WHOLE
from dsec.placement.filters import card_suits
from dsec.placement.refusal import Refusal
from dsec.placement.request import Request
from dsec.placement.slices import slices_left
from dsec.placement.stranding import Ints
from dsec.placement.view import ClusterView


class _Cards:
    """The cards of some rows, as [row, card]; what each would have to give is asked for by need."""

    def __init__(self, view: ClusterView, rows: Ints, request: Request, asked: Asked) -> None:
        """Look at the makes of the cards once per description of nodes."""
        self._view, self._rows, self._profiles = view, rows, view.profile[rows]
        shape = len(view.profiles), view.cards.shape[2]
        self._suits = np.zeros(shape, dtype=bool)
        self._figures = np.zeros((len(_Figures._fields), *shape), dtype=np.int64)
        self._sliced: list[tuple[int, int, Ints]] = []
        for profile in np.flatnonzero(np.bincount(self._profiles)).tolist():
            node = view.profiles[profile]
            for at, card in enumerate(node.devices):
                if not card.healthy or not card_suits(card, node, request, asked):
                    continue
                self._suits[profile, at] = True
                self._figures[:, profile, at] = _figures(card, asked)
                if asked.mode == SLICED and card.slicing is not None:
                    self._sliced.append((profile, at, slices_left(card.slicing, asked.profile)))

    def state(self, field: Card) -> Ints:
        """Return a figure of the cards as they are now."""
        # quicker than indexing by rows
        found: Ints = self._view.cards[field].take(self._rows, axis=0)
        return found

    def suits(self, of: Flags | None = None) -> Flags:
        """Return which cards are of the right make, of all rows or of some."""
        return self._suits.take(self._profiles if of is None else self._profiles[of], axis=0)

    def figure(self, name: str, of: Flags | None = None) -> Ints:
        """Return one of `_Figures`, of all rows or of some."""
        table = self._figures[_Figures._fields.index(name)]
        found: Ints = table.take(self._profiles if of is None else self._profiles[of], axis=0)
        return found

    def slices(self) -> Ints:
        """Return how many slices of the profile still fit."""
        state = self.state(Card.SLICES)
        found = np.zeros(state.shape, dtype=np.int64)
        for profile, at, left in self._sliced:
            here = np.flatnonzero(self._profiles == profile)
            found[here, at] = left[state[here, at]]
        return found


class _Figures(NamedTuple):
    """What a card would have to give, and the most that there is of it."""

    milli: int
    memory: int
    most_memory: int
    most_clients: int
    most_slices: int


def card_shortfalls(view: ClusterView, rows: Ints, request: Request, asked: Asked) -> list[Refusal]:
    """Return a refusal for each thing that the cards of some of the rows lack."""
    found = _Cards(view, rows, request, asked)
    suits = found.suits()
    opened = suits & ((found.state(Card.OPEN) & 1 << asked.mode) != 0)
    gpus, every = asked.gpus, len(rows)
    if asked.mode in EXCLUSIVE:
        return _short("gpu", gpus, _count(opened), _count(suits), every)
    if asked.mode == SLICED:
        left = np.where(opened, found.slices(), 0).sum(axis=1)
        return _short("gpu slice", gpus, left, found.figure("most_slices").sum(axis=1), every)
    admitting = opened
    if asked.gpu_clients:
        admitting = opened & (found.state(Card.COUNT) < asked.gpu_clients)
    milli, memory = found.state(Card.MILLI), found.state(Card.MEMORY)
    enough_milli = admitting & (milli >= found.figure("milli"))
    enough_memory = admitting & (memory >= found.figure("memory"))
    fits = enough_milli & enough_memory
    short = _count(fits) < gpus
    # cards in the mode already that have their most clients, whatever memory is free
    crowded = suits & (found.state(Card.MODE) == asked.mode)
    admitted = _count(admitting)
    dense = short & (admitted < gpus) & (_count(crowded) > 0)
    none = short & ~dense & ((gpus > 1) | (admitted == 0))
    rest = short & ~dense & ~none
    # asked as a part of the card: memory follows from it and is named only where it alone lacks
    some = _count(enough_milli if asked.milli else enough_memory) > 0
    refusals = []
    if dense.any():
        most = int(found.figure("most_clients", dense).max())
        refusals.append(_capacity("density", 1, 0, int(dense.sum()), every, most))
    if none.any():
        refusals += _short("gpu", gpus, _count(fits[none]), _count(suits[none]), every)
    lacking = (
        (rest & some if asked.milli else rest & ~some, "gpu memory", "memory", memory),
        (rest & ~some if asked.milli else rest & some, "gpu share", "milli", milli),
    )
    for rows_short, name, want, free in lacking:
        if rows_short.any():
            here = admitting[rows_short]
            most_of = found.suits(rows_short) * WHOLE
            if want == "memory":
                most_of = found.figure("most_memory", rows_short)
            refusals.append(
                _capacity(
                    name,
                    int(found.figure(want, rows_short)[here].min()),
                    int(free[rows_short][here].max()),
                    int(rows_short.sum()),
                    every,
                    int(most_of.max()),
                )
            )
    return refusals


def _count(flags: Flags) -> Ints:
    """Return how many cards of each row are meant: eight at once, since short sums are slow."""
    lacking = -flags.shape[1] % 8
    if lacking:
        flags = np.pad(flags, ((0, 0), (0, lacking)))
    bits = np.bitwise_count(np.packbits(flags)).reshape(len(flags), -1)
    return np.asarray(bits.sum(axis=1, dtype=np.int64))


def _short(name: str, asked: int, free: Ints, most: Ints, every: int) -> list[Refusal]:
    """Return the refusal for rows that have fewer than asked, if there are any."""
    lacking = free < asked
    if not lacking.any():
        return []
    best, largest = int(free[lacking].max()), int(most[lacking].max())
    return [_capacity(name, asked, best, int(lacking.sum()), every, largest)]


def _capacity(name: str, asked: int, *figures: int) -> Refusal:
    """Return a refusal; figures are what is free, nodes that lack it, all nodes, and the most."""
    free, count, every, most = figures
    return Refusal(PendingReason.CAPACITY, name, asked, free, count, every, most)


def _figures(card: Accelerator, asked: Asked) -> _Figures:
    """Return the figures of one card."""
    clients = min(card.clients, asked.gpu_clients or card.clients)
    if asked.mode in EXCLUSIVE:
        return _Figures(0, 0, card.allocatable_bytes, clients, 0)
    if asked.mode == SLICED:
        most = slices_left(card.slicing, asked.profile).item(0) if card.slicing else 0
        return _Figures(0, 0, card.allocatable_bytes, clients, most)
    claim = claim_of(asked, card)
    milli, memory = min(claim.milli, WHOLE + 1), min(claim.memory, LIMIT)
    return _Figures(milli, memory, card.allocatable_bytes, clients, 0)
