"""Task queues (SHARE-08): what is put is delivered until acknowledged, by any of the gateways."""

import asyncio
import os
from functools import partial
from typing import Any

import pytest
from dsec.journal.queuelog import QueueLog, QueueLogs, QueueReader, folder, names, owners, remove
from dsec.journal.taskqueue import REMEMBER, Row, TaskQueue
from dsec.world.memory import MemoryObjects
from dsec.world.objects import ObjectStoreError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

PLACE = folder("lab", "uid-1", "work")


class Time:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> Any:
        """Return the time of day."""
        from datetime import UTC, datetime

        return datetime.fromtimestamp(self.at, UTC)

    def monotonic(self) -> float:
        """Return seconds."""
        return self.at

    async def sleep(self, seconds: float) -> None:
        """Pass."""
        self.at += seconds


def state(*names_: str) -> TaskQueue:
    """Return a queue that holds items."""
    queue = TaskQueue()
    queue.apply(queue.put(0.0, [(name, f"body of {name}") for name in names_]))
    return queue


def test_depth_is_what_was_put_and_not_taken() -> None:
    """Three put, two taken, one acknowledged: depth 1, taken 1."""
    queue = state("a", "b", "c")
    queue.apply(queue.take(1.0, "t1", 2, 60.0, ""))
    assert (queue.depth, queue.held("t1")) == (1, ["a", "b"])
    queue.apply(queue.acknowledge(2.0, ["a"]))
    assert (queue.depth, list(queue.taken), queue.acknowledged) == (1, ["b"], 1)


def test_a_repeated_put_puts_nothing_even_after_the_end() -> None:
    """The id is the key: known while it is held, and a day longer."""
    queue = state("a")
    assert queue.put(1.0, [("a", "again")]) == []
    queue.apply(queue.take(1.0, "t1", 1, 60.0, ""))
    queue.apply(queue.acknowledge(2.0, ["a"]))
    assert queue.put(3.0, [("a", "again")]) == []
    queue.forget(2.0 + REMEMBER + 1)
    assert queue.put(4.0, [("a", "again")])


def test_what_a_dead_worker_took_comes_back_at_its_old_place() -> None:
    """Unacknowledged items return before later ones, and the old receipt is stale."""
    queue = state("a", "b", "c")
    queue.apply(queue.take(1.0, "t1", 2, 600.0, "sb-1"))
    assert queue.overdue(2.0, lambda worker: worker == "sb-1") == ["a", "b"]
    queue.apply(queue.give_back(2.0, ["a", "b"]))
    queue.apply(queue.take(3.0, "t2", 1, 60.0, "sb-2"))
    assert queue.held("t2") == ["a"]
    assert queue.valid(["t1/a", "t2/a"]) == (["a"], ["t1/a"])
    assert queue.items["a"].deliveries == 2


def test_time_that_is_over_gives_the_item_to_others() -> None:
    """Visibility counts from the take, and an extension from when it was asked."""
    queue = state("a")
    queue.apply(queue.take(10.0, "t1", 1, 30.0, ""))
    assert queue.overdue(39.9, lambda _: False) == []
    queue.apply(queue.extend(39.9, ["a"], 30.0))
    assert queue.overdue(69.0, lambda _: False) == []
    assert queue.overdue(69.9, lambda _: False) == ["a"]


def logs(objects: MemoryObjects, clock: Time, count: int, dead: set[str]) -> list[QueueLog]:
    """Return the hands of several gateways on one queue."""
    return [
        QueueLog(objects, PLACE, clock, writer=f"g{n}", ended=dead.__contains__)
        for n in range(count)
    ]


async def test_two_gateways_never_give_one_item_twice() -> None:
    """Forty takes at once over four gateways: each of a hundred items goes to one of them."""
    objects, clock = MemoryObjects(), Time()
    hands = logs(objects, clock, 4, set())
    items = [(f"i{n}", "x") for n in range(100)]
    await hands[0].do(lambda queue, now: (queue.put(now, items), None))

    def taking(call: str) -> Any:
        def decide(queue: TaskQueue, now: float) -> tuple[list[Row], list[str]]:
            rows = queue.take(now, call, 3, 60.0, "")
            return rows, rows[0]["ids"] if rows else []

        return decide

    got = await asyncio.gather(*(hands[n % 4].do(taking(f"t{n}")) for n in range(40)))
    given = [name for names_ in got for name in names_]
    assert sorted(given) == sorted(name for name, _ in items)
    reader = QueueReader(objects, PLACE, clock)
    await reader.refresh()
    assert (reader.state.depth, len(reader.state.taken)) == (0, 100)


async def test_a_lost_answer_of_the_store_is_told_and_the_repeat_does_nothing_twice() -> None:
    """The write happened, its answer did not come: the caller's repeat finds it."""
    objects, clock = MemoryObjects(), Time()
    (hand,) = logs(objects, clock, 1, set())
    whole = objects.put_if_absent

    async def lossy(key: str, data: bytes) -> str:
        await whole(key, data)
        objects.put_if_absent = whole  # type: ignore[method-assign]
        raise ObjectStoreError("no answer")

    objects.put_if_absent = lossy  # type: ignore[method-assign]

    def putting(queue: TaskQueue, now: float) -> tuple[list[Row], int]:
        return queue.put(now, [("a", "x")]), queue.depth

    with pytest.raises(ObjectStoreError):
        await hand.do(putting)
    await hand.do(putting)
    assert (hand.state.depth, hand.position) == (1, 1)


async def test_a_look_while_a_segment_is_being_written_reads_nothing_twice() -> None:
    """A scrape looks after the store has the segment, and before its writer has the answer."""
    objects, clock = MemoryObjects(), Time()
    hand, other = logs(objects, clock, 2, set())
    whole, stored, answered = objects.put_if_absent, asyncio.Event(), asyncio.Event()

    async def late(key: str, data: bytes) -> str:
        tag = await whole(key, data)
        stored.set()
        await answered.wait()
        return tag

    objects.put_if_absent = late  # type: ignore[method-assign]
    writing = asyncio.create_task(hand.do(lambda queue, now: (queue.put(now, [("a", "x")]), None)))
    await stored.wait()
    looking = asyncio.create_task(hand.refresh())
    await asyncio.sleep(0)
    answered.set()
    await asyncio.gather(writing, looking)
    assert (hand.state.depth, hand.position) == (1, 1)
    await hand.do(lambda queue, now: (queue.put(now, [("b", "x")]), None))
    await other.refresh()
    assert (other.state.depth, other.position) == (2, 2)


async def test_one_wrong_call_harms_no_other_of_its_segment() -> None:
    """A decision that raises is its caller's answer alone."""
    objects, clock = MemoryObjects(), Time()
    (hand,) = logs(objects, clock, 1, set())

    def wrong(_: TaskQueue, __: float) -> tuple[list[Row], None]:
        raise ValueError("too much")

    answers = await asyncio.gather(
        hand.do(wrong),
        hand.do(lambda queue, now: (queue.put(now, [("a", "x")]), "put")),
        return_exceptions=True,
    )
    assert isinstance(answers[0], ValueError)
    assert answers[1] == "put"


async def test_queues_are_listed_and_removed_with_their_experiment() -> None:
    """The names below an experiment, each once; then nothing."""
    objects, clock = MemoryObjects(), Time()
    for queue in ("b", "a", "a-b"):
        place = folder("lab", "uid-1", queue)
        hand = QueueLog(objects, place, clock, writer="g", ended=lambda _: False)
        await hand.do(lambda queue, now: (queue.put(now, [("a", "x")]), None))
    assert await names(objects, "lab", "uid-1") == ["a", "a-b", "b"]
    assert await remove(objects, "lab", "uid-1") == 3
    assert await names(objects, "lab", "uid-1") == []


async def test_whoever_has_queues_is_known() -> None:
    """Each experiment once, however many queues it has."""
    objects, clock = MemoryObjects(), Time()
    for project, uid, queue in (("lab", "u1", "a"), ("lab", "u1", "b"), ("other", "u2", "a")):
        place = folder(project, uid, queue)
        hand = QueueLog(objects, place, clock, writer="g", ended=lambda _: False)
        await hand.do(lambda queue, now: (queue.put(now, [("a", "x")]), None))
    assert await owners(objects) == {("lab", "u1"), ("other", "u2")}


async def test_snapshots_keep_replay_short_and_say_the_same() -> None:
    """A reader that starts from a snapshot has the state of one that read every segment."""
    objects, clock = MemoryObjects(), Time()
    (hand,) = logs(objects, clock, 1, set())

    def putting(name: str, queue: TaskQueue, now: float) -> tuple[list[Row], None]:
        return queue.put(now, [(name, "x")]), None

    for n in range(1100):
        clock.at += 10.0
        await hand.do(partial(putting, f"i{n}"))
    late = QueueReader(objects, PLACE, clock)
    await late.refresh()
    assert late.state.dump() == hand.state.dump()
    assert len(await objects.list(PLACE + "log/")) < 1100


async def test_a_large_queue_is_packed_beside_other_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A snapshot of megabytes is read back whole, and the loop goes on while it is made."""
    monkeypatch.setattr("dsec.journal.queuelog.SNAPSHOT_EVERY", 2)
    objects, clock = MemoryObjects(), Time()
    (hand,) = logs(objects, clock, 1, set())
    body = os.urandom(100_000).hex()
    items = [(f"i{n}", f"{n}{body}") for n in range(20)]
    await hand.do(lambda queue, now: (queue.put(now, items), None))
    await hand.do(lambda queue, now: (queue.take(now, "t", 3, 60.0, "sb"), None))
    turns = 0
    while not await objects.list(PLACE + "state/"):
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 10
    for info in await objects.list(PLACE + "log/"):
        await objects.delete(info.key)
    late = QueueReader(objects, PLACE, clock)
    await late.refresh()
    assert late.state.dump() == hand.state.dump()
    assert late.state.calls == hand.state.calls


async def test_a_writer_that_stood_still_for_hours_writes_nothing_into_the_past(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others' segment of its number is long removed: its put is decided again, on what is now."""
    monkeypatch.setattr("dsec.journal.queuelog.SNAPSHOT_EVERY", 2)
    objects, clock = MemoryObjects(), Time()
    late, other = logs(objects, clock, 2, set())

    def putting(name: str, queue: TaskQueue, now: float) -> tuple[list[Row], int]:
        return queue.put(now, [(name, "x")]), len(queue.items)

    await late.do(partial(putting, "first"))
    whole = objects.put_if_absent

    async def frozen(key: str, data: bytes) -> str:
        objects.put_if_absent = whole  # type: ignore[method-assign]
        for n in range(8):
            clock.at += 3000.0
            await other.do(partial(putting, f"i{n}"))
        assert not [info for info in await objects.list(PLACE + "log/") if info.key == key]
        return await whole(key, data)

    objects.put_if_absent = frozen  # type: ignore[method-assign]
    assert await late.do(partial(putting, "late")) == 9
    fresh = QueueReader(objects, PLACE, clock)
    for reader in (fresh, other):
        await reader.refresh()
        assert list(reader.state.items) == ["first", *(f"i{n}" for n in range(8)), "late"]
    # a store that only took long is no such case: nothing newer is there
    (hand,) = logs(objects, clock, 1, set())
    await hand.refresh()

    async def slow(key: str, data: bytes) -> str:
        clock.at += 7200.0
        return await whole(key, data)

    objects.put_if_absent = slow  # type: ignore[method-assign]
    assert await hand.do(partial(putting, "slow")) == 10
    await other.refresh()
    assert (list(other.state.items)[-1], other.position) == ("slow", hand.position)


@pytest.mark.parametrize("large", [1, 1 << 40])
async def test_a_reader_without_bodies_counts_the_same(
    monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """From a snapshot or from segments, on a thread or not: all but the bodies is there."""
    monkeypatch.setattr("dsec.journal.queuelog.SNAPSHOT_EVERY", 3)
    monkeypatch.setattr("dsec.journal.queuelog.LARGE", large)
    objects, clock = MemoryObjects(), Time()
    (hand,) = logs(objects, clock, 1, set())
    early = QueueReader(objects, PLACE, clock, bodies=False)
    items = [(f'"items":[{n}', '","done":[[{]}"' + "é" * n) for n in range(9)]
    await hand.do(lambda queue, now: (queue.put(now, items), None))
    await early.refresh()
    await hand.do(lambda queue, now: (queue.take(now, "t", 3, 60.0, "sb"), None))
    done = [items[0][0], items[1][0]]
    await hand.do(lambda queue, now: (queue.acknowledge(now, done), None))
    await hand.do(lambda queue, now: (queue.take(now, "u", 2, 60.0, "sb"), None))
    assert await objects.list(PLACE + "state/")
    whole, late = (
        QueueReader(objects, PLACE, clock),
        QueueReader(objects, PLACE, clock, bodies=False),
    )
    for reader in (whole, early, late):
        await reader.refresh()
    assert whole.state.dump() == hand.state.dump()
    bare = hand.state.dump()
    for row in bare["items"]:
        row[2] = ""
    for reader in (early, late):
        assert reader.state.dump() == bare
        assert (reader.state.bytes, reader.state.depth) == (0, 4)


async def test_a_gateway_holds_no_more_than_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The least recently used queues are read again when they are asked for."""
    monkeypatch.setattr("dsec.journal.queuelog.MAX_HELD", 2500)
    held = QueueLogs(MemoryObjects(), Time(), "gw", lambda _: False)
    places = [folder("lab", "uid-1", f"q{number}") for number in range(4)]
    for place in places:
        await held.log(place).do(lambda queue, now: (queue.put(now, [("a", "x" * 1000)]), None))
    assert [place for place, _ in held.open()] == places[1:]
    for place in places:
        assert await held.log(place).do(lambda queue, _: ([], queue.depth)) == 1
        assert sum(log.state.bytes for _, log in held.open()) <= 3000


class Gateways(RuleBasedStateMachine):
    """Two gateways, workers that die, answers that are lost, time that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.objects, self.clock, self.dead = MemoryObjects(), Time(), set[str]()
        self.hands = logs(self.objects, self.clock, 2, self.dead)
        self.put_ids: set[str] = set()
        self.acked: set[str] = set()
        self.held: dict[str, str] = {}
        self.calls = 0

    def teardown(self) -> None:
        """Close the loop."""
        self.loop.close()

    def run(self, which: int, decide: Any) -> Any:
        """Make one decision through a gateway."""
        return self.loop.run_until_complete(self.hands[which].do(decide))

    @rule(which=st.integers(0, 1), ids=st.lists(st.integers(0, 30), min_size=1, max_size=5))
    def put(self, which: int, ids: list[int]) -> None:
        """Put items, some of them again."""
        items = [(f"i{n}", "x" * n) for n in ids]
        self.run(which, lambda queue, now: (queue.put(now, items), None))
        self.put_ids |= {name for name, _ in items}

    @rule(which=st.integers(0, 1), most=st.integers(1, 4), worker=st.integers(0, 3))
    def take(self, which: int, most: int, worker: int) -> None:
        """Take some; nothing that another live take holds is among them."""
        self.calls += 1
        call, name = f"t{self.calls}", f"sb-{worker}"
        if name in self.dead:
            return

        def decide(queue: TaskQueue, now: float) -> tuple[list[Row], list[str]]:
            rows = queue.take(now, call, most, 60.0, name)
            return rows, rows[0]["ids"] if rows else []

        for item in self.run(which, decide):
            assert item not in self.acked
            self.held[item] = f"{call}/{item}"

    @rule(which=st.integers(0, 1), data=st.data())
    @precondition(lambda self: bool(self.held))
    def acknowledge(self, which: int, data: Any) -> None:
        """Acknowledge what was taken last, or what is not held any more."""
        item = data.draw(st.sampled_from(sorted(self.held)))
        receipt = self.held[item]

        def decide(queue: TaskQueue, now: float) -> tuple[list[Row], list[str]]:
            good, _ = queue.valid([receipt])
            return queue.acknowledge(now, good), good

        for name in self.run(which, decide):
            assert name not in self.acked
            self.acked.add(name)

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.at += seconds

    @rule(worker=st.integers(0, 2))
    def kill(self, worker: int) -> None:
        """End a worker."""
        self.dead.add(f"sb-{worker}")

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every item waits, is taken, or was acknowledged; both gateways read the same."""
        states = []
        for hand in self.hands:
            self.loop.run_until_complete(hand.refresh())
            queue = hand.state
            assert set(queue.items) == self.put_ids - self.acked
            assert queue.depth + len(queue.taken) == len(queue.items)
            assert queue.bytes == sum(len(item.body) for item in queue.items.values())
            assert sorted(name for names in queue.calls.values() for name in names) == sorted(
                queue.taken
            )
            late = [n for n in queue.taken if queue.items[n].until <= self.clock.at]
            dead = [n for n in queue.taken if queue.items[n].worker in self.dead]
            found = queue.overdue(self.clock.at, self.dead.__contains__)
            assert sorted(found) == sorted({*late, *dead})
            dump = queue.dump()
            states.append({**dump, "items": sorted(dump["items"])})
        assert states[0] == states[1]


TestGateways = Gateways.TestCase
TestGateways.settings = settings(stateful_step_count=30, suppress_health_check=list(HealthCheck))
