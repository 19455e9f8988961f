"""What the buyer of nodes remembers: one writer, before it is done, and only what is new."""

from typing import Any

import pytest
from dsec.api.pool_status import HeldNode
from dsec.controllers.pool_book import PoolBook, steady
from dsec.journal.bindlog import FencedError
from dsec.scaling.nodes.state import Backoff, PoolMemory
from dsec.world.cache import Cache
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryRecords

OFFERING = "burst/east/a/c8/on-demand"


@pytest.fixture
async def records() -> MemoryRecords:
    """One pool that scales, and one by hand."""
    made = MemoryRecords()
    await made.create(
        {"kind": "SandboxNodePool", "metadata": {"name": "burst"}, "spec": {"scaling": {}}}
    )
    await made.create({"kind": "SandboxNodePool", "metadata": {"name": "own"}, "spec": {}})
    return made


async def book_of(records: MemoryRecords, epoch: int) -> PoolBook:
    """Return the book of one leader, with a cache as of now."""
    cache = Cache(records, "SandboxNodePool", SystemClock())
    for record in (await records.list("SandboxNodePool")).items:
        cache.put(record)
    return PoolBook(records, cache, epoch)


def held(name: str = "n1", **fields: Any) -> HeldNode:
    """Return a node that is asked for."""
    values = {"offering": OFFERING, "token": "t", "phase": "requested", "requested_at": 1.0}
    return HeldNode(name=name, since=1.0, **(values | fields))


async def test_the_next_leader_reads_what_the_last_one_wrote(records: MemoryRecords) -> None:
    """Nodes, backoffs, serial and memories; pools by hand are left alone."""
    first = await book_of(records, 1)
    assert list(first.pools()) == ["burst"]
    await first.claim(["burst"])
    first.nodes["n1"] = held(paths=["research/lab/a"], run_until=99.0)
    first.backoffs = (Backoff("provider/aws", 2, 500.0, "slow"),)
    first.serial = 7
    first.memories["burst"] = PoolMemory("burst", calm_since=3.0, acted_at=4.0)
    first.tell("burst").decide(5.0, "buys 1 node")
    await first.save(["burst"])

    second = await book_of(records, 2)
    await second.claim(["burst"])
    assert second.nodes == first.nodes
    assert second.backoffs == first.backoffs
    assert second.serial == 7
    assert second.memories["burst"].calm_since == 3.0
    assert [one.text for one in second.tell("burst").decisions] == ["buys 1 node"]


async def test_a_leader_that_was_followed_writes_nothing(records: MemoryRecords) -> None:
    """Its write meets another version, and the epoch in it ends its term."""
    old = await book_of(records, 1)
    await old.claim(["burst"])
    new = await book_of(records, 2)
    await new.claim(["burst"])
    old.nodes["n1"] = held()
    with pytest.raises(FencedError, match="epoch 2"):
        await old.save(["burst"])
    record = await records.get("SandboxNodePool", "burst")
    assert record["status"]["scaling"]["nodes"] == []


async def test_a_reservation_of_the_old_leader_is_seen_by_the_claim(
    records: MemoryRecords,
) -> None:
    """Between the new leader's read and its claim: the claim meets it, and reads again."""
    old, new = await book_of(records, 1), await book_of(records, 2)
    await old.claim(["burst"])
    old.nodes["n1"] = held()
    await old.save(["burst"])
    await new.claim(["burst"])
    assert list(new.nodes) == ["n1"]


async def test_only_news_is_written(records: MemoryRecords) -> None:
    """Seconds that run down are none; a sentence of another kind, and a node, are."""
    book = await book_of(records, 1)
    await book.claim(["burst"])
    book.tell("burst").refusals = ["n1: kept for 50 s more"]
    await book.save(["burst"])
    before = (await records.get("SandboxNodePool", "burst"))["metadata"]["resourceVersion"]
    book.tell("burst").refusals = ["n1: kept for 45 s more"]
    book.serial, book.consolidated_at = 3, 60.0
    await book.save(["burst"])
    after = (await records.get("SandboxNodePool", "burst"))["metadata"]["resourceVersion"]
    assert before == after
    book.nodes["n1"] = held()
    await book.save(["burst"])
    status = (await records.get("SandboxNodePool", "burst"))["status"]["scaling"]
    assert status["serial"] == 3
    assert status["refusals"] == ["n1: kept for 45 s more"]
    assert steady("kept for 45.5 s of 2") == "kept for # s of #"


async def test_a_pool_that_was_deleted_is_forgotten(records: MemoryRecords) -> None:
    """Nothing is written for it, and nothing fails."""
    book = await book_of(records, 1)
    await book.claim(["burst"])
    await records.delete("SandboxNodePool", "burst")
    book.nodes["n1"] = held()
    await book.save(["burst"])
