"""Compaction on the openb trace: pods move away so that one for several cards finds room.

After a refusal the nodes that lack the fewest cards are tried: their smallest pods move to wherever
the placement of dsec puts them, until the refused one fits. Each move is charged by the protocol.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dsec.placement.engine import place
from dsec.placement.mix import Mix
from dsec.placement.request import Decision, Node, Request
from dsec.placement.view import ClusterView

MOST_MOVES = 8
"""Pods that move for one refused pod, at most."""
NODES_TRIED = 16


@dataclass(frozen=True, slots=True)
class Room:
    """Where a refused pod goes after all, and what has moved for it."""

    decision: Decision
    moves: list[Decision]


def make_room(view: ClusterView, request: Request, mix: Mix) -> Room | None:
    """Move pods and book the request; None: nothing has changed."""
    for name, lacks in _candidates(view, request):
        found = _clear(view, request, name, lacks, mix)
        if found is not None:
            freed: list[tuple[Request, Decision]] = []
            for move in found.moves:
                booked = view.bookings()[move.id].request
                freed.append((booked, move))
                view.release(move.id)
            view.book(request, found.decision)
            for booked, move in freed:
                view.book(booked, move)
            return found
    return None


def _candidates(view: ClusterView, request: Request) -> Iterator[tuple[str, int]]:
    """Yield nodes with the cards that they lack, the fewest first."""
    wanted, models = request.resources.gpu_count, set(request.gpu_model.split("|")) - {""}
    lacking = sorted(
        (wanted - view.room(name)["gpu"], name)
        for name, node in view.nodes.items()
        if len(node.devices) >= wanted and _fits(node, models)
    )
    for lacks, name in lacking[:NODES_TRIED]:
        if lacks <= MOST_MOVES:
            yield name, max(0, lacks)


def _fits(node: Node, models: set[str]) -> bool:
    return not models or node.devices[0].model in models


def _clear(view: ClusterView, request: Request, name: str, lacks: int, mix: Mix) -> Room | None:
    """Try on a copy which of a node's pods have to move."""
    trial = view.fork()
    there = [view.bookings()[id_].request for id_ in view.on(name)]
    small = [one for one in there if one.resources.gpu_count or not lacks]
    small.sort(key=lambda one: (one.resources.gpu_count, _milli(one), one.resources.cpu_milli))
    moved: list[Request] = []
    for one in small[:MOST_MOVES]:
        trial.release(one.id)
        moved.append(one)
        (decision,) = place(trial, [request], mix=mix, learn=False)
        if decision.node:
            away = [replace(other, avoid=(decision.node,)) for other in moved]
            moves = place(trial, away, mix=mix, learn=False)
            return Room(decision, moves) if all(move.node for move in moves) else None
    return None


def _milli(request: Request) -> int:
    return request.resources.gpu_milli or 1000 * request.resources.gpu_count
