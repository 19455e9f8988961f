"""What a gateway lets into a task queue: up to its size, and repeats at any time."""

from types import SimpleNamespace
from typing import Any

import pytest
from dsec.api.taskqueue import PutItems
from dsec.gateway import queues
from dsec.gateway.errors import ApiError
from dsec.journal.queuelog import QueueLogs, folder
from dsec.world.memory import MemoryObjects
from test_task_queue import Time


async def test_only_new_items_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that repeats most of an earlier one fits where its new items do."""
    monkeypatch.setattr("dsec.gateway.queues.MAX_BYTES", 100)
    objects = MemoryObjects()
    opened = QueueLogs(objects, Time(), "gw", lambda _: False)

    async def log() -> Any:
        return opened.log(folder("lab", "uid-1", "work"))

    async def put(*items: tuple[str, str]) -> None:
        body = PutItems.model_validate({"items": [{"id": one, "body": b} for one, b in items]})

        async def asked(*_: object) -> PutItems:
            return body

        desk: Any = SimpleNamespace(
            asked=asked,
            log=log,
            gateway=SimpleNamespace(objects=objects),
            project="lab",
            uid="uid-1",
            queue="work",
        )
        await queues.put(desk)

    await put(("a", "x" * 80))
    await put(("a", "x" * 80), ("b", "y" * 20))
    with pytest.raises(ApiError, match="the queue holds 2 items of 100 bytes"):
        await put(("c", "z"))
    await put(("b", "y" * 20))


async def test_an_experiment_that_is_being_deleted_takes_no_work() -> None:
    """Its queues are removed: what is put now would be lost after it was answered for."""
    record = {"metadata": {"name": "one", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    known = SimpleNamespace(get=lambda _: record)
    gateway = SimpleNamespace(caches={"Experiment": known})
    path = {"name": "one", "queue": "work"}
    call: Any = SimpleNamespace(gateway=gateway, project="lab", request=None, path=path.get)
    with pytest.raises(ApiError, match="experiment one is being deleted") as refused:
        await queues.HANDLERS["put"](call)
    assert (refused.value.status, refused.value.code) == (409, "conflict")
