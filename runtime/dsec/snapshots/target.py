"""What a restore does to a directory: every path is resolved below it, through no link.

The tree may have been written by somebody hostile: nothing outside the directory is ever opened,
made or removed, whatever the names and links in the snapshot and in the directory say.
"""

import os
import stat as modes
from collections.abc import Callable
from contextlib import suppress

from dsec.snapshots.beneath import open_beneath, open_folder, split
from dsec.snapshots.manifest import Entry, Kind

FOLDER_MODE = 0o755
"""Of folders that the snapshot does not have, only what is in them."""


class RestoreError(Exception):
    """The target does not take the snapshot; the message names the path and why."""


class Target:
    """One directory. Methods may be called by several threads, but `lay` by one."""

    def __init__(self, root: int) -> None:
        """Take an open directory; the caller closes it."""
        self.root = root
        self._owner = os.geteuid() == 0
        self._folder: tuple[bytes, int] | None = None

    def close(self) -> None:
        """Let go of the folder that was used last."""
        if self._folder is not None:
            os.close(self._folder[1])
            self._folder = None

    def lay(self, entry: Entry) -> None:
        """Make everything of an entry that is no file's content. Raises RestoreError."""
        try:
            folder, name = split(entry.path)
            self._lay(entry, self._enter(folder), name)
        except OSError as problem:
            raise _error(entry.path, problem) from problem

    def create(self, entry: Entry) -> int:
        """Make an empty file in the place of what is there, and open it. Raises RestoreError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            try:
                return open_beneath(self.root, entry.path, flags, 0o600)
            except FileExistsError:
                self.remove(entry.path)
            except FileNotFoundError:
                self._make_folders(split(entry.path)[0])
            return open_beneath(self.root, entry.path, flags, 0o600)
        except OSError as problem:
            raise _error(entry.path, problem) from problem

    def write(self, path: bytes, parts: list[tuple[int, memoryview]]) -> None:
        """Write into a file that this restore has made. Raises RestoreError."""
        try:
            handle = open_beneath(self.root, path, os.O_WRONLY)
            try:
                for offset, data in parts:
                    write_all(handle, data, offset)
            finally:
                os.close(handle)
        except OSError as problem:
            raise _error(path, problem) from problem

    def link(self, entry: Entry) -> None:
        """Make one more name of a file of this snapshot. Raises RestoreError."""
        try:
            first_folder, first = split(entry.link)
            folder, name = split(entry.path)
            source, place = open_folder(self.root, first_folder), -1
            try:
                place = open_folder(self.root, folder)

                def make() -> None:
                    os.link(first, name, src_dir_fd=source, dst_dir_fd=place, follow_symlinks=False)

                _instead(make, place, name)
            finally:
                os.close(source)
                if place >= 0:
                    os.close(place)
        except OSError as problem:
            raise _error(entry.path, problem) from problem

    def finish_file(self, handle: int, entry: Entry) -> None:
        """Give an open file its owner, mode, attributes and times. Raises RestoreError."""
        try:
            self._dress(handle, entry)
        except OSError as problem:
            raise _error(entry.path, problem) from problem

    def finish(self, entry: Entry) -> None:
        """The same for a file or a folder by its path. Raises RestoreError."""
        try:
            flags = os.O_RDONLY | (os.O_DIRECTORY if entry.kind is Kind.FOLDER else 0)
            handle = open_beneath(self.root, entry.path, flags)
            try:
                self._dress(handle, entry)
            finally:
                os.close(handle)
        except OSError as problem:
            raise _error(entry.path, problem) from problem

    def remove(self, path: bytes) -> None:
        """Remove whatever lies at a path. Raises OSError."""
        folder, name = split(path)
        try:
            place = open_folder(self.root, folder)
        except FileNotFoundError:
            return
        try:
            remove_at(place, name)
        finally:
            os.close(place)

    def _enter(self, folder: bytes) -> int:
        """Return the open folder; entries come in tree order, so the last one mostly serves."""
        if self._folder is not None and self._folder[0] == folder:
            return self._folder[1]
        self.close()
        try:
            handle = open_folder(self.root, folder)
        except FileNotFoundError:
            self._make_folders(folder)
            handle = open_folder(self.root, folder)
        self._folder = (folder, handle)
        return handle

    def _make_folders(self, folder: bytes) -> None:
        """Make folders that the snapshot itself does not have."""
        at = os.dup(self.root)
        try:
            for name in folder.split(b"/"):
                with suppress(FileExistsError):
                    os.mkdir(name, FOLDER_MODE, dir_fd=at)
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                following = os.open(name, flags, dir_fd=at)
                os.close(at)
                at = following
        finally:
            os.close(at)

    def _lay(self, entry: Entry, place: int, name: bytes) -> None:
        kind = entry.kind
        if kind is Kind.FOLDER:
            self._lay_folder(entry, place, name)
            return
        if kind is Kind.WHITEOUT:
            remove_at(place, name)
            return
        if kind is Kind.SYMLINK:
            _instead(lambda: os.symlink(entry.link, name, dir_fd=place), place, name)
        else:
            types = {
                Kind.FIFO: modes.S_IFIFO,
                Kind.CHARACTERS: modes.S_IFCHR,
                Kind.BLOCKS: modes.S_IFBLK,
            }
            mode = types[kind] | 0o600
            _instead(lambda: os.mknod(name, mode, entry.device, dir_fd=place), place, name)
        if self._owner:
            os.chown(name, entry.uid, entry.gid, dir_fd=place, follow_symlinks=False)
        if kind is not Kind.SYMLINK:
            # it was made here just now, so it is no link
            os.chmod(name, entry.mode, dir_fd=place)
        where = b"/proc/self/fd/%d/%s" % (place, name)
        for key, value in entry.xattrs:
            os.setxattr(where, key, value, follow_symlinks=False)
        os.utime(name, ns=(entry.mtime, entry.mtime), dir_fd=place, follow_symlinks=False)

    def _lay_folder(self, entry: Entry, place: int, name: bytes) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=place)
        except FileExistsError:
            found = os.stat(name, dir_fd=place, follow_symlinks=False)
            if not modes.S_ISDIR(found.st_mode) or entry.opaque:
                remove_at(place, name)
                os.mkdir(name, 0o700, dir_fd=place)

    def _dress(self, handle: int, entry: Entry) -> None:
        if self._owner:
            os.fchown(handle, entry.uid, entry.gid)
        # between the two: a new owner takes capabilities away, a mode the right to write
        for key, value in entry.xattrs:
            os.setxattr(handle, key, value)
        os.fchmod(handle, entry.mode)
        os.utime(handle, ns=(entry.mtime, entry.mtime))


def write_all(handle: int, data: memoryview, offset: int) -> None:
    """Write all of the data at a place of a file. Raises OSError."""
    while data:
        count = os.pwrite(handle, data, offset)
        data, offset = data[count:], offset + count


def remove_at(place: int, name: bytes) -> None:
    """Remove a name of an open folder, with all that is below; links are not followed.

    Raises OSError; what is absent is none.
    """
    try:
        os.unlink(name, dir_fd=place)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        _remove_tree(place, name)


def _remove_tree(place: int, name: bytes) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    # a stack of our own: trees are deeper than Python's
    stack: list[tuple[int, bytes, int, list[bytes]]] = []

    def enter(above: int, called: bytes) -> None:
        handle, inner = os.open(called, flags, dir_fd=above), list[bytes]()
        stack.append((above, called, handle, inner))
        for one in os.listdir(handle):  # noqa: PTH208  of a handle
            try:
                os.unlink(one, dir_fd=handle)
            except (IsADirectoryError, PermissionError):
                inner.append(os.fsencode(one))

    try:
        enter(place, name)
        while stack:
            above, called, handle, inner = stack[-1]
            if inner:
                enter(handle, inner.pop())
                continue
            stack.pop()
            os.close(handle)
            os.rmdir(called, dir_fd=above)
    finally:
        for _, _, handle, _ in stack:
            os.close(handle)


def _instead(make: Callable[[], None], place: int, name: bytes) -> None:
    """Make something at a name, in the place of what is there."""
    try:
        make()
    except FileExistsError:
        remove_at(place, name)
        make()


def _error(path: bytes, problem: OSError) -> RestoreError:
    return RestoreError(f"{os.fsdecode(path)}: {problem.strerror}")
