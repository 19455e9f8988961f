"""Decision records in history: one per class and round, found again for each of its sandboxes."""

from datetime import UTC, datetime, timedelta

from dsec.api.decisions import DecisionRecord, Rejection, Score
from dsec.api.reasons import PendingReason
from dsec.journal.decisions import DecisionReader, add_decision
from dsec.journal.history import HistoryWriter, store
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryObjects
from dsec.world.objects import ObjectInfo
from structlog.testing import capture_logs
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


async def test_a_row_that_says_nothing_hides_no_other() -> None:
    """Of another version or torn: it is skipped and said once; the decision before it stands."""
    objects = MemoryObjects()
    history = leader(objects, 1)
    history.add("decision", record={"id": "d1"})
    history.add("sandbox-placed", sandbox="sb-1", node="n1")
    history.add("sandbox-placed", sandbox="sb-1", devices={"no": "list"})
    history.add("sandbox-placed", sandbox="sb-2", node="n2")
    await history.close()
    (key,) = objects._data
    data, _ = await objects.get(key)
    await objects.put(f"{key}.torn", data[:20] + b"\n[]\n")
    reader = DecisionReader(objects)
    with capture_logs() as said:
        for _ in range(2):
            found = await reader.find(["sb-1", "sb-2"], datetime.now(UTC))
            assert {name: one.node for name, one in found.items()} == {"sb-1": "n1", "sb-2": "n2"}
    assert [one["event"] for one in said] == ["history row is unreadable"] * 4
    assert {one["key"] for one in said} == {key, f"{key}.torn"}


async def test_what_was_read_is_not_listed_again() -> None:
    """Days before the newest decision are done, unless somebody asks for earlier ones."""
    objects = MemoryObjects()
    now = datetime(2026, 1, 9, 12, tzinfo=UTC)

    async def placed(day: int, node: str, sandbox: str, who: str = "controller-b") -> None:
        at = datetime(2026, 1, day, 12, tzinfo=UTC)
        made = row(day, kind="sandbox-placed", sandbox=sandbox)
        body = {"node": node}
        made = made.model_copy(update={"utc": at, "node": who, "boot_id": "epoch-1", "body": body})
        await store(objects, [made])

    starts: list[str] = []
    listing = objects.list

    async def listed(prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
        starts.append(start_after)
        return await listing(prefix, start_after=start_after)

    objects.list = listed  # type: ignore[method-assign]  # it only listens
    await placed(2, "n2", "sb-2")
    await placed(6, "n6", "sb-6")
    await placed(9, "n9", "sb-9")
    reader = DecisionReader(objects)
    early = datetime(2026, 1, 5, tzinfo=UTC)
    assert set(await reader.find(["sb-2", "sb-6", "sb-9"], early)) == {"sb-6", "sb-9"}
    await placed(9, "n8", "sb-8", who="controller-a")
    assert set(await reader.find(["sb-6", "sb-8"], early)) == {"sb-6", "sb-8"}
    assert set(await reader.find(["sb-2"], now - timedelta(days=8))) == {"sb-2"}
    assert [start.split("/")[1] for start in starts] == ["2026-01-04", "2026-01-09", "2026-01-01"]


async def test_segments_of_agents_are_not_read() -> None:
    """They are most of the history, and decide nothing."""
    objects = MemoryObjects()
    await store(objects, [row(1, kind="sandbox-placed", sandbox="sb-1")])
    assert await DecisionReader(objects).find(["sb-1"], row(1).utc) == {}
