"""Small files that change between the scan and their reading: what is stored, told, refused."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dsec.snapshots import treesaver
from dsec.snapshots.restoring import restore
from dsec.snapshots.saving import save
from dsec.snapshots.scanning import Found, SaveError, Source, scan
from dsec.world.memory import MemoryObjects
from snapshot_make import open_repository

pytestmark = pytest.mark.parametrize("slow", [True, False], ids=["by workers", "by the scan"])


def make(folder: Path) -> Path:
    """Make two folders of two files each beside a secret."""
    (folder / "secret").mkdir()
    (folder / "secret" / "one").write_bytes(b"not yours")
    tree = folder / "tree"
    for name in ("a", "b"):
        (tree / name).mkdir(parents=True)
        for file in ("one", "two"):
            (tree / name / file).write_bytes(f"{name} {file}".encode())
    return tree


def meddle(monkeypatch: pytest.MonkeyPatch, *, slow: bool, change: Callable[[], None]) -> None:
    """Let something change once all is scanned, before any of it is read."""

    def changing(source: Source, root: int, only: bytes) -> Iterator[Found]:
        yield from scan(source, root, only)
        change()

    monkeypatch.setattr(treesaver, "scan", changing)
    if slow:
        # no file counts as tiny
        monkeypatch.setattr(treesaver, "TINY", -1)


async def test_what_goes_meanwhile_was_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    """A file and a whole folder go: the others are saved as they are, also one that grew."""
    tree = make(tmp_path)

    def change() -> None:
        for name in ("one", "two"):
            (tree / "a" / name).unlink()
        (tree / "a").rmdir()
        (tree / "b" / "one").unlink()
        (tree / "b" / "two").write_bytes(b"b two, and more")

    meddle(monkeypatch, slow=slow, change=change)
    repo = await open_repository(MemoryObjects())
    saved = await save(repo, [Source(tree)])
    assert (saved.files, saved.vanished) == (1, 3)
    await restore(repo, saved.manifest, tmp_path)
    # as far as the scan saw it
    assert (tmp_path / "b" / "two").read_bytes() == b"b two"


async def test_no_link_is_followed_that_comes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    """A folder, or a file, becomes a link to what is not in the tree: the save fails by name."""
    tree = make(tmp_path)

    def folder() -> None:
        os.replace(tree / "a", tmp_path / "gone")  # noqa: PTH105  nothing else runs
        (tree / "a").symlink_to(tmp_path / "secret")

    def file() -> None:
        (tree / "b" / "one").unlink()
        (tree / "b" / "one").symlink_to(tmp_path / "secret" / "one")

    for change, named in ((folder, "a/one"), (file, "b/one")):
        meddle(monkeypatch, slow=slow, change=change)
        with pytest.raises(SaveError, match=named):
            await save(await open_repository(MemoryObjects()), [Source(tree)])
        if change is folder:
            (tree / "a").unlink()
            os.replace(tmp_path / "gone", tree / "a")  # noqa: PTH105  nothing else runs
