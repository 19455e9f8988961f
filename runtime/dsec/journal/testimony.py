"""What a node that is no more has said of the ends on it: its rows outlive it.

An end is recorded by the leader from its agent's answer. Where no leader was there to hear it, and
the node is gone before one comes, the row that the agent has pushed through a gateway still says
how the sandbox ended; its scene is in the store. A gateway takes rows of a node from that alone.
"""

from collections.abc import Collection
from datetime import date, datetime, timedelta

from pydantic import ValidationError

from dsec.api.sandbox import End
from dsec.journal.history import HISTORY, rows_below
from dsec.world.objects import ObjectStore

ENDED = "sandbox-ended"
LONGEST_DAYS = 7
"""So far back rows are read: a leader that was away for longer looks at its first days only."""


async def told_ends(
    objects: ObjectStore, node: str, ids: Collection[str], since: datetime, now: datetime
) -> dict[str, tuple[int, End]]:
    """Return, by sandbox, the incarnation and the end that a node told of. Raises ObjectStoreError.

    `since` is when the first of them came to the node.
    """
    found: dict[str, tuple[int, End]] = {}
    for day in _days(since.date(), now.date()):
        async for row in rows_below(objects, f"{HISTORY}/{day.isoformat()}/{node}/"):
            if row.kind != ENDED or row.node != node or row.sandbox not in ids:
                continue
            incarnation = row.body.get("incarnation")
            try:
                end = End.model_validate(row.body.get("end"))
            except ValidationError:
                continue
            if isinstance(incarnation, int):
                found[row.sandbox] = incarnation, end
    return found


def _days(first: date, last: date) -> list[date]:
    count = min((last - first).days + 1, LONGEST_DAYS)
    return [first + timedelta(days=one) for one in range(max(0, count))]
