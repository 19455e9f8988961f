"""Copying a repository to another store, without its key, so that it can be killed at any call.

What crosses is what is missing: packs, then the index, then manifests' parts, and the references
last, so that at every moment all that a reference needs is there before it. A pack's name is the
hash of its bytes: each is checked before it is written, and the sizes of all are compared with a
fresh list before any reference is published. Nothing is remembered between runs: the two lists say
what is left to do.

Two ways at once are safe. Each side adds what it lacks; deletes travel as tombstones, which win
over references but wait for their delay; of two references with one number the one of the higher
home epoch stays and the other is parked, the same in both regions and whoever copies first.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.cards import cards, write_card
from dsec.snapshots.homes import carry_home, homes
from dsec.snapshots.layout import name_of, under
from dsec.snapshots.leases import DoomedError, Working, working
from dsec.snapshots.limits import MIB, Pace
from dsec.snapshots.refs import (
    Damaged,
    ReadBefore,
    Tombstone,
    body_of,
    buried_key,
    drop,
    list_refs,
    park,
    pin_key,
    pins,
    read_ref,
    ref_key,
    tombstones,
)
from dsec.snapshots.repository import About
from dsec.snapshots.sealing import name_object
from dsec.snapshots.standing import Standing, buried, identity_of, lost, rank, standing
from dsec.snapshots.steady import DamagedError, create, read, remove, replace, size_of
from dsec.world.clock import Clock, Randomness
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError, PreconditionError

AT_ONCE = 4
"""Objects on their way at the same time: each may be a pack of 16 MiB in memory."""
ATTEMPTS = 4
ROUNDS = 3
"""How often a copy begins anew where things change under it, before the next cycle has to."""
RETRY_SECONDS = 0.5
REPOSITORY = "repo.json"
BODIES = ("packs", "index", "manifests")
"""Parts in the order in which they cross."""
DELETE_DELAY = timedelta(days=7)
"""What was deleted by mistake in one region can be had from the other for so long."""


class RepositoryConflictError(Exception):
    """The target has a repository of the same name with other keys: neither can read the other."""


@dataclass(frozen=True, slots=True)
class Deletes:
    """Whether deletes follow, and how long after; `unsure` is why no clock may be trusted now."""

    follow: bool = True
    delay: timedelta = DELETE_DELAY
    unsure: str = ""


@dataclass(slots=True)
class Copied:
    """What a run did, and what is left."""

    packs: int = 0
    objects: int = 0
    bytes: int = 0
    refs: int = 0
    deleted: int = 0
    parked: int = 0
    seconds: float = 0.0
    failed: list[Damaged] = field(default_factory=list)
    """What could not be copied, and the references that wait for it."""
    standing: Standing = field(default_factory=Standing)

    @property
    def whole(self) -> bool:
        """Whether everything that was there at the start is there now."""
        return not self.failed and not self.standing.behind


Which = Callable[[SnapshotRef], bool]
Told = Callable[[Copied], None]


@dataclass(frozen=True, slots=True)
class Copier:
    """What a copy from one store to another works with."""

    source: ObjectStore
    target: ObjectStore
    prefix: str
    clock: Clock
    randomness: Randomness
    pace: Pace | None = None
    at_once: int = AT_ONCE
    deletes: Deletes = Deletes()
    which: Which = lambda _: True
    read_back: bool = False
    """Read every pack again from the target and check its hash: doubles what crosses."""
    told: Told = lambda _: None
    read_source: ReadBefore = field(default_factory=dict)
    read_target: ReadBefore = field(default_factory=dict)
    """References that were read by earlier runs, of either side."""

    async def run(self) -> Copied:
        """Copy what is missing. Raises ObjectStoreError, RepositoryConflictError.

        What could not be copied is in the answer; the references that need it wait.
        """
        began, done = self.clock.monotonic(), Copied()
        if not await self._same_repository():
            return done
        # epochs before anything else, both ways: who is late must learn of it
        for home in await homes(self.source, self.prefix):
            await carry_home(self.target, self.prefix, home)
        for home in await homes(self.target, self.prefix):
            await carry_home(self.source, self.prefix, home)
        for card in await cards(self.source, self.prefix):
            await write_card(self.target, self.prefix, card)
        await self._carry_tombstones()
        for _ in range(ROUNDS):
            try:
                async with working(
                    self.target,
                    self.prefix,
                    what="replicating",
                    clock=self.clock,
                    randomness=self.randomness,
                ) as work:
                    again = await self._once(done, work)
            except DoomedError as problem:
                # the target's collector took what the source still has: it crosses once more
                done.failed = [Damaged(self.prefix, str(problem))]
                again = True
            if not again:
                break
        done.deleted = await self._apply_tombstones()
        done.parked = await self._park(self.target) + await self._park(self.source)
        source, target = await self._refs(self.source), await self._refs(self.target)
        stones = await tombstones(self.source, self.prefix)
        wanted = [ref for ref in source if self.which(ref) and not buried(ref, stones)]
        done.standing = standing(wanted, target, self.clock.now())
        done.seconds = self.clock.monotonic() - began
        self.told(done)
        return done

    async def _once(self, done: Copied, work: Working) -> bool:
        """Copy once; True: something vanished meanwhile, so begin anew."""
        # references first, bodies after them, the index before the packs: all that a listed one
        # needs is in a later list
        stones = await self._stones()
        refs = [
            ref
            for ref in await self._refs(self.source)
            if self.which(ref) and not buried(ref, stones)
        ]
        bodies = {part: await self._sizes(self.source, part) for part in reversed(BODIES)}
        done.failed = []
        for part in BODIES:
            if await self._copy_part(part, bodies[part], done):
                return True
        if done.failed:
            there = {identity_of(ref) for ref in await self._refs(self.target)}
            waiting = [ref for ref in refs if identity_of(ref) not in there]
            done.failed += [Damaged(name_of(ref.lineage, ref.seq), "waits") for ref in waiting]
            return False
        names = [key.rpartition("/")[2] for key in bodies["packs"]]
        await work.confirm(names)
        for one in await pins(self.source, self.prefix):
            key = pin_key(self.prefix, one.lineage, one.seq)
            await create(self.target, key, body_of(one))
        for ref in refs:
            done.refs += await self._publish(ref)
        await work.confirm(names)
        return False

    async def _copy_part(self, part: str, wanted: Mapping[str, int], done: Copied) -> bool:
        """Copy what is missing of a part and compare sizes; True: something vanished."""
        there = await self._sizes(self.target, part)
        missing = [key for key, size in wanted.items() if there.get(key) != size]
        gate = asyncio.Semaphore(self.at_once)
        vanished = []

        async def one(key: str) -> None:
            async with gate:
                try:
                    await self._copy(part, key, wanted[key], done)
                except NotFoundError:
                    vanished.append(key)
                except _BadError as problem:
                    done.failed.append(Damaged(key, str(problem)))

        # in the order of their bytes, as every store lists them
        await asyncio.gather(*(one(key) for key in sorted(missing, key=str.encode)))
        if missing:
            stored = await self._sizes(self.target, part)
            failed = {one.key for one in done.failed} | set(vanished)
            for key in missing:
                # a list may be late: the object itself has the last word
                size = stored.get(key)
                if key not in failed and size != wanted[key]:
                    size = await size_of(self.target, key)
                    if size != wanted[key]:
                        why = f"{size} bytes are there instead of {wanted[key]}"
                        done.failed.append(Damaged(key, why))
        return bool(vanished)

    async def _copy(self, part: str, key: str, size: int, done: Copied) -> None:
        problem: Exception = _BadError("never came whole")
        for attempt in range(ATTEMPTS):
            if attempt:
                await self.clock.sleep(RETRY_SECONDS * 2**attempt)
            if self.pace is not None:
                await self.pace.take(size)
            try:
                data, _ = await self.source.get(key)
            except ObjectStoreError as failure:
                problem = failure
                continue
            if why := await _wrong(part, key, data, size):
                problem = _BadError(why)
                continue
            try:
                if await self._put(key, data):
                    done.bytes += len(data)
                    done.objects += 1
                    done.packs += part == "packs"
                    self.told(done)
            except ObjectStoreError as failure:
                problem = failure
                continue
            return
        if isinstance(problem, _BadError):
            raise problem
        raise _BadError(f"no answer: {problem}") from problem

    async def _put(self, key: str, data: bytes) -> bool:
        """Write a body whose name holds its hash; False: it was there, whole.

        What is stored too short without an error is found by the list that follows all writes.
        """
        try:
            await self.target.put_if_absent(key, data)
        except PreconditionError:
            if await size_of(self.target, key) == len(data):
                return False
        except ObjectStoreError:
            # written or not: its size tells
            if await size_of(self.target, key) != len(data):
                raise
            return True
        else:
            if not self.read_back or (await self.target.get(key))[0] == data:
                return True
        # cut short on its way in: the name says what belongs there, so it may be replaced
        await self.target.put(key, data)
        if await size_of(self.target, key) != len(data):
            raise ObjectStoreError(f"{key}: stored cut short")
        return True

    async def _publish(self, ref: SnapshotRef) -> int:
        """Write one reference at the target, last of all; 0: it is there, or has no place there."""
        key = ref_key(self.prefix, ref.lineage, ref.seq)
        known = await read_ref(self.target, self.prefix, key)
        if known == ref:
            return 0
        if await read_ref(self.source, self.prefix, key) != ref:
            # deleted while its packs were on their way: no failure
            return 0
        if isinstance(known, SnapshotRef):
            if rank(known) > rank(ref):
                return 0
            await park(self.target, self.prefix, known)
        elif known is not None:
            # what lies there is no reference: cut short by a copier that died
            await remove(self.target, key)
        return int(await create(self.target, key, body_of(ref)))

    async def _same_repository(self) -> bool:
        """Bring `repo.json` over; False: the source has none, so there is nothing to copy."""
        key = under(self.prefix, REPOSITORY)
        try:
            mine = await read(self.source, key, About)
        except DamagedError as problem:
            raise ObjectStoreError(str(problem)) from problem
        if mine is None:
            return False
        for _ in range(ATTEMPTS):
            try:
                theirs = await read(self.target, key, About)
            except DamagedError as problem:
                # the beginning of ours, cut short by a copier that died, is put right
                if not await create(self.target, key, body_of(mine[0])):
                    raise ObjectStoreError(str(problem)) from problem
                continue
            if theirs is None:
                await create(self.target, key, body_of(mine[0]))
                continue
            about, etag = theirs
            if about.id != mine[0].id:
                raise RepositoryConflictError(
                    f"{self.prefix}: both regions made a repository of this name, each with a key "
                    f"of its own: neither can read the other's"
                )
            fresh = [one for one in mine[0].keys if one not in about.keys]
            if not fresh:
                return True
            # wrappings for other regions, or by newer keys: each opens the same data key
            both = about.model_copy(update={"keys": [*about.keys, *fresh]})
            await replace(self.target, key, body_of(both), etag)
        raise ObjectStoreError(f"{key}: changes too often")

    async def _stones(self) -> list[Tombstone]:
        mine = await tombstones(self.source, self.prefix)
        return [*mine, *await tombstones(self.target, self.prefix)]

    async def _carry_tombstones(self) -> None:
        if not self.deletes.follow:
            return
        for stone in await tombstones(self.source, self.prefix):
            key = buried_key(self.prefix, "tombstones", stone)
            await create(self.target, key, body_of(stone))

    async def _apply_tombstones(self) -> int:
        """Delete at the target what was deleted long enough ago; twice is once."""
        if not self.deletes.follow or self.deletes.unsure:
            return 0
        now, count = self.clock.now(), 0
        for stone in await tombstones(self.target, self.prefix):
            if now - stone.at >= self.deletes.delay:
                count += await drop(self.target, self.prefix, stone)
        return count

    async def _park(self, store: ObjectStore) -> int:
        """Put aside what a region wrote after it had lost a lineage, judged by both stores."""
        both = [*await self._refs(self.source), *await self._refs(self.target)]
        gone = lost(both)
        mine = [ref for ref in await self._refs(store) if identity_of(ref) in gone]
        for ref in mine:
            await park(store, self.prefix, ref)
        return len(mine)

    async def _refs(self, store: ObjectStore) -> tuple[SnapshotRef, ...]:
        read = self.read_source if store is self.source else self.read_target
        return (await list_refs(store, self.prefix, read_before=read)).refs

    async def _sizes(self, store: ObjectStore, part: str) -> dict[str, int]:
        found = await store.list(under(self.prefix, part, ""))
        return {info.key: info.size for info in found}


class _BadError(Exception):
    """A body that is not what its key says."""


async def _wrong(part: str, key: str, data: bytes, size: int) -> str:
    """Return what is wrong with a body that was read; empty: nothing."""
    if len(data) != size:
        return f"{len(data)} bytes came instead of {size}"
    name = key.rpartition("/")[2]
    # a thread for what takes longer than going there
    digest = await asyncio.to_thread(name_object, data) if size > MIB else name_object(data)
    if part == "packs" and name != digest:
        return "its bytes are not those that its name says"
    if part != "packs" and not digest.startswith(name.rpartition("-")[2]):
        return "its bytes are not those that its name says"
    return ""
