"""Files of a container sandbox as a snapshot reads and writes them: its layer, its root, its rest.

Both roots are descriptors that init holds: no path leads to them, and no mount of the container
covers them. Names are opened one by one and never through a link, as in the archive.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path, PurePosixPath
from typing import cast

import structlog

from dsec.agent.ocispec import PLATFORM
from dsec.agent.records import ROOTS, Record
from dsec.api.reasons import EndReason
from dsec.api.snapshot import SnapshotKind
from dsec.snapshots.target import remove_at
from dsec.world.substrate import SubstrateError, Tree

FREEZE_SECONDS = 30.0
"""Until the file system stands still: what is dirty is written first."""
_THAW = 0xC0045878
"""FITHAW of linux/fs.h."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_log = structlog.get_logger(__name__)


def reach(fd: int, name: str = "") -> Path:
    """Return a path to what lies in an open directory, or to a whole root, for any thread.

    It ends in no link: who opens it may refuse to follow one. A root has the platform's own folder,
    which nobody inside can take away.
    """
    return Path(f"/proc/self/fd/{fd}", *([name] if name else [PLATFORM.lstrip("/"), ".."]))


@contextmanager
def roots(record: Record) -> Iterator[tuple[int, int]]:
    """Open the writable space and the whole root of a sandbox. Raises SubstrateError."""
    pid, number = record.init_pid(), record.get(ROOTS).get("disk")
    if pid is None or not isinstance(number, int):
        why = "its init is gone" if pid is None else "it was started by an agent without snapshots"
        raise SubstrateError(EndReason.INFRASTRUCTURE, f"{record.home.name}: {why}")
    with contextlib.ExitStack() as held:
        found = []
        for one in (number, number + 1):
            try:
                fd = os.open(f"/proc/{pid}/fd/{one}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                why = f"{record.home.name}: its files cannot be reached: {error.strerror}"
                raise SubstrateError(EndReason.INFRASTRUCTURE, why) from error
            held.callback(os.close, fd)
            found.append(fd)
        yield found[0], found[1]


def write_back(fd: int) -> None:
    """Write what is dirty in the file system of an open file; blocks. Raises OSError.

    A page that is written through mapped memory afterwards gives its file a new time.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def open_below(root: int, path: str) -> int:
    """Open a directory below a root, through directories only. Raises OSError."""
    fd = os.dup(root)
    try:
        for part in PurePosixPath(path).parts[1:]:
            child = os.open(part, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = child
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def trees(
    roots_of: tuple[int, int], kind: SnapshotKind, paths: Sequence[str]
) -> Iterator[tuple[Tree, ...]]:
    """Open what a snapshot of a kind copies; what does not exist, or is a link, is left out."""
    disk, root = roots_of
    if kind is SnapshotKind.DISK:
        yield (Tree(reach(disk, "upper"), "/", upper=True),)
        return
    with contextlib.ExitStack() as held:
        found = []
        for path in dict.fromkeys(paths):
            pure = PurePosixPath(path)
            try:
                fd = open_below(root, str(pure.parent))
                held.callback(os.close, fd)
                link = pure.name and stat.S_ISLNK(os.lstat(pure.name, dir_fd=fd).st_mode)
                why = "is a link" if link else ""
            except OSError as error:
                why = str(error.strerror)
            if why:
                _log.info("left out of a snapshot", path=path, why=why)
                continue
            found.append(Tree(reach(fd, pure.name), path))
        yield tuple(found)


@asynccontextmanager
async def held_still(init: Path, fd: int) -> AsyncIterator[bool]:
    """Freeze the file system of an open directory; False where it cannot be: memory.

    Another process freezes it and thaws it when this one lets go, or is killed. Raises
    SubstrateError.
    """
    theirs, ours = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            init, "hold", f"/proc/self/fd/{fd}",
            stdin=theirs, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            pass_fds=(fd,),
        )  # fmt: skip
    except OSError as error:
        os.close(ours)
        raise SubstrateError(EndReason.INFRASTRUCTURE, f"{init}: {error.strerror}") from error
    finally:
        os.close(theirs)
    try:
        said = cast("asyncio.StreamReader", process.stdout)
        try:
            word = (await asyncio.wait_for(said.readline(), FREEZE_SECONDS)).decode().strip()
        except TimeoutError:
            word = "no answer in time"
        if word not in {"frozen", "unsupported"}:
            message = f"its file system does not stand still: {word}"
            raise SubstrateError(EndReason.INFRASTRUCTURE, message)
        yield word == "frozen"
    finally:
        os.close(ours)
        await asyncio.shield(process.wait())


def thaw(record: Record) -> None:
    """Let the file system of a sandbox go on, should anybody have left it frozen. Idempotent."""
    # what is not frozen, or cannot be, says so
    with contextlib.suppress(SubstrateError, OSError), roots(record) as (disk, _):
        fcntl.ioctl(disk, _THAW, 0)


def write_files(root: int, files: Sequence[dict[str, object]]) -> None:
    """Write files below a root, whatever lies in their way. Raises OSError.

    What was restored is a program's: a link, or a file where a directory belongs, is removed.
    """
    for file in files:
        pure = PurePosixPath(str(file["path"]))
        fd = os.dup(root)
        try:
            for part in pure.parts[1:-1]:
                fd = _enter(fd, part)
            remove_at(fd, os.fsencode(pure.name))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            out = os.open(pure.name, flags, 0o600, dir_fd=fd)
            with os.fdopen(out, "wb") as stream:
                stream.write(str(file["content"]).encode())
                os.fchmod(stream.fileno(), int(str(file["mode"])))
        finally:
            os.close(fd)


def _enter(fd: int, name: str) -> int:
    """Open a directory in another, made where it is none; closes the outer one."""
    try:
        try:
            inner = os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError:
            remove_at(fd, os.fsencode(name))
            os.mkdir(name, 0o755, dir_fd=fd)
            inner = os.open(name, _DIRECTORY, dir_fd=fd)
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return inner
