"""Task queues over HTTP: put, take, acknowledge, give back, extend; depth in numbers."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dsec.api.base import WireModel
from dsec.api.names import dns_name
from dsec.api.taskqueue import (
    ITEM_BYTES,
    MAX_BYTES,
    MAX_ITEMS,
    MAX_QUEUES,
    WORD,
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
from dsec.gateway.calls import BODY_BYTES as LARGEST_CALL
from dsec.gateway.calls import Call, read_model
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, invalid, not_found
from dsec.journal.queuelog import LOOK_SECONDS, QueueLog, folder, names, parts
from dsec.journal.taskqueue import Row, TaskQueue
from dsec.world.objects import ObjectStoreError

BODY_BYTES = 32 << 20
NAME = 64
M = TypeVar("M", bound=BaseModel)
Act = Callable[["Desk"], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Desk:
    """One queue that somebody may work with, and what is asked of it.

    `sandbox`: the caller is a program inside of it, and takes in its name only.
    """

    gateway: Gateway
    request: Request
    project: str
    uid: str
    queue: str
    sandbox: str = ""

    async def asked(self, model: type[M], limit: int = LARGEST_CALL) -> M:
        """Read the body. Raises ApiError with every mistake."""
        return await read_model(self.request, model, limit)

    async def log(self) -> QueueLog:
        """Return the queue. Raises ApiError 422 for a name that no queue can have."""
        if dns_name(self.queue) != self.queue:
            raise invalid("queue", self.queue[:NAME], "a DNS label", "is no name of a queue")
        # ends of workers are looked up in it
        await self.gateway.views.fresh_log()
        return self.gateway.queues.log(folder(self.project, self.uid, self.queue))


async def _meta(call: Call) -> dict[str, Any]:
    """Return what the experiment of a call is. Raises RecordNotFoundError."""
    name = dns_name(call.path("name"))
    record = call.gateway.caches["Experiment"].get((call.project, name))
    if record is None:
        record = await call.gateway.records.get("Experiment", name, call.project)
    return dict(record["metadata"])


def _for_users(act: Act) -> Callable[[Call], Awaitable[Response]]:
    """Return the handler of a user's call."""

    async def handler(call: Call) -> Response:
        meta = await _meta(call)
        if act is put and meta.get("deletionTimestamp"):
            # its queues are removed: what is put now would be lost, or left behind
            raise ApiError(409, "conflict", f"experiment {meta['name']} is being deleted")
        place = call.project, meta["uid"], call.path("queue")
        return await act(Desk(call.gateway, call.request, *place))

    return handler


def _answer(model: WireModel) -> Response:
    return Response(
        model.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json"
    )


async def _check_room(desk: Desk) -> None:
    """Let a queue begin only where its experiment has few. Raises ApiError 429."""
    log = await desk.log()
    if not log.position:
        # only a queue that was not looked at here yet costs a look of its own
        await log.refresh()
    if log.position:
        return
    known = await names(desk.gateway.objects, desk.project, desk.uid)
    if len(known) >= MAX_QUEUES and desk.queue not in known:
        raise ApiError(
            429,
            "too-many-queues",
            f"the experiment has {len(known)} queues; at most {MAX_QUEUES}: put into one of them, "
            "and tell kinds of work apart in the body",
        )


async def put(desk: Desk) -> Response:
    """Put work at the end of a queue; the queue is there from its first item on."""
    asked = await desk.asked(PutItems, BODY_BYTES)
    for number, item in enumerate(asked.items):
        length = len(item.body.encode())
        if length > ITEM_BYTES:
            allowed = f"at most {ITEM_BYTES} bytes"
            where = f"items[{number}].body"
            raise invalid(where, f"{length} bytes", allowed, f"must have {allowed}")
    await _check_room(desk)

    def decide(queue: TaskQueue, now: float) -> tuple[list[Row], PutAnswer]:
        rows = queue.put(now, [(item.id, item.body) for item in asked.items])
        # a repeat after a lost answer takes no room a second time
        fresh = rows[0]["items"] if rows else []
        new, size = len(fresh), sum(len(body.encode()) for _, body in fresh)
        if rows and (len(queue.items) + new > MAX_ITEMS or queue.bytes + size > MAX_BYTES):
            raise ApiError(
                429,
                "queue-full",
                f"the queue holds {len(queue.items)} items of {queue.bytes} bytes; at most "
                f"{MAX_ITEMS} and {MAX_BYTES} bytes: put more when workers have caught up",
                retry_after=5.0,
            )
        return rows, PutAnswer(accepted=new, repeated=len(asked.items) - new)

    return _answer(await (await desk.log()).do(decide))


async def take(desk: Desk) -> Response:
    """Take work, or wait for some."""
    asked = await desk.asked(TakeItems)
    log, clock = await desk.log(), desk.gateway.clock
    worker = asked.worker or desk.sandbox
    if desk.sandbox:
        asked = _of_sandbox(asked, desk.sandbox)
    if worker:
        binding = await desk.gateway.views.binding(worker)
        if binding is None or binding.spec.identity.project != desk.project:
            raise not_found(f"sandbox {worker} of project {desk.project}")
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


def _of_sandbox(asked: TakeItems, sandbox: str) -> TakeItems:
    """Return a take under a key of the sandbox's own: all may count theirs from 1.

    Raises ApiError 403 for another worker, 422 for a key that leaves no room for that.
    """
    if asked.worker not in ("", sandbox):
        raise ApiError(403, "denied", f"worker: a sandbox takes for itself, {sandbox}")
    call, most = f"{sandbox}:{asked.call}", WORD - len(sandbox) - 1
    if len(call) > WORD:
        allowed = f"at most {most} characters"
        raise invalid("call", f"{len(asked.call)} characters", allowed, f"must have {allowed}")
    return asked.model_copy(update={"call": call})


async def _receipts(
    desk: Desk,
    asked: Receipts,
    change: Callable[[TaskQueue, float, list[str]], list[Row]],
) -> Response:
    def decide(queue: TaskQueue, now: float) -> tuple[list[Row], ReceiptsAnswer]:
        good, stale = queue.valid(asked.receipts)
        return change(queue, now, good), ReceiptsAnswer(done=len(good), stale=stale)

    return _answer(await (await desk.log()).do(decide))


async def acknowledge(desk: Desk) -> Response:
    """End items. A receipt whose time is over changes nothing and is told as stale."""
    asked = await desk.asked(Receipts)
    return await _receipts(desk, asked, lambda queue, now, good: queue.acknowledge(now, good))


async def release(desk: Desk) -> Response:
    """Give items back: they wait again, at their old place."""
    asked = await desk.asked(Receipts)
    return await _receipts(desk, asked, lambda queue, now, good: queue.give_back(now, good))


async def extend(desk: Desk) -> Response:
    """Hold items for longer."""
    asked = await desk.asked(ExtendItems)
    seconds = asked.visibility_seconds
    return await _receipts(desk, asked, lambda queue, now, good: queue.extend(now, good, seconds))


async def status(desk: Desk) -> Response:
    """Return a queue in numbers; one that never had an item is empty."""
    log = await desk.log()
    return _answer(await log.do(partial(_told, desk.queue)))


async def list_all(call: Call) -> Response:
    """Return the queues of an experiment in numbers."""
    gateway, uid = call.gateway, str((await _meta(call))["uid"])
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


ACTS: dict[str, Act] = {
    "put": put,
    "take": take,
    "ack": acknowledge,
    "release": release,
    "extend": extend,
}
"""What is done to a queue, by the last part of its path."""
HANDLERS = {verb: _for_users(act) for verb, act in ACTS.items()}
read = _for_users(status)
