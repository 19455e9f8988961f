"""Parts of the snapshot engine, each against a plain account of what it should do."""

import asyncio
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from dsec.snapshots import repository
from dsec.snapshots.beneath import _by_parts, open_beneath
from dsec.snapshots.chunking import BLOCK, LONGEST, PAGE, SHORTEST, Cutter
from dsec.snapshots.dirty import DIRTY, NO_PRINTS, SAME, ZERO, Looker
from dsec.snapshots.index import Index, PackName, Table, decode, encode, joined, without
from dsec.snapshots.limits import Limits, Pace
from dsec.snapshots.manifest import Entry, Kind, decode_leaf, encode_leaf
from dsec.snapshots.packs import PackBuilder, open_frame, read_footer
from dsec.snapshots.pieces import HOLE, PIECE, Row, Slices
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import (
    ID_BYTES,
    SALT_BYTES,
    SnapshotDamagedError,
    cipher,
    derive,
    name_blob,
)
from dsec.snapshots.segments import Segment
from dsec.snapshots.statcache import KnownSegment, StatCache
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryObjects
from dsec.world.objects import ObjectInfo
from hypothesis import given
from hypothesis import strategies as st
from snapshot_make import seeded
from snapshot_world import PREFIX, SeededRandomness, region

KEYS = derive(bytes(32))
ids = st.binary(min_size=32, max_size=32)
REPOSITORY = "0" * 32


@given(
    st.lists(st.tuples(st.sampled_from([b"a" * 32, b"b" * 32, HOLE]), st.integers(1, 9))), st.data()
)
def test_slices_of_rows(parts: list[tuple[bytes, int]], data: st.DataObject) -> None:
    """Any slice of a row has the same bytes as the slice of what the row stands for."""
    row, text, at = Row(), b"", 0
    for blob, length in parts:
        start = 0 if blob == HOLE else at
        row.add(blob, start, length)
        text += _spelled([(blob, start, length)])
        at += length
    assert row.length == len(text)
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, len(text)))
    other = Row()
    Slices(row.packed()).into(other, begin, end)
    assert _spelled(list(PIECE.iter_unpack(other.packed()))) == text[begin:end]


def _spelled(pieces: list[tuple[bytes, int, int]]) -> bytes:
    """Return a byte for each byte of the pieces that depends on its blob and place."""
    return b"".join(
        bytes((blob[0] + (0 if blob == HOLE else start + n)) % 251 for n in range(length))
        for blob, start, length in pieces
    )


@given(st.integers(1, 3 * BLOCK // PAGE), st.data())
def test_runs_tell_what_changed(pages: int, data: st.DataObject) -> None:
    """What is called the same is the same; every changed page is in a run that is stored."""
    random = seeded(pages)
    tail = data.draw(st.sampled_from([0, 1, 100, PAGE - 1]))
    old = bytearray(random.randbytes(pages * PAGE - tail))
    new = bytearray(old)
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(new) - 1))
        length = data.draw(st.sampled_from([1, PAGE, 20 * PAGE]))
        kind = data.draw(st.booleans())
        new[at : at + length] = (
            bytes(len(new[at : at + length]))
            if kind
            else random.randbytes(len(new[at : at + length]))
        )
    looker = Looker(5)
    before, _ = looker.look(memoryview(old), NO_PRINTS, frozenset())
    prints, runs = looker.look(memoryview(new), before, frozenset())
    assert (prints, runs) != (None, None)
    assert looker.look(memoryview(new), NO_PRINTS, frozenset())[0] == prints
    at = 0
    for begin, end, kind in runs:
        assert begin == at < end
        at = end
        if kind == SAME:
            assert new[begin:end] == old[begin:end]
        elif kind == ZERO:
            assert not any(new[begin:end])
        else:
            assert kind == DIRTY
    assert at == len(new)


def test_cuts_follow_the_content() -> None:
    """Chunks keep their bounds, and come again behind an insertion."""
    data = seeded(1).randbytes(16 << 20)
    cutter = Cutter(7)
    lengths = list(cutter.cut(data))
    assert sum(lengths) == len(data)
    assert all(SHORTEST <= length <= LONGEST for length in lengths[:-1])
    ends = set(np.cumsum(lengths).tolist())
    again = {end - 100 for end in np.cumsum(list(cutter.cut(b"x" * 100 + data))).tolist()}
    assert len(ends & again) >= len(ends) - 2


@given(
    st.lists(st.lists(st.tuples(ids, st.integers(1, 9)), max_size=5), max_size=4),
    st.sets(st.integers(0, 3)),
)
def test_the_index_finds_what_tables_say(
    packs: list[list[tuple[bytes, int]]], doomed: set[int]
) -> None:
    """Through encoding, joining and taking packs out; in its sorted and in its fresh part."""
    tables = []
    for number, blobs in enumerate(packs):
        tables.append(
            Table(
                [PackName(bytes([number]) * 32, bytes(16), 100)],
                np.array([[0, n, 20, 4] for n in range(len(blobs))], np.uint32).reshape(-1, 4),
                b"".join(blob for blob, _ in blobs),
                np.array(
                    [[n, 1, length] for n, (_, length) in enumerate(blobs)], np.uint32
                ).reshape(-1, 3),
            )
        )
    gone = {bytes([number]) * 32 for number in doomed}
    kept = without(decode(encode(joined(tables)), "table"), gone)
    sorted_one, fresh_one = Index([kept]), Index()
    fresh_one.add(kept)
    where = {
        blob: number
        for number, blobs in reversed(list(enumerate(packs)))
        if number not in doomed
        for blob, _ in blobs
    }
    for index in (sorted_one, fresh_one):
        for blobs in packs:
            for blob, _ in blobs:
                found = index.find(blob)
                assert (found is not None) == (blob in where)
                if found is not None:
                    candidates = [
                        (bytes([number]) * 32, n, length)
                        for number, some in enumerate(packs)
                        for n, (one, length) in enumerate(some)
                        if one == blob and number not in doomed
                    ]
                    assert (found.pack.name, found.offset, found.length) in candidates
        assert index.packs_of(b"".join(where)) <= {bytes([n]) * 32 for n in range(4)} - gone
        if len(where) == sum(len(some) for n, some in enumerate(packs) if n not in doomed):
            expected = {bytes([number]) * 32 for number in where.values()}
            assert index.packs_of(b"".join(where)) == expected


@given(st.binary(max_size=200))
def test_no_index_of_ours(data: bytes) -> None:
    """Any other bytes are damage."""
    with pytest.raises(SnapshotDamagedError):
        decode(data, "index")


entry = st.builds(
    Entry,
    path=st.binary(min_size=1, max_size=300),
    kind=st.sampled_from(Kind),
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 2**32 - 1),
    gid=st.integers(0, 2**32 - 1),
    mtime=st.integers(-(2**63), 2**63 - 1),
    size=st.integers(0, 2**64 - 1),
    device=st.integers(0, 2**64 - 1),
    pieces=st.binary(max_size=80),
    lists=st.binary(max_size=64),
    link=st.binary(max_size=50),
    xattrs=st.dictionaries(
        st.binary(min_size=1, max_size=9), st.binary(max_size=99), max_size=3
    ).map(lambda found: tuple(sorted(found.items()))),
    opaque=st.booleans(),
)


@given(st.lists(entry, max_size=8), st.integers(0, 10_000))
def test_leaves_come_back(entries: list[Entry], cut: int) -> None:
    """A leaf gives its entries; a part of one never passes for a whole one."""
    data = encode_leaf(entries)
    assert decode_leaf(data, "leaf") == entries
    with pytest.raises(SnapshotDamagedError):
        decode_leaf(data[: cut % len(data)], "leaf")


def test_a_pack_tells_what_is_in_it() -> None:
    """Its footer is the table that its builder gave, and its frames open at their places alone."""
    builder = PackBuilder(KEYS, 4 << 20, 2)
    builder.begin(b"s" * 16)
    blobs = [b"hello " * 1000, seeded(2).randbytes(5000)]
    names = [name_blob(KEYS, blob) for blob in blobs]
    for blob, name in zip(blobs, names, strict=True):
        data = builder.compress(blob)
        assert builder.fits(data)
        builder.add(data, len(blob), [(name, 0, len(blob))])
    pack = builder.finish()
    table = read_footer(KEYS, pack.name, len(pack.data), pack.data[-500:])
    assert encode(table) == encode(pack.table)
    assert table.blob_ids() == names
    opener = cipher(KEYS, b"s" * 16)
    for (_, offset, stored, raw), blob in zip(table.frames.tolist(), blobs, strict=True):
        sealed = pack.data[offset : offset + stored]
        assert open_frame(opener, offset, sealed, raw, "frame") == blob
        with pytest.raises(SnapshotDamagedError):
            open_frame(opener, offset + 1, sealed, raw, "frame")
    with pytest.raises(SnapshotDamagedError):
        read_footer(derive(b"x" * 32), pack.name, len(pack.data), pack.data)


def test_the_cache_gives_back_what_it_took(tmp_path: Path) -> None:
    """In step with a scan that skips, and only whole."""
    cache = StatCache(tmp_path / "cache")
    assert cache.begin() is False
    assert cache.begin() is True
    writer = cache.writer(REPOSITORY, 7)
    segment = KnownSegment(Segment(b"p" * 40), b"l" * 32)
    for name in (b"a", b"a/b", b"a/b/c", b"a.b", b"z"):
        writer.add(Entry(name, Kind.FILE, pieces=name, xattrs=((b"user.x", b"1"),)), b"stat", 2)
        writer.add_segment(segment)
        writer.add_segment(segment)
    writer.finish()
    cache.end()
    assert cache.begin() is False
    reader = cache.reader(REPOSITORY)
    assert reader.epoch == 7
    assert reader.find(b"a/a") is None
    found = reader.find(b"a/b/c")
    assert found is not None
    assert (found.stat, found.pieces, found.xattrs) == (b"stat", b"a/b/c", ((b"user.x", b"1"),))
    assert list(reader.segments()) == [segment, segment]
    assert reader.find(b"a/c") is None
    assert reader.find(b"z") is not None
    assert reader.find(b"zz") is None
    reader.close()
    assert cache.reader("1" * 32).find(b"a") is None
    whole = cache.path.read_bytes()
    for at in range(0, len(whole), 7):
        cache.path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.reader(REPOSITORY).find(b"a") is None
    cache.path.write_bytes(whole[:-40])
    assert cache.reader(REPOSITORY).find(b"a") is None


@pytest.mark.parametrize("opener", [open_beneath, _by_parts])
def test_opening_stays_beneath(tmp_path: Path, opener: object) -> None:
    """With and without openat2: no link anywhere in the path, no way out."""
    (tmp_path / "root/real").mkdir(parents=True)
    (tmp_path / "root/real/file").write_text("x")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "root/link").symlink_to("real")
    (tmp_path / "root/real/out").symlink_to(tmp_path / "secret")
    root = os.open(tmp_path / "root", os.O_RDONLY)
    flags = os.O_RDONLY | os.O_NOFOLLOW
    try:
        os.close(opener(root, b"real/file", flags, 0))  # type: ignore[operator]
        for path in (b"link/file", b"real/out", b"../secret", b"real/../../secret"):
            with pytest.raises(OSError, match=r"\[Errno"):
                opener(root, path, flags, 0)  # type: ignore[operator]
    finally:
        os.close(root)


async def test_a_pace_is_kept() -> None:
    """Bytes wait until they are due; without a rate nothing waits."""

    class Counting(SystemClock):
        slept = 0.0

        def monotonic(self) -> float:
            return self.slept

        async def sleep(self, seconds: float) -> None:
            self.slept += seconds

    clock = Counting()
    pace = Pace(clock, 100.0)
    for _ in range(5):
        await pace.take(100)
    assert clock.slept == pytest.approx(4.0)
    await Pace(clock, None).take(10**9)
    assert clock.slept == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", 0), ("uploads", 0), ("level", 0), ("pack_bytes", 1), ("bytes_per_second", 0)],
)
def test_limits_name_the_field(name: str, value: int) -> None:
    """A limit that allows nothing is a mistake."""
    with pytest.raises(ValueError, match=f"{name}: {value}, must be"):
        Limits(**{name: value})  # type: ignore[arg-type]


def _rows(number: int, blobs: int) -> Table:
    """Return the table of one pack with so many blobs in one frame."""
    noise = SeededRandomness(number)
    places = np.array([[0, at, 1] for at in range(blobs)], np.uint32)
    frames = np.array([[0, 0, 10, blobs]], np.uint32)
    pack = PackName(noise.randbytes(ID_BYTES), noise.randbytes(SALT_BYTES), 100)
    return Table([pack], frames, noise.randbytes(ID_BYTES * blobs), places)


async def test_a_large_index_is_read_apart_from_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decoding and sorting happen in threads; what is written meanwhile is not forgotten."""
    place, ours = region(), threading.current_thread()
    writer = await place.open()
    large, late = _rows(1, 5000), _rows(2, 3)
    await writer.write_index([large])
    repo, loop = await place.open(), asyncio.get_running_loop()
    repo._known.clear()
    where: list[threading.Thread] = []
    replace, read = Index.replace, repository.decode
    written: list[Future[int]] = []

    def replacing(index: Index, tables: Iterable[Table]) -> None:
        where.append(threading.current_thread())
        if tables:
            written.append(asyncio.run_coroutine_threadsafe(repo.write_index([late]), loop))
            time.sleep(0.05)
        replace(index, tables)

    def decoding(data: bytes, what: str) -> Table:
        where.append(threading.current_thread())
        return read(data, what)

    monkeypatch.setattr(Index, "replace", replacing)
    monkeypatch.setattr(repository, "decode", decoding)
    await repo.refresh()
    await asyncio.wrap_future(written[0])
    assert len(where) == 2
    assert ours not in where
    for table in (large, late):
        assert all(repo.index.find(blob) for blob in table.blob_ids())


async def test_the_key_alone_needs_no_index() -> None:
    """Who only hands it to an agent reads nothing that grows with what is stored."""
    place = region()
    key = (await place.open()).data_key
    await (await place.open()).write_index([_rows(1, 10)])

    class NoIndex(MemoryObjects):
        """A store that lists nothing."""

        async def list(self, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
            """Fail the test."""
            raise AssertionError(prefix, start_after)

    bare = NoIndex()
    await bare.put(PREFIX + "repo.json", (await place.objects.get(PREFIX + "repo.json"))[0])
    found = await Repository.key_of(bare, PREFIX, place.keys, place.clock, place.randomness)
    assert found == key
