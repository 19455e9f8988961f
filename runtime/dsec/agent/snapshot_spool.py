"""Objects of snapshots that wait on disk: while a program stands still, or nobody answers.

What is written here is sealed already. It is readable at once, and goes to the store in the order
in which a snapshot comes to exist: packs, then what finds them, then what names them. A crash loses
nothing; what was sent twice is there once.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import structlog

from dsec.agent.state import StateError, replace_durably
from dsec.snapshots.layout import repository_of
from dsec.world.clock import Clock, until
from dsec.world.objects import (
    NotFoundError,
    ObjectInfo,
    ObjectStore,
    ObjectStoreError,
    PreconditionError,
)

AWAY_SECONDS = 20.0
"""A store that gave no answer is not asked again for so long: objects wait here instead."""
_ORDER = ("packs/", "chunks/", "manifests/", "index/")
_LEASES, _COLLECTOR, _INDEX = "writers/", "gc/", "index/"
_log = structlog.get_logger(__name__)
T = TypeVar("T")


class DeniedError(ObjectStoreError):
    """The store answers, and refuses: the copy, or its whole tenant, is not of this node."""


class ShortError(ObjectStoreError):
    """The object ends before the part that was asked for: it was cut short, and will stay so."""


class SpooledObjects:
    """An ObjectStore over another one; what cannot go there yet waits in a directory.

    `most` bounds the bytes that wait. Only creates wait. What a save asks of the store besides is
    answered from memory while it is away, as far as it was answered before: which index objects
    there are, and where the collector stood. Leases of that time stay here: nobody could read them.
    """

    def __init__(self, store: ObjectStore, directory: Path, clock: Clock, *, most: int) -> None:
        """Take over what an earlier process left. Raises OSError."""
        self._store = store
        self._directory = directory
        self._clock = clock
        self._most = most
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sizes: dict[str, int] = {}
        for path in directory.iterdir():
            key = unquote(path.name)
            if path.name.startswith(".") or _part(key).startswith(_LEASES):
                path.unlink()
            else:
                self._sizes[key] = path.stat().st_size
        self._behind = self._coming = 0
        self._away: Callable[[], float] | None = None
        self._flushing = asyncio.Lock()
        self._lists: dict[str, list[ObjectInfo]] = {}
        self._answers: dict[str, tuple[bytes, str] | None] = {}

    @property
    def waiting(self) -> int:
        """Bytes that wait."""
        return sum(self._sizes.values())

    @contextmanager
    def behind(self) -> Iterator[None]:
        """Keep what is created on disk for now: a program stands still until it is written."""
        self._behind += 1
        try:
            yield
        finally:
            self._behind -= 1

    async def flush(self) -> None:
        """Send what waits, in order. Raises ObjectStoreError; what was sent is gone from here."""
        async with self._flushing:
            waiting = [key for key in self._sizes if not _part(key).startswith(_LEASES)]
            for key in sorted(waiting, key=_rank):
                data = await asyncio.to_thread(self._file(key).read_bytes)
                # that it is there is what was wanted
                with contextlib.suppress(PreconditionError):
                    await self._asked(partial(self._store.put_if_absent, key, data))
                self._forget(key)

    def drop(self, prefix: str) -> None:
        """Forget what waits for a repository that is not this node's to write any more."""
        for key in [key for key in self._sizes if repository_of(key) == prefix]:
            self._forget(key)

    async def get(self, key: str) -> tuple[bytes, str]:
        """Return content and etag. Raises NotFoundError, ObjectStoreError."""
        if (data := await self._kept(key)) is not None:
            return data, ""
        if not _part(key).startswith(_COLLECTOR):
            return await self._asked(lambda: self._store.get(key))
        try:
            found = await self._asked(lambda: self._store.get(key))
        except NotFoundError:
            self._answers[key] = None
            raise
        except DeniedError:
            raise
        except ObjectStoreError:
            if key not in self._answers:
                raise
            known = self._answers[key]
            if known is None:
                raise NotFoundError(key) from None
            return known
        self._answers[key] = found
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the content. Raises NotFoundError, ObjectStoreError."""
        if (data := await self._kept(key)) is not None:
            return data[start : start + length]
        return await self._asked(lambda: self._store.get_range(key, start, length))

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError, ObjectStoreError."""
        known = self._sizes.get(key)
        return known if known is not None else await self._asked(lambda: self._store.size(key))

    async def put(self, key: str, data: bytes) -> str:
        """Write without condition. The beat of a lease that stays here is let pass."""
        try:
            return await self._asked(lambda: self._store.put(key, data))
        except DeniedError:
            raise
        except ObjectStoreError:
            if key not in self._sizes:
                raise
            return ""

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create. Raises PreconditionError when the key exists, ObjectStoreError when unknown."""
        if key in self._sizes:
            raise PreconditionError(key)
        if self._behind and not _part(key).startswith(_LEASES):
            if await self._keep(key, data):
                return ""
            _log.warning("no room to keep an object on disk", key=key, waiting=self.waiting)
        try:
            return await self._asked(lambda: self._store.put_if_absent(key, data))
        except DeniedError:
            raise
        except ObjectStoreError as error:
            if not await self._keep(key, data):
                raise
            _log.info("the store is away, an object waits on disk", key=key, why=str(error))
            return ""

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace exactly that version, in the store itself."""
        return await self._asked(lambda: self._store.put_if_match(key, data, etag))

    async def list(self, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
        """Return all objects below a prefix, in key order, also those that wait."""
        try:
            listed = await self._asked(lambda: self._store.list(prefix, start_after=start_after))
        except DeniedError:
            raise
        except ObjectStoreError:
            if prefix not in self._lists:
                raise
            listed = [one for one in self._lists[prefix] if one.key > start_after]
        else:
            if _part(prefix).startswith(_INDEX) and not start_after:
                self._lists[prefix] = listed
        found = {one.key: one for one in listed}
        for key, size in self._sizes.items():
            if key.startswith(prefix) and key.encode() > start_after.encode():
                found.setdefault(key, ObjectInfo(key, "", size))
        return [found[key] for key in sorted(found, key=str.encode)]

    async def delete(self, key: str) -> None:
        """Remove; removing what is absent is no error."""
        if key in self._sizes:
            self._forget(key)
            return
        await self._asked(lambda: self._store.delete(key))

    async def _asked(self, request: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, unless it has just been found away. Raises as the request does."""
        if self._away is not None and self._away() > 0:
            raise ObjectStoreError("the store gave no answer a moment ago")
        try:
            answer = await request()
        except (DeniedError, ShortError):
            raise
        except ObjectStoreError:
            self._away = until(self._clock, AWAY_SECONDS)
            raise
        self._away = None
        return answer

    # ------------------------------------------------------------------ on disk

    def _file(self, key: str) -> Path:
        return self._directory / quote(key, safe="")

    async def _kept(self, key: str) -> bytes | None:
        if key not in self._sizes:
            return None
        try:
            return await asyncio.to_thread(self._file(key).read_bytes)
        except FileNotFoundError:
            # it has just been sent
            return None

    async def _keep(self, key: str, data: bytes) -> bool:
        """Keep an object on disk; False where there is no room."""
        if self.waiting + self._coming + len(data) > self._most:
            return False
        self._coming += len(data)
        try:
            await asyncio.to_thread(replace_durably, self._file(key), data)
        except StateError as error:
            _log.warning("an object cannot be kept on disk", error=str(error))
            return False
        finally:
            self._coming -= len(data)
        self._sizes[key] = len(data)
        return True

    def _forget(self, key: str) -> None:
        self._file(key).unlink(missing_ok=True)
        self._sizes.pop(key, None)


def _part(key: str) -> str:
    """Return a key without its repository."""
    return key.removeprefix(repository_of(key))


def _rank(key: str) -> tuple[int, str]:
    """Return where an object comes in the order of a snapshot."""
    part = _part(key)
    return next((at for at, one in enumerate(_ORDER) if part.startswith(one)), len(_ORDER)), key
