"""Task queues over HTTP: put, take, acknowledge, give back, extend; depth in numbers."""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.responses import JSONResponse, Response

from dsec.api.base import WireModel
from dsec.api.names import dns_name
from dsec.api.taskqueue import (
    ITEM_BYTES,
    MAX_BYTES,
    MAX_ITEMS,
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
from dsec.gateway.calls import Call
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, invalid, not_found
from dsec.journal.queuelog import LOOK_SECONDS, QueueLog, folder, names, parts
from dsec.journal.taskqueue import Row, TaskQueue
from dsec.world.objects import ObjectStoreError

BODY_BYTES = 32 << 20
NAME = 64


async def _uid(call: Call) -> str:
    name = dns_name(call.path("name"))
    record = call.gateway.caches["Experiment"].get((call.project, name))
    if record is None:
        record = await call.gateway.records.get("Experiment", name, call.project)
    return str(record["metadata"]["uid"])


async def _log(call: Call) -> QueueLog:
    """Return the queue of the path. Raises ApiError 422 for a name that no queue can have."""
    queue = call.path("queue")
    if dns_name(queue) != queue:
        raise invalid("queue", queue[:NAME], "a DNS label", "is no name of a queue")
    prefix = folder(call.project, await _uid(call), queue)
    # ends of workers are looked up in it
    await call.gateway.views.fresh_log()
    return call.gateway.queues.log(prefix)


def _answer(model: WireModel) -> Response:
    return Response(
        model.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json"
    )


async def put(call: Call) -> Response:
    """Put work at the end of a queue; the queue is there from its first item on."""
    asked = await call.model(PutItems, BODY_BYTES)
    size = 0
    for number, item in enumerate(asked.items):
        length = len(item.body.encode())
        if length > ITEM_BYTES:
            allowed = f"at most {ITEM_BYTES} bytes"
            where = f"items[{number}].body"
            raise invalid(where, f"{length} bytes", allowed, f"must have {allowed}")
        size += length

    def decide(queue: TaskQueue, now: float) -> tuple[list[Row], PutAnswer]:
        rows = queue.put(now, [(item.id, item.body) for item in asked.items])
        new = len(rows[0]["items"]) if rows else 0
        if rows and (len(queue.items) + new > MAX_ITEMS or queue.bytes + size > MAX_BYTES):
            raise ApiError(
                429,
                "queue-full",
                f"the queue holds {len(queue.items)} items of {queue.bytes} bytes; at most "
                f"{MAX_ITEMS} and {MAX_BYTES} bytes: put more when workers have caught up",
                retry_after=5.0,
            )
        return rows, PutAnswer(accepted=new, repeated=len(asked.items) - new)

    return _answer(await (await _log(call)).do(decide))


async def take(call: Call) -> Response:
    """Take work, or wait for some."""
    asked = await call.model(TakeItems)
    log, clock = await _log(call), call.gateway.clock
    worker = asked.worker
    if worker:
        binding = await call.gateway.views.binding(worker)
        if binding is None or binding.spec.identity.project != call.project:
            raise not_found(f"sandbox {worker} of project {call.project}")
        if not binding.live:
            raise ApiError(409, "fenced", f"sandbox {worker} has ended: it can take no work")

    def decide(queue: TaskQueue, now: float) -> tuple[list[Row], TakeAnswer]:
        held, rows = queue.held(asked.call), []
        if not held:
            rows = queue.take(now, asked.call, asked.most, asked.visibility_seconds, worker)
            held = rows[0]["ids"] if rows else []
        more = 1 if rows else 0
        items = [
            TakenItem(
                id=name,
                body=queue.items[name].body,
                receipt=f"{asked.call}/{name}",
                deliveries=queue.items[name].deliveries + more,
            )
            for name in held
        ]
        return rows, TakeAnswer(items=items)

    until = clock.monotonic() + asked.wait_seconds
    while True:
        answer = await log.do(decide)
        left = until - clock.monotonic()
        if answer.items or left <= 0:
            return _answer(answer)
        await clock.sleep(min(LOOK_SECONDS, left))


async def _receipts(
    call: Call,
    asked: Receipts,
    change: Callable[[TaskQueue, float, list[str]], list[Row]],
) -> Response:
    def decide(queue: TaskQueue, now: float) -> tuple[list[Row], ReceiptsAnswer]:
        good, stale = queue.valid(asked.receipts)
        return change(queue, now, good), ReceiptsAnswer(done=len(good), stale=stale)

    return _answer(await (await _log(call)).do(decide))


async def acknowledge(call: Call) -> Response:
    """End items. A receipt whose time is over changes nothing and is told as stale."""
    asked = await call.model(Receipts)
    return await _receipts(call, asked, lambda queue, now, good: queue.acknowledge(now, good))


async def release(call: Call) -> Response:
    """Give items back: they wait again, at their old place."""
    asked = await call.model(Receipts)
    return await _receipts(call, asked, lambda queue, now, good: queue.give_back(now, good))


async def extend(call: Call) -> Response:
    """Hold items for longer."""
    asked = await call.model(ExtendItems)
    seconds = asked.visibility_seconds
    return await _receipts(call, asked, lambda queue, now, good: queue.extend(now, good, seconds))


async def status(call: Call) -> Response:
    """Return a queue in numbers; one that never had an item is empty."""
    log = await _log(call)
    return _answer(await log.do(partial(_told, call.path("queue"))))


async def list_all(call: Call) -> Response:
    """Return the queues of an experiment in numbers."""
    gateway, uid = call.gateway, await _uid(call)
    items = []
    for name in await names(gateway.objects, call.project, uid):
        log = gateway.queues.log(folder(call.project, uid, name))
        items.append((await log.do(partial(_told, name))).wire())
    return JSONResponse({"items": items})


def _told(name: str, queue: TaskQueue, now: float) -> tuple[list[Row], QueueStatus]:
    oldest = queue.oldest()
    return [], QueueStatus(
        name=name,
        depth=queue.depth,
        taken=len(queue.taken),
        acknowledged=queue.acknowledged,
        oldest_seconds=None if oldest is None else max(0.0, round(now - oldest, 3)),
    )


async def measure(gateway: Gateway) -> None:
    """Set the metrics of the queues at hand to what they are now, whoever wrote last."""
    names_of = {
        record["metadata"]["uid"]: record["metadata"]["name"]
        for record in gateway.caches["Experiment"].all()
    }
    gateway.metrics.depth.clear()
    gateway.metrics.taken.clear()
    for prefix, log in gateway.queues.open():
        project, uid, queue = parts(prefix)
        if uid not in names_of:
            continue
        # no figure rather than an old one, where the store does not answer
        with contextlib.suppress(ObjectStoreError):
            await log.refresh()
            labels = (project, names_of[uid], queue)
            gateway.metrics.depth.labels(*labels).set(log.state.depth)
            gateway.metrics.taken.labels(*labels).set(len(log.state.taken))


HANDLERS: dict[str, Callable[[Call], Awaitable[Response]]] = {
    "put": put,
    "take": take,
    "ack": acknowledge,
    "release": release,
    "extend": extend,
}
"""What is done to a queue, by the last part of its path."""
