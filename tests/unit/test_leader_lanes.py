"""The leader's end of lanes: what nobody can read stops neither this leader nor the next one."""

import asyncio
from collections.abc import Sequence

from dsec.controllers.lanes import Lane, Lanes
from dsec.journal.bindings import Binding
from dsec.journal.bindlog import BindLog
from dsec.journal.lanes import LanedReader, lane_key, put_next, read_next
from dsec.world.memory import MemoryObjects
from test_lanes_journal import Times, bind, name, segment


async def leader(objects: MemoryObjects, epoch: int) -> tuple[Lanes, BindLog, list[str]]:
    """Return the lanes of a term, its log, and the ids that are copied from now on."""
    clock, copied = Times(), list[str]()

    def take(_lane: Lane, bindings: Sequence[Binding]) -> None:
        copied.extend(one.id for one in bindings)

    log = BindLog(objects, clock, f"c{epoch}")
    await log.open()
    await log.begin(epoch)
    lanes = Lanes(
        log, objects, clock, rounding=asyncio.Lock(), book=lambda _lane, _new: None, copied=take
    )
    return lanes, log, copied


async def test_a_torn_lane_is_closed_and_the_rest_of_it_is_copied() -> None:
    """By the next leader as well, who finds it open; readers agree with both."""
    objects = MemoryObjects()
    lanes, log, copied = await leader(objects, 1)
    async with lanes.lock:
        lane = await lanes.open("a")
    assert lane is not None
    await put_next(objects, Times(), "a", 1, segment(bind(1)))
    await objects.put(lane_key("a", 2), b"of another version")
    await put_next(objects, Times(), "a", 3, segment(bind(3)))
    reader = LanedReader(objects)
    await reader.open()
    assert list(reader.state.by_id) == [name(1)], "what comes behind it is not known yet"
    await lanes.catch_up()
    assert lane.torn
    assert copied == [name(1), name(3)]

    after, log_after, _ = await leader(objects, 2)
    async with after.lock:
        await after.close_all()
    last = await read_next(objects, "a", 4)
    assert last is not None
    assert last.closed
    await reader.refresh()
    assert reader.state.lanes == {}
    assert set(reader.state.by_id) == set(log_after.state.by_id) == {name(1), name(3)}
    assert set(log.state.by_id) == {name(1), name(3)}


async def test_a_mark_goes_behind_what_cannot_be_read() -> None:
    """A shard is taken back all the same."""
    objects = MemoryObjects()
    lanes, _, _ = await leader(objects, 1)
    async with lanes.lock:
        lane = await lanes.open("a")
        assert lane is not None
        lanes.give(lane, [("team", 1)])
        await objects.put(lane_key("a", 1), b"of another version")
        await lanes.mark(lane, shards=[("team", 1)])
        assert lanes.owner(("team", 1)) is None
        assert await lanes.open("b") is not None
        await objects.put(lane_key("c", 1), b"of another version")
        assert await lanes.open("c") is None
