"""Why a request has no node: nodes grouped by reason, with counts and the figures that lack."""

import numpy as np

from dsec.api.reasons import PendingReason
from dsec.placement.accelerators import EXCLUSIVE, SLICED, Card
from dsec.placement.asked import Asked, amounts_of, claim_of
from dsec.placement.cards import slices_left
from dsec.placement.dimensions import BOOKED, NAMES, UNMETERED, WHOLE, Column
from dsec.placement.filters import card_suits, low, mismatch
from dsec.placement.refusal import Refusal
from dsec.placement.request import Node, Request
from dsec.placement.view import ClusterView, totals

_Why = tuple[PendingReason, str, str]


def refusals(
    view: ClusterView, request: Request, asked: Asked | None = None
) -> tuple[Refusal, ...]:
    """Say why no node takes a request: what never fits first, then each dimension that lacks.

    Where some node could take it but for room, only room is named: that is what can change.
    """
    asked = asked or Asked.of(request)
    view.settle()
    if not view.described:
        return (Refusal(PendingReason.NO_NODES, "nodes"),)
    eligible, grouped = sorted_out(view, request, asked)
    if eligible:
        return _shortfalls(view, eligible, request, asked)
    return grouped


def rejections(view: ClusterView, request: Request) -> tuple[Refusal, ...]:
    """Return all nodes that a request cannot go to now, grouped: also where others can take it."""
    asked = Asked.of(request)
    view.settle()
    eligible, grouped = sorted_out(view, request, asked)
    return grouped + (_shortfalls(view, eligible, request, asked) if eligible else ())


def sorted_out(
    view: ClusterView, request: Request, asked: Asked
) -> tuple[list[int], tuple[Refusal, ...]]:
    """Return (rows that the filters leave, the others grouped by the first filter)."""
    verdicts = [mismatch(node, request, asked) for node in view.profiles]
    eligible: list[int] = []
    grouped: dict[_Why, int] = {}
    for row, profile in enumerate(view.profile.tolist()):
        verdict = verdicts[profile]
        if verdict is None and view.described[row].name in request.avoid:
            verdict = Refusal(PendingReason.CAPACITY, "agent", "1")
        if verdict is None:
            eligible.append(row)
        else:
            key = (verdict.reason, verdict.dimension, str(verdict.asked))
            grouped[key] = grouped.get(key, 0) + 1
    every = len(view.described)
    found = [
        Refusal(reason, dimension, value, nodes=count, total_nodes=every)
        for (reason, dimension, value), count in grouped.items()
    ]
    return eligible, tuple(sorted(found, key=lambda one: (-one.nodes, one.dimension, one.asked)))


def _shortfalls(
    view: ClusterView, rows: list[int], request: Request, asked: Asked
) -> tuple[Refusal, ...]:
    """Name each dimension that keeps a node from taking it, with the most that any has free."""
    columns = view.columns[:, np.array(rows)]
    per_profile: dict[int, tuple[int, ...]] = {}
    every: dict[int, list[int]] = {}
    lacking: dict[Column, list[tuple[int, int, int]]] = {}
    watermark = 1 if low(request) else 2
    for place, row in enumerate(rows):
        node, profile = view.described[row], view.profile.item(row)
        if profile not in per_profile:
            per_profile[profile] = amounts_of(asked, node)
        amounts = per_profile[profile]
        free = columns[:, place].tolist()
        for column in range(BOOKED):
            if free[column] < amounts[column] and amounts[column]:
                if row not in every:
                    every[row] = totals(node)
                whole = min(every[row][column], UNMETERED)
                entry = (free[column], whole, amounts[column])
                lacking.setdefault(Column(column), []).append(entry)
        if free[Column.HEADROOM] < watermark:
            lacking.setdefault(Column.HEADROOM, []).append((free[Column.HEADROOM], 2, watermark))
    found = [_capacity(column, entries, len(rows)) for column, entries in lacking.items()]
    if asked.mode:
        found += _card_shortfalls(view, rows, request, asked)
    if not found:
        # each of them has room by itself but none in one place: only searches that were limited
        # to a part of the topology end here
        found = [Refusal(PendingReason.CAPACITY, "agent", 1, total_nodes=len(rows))]
    # the dimension that excludes most nodes is the one to act on
    return tuple(sorted(found, key=lambda one: (-one.nodes, one.dimension)))


def _capacity(column: Column, entries: list[tuple[int, int, int]], every: int) -> Refusal:
    free = max(0, *(one[0] for one in entries)) if len(entries) > 1 else max(0, entries[0][0])
    return Refusal(
        PendingReason.CAPACITY,
        NAMES[column],
        min(one[2] for one in entries),
        free,
        len(entries),
        every,
        max(one[1] for one in entries),
    )


def _card_shortfalls(
    view: ClusterView, rows: list[int], request: Request, asked: Asked
) -> list[Refusal]:
    """Say what the cards lack: their number, memory, milli, slices, or clients (density)."""
    groups: dict[str, list[tuple[int, int, int]]] = {}
    for row in rows:
        node = view.described[row]
        states = view.cards[:, row, : len(node.devices)].T.tolist()
        why = _card_shortfall(node, states, request, asked)
        if why is not None:
            groups.setdefault(why[0], []).append(why[1:])
    return [
        Refusal(
            PendingReason.CAPACITY,
            dimension,
            min(one[0] for one in entries),
            max(one[1] for one in entries),
            len(entries),
            len(rows),
            max(one[2] for one in entries),
        )
        for dimension, entries in groups.items()
    ]


def _card_shortfall(
    node: Node, states: list[list[int]], request: Request, asked: Asked
) -> tuple[str, int, int, int] | None:
    """Return (dimension, asked, free, most) of one node's cards, or None where they suffice."""
    suiting = [
        (card, state)
        for card, state in zip(node.devices, states, strict=True)
        if card.healthy and card_suits(card, node, request, asked)
    ]
    bit, gpus = 1 << asked.mode, asked.gpus
    opened = [(card, state) for card, state in suiting if state[Card.OPEN] & bit]
    if asked.mode in EXCLUSIVE:
        return ("gpu", gpus, len(opened), len(suiting)) if len(opened) < gpus else None
    if asked.mode == SLICED:
        free = whole = 0
        for card, state in suiting:
            if card.slicing is not None:
                left = slices_left(card.slicing, asked.profile)
                whole += int(left[0])
                free += int(left[state[Card.SLICES]]) if state[Card.OPEN] & bit else 0
        return ("gpu slice", gpus, free, whole) if free < gpus else None
    limit = asked.gpu_clients
    admitting = [one for one in opened if not limit or one[1][Card.COUNT] < limit]
    fits = 0
    for card, state in admitting:
        claim = claim_of(asked, card)
        fits += state[Card.MILLI] >= claim.milli and state[Card.MEMORY] >= claim.memory
    if fits >= gpus:
        return None
    if len(admitting) < gpus and any(state[Card.MODE] == asked.mode for _, state in suiting):
        # cards are in the mode already and have their most clients, whatever memory is free
        most = max(min(card.clients, limit or card.clients) for card, _ in suiting)
        return "density", 1, 0, most
    if not admitting or gpus > 1:
        return "gpu", gpus, min(fits, gpus - 1), len(suiting)
    claims = [claim_of(asked, card) for card, _ in admitting]
    memory = max(state[Card.MEMORY] for _, state in admitting)
    if memory < min(claim.memory for claim in claims):
        most = max(card.allocatable_bytes for card, _ in suiting)
        return "gpu memory", min(claim.memory for claim in claims), memory, most
    milli = max(state[Card.MILLI] for _, state in admitting)
    return "gpu share", min(claim.milli for claim in claims), milli, WHOLE
