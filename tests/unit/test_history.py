"""History: every row once, whatever was pushed twice, in parts or by a writer that waited."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from dsec.api.wire import JournalRow
from dsec.journal.history import AUDIT, HistoryWriter, Question, read, store
from dsec.world.memory import MemoryObjects
from dsec.world.objects import ObjectStoreError
from provider_make import HurryClock

NOW = datetime(2026, 1, 1, 23, 59, tzinfo=UTC)


def row(seq: int, *, node: str = "n1", boot: str = "b1", **changes: object) -> JournalRow:
    """Build a row."""
    values = {"node": node, "boot_id": boot, "seq": seq, "utc": NOW, "kind": "k"} | changes
    return JournalRow.model_validate(values)


async def seqs(objects: MemoryObjects, **question: object) -> list[tuple[str, int]]:
    """Return (boot, seq) of the rows that a question finds."""
    return [(r.boot_id, r.seq) async for r in read(objects, Question.model_validate(question))]


async def test_a_push_repeated_with_more_rows_loses_none() -> None:
    """Rows 1-3, then 1-5 because the answer was lost: five rows, each once, in order."""
    objects = MemoryObjects()
    await store(objects, [row(n) for n in (1, 2, 3)])
    await store(objects, [row(n) for n in (1, 2, 3, 4, 5)])
    await store(objects, [row(n) for n in (1, 2, 3)])
    assert await seqs(objects) == [("b1", n) for n in (1, 2, 3, 4, 5)]


async def test_questions_by_tenant_experiment_sandbox_kind_and_time() -> None:
    """Each field narrows; a new boot starts its own numbers."""
    objects = MemoryObjects()
    await store(objects, [row(1, tenant="a", sandbox="s1"), row(2, tenant="b", experiment="e")])
    later = NOW + timedelta(days=2)
    await store(objects, [row(1, boot="b2", tenant="a", utc=later, kind="end")])
    assert await seqs(objects, tenant="a") == [("b1", 1), ("b2", 1)]
    assert await seqs(objects, experiment="e") == [("b1", 2)]
    assert await seqs(objects, sandbox="s1") == [("b1", 1)]
    assert await seqs(objects, kind="end") == [("b2", 1)]
    assert await seqs(objects, since=NOW + timedelta(days=1)) == [("b2", 1)]


async def test_a_flush_waits_until_rows_are_durable_and_groups_them() -> None:
    """Forty callers wait for few objects; a store that is away for a while loses nothing."""
    failures = iter(["before", "after"])
    objects = MemoryObjects(fault=lambda op, _: next(failures, "") if op != "list" else "")
    writer = HistoryWriter(objects, HurryClock(), node="gw", boot_id="x", prefix=AUDIT)
    task = asyncio.create_task(writer.run())

    async def call(n: int) -> None:
        writer.add("call", sandbox=f"s{n}")
        await writer.flush()

    await asyncio.gather(*(call(n) for n in range(40)))
    task.cancel()
    objects.fault = None
    rows = [r async for r in read(objects, Question(), AUDIT)]
    assert [r.seq for r in rows] == list(range(1, 41))
    assert len(await objects.list(f"{AUDIT}/")) <= 3


async def test_a_flush_ends_while_the_store_is_away() -> None:
    """Who waits is told after a while; the rows are stored once the store is back."""
    objects = MemoryObjects(fault=lambda op, _: "before" if op == "put_if_absent" else "")
    writer = HistoryWriter(objects, HurryClock(), node="gw", boot_id="x")
    task = asyncio.create_task(writer.run())
    writer.add("call")
    with pytest.raises(ObjectStoreError):
        await asyncio.wait_for(writer.flush(0.3), 5)
    objects.fault = None
    await asyncio.wait_for(writer.flush(), 5)
    task.cancel()
    assert await seqs(objects) == [("x", 1)]


async def test_close_stores_what_was_queued_and_what_was_under_way() -> None:
    """A writer that is stopped amid a retry loses no row."""
    objects = MemoryObjects(fault=lambda op, _: "before" if op == "put_if_absent" else "")
    writer = HistoryWriter(objects, HurryClock(), node="gw", boot_id="x")
    task = asyncio.create_task(writer.run())
    writer.add("one")
    await asyncio.sleep(0.3)
    writer.add("two")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    objects.fault = None
    await writer.close()
    assert await seqs(objects) == [("x", 1), ("x", 2)]
    objects.fault = lambda op, _: "before" if op == "put_if_absent" else ""
    writer.add("three")
    await asyncio.wait_for(writer.close(), 10)
