"""Decision records in history: one per class and round, found again for each of its sandboxes."""

from datetime import UTC, datetime, timedelta

from dsec.api.decisions import DecisionRecord, Rejection, Score
from dsec.api.reasons import PendingReason
from dsec.journal.decisions import DecisionReader, add_decision
from dsec.journal.history import HistoryWriter, store
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryObjects
from test_history import row

RECORD = DecisionRecord(
    id="d1",
    at=datetime(2026, 1, 1, tzinfo=UTC),
    inputs="0" * 64,
    request={"resources": {"cpuMilli": 1000}},
    asked=2,
    nodes={"n1": 1},
    rejected=[Rejection(reason=PendingReason.CAPACITY, dimension="cpu", asked=1000, nodes=3)],
    scores=[Score(name="stranding", value=0.5)],
)


def leader(objects: MemoryObjects, epoch: int) -> HistoryWriter:
    """Return the history of a term."""
    return HistoryWriter(objects, SystemClock(), node="controller-a", boot_id=f"epoch-{epoch}")


async def test_the_newest_decision_of_a_sandbox_is_found_with_its_record() -> None:
    """Waits in one term, is placed in a later one, whose number has more digits."""
    objects, asked = MemoryObjects(), datetime.now(UTC)
    first = leader(objects, 9)
    first.add("sandbox-waits", sandbox="sb-1", why="no room")
    await first.close()
    reader = DecisionReader(objects)
    waiting = (await reader.find(["sb-1"], asked))["sb-1"]
    assert (waiting.node, waiting.message, waiting.record) == ("", "no room", None)

    second = leader(objects, 10)
    add_decision(second, RECORD, tenant="t")
    second.add("sandbox-placed", sandbox="sb-1", node="n1", devices=["gpu-0"], decision="d1")
    second.add("sandbox-placed", sandbox="sb-2", node="n2", decision="d1")
    await second.close()
    for one in (reader, DecisionReader(objects)):
        placed = (await one.find(["sb-1", "sb-3"], asked))["sb-1"]
        assert (placed.node, placed.devices, placed.record) == ("n1", ["gpu-0"], RECORD)
    later = await DecisionReader(objects).find(["sb-1"], asked + timedelta(days=1, minutes=11))
    assert later == {}


async def test_preemption_and_return_are_decisions_too() -> None:
    """Paused it is still on its node, stopped it is nowhere, resumed it goes on."""
    objects = MemoryObjects()
    for how, node, words in (
        ("paused", "n1", "paused for lab/x (priority 2)"),
        ("", "n1", "goes on, on node n1"),
        ("stopped", "", "stopped for lab/x (priority 2)"),
    ):
        history = leader(objects, len(objects._data) + 1)
        body = {"how": how, "why": "for lab/x (priority 2)"} if how else {}
        history.add("preempted" if how else "resumed", sandbox="sb-1", node="n1", **body)
        await history.close()
        found = (await DecisionReader(objects).find(["sb-1"], datetime.now(UTC)))["sb-1"]
        assert (found.node, found.record) == (node, None)
        assert words in found.message


async def test_a_segment_is_read_once() -> None:
    """A second question reads what is new."""
    objects = MemoryObjects()
    first = leader(objects, 1)
    first.add("sandbox-placed", sandbox="sb-1", node="n1")
    await first.close()
    reader = DecisionReader(objects)
    await reader.find(["sb-1"], datetime.now(UTC))
    read: list[str] = []
    objects.fault = lambda op, key: read.append(key) or "" if op == "get" else ""
    assert (await reader.find(["sb-1"], datetime.now(UTC)))["sb-1"].node == "n1"
    assert read == []


async def test_segments_of_agents_are_not_read() -> None:
    """They are most of the history, and decide nothing."""
    objects = MemoryObjects()
    await store(objects, [row(1, kind="sandbox-placed", sandbox="sb-1")])
    assert await DecisionReader(objects).find(["sb-1"], row(1).utc) == {}
