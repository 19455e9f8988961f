"""Field reports about copies of snapshots: etags, order, deletes, broken uploads, clocks, names."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dsec.snapshots.collecting import Collector
from dsec.snapshots.layout import name_of, under
from dsec.snapshots.leases import working
from dsec.snapshots.limits import MIB, Limits
from dsec.snapshots.merging import Merged, PoolRecord, RecordError, merge
from dsec.snapshots.packs import PackBuilder
from dsec.snapshots.refs import (
    TakenError,
    body_of,
    buried_key,
    bury,
    list_refs,
    newest_good,
    next_seq,
    publish,
    ref_key,
    tombstones,
)
from dsec.snapshots.replicating import Copied, Copier, Deletes
from dsec.snapshots.restoring import restore as restore_tree
from dsec.snapshots.retention import Activity, sweep
from dsec.snapshots.saving import save as save_tree
from dsec.snapshots.scanning import Source
from dsec.snapshots.surety import READS, Surety
from dsec.world.memory import MemoryObjects
from dsec.world.objects import ObjectInfo, ObjectStore, ObjectStoreError
from fault_objects import Fault, FaultyObjects, Killed
from snapshot_world import (
    LINEAGE,
    PREFIX,
    START,
    Region,
    StepClock,
    needs_of,
    ref_of,
    region,
    regions,
    restore,
    save,
)

NOW = Deletes(delay=timedelta(0))


async def _copy(a: Region, b: Region, **changes: Any) -> Copied:
    plain: dict[str, Any] = {"source": a.objects, "target": b.objects}
    plain = {**plain, **changes}
    source, target = plain.pop("source"), plain.pop("target")
    return await Copier(source, target, PREFIX, a.clock, a.randomness, **plain).run()


async def _keys(store: ObjectStore) -> list[str]:
    """Return what is stored, but for what only says who worked and when."""
    return [info.key for info in await store.list("") if "/gc/" not in info.key]


@dataclass
class Hooked(MemoryObjects):
    """A store that calls back before each call, and may answer in its place by raising."""

    before: Callable[[str, str], None] = lambda _operation, _key: None
    log: list[tuple[str, str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Set up the store."""
        super().__init__()

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create."""
        self.before("put_if_absent", key)
        self.log.append(("put", key, len(data)))
        return await super().put_if_absent(key, data)

    async def get(self, key: str) -> tuple[bytes, str]:
        """Read."""
        self.before("get", key)
        return await super().get(key)


# ---------------------------------------------------------------------- what is the same


@pytest.mark.case("rclone#523")
async def test_copies_are_compared_by_hash_and_length_never_by_etag() -> None:
    """The etags of one side are of another kind: everything crosses once, and no more."""
    a, b = regions()
    await save(await a.open(), [b"one", b"two"])
    odd = FaultyObjects(b.objects, a.clock, rate=1.0, faults=(Fault.WRONG_ETAG,))
    first = await _copy(a, b, target=odd)
    assert first.whole
    assert first.packs == 1
    again = await _copy(a, b, target=odd)
    assert (again.whole, again.objects, again.refs) == (True, 0, 0)
    # what is lost there crosses again
    (pack,) = await b.objects.list(PREFIX + "packs/")
    await b.objects.delete(pack.key)
    other = await _copy(a, b)
    assert other.packs == 1


@pytest.mark.case("aws-cli#405")
async def test_names_that_sort_differently_elsewhere_lose_nothing() -> None:
    """Keys are compared as bytes, and what the other side lacks is no delete."""
    a, b = regions()
    repo = await a.open()
    lineages = ["exp/a/b/0", "exp/a/b./0", "exp/a/b-/0", "exp/a/b!/0", "exp/ä/b/0", "exp/A/b/0"]
    saved = [await save(repo, [one.encode()], lineage=one) for one in lineages]
    for _ in range(2):
        done = await _copy(a, b, deletes=NOW)
        assert (done.whole, done.deleted) == (True, 0)
    assert await _keys(a.objects) == await _keys(b.objects)
    there = await b.open()
    for ref in saved:
        assert await restore(there, ref) == [ref.lineage.encode()]


# ---------------------------------------------------------------------- deletes


@pytest.mark.case("minio#12919")
async def test_a_delete_during_a_copy_is_not_lost() -> None:
    """Deleted while its packs were on their way: it never counts at the target."""
    a, b = regions()
    store = Hooked()
    a.objects = store
    ref = await save(await a.open(), [b"one"])
    done: list[str] = []

    def delete(operation: str, key: str) -> None:
        if operation == "get" and "/packs/" in key and not done:
            done.append(key)
            store._data.pop(ref_key(PREFIX, ref.lineage, ref.seq))

    store.before = delete
    copied = await _copy(a, b, deletes=NOW)
    assert done
    assert copied.refs == 0
    assert not (await list_refs(b.objects, PREFIX)).refs


@pytest.mark.case("minio#15564")
async def test_a_marker_for_what_was_never_copied_is_done_at_once() -> None:
    """Nothing waits for it, in this run or the next."""
    a, b = regions()
    repo = await a.open()
    ref = await save(repo, [b"one"])
    await save(repo, [b"two"])
    await bury(a.objects, PREFIX, ref, why="asked", now=a.clock.now())
    for _ in range(2):
        done = await _copy(a, b, deletes=NOW)
        assert (done.whole, done.deleted, done.standing.behind) == (True, 0, 0)


@pytest.mark.case("minio#16773")
async def test_a_marker_is_for_one_reference_and_no_other() -> None:
    """One of the same number by another epoch stays; a number is never given twice."""
    a, b = regions()
    ref = await save(await a.open(), [b"one"])
    await _copy(a, b)
    await bury(a.objects, PREFIX, ref, why="asked", now=a.clock.now())
    other = ref_of(1, home_epoch=1, manifest=ref.manifest)
    await b.objects.delete(ref_key(PREFIX, ref.lineage, ref.seq))
    await b.objects.put(ref_key(PREFIX, other.lineage, other.seq), body_of(other))
    await _copy(a, b, deletes=NOW)
    assert (await list_refs(b.objects, PREFIX)).refs == (other,)
    assert await next_seq(a.objects, PREFIX, ref.lineage) == 2
    with pytest.raises(TakenError):
        await publish(a.objects, PREFIX, ref)


@pytest.mark.case("minio#11932")
async def test_a_marker_that_is_removed_brings_nothing_back() -> None:
    """Swept at one side, it stays at the other, and what it buried stays gone at both."""
    a, b = regions()
    ref = await save(await a.open(), [b"one"])
    await _copy(a, b)
    await bury(a.objects, PREFIX, ref, why="asked", now=a.clock.now())
    assert (await _copy(a, b, deletes=NOW)).deleted == 1
    (stone,) = await tombstones(a.objects, PREFIX)
    await a.objects.delete(buried_key(PREFIX, "tombstones", stone))
    for source, target in ((a, b), (b, a), (a, b)):
        await _copy(source, target, deletes=NOW)
    for place in (a, b):
        assert not (await list_refs(place.objects, PREFIX)).refs


async def test_deletes_wait_for_their_delay_and_for_a_sure_clock() -> None:
    """Until then, and while nobody knows the time, the copy is there."""
    a, b = regions()
    ref = await save(await a.open(), [b"one"])
    await _copy(a, b)
    await bury(a.objects, PREFIX, ref, why="by mistake", now=a.clock.now())
    later = Deletes(delay=timedelta(days=1))
    assert (await _copy(a, b, deletes=later)).deleted == 0
    a.clock.time += 86_401
    unsure = Deletes(delay=timedelta(days=1), unsure="the clocks differ")
    assert (await _copy(a, b, deletes=unsure)).deleted == 0
    kept = Deletes(follow=False)
    assert (await _copy(a, b, deletes=kept)).deleted == 0
    assert (await list_refs(b.objects, PREFIX)).refs == (ref,)
    assert (await _copy(a, b, deletes=later)).deleted == 1


@pytest.mark.case("s3-docs@lifecycle")
async def test_our_own_rules_delete_and_no_rule_of_the_store_does() -> None:
    """What retention removes is removed elsewhere; what a store's own rule took is not."""
    a, b = regions()
    repo = await a.open()
    refs = [await save(repo, [b"%d" % number]) for number in range(5)]
    await _copy(a, b)
    # the store's life cycle took one away: no marker of ours says so
    await a.objects.delete(ref_key(PREFIX, refs[1].lineage, refs[1].seq))
    await _copy(a, b, deletes=NOW)
    assert refs[1] in (await list_refs(b.objects, PREFIX)).refs
    for leaving in sweep((await list_refs(a.objects, PREFIX)).refs, now=a.clock.now()):
        await bury(a.objects, PREFIX, leaving.ref, why=leaving.why, now=a.clock.now())
    done = await _copy(a, b, deletes=NOW)
    assert done.deleted == 1
    assert {ref.seq for ref in (await list_refs(b.objects, PREFIX)).refs} == {2, 3, 4, 5}
    collector = Collector(b.objects, PREFIX, b.clock, needs_of(await b.open()))
    assert len((await collector.collect()).packs) == 1


# ---------------------------------------------------------------------- what breaks under way


@pytest.mark.case("juicefs#4804")
async def test_a_copy_that_was_killed_leaves_nothing_beside_what_belongs_there() -> None:
    """Killed at each call in turn, the next run ends with the same keys as an undisturbed one."""
    a, b = regions()
    repo = await a.open()
    for number in range(3):
        await save(repo, [b"%d" % number * 50])
    await _copy(a, b)
    wanted = await _keys(b.objects)
    killed = 0
    for at in range(1, 400):
        place = region("b", 2, a.clock)
        with suppress(Killed):
            store = FaultyObjects(place.objects, a.clock, kill_at=at)
            await _copy(a, place, target=store)
            break
        killed += 1
        if at % 7 == 0:
            assert (await _copy(a, place)).whole
            # the lease of the dead one is the collector's to remove
            left = [key for key in await _keys(place.objects) if "/writers/" not in key]
            assert left == wanted, at
    assert killed > 20


@pytest.mark.case("juicefs#6876")
async def test_what_is_deleted_at_the_source_meanwhile_is_skipped() -> None:
    """Its packs go while they are copied: the run ends well without it."""
    a, b = regions()
    store = Hooked()
    a.objects = store
    repo = await a.open()
    gone, stays = await save(repo, [b"gone" * 9]), await save(repo, [b"stays" * 9])
    first = {info.key for info in await store.list(PREFIX + "packs/")}
    needs = await needs_of(repo)(gone)
    done: list[str] = []

    def collect(operation: str, key: str) -> None:
        if operation == "get" and key in first and not done:
            done.append(key)
            store._data.pop(ref_key(PREFIX, gone.lineage, gone.seq))
            for pack in needs:
                store._data.pop(under(PREFIX, "packs", pack[:2], pack))

    store.before = collect
    copied = await _copy(a, b)
    assert copied.whole, copied.failed
    assert (await list_refs(b.objects, PREFIX)).refs == (stays,)
    assert await restore(await b.open(), stays) == [b"stays" * 9]


@pytest.mark.case("juicefs#3957")
async def test_an_upload_that_the_store_forgot_is_begun_again() -> None:
    """That object alone; the others are not sent twice."""
    a, b = regions()
    repo = await a.open()
    for number in range(3):
        await save(repo, [b"%d" % number])
    store, lost = Hooked(), []

    def forget(operation: str, key: str) -> None:
        if operation == "put_if_absent" and "/packs/" in key and len(lost) < 2:
            lost.append(key)
            raise ObjectStoreError("NoSuchUpload")

    store.before = forget
    b.objects = store
    assert (await _copy(a, b)).whole
    packs = [key for operation, key, _ in store.log if operation == "put" and "/packs/" in key]
    assert len(packs) == len(set(packs)) == 3


@pytest.mark.case("juicefs#5593")
async def test_an_object_that_may_not_be_written_fails_and_holds_up_no_other() -> None:
    """The run ends, names it, publishes nothing that needs it, and the rest is there."""
    a, b = regions()
    repo = await a.open()
    for number in range(3):
        await save(repo, [b"%d" % number])
    store = Hooked()
    (denied, *others) = [info.key for info in await a.objects.list(PREFIX + "packs/")]

    def deny(operation: str, key: str) -> None:
        if operation == "put_if_absent" and key == denied:
            raise ObjectStoreError("AccessDenied")

    store.before = deny
    b.objects = store
    done = await _copy(a, b)
    assert not done.whole
    assert done.failed[0].key == denied
    assert "AccessDenied" in done.failed[0].why
    assert {one.key for one in done.failed[1:]} == {name_of(LINEAGE, n) for n in (1, 2, 3)}
    assert [info.key for info in await store.list(PREFIX + "packs/")] == others
    assert not (await list_refs(store, PREFIX)).refs


@pytest.mark.case("rclone#415")
async def test_no_object_needs_more_parts_than_a_store_takes(tmp_path: Path) -> None:
    """However long a file, what is sent is packs of one size, each in one request."""
    (tmp_path / "large").write_bytes(os.urandom(9 * MIB))
    a, _ = regions()
    store = Hooked()
    a.objects = store
    repo = await a.open()
    limits = Limits(workers=1, uploads=1, pack_bytes=4 * MIB)
    await save_tree(repo, [Source(tmp_path)], limits=limits)
    packs = [size for _, key, size in store.log if "/packs/" in key]
    assert len(packs) >= 3
    assert max(packs) <= 4 * MIB + 64 * 1024
    assert PackBuilder(repo.keys, 4 * MIB, 2).empty


@pytest.mark.case("s3-stream-upload#17")
async def test_what_is_stored_cut_short_is_found_before_anything_refers_to_it() -> None:
    """No error was given; the length is wrong: put right, or nothing is published."""
    a, b = regions()
    ref = await save(await a.open(), [b"one" * 99])
    cutting = FaultyObjects(b.objects, a.clock, seed=3, rate=1.0, faults=(Fault.CUT_WRITE,))
    with suppress(ObjectStoreError):
        done = await _copy(a, b, target=cutting)
        assert not done.whole
    assert not (await list_refs(b.objects, PREFIX)).refs
    # the store recovers: what lies there too short is replaced
    done = await _copy(a, b)
    assert done.whole, done.failed
    assert await restore(await b.open(), ref) == [b"one" * 99]


# ---------------------------------------------------------------------- clocks


@dataclass
class Dating(MemoryObjects):
    """A store with a clock of its own, whose answers may be old."""

    clock: StepClock = field(default_factory=StepClock)
    off: timedelta = timedelta(0)
    late: int = 0
    """So many answers are those of a day ago."""

    def __post_init__(self) -> None:
        """Set up the store."""
        super().__init__()

    async def modified(self, key: str) -> datetime:
        """Return when an object was written."""
        await self.size(key)
        if self.late:
            self.late -= 1
            return self.clock.now() - timedelta(days=1)
        return self.clock.now() + self.off


@pytest.mark.case("kopia#2227")
async def test_nothing_is_deleted_by_a_clock_that_the_store_contradicts() -> None:
    """More than five minutes apart, a jump, or something from the future: refused, with why."""
    clock = StepClock()
    store = Dating(clock=clock)
    assert await Surety(store, PREFIX, clock).why_unsure([clock.now()]) == ""
    store.off = timedelta(minutes=6)
    assert "360 s apart" in await Surety(store, PREFIX, clock).why_unsure()
    store.off = timedelta(0)
    future = [clock.now() + timedelta(hours=1)]
    assert "3600 s after now" in await Surety(store, PREFIX, clock).why_unsure(future)
    surety = Surety(store, PREFIX, clock)
    assert await surety.why_unsure() == ""
    clock.off = timedelta(days=40)
    assert "jumped by 3456000 s" in await surety.why_unsure()


@pytest.mark.case("keiretsu#2746")
async def test_a_late_answer_about_a_date_is_asked_again_before_it_is_judged() -> None:
    """What was just written seems a day old: read again, it is not."""
    clock = StepClock()
    assert await Surety(Dating(clock=clock, late=READS - 1), PREFIX, clock).why_unsure() == ""
    assert await Surety(Dating(clock=clock, late=READS), PREFIX, clock).why_unsure() != ""


# ---------------------------------------------------------------------- restores


@pytest.mark.case("litestream#224")
async def test_what_is_being_restored_is_not_removed_under_it() -> None:
    """A lease holds its reference against the rule, and its packs against the collector."""
    place = region()
    repo = await place.open()
    refs = [await save(repo, [b"%d" % number * 20]) for number in range(5)]
    old = refs[0]
    going = [one.ref.seq for one in sweep(refs, now=place.clock.now())]
    assert going == [1, 2]
    assert [one.ref.seq for one in sweep(refs, now=place.clock.now(), held=[1])] == [2]
    collector = Collector(place.objects, PREFIX, place.clock, needs_of(repo), repo.forget)
    async with working(
        place.objects,
        PREFIX,
        what="restoring",
        clock=place.clock,
        randomness=place.randomness,
        holds=[old],
    ):
        # it was deleted in the moment before the lease: the lease alone keeps its packs
        await bury(place.objects, PREFIX, old, why="rule", now=place.clock.now())
        await collector.mark()
        place.clock.time += 60
        assert (await collector.sweep()).packs == ()
        assert await restore(repo, old) == [b"0" * 20]
    assert len((await collector.collect()).packs) == 1


@pytest.mark.case("litestream#136")
async def test_what_is_out_of_sequence_is_found_and_the_older_one_taken() -> None:
    """A reference under another's number, and a piece of a pool with its records out of order."""
    place = region()
    repo = await place.open()
    first, second = await save(repo, [b"1"]), await save(repo, [b"2"])
    wrong = ref_key(PREFIX, LINEAGE, 3)
    await place.objects.put(wrong, body_of(second.model_copy(update={"seq": 7})))

    async def good(ref: Any) -> str:
        return "its packs are damaged" if ref.seq == 2 else ""

    choice = await newest_good(place.objects, PREFIX, LINEAGE, good)
    assert choice is not None
    assert choice.ref == first
    assert [bad.why for bad in choice.skipped] == [
        f"holds {LINEAGE}@7, which belongs elsewhere",
        "its packs are damaged",
    ]
    with pytest.raises(RecordError, match="record 1 comes after 2"):
        list(merge([[PoolRecord(2, b"b"), PoolRecord(1, b"a")]], Merged()))


# ---------------------------------------------------------------------- names


async def _there_and_back(a: Region, b: Region, source: Path, target: Path) -> None:
    """Save a tree in one region, copy it, and restore it from the other into an empty folder."""
    repo = await a.open()
    saved = await save_tree(repo, [Source(source)], limits=Limits(workers=1))
    seq = await next_seq(a.objects, PREFIX, LINEAGE)
    ref = ref_of(seq, manifest=saved.manifest, files=saved.files, bytes=saved.bytes)
    await publish(a.objects, PREFIX, ref)
    assert (await _copy(a, b)).whole
    await restore_tree(await b.open(), ref.manifest, target)


@pytest.mark.case("restic#3267")
async def test_a_link_to_a_name_that_is_no_text_crosses_byte_by_byte(tmp_path: Path) -> None:
    """Target and name are bytes everywhere: the copy is the same, and so is its manifest."""
    a, b = regions()
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    os.symlink(b"/nowhere/\xff\xfe", os.fsencode(source) + b"/link-\xe9")  # noqa: PTH211 - bytes
    await _there_and_back(a, b, source, target)
    link = os.fsencode(target) + b"/link-\xe9"
    assert os.readlink(link) == b"/nowhere/\xff\xfe"  # noqa: PTH115 - bytes
    assert await _keys(a.objects) == await _keys(b.objects)


@pytest.mark.case("volsync@names")
async def test_odd_names_many_files_and_equal_names_of_two_tenants(tmp_path: Path) -> None:
    """`#` in front, 255 bytes, 2,000 files in one folder; who has the same name shares nothing."""
    a, b = regions()
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    names = ["#first", "#", "ü" * 127, "x" * 255, *(f"f{number:04}" for number in range(2000))]
    for name in names:
        (source / name).write_text(name)
    await _there_and_back(a, b, source, target)
    found = {path.name: path.read_text() for path in target.iterdir()}
    assert found == {name: name for name in names}
    # another tenant's lineage of the same name is another one, with a key of its own
    other = await a.open(prefix="snapshots/team-b/")
    ref = await save(other, [b"theirs"], tenant="team-b")
    assert ref.seq == 1
    assert other.data_key != (await a.open()).data_key
    before: list[ObjectInfo] = await b.objects.list("snapshots/team-b/")
    await _copy(a, b)
    assert before == await b.objects.list("snapshots/team-b/") == []


def test_an_idle_task_keeps_what_its_rule_says() -> None:
    """Seven days, thirty days: the rule of CONF-28 on a dated store."""
    refs = [ref_of(n, created=START + timedelta(days=n)) for n in range(1, 11)]
    ended = Activity(ended=START + timedelta(days=10), retain=10)
    for after, left in ((6, range(1, 11)), (7, range(7, 11)), (29, range(7, 11)), (30, ())):
        gone = sweep(refs, now=START + timedelta(days=10 + after), activity=ended)
        assert sorted({ref.seq for ref in refs} - {one.ref.seq for one in gone}) == list(left)
