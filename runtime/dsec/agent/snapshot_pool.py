"""The experience pool of a restored program: its pieces become one, each record once (SNAP-10).

A program names its pool with its mark: `{"pool": "/workspace/pool"}`, a directory whose `*.jsonl`
files are pieces, each with ascending sequence numbers. After the merge one piece is left, and the
program goes on writing at the number that it is told.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from dsec.agent.capture import open_below
from dsec.snapshots.merging import LINE_BYTES, Merged, RecordError, merge, read_lines, write_lines

PIECE = ".jsonl"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
DRAFT = ".merged"


def merge_pool(root: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """Merge the pool that a mark named, below a root; return what was found, for the journal.

    A pool that cannot be read is left as it is, and the answer says why. Blocks.
    """
    named = meta.get("pool")
    if named is None:
        return {}
    if not isinstance(named, str) or not PurePosixPath(named).is_absolute():
        return {"why": f"pool: {str(named)[:100]!r} is no absolute path"}
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        pool = open_below(top, named)
    except OSError as error:
        return {"why": f"pool: {named}: {error.strerror}"}
    finally:
        os.close(top)
    try:
        return _merge(pool)
    except (OSError, RecordError) as error:
        _remove(pool, DRAFT)
        return {"why": f"pool: {named}: {error}"}
    finally:
        os.close(pool)


def _merge(pool: int) -> dict[str, Any]:
    with os.scandir(pool) as found:
        names = sorted(
            one.name
            for one in found
            if one.name.endswith(PIECE) and one.is_file(follow_symlinks=False)
        )
    if not names:
        return {"records": 0}
    report = Merged()
    with ExitStack() as held:
        pieces = [
            read_lines(_lines(held.enter_context(_open(pool, name, _READ, "rb"))), name)
            for name in names
        ]
        _remove(pool, DRAFT)
        with _open(pool, DRAFT, _WRITE, "wb") as out:
            out.writelines(write_lines(merge(pieces, report)))
            first = os.stat(names[0], dir_fd=pool, follow_symlinks=False)
            os.fchown(out.fileno(), first.st_uid, first.st_gid)
            os.fchmod(out.fileno(), first.st_mode & 0o7777)
    os.rename(DRAFT, names[0], src_dir_fd=pool, dst_dir_fd=pool)
    for name in names[1:]:
        os.unlink(name, dir_fd=pool)
    return {
        "records": report.count,
        "repeated": report.repeated,
        "conflicts": len(report.conflicts),
        "gaps": len(report.gaps),
        "resume": report.resume,
    }


def _open(pool: int, name: str, flags: int, mode: str) -> BinaryIO:
    return os.fdopen(os.open(name, flags, 0o600, dir_fd=pool), mode)  # type: ignore[return-value]


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LINE_BYTES):
        yield line


def _remove(pool: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=pool)
    except FileNotFoundError:
        return
