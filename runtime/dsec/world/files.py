"""Records and objects in a directory: the stores of standalone mode.

Every write is temp file, fsync, rename (or link), fsync of the directory, so that a crash leaves
the old or the new content and never half of it. One process owns a directory of records (a lock
file says so); objects may be shared by several processes of one machine.
"""

import asyncio
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec, TypeVar
from urllib.parse import quote, unquote

from dsec.world.clock import Clock, Randomness
from dsec.world.memory import AccessTable, Key, MemoryRecords, etag_of
from dsec.world.objects import NotFoundError, ObjectInfo, ObjectStoreError, PreconditionError
from dsec.world.records import Record, RecordsError

P = ParamSpec("P")
R = TypeVar("R")

LEAF = "~"
"""Ends the file name of an object, so that the keys `a` and `a/b` can both exist."""


DELETED = "deleted-version"
"""File that holds the version of the newest deletion."""


class DirectoryBusyError(Exception):
    """Another process owns this directory of records."""


class FileRecords(MemoryRecords):
    """Records as one JSON file each; the whole set is held in memory.

    Watch history starts anew with the process: watchers of an earlier process list again.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        access: AccessTable | None = None,
    ) -> None:
        """Load the directory. Raises DirectoryBusyError where another process has it."""
        super().__init__(clock, randomness, access)
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            os.close(self._lock)
            raise DirectoryBusyError(f"{directory} is in use by another dsec process") from problem
        for path in directory.glob("*/*.json"):
            record = json.loads(path.read_text())
            meta = record["metadata"]
            self._records[record["kind"], meta.get("namespace", ""), meta["name"]] = record
            self._version = max(self._version, int(meta["resourceVersion"]))
        if (deleted := directory / DELETED).exists():
            self._version = max(self._version, int(deleted.read_text()))
        # a watch from before this start must expire, never miss a change
        self._version += 1

    def close(self) -> None:
        """Give the directory back."""
        os.close(self._lock)

    def _persist(self, key: Key, record: Record | None) -> None:
        kind, namespace, name = key
        path = self._directory / kind / f"{quote(namespace, safe='')}@{quote(name, safe='')}.json"
        try:
            if record is None:
                # no file is left to carry this version, and versions must never go back
                write_durably(self._directory / DELETED, str(self._version).encode())
                path.unlink(missing_ok=True)
                return
            path.parent.mkdir(exist_ok=True, mode=0o700)
            write_durably(path, json.dumps(record, separators=(",", ":")).encode())
        except OSError as problem:
            raise RecordsError(f"cannot write {path}: {problem}") from problem


class FileObjects:
    """One bucket as a directory tree; safe between processes of one machine."""

    def __init__(self, directory: Path) -> None:
        """Create the directory where it is missing."""
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    async def get(self, key: str) -> tuple[bytes, str]:
        """Return content and etag. Raises NotFoundError, ObjectStoreError."""

        def read() -> tuple[bytes, str]:
            try:
                data = self._path(key).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                raise NotFoundError(key) from None
            return data, etag_of(data)

        return await _in_thread(read)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the content. Raises NotFoundError, ObjectStoreError."""

        def read() -> bytes:
            try:
                with self._path(key).open("rb") as file:
                    file.seek(start)
                    data = file.read(length)
            except (FileNotFoundError, NotADirectoryError):
                raise NotFoundError(key) from None
            if not data:
                raise ObjectStoreError(f"{key}: nothing at {start}")
            return data

        return await _in_thread(read)

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError, ObjectStoreError."""

        def look() -> int:
            try:
                return self._path(key).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                raise NotFoundError(key) from None

        return await _in_thread(look)

    async def modified(self, key: str) -> datetime:
        """Return when an object was last written, by the file system's clock (UTC).

        Raises NotFoundError, ObjectStoreError.
        """

        def look() -> datetime:
            try:
                return datetime.fromtimestamp(self._path(key).stat().st_mtime, UTC)
            except (FileNotFoundError, NotADirectoryError):
                raise NotFoundError(key) from None

        return await _in_thread(look)

    async def put(self, key: str, data: bytes) -> str:
        """Write without condition and return the etag."""

        def write() -> str:
            with self._locked():
                write_durably(self._path(key), data)
            return etag_of(data)

        return await _in_thread(write)

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create. Raises PreconditionError when the key exists."""

        def create() -> str:
            try:
                write_durably(self._path(key), data, exclusive=True)
            except FileExistsError:
                raise PreconditionError(key) from None
            return etag_of(data)

        return await _in_thread(create)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace exactly that version. Raises PreconditionError."""

        def replace() -> str:
            with self._locked():
                try:
                    current = etag_of(self._path(key).read_bytes())
                except (FileNotFoundError, NotADirectoryError):
                    raise PreconditionError(key) from None
                if current != etag:
                    raise PreconditionError(key)
                write_durably(self._path(key), data)
            return etag_of(data)

        return await _in_thread(replace)

    async def list(self, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
        """Return all objects below a prefix, in key order, after a key."""

        def walk() -> list[ObjectInfo]:
            start = prefix.rpartition("/")[0]
            found = []
            for path in self._walk(start):
                key = self._key(path)
                if key.startswith(prefix) and key.encode() > start_after.encode():
                    try:
                        data = path.read_bytes()
                    except FileNotFoundError:
                        continue
                    found.append(ObjectInfo(key, etag_of(data), len(data)))
            return sorted(found, key=lambda info: info.key.encode())

        return await _in_thread(walk)

    async def delete(self, key: str) -> None:
        """Remove; removing what is absent is no error."""

        def remove() -> None:
            try:
                self._path(key).unlink(missing_ok=True)
            except NotADirectoryError:
                return

        await _in_thread(remove)

    def _path(self, key: str) -> Path:
        if not key or key.startswith("/") or key.endswith("/") or "//" in key:
            raise ObjectStoreError(f"bad object key {key!r}")
        parts = [_quote(part) for part in key.split("/")]
        return self._directory.joinpath(*parts[:-1], parts[-1] + LEAF)

    def _key(self, path: Path) -> str:
        return "/".join(
            unquote(part.removesuffix(LEAF)) for part in path.relative_to(self._directory).parts
        )

    def _walk(self, start: str) -> Iterator[Path]:
        root = self._directory
        if start:
            root = root.joinpath(*(_quote(part) for part in start.split("/")))
        for folder, _, names in os.walk(root):
            yield from (Path(folder, name) for name in names if name.endswith(LEAF))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the bucket's write lock: two conditional writers must not both win."""
        lock = os.open(self._directory / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _quote(part: str) -> str:
    """Encode one part of a key as a file name: no `~` at its end, no `.` or `..`."""
    quoted = quote(part, safe=" !#$&'()+,=@[]{}").replace("~", "%7E")
    return quoted.replace(".", "%2E") if set(part) == {"."} else quoted


async def _in_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except OSError as problem:
        raise ObjectStoreError(str(problem)) from problem


def write_durably(path: Path, data: bytes, *, exclusive: bool = False, mode: int = 0o600) -> None:
    """Write a whole file so that a crash leaves old or new content.

    With `exclusive` raises FileExistsError where the path exists. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if exclusive:
            os.link(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
