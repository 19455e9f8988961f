"""A gateway's end of its lane: what waits together is one put, and a mark is obeyed at once."""

import asyncio

import pytest
from dsec.gateway.lane import LaneDoubtError, LaneLostError, LaneWriter
from dsec.journal.bindlog import BindLog
from dsec.journal.lanes import LANES, LanedReader, LaneSegment, lane_key, put_next, shard_of
from dsec.world.memory import MemoryObjects
from test_lanes_journal import START, Times, bind, move, name

TEAM = {("team", number) for number in range(64)}


async def lane(objects: MemoryObjects) -> tuple[LaneWriter, LanedReader]:
    """Return a writer whose lane a leader has opened, with all shards of a tenant."""
    clock = Times()
    leader = BindLog(objects, clock, "c")
    await leader.open()
    await leader.begin(1)
    await leader.append([], {"a": 0})
    reader = LanedReader(objects)
    await reader.open()
    writer = LaneWriter("a", objects, clock, reader, "gw")
    assert writer.grant(set(TEAM), 0)
    return writer, reader


def mark(**changes: object) -> LaneSegment:
    """Return a mark of the leader."""
    return LaneSegment(at=START, writer="leader 1", epoch=1, mark=True, **changes)


async def commit(writer: LaneWriter, number: int, lease: str = "l1") -> None:
    """Write the row that binds a key."""
    await writer.commit(bind(number), shard=shard_of("team", f"k{number}"), lease=lease)


async def test_creates_that_wait_together_are_one_put() -> None:
    """Known to the reader of this process as soon as they are written, without another look."""
    objects = MemoryObjects()
    writer, reader = await lane(objects)
    await asyncio.gather(*(commit(writer, number) for number in range(50)))
    assert len(await objects.list(LANES)) == 1
    assert len(reader.state.by_id) == 50
    await writer.commit(move(3, "n9"))
    assert reader.state.by_id[name(3)].node == "n9"


async def test_a_mark_takes_shards_and_leases_back() -> None:
    """Rows that still may are written behind it; a grant from before it counts no more."""
    objects = MemoryObjects()
    writer, reader = await lane(objects)
    gone = shard_of("team", "k1")
    kept = next(n for n in range(2, 99) if shard_of("team", f"k{n}") != gone)
    await put_next(objects, Times(), "a", 1, mark(shards={"team": [gone[1]]}, leases=["l2"]))
    found = await asyncio.gather(
        commit(writer, 1), commit(writer, kept), commit(writer, 100, "l2"), return_exceptions=True
    )
    assert isinstance(found[0], LaneLostError)
    assert found[1] is None
    assert isinstance(found[2], LaneLostError)
    assert list(reader.state.by_id) == [name(kept)]
    assert not writer.grant({gone}, 0), "an answer from before the mark"
    with pytest.raises(LaneLostError):
        await commit(writer, 1)
    assert writer.grant({gone}, 1)
    await commit(writer, 1)
    assert len(await objects.list(LANES)) == 3


async def test_a_closed_lane_takes_nothing() -> None:
    """Neither new keys nor other nodes for old ones, nor a grant that is late."""
    objects = MemoryObjects()
    writer, _ = await lane(objects)
    await commit(writer, 1)
    await put_next(objects, Times(), "a", 2, mark(closed=True))
    with pytest.raises(LaneLostError, match="closed"):
        await writer.commit(move(1, "n9"))
    assert not writer.grant(set(TEAM), 9)
    with pytest.raises(LaneLostError):
        await commit(writer, 2)
    assert len(await objects.list(LANES)) == 2


async def test_a_store_that_is_away_leaves_doubt_and_ends_the_lane() -> None:
    """What was tried may be written; the leader will know. Nothing else is tried."""
    objects = MemoryObjects()
    writer, reader = await lane(objects)
    # the write happened and its answer was lost: the repeat finds it
    lost = [True]
    objects.fault = lambda op, _: "after" if op == "put_if_absent" and lost.pop() else ""
    lost[:] = [False, True]
    await commit(writer, 1)
    assert name(1) in reader.state.by_id
    objects.fault = lambda op, _: "before" if op == "put_if_absent" else ""
    with pytest.raises(LaneDoubtError, match="away"):
        await commit(writer, 2)
    objects.fault = None
    with pytest.raises(LaneLostError):
        await commit(writer, 3)
    assert writer.lost


async def test_a_segment_that_nobody_can_read_ends_the_lane_and_nothing_else() -> None:
    """It is counted, whoever waits is told, and the reader goes on with what the log says."""
    objects = MemoryObjects()
    writer, reader = await lane(objects)
    counted: list[int] = []
    told = LaneWriter("a", objects, Times(), reader, "gw", unreadable=lambda: counted.append(1))
    assert told.grant(set(TEAM), 0)
    await objects.put(lane_key("a", 1), b"of another version")
    found = await asyncio.gather(commit(told, 1), commit(told, 2), return_exceptions=True)
    assert all(isinstance(one, LaneDoubtError) for one in found)
    assert "unreadable" in told.lost
    assert counted == [1]
    with pytest.raises(LaneLostError):
        await commit(told, 3)
    await reader.refresh()
    assert not reader.state.by_id
    # after its own write the reader may find one in its way, too: what was written is in doubt
    await objects.put(lane_key("a", 2), b"of another version")
    with pytest.raises(LaneDoubtError):
        await commit(writer, 4)
