"""Repositories in memory with snapshots of a few blobs: what tests of keeping build on."""

import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dsec.api.snapshot import SnapshotKind, SnapshotRef
from dsec.snapshots.collecting import BrokenError, Needs
from dsec.snapshots.index import Where
from dsec.snapshots.keys import FileKeys
from dsec.snapshots.leases import DoomedError, pack_key, working
from dsec.snapshots.packs import PackBuilder, open_frame
from dsec.snapshots.refs import bury, next_seq, publish
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import ID_BYTES, SALT_BYTES, SnapshotDamagedError, cipher, name_blob
from dsec.world.memory import MemoryObjects
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError

PREFIX = "snapshots/team-a/"
LINEAGE = "exp/uid-1/worker/0"
START = datetime(2026, 3, 1, tzinfo=UTC)
PACK_BYTES = 1 << 16


class SeededRandomness(random.Random):
    """Randomness by a seed."""

    def sample(self, population: Any, k: int, **_: Any) -> list[Any]:
        """Return k distinct members."""
        return super().sample(population, k)


@dataclass(slots=True)
class StepClock:
    """A clock that goes on only while somebody sleeps briefly; long sleeps never end.

    The beat of a lease sleeps for long; a retry sleeps briefly and moves the time.
    """

    time: float = 0.0
    longest: float = 20.0
    off: timedelta = timedelta(0)
    """How wrong its time of day is."""

    def now(self) -> datetime:
        """Return the time of day."""
        return START + timedelta(seconds=self.time) + self.off

    def monotonic(self) -> float:
        """Return seconds."""
        return self.time

    async def sleep(self, seconds: float) -> None:
        """Move on."""
        import asyncio

        if seconds > self.longest:
            await asyncio.Event().wait()
        self.time += seconds
        await asyncio.sleep(0)


@dataclass(slots=True)
class Region:
    """One store with its processes' clock, and the key that all regions share."""

    name: str
    clock: StepClock
    randomness: SeededRandomness
    objects: Any = field(default_factory=MemoryObjects)
    keys: FileKeys = field(init=False)

    def __post_init__(self) -> None:
        """Make the key."""
        self.keys = FileKeys((("local", b"k" * 32),), self.randomness)

    async def open(self, objects: ObjectStore | None = None, prefix: str = PREFIX) -> Repository:
        """Open the repository, perhaps through a store that fails."""
        return await Repository.open(
            objects or self.objects, prefix, self.keys, self.clock, self.randomness
        )


def region(name: str = "a", seed: int = 1, clock: StepClock | None = None) -> Region:
    """Return a region; two with different seeds share their wrapping key."""
    return Region(name, clock or StepClock(), SeededRandomness(seed))


def regions() -> tuple[Region, Region]:
    """Return regions a and b, with one clock."""
    clock = StepClock()
    return region("a", 1, clock), region("b", 2, clock)


def ref_of(seq: int = 1, **changes: Any) -> SnapshotRef:
    """Return a reference without data."""
    plain: dict[str, Any] = {
        "tenant": "team-a",
        "project": "p",
        "lineage": LINEAGE,
        "seq": seq,
        "kind": SnapshotKind.STATE,
        "sandbox": "sb-1",
        "incarnation": 1,
        "created": START + timedelta(minutes=seq),
        "manifest": f"{seq:064x}",
        "files": 1,
        "bytes": 10,
        "stored_bytes": 10,
    }
    return SnapshotRef(**{**plain, **changes})


async def save(repo: Repository, blobs: Sequence[bytes], **changes: Any) -> SnapshotRef:
    """Save a snapshot of some blobs as a saver does, and return what was acknowledged.

    Raises DoomedError after it has withdrawn the reference, ObjectStoreError and others.
    """
    lineage = changes.get("lineage", LINEAGE)
    async with working(
        repo.objects, repo.prefix, what="saving", clock=repo.clock, randomness=repo.randomness
    ) as work:
        await repo.refresh()
        ids = [name_blob(repo.keys, blob) for blob in blobs]
        manifest = b"".join(ids)
        used = await _store(repo, [*blobs, manifest], work.avoid)
        seq = changes.pop("seq", None) or await next_seq(repo.objects, repo.prefix, lineage)
        ref = ref_of(
            seq,
            manifest=name_blob(repo.keys, manifest).hex(),
            **{"created": repo.clock.now(), **changes},
        )
        ref = await publish(repo.objects, repo.prefix, ref)
        try:
            await work.confirm(used)
        except DoomedError:
            await bury(repo.objects, repo.prefix, ref, why="withdrawn", now=repo.clock.now())
            raise
    return ref


async def _store(repo: Repository, blobs: Sequence[bytes], avoid: Collection[str]) -> set[str]:
    used, fresh = set(), {}
    for blob in blobs:
        where = repo.index.find(name_blob(repo.keys, blob))
        if where is None or where.pack.name.hex() in avoid:
            fresh[name_blob(repo.keys, blob)] = blob
        else:
            used.add(where.pack.name.hex())
    if not fresh:
        return used
    builder = PackBuilder(repo.keys, PACK_BYTES, 1)
    builder.begin(repo.randomness.randbytes(SALT_BYTES))
    for name, blob in fresh.items():
        builder.add(builder.compress(blob), len(blob), [(name, 0, len(blob))])
    pack = builder.finish()
    await repo.create(repo.pack_key(pack.name), pack.data)
    repo.index.add(pack.table)
    await repo.write_index([pack.table])
    return used | {pack.name.hex()}


async def read_blob(repo: Repository, name: bytes) -> bytes:
    """Return a blob and check it. Raises SnapshotDamagedError, BrokenError, ObjectStoreError."""
    where = repo.index.find(name)
    if where is None:
        raise BrokenError(f"no index names {name.hex()}")
    try:
        sealed = await repo.read_part(repo.pack_key(where.pack.name), where.offset, where.stored)
    except NotFoundError as problem:
        raise BrokenError(f"pack {problem} is gone") from problem
    frame = open_frame(cipher(repo.keys, where.pack.salt), where.offset, sealed, where.raw, "frame")
    blob = frame[where.start : where.start + where.length]
    if name_blob(repo.keys, blob) != name:
        raise SnapshotDamagedError(f"{name.hex()} is not what it was")
    return blob


async def restore(repo: Repository, ref: SnapshotRef) -> list[bytes]:
    """Return the blobs of a snapshot, each checked. Raises as `read_blob`."""
    manifest = await read_blob(repo, bytes.fromhex(ref.manifest))
    ids = [manifest[at : at + ID_BYTES] for at in range(0, len(manifest), ID_BYTES)]
    return [await read_blob(repo, name) for name in ids]


def needs_of(repo: Repository) -> Needs:
    """Return what tells a collector which packs a snapshot needs."""

    async def needs(ref: SnapshotRef) -> set[str]:
        await repo.refresh()
        manifest = await read_blob(repo, bytes.fromhex(ref.manifest))
        ids = [manifest[at : at + ID_BYTES] for at in range(0, len(manifest), ID_BYTES)]
        found = {_pack(repo, name) for name in [bytes.fromhex(ref.manifest), *ids]}
        for pack in found:
            try:
                await repo.objects.size(pack_key(repo.prefix, pack))
            except NotFoundError as problem:
                raise BrokenError(f"pack {pack} is gone") from problem
        return found

    return needs


def _pack(repo: Repository, name: bytes) -> str:
    where: Where | None = repo.index.find(name)
    if where is None:
        raise BrokenError(f"no index names {name.hex()}")
    return where.pack.name.hex()


async def persistently(work: Callable[[], Awaitable[Any]], tries: int = 60) -> Any:
    """Repeat what a store's faults end, as the loops of agents and leaders do."""
    for _ in range(tries):
        with suppress(ObjectStoreError, SnapshotDamagedError, DoomedError):
            return await work()
    raise AssertionError("it never succeeds")
