"""Why a request has no node: nodes grouped by reason, with counts and the figures that lack.

All on arrays: in a full cluster refusals are as frequent as placements.
"""

import numpy as np

from dsec.api.reasons import PendingReason
from dsec.placement.asked import Asked, amounts_of
from dsec.placement.derived import Derived
from dsec.placement.dimensions import BOOKED, LIMIT, NAMES, Column
from dsec.placement.filters import low, mismatch
from dsec.placement.lacking import card_shortfalls
from dsec.placement.machines import Ints
from dsec.placement.refusal import Refusal
from dsec.placement.request import Request
from dsec.placement.view import ClusterView

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
    rows, grouped = sorted_out(view, request, asked)
    if not len(rows):
        return grouped
    found = _column_shortfalls(view, rows, request, asked)
    if asked.mode:
        found += card_shortfalls(view, rows, request, asked)
    # the dimension that excludes most nodes is the one to act on
    return tuple(sorted(found, key=lambda one: (-one.nodes, one.dimension)))


def sorted_out(
    view: ClusterView, request: Request, asked: Asked
) -> tuple[Ints, tuple[Refusal, ...]]:
    """Return (rows that the filters leave, the others grouped by the first filter)."""
    every = len(view.described)
    known = view.cache
    if isinstance(known, Derived) and known.generation == view.generation:
        verdicts = known.verdicts(view, request, asked).why
    else:
        verdicts = [mismatch(node, request, asked) for node in view.profiles]
    present = np.bincount(view.profile, minlength=len(view.profiles)).tolist()
    suits = np.zeros(len(view.profiles), dtype=bool)
    grouped: dict[_Why, int] = {}
    for number, why in enumerate(verdicts):
        if not present[number]:
            continue
        if why is None:
            suits[number] = True
        else:
            key = (why.reason, why.dimension, str(why.asked))
            grouped[key] = grouped.get(key, 0) + present[number]
    rows = np.flatnonzero(suits[view.profile])
    if request.avoid:
        avoided = np.array([view.row(name) for name in request.avoid if name in view.nodes])
        refused = np.isin(rows, avoided)
        if refused.any():
            grouped[PendingReason.CAPACITY, "agent", "1"] = int(refused.sum())
            rows = rows[~refused]
    found = [
        Refusal(reason, dimension, value, nodes=count, total_nodes=every)
        for (reason, dimension, value), count in grouped.items()
    ]
    return rows, tuple(sorted(found, key=lambda one: (-one.nodes, one.dimension, one.asked)))


def _column_shortfalls(
    view: ClusterView, rows: Ints, request: Request, asked: Asked
) -> list[Refusal]:
    """Name each booked dimension that a node lacks, and watermarks."""
    profiles = view.profile[rows]
    booked = {
        number: [min(amount, LIMIT) for amount in amounts_of(asked, view.profiles[number])]
        for number in np.flatnonzero(np.bincount(profiles)).tolist()
    }
    found = []
    for column in (*range(BOOKED), int(Column.HEADROOM)):
        if column == Column.HEADROOM:
            asked_by = dict.fromkeys(booked, 1 if low(request) else 2)
        else:
            asked_by = {number: amounts[column] for number, amounts in booked.items()}
        free = view.columns[column][rows]
        want: int | Ints = next(iter(asked_by.values()))
        if len(set(asked_by.values())) > 1:
            table = np.zeros(len(view.profiles), dtype=np.int64)
            table[list(asked_by)] = list(asked_by.values())
            want = table[profiles]
            short = (free < want) & (want > 0)
        elif want:
            short = free < want
        else:
            continue
        count = int(short.sum())
        if count:
            most = 2 if column == Column.HEADROOM else int(view.totals[column][rows[short]].max())
            least = want if isinstance(want, int) else int(want[short].min())
            best = max(0, int(free[short].max()))
            name = NAMES[Column(column)]
            found.append(Refusal(PendingReason.CAPACITY, name, least, best, count, len(rows), most))
    return found
