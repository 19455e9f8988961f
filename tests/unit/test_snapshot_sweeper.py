"""The leader's daily sweep: what goes, what stays, and when nothing may go."""

from datetime import UTC, datetime, timedelta
from typing import Any

from dsec.api.reasons import EndReason
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.api.snapshot import RestoreFrom, SnapshotKind, SnapshotRef
from dsec.api.tenant import TenantSpec
from dsec.controllers.sweeper import Sweeper
from dsec.journal.bindings import Binding, Bindings, Row
from dsec.journal.history import HistoryWriter
from dsec.snapshots.homes import Home, take_home
from dsec.snapshots.layout import prefix_of
from dsec.snapshots.refs import Pin, list_refs, pin, publish
from dsec.world.memory import MemoryObjects

START = datetime(2026, 1, 1, tzinfo=UTC)
PREFIX = prefix_of("t")
ID = "sb-" + "0" * 26


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        """Return the time of day."""
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        """Return seconds."""
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        """Go on."""
        self.seconds += seconds


class World:
    """A store with five snapshots of a replica, an hour apart."""

    def __init__(self) -> None:
        self.clock, self.objects, self.bindings = Clock(), MemoryObjects(), Bindings()
        self.known = {"u1"}
        history = HistoryWriter(self.objects, self.clock, node="c", boot_id="1", region="east")
        self.sweeper = Sweeper(
            self.objects,
            self.bindings,
            lambda: {"t": TenantSpec()},
            lambda: self.known,
            history,
            self.clock,
            "east",
        )

    async def save(self, count: int = 5, **changes: Any) -> None:
        """Publish snapshots."""
        for _ in range(count):
            self.clock.seconds += 3600
            seq = len((await list_refs(self.objects, PREFIX)).refs) + 1
            ref = SnapshotRef(
                tenant="t",
                project="lab",
                lineage="exp/u1/worker/0",
                seq=seq,
                kind=SnapshotKind.STATE,
                sandbox=ID,
                incarnation=1,
                created=self.clock.now(),
                manifest=f"{seq:02x}",
                files=1,
                bytes=10,
                stored_bytes=10,
                region="east",
                spec={"snapshot": {"kinds": ["state"], "retain": 2}},
            )
            await publish(self.objects, PREFIX, ref.model_copy(update=changes))

    async def left(self) -> list[int]:
        """Sweep, and return the numbers that stay."""
        await self.sweeper.look("t")
        return [one.seq for one in (await list_refs(self.objects, PREFIX)).refs]

    def lives(self, **spec: Any) -> Binding:
        """Let a sandbox of the replica live."""
        identity = Identity(
            id=ID, tenant="t", project="lab", experiment="e", experiment_uid="u1", index=0
        )
        size = Resources(cpu_milli=1, memory_bytes=1 << 20)
        made = SandboxSpec(identity=identity, image="base", resources=size, **spec)
        binding = Binding(
            tenant="t", key="k", body_hash="h", id=ID, spec=made, node="n", at=self.clock.now()
        )
        self.bindings.apply([Row(kind="bind", at=self.clock.now(), binding=binding)])
        return binding


async def test_a_live_task_keeps_what_its_document_asks_for() -> None:
    """SNAP-07: `retain` of the task, not the rule's; a pin and a restore under way hold more."""
    world = World()
    await world.save()
    world.lives(restore=RestoreFrom(lineage="exp/u1/worker/0", seq=2))
    await pin(
        world.objects,
        PREFIX,
        Pin(lineage="exp/u1/worker/0", seq=1, who="ann", at=world.clock.now()),
    )
    assert await world.left() == [1, 2, 4, 5]
    assert world.sweeper.removed == 1


async def test_a_task_that_is_gone_loses_them_by_age() -> None:
    """CONF-28, SNAP-20: from its end, or its newest snapshot; after 30 days all go."""
    world = World()
    await world.save()
    binding = world.lives()
    end = Row(kind="end", at=world.clock.now(), id=binding.id, reason=EndReason.COMPLETED)
    world.bindings.apply([end])
    world.known.clear()
    world.clock.seconds += 8 * 86_400
    assert await world.left() == [4, 5], "none is three days older than the newest"
    world.clock.seconds += 23 * 86_400
    assert await world.left() == []


async def test_what_a_record_still_wants_is_live_though_nothing_runs() -> None:
    """A task that waits for months keeps its newest: it may start again."""
    world = World()
    await world.save()
    world.clock.seconds += 90 * 86_400
    assert await world.left() == [4, 5]


async def test_what_another_region_took_or_has_is_left_to_it() -> None:
    """HA-15: each region sweeps what is at home there."""
    world = World()
    await world.save(region="west")
    assert await world.left() == [1, 2, 3, 4, 5]
    ours = World()
    await ours.save()
    root = "exp/u1"
    home = Home(root=root, region="west", epoch=1, at=ours.clock.now(), who="ann")
    await take_home(ours.objects, PREFIX, home)
    assert await ours.left() == [1, 2, 3, 4, 5]
    # and what this one took over is its own to sweep
    taken = World()
    await taken.save(region="west")
    home = Home(root=root, region="east", epoch=1, at=taken.clock.now(), who="ann")
    await take_home(taken.objects, PREFIX, home)
    assert await taken.left() == [4, 5]


async def test_nothing_goes_where_the_time_is_not_sure() -> None:
    """A snapshot from the future: this clock is wrong, or the other one was."""
    world = World()
    await world.save()
    world.clock.seconds = 0.0
    assert await world.left() == [1, 2, 3, 4, 5]


async def test_a_reference_that_cannot_be_understood_ends_no_term() -> None:
    """A later version's plan says nothing here, and the rule holds instead."""
    world = World()
    await world.save(spec={"snapshot": {"kinds": ["state"], "unheard": 1}})
    assert await world.left() == [3, 4, 5]
