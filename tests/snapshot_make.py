"""Trees and repositories for the tests of snapshots."""

import os
import stat
from pathlib import Path
from random import Random

from dsec.snapshots.keys import FileKeys
from dsec.snapshots.repository import Repository
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.objects import ObjectStore

PREFIX = "snapshots/acme/"
KEYS = FileKeys((("test", bytes(range(32))),), system_randomness())

Picture = dict[bytes, tuple[object, ...]]
"""What lies at each path: enough to tell two trees apart."""


async def open_repository(objects: ObjectStore, prefix: str = PREFIX) -> Repository:
    """Open the repository of the tests; made at the first time."""
    return await Repository.open(objects, prefix, KEYS, SystemClock(), system_randomness())


def seeded(seed: int) -> Random:
    """Return a source of the same trees each time."""
    return Random(seed)  # noqa: S311  test data


def picture(root: Path, *, content: bool = True) -> Picture:
    """Return everything below a directory: kinds, modes, owners, times, attributes, content."""
    top = os.fsencode(root)
    names: dict[int, bytes] = {}
    found: Picture = {}
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted((*folders, *files)):
            path = os.path.join(folder, name)  # noqa: PTH118  bytes
            about = os.lstat(path)
            inside = path[len(top) + 1 :]
            attributes = tuple(
                (one, os.getxattr(path, one, follow_symlinks=False))
                for one in sorted(os.listxattr(path, follow_symlinks=False))
            )
            data: object = b""
            if stat.S_ISREG(about.st_mode):
                data = Path(os.fsdecode(path)).read_bytes() if content else about.st_size
                if about.st_nlink > 1:
                    data = (data, names.setdefault(about.st_ino, inside))
            elif stat.S_ISLNK(about.st_mode):
                data = os.readlink(path)  # noqa: PTH115  bytes
            elif stat.S_ISCHR(about.st_mode) or stat.S_ISBLK(about.st_mode):
                data = about.st_rdev
            found[inside] = (
                about.st_mode,
                about.st_uid,
                about.st_gid,
                about.st_mtime_ns,
                attributes,
                data,
            )
    return found


NAMES = (
    b"a",
    b"#first",
    b"a.b",
    b"a-b",
    b"\xff\xfe",
    "ä ö".encode(),
    b"-rf",
    b"~",
    b" ",
    b"x" * 200,
)


def grow(random: Random, root: Path, *, entries: int = 40) -> None:
    """Make a random tree below a directory: every kind that needs no privilege."""
    folders = [os.fsencode(root)]
    files: list[bytes] = []
    for number in range(entries):
        folder = random.choice(folders)
        name = random.choice(NAMES) + (b"%d" % number if random.random() < 0.7 else b"")
        path = folder + b"/" + name
        if os.path.lexists(path):
            continue
        kind = random.choice("ddfffffffslLp")
        if kind == "d":
            os.mkdir(path)  # noqa: PTH102  bytes
            folders.append(path)
            continue
        if kind == "f":
            Path(os.fsdecode(path)).write_bytes(blob(random))
            files.append(path)
        elif kind == "s":
            with open(path, "wb") as file:  # noqa: PTH123  bytes
                file.truncate(random.choice((1, 4096, 300_000, 3 << 20)))
                file.seek(random.choice((0, 200_000)))
                file.write(random.randbytes(random.choice((0, 1, 5000))))
        elif kind == "l":
            os.symlink(random.choice((b"..", b"/etc/passwd", b"nowhere", b"\xff")), path)  # noqa: PTH211  bytes
            continue
        elif kind == "L" and files:
            os.link(random.choice(files), path)
            continue
        else:
            os.mkfifo(path)
        os.chmod(path, random.choice((0o600, 0o644, 0o755, 0o4711, 0o400)))  # noqa: PTH101  bytes
        if kind == "f" and random.random() < 0.3:
            os.setxattr(path, b"user.k\xff", random.randbytes(random.choice((0, 3, 100))))
        when = random.randrange(10**18)
        os.utime(path, ns=(when, when))
    for folder in reversed(folders[1:]):
        os.chmod(folder, random.choice((0o700, 0o755, 0o2775)))  # noqa: PTH101  bytes
        when = random.randrange(10**18)
        os.utime(folder, ns=(when, when))


def blob(random: Random) -> bytes:
    """Return content of some size: mostly small, around the limits, seldom large."""
    size = random.choice((0, 1, 100, 4095, 4096, 10_000, 128 << 10, (128 << 10) + 1, 1_500_000))
    if random.random() < 0.5:
        return random.randbytes(size)
    return (b"all work and no play " * (size // 21 + 1))[:size]


def disturb(random: Random, root: Path, *, files: int = 6) -> None:
    """Change a tree: pages in place, ends, inserts, new files, gone files."""
    paths = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in random.sample(paths, min(len(paths), files)):
        how = random.choice(("page", "append", "insert", "cut", "gone", "same"))
        data = bytearray(path.read_bytes())
        if how == "gone":
            path.unlink()
            continue
        if how == "append":
            data += random.randbytes(random.choice((1, 5000, 200_000)))
        elif how == "insert":
            data[:0] = random.randbytes(777)
        elif how == "cut":
            del data[len(data) // 2 :]
        elif how == "page" and data:
            for _ in range(3):
                at = random.randrange(len(data))
                data[at : at + 100] = random.randbytes(len(data[at : at + 100]))
        mode = path.stat().st_mode
        path.chmod(0o600)
        path.write_bytes(data)
        path.chmod(stat.S_IMODE(mode))
    (root / f"new-{random.random()}").write_bytes(blob(random))
