"""Packs that are mostly dead are emptied and collected; what lives in them is never lost."""

from contextlib import suppress
from pathlib import Path

import pytest
from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.collecting import CollectError, Collector, Swept
from dsec.snapshots.leases import working
from dsec.snapshots.limits import Limits
from dsec.snapshots.needing import needs_of
from dsec.snapshots.refs import bury, next_seq, publish, ref_key
from dsec.snapshots.repacking import Repacked, repack
from dsec.snapshots.repository import Repository
from dsec.snapshots.restoring import restore
from dsec.snapshots.saving import save
from dsec.snapshots.scanning import Source
from dsec.snapshots.verifying import verify
from fault_objects import FaultyObjects, Killed
from snapshot_world import LINEAGE, PREFIX, Region, SeededRandomness, ref_of, region

SMALL = Limits(workers=1, uploads=1)


async def _take(repo: Repository, folder: Path) -> SnapshotRef:
    """Save a folder as an agent does."""
    async with working(
        repo.objects, PREFIX, what="saving", clock=repo.clock, randomness=repo.randomness
    ) as work:
        saved = await save(repo, [Source(folder)], avoid=work.avoid, limits=SMALL)
        seq = await next_seq(repo.objects, PREFIX, LINEAGE)
        ref = ref_of(seq, manifest=saved.manifest, files=saved.files, bytes=saved.bytes)
        await publish(repo.objects, PREFIX, ref)
        await work.confirm(saved.packs)
    return ref


async def _collect(place: Region) -> Swept:
    repo = await place.open()
    needs = needs_of(repo)

    one = Collector(place.objects, PREFIX, place.clock, needs, repo.forget, patience=60.0)
    return await one.collect()


async def _stored(place: Region) -> int:
    return sum(info.size for info in await place.objects.list(PREFIX + "packs/"))


async def _world(folder: Path) -> tuple[Region, SnapshotRef]:
    """One pack of two megabytes, of which the newest snapshot needs a small part."""
    place, noise = region(), SeededRandomness(5)
    repo = await place.open()
    for name in range(20):
        (folder / f"{name:02}").write_bytes(noise.randbytes(100_000))
    first = await _take(repo, folder)
    for name in range(2, 20):
        (folder / f"{name:02}").unlink()
    second = await _take(repo, folder)
    await bury(place.objects, PREFIX, first, why="rule", now=place.clock.now())
    return place, second


async def test_what_is_mostly_dead_is_emptied_and_goes(tmp_path: Path) -> None:
    """A collector alone frees nothing of it; after a repack nine tenths go, and all restores."""
    folder, target = tmp_path / "a", tmp_path / "b"
    for one in (folder, target):
        one.mkdir()
    place, ref = await _world(folder)
    await _collect(place)
    assert await _stored(place) > 2_000_000
    done = await repack(await place.open())
    assert len(done.packs) == 1
    assert done.freed_bytes > 2_000_000
    assert done.written_bytes < 300_000
    # both places are there until the collector has been
    assert (await verify(await place.open(), ref.manifest)).problems == []
    await _collect(place)
    assert await _stored(place) < 300_000
    fresh = await place.open()
    assert (await verify(fresh, ref.manifest)).problems == []
    await restore(fresh, ref.manifest, target, limits=SMALL)
    for path in folder.iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes()
    assert await repack(await place.open()) == Repacked()


async def test_a_repack_that_dies_anywhere_loses_nothing(tmp_path: Path) -> None:
    """Killed at each call in turn, collected, and everything is there; then done once more."""
    folder = tmp_path / "a"
    folder.mkdir()
    place, ref = await _world(folder)
    for at in range(1, 60):
        store = FaultyObjects(place.objects, place.clock, kill_at=at)
        with suppress(Killed):
            await repack(await place.open(store))
            break
        if at % 4 == 0:
            await _collect(place)
        assert (await verify(await place.open(), ref.manifest)).problems == []
    assert at > 10
    await _collect(place)
    assert await _stored(place) < 300_000
    assert (await verify(await place.open(), ref.manifest)).problems == []


async def test_an_index_that_is_damaged_is_made_again_from_the_packs(tmp_path: Path) -> None:
    """Everything restores while it is damaged; collecting writes it anew, and loses nothing."""
    folder = tmp_path / "a"
    folder.mkdir()
    place, ref = await _world(folder)
    for info in await place.objects.list(PREFIX + "index/"):
        await place.objects.put(info.key, b"x" * info.size)
    repo = await place.open()
    assert repo.damaged
    assert (await verify(repo, ref.manifest)).problems == []
    await repo.forget(())
    assert not repo.damaged
    fresh = await place.open()
    assert not fresh.damaged
    assert (await verify(fresh, ref.manifest)).problems == []
    await _collect(place)
    assert (await verify(await place.open(), ref.manifest)).problems == []


async def test_who_saves_meanwhile_may_still_use_the_old_pack(tmp_path: Path) -> None:
    """It takes what the index knew from the pack that is emptied: that pack stays as long."""
    folder = tmp_path / "a"
    folder.mkdir()
    place, ref = await _world(folder)
    noise = SeededRandomness(5)
    old = [noise.randbytes(100_000) for _ in range(20)]
    saver = await place.open()
    await saver.refresh()
    async with working(
        place.objects, PREFIX, what="saving", clock=place.clock, randomness=place.randomness
    ) as work:
        await repack(await place.open())
        (folder / "back").write_bytes(old[9])
        saved = await save(saver, [Source(folder)], avoid=work.avoid, limits=SMALL)
        other = ref_of(3, manifest=saved.manifest, files=saved.files, bytes=saved.bytes)
        await publish(place.objects, PREFIX, other)
        await work.confirm(saved.packs)
    await _collect(place)
    for one in (ref, other):
        assert (await verify(await place.open(), one.manifest)).problems == []


async def _apart(folder: Path) -> tuple[Region, SnapshotRef, str, list[str]]:
    """Return a snapshot whose manifest has a pack of its own: that one, and all others' names."""
    place = region()
    repo = await place.open()
    (folder / "a").write_bytes(SeededRandomness(7).randbytes(300_000))
    await _take(repo, folder)
    data = {info.key for info in await place.objects.list(PREFIX + "packs/")}
    (folder / "b").write_bytes(b"")
    ref = await _take(repo, folder)
    packs = {info.key for info in await place.objects.list(PREFIX + "packs/")}
    (manifest,) = packs - data
    return place, ref, manifest, sorted(data)


async def test_damage_is_no_absence(tmp_path: Path) -> None:
    """A manifest that cannot be read stops the collection, which says why; whole again, it goes."""
    place, ref, manifest, data = await _apart(tmp_path)
    for old in await place.objects.list(PREFIX + "refs/"):
        if not old.key.endswith(f"{ref.seq:012d}.json"):
            await place.objects.delete(old.key)
    whole, _ = await place.objects.get(manifest)
    await place.objects.put(manifest, b"x" * len(whole))
    with pytest.raises(CollectError, match=f"@{ref.seq}: cannot tell what it needs"):
        await _collect(place)
    left = {info.key for info in await place.objects.list(PREFIX + "packs/")}
    assert left == {manifest, *data}
    await place.objects.put(manifest, whole)
    key = ref_key(PREFIX, ref.lineage, ref.seq)
    entry, _ = await place.objects.get(key)
    await place.objects.put(key, entry[:-9])
    with pytest.raises(CollectError, match=key):
        await _collect(place)
    await place.objects.put(key, entry)
    await _collect(place)
    assert (await verify(await place.open(), ref.manifest)).problems == []


async def test_what_is_gone_makes_a_snapshot_broken(tmp_path: Path) -> None:
    """No restore of it can succeed: what only it needed goes."""
    place, ref, manifest, _ = await _apart(tmp_path)
    for old in await place.objects.list(PREFIX + "refs/"):
        if not old.key.endswith(f"{ref.seq:012d}.json"):
            await place.objects.delete(old.key)
    await place.objects.delete(manifest)
    assert (await _collect(place)).broken == (f"{ref.lineage}@{ref.seq}",)
    assert await _stored(place) == 0
