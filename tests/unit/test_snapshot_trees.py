"""Snapshots of trees: what is restored equals what was saved, and no byte can be bent unseen."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from dsec.snapshots import treesaver
from dsec.snapshots.repository import Repository
from dsec.snapshots.restoring import restore
from dsec.snapshots.saving import Saved, save
from dsec.snapshots.scanning import Found, SaveError, Source, scan
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.snapshots.statcache import StatCache
from dsec.snapshots.verifying import verify
from dsec.snapshots.walking import entries, needed_packs
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryObjects
from dsec.world.objects import ObjectStoreError
from snapshot_make import PREFIX, disturb, grow, open_repository, picture, seeded

LARGE = 70 << 20


class Impatient(SystemClock):
    """A clock that does not wait."""

    async def sleep(self, seconds: float) -> None:
        """Return at once."""
        del seconds
        await asyncio.sleep(0)


async def back(repo: Repository, saved: Saved, folder: Path) -> Path:
    """Restore into a new folder and return it."""
    os.mkdir(folder)  # noqa: PTH102  short, and nothing else runs
    restored = await restore(repo, saved.manifest, folder)
    assert (restored.files, restored.bytes) == (saved.files, saved.bytes)
    return folder


@pytest.mark.parametrize("seed", range(6))
async def test_random_trees_come_back(tmp_path: Path, seed: int) -> None:
    """First save, changes, next save with a memory of the first: both restore exactly."""
    random, source = seeded(seed), tmp_path / "source"
    source.mkdir()
    grow(random, source)
    objects = MemoryObjects()
    repo = await open_repository(objects)
    cache = StatCache(tmp_path / "cache")
    first, before = await save(repo, [Source(source)], cache=cache), picture(source)
    disturb(random, source)
    second, after = await save(repo, [Source(source)], cache=cache), picture(source)
    third = await save(repo, [Source(source)], cache=cache)
    assert third.manifest == second.manifest
    # a reader of its own, which knows only what is in the store
    other = await open_repository(objects)
    assert picture(await back(other, first, tmp_path / "one")) == before
    assert picture(await back(other, second, tmp_path / "two")) == after
    for saved in (first, second):
        assert (await verify(other, saved.manifest)).problems == []
        assert await needed_packs(other, saved.manifest) == saved.packs


@pytest.mark.parametrize("seed", range(2))
async def test_many_small_steps(tmp_path: Path, seed: int) -> None:
    """Leaves of the manifest that go on as a whole are the right ones, whatever changed beside."""
    random, source = seeded(seed), tmp_path / "source"
    source.mkdir()
    grow(random, source, entries=250)
    repo = await open_repository(MemoryObjects())
    cache = StatCache(tmp_path / "cache")
    for step in range(6):
        saved = await save(repo, [Source(source)], cache=cache)
        assert picture(await back(repo, saved, tmp_path / f"out-{step}")) == picture(source)
        assert await needed_packs(repo, saved.manifest) == saved.packs
        # long enough for a time stamp of its own
        await asyncio.sleep(0.07)
        disturb(random, source, files=random.randrange(3))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 100))
async def test_many_more_small_steps(tmp_path: Path, seed: int) -> None:
    """The same with more seeds."""
    await test_many_small_steps(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6, 206))
async def test_many_random_trees_come_back(tmp_path: Path, seed: int) -> None:
    """The same with more seeds."""
    await test_random_trees_come_back(tmp_path, seed)


async def test_pages_of_a_large_file(tmp_path: Path) -> None:
    """Over the end of a segment: a change stores its pages; what is shifted is found again."""
    random, source = seeded(1), tmp_path / "source"
    source.mkdir()
    data = bytearray(random.randbytes(LARGE))
    (source / "model").write_bytes(data)
    os.utime(source / "model", (1, 1))
    repo = await open_repository(MemoryObjects())
    cache = StatCache(tmp_path / "cache")
    first = await save(repo, [Source(source)], cache=cache)
    assert LARGE < first.stored_bytes < LARGE * 1.001
    for at in (0, 5_000_000, (64 << 20) - 10, LARGE - 3):
        data[at : at + 3] = b"new"
    (source / "model").write_bytes(data)
    second = await save(repo, [Source(source)], cache=cache)
    assert second.changed_bytes <= 5 * 4096
    assert second.stored_bytes < 60_000
    assert picture(await back(repo, second, tmp_path / "two")) == picture(source)
    data[1_000_000:1_000_000] = b"shifted"
    (source / "model").write_bytes(data)
    third = await save(repo, [Source(source)], cache=cache)
    assert third.stored_bytes < LARGE / 5
    assert (await verify(repo, third.manifest)).good
    # without a memory the same content is found by its chunks
    again = await save(repo, [Source(source)])
    assert again.stored_bytes < LARGE / 5


async def test_a_sparse_file_stays_sparse(tmp_path: Path) -> None:
    """Holes are neither read, nor stored, nor written."""
    source = tmp_path / "source"
    source.mkdir()
    with (source / "disk").open("wb") as file:
        file.truncate(1 << 36)
        file.seek(20 << 30)
        file.write(b"far away")
    repo = await open_repository(MemoryObjects())
    saved = await save(repo, [Source(source)])
    assert saved.stored_bytes < 1 << 20
    found = (await back(repo, saved, tmp_path / "out")) / "disk"
    assert found.stat().st_size == 1 << 36
    assert found.stat().st_blocks * 512 < 1 << 20
    with found.open("rb") as file:
        file.seek(20 << 30)
        assert file.read(9) == b"far away\0"


async def test_nothing_is_relied_on_that_is_going(tmp_path: Path) -> None:
    """Blobs of packs that are being collected are stored again, cached or not."""
    source = tmp_path / "source"
    source.mkdir()
    grow(seeded(9), source)
    repo = await open_repository(MemoryObjects())
    cache = StatCache(tmp_path / "cache")
    first = await save(repo, [Source(source)], cache=cache)
    second = await save(repo, [Source(source)], cache=cache, avoid=first.packs)
    assert not first.packs & second.packs
    await repo.forget(first.packs)
    for pack in first.packs:
        await repo.objects.delete(repo.pack_key(bytes.fromhex(pack)))
    assert picture(await back(repo, second, tmp_path / "out")) == picture(source)
    assert (await verify(await open_repository(repo.objects), second.manifest)).good
    third = await save(repo, [Source(source)], cache=cache)
    assert (third.manifest, third.stored_bytes) == (second.manifest, 0)


async def test_many_files_in_one_folder(tmp_path: Path) -> None:
    """Thousands of small files lie in few frames; one more of them adds little."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3000):
        (source / f"{number}").write_text(f"file {number}")
        os.utime(source / f"{number}", (1, 1))
    repo = await open_repository(MemoryObjects())
    cache = StatCache(tmp_path / "cache")
    await save(repo, [Source(source)], cache=cache)
    (source / "one more").write_text("x")
    second = await save(repo, [Source(source)], cache=cache)
    assert second.stored_bytes < 20_000
    assert picture(await back(repo, second, tmp_path / "out")) == picture(source)
    paths = [entry.path async for entry in entries(repo, second.manifest)]
    assert paths == sorted(os.fsencode(path.name) for path in source.iterdir())


async def test_state_of_several_places(tmp_path: Path) -> None:
    """Sources keep their places; one may be a single file; overlapping ones are refused."""
    (tmp_path / "ckpt/deep").mkdir(parents=True)
    (tmp_path / "ckpt/deep/weights").write_bytes(b"w" * 200_000)
    (tmp_path / "rng").write_bytes(b"seed")
    repo = await open_repository(MemoryObjects())
    sources = [Source(tmp_path / "rng", "state/rng"), Source(tmp_path / "ckpt", "state/ckpt")]
    saved = await save(repo, sources)
    out = await back(repo, saved, tmp_path / "out")
    assert (out / "state/ckpt/deep/weights").read_bytes() == b"w" * 200_000
    assert (out / "state/rng").read_bytes() == b"seed"
    some = tmp_path / "some"
    some.mkdir()
    await restore(repo, saved.manifest, some, only=["state/rng"])
    assert [path.name for path in some.rglob("*")] == ["state", "rng"]
    with pytest.raises(ValueError, match=r"at: 'state/ckpt' .* lies in 'state'"):
        await save(repo, [Source(tmp_path, "state"), Source(tmp_path / "ckpt", "state/ckpt")])


async def test_no_bit_can_be_bent(tmp_path: Path) -> None:
    """A changed byte anywhere in any object is found by verify, and never restored."""
    random, source = seeded(3), tmp_path / "source"
    source.mkdir()
    grow(random, source, entries=12)
    objects = MemoryObjects()
    saved = await save(await open_repository(objects), [Source(source)])
    whole = dict(objects._data)
    tries = 0
    for key in sorted(whole):
        if key.endswith("repo.json"):
            continue
        places = {0, len(whole[key]) - 1, *(random.randrange(len(whole[key])) for _ in range(12))}
        for number, at in enumerate(sorted(places)):
            bent = bytearray(whole[key])
            bent[at] ^= 1 << random.randrange(8)
            objects._data = {**whole, key: bytes(bent)}
            out = tmp_path / f"out-{tries}"
            out.mkdir()
            tries += 1
            try:
                repo = await open_repository(objects)
                problems = (await verify(repo, saved.manifest)).problems
                await restore(repo, saved.manifest, out)
            except SnapshotDamagedError:
                continue
            # what is left are the footers, which serve only to make an index again, and the index,
            # which is made again from them
            assert not problems, (key, number)
            assert picture(out) == picture(source)
            assert repo.damaged == ("/index/" in key)
            with pytest.raises(SnapshotDamagedError):
                await repo.read_named(key, key.rpartition("/")[2].rpartition("-")[2])
    assert tries > 30


async def test_lost_objects_are_told(tmp_path: Path) -> None:
    """A pack or an index object that is gone is damage, in words."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_bytes(b"x" * 1000)
    objects = MemoryObjects()
    saved = await save(await open_repository(objects), [Source(tmp_path / "source")])
    whole = dict(objects._data)
    for key in whole:
        if key.endswith("repo.json"):
            continue
        objects._data = {name: data for name, data in whole.items() if name != key}
        report = await verify(await open_repository(objects), saved.manifest)
        assert any("gone" in one or "in no pack" in one for one in report.problems), key


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_save_that_is_cut_off_anywhere(tmp_path: Path, how: str) -> None:
    """Killed at any call to the store: what was there still restores, and the next save works.

    It also finds what the killed one had sent.
    """
    random, source = seeded(5), tmp_path / "source"
    source.mkdir()
    (source / "old").write_bytes(random.randbytes(300_000))
    objects = MemoryObjects()
    first = await save(await open_repository(objects), [Source(source)])
    before, whole = picture(source), dict(objects._data)
    (source / "new").write_bytes(random.randbytes(9 << 20))
    calls = 0
    while True:
        objects = MemoryObjects()
        objects._data = dict(whole)
        left = [calls]

        def fault(operation: str, key: str, left: list[int] = left) -> str:
            del key
            if operation.startswith("put"):
                left[0] -= 1
                if left[0] < 0:
                    # a dead process makes no more calls: nothing after it has an effect either
                    return how if left[0] == -1 else "before"
            return ""

        repo = await open_repository(objects)
        repo.clock = Impatient()
        objects.fault = fault
        cache = StatCache(tmp_path / f"cache-{how}-{calls}")
        try:
            await save(repo, [Source(source)], cache=cache)
            break
        except ObjectStoreError:
            calls += 1
        objects.fault = None
        fresh = await open_repository(objects)
        out = await back(fresh, first, tmp_path / f"out-{how}-{calls}")
        assert picture(out) == before
        sent = sum(len(data) for key, data in objects._data.items() if key not in whole)
        second = await save(fresh, [Source(source)], cache=cache)
        assert (await verify(await open_repository(objects), second.manifest)).good
        if sent > 8 << 20:
            assert second.stored_bytes < 1 << 20
    assert calls >= 3


async def test_what_is_adopted_while_an_index_is_written_is_written_next(tmp_path: Path) -> None:
    """Two saves of one tenant share a repository: neither forgets what the other has found."""
    objects = MemoryObjects()
    (tmp_path / "file").write_bytes(b"first")
    await save(await open_repository(objects), [Source(tmp_path)])
    first = {info.key for info in await objects.list(f"{PREFIX}packs/")}
    (tmp_path / "file").write_bytes(b"second")
    await save(await open_repository(objects), [Source(tmp_path)])
    later = {info.key for info in await objects.list(f"{PREFIX}packs/")} - first
    bodies = {key: (await objects.get(key))[0] for key in later}
    for key in (*later, *[info.key for info in await objects.list(f"{PREFIX}index/")]):
        await objects.delete(key)
    repo = await open_repository(objects)
    await repo.adopt()
    written = repo.create

    async def meanwhile(key: str, body: bytes) -> None:
        await written(key, body)
        for other, content in bodies.items():
            await objects.put(other, content)
        await repo.adopt()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repo, "create", meanwhile)
        await repo.write_index([])
    await repo.write_index([])
    again = await open_repository(objects)
    names = {key.rpartition("/")[2] for key in first | later}
    assert later
    assert {pack.name.hex() for pack in again.index.packs()} == names


async def test_a_file_that_becomes_a_pipe_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs work while a first pass reads: opening a pipe would wait for a writer for ever."""
    file = tmp_path / "large"
    file.write_bytes(bytes(1 << 20))

    def changing(source: Source, root: int, only: bytes) -> Iterator[Found]:
        for found in scan(source, root, only):
            file.unlink()
            os.mkfifo(file)
            yield found

    monkeypatch.setattr(treesaver, "scan", changing)
    with pytest.raises(SaveError, match="large"):
        await save(await open_repository(MemoryObjects()), [Source(tmp_path)])
