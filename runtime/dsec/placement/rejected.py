"""Which nodes a request cannot go to now, counted by reason, in one pass over the arrays.

For the record of every decision, also of those that found a node; `refusing` says more (whole
cards one by one), costs more, and is asked only where no node takes a request.
"""

import numpy as np

from dsec.api.reasons import PendingReason
from dsec.api.sandbox import GpuMode
from dsec.placement.accelerators import EXCLUSIVE, MODES, SLICED
from dsec.placement.asked import Asked, amounts_of
from dsec.placement.dimensions import BOOKED, NAMES, Column
from dsec.placement.filters import low, mismatch
from dsec.placement.refusal import Refusal
from dsec.placement.request import Request
from dsec.placement.view import ClusterView


def rejected(view: ClusterView, request: Request) -> list[Refusal]:
    """Return one refusal per reason, the most nodes first; a node may count for several columns.

    Of cards the most of one kind is compared: as many as asked, or the best share or slice.
    """
    view.settle()
    asked, every = Asked.of(request), len(view.described)
    suits = np.zeros(len(view.profiles), dtype=bool)
    amounts = np.zeros((len(view.profiles), len(Column)), dtype=np.int64)
    present = np.bincount(view.profile, minlength=len(view.profiles))
    grouped: dict[tuple[PendingReason, str, str], int] = {}
    cards = _cards(asked)
    for number, node in enumerate(view.profiles):
        if not present[number]:
            continue
        found = mismatch(node, request, asked)
        if found is not None:
            key = (found.reason, found.dimension, str(found.asked))
            grouped[key] = grouped.get(key, 0) + int(present[number])
            continue
        suits[number] = True
        amounts[number, :BOOKED] = amounts_of(asked, node)
        amounts[number, Column.HEADROOM] = 1 if low(request) else 2
        for column, count in cards:
            amounts[number, column] = count
    rows = np.flatnonzero(suits[view.profile])
    free, asks = view.columns[:, rows], amounts[view.profile[rows]].T
    lacking = (free < asks) & (asks > 0)
    refusals = [
        Refusal(reason, dimension, value, nodes=count, total_nodes=every)
        for (reason, dimension, value), count in grouped.items()
    ]
    for column in NAMES:
        short = lacking[column]
        count = int(short.sum())
        if count:
            least = int(asks[column][short].min())
            most = max(0, int(free[column][short].max()))
            refusals.append(
                Refusal(PendingReason.CAPACITY, NAMES[column], least, most, count, every)
            )
    return sorted(refusals, key=lambda one: (-one.nodes, one.dimension, str(one.asked)))


def _cards(asked: Asked) -> list[tuple[Column, int]]:
    """Return the summary column of cards that is looked at, and how much of it is needed."""
    if not asked.mode:
        return []
    if asked.mode == SLICED:
        return [(Column.SLICES, 1)]
    if asked.mode in EXCLUSIVE:
        passed = MODES[asked.mode - 1] is GpuMode.PASSTHROUGH
        return [(Column.PASSTHROUGH if passed else Column.WHOLE, asked.gpus)]
    return [(Column.SHARE, max(1, asked.milli))]
