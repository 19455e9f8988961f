"""What turnover changes in the tables of expected stranded GPU.

Turnover is 0 while a cluster fills and 1 where work ends as fast as it comes (`Mix.turnover`). The
order of nodes keeps whole ones for a cluster that fills. In a busy one holes reopen all over, nodes
at the end of the order are full, too, and what asks for whole nodes starves. So with turnover V is
made of fewer draws, the order weighs less, and idle cards are kept together where there are enough
for requests for several. In between all three are interpolated; without turnover nothing changes.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dsec.placement.stranding import CARD_DRAWS, WHOLE, Floats, NodeTable, Shape

BUSY_DRAWS = 4
"""Draws behind V at full turnover."""
KEEP_WEIGHT = 6.0
"""Of idle cards kept together, at full turnover."""
BUSY_ORDER = 0.1
"""Part of the order's weight that is left at full turnover."""


def kept_table(
    shapes: Sequence[Shape], table: NodeTable, gpus: int, turnover: float
) -> Floats | None:
    """Return [row of H, idle cards] of what idle cards together are worth, negative milli.

    A node that a request for several whole cards would find room on is worth what that asks for,
    by how often it is asked for, times `KEEP_WEIGHT` x turnover. None without turnover: while a
    cluster fills, the order of nodes keeps whole ones.
    """
    if not turnover:
        return None
    cpu = np.arange(table.values.shape[0])[:, None] * table.cpu_step
    idle = np.arange(gpus + 1)[None, :]
    values = np.zeros((table.values.shape[0], gpus + 1))
    for one in shapes:
        if one.gpus > 1 and one.milli == WHOLE:
            room = (cpu >= one.cpu_milli) & (idle >= one.gpus)
            values -= KEEP_WEIGHT * turnover * one.weight * one.gpus * WHOLE * room
    return values


def draws_for(turnover: float) -> int:
    """Return the draws behind V: what ends reopens holes, so that few requests come to each."""
    return round(CARD_DRAWS + turnover * (BUSY_DRAWS - CARD_DRAWS))


def order_scale(turnover: float) -> float:
    """Return the part of the order's weight that counts."""
    return 1.0 + turnover * (BUSY_ORDER - 1.0)


def shunned(table: NodeTable, part: float) -> NodeTable:
    """Return H where that part of the requests may not come to the nodes.

    What they would have used is stranded as well: so work that may go anywhere leaves the models
    that others insist on to them.
    """
    if not part:
        return table
    usable = np.arange(table.values.shape[1]) * table.usable_step
    return replace(table, values=table.values + part * (usable - table.values))
