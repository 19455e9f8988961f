"""The verbs about task queues: a trainer puts work, workers take it and acknowledge."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from dsec.api.base import WireModel
from dsec.api.taskqueue import (
    ExtendItems,
    PutAnswer,
    PutItems,
    QueueStatus,
    Receipts,
    ReceiptsAnswer,
    TakeAnswer,
    TakeItems,
    TakenItem,
)
from dsec.client._caller import Caller
from dsec.client._messages import checked, items_of, parse
from dsec.client._transport import new_id
from dsec.client.errors import InvalidError

T = TypeVar("T", bound=WireModel)

Taken = list[TakenItem]
QueueStatuses = list[QueueStatus]


class QueueVerbs(Caller):
    """Put, take, acknowledge: an item is delivered at least once, acknowledged at most once."""

    async def put_items(
        self, experiment: str, queue: str, bodies: Iterable[str], *, ids: Sequence[str] = ()
    ) -> PutAnswer:
        """Put work at the end of a queue; with the same `ids` again, nothing is put twice.

        Raises InvalidError where ids and bodies are not as many, or one is no valid id.
        """
        texts = list(bodies)
        names = list(ids) or [new_id() for _ in texts]
        if len(names) != len(texts):
            raise InvalidError(f"{len(names)} ids for {len(texts)} bodies: give one for each")
        items = [{"id": name, "body": text} for name, text in zip(names, texts, strict=True)]
        call = checked(PutItems, items=items)
        return await self._queue(experiment, queue, "put", call, PutAnswer)

    async def take_items(
        self,
        experiment: str,
        queue: str,
        *,
        most: int = 1,
        visibility_seconds: float = 60.0,
        wait_seconds: float = 0.0,
        worker: str = "",
    ) -> Taken:
        """Take up to `most` items, waiting up to `wait_seconds` (s) for the first.

        What is not acknowledged within `visibility_seconds` (s), or whose `worker` (a sandbox) has
        ended, is given to others. Empty: there was nothing.
        """
        call = checked(
            TakeItems,
            call=new_id(),
            most=most,
            visibility_seconds=visibility_seconds,
            wait_seconds=wait_seconds,
            worker=worker,
        )
        return (await self._queue(experiment, queue, "take", call, TakeAnswer)).items

    async def acknowledge_items(
        self, experiment: str, queue: str, receipts: Iterable[str]
    ) -> ReceiptsAnswer:
        """End items. A receipt whose time is over changes nothing and is told as stale."""
        call = checked(Receipts, receipts=list(receipts))
        return await self._queue(experiment, queue, "ack", call, ReceiptsAnswer)

    async def release_items(
        self, experiment: str, queue: str, receipts: Iterable[str]
    ) -> ReceiptsAnswer:
        """Give items back: they wait again, at their old place."""
        call = checked(Receipts, receipts=list(receipts))
        return await self._queue(experiment, queue, "release", call, ReceiptsAnswer)

    async def extend_items(
        self, experiment: str, queue: str, receipts: Iterable[str], *, visibility_seconds: float
    ) -> ReceiptsAnswer:
        """Hold items for `visibility_seconds` (s) from now."""
        call = checked(ExtendItems, receipts=list(receipts), visibility_seconds=visibility_seconds)
        return await self._queue(experiment, queue, "extend", call, ReceiptsAnswer)

    async def queue_status(self, experiment: str, queue: str) -> QueueStatus:
        """Return a queue in numbers; one that never had an item is empty."""
        response = await self._transport.call("GET", self._experiment(experiment, "queues", queue))
        return parse(QueueStatus, response.content)

    async def queues(self, experiment: str) -> QueueStatuses:
        """Return the queues of an experiment in numbers."""
        response = await self._transport.call("GET", self._experiment(experiment, "queues"))
        return [parse(QueueStatus, one) for one in items_of(response)]

    async def _queue(
        self, experiment: str, queue: str, verb: str, call: WireModel, answer: type[T]
    ) -> T:
        response = await self._transport.call(
            "POST",
            self._experiment(experiment, "queues", queue, verb),
            json=call.wire(),
            # ids, takes and receipts are keys: a repeat finds what the first one did
            repeatable=True,
        )
        return parse(answer, response.content)
