"""What worker threads of a save do: read a batch of small files, or a part of a large one."""

import os

from dsec.snapshots.beneath import open_beneath
from dsec.snapshots.pieces import PIECE
from dsec.snapshots.scanning import SaveError, attributes
from dsec.snapshots.segments import Segment, save_segment
from dsec.snapshots.storing import Lane, Store
from dsec.snapshots.waiting import Small


def read_batch(
    store: Store, root: int, files: list[tuple[bytes, int]], upper: bool
) -> list[Small | None]:
    """Store small files (path and size); None for those that are gone.

    Raises SaveError, StoppedError.
    """
    found: list[Small | None] = []
    with store.lane() as lane:
        for path, size in files:
            try:
                found.append(_read(lane, root, path, size, upper=upper))
            except FileNotFoundError:
                found.append(None)
            except OSError as problem:
                raise SaveError(f"{os.fsdecode(path)}: {problem.strerror}") from problem
    return found


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
        # without waiting: it may have become a pipe
        handle = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK)
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


def _read(lane: Lane, root: int, path: bytes, size: int, *, upper: bool) -> Small:
    lane.store.check()
    handle = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # as far as the scan saw it: its end may be moving
        data = os.read(handle, size) if size else b""
        xattrs = attributes(handle, upper=upper, path=path)
    finally:
        os.close(handle)
    pieces = PIECE.pack(lane.keep(data), 0, len(data)) if data else b""
    return Small(pieces, len(data), tuple(xattrs.items()))
