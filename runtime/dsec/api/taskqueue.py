"""Wire types of an experiment's task queues: trainers put items, workers take and acknowledge."""

from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.meta import GivenName

ITEM_BYTES = 256 << 10
"""The most that one item holds, in bytes of UTF-8; larger things go by reference."""
CALL_ITEMS = 1000
"""Items of one call."""
MAX_ITEMS = 1_000_000
MAX_BYTES = 128 << 20
"""The most that a queue holds, waiting and taken together."""
MAX_QUEUES = 64
"""Queues of one experiment."""
LONGEST_WAIT = 20.0
"""Seconds that a take waits on the server: below the time-outs of what is between."""
WORD = 128
"""Characters of an id or a receipt."""

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$", max_length=WORD)]
Receipt = Annotated[str, Field(pattern=r"^[^/]+/[^/]+$", max_length=2 * WORD + 1)]
Visibility = Annotated[float, Field(gt=0, le=43_200)]


class QueueItem(WireModel):
    """One piece of work. The id is the key of its put: a repeat puts nothing."""

    id: Id
    body: str


class PutItems(WireModel):
    """Put work at the end of the queue."""

    items: list[QueueItem] = Field(min_length=1, max_length=CALL_ITEMS)


class PutAnswer(WireModel):
    """How many were new, and how many the queue had already seen."""

    accepted: int
    repeated: int


class TakeItems(WireModel):
    """Take work. A repeat of the same call gives what it gave, while that is still held."""

    call: Id = Field(description="Key of this take; a repeat after a lost answer carries the same.")
    most: int = Field(default=1, ge=1, le=CALL_ITEMS)
    visibility_seconds: Visibility = Field(
        default=60.0, description="What is not acknowledged by then is given to others."
    )
    wait_seconds: float = Field(default=0.0, ge=0, le=LONGEST_WAIT)
    worker: str = Field(
        default="",
        max_length=WORD,
        description="Sandbox that works on it: once that ends, what it took goes to others.",
    )


class TakenItem(WireModel):
    """Work that the caller has until its time is over."""

    id: str
    body: str
    receipt: str
    deliveries: int = Field(description="How often it was taken, this time included.")


class TakeAnswer(WireModel):
    """What was taken; empty: there was nothing."""

    items: list[TakenItem]


class Receipts(WireModel):
    """Items that the caller holds."""

    receipts: list[Receipt] = Field(min_length=1, max_length=CALL_ITEMS)


class ExtendItems(Receipts):
    """More time, counted from now."""

    visibility_seconds: Visibility = 60.0


class ReceiptsAnswer(WireModel):
    """Which receipts counted, and which did not: their time was over, or the worker's."""

    done: int
    stale: list[str] = []


class QueueStatus(WireModel):
    """A queue in numbers. Depth is what waits: put, given back, and not taken."""

    name: str
    depth: int
    taken: int
    acknowledged: int = Field(description="Ever.")
    oldest_seconds: float | None = Field(
        default=None, description="Age of the oldest item that waits."
    )


QueueName = GivenName
