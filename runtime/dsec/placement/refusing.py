"""Why a request has no node: nodes grouped by reason, with counts and the figures that lack."""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsec.api.reasons import PendingReason
from dsec.placement.accelerators import EXCLUSIVE, SLICED, Card
from dsec.placement.asked import Asked, amounts_of, claim_of
from dsec.placement.cards import slices_left
from dsec.placement.dimensions import BOOKED, NAMES, UNMETERED, WHOLE, Column, saturated
from dsec.placement.filters import card_suits, low, mismatch
from dsec.placement.refusal import Refusal
from dsec.placement.request import Node, Request
from dsec.placement.view import ClusterView, Ints

Flags = NDArray[np.bool_]
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
    if len(eligible):
        return _shortfalls(view, eligible, request, asked)
    return grouped


def rejections(view: ClusterView, request: Request) -> tuple[Refusal, ...]:
    """Return all nodes that a request cannot go to now, grouped: also where others can take it."""
    asked = Asked.of(request)
    view.settle()
    eligible, grouped = sorted_out(view, request, asked)
    return grouped + (_shortfalls(view, eligible, request, asked) if len(eligible) else ())


def sorted_out(
    view: ClusterView, request: Request, asked: Asked
) -> tuple[Ints, tuple[Refusal, ...]]:
    """Return (rows that the filters leave, the others grouped by the first filter)."""
    verdicts = [mismatch(node, request, asked) for node in view.profiles]
    suits = np.array([verdict is None for verdict in verdicts], dtype=np.bool_)[view.profile]
    counts = np.bincount(view.profile, minlength=len(verdicts)).tolist()
    grouped: dict[_Why, int] = {}
    for verdict, count in zip(verdicts, counts, strict=True):
        if verdict is not None and count:
            key = (verdict.reason, verdict.dimension, str(verdict.asked))
            grouped[key] = grouped.get(key, 0) + count
    for name in set(request.avoid) & view.nodes.keys():
        if suits[view.row(name)]:
            suits[view.row(name)] = False
            key = (PendingReason.CAPACITY, "agent", "1")
            grouped[key] = grouped.get(key, 0) + 1
    every = len(view.described)
    found = [
        Refusal(reason, dimension, value, nodes=count, total_nodes=every)
        for (reason, dimension, value), count in grouped.items()
    ]
    found.sort(key=lambda one: (-one.nodes, one.dimension, one.asked, one.reason.value))
    return np.flatnonzero(suits), tuple(found)


def _shortfalls(
    view: ClusterView, rows: Ints, request: Request, asked: Asked
) -> tuple[Refusal, ...]:
    """Name each dimension that keeps a node from taking it, with the most that any has free."""
    columns, profile = view.columns[:, rows], view.profile[rows]
    amounts = np.zeros((len(view.profiles), BOOKED), dtype=np.int64)
    for number in np.unique(profile).tolist():
        amounts[number] = np.minimum(amounts_of(asked, view.profiles[number]), UNMETERED + 1)
    need = amounts[profile].T
    lacking = (columns[:BOOKED] < need) & (need > 0)
    found: list[Refusal] = []
    for column in map(Column, np.flatnonzero(lacking.any(axis=1)).tolist()):
        places = lacking[column]
        found.append(
            Refusal(
                PendingReason.CAPACITY,
                NAMES[column],
                int(need[column][places].min()),
                max(0, int(columns[column][places].max())),
                int(places.sum()),
                len(rows),
                _largest(view, rows[places], column),
            )
        )
    watermark = 1 if low(request) else 2
    below = columns[Column.HEADROOM] < watermark
    if below.any():
        free = max(0, int(columns[Column.HEADROOM][below].max()))
        found.append(
            Refusal(
                PendingReason.CAPACITY,
                NAMES[Column.HEADROOM],
                watermark,
                free,
                int(below.sum()),
                len(rows),
                2,
            )
        )
    if asked.mode:
        found += _card_shortfalls(view, rows, request, asked)
    if not found:
        # each of them has room by itself but none in one place: only searches that were limited
        # to a part of the topology end here
        found = [Refusal(PendingReason.CAPACITY, "agent", 1, total_nodes=len(rows))]
    # the dimension that excludes most nodes is the one to act on
    return tuple(sorted(found, key=lambda one: (-one.nodes, one.dimension)))


_OF_PROFILES: dict[Column, Callable[[Node], int]] = {
    Column.CPU: lambda node: node.cpu_milli * node.overcommit_milli // WHOLE,
    Column.PINS: lambda node: len(node.cpus),
}
_OF_NODES: dict[Column, Callable[[Node], int]] = {
    Column.MEMORY: attrgetter("memory_bytes"),
    Column.PIDS: attrgetter("pids"),
    Column.DISK: attrgetter("disk_bytes"),
    Column.DENSITY: attrgetter("sandboxes"),
    Column.IOPS: attrgetter("disk_iops"),
    Column.BANDWIDTH: attrgetter("disk_bytes_per_second"),
}


def _largest(view: ClusterView, rows: Ints, column: Column) -> int:
    """Return the largest total of these nodes."""
    if column in _OF_PROFILES:
        total, nodes = (
            _OF_PROFILES[column],
            map(view.profiles.__getitem__, np.unique(view.profile[rows])),
        )
    else:
        total, nodes = _OF_NODES[column], map(view.described.__getitem__, rows.tolist())
    return saturated(max(map(total, nodes)))


def _card_shortfalls(
    view: ClusterView, rows: Ints, request: Request, asked: Asked
) -> list[Refusal]:
    """Say what the cards lack: their number, memory, milli, slices, or clients (density)."""
    groups: dict[str, list[_Lack]] = {}
    profile = view.profile[rows]
    for number in np.unique(profile).tolist():
        node = view.profiles[number]
        states = view.cards[:, rows[profile == number], : len(node.devices)]
        for dimension, lack in _cards_of(node, states, request, asked):
            groups.setdefault(dimension, []).append(lack)
    return [
        Refusal(
            PendingReason.CAPACITY,
            dimension,
            min(one.asked for one in lacks),
            max(one.free for one in lacks),
            sum(one.nodes for one in lacks),
            len(rows),
            max(one.most for one in lacks),
        )
        for dimension, lacks in groups.items()
    ]


class _Lack(NamedTuple):
    """What cards of nodes of one profile lack."""

    asked: int
    free: int
    nodes: int
    most: int


def _cards_of(
    node: Node, states: Ints, request: Request, asked: Asked
) -> Iterator[tuple[str, _Lack]]:
    """Yield what the cards of one profile's nodes lack; states[field, node, card]."""
    suiting = np.array(
        [card.healthy and card_suits(card, node, request, asked) for card in node.devices],
        dtype=np.bool_,
    )
    opened = (states[Card.OPEN] & (1 << asked.mode) != 0) & suiting
    gpus, whole = asked.gpus, int(suiting.sum())
    if asked.mode in EXCLUSIVE:
        yield from _lack("gpu", gpus, opened.sum(axis=1), whole)
        return
    if asked.mode == SLICED:
        free, whole = np.zeros(states.shape[1], dtype=np.int64), 0
        for place, card in enumerate(node.devices):
            if suiting[place] and card.slicing is not None:
                left = slices_left(card.slicing, asked.profile)
                whole += int(left[0])
                free += np.where(opened[:, place], left[states[Card.SLICES][:, place]], 0)
        yield from _lack("gpu slice", gpus, free, whole)
        return
    yield from _clients_of(node, states, opened, suiting, asked)


def _lack(dimension: str, gpus: int, free: Ints, most: int) -> Iterator[tuple[str, _Lack]]:
    """Yield it where some of these nodes have fewer free than are asked for."""
    short = free < gpus
    if short.any():
        yield dimension, _Lack(gpus, int(free[short].max()), int(short.sum()), most)


def _clients_of(
    node: Node, states: Ints, opened: Flags, suiting: Flags, asked: Asked
) -> Iterator[tuple[str, _Lack]]:
    """Yield what keeps a client from the cards of one profile's nodes."""
    gpus, limit, whole = asked.gpus, asked.gpu_clients, int(suiting.sum())
    claims = [claim_of(asked, card) for card in node.devices]
    milli = np.array([claim.milli for claim in claims], dtype=np.int64)
    memory = np.array([claim.memory for claim in claims], dtype=np.int64)
    admitting = opened & (states[Card.COUNT] < limit) if limit else opened
    fitting = admitting & (states[Card.MILLI] >= milli) & (states[Card.MEMORY] >= memory)
    fits, admitted = fitting.sum(axis=1), admitting.sum(axis=1)
    short = fits < gpus
    # cards are in the mode already and have their most clients, whatever memory is free
    crowded = short & (admitted < gpus)
    crowded &= ((states[Card.MODE] == asked.mode) & suiting).any(axis=1)
    if crowded.any():
        most = max(
            min(card.clients, limit or card.clients)
            for card, suits in zip(node.devices, suiting.tolist(), strict=True)
            if suits
        )
        yield "density", _Lack(1, 0, int(crowded.sum()), most)
    few = short & ~crowded & ((admitted == 0) | (gpus > 1))
    if few.any():
        yield "gpu", _Lack(gpus, int(np.minimum(fits[few], gpus - 1).max()), int(few.sum()), whole)
    full = short & ~crowded & ~few
    if not full.any():
        return
    far = np.int64(1) << 62
    free_memory = np.where(admitting, states[Card.MEMORY], -1).max(axis=1, initial=-1)
    free_milli = np.where(admitting, states[Card.MILLI], -1).max(axis=1, initial=-1)
    least_memory = np.where(admitting, memory, far).min(axis=1, initial=far)
    least_milli = np.where(admitting, milli, far).min(axis=1, initial=far)
    # what was asked in milli is told in milli, though the memory that goes with it lacks as well
    tight = full & (free_memory < least_memory) & (not asked.milli)
    if tight.any():
        sizes = [
            c.allocatable_bytes for c, suits in zip(node.devices, suiting, strict=True) if suits
        ]
        yield (
            "gpu memory",
            _Lack(
                int(least_memory[tight].min()),
                int(free_memory[tight].max()),
                int(tight.sum()),
                max(sizes),
            ),
        )
    rest = full & ~tight
    if rest.any():
        yield (
            "gpu share",
            _Lack(
                int(least_milli[rest].min()),
                int(free_milli[rest].max()),
                int(rest.sum()),
                WHOLE,
            ),
        )
