"""One repository: its keys, its index, and how its objects are read and written.

A repository lives below one prefix of a bucket and belongs to one tenant; nothing is shared between
two. Objects are written once, under the hash of their bytes: packs first, then an index object that
says what is in them, last (by who saves) the reference. What a save that was cut off had sent is
found through the footers of its packs (`adopt`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from pydantic import Field, ValidationError

from dsec.api.base import WireModel
from dsec.snapshots import packs
from dsec.snapshots.index import Index, Table, decode, encode, joined, without
from dsec.snapshots.keys import KeySource, WrappedKey, fresh_key
from dsec.snapshots.layout import under
from dsec.snapshots.leases import pack_key, packs_of, read_state
from dsec.snapshots.sealing import (
    SALT_BYTES,
    SnapshotDamagedError,
    derive,
    name_blob,
    name_object,
    seal_whole,
    unseal_whole,
)
from dsec.snapshots.threads import in_thread
from dsec.world.clock import Clock, Randomness
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError, PreconditionError

FORMAT = 1
ATTEMPTS, FIRST_PAUSE = 5, 0.2
"""Tries of one request, and seconds before the second; each later pause is twice as long."""
AT_ONCE = 8
SMALL = 64 << 10
"""Bytes of an index that are worked on at once; more would hold up the event loop."""
INDEX = b"index"

P = ParamSpec("P")
T = TypeVar("T")


class WrongKeyError(Exception):
    """The data key that was handed over is of another repository."""


class GoneError(SnapshotDamagedError):
    """Something does not exist: an object, or any entry of the index for a blob."""


class About(WireModel):
    """What `repo.json` says: written once, replaced only when wrappings change."""

    format: int
    id: str
    check: str = Field(description="Hex of a hash that only the right data key gives.")
    keys: list[WrappedKey]


async def persist(clock: Clock, request: Callable[[], Awaitable[T]]) -> T:
    """Make a request that may be repeated, until the store answers. Raises ObjectStoreError."""
    pause = FIRST_PAUSE
    for _ in range(ATTEMPTS - 1):
        with suppress(ObjectStoreError):
            return await request()
        await clock.sleep(pause)
        pause *= 2
    return await request()


class Repository:
    """One tenant's repository. Lives in one event loop; its index is safe between threads."""

    def __init__(
        self,
        objects: ObjectStore,
        prefix: str,
        clock: Clock,
        randomness: Randomness,
        *,
        about: About,
        data_key: bytes,
    ) -> None:
        """Use `open` or `open_with_key`. Raises WrongKeyError."""
        self.objects, self.prefix = objects, prefix
        self.clock, self.randomness = clock, randomness
        self.about, self.keys = about, derive(data_key)
        if name_blob(self.keys, b"check").hex() != about.check:
            raise WrongKeyError(f"{prefix}: the data key is of another repository")
        self.index = Index()
        self.epoch = 0
        """Of the collector; while it stays the same nothing was removed."""
        self.damaged = False
        """An index object cannot be read: its rows come from the packs, until `forget`."""
        self._adopted: list[Table] = []
        self._known: dict[str, Table] = {}
        self._turn = asyncio.Lock()
        """Held while index, what is known and what was adopted are brought together."""

    @classmethod
    async def open(
        cls,
        objects: ObjectStore,
        prefix: str,
        keys: KeySource,
        clock: Clock,
        randomness: Randomness,
    ) -> "Repository":
        """Open a repository, make it where it is missing, and read its index.

        Raises WrongKeyError, SnapshotDamagedError, ObjectStoreError, and what `keys` raises.
        """
        one = await cls._unlock(objects, prefix, keys, clock, randomness)
        await one.refresh()
        return one

    @classmethod
    async def key_of(
        cls,
        objects: ObjectStore,
        prefix: str,
        keys: KeySource,
        clock: Clock,
        randomness: Randomness,
    ) -> bytes:
        """Return the data key, for who hands it to an agent: no index is read. As `open` else."""
        return (await cls._unlock(objects, prefix, keys, clock, randomness)).data_key

    @classmethod
    async def _unlock(
        cls,
        objects: ObjectStore,
        prefix: str,
        keys: KeySource,
        clock: Clock,
        randomness: Randomness,
    ) -> "Repository":
        """Open a repository, whose index is empty so far."""
        try:
            about = await _read_about(objects, prefix, clock)
        except NotFoundError:
            key, wrapped = await fresh_key(keys, prefix, randomness)
            fresh = About(
                format=FORMAT,
                id=randomness.randbytes(16).hex(),
                check=name_blob(derive(key), b"check").hex(),
                keys=[wrapped],
            )
            body = fresh.model_dump_json(by_alias=True).encode()
            with suppress(PreconditionError):
                await persist(
                    clock, lambda: objects.put_if_absent(under(prefix, "repo.json"), body)
                )
            # another may have been faster: its key holds
            about = await _read_about(objects, prefix, clock)
        data_key = await keys.unwrap(about.keys, prefix)
        return cls(objects, prefix, clock, randomness, about=about, data_key=data_key)

    @classmethod
    async def open_with_key(
        cls,
        objects: ObjectStore,
        prefix: str,
        data_key: bytes,
        clock: Clock,
        randomness: Randomness,
    ) -> "Repository":
        """Open one that exists, with its data key unwrapped: what an agent is handed.

        Raises NotFoundError where it does not exist, and as `open`.
        """
        about = await _read_about(objects, prefix, clock)
        one = cls(objects, prefix, clock, randomness, about=about, data_key=data_key)
        await one.refresh()
        return one

    @property
    def data_key(self) -> bytes:
        """The data key, unwrapped: for who may hand it to an agent."""
        return self.keys.data

    async def refresh(self) -> None:
        """Take in what others wrote since. Raises ObjectStoreError.

        What an index object that is damaged had said is read from the packs themselves.
        """
        async with self._turn:
            await self._refresh()

    async def _refresh(self) -> None:
        state, _ = await persist(self.clock, lambda: read_state(self.objects, self.prefix))
        names, fresh = await self._fresh_tables()
        if not self._known or self._known.keys() - set(names):
            self._known = {name: self._known.get(name) or fresh[name] for name in names}
            tables = [*self._known.values(), *self._adopted]
            size = sum(len(one.ids) for one in tables)
            await _apart(size, self.index.replace, tables)
        else:
            self._known |= fresh
            for name in sorted(fresh):
                await _apart(len(fresh[name].ids), self.index.add, fresh[name])
        self.epoch = state.epoch
        if any(not table.packs for table in fresh.values()):
            self.damaged = True
            await self._adopt(())

    async def _fresh_tables(self) -> tuple[list[str], dict[str, Table]]:
        """Return the names of the index, and the tables that are not known; damaged: without rows.

        Raises ObjectStoreError.
        """
        for _ in range(ATTEMPTS):
            found = await persist(
                self.clock, lambda: self.objects.list(under(self.prefix, "index/"))
            )
            names = sorted(info.key for info in found)
            with suppress(GoneError):
                # a collector that made one object of many: its list is another now
                return names, await self._tables(one for one in names if one not in self._known)
        raise ObjectStoreError(f"{self.prefix}: the index changes too often")

    async def write_index(self, tables: list[Table]) -> int:
        """Publish where blobs lie, after their packs; return the bytes that this took."""
        if not self._adopted and not tables:
            return 0
        adopted = list(self._adopted)
        table = joined([*adopted, *tables])
        key, body = await self.write_table(table)
        async with self._turn:
            self._known[key] = table
            if not all(self.index.knows_pack(pack.name) for pack in table.packs):
                # the index was made anew meanwhile, of what was known by then
                await _apart(len(table.ids), self.index.add, table)
        # another save may have adopted more meanwhile: that is not written yet
        self._adopted = [one for one in self._adopted if all(one is not was for was in adopted)]
        return len(body)

    async def forget(self, doomed: Collection[str]) -> None:
        """Take packs (hex names) out of the index, and make one object of all the others.

        Written before the old ones go: a reader finds everything twice rather than nothing.
        Raises SnapshotDamagedError, ObjectStoreError.
        """
        await self.refresh()
        if self.damaged:
            await self._all_known(doomed)
        old = dict(self._known)
        tables = [*old.values(), *self._adopted]
        gone = {bytes.fromhex(name) for name in doomed}
        size = sum(len(one.ids) for one in tables)
        kept = await _apart(size, lambda: without(joined(tables), gone))
        if kept.packs:
            key, _ = await self.write_table(kept)
            old.pop(key, None)
        for name in old:
            await persist(self.clock, lambda name=name: self.objects.delete(name))  # type: ignore[misc]
        self._adopted, self.damaged = [], False
        await self.refresh()

    async def _all_known(self, doomed: Collection[str]) -> None:
        """See that no pack is missed where an index object is damaged, before that is replaced.

        Raises SnapshotDamagedError for one whose footer cannot be read, ObjectStoreError.
        """
        for name in await persist(self.clock, lambda: packs_of(self.objects, self.prefix)):
            if name not in doomed and not self.index.knows_pack(bytes.fromhex(name)):
                raise SnapshotDamagedError(
                    f"pack {name} is in no index, and its footer cannot be read: the index is not "
                    f"made anew"
                )

    async def create(self, key: str, body: bytes) -> None:
        """Write an object whose name is its content's: that it exists already is success."""
        with suppress(PreconditionError):
            await persist(self.clock, lambda: self.objects.put_if_absent(key, body))

    def pack_key(self, name: bytes) -> str:
        """Return the key of a pack."""
        return pack_key(self.prefix, name.hex())

    async def adopt(self, avoid: Collection[str] = ()) -> None:
        """Take packs into the index that no index object names: an earlier save was cut off.

        Raises ObjectStoreError; packs without a readable footer are left to the collector.
        """
        async with self._turn:
            await self._adopt(avoid)

    async def _adopt(self, avoid: Collection[str]) -> None:
        found = await persist(self.clock, lambda: packs_of(self.objects, self.prefix))
        slots = asyncio.Semaphore(AT_ONCE)

        async def read(name: bytes, size: int) -> Table | None:
            async with slots:
                with suppress(SnapshotDamagedError, NotFoundError):
                    return await self.read_footer(name, size)
                return None

        lost = []
        for name, size in found.items():
            if name not in avoid and not self.index.knows_pack(bytes.fromhex(name)):
                lost.append(read(bytes.fromhex(name), size))
        for table in await asyncio.gather(*lost):
            if table is not None:
                self.index.add(table)
                self._adopted.append(table)

    async def read_footer(self, name: bytes, size: int) -> Table:
        """Return the rows of a pack from the pack itself.

        Raises SnapshotDamagedError, NotFoundError, ObjectStoreError.
        """
        wanted = packs.FIRST_READ
        while True:
            length = min(size, wanted)
            tail = await self.read_part(self.pack_key(name), size - length, length)
            needed = packs.footer_length(tail, f"pack {name.hex()}")
            if needed <= length or length == size:
                return packs.read_footer(self.keys, name, size, tail)
            wanted = needed

    async def read_part(self, key: str, start: int, length: int) -> bytes:
        """Return a part of an object; a short answer is asked for again. Raises NotFoundError."""

        async def request() -> bytes:
            data = await self.objects.get_range(key, start, length)
            if len(data) != length:
                raise ObjectStoreError(f"{key}: {len(data)} of {length} bytes came")
            return data

        return await persist(self.clock, request)

    async def read_named(self, key: str, name: str) -> bytes:
        """Return an object that is named by its hash; one bad answer is asked for again.

        Raises SnapshotDamagedError, ObjectStoreError.
        """
        for _ in range(2):
            try:
                stored, _ = await persist(self.clock, lambda: self.objects.get(key))
            except NotFoundError:
                raise GoneError(f"{key} is gone") from None
            if name_object(stored) == name:
                return stored
        raise SnapshotDamagedError(f"{key} is damaged: its content is not what its name says")

    async def write_table(self, table: Table, place: str = "") -> tuple[str, bytes]:
        """Store an index object, and return its key and its bytes. Raises ObjectStoreError.

        `place`: what it sorts by among the others, without "-"; empty: the time.
        """
        salt = self.randomness.randbytes(SALT_BYTES)
        body = await _apart(
            len(table.ids), lambda: seal_whole(self.keys, salt, encode(table), INDEX)
        )
        place = place or self.clock.now().strftime("%Y%m%dT%H%M%S%fZ")
        key = under(self.prefix, "index", f"{place}-{name_object(body)}")
        await self.create(key, body)
        return key, body

    async def _tables(self, keys: Iterable[str]) -> dict[str, Table]:
        slots = asyncio.Semaphore(AT_ONCE)

        async def read(key: str) -> tuple[str, Table]:
            async with slots:
                try:
                    stored = await self.read_named(key, key.rpartition("-")[2])
                    return key, await _apart(len(stored), self._decode, stored, key)
                except GoneError:
                    raise
                except SnapshotDamagedError:
                    return key, Table()

        return dict(await asyncio.gather(*(read(key) for key in keys)))

    def _decode(self, stored: bytes, key: str) -> Table:
        return decode(unseal_whole(self.keys, stored, INDEX, key), key)


async def _apart(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do what takes long for its size in a thread, and what is small at once."""
    if size <= SMALL:
        return work(*args, **kwargs)
    return await in_thread(work, *args, **kwargs)


async def _read_about(objects: ObjectStore, prefix: str, clock: Clock) -> About:
    key = under(prefix, "repo.json")
    stored, _ = await persist(clock, lambda: objects.get(key))
    try:
        about = About.model_validate_json(stored)
    except ValidationError as problem:
        raise SnapshotDamagedError(f"{key} is damaged: {problem}") from problem
    if about.format != FORMAT:
        raise SnapshotDamagedError(f"{key}: format {about.format}, this dsec reads {FORMAT}")
    return about
