"""Whatever a store does, and wherever a process dies: what was acknowledged is there, and whole.

Savers, the collectors of two regions, a copier and the rule that deletes work on the same
repository at the same time, each through a store that fails, each killed at some call. After it:
no acknowledged snapshot is lost, none restores to other bytes, nothing remains that nothing needs,
and no region lacks a pack of a reference that it has.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.collecting import BrokenError, CollectError, Collector
from dsec.snapshots.layout import under
from dsec.snapshots.leases import DoomedError
from dsec.snapshots.refs import FencedError, TakenError, bury, list_refs, newest_good
from dsec.snapshots.replicating import Copier, Deletes
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.world.objects import ObjectStoreError
from fault_objects import Fault, FaultyObjects, Killed
from snapshot_world import (
    PREFIX,
    Region,
    SeededRandomness,
    StepClock,
    needs_of,
    ref_of,
    region,
    restore,
    save,
)

ENDS = (
    *(ObjectStoreError, SnapshotDamagedError, DoomedError, FencedError, TakenError),
    *(CollectError, BrokenError, Killed),
)
"""What may end a process of the chaos; anything else is a fault of ours."""
NOT_CUT = tuple(fault for fault in Fault if fault is not Fault.CUT_WRITE)
PATIENCE = 60.0


@dataclass(slots=True)
class Chaos:
    """One seeded run."""

    seed: int
    rate: float = 0.04
    clock: StepClock = field(default_factory=StepClock)
    acknowledged: dict[tuple[str, int], tuple[SnapshotRef, list[bytes]]] = field(
        default_factory=dict
    )
    random: Random = field(init=False)
    a: Region = field(init=False)
    b: Region = field(init=False)

    def __post_init__(self) -> None:
        """Make two regions."""
        self.random = Random(self.seed)  # noqa: S311 - a seeded run, no secrets
        self.a = region("a", self.seed, self.clock)
        self.b = region("b", self.seed + 1, self.clock)

    def store(self, where: Region, *, cut: bool = False, kill: float = 0.5) -> FaultyObjects:
        """Return one process's view of a region's store."""
        at = self.random.randrange(1, 90) if self.random.random() < kill else None
        return FaultyObjects(
            where.objects,
            self.clock,
            self.random.getrandbits(32),
            self.rate,
            tuple(Fault) if cut else NOT_CUT,
            at,
        )

    async def saver(self, lineage: str) -> None:
        """Save now and then, each time a little different."""
        store = self.store(self.a)
        repo = await self.a.open(store)
        mine = Random(self.random.getrandbits(32))  # noqa: S311 - same
        sandbox = f"sb-{mine.getrandbits(64):x}"
        for _ in range(3):
            blobs = [b"%03d" % mine.randrange(12) * 40 for _ in range(4)]
            with suppress(DoomedError, TakenError, SnapshotDamagedError, ObjectStoreError):
                ref = await save(repo, blobs, lineage=lineage, sandbox=sandbox)
                self.acknowledged[ref.lineage, ref.seq] = ref, blobs

    async def collector(self, where: Region, *, calm: bool = False) -> None:
        """Collect until it is done; who only collects makes no repository."""
        if not await where.objects.list(PREFIX + "repo.json"):
            return
        repo = await where.open(where.objects if calm else self.store(where))
        store = where.objects if calm else self.store(where, cut=True)
        one = Collector(
            store, PREFIX, self.clock, needs_of(repo), repo.forget, patience=PATIENCE, settle=10.0
        )
        await one.collect()

    async def copier(self) -> None:
        """Copy from a to b, twice."""
        source, target = self.store(self.a), self.store(self.b, cut=True)
        rate = SeededRandomness(self.random.getrandbits(32))
        for _ in range(2):
            with suppress(ObjectStoreError):
                await Copier(
                    source, target, PREFIX, self.clock, rate, deletes=Deletes(delay=timedelta(0))
                ).run()

    async def deleter(self) -> None:
        """Delete an acknowledged snapshot on purpose."""
        store = self.store(self.a, cut=True)
        for _ in range(2):
            if self.acknowledged:
                key = self.random.choice(sorted(self.acknowledged))
                ref, _ = self.acknowledged.pop(key)
                await bury(store, PREFIX, ref, why="test", now=self.clock.now())

    async def run(self) -> None:
        """Let everybody work at once, twice, with restarts."""
        for _ in range(2):
            works: list[Callable[[], Awaitable[Any]]] = [
                lambda: self.saver("exp/u/w/0"),
                lambda: self.saver("exp/u/w/0"),
                lambda: self.saver("exp/u/w/1"),
                lambda: self.collector(self.a),
                lambda: self.collector(self.b),
                self.copier,
                self.deleter,
            ]
            self.random.shuffle(works)
            await asyncio.gather(*(self._process(work) for work in works))

    async def _process(self, work: Callable[[], Awaitable[Any]]) -> None:
        for _ in range(self.random.randrange(12)):
            await self.clock.sleep(1.0)
        try:
            await work()
        except ENDS:
            return

    async def check(self) -> None:
        """See what must hold, once the stores answer again."""
        repo = await self.a.open()
        await self.intact(self.a, repo)
        for _ in range(3):
            # one that died half way has left what only a collector ends, or the next copy mends
            with suppress(SnapshotDamagedError, CollectError):
                await self.collector(self.b, calm=True)
            copied = await Copier(
                self.a.objects,
                self.b.objects,
                PREFIX,
                self.clock,
                SeededRandomness(7),
                deletes=Deletes(delay=timedelta(0)),
            ).run()
        assert copied.whole, copied.failed
        there = await self.b.open()
        await self.intact(self.b, there)
        for where, one in ((self.a, repo), (self.b, there)):
            await Collector(
                where.objects, PREFIX, self.clock, needs_of(one), one.forget, patience=PATIENCE
            ).collect()
            await self.intact(where, await where.open())
            await self.no_orphan(where, await where.open())

    async def intact(self, where: Region, repo: Repository) -> None:
        """Each acknowledged snapshot is there, with its own bytes."""
        for ref, blobs in self.acknowledged.values():

            async def why(found: SnapshotRef) -> str:
                try:
                    await restore(repo, found)
                except (SnapshotDamagedError, BrokenError) as problem:
                    return str(problem)
                return ""

            choice = await newest_good(where.objects, PREFIX, ref.lineage, why, seq=ref.seq)
            assert choice is not None, f"seed {self.seed}: {ref.seq} is lost in {where.name}"
            assert choice.ref == ref, f"seed {self.seed}: {where.name}: {choice}"
            assert await restore(repo, ref) == blobs

    async def no_orphan(self, where: Region, repo: Repository) -> None:
        """Every pack is needed, and every needed one is there."""
        listed = await list_refs(where.objects, PREFIX)
        needs = needs_of(repo)
        needed: set[str] = set()
        for ref in listed.refs:
            with suppress(BrokenError):
                needed |= await needs(ref)
        packs = {
            info.key.rpartition("/")[2] for info in await where.objects.list(PREFIX + "packs/")
        }
        assert packs == needed, f"seed {self.seed}: {where.name}: {len(packs)} {len(needed)}"
        assert not await where.objects.list(under(PREFIX, "writers/")), self.seed


async def _run(seed: int) -> None:
    chaos = Chaos(seed)
    await chaos.run()
    await chaos.check()


@pytest.mark.parametrize("seed", range(10))
async def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """Faults, kills, collectors and copies at once, by a seed."""
    await _run(seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
async def test_nothing_acknowledged_is_lost_at_a_thousand_points(part: int) -> None:
    """The same at a thousand points."""
    for seed in range(1000 + part * 50, 1050 + part * 50):
        await _run(seed)


async def test_each_call_of_a_save_can_be_the_last() -> None:
    """Killed at each call in turn: the snapshot before it stays, the one under way is whole or not.

    What it leaves behind is collected.
    """
    clock = StepClock()
    number = 0
    for kill in range(1, 200):
        one = region("a", 3, clock)
        repo = await one.open()
        first = await save(repo, [b"one" * 50, b"two" * 50])
        store = FaultyObjects(one.objects, clock, kill_at=kill)
        done = False
        try:
            await save(await one.open(store), [b"one" * 50, b"three" * 50])
            done = True
        except Killed:
            number += 1
        fresh = await one.open()
        assert await restore(fresh, first) == [b"one" * 50, b"two" * 50]
        refs = (await list_refs(one.objects, PREFIX)).refs
        for ref in refs[1:]:
            assert await restore(fresh, ref) == [b"one" * 50, b"three" * 50]
        collector = Collector(
            one.objects, PREFIX, clock, needs_of(fresh), fresh.forget, patience=PATIENCE
        )
        await collector.collect()
        packs = await one.objects.list(PREFIX + "packs/")
        assert len(packs) == len(refs)
        if done:
            assert len(refs) == 2
            break
    assert number > 10


async def test_a_reference_of_another_kind_is_never_taken_for_one() -> None:
    """A cut reference is damaged, and the one before it is chosen."""
    one = region()
    repo = await one.open()
    first = await save(repo, [b"one"])
    await one.objects.put(PREFIX + "refs/" + first.lineage + "/000000000002.json", b'{"tenant":')

    async def good(_: SnapshotRef) -> str:
        return ""

    choice = await newest_good(one.objects, PREFIX, first.lineage, good)
    assert choice is not None
    assert choice.ref == first
    assert [bad.key[-6:] for bad in choice.skipped] == ["2.json"]
    assert ref_of().lineage != first.sandbox
