"""The bind log: one order of decisions, one leader at a time, quick replay, lost answers."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.journal.bindings import Binding, Row
from dsec.journal.bindlog import (
    LOOK_AGAIN,
    RETAIN,
    SNAPSHOT_EVERY,
    BindLog,
    BindLogReader,
    FencedError,
    segment_key,
)
from dsec.world.memory import MemoryObjects
from dsec.world.objects import NotFoundError, ObjectStoreError

START = datetime(2026, 1, 1, tzinfo=UTC)


class HandClock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> datetime:
        """Return the time of day."""
        return START + timedelta(seconds=self.passed)

    def monotonic(self) -> float:
        """Return seconds since the start."""
        return self.passed

    async def sleep(self, seconds: float) -> None:
        """Move on at once."""
        self.passed += seconds
        await asyncio.sleep(0)


def binding(n: int, node: str = "n1", key: str = "", uid: str = "", incarnation: int = 1) -> Row:
    """Build a bind (or want) row."""
    name = f"sb-{n:026d}"
    identity = Identity(
        id=name, tenant="t", project="p", experiment_uid=uid, index=n, incarnation=incarnation
    )
    spec = SandboxSpec(
        identity=identity, image="i", resources=Resources(cpu_milli=1, memory_bytes=1 << 20)
    )
    made = Binding(
        tenant="t", key=key or f"k{n}", body_hash="h", id=name, spec=spec, node=node, at=START
    )
    return Row(kind="bind" if node else "want", at=START, binding=made)


def end(n: int, reason: EndReason = EndReason.COMPLETED, at: datetime = START) -> Row:
    """Build an end row."""
    return Row(kind="end", at=at, id=f"sb-{n:026d}", reason=reason, result=f"results/{n}")


async def leader(objects: MemoryObjects, epoch: int, name: str = "a") -> BindLog:
    """Open the log and begin a term."""
    made = BindLog(objects, HandClock(), name)
    await made.open()
    await made.begin(epoch)
    return made


async def test_the_old_leader_loses_at_its_next_append() -> None:
    """After a second leader began, the first one's append raises and leaves no row."""
    objects = MemoryObjects()
    old = await leader(objects, 1, "old")
    await old.append([binding(1)])
    new = await leader(objects, 2, "new")
    with pytest.raises(FencedError):
        await old.append([binding(2)])
    await new.append([binding(3)])
    reader = BindLogReader(objects)
    await reader.open()
    assert sorted(reader.state.by_id) == [f"sb-{n:026d}" for n in (1, 3)]
    assert reader.state.epoch == 2


async def test_a_new_leader_fences_one_that_still_writes() -> None:
    """Begin competes for a number with an old leader's append; both orders end well."""
    objects = MemoryObjects()
    old = await leader(objects, 1, "old")
    new = BindLog(objects, HandClock(), "new")
    await new.open()
    await old.append([binding(1)])
    await new.begin(2)
    assert "sb-" + "1".zfill(26) in new.state.by_id
    with pytest.raises(FencedError):
        await old.append([binding(2)])
    late = BindLog(objects, HandClock(), "late")
    await late.open()
    with pytest.raises(FencedError):
        await late.begin(2)


@pytest.mark.parametrize("verdict", ["before", "after"])
async def test_a_lost_answer_is_settled(verdict: str) -> None:
    """Whether the write happened or not, an append that returns happened exactly once."""
    failures = iter([verdict, verdict, ""])

    def fault(op: str, _: str) -> str:
        return next(failures, "") if op == "put_if_absent" else ""

    objects = MemoryObjects()
    log = await leader(objects, 1)
    objects.fault = fault
    await log.append([binding(1)])
    reader = BindLogReader(objects)
    await reader.open()
    assert reader.position == log.position == 2


async def test_a_store_that_stays_away_ends_the_term() -> None:
    """After about ten seconds without an answer the append gives up."""
    objects = MemoryObjects()
    log = await leader(objects, 1)
    objects.fault = lambda op, _: "before" if op == "put_if_absent" else ""
    with pytest.raises(ObjectStoreError):
        await log.append([binding(1)])


def state_of(log: BindLogReader) -> dict[str, object]:
    """Return what a dump says, for comparison."""
    return log.state.dump()


async def test_replay_from_a_snapshot_equals_full_replay() -> None:
    """Binds, moves, ends and forgets give one state, however it is read."""
    objects = MemoryObjects()
    log = await leader(objects, 1)
    for n in range(SNAPSHOT_EVERY):
        rows = [binding(n, "" if n % 3 == 0 else "n1", uid="e1" if n % 2 else "")]
        if n % 3 == 0:
            rows.append(Row(kind="bind", at=START, id=f"sb-{n:026d}", node="n2", devices=["g"]))
        if n % 5 == 0:
            rows.append(end(n))
        await log.append(rows)
    await log.append([Row(kind="forget", at=START, experiment_uid="e1")])
    full = BindLogReader(objects)
    await full.open()
    await log.compact()
    await log.append([binding(9999)])
    await full.refresh()
    quick = BindLogReader(objects)
    await quick.open()
    assert state_of(quick) == state_of(full) == state_of(log)
    assert quick.state.on_node("n2")[0].spec.devices == ["g"]
    assert len(await objects.list("bindlog-snapshot/")) == 1


async def test_old_segments_go_but_collision_marks_stay_for_two_days() -> None:
    """A frozen leader still collides after a snapshot; one frozen for days is told by its clock."""
    objects = MemoryObjects()
    frozen = await leader(objects, 1, "frozen")
    new = await leader(objects, 2, "new")
    clock: HandClock = new._clock  # type: ignore[assignment]
    for n in range(3):
        await new.append([binding(n)])
        await new.compact(force=True)
        clock.passed += RETAIN.total_seconds()
    assert len(await objects.list("bindlog/")) < 5
    stale: HandClock = frozen._clock  # type: ignore[assignment]
    stale.passed = clock.passed
    with pytest.raises(FencedError):
        await frozen.append([binding(7)])


async def test_keys_answer_for_a_day() -> None:
    """An ended direct create answers for 24 hours, one of an experiment until it is forgotten."""
    objects = MemoryObjects()
    log = await leader(objects, 1)
    await log.append([binding(1), binding(2, uid="e"), end(1), end(2)])
    state = log.state
    assert state.key("t", "k1") is not None
    state.expire(START + timedelta(hours=23))
    assert state.key("t", "k1") is not None
    state.expire(START + timedelta(hours=25))
    assert state.key("t", "k1") is None
    assert state.key("t", "k2") is not None
    await log.append([Row(kind="forget", at=START, experiment_uid="e")])
    assert state.key("t", "k2") is None
    assert state.of_experiment("e") == []


async def test_only_the_bound_copy_is_effective() -> None:
    """After a move the first node's copy does not count, after the end none does."""
    log = await leader(MemoryObjects(), 1)
    await log.append([binding(1)])
    name = f"sb-{1:026d}"
    assert log.state.effective(name, "n1")
    await log.append([Row(kind="bind", at=START, id=name, node="n2")])
    assert not log.state.effective(name, "n1")
    assert log.state.effective(name, "n2")
    await log.append([end(1, EndReason.NODE_LOST)])
    assert not log.state.effective(name, "n2")
    newer = binding(2, "n3", key="k1", incarnation=2)
    await log.append([newer])
    found = log.state.key("t", "k1")
    assert found is not None
    assert found.id == f"sb-{2:026d}"


async def test_a_reader_that_slept_through_a_trim_catches_up() -> None:
    """The segment after its position is gone: the reader takes over a newer snapshot."""
    objects = MemoryObjects()
    log = await leader(objects, 1)
    sleeper = BindLogReader(objects)
    await sleeper.open()
    clock: HandClock = log._clock  # type: ignore[assignment]
    for n in range(4):
        await log.append([binding(n)])
        await log.compact(force=True)
        clock.passed += RETAIN.total_seconds()
    with pytest.raises(NotFoundError):
        await objects.get(segment_key(sleeper.position + 1))
    for _ in range(LOOK_AGAIN):
        await sleeper.refresh()
    assert state_of(sleeper) == state_of(log)


async def test_a_stand_by_that_waited_through_a_trim_writes_over_nothing() -> None:
    """Its next number was removed: `begin` refuses until it has read the newest snapshot."""
    objects = MemoryObjects()
    waiting = BindLog(objects, HandClock(), "waiting")
    await waiting.open()
    log = await leader(objects, 1)
    clock: HandClock = log._clock  # type: ignore[assignment]
    for n in range(4):
        await log.append([binding(n)])
        await log.compact(force=True)
        clock.passed += RETAIN.total_seconds()
    await waiting.refresh()
    assert waiting.position == 0
    with pytest.raises(FencedError):
        await waiting.begin(2)
    with pytest.raises(NotFoundError):
        await objects.get(segment_key(1))
    await waiting.open()
    await waiting.begin(2)
    assert waiting.position == log.position + 1
    assert sorted(waiting.state.by_id) == sorted(log.state.by_id)


async def test_a_reader_drops_old_keys_too() -> None:
    """A gateway that reads for days keeps no more than the leader."""
    objects = MemoryObjects()
    log = await leader(objects, 1)
    reader = BindLogReader(objects)
    await log.append([binding(1), end(1)])
    await reader.open()
    assert reader.state.key("t", "k1") is not None
    later = START + timedelta(hours=30)
    await log.append([end(2, at=later)])
    await reader.refresh()
    assert reader.state.by_id == {}


class SlowObjects(MemoryObjects):
    """Reads are counted, and what they found is told only once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def get(self, key: str) -> tuple[bytes, str]:
        """Look at once, answer late."""
        self.reads += 1
        try:
            return await super().get(key)
        finally:
            await self.gate.wait()


async def test_calls_share_a_look_that_began_after_them() -> None:
    """A hundred calls at once cost two looks; one that began earlier counts for none of them."""
    objects = SlowObjects()
    writer = await leader(objects, 1)
    reader = BindLogReader(objects)
    await reader.open()
    objects.reads = 0
    objects.gate.clear()

    async def knows() -> bool:
        await reader.refresh()
        return len(reader.state.by_id) == 1

    early = asyncio.create_task(knows())
    await asyncio.sleep(0)
    # the end of the log was seen before this segment, and is told after it
    await writer.append([binding(1)])
    late = [asyncio.create_task(knows()) for _ in range(100)]
    await asyncio.sleep(0)
    assert objects.reads == 1
    objects.gate.set()
    assert not await early
    assert all(await asyncio.gather(*late))
    # one for the first call, then one for the segment and one for the end behind it
    assert objects.reads == 3


async def test_a_look_that_failed_or_was_given_up_counts_for_nobody() -> None:
    """Who waited behind it looks for itself."""
    objects = SlowObjects()
    writer = await leader(objects, 1)
    reader = BindLogReader(objects)
    await reader.open()
    objects.gate.clear()
    given_up, waiting = (asyncio.create_task(reader.refresh()) for _ in range(2))
    await asyncio.sleep(0)
    await writer.append([binding(1)])
    given_up.cancel()
    objects.gate.set()
    await waiting
    assert reader.position == writer.position
    objects.fault = lambda operation, _: "before" if operation == "get" else ""
    failing = asyncio.create_task(reader.refresh())
    await asyncio.sleep(0)
    with pytest.raises(ObjectStoreError):
        await failing
    await writer.append([binding(2)])
    objects.fault = None
    await reader.refresh()
    assert reader.position == writer.position
