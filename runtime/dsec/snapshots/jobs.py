"""Steps of a save beside its scan: read and store small files, or a part of a large one."""

import os
import resource
from contextlib import closing

from dsec.snapshots.beneath import open_beneath, open_folder, split
from dsec.snapshots.pieces import PIECE
from dsec.snapshots.scanning import SaveError, attributes
from dsec.snapshots.segments import Segment, save_segment
from dsec.snapshots.storing import Store
from dsec.snapshots.waiting import Small

READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Without waiting: a file may have become a pipe."""

Content = tuple[bytes, tuple[tuple[bytes, bytes], ...]]
"""Bytes of a small file and its extended attributes."""


def blocks_read() -> int:
    """Return how many blocks devices had to give for what this thread did."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


class _Folders:
    """The folder of the file that was read last, open: the next one is mostly beside it."""

    def __init__(self, root: int) -> None:
        self._root = self._handle = root
        self._path = b""

    def open(self, path: bytes) -> int:
        """Return the open folder of these files. Raises OSError, as `open_folder`."""
        if path != self._path:
            self.close()
            self._handle = open_folder(self._root, path) if path else self._root
            self._path = path
        return self._handle

    def close(self) -> None:
        if self._handle != self._root:
            os.close(self._handle)
        self._handle, self._path = self._root, b""


def read_files(
    store: Store, root: int, files: list[tuple[bytes, int]], upper: bool
) -> list[Content | None]:
    """Read small files (path and size); None for those that are gone.

    Raises SaveError, StoppedError.
    """
    found: list[Content | None] = []
    with closing(_Folders(root)) as folders:
        for path, size in files:
            store.check()
            folder, name = split(path)
            try:
                handle = os.open(name, READING, dir_fd=folders.open(folder))
                try:
                    # as far as the scan saw it: its end may be moving
                    data = os.read(handle, size) if size else b""
                    xattrs = attributes(handle, upper=upper, path=path)
                finally:
                    os.close(handle)
            except FileNotFoundError:
                found.append(None)
            except OSError as problem:
                raise SaveError(f"{os.fsdecode(path)}: {problem.strerror}") from problem
            else:
                found.append((data, tuple(xattrs.items()) if xattrs else ()))
    return found


def keep_files(store: Store, contents: list[Content | None]) -> list[Small | None]:
    """Store what was read of small files. Raises StoppedError."""
    found: list[Small | None] = []
    with store.lane() as lane:
        for content in contents:
            if content is None:
                found.append(None)
                continue
            data, xattrs = content
            pieces = PIECE.pack(lane.keep(data), 0, len(data)) if data else b""
            found.append(Small(pieces, len(data), xattrs))
    return found


def read_batch(
    store: Store, root: int, files: list[tuple[bytes, int]], upper: bool
) -> list[Small | None]:
    """Read and store small files. Raises SaveError, StoppedError."""
    return keep_files(store, read_files(store, root, files, upper))


def read_segment(
    store: Store,
    root: int,
    path: bytes,
    place: tuple[int, int],
    old: Segment | None,
    *,
    sparse: bool,
) -> Segment | None:
    """Store a part of a large file; None where it is gone. Raises SaveError, StoppedError."""
    try:
        handle = open_beneath(root, path, READING)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise SaveError(f"{os.fsdecode(path)}: {problem.strerror}") from problem
    try:
        with store.lane() as lane:
            return save_segment(lane, handle, place, old, sparse=sparse)
    except OSError as problem:
        raise SaveError(f"{os.fsdecode(path)}: {problem.strerror}") from problem
    finally:
        os.close(handle)
