"""Lanes of the bind log: who wins a number, what a reader sees, and copies that act once."""

import asyncio
import random
from datetime import UTC, datetime, timedelta

from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.journal.bindings import Binding, Row
from dsec.journal.bindlog import RETAIN, BindLog
from dsec.journal.lanes import (
    CLOSED,
    SHARDS,
    LanedReader,
    LaneSegment,
    decode,
    encode,
    lane_key,
    put_next,
    read_next,
    shard_of,
    sweep,
)
from dsec.world.memory import MemoryObjects

START = datetime(2026, 1, 1, tzinfo=UTC)


class Times:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> datetime:
        """Return the time of day."""
        return START + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        """Return seconds."""
        return self.at

    async def sleep(self, seconds: float) -> None:
        """Go on."""
        self.at += seconds
        await asyncio.sleep(0)


def name(number: int) -> str:
    """Return the id of a sandbox."""
    return f"sb-{number:026d}"


def binding(number: int, node: str = "n0") -> Binding:
    """Return a binding of a keyed create."""
    return Binding(
        tenant="team",
        key=f"k{number}",
        body_hash="h",
        id=name(number),
        spec=SandboxSpec(
            identity=Identity(id=name(number), tenant="team", project="lab"),
            image="base",
            resources=Resources(cpu_milli=100, memory_bytes=1 << 20, pids=8, disk_bytes=1 << 20),
        ),
        node=node,
        at=START,
        bound_at=START,
    )


def bind(number: int, node: str = "n0") -> Row:
    """Return the row that binds it first."""
    return Row(kind="bind", at=START, binding=binding(number, node))


def move(number: int, node: str) -> Row:
    """Return the row that binds it elsewhere."""
    return Row(kind="bind", at=START, id=name(number), node=node)


def segment(*rows: Row, **changes: object) -> LaneSegment:
    """Return a segment of a gateway."""
    return LaneSegment(at=START, writer="gw", rows=list(rows), **changes)


def test_a_segment_is_read_as_it_was_written() -> None:
    """Rows, who paid, and marks; what a later version adds is ignored."""
    one = segment(bind(1), paid={name(1): "l1"})
    mark = LaneSegment(
        at=START, writer="c", epoch=3, mark=True, shards={"team": [1]}, leases=["l1"], closed=True
    )
    for given in (one, mark):
        assert decode(encode(given)) == given
    assert LaneSegment.model_validate({**mark.wire(), "later": 1}) == mark


def test_shards_of_keys_are_spread_and_stand_for_ever() -> None:
    """Equal in every process: other shards would let two bind one key."""
    assert shard_of("team", "k0") == ("team", 17)
    assert shard_of("other", "k0") == ("other", 6)
    found = {shard_of("team", f"key-{n}")[1] for n in range(2000)}
    assert found == set(range(SHARDS))


async def test_one_of_two_writers_gets_a_number() -> None:
    """The other reads what stands there; who repeats after a lost answer finds its own."""
    objects, clock = MemoryObjects(), Times()
    mine, mark = segment(bind(1)), LaneSegment(at=START, writer="c", mark=True, closed=True)
    assert await put_next(objects, clock, "a", 1, mark) is None
    assert await put_next(objects, clock, "a", 1, mine) == mark
    objects.fault = lambda op, _: "after" if op == "put_if_absent" and clock.at < 0.5 else ""
    assert await put_next(objects, clock, "a", 2, mine) is None
    assert await read_next(objects, "a", 2) == mine
    assert await read_next(objects, "a", 3) is None


async def test_a_reader_sees_open_lanes_and_takes_copies_once() -> None:
    """What a lane says last holds, whatever of it the bind log has copied so far."""
    objects, clock = MemoryObjects(), Times()
    leader = BindLog(objects, clock, "c")
    await leader.open()
    await leader.begin(1)
    reader = LanedReader(objects)
    await reader.open()
    await put_next(objects, clock, "a", 1, segment(bind(1)))
    await reader.refresh()
    assert reader.state.by_id == {}, "no leader has opened this lane"
    await leader.append([], {"a": 0})
    await put_next(objects, clock, "a", 2, segment(move(1, "n1")))
    await put_next(objects, clock, "a", 3, segment(move(1, "n2"), bind(2)))
    await reader.refresh()
    assert reader.state.by_id[name(1)].node == "n2"
    assert reader.state.key("team", "k2") is not None
    # the leader is behind: its copies of earlier rows change nothing here
    await leader.append([bind(1), move(1, "n1")], {"a": 2})
    await reader.refresh()
    assert reader.state.by_id[name(1)].node == "n2"
    late = LanedReader(objects)
    await late.open()
    assert late.state.by_id[name(1)].node == "n2"
    # closed: the leader may move what it has taken over
    await leader.append([move(1, "n2"), bind(2)], {"a": CLOSED})
    await leader.append([move(1, "n7")])
    for one in (reader, late):
        await one.refresh()
        assert one.state.lanes == {}
        assert one.state.by_id[name(1)].node == "n7"
        assert sorted(one.state.by_id) == [name(1), name(2)]


async def test_readers_agree_with_the_leader_under_any_interleaving() -> None:
    """Seeded: lanes grow, are copied, closed and opened; at each end of a copy all are equal."""
    rng = random.Random(5)  # noqa: S311 - a repeatable order of events
    objects, clock = MemoryObjects(), Times()
    leader = BindLog(objects, clock, "c")
    await leader.open()
    await leader.begin(1)
    reader, writer = LanedReader(objects), LanedReader(objects)
    lanes: dict[str, list[Row]] = {}
    lengths: dict[str, int] = {}
    made = 0
    for step in range(600):
        what = rng.random()
        if what < 0.1 and len(lanes) < 3:
            lane = f"lane-{step}"
            await leader.append([], {lane: 0})
            await writer.refresh()
            lanes[lane], lengths[lane] = [], 0
        elif what < 0.6 and lanes:
            lane = rng.choice(list(lanes))
            mine = [r.binding.id for r in lanes[lane] if r.binding is not None]
            row = bind(made := made + 1)
            if mine and rng.random() < 0.5:
                row = move(int(rng.choice(mine).removeprefix("sb-")), f"n{rng.randrange(5)}")
            lengths[lane] += 1
            await put_next(objects, clock, lane, lengths[lane], segment(row))
            writer.applied(lane, lengths[lane], segment(row.model_copy(deep=True)))
            lanes[lane].append(row)
        elif what < 0.8 and lanes:
            lane = rng.choice(list(lanes))
            copied, closing = leader.state.lanes[lane], rng.random() < 0.3
            upto = lengths[lane] if closing else rng.randint(copied, lengths[lane])
            rows = [one.model_copy(deep=True) for one in lanes[lane][copied:upto]]
            await leader.append(rows, {lane: CLOSED if closing else upto})
            if closing:
                del lanes[lane], lengths[lane]
        else:
            await reader.refresh()
            whole = LanedReader(objects)
            await whole.open()
            assert {i: b.node for i, b in reader.state.by_id.items()} == {
                i: b.node for i, b in whole.state.by_id.items()
            }
    await writer.refresh()
    await reader.refresh()
    assert made > 100
    assert {i: b.node for i, b in writer.state.by_id.items()} == {
        i: b.node for i, b in reader.state.by_id.items()
    }


async def test_lanes_survive_a_snapshot_and_old_ones_are_removed() -> None:
    """A new leader finds the open ones in it; closed ones stand in the way for RETAIN."""
    objects, clock = MemoryObjects(), Times()
    leader = BindLog(objects, clock, "c")
    await leader.open()
    await leader.begin(1)
    await leader.append([], {"a": 0, "b": 0})
    await put_next(objects, clock, "a", 1, segment(bind(1)))
    await put_next(objects, clock, "b", 1, segment(bind(2)))
    await leader.append([bind(1)], {"a": 1})
    await leader.append([bind(2)], {"b": CLOSED})
    await leader.compact(force=True)
    follower = BindLog(objects, clock, "d")
    await follower.open()
    assert follower.state.lanes == {"a": 1}
    await sweep(objects, clock, frozenset({"a"}))
    assert await read_next(objects, "b", 1) is not None
    clock.at += RETAIN.total_seconds() + 1
    await sweep(objects, clock, frozenset({"a"}))
    assert await read_next(objects, "b", 1) is None
    assert await read_next(objects, "a", 1) is not None
    assert [info.key for info in await objects.list(lane_key("b", 1)[:-20])] == []
