"""What the cards of nodes lack for a request: their number, memory, milli, slices, or clients."""

from dataclasses import dataclass

import numpy as np

from dsec.api.reasons import PendingReason
from dsec.placement.accelerators import EXCLUSIVE, SLICED, Accelerator, Card
from dsec.placement.asked import Asked, claim_of
from dsec.placement.cards import Flags, slices_left
from dsec.placement.dimensions import LIMIT, WHOLE
from dsec.placement.filters import card_suits
from dsec.placement.refusal import Refusal
from dsec.placement.request import Request
from dsec.placement.stranding import Ints
from dsec.placement.view import ClusterView


@dataclass(slots=True)
class _Cards:
    """The cards of some rows, as [row, card], with what each would have to give."""

    state: Ints
    suits: Flags
    milli: Ints
    memory: Ints
    most_memory: Ints
    most_clients: Ints
    slices: Ints
    """Slices of the profile that still fit."""
    all_slices: Ints


def card_shortfalls(view: ClusterView, rows: Ints, request: Request, asked: Asked) -> list[Refusal]:
    """Return a refusal for each thing that the cards of some of the rows lack."""
    found = _cards(view, rows, request, asked)
    opened = found.suits & ((found.state[Card.OPEN] & 1 << asked.mode) != 0)
    gpus, every = asked.gpus, len(rows)
    if asked.mode in EXCLUSIVE:
        return _short("gpu", gpus, opened.sum(axis=1), found.suits.sum(axis=1), every)
    if asked.mode == SLICED:
        left = np.where(opened, found.slices, 0).sum(axis=1)
        return _short("gpu slice", gpus, left, found.all_slices.sum(axis=1), every)
    state, limit = found.state, asked.gpu_clients
    admitting = opened & (state[Card.COUNT] < limit) if limit else opened
    enough_memory = state[Card.MEMORY] >= found.memory
    fits = admitting & enough_memory & (state[Card.MILLI] >= found.milli)
    short = fits.sum(axis=1) < gpus
    # cards in the mode already that have their most clients, whatever memory is free
    crowded = found.suits & (state[Card.MODE] == asked.mode)
    dense = short & (admitting.sum(axis=1) < gpus) & crowded.any(axis=1)
    none = short & ~dense & ((gpus > 1) | ~admitting.any(axis=1))
    rest = short & ~dense & ~none
    if asked.milli:
        # asked as a part of the card: memory follows from it and is named only where it alone lacks
        milli = rest & ~(admitting & (state[Card.MILLI] >= found.milli)).any(axis=1)
        memory = rest & ~milli
    else:
        memory = rest & ~(admitting & enough_memory).any(axis=1)
        milli = rest & ~memory
    refusals = []
    if dense.any():
        most = int(found.most_clients[dense].max())
        refusals.append(_capacity("density", 1, 0, int(dense.sum()), every, most))
    if none.any():
        refusals += _short("gpu", gpus, fits[none].sum(axis=1), found.suits[none].sum(1), every)
    for rows_short, name, want, free, most_of in (
        (memory, "gpu memory", found.memory, state[Card.MEMORY], found.most_memory),
        (milli, "gpu share", found.milli, state[Card.MILLI], found.suits * WHOLE),
    ):
        if rows_short.any():
            here = admitting[rows_short]
            refusals.append(
                _capacity(
                    name,
                    int(want[rows_short][here].min()),
                    int(free[rows_short][here].max()),
                    int(rows_short.sum()),
                    every,
                    int(most_of[rows_short].max()),
                )
            )
    return refusals


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


def _cards(view: ClusterView, rows: Ints, request: Request, asked: Asked) -> _Cards:
    profiles, width = view.profile[rows], view.cards.shape[2]
    used, number = np.unique(profiles, return_inverse=True)
    suits = np.zeros((len(used), width), dtype=bool)
    table = np.zeros((5, len(used), width), dtype=np.int64)
    sliced: list[tuple[int, int, Ints]] = []
    for place, profile in enumerate(used.tolist()):
        node = view.profiles[profile]
        for at, card in enumerate(node.devices):
            if not card.healthy or not card_suits(card, node, request, asked):
                continue
            suits[place, at] = True
            table[:, place, at] = _figures(card, asked)
            if asked.mode == SLICED and card.slicing is not None:
                sliced.append((place, at, slices_left(card.slicing, asked.profile)))
    state = view.cards[:, rows]
    slices = np.zeros(state.shape[1:], dtype=np.int64)
    for place, at, left in sliced:
        here = np.flatnonzero(number == place)
        slices[here, at] = left[state[Card.SLICES, here, at]]
    milli, memory, most_memory, most_clients, all_slices = (one[number] for one in table)
    return _Cards(
        state, suits[number], milli, memory, most_memory, most_clients, slices, all_slices
    )


def _figures(card: Accelerator, asked: Asked) -> tuple[int, int, int, int, int]:
    """Return (milli, bytes, most bytes, most clients, most slices) of one card."""
    clients = min(card.clients, asked.gpu_clients or card.clients)
    if asked.mode in EXCLUSIVE:
        return 0, 0, card.allocatable_bytes, clients, 0
    if asked.mode == SLICED:
        most = slices_left(card.slicing, asked.profile).item(0) if card.slicing else 0
        return 0, 0, card.allocatable_bytes, clients, most
    claim = claim_of(asked, card)
    return (
        min(claim.milli, WHOLE + 1),
        min(claim.memory, LIMIT),
        card.allocatable_bytes,
        clients,
        0,
    )
