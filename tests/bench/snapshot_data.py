"""Data of `bench_snapshot`: random bytes, a Python environment, many small files; and changes."""

import os
import shutil
import sysconfig
from pathlib import Path
from random import Random

MIB = 1 << 20
PAGE = 4096


def random_file(path: Path, size: int) -> None:
    """Write bytes that do not compress and that no other file has."""
    with path.open("wb") as file:
        for at in range(0, size, MIB):
            file.write(os.urandom(min(MIB, size - at)))


def python_tree(folder: Path, limit: int) -> tuple[int, int]:
    """Copy this environment's packages, up to `limit` bytes; return files and bytes."""
    files = size = 0
    packages = Path(sysconfig.get_paths()["purelib"])
    for package in sorted(packages.iterdir()):
        found = [path for path in package.rglob("*") if path.is_file()] or [package]
        own = sum(path.stat().st_size for path in found)
        if size + own > limit:
            continue
        if package.is_dir():
            shutil.copytree(package, folder / package.name, symlinks=True)
        else:
            shutil.copy2(package, folder / package.name)
        files, size = files + len(found), size + own
    return files, size


def small_files(folder: Path, count: int, random: Random) -> None:
    """Make many files of up to 4 KiB in folders of a thousand; half of it compresses."""
    for number in range(count):
        place = folder / f"{number // 1000:03d}"
        place.mkdir(exist_ok=True)
        half = random.randrange(2048)
        content = random.randbytes(half) + b"0123456789abcdef" * (half // 16)
        (place / f"{number}.json").write_bytes(content)


def append_to_some(folder: Path, share: float, random: Random) -> int:
    """Append to a share of the files; return how many."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    chosen = random.sample(paths, max(1, int(len(paths) * share)))
    for path in chosen:
        with path.open("ab") as file:
            file.write(random.randbytes(random.randrange(1, 8192)))
    return len(chosen)


def change_in_place(path: Path, runs: int, length: int, random: Random) -> None:
    """Overwrite runs of a file at random places; runs of a page lie on pages."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for _ in range(runs):
            at = random.randrange(size - length + 1)
            file.seek(at - at % PAGE if length == PAGE else at)
            file.write(random.randbytes(length))
