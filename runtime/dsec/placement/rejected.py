"""Which nodes a request cannot go to now, counted by reason, in one pass over the arrays.

For the record of every decision, also of those that found a node; `refusing` says more (whole
cards one by one), costs more, and is asked only where no node takes a request.
"""

import numpy as np

from dsec.api.reasons import PendingReason
from dsec.api.sandbox import GpuMode
from dsec.placement.accelerators import EXCLUSIVE, MODES, SLICED
from dsec.placement.asked import Asked, amounts_of
from dsec.placement.dimensions import NAMES, Column
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
    present = np.bincount(view.profile, minlength=len(view.profiles)).tolist()
    groups: dict[tuple[int, ...], list[int]] = {}
    grouped: dict[tuple[PendingReason, str, str], int] = {}
    for number, node in enumerate(view.profiles):
        if not present[number]:
            continue
        found = mismatch(node, request, asked)
        if found is None:
            groups.setdefault(amounts_of(asked, node), []).append(number)
        else:
            key = (found.reason, found.dimension, str(found.asked))
            grouped[key] = grouped.get(key, 0) + present[number]
    refusals = [
        Refusal(reason, dimension, value, nodes=count, total_nodes=count)
        for (reason, dimension, value), count in grouped.items()
    ]
    short: dict[Column, tuple[int, int, int]] = {}
    for amounts, profiles in groups.items():
        rows = None
        if sum(present[number] for number in profiles) < every:
            rows = np.flatnonzero(np.isin(view.profile, profiles))
        needs = [(Column(column), amount) for column, amount in enumerate(amounts) if amount]
        for column, amount in (*needs, (Column.HEADROOM, 1 if low(request) else 2), *_cards(asked)):
            free = view.columns[column] if rows is None else view.columns[column][rows]
            lacking = free < amount
            count = int(np.count_nonzero(lacking))
            if count:
                least, most, before = short.get(column, (amount, 0, 0))
                most = max(most, int(free[lacking].max()))
                short[column] = (min(least, amount), most, before + count)
    refusals += [
        # of the rejected ones only: the others have room
        Refusal(PendingReason.CAPACITY, NAMES[column], least, most, count, count, least)
        for column, (least, most, count) in short.items()
    ]
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
