"""Records are made where a row names them, once; a dump is a whole round."""

import asyncio
from datetime import UTC, datetime

from dsec.controllers.recorder import Recorder
from dsec.journal.decisions import DecisionReader
from dsec.journal.history import HistoryWriter
from dsec.placement.accounts import Account, amounts_of
from dsec.placement.deciding import Wanted, decide
from dsec.placement.dumps import replay
from dsec.placement.entries import Entry
from dsec.placement.ledger import Ledger
from dsec.placement.mix import Mix
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryObjects
from placement_make import many, node, request, view


async def test_dumps_that_nobody_waits_for_any_more_are_forgotten() -> None:
    """Whoever asks while nothing is to be decided gives up; a thousand of them leave nothing."""
    objects = MemoryObjects()
    recorder = Recorder(HistoryWriter(objects, SystemClock(), node="c", boot_id="epoch-1"), 1)
    for _ in range(1000):
        recorder.ask().cancel()
    assert len(recorder._asked) == 1
    books = Ledger()
    books.put(Account("t", {"cpu_milli": 5000}))
    asked = request("r")
    wanted = [Wanted(asked, Entry("r", "t/p", amounts_of(asked.resources)))]
    recorder.before(view(node("a", 4)), books, Mix(), wanted, at=datetime.now(UTC))
    assert recorder._dump is None


async def test_a_round_from_its_start_to_history() -> None:
    """Two classes, one of them named by two rows: two rows of records, with the quota before."""
    objects = MemoryObjects()
    history = HistoryWriter(objects, SystemClock(), node="controller-a", boot_id="epoch-4")
    recorder, seen, books = Recorder(history, 4), view(node("a", 4), node("b", 2)), Ledger()
    books.put(Account("t", {"cpu_milli": 5000}))
    asked = [*many(3, cores=2), request("huge", cores=64), request("silent")]
    wanted = [Wanted(r, Entry(r.id, "t/p", amounts_of(r.resources))) for r in asked]
    assert recorder.name("s0") == ""
    dumped = recorder.ask()
    now = datetime.now(UTC)
    recorder.before(seen, books, Mix(), wanted, at=now)
    found = decide(seen, books, wanted, record=True)
    recorder.after({decision.id: decision for decision in found})
    for id_ in ("s0", "s1", "huge"):
        row = "sandbox-waits" if id_ == "huge" else "sandbox-placed"
        history.add(row, sandbox=id_, node="", decision=recorder.name(id_, "t"))
    await history.close()

    told = await DecisionReader(objects).find(["s0", "s1", "huge", "silent"], now)
    assert set(told) == {"s0", "s1", "huge"}
    first = told["s0"].record
    assert first is not None
    assert told["s1"].record == first
    assert (first.asked, first.placed, first.epoch) == (3, 2, 4)
    (cpu,) = (one for one in first.ledger if one.account == "t")
    assert (cpu.dimension, cpu.asked, cpu.used, cpu.nominal) == ("cpu_milli", 2000, 0, 5000)
    huge = told["huge"].record
    assert huge is not None
    assert {one.reason.value for one in huge.rejected} == {"quota"}
    assert replay(await asyncio.wait_for(dumped, 1)).differences == []
