"""The scene of a sandbox: logs, environment, collected directories, temporary files.

Files are reached through directory descriptors, one name at a time and never through a link, so
nothing that the guest prepares can lead out of its own file system. What cannot be stored under
its name, lies too deep, or is too much is left out and said so: a scene never fails as a whole.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

FILE_MOST = 64 << 20
COLLECT_MOST = 512 << 20
TEMP_MOST = 8 << 20
FILES_MOST = 10_000
DEPTH_MOST = 64
"""Directories below each other; each one holds a descriptor while it is read."""
NAME_MOST = 512
"""Bytes of a name; the gateway takes no longer ones."""
SKIPS_TOLD = 1_000
"""Files named one by one as left out; the rest is only counted."""
_NO_LINKS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(slots=True)
class Scene:
    """Walks one root. `skipped` says what was left out and why; `taken` what was read."""

    root: int
    taken: list[dict[str, object]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    untold: int = 0

    def collect(self, path: str, prefix: str, budget: int) -> Iterator[tuple[str, bytes]]:
        """Yield (name, content) of the regular files below a directory, at most `budget` bytes."""
        try:
            fd = self._open_directory(path)
        except OSError as error:
            self._skip(path, error.strerror or str(error))
            return
        try:
            yield from self._walk(fd, path, prefix, [budget], DEPTH_MOST)
        finally:
            os.close(fd)

    def manifest(self) -> bytes:
        """Return the list of what was read, with hashes, and of what was not."""
        told = {"files": self.taken, "skipped": self.skipped, "skippedMore": self.untold}
        return json.dumps(told, indent=1).encode()

    def _skip(self, path: str, why: str) -> None:
        if len(self.skipped) < SKIPS_TOLD:
            # the guest's bytes need not be text: shown as escapes where they are none
            shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
            self.skipped.append({"path": shown[-NAME_MOST:], "why": why})
        else:
            self.untold += 1

    def _open_directory(self, path: str) -> int:
        fd = os.dup(self.root)
        try:
            for part in PurePosixPath(path).parts[1:]:
                child = os.open(part, _NO_LINKS | os.O_DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = child
        except OSError:
            os.close(fd)
            raise
        return fd

    def _walk(
        self, fd: int, path: str, prefix: str, left: list[int], depth: int
    ) -> Iterator[tuple[str, bytes]]:
        if not depth:
            self._skip(path, f"lies more than {DEPTH_MOST} directories deep")
            return
        with os.scandir(fd) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            here, name = f"{path}/{entry.name}", f"{prefix}/{entry.name}"
            if not name.isprintable() or len(name.encode()) > NAME_MOST:
                self._skip(here, "has a name that cannot be stored")
                continue
            try:
                child = os.open(entry.name, _NO_LINKS, dir_fd=fd)
            except OSError as error:
                self._skip(here, "is a link" if entry.is_symlink() else str(error.strerror))
                continue
            try:
                mode = os.fstat(child).st_mode
                if stat.S_ISDIR(mode):
                    yield from self._walk(child, here, name, left, depth - 1)
                elif stat.S_ISREG(mode):
                    content = self._read(child, here, left)
                    if content is not None:
                        yield name, content
                else:
                    self._skip(here, "is no regular file")
            finally:
                os.close(child)

    def _read(self, fd: int, path: str, left: list[int]) -> bytes | None:
        size = os.fstat(fd).st_size
        if len(self.taken) >= FILES_MOST:
            self._skip(path, f"more than {FILES_MOST} files are not archived")
            return None
        if size > min(FILE_MOST, left[0]):
            self._skip(path, f"{size} bytes are more than may be archived")
            return None
        content = b""
        while len(content) < size and (piece := os.read(fd, size - len(content))):
            content += piece
        left[0] -= len(content)
        digest = hashlib.sha256(content).hexdigest()
        self.taken.append({"path": path, "bytes": len(content), "sha256": digest})
        return content
