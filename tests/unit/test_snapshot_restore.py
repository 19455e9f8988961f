"""Restores do what layers say, and never more than the target: hostile names and links."""

import asyncio
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from dsec.agent.snapshot_restore import _candidates
from dsec.agent.snapshot_shelf import Shelf
from dsec.api.snapshot import RestoreFrom, SnapshotRef
from dsec.api.snapshot_store import Access
from dsec.snapshots.limits import Limits
from dsec.snapshots.manifest import Entry, Kind, ManifestWriter
from dsec.snapshots.pieces import PIECE
from dsec.snapshots.refs import publish
from dsec.snapshots.repository import Repository
from dsec.snapshots.restoring import restore
from dsec.snapshots.saving import save
from dsec.snapshots.scanning import SaveError, Source
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.snapshots.storing import Lane, Store
from dsec.snapshots.target import RestoreError, Target, remove_at
from dsec.world.memory import MemoryObjects
from snapshot_make import PREFIX, open_repository, picture

OWNER = (os.geteuid(), os.getegid())


async def written(repo: Repository, entries: list[Entry]) -> str:
    """Store a manifest as it is given; files get the content "evil"."""
    store = Store(repo, Limits())
    lane = Lane(store, 4 << 20)

    def write() -> bytes:
        writer = ManifestWriter(lane.keep, 1)
        blob = lane.keep(b"evil")
        for entry in entries:
            entry.uid, entry.gid = OWNER
            if entry.kind is Kind.FILE:
                entry.pieces, entry.size = PIECE.pack(blob, 0, 4), 4
            writer.add(entry)
        root = writer.finish()
        lane.flush()
        return root

    root = await asyncio.to_thread(write)
    await store.drain()
    return root.hex()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder beside the target that must stay as it is."""
    (tmp_path / "target").mkdir()
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/kept").write_text("kept")
    return folder


@pytest.mark.parametrize(
    "path", [b"../outside/x", b"a/../../outside/x", b"/x", b"a//x", b"", b"x\0y", b".", b"a/./b"]
)
@pytest.mark.parametrize("kind", [Kind.FILE, Kind.FOLDER, Kind.WHITEOUT])
async def test_paths_that_lead_elsewhere(
    tmp_path: Path, outside: Path, path: bytes, kind: Kind
) -> None:
    """Such a manifest is damaged, whatever wrote it."""
    repo = await open_repository(MemoryObjects())
    manifest = await written(repo, [Entry(path, kind, 0o755)])
    before = picture(outside)
    with pytest.raises(SnapshotDamagedError):
        await restore(repo, manifest, tmp_path / "target")
    assert picture(outside) == before


@pytest.mark.parametrize(
    "entry",
    [
        Entry(b"a/x", Kind.FILE, 0o644),
        Entry(b"a/deep/kept", Kind.WHITEOUT),
        Entry(b"a/deep", Kind.WHITEOUT),
        Entry(b"a/s", Kind.SYMLINK, link=b"x"),
        Entry(b"a/f", Kind.FIFO, 0o600),
        Entry(b"a/sub", Kind.FOLDER, 0o755),
        Entry(b"a/h", Kind.HARDLINK, link=b"file"),
        Entry(b"h", Kind.HARDLINK, link=b"a/deep/kept"),
    ],
    ids=lambda entry: f"{entry.kind.name}-{entry.path.decode()}",
)
async def test_nothing_goes_through_a_link(tmp_path: Path, outside: Path, entry: Entry) -> None:
    """A link in the snapshot itself is no way out."""
    repo = await open_repository(MemoryObjects())
    link = Entry(b"a", Kind.SYMLINK, link=os.fsencode(outside))
    some = sorted(
        [link, entry, Entry(b"file", Kind.FILE, 0o644)], key=lambda e: e.path.replace(b"/", b"\0")
    )
    manifest = await written(repo, some)
    before = picture(outside)
    with pytest.raises(RestoreError):
        await restore(repo, manifest, tmp_path / "target")
    assert picture(outside) == before


async def test_links_that_are_there_already_make_room(tmp_path: Path, outside: Path) -> None:
    """What the snapshot has at the place of a link replaces the link, not what it leads to."""
    target = tmp_path / "target"
    for name in ("folder", "file", "fifo", "gone"):
        (target / name).symlink_to(outside)
    repo = await open_repository(MemoryObjects())
    entries = [
        Entry(b"fifo", Kind.FIFO, 0o600),
        Entry(b"file", Kind.FILE, 0o644),
        Entry(b"folder", Kind.FOLDER, 0o755),
        Entry(b"folder/x", Kind.FILE, 0o644),
        Entry(b"gone", Kind.WHITEOUT),
    ]
    manifest = await written(repo, entries)
    before = picture(outside)
    await restore(repo, manifest, target)
    assert picture(outside) == before
    assert (target / "folder/x").read_text() == (target / "file").read_text() == "evil"
    assert not (target / "folder").is_symlink()
    assert stat.S_ISFIFO((target / "fifo").lstat().st_mode)
    assert b"gone" not in picture(target)


async def test_a_layer_is_applied(tmp_path: Path) -> None:
    """An overlay's upper directory over a copy of its lower one: gone, hidden, new, changed."""
    upper, merged = tmp_path / "upper", tmp_path / "merged"
    (upper / "hidden").mkdir(parents=True)
    (upper / "hidden/new").write_text("new")
    (upper / "changed").write_text("changed")
    try:
        os.mknod(upper / "removed", stat.S_IFCHR, 0)
        os.mknod(upper / "removed-folder", stat.S_IFCHR, 0)
        os.setxattr(upper / "hidden", "user.overlay.opaque", b"y")
        os.setxattr(upper / "hidden", "user.overlay.origin", b"secret")
        os.setxattr(upper / "hidden", "user.kept", b"kept")
    except OSError as problem:
        pytest.skip(f"no whiteouts or attributes here: {problem}")
    for name in ("removed", "changed", "hidden/old", "removed-folder/a/b", "untouched"):
        (merged / name).parent.mkdir(parents=True, exist_ok=True)
        (merged / name).write_text("old")
    repo = await open_repository(MemoryObjects())
    saved = await save(repo, [Source(upper, whole_upper=True)])
    await restore(repo, saved.manifest, merged)
    found = {path.relative_to(merged).as_posix() for path in merged.rglob("*")}
    assert found == {"changed", "hidden", "hidden/new", "untouched"}
    assert (merged / "changed").read_text() == "changed"
    assert os.listxattr(merged / "hidden") == ["user.kept"]


async def test_a_layer_with_data_elsewhere_is_refused(tmp_path: Path) -> None:
    """A redirect would restore as an empty folder: better no snapshot."""
    (tmp_path / "upper/moved").mkdir(parents=True)
    try:
        os.setxattr(tmp_path / "upper/moved", "user.overlay.redirect", b"old")
    except OSError as problem:
        pytest.skip(f"no attributes here: {problem}")
    repo = await open_repository(MemoryObjects())
    with pytest.raises(SaveError, match="moved: the overlay keeps its data elsewhere"):
        await save(repo, [Source(tmp_path / "upper", whole_upper=True)])


async def test_a_source_or_target_that_is_not_there(tmp_path: Path) -> None:
    """Both are told in words."""
    repo = await open_repository(MemoryObjects())
    with pytest.raises(SaveError, match="absent: No such file"):
        await save(repo, [Source(tmp_path / "absent")])
    (tmp_path / "source").mkdir()
    saved = await save(repo, [Source(tmp_path / "source")])
    with pytest.raises(RestoreError, match="absent: No such file"):
        await restore(repo, saved.manifest, tmp_path / "absent")
    with pytest.raises(SnapshotDamagedError, match="is no name of a manifest"):
        await restore(repo, "latest", tmp_path / "source")


def test_much_is_removed_without_following_links(tmp_path: Path, outside: Path) -> None:
    """Deeper than Python's stack is for, and wide; a link in it goes, not what it leads to."""
    before = picture(outside)
    top = tmp_path / "target"
    place = os.open(top, os.O_RDONLY)
    try:
        for number in range(50):
            (top / f"tree/{number}/a/b").mkdir(parents=True)
            (top / f"tree/{number}/a/link").symlink_to(outside)
        at = os.dup(place)
        for _ in range(500):
            os.mkdir("deep", dir_fd=at)
            inner = os.open("deep", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
        os.close(at)
        for name in (b"tree", b"deep", b"absent"):
            remove_at(place, name)
    finally:
        os.close(place)
    assert list(top.iterdir()) == []
    assert picture(outside) == before


async def test_another_project_has_nothing_to_restore_from() -> None:
    """One tenant's repository holds several projects; who creates may name any lineage."""
    store, lineage = MemoryObjects(), "exp/u1/worker/0"
    values = {"tenant": "acme", "lineage": lineage, "kind": "state", "sandbox": "sb", "bytes": 1}
    more = {"incarnation": 1, "created": "2026-01-01T00:00:00Z", "files": 1, "stored_bytes": 1}
    ref = SnapshotRef.model_validate(
        values | more | {"seq": 1, "project": "lab", "manifest": "0" * 64}
    )
    await publish(store, PREFIX, ref)
    access = Access(tenant="acme", lineage="sb/x", prefix=PREFIX, key="", region="r", home_epoch=0)
    shelf = cast("Shelf", SimpleNamespace(store=store, access=access))
    wanted = RestoreFrom(lineage=lineage)
    assert await _candidates(shelf, wanted, "lab") == [ref]
    assert await _candidates(shelf, wanted, "other") == []


async def test_a_restore_that_is_cancelled_leaves_no_thread_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would go on by the number of a directory that is another's by then."""
    repo = await open_repository(MemoryObjects())
    entries = [Entry(b"a", Kind.FOLDER, 0o755), Entry(b"b", Kind.FOLDER, 0o755)]
    manifest = await written(repo, entries)
    (tmp_path / "target").mkdir()
    began, go_on = threading.Event(), threading.Event()
    lay = Target.lay

    def slow(target: Target, entry: Entry) -> None:
        began.set()
        assert go_on.wait(60)
        lay(target, entry)

    monkeypatch.setattr(Target, "lay", slow)
    restoring = asyncio.ensure_future(restore(repo, manifest, tmp_path / "target"))
    assert await asyncio.to_thread(began.wait, 60)
    for _ in range(2):
        restoring.cancel()
        await asyncio.sleep(0.05)
        assert not restoring.done(), "the thread still works in its directory"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    assert sorted(one.name for one in (tmp_path / "target").iterdir()) == ["a", "b"]
