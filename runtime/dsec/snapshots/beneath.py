"""Opening files below a directory that may belong to a stranger: never through a link, never out.

The kernel resolves the whole path under those rules (openat2, Linux 5.6); older kernels get one
open for each part of the path.
"""

import ctypes
import errno
import os
from functools import cache

OPENAT2 = 437
"""Its number is the same on every architecture that has it."""
NO_MAGIC_LINKS, NO_SYMLINKS, BENEATH = 0x02, 0x04, 0x08


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_beneath(root: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open a path relative to a directory; an empty path is the directory itself.

    Raises OSError: ELOOP for a link anywhere in the path, EXDEV for one that leads out.
    """
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    if not path:
        path = b"."
    call = _openat2()
    if call is None:
        return _by_parts(root, path, flags, mode)
    how = _How(flags, mode, BENEATH | NO_SYMLINKS | NO_MAGIC_LINKS)
    while True:
        handle = int(call(OPENAT2, root, path, ctypes.byref(how), ctypes.sizeof(how)))
        if handle >= 0:
            return handle
        number = ctypes.get_errno()
        # EAGAIN: something was renamed meanwhile, and the kernel could not tell
        if number not in {errno.EINTR, errno.EAGAIN}:
            raise OSError(number, os.strerror(number), os.fsdecode(path))


def open_folder(root: int, path: bytes) -> int:
    """Open a directory below another."""
    return open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)


def split(path: bytes) -> tuple[bytes, bytes]:
    """Return the folder and the name of a path."""
    folder, _, name = path.rpartition(b"/")
    return folder, name


@cache
def _openat2() -> "ctypes._NamedFuncPointer | None":
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    how = _How(os.O_RDONLY | os.O_CLOEXEC, 0, BENEATH)
    here = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        handle = int(call(OPENAT2, here, b".", ctypes.byref(how), ctypes.sizeof(how)))
    finally:
        os.close(here)
    if handle < 0:
        return None
    os.close(handle)
    return call


def _by_parts(root: int, path: bytes, flags: int, mode: int) -> int:
    *folders, name = path.split(b"/")
    at = os.dup(root)
    try:
        for folder in folders:
            step = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            if folder == b"..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(path))
            following = os.open(folder, step, dir_fd=at)
            os.close(at)
            at = following
        return os.open(name, flags, mode, dir_fd=at)
    finally:
        os.close(at)
