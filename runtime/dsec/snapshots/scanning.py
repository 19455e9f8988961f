"""What lies below a directory, in tree order, without following a link and without trusting names.

Reads metadata only. An overlay's upper directory says more than a plain tree: whiteouts are
character devices 0:0, an opaque folder carries an attribute; the overlay's own attributes stay out.
"""

import errno
import os
import stat as modes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsec.snapshots.beneath import open_folder
from dsec.snapshots.manifest import FILE, Entry, Kind

OVERLAY = (b"trusted.overlay.", b"user.overlay.")
OPAQUE = frozenset({b"trusted.overlay.opaque", b"user.overlay.opaque"})
DATA_ELSEWHERE = frozenset({b"redirect", b"metacopy"})
TYPE = 0o170000
"""Bits of a mode that tell the kind."""
UNSUPPORTED = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP})
LABEL = b"security.selinux"
"""Belongs to the node, not to the file."""
KINDS = {
    modes.S_IFDIR: Kind.FOLDER,
    modes.S_IFREG: Kind.FILE,
    modes.S_IFLNK: Kind.SYMLINK,
    modes.S_IFIFO: Kind.FIFO,
    modes.S_IFCHR: Kind.CHARACTERS,
    modes.S_IFBLK: Kind.BLOCKS,
}
"""Sockets are not in it: one without its process is nothing."""


class SaveError(Exception):
    """A source cannot be saved as it is; the message names the path and why."""


@dataclass(frozen=True, slots=True)
class Source:
    """A directory (or one file), and where it lies in the snapshot.

    `at` is the path below the root of the snapshot, empty for the root itself. `whole_upper`: it is
    the upper directory of an overlay that nobody writes to now.
    """

    root: Path
    at: str = ""
    whole_upper: bool = False


@dataclass(slots=True)
class Found:
    """One path. `inside` is the path below the source."""

    entry: Entry
    stat: os.stat_result
    inside: bytes


def open_source(source: Source) -> tuple[int, bytes]:
    """Open a source: the directory, or that of the one file and the file's name.

    Raises SaveError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        if modes.S_ISDIR(source.root.lstat().st_mode):
            return os.open(source.root, flags | os.O_NOFOLLOW), b""
        return os.open(source.root.parent, flags), os.fsencode(source.root.name)
    except OSError as problem:
        raise SaveError(f"{source.root}: {problem.strerror}") from problem


def scan(source: Source, root: int, only: bytes) -> Iterator[Found]:
    """Yield what is below a source that `open_source` opened. Raises SaveError.

    A source with a place of its own (`at`) comes first itself.
    """
    at = os.fsencode(source.at).strip(b"/")
    if only:
        found = _look(source, root, only, only, at or only)
        if found is not None:
            yield found
        return
    if at:
        xattrs = attributes(root, upper=source.whole_upper, path=at)
        yield _found(at, b"", os.fstat(root), xattrs, upper=source.whole_upper)
    # a stack of our own: trees are deeper than Python's
    stack = [_listed(source, root, b"")]
    try:
        while stack:
            handle, folder, names = stack[-1]
            if not names:
                os.close(handle)
                stack.pop()
                continue
            name = names.pop()
            below = folder + b"/" + name if folder else name
            path = at + b"/" + below if at else below
            found = _look(source, handle, below, name, path)
            if found is None:
                continue
            if found.entry.kind is Kind.FOLDER:
                try:
                    stack.append(_listed(source, root, below))
                except FileNotFoundError:
                    continue
                opened = stack[-1][0]
                xattrs = attributes(opened, upper=source.whole_upper, path=found.entry.path)
                stat = found.stat
                found = _found(found.entry.path, below, stat, xattrs, upper=source.whole_upper)
            yield found
    finally:
        for handle, _, _ in stack:
            os.close(handle)


def _look(source: Source, handle: int, inside: bytes, name: bytes, path: bytes) -> Found | None:
    """Return one name of an open folder; None where it has gone, or is a socket."""
    xattrs: dict[bytes, bytes] = {}
    link = b""
    try:
        stat = os.stat(name, dir_fd=handle, follow_symlinks=False)
        mode = stat.st_mode
        if mode & TYPE == modes.S_IFREG:
            # what almost everything is, in few steps; attributes are read with the content
            owner = (stat.st_uid, stat.st_gid)
            entry = Entry(path, FILE, mode & 0o7777, *owner, stat.st_mtime_ns, stat.st_size)
            return Found(entry, stat, inside)
        kind = KINDS.get(mode & TYPE)
        if kind is None:
            return None
        if kind is Kind.SYMLINK:
            link = os.readlink(name, dir_fd=handle)
        if kind is not Kind.FOLDER:
            where = b"/proc/self/fd/%d/%s" % (handle, name)
            xattrs = attributes(where, upper=source.whole_upper, path=path)
    except FileNotFoundError:
        # gone since the folder was read: as if it had gone before
        return None
    except OSError as problem:
        raise SaveError(f"{os.fsdecode(path)}: {problem.strerror}") from problem
    found = _found(path, inside, stat, xattrs, upper=source.whole_upper)
    found.entry.link = link
    return found


def _listed(source: Source, root: int, folder: bytes) -> tuple[int, bytes, list[bytes]]:
    """Open a folder and return it with its names, the last one first. Raises FileNotFoundError."""
    try:
        handle = open_folder(root, folder)
    except FileNotFoundError:
        raise
    except OSError as problem:
        where = Path(source.root, os.fsdecode(folder))
        raise SaveError(f"{where}: {problem.strerror}") from problem
    # by this path names come as bytes
    names = os.listdir(b"/proc/self/fd/%d" % handle)  # noqa: PTH208  same
    return handle, folder, sorted(names, reverse=True)


def _found(
    path: bytes, inside: bytes, stat: os.stat_result, xattrs: dict[bytes, bytes], *, upper: bool
) -> Found:
    mode = stat.st_mode
    kind = KINDS[mode & TYPE]
    entry = Entry(path, kind, mode & 0o7777, stat.st_uid, stat.st_gid, stat.st_mtime_ns)
    if xattrs:
        entry.xattrs = tuple(one for one in xattrs.items() if one[0] not in OPAQUE)
        entry.opaque = len(entry.xattrs) < len(xattrs)
    if kind in {Kind.CHARACTERS, Kind.BLOCKS}:
        entry.device = stat.st_rdev
        if upper and kind is Kind.CHARACTERS and stat.st_rdev == 0:
            entry = Entry(path, Kind.WHITEOUT)
    return Found(entry, stat, inside)


def attributes(where: int | bytes, *, upper: bool, path: bytes) -> dict[bytes, bytes]:
    """Return the extended attributes of a file that is open, or of a path whose folder is.

    Of an overlay's own only the opaque mark. Raises SaveError, OSError.
    """
    follow = isinstance(where, int)
    try:
        names = os.listxattr(where, follow_symlinks=follow)
    except OSError as problem:
        if problem.errno in UNSUPPORTED:
            return {}
        raise
    found = {}
    for text in names:
        name = os.fsencode(text)
        if name == LABEL:
            continue
        own = upper and name.startswith(OVERLAY)
        if own and name.rpartition(b".")[2] in DATA_ELSEWHERE:
            raise SaveError(
                f"{os.fsdecode(path)}: the overlay keeps its data elsewhere ({text}); mount it "
                f"with redirect_dir=off and metacopy=off"
            )
        value = os.getxattr(where, name, follow_symlinks=follow)
        if not own or (name in OPAQUE and value == b"y"):
            found[name] = value
    return found
