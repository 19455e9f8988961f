"""References: the objects that make snapshots exist, and everything that is known by their number.

A reference is created once, under the next number of its lineage, and never changed: whoever is
late finds the number taken. Three fences stand before it: the number, the incarnation (a copy that
was replaced publishes nothing), and the home epoch (a region that lost a lineage does not, either).
A number is never given twice: what is deleted leaves a tombstone, which the other regions follow.

Objects: `refs/<lineage>/<seq>.json`, `tombstones/<lineage>/<seq>-<home epoch>.json`,
`parked/<lineage>/<seq>-<home epoch>.json`, `pins/<lineage>/<seq>.json`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.homes import home_of, root_of
from dsec.snapshots.layout import check_lineage, name_of, under
from dsec.snapshots.steady import DamagedError, create, read, remove, write
from dsec.world.objects import NotFoundError, ObjectInfo, ObjectStore, ObjectStoreError

M = TypeVar("M", bound=WireModel)
ReadBefore = dict[str, tuple[str, SnapshotRef]]
"""References that were read, by key, with their etags."""

DIGITS = 12
AT_ONCE = 16
"""References that are read at the same time."""
ATTEMPTS = 4
"""Tries where something changes under one's hands."""
NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class FencedError(Exception):
    """A later copy of the lineage has published: this one changes nothing any more."""


class TakenError(Exception):
    """The number exists already; `free` is the next one that does not."""

    def __init__(self, message: str, free: int) -> None:
        super().__init__(message)
        self.free = free


class Pin(WireModel):
    """A snapshot that no rule removes."""

    lineage: str
    seq: int = Field(ge=1)
    who: str
    why: str = ""
    at: datetime
    until: datetime | None = Field(default=None, description="Unset: until it is unpinned.")

    def holds(self, now: datetime) -> bool:
        """Return whether it still counts."""
        return self.until is None or now < self.until


class Tombstone(WireModel):
    """A snapshot that was deleted on purpose, in one region; the others follow after a delay."""

    lineage: str
    seq: int = Field(ge=1)
    home_epoch: int = Field(default=0, ge=0)
    manifest: str = Field(description="Of the deleted one: the marker is for no other.")
    at: datetime
    why: str = ""

    def buries(self, ref: SnapshotRef) -> bool:
        """Return whether it speaks of this very reference."""
        return (self.lineage, self.seq, self.home_epoch, self.manifest) == (
            ref.lineage,
            ref.seq,
            ref.home_epoch,
            ref.manifest,
        )


@dataclass(frozen=True, slots=True)
class Damaged:
    """An object that cannot be what its key says."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Listed:
    """What a repository, or one lineage, has: references by lineage and number."""

    refs: tuple[SnapshotRef, ...]
    damaged: tuple[Damaged, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The newest good snapshot, and the newer ones that were not good (SNAP-11)."""

    ref: SnapshotRef
    skipped: tuple[Damaged, ...] = ()


def ref_key(prefix: str, lineage: str, seq: int) -> str:
    """Return the key of a reference."""
    return under(prefix, "refs", lineage, f"{seq:0{DIGITS}d}.json")


def buried_key(prefix: str, kind: str, ref: SnapshotRef | Tombstone) -> str:
    """Return the key of a tombstone or of a parked reference."""
    return under(prefix, kind, ref.lineage, f"{ref.seq:0{DIGITS}d}-{ref.home_epoch}.json")


def body_of(ref: WireModel) -> bytes:
    """Return the bytes of a reference, pin or tombstone: the same for the same content."""
    return ref.model_dump_json(by_alias=True, exclude_none=True).encode()


def superseded(refs: Iterable[SnapshotRef]) -> frozenset[tuple[int, int]]:
    """Return (home epoch, number) of what a region wrote after it had lost the lineage.

    Pure, of one lineage: a reference counts no more where one of a higher home epoch has its number
    or a lower one. The answer is the same in each region, in whatever order things arrived.
    """
    known = list(refs)
    return frozenset(
        (one.home_epoch, one.seq)
        for one in known
        if any(other.home_epoch > one.home_epoch and other.seq <= one.seq for other in known)
    )


def in_force(refs: Iterable[SnapshotRef]) -> list[SnapshotRef]:
    """Return the references of one lineage that count, newest first."""
    known = list(refs)
    gone = superseded(known)
    left = [one for one in known if (one.home_epoch, one.seq) not in gone]
    return sorted(left, key=lambda one: (one.home_epoch, one.seq), reverse=True)


async def list_refs(
    objects: ObjectStore, prefix: str, lineage: str = "", *, read_before: ReadBefore | None = None
) -> Listed:
    """Return the references of a lineage, or of the whole repository. Raises ObjectStoreError.

    `read_before`: what the same caller read of the same store, kept up by this call: a reference
    whose etag is as it was is not read again.
    """
    known = read_before if read_before is not None else {}
    below = under(prefix, "refs", check_lineage(lineage), "") if lineage else under(prefix, "refs/")
    infos = await objects.list(below)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(info: ObjectInfo) -> SnapshotRef | Damaged | None:
        before = known.get(info.key)
        if before is not None and before[0] == info.etag:
            return before[1]
        async with gate:
            ref = await read_ref(objects, prefix, info.key)
        if isinstance(ref, SnapshotRef):
            known[info.key] = info.etag, ref
        return ref

    found = [item for item in await asyncio.gather(*map(one, infos)) if item is not None]
    for key in known.keys() - {info.key for info in infos} if not lineage else ():
        del known[key]
    refs = [item for item in found if isinstance(item, SnapshotRef)]
    return Listed(
        tuple(sorted(refs, key=lambda ref: (ref.lineage, ref.seq))),
        tuple(item for item in found if isinstance(item, Damaged)),
    )


async def read_ref(objects: ObjectStore, prefix: str, key: str) -> SnapshotRef | Damaged | None:
    """Return what lies under the key of a reference; None: it is gone. Raises ObjectStoreError."""
    try:
        found = await read(objects, key, SnapshotRef)
    except DamagedError as problem:
        return Damaged(key, f"no reference: {problem}")
    if found is None:
        return None
    if ref_key(prefix, found[0].lineage, found[0].seq) != key:
        name = name_of(found[0].lineage, found[0].seq)
        return Damaged(key, f"holds {name}, which belongs elsewhere")
    return found[0]


async def newest(objects: ObjectStore, prefix: str, lineage: str) -> SnapshotRef | None:
    """Return the newest reference of a lineage that can be read. Raises ObjectStoreError."""
    known = in_force((await list_refs(objects, prefix, lineage)).refs)
    return known[0] if known else None


async def newest_good(
    objects: ObjectStore,
    prefix: str,
    lineage: str,
    check: Callable[[SnapshotRef], Awaitable[str]],
    *,
    seq: int | None = None,
) -> Choice | None:
    """Return the newest snapshot that passes a check, and why newer ones do not; None: none does.

    `check` answers what is wrong, empty for nothing. With `seq` none newer than that is tried.
    Raises ObjectStoreError: a store that does not answer says nothing about a snapshot.
    """
    listed = await list_refs(objects, prefix, lineage)
    skipped = list(listed.damaged)
    for ref in in_force(listed.refs):
        if seq is not None and ref.seq > seq:
            continue
        why = await check(ref)
        if not why:
            return Choice(ref, tuple(skipped))
        skipped.append(Damaged(ref_key(prefix, ref.lineage, ref.seq), why))
    return None


async def next_seq(objects: ObjectStore, prefix: str, lineage: str) -> int:
    """Return the number after the highest that was ever given. Raises ObjectStoreError."""
    check_lineage(lineage)
    last = 0
    for kind in ("refs", "tombstones", "parked"):
        infos = await objects.list(under(prefix, kind, lineage, ""))
        last = max([last, *(_number(info.key) for info in infos)])
    return last + 1


async def publish(objects: ObjectStore, prefix: str, ref: SnapshotRef) -> SnapshotRef:
    """Make a snapshot exist; repeating it is no error. Its packs and index lie there before.

    Returns once the reference was read back. Raises FencedError, TakenError, ValueError (a name, a
    number or a home epoch that there cannot be), and ObjectStoreError where the outcome is unknown:
    the caller tries the same reference again.
    """
    if ref.seq >= 10**DIGITS:
        raise ValueError(f"seq {ref.seq}: wanted is a number of at most {DIGITS} digits")
    key = ref_key(prefix, check_lineage(ref.lineage), ref.seq)
    home = await home_of(objects, prefix, root_of(ref.lineage))
    if home is not None and home.epoch > ref.home_epoch:
        raise FencedError(
            f"{name_of(ref.lineage, ref.seq)}: its home is {home.region} since epoch {home.epoch}, "
            f"and this one is of epoch {ref.home_epoch}"
        )
    recorded = home.epoch if home is not None else 0
    if ref.home_epoch > recorded:
        # it would stand above all that the true home writes
        raise ValueError(f"homeEpoch {ref.home_epoch}: the recorded one is {recorded}")
    listed = await list_refs(objects, prefix, ref.lineage)
    for other in in_force(listed.refs):
        _judge(ref, other)
    free = await next_seq(objects, prefix, ref.lineage)
    there = {one.seq for one in listed.refs} | {_number(one.key) for one in listed.damaged}
    if ref.seq < free and ref.seq not in there:
        raise TakenError(f"{name_of(ref.lineage, ref.seq)} was given, {free} is free", free)
    if await create(objects, key, body_of(ref)):
        return ref
    winner = await read_ref(objects, prefix, key)
    if isinstance(winner, SnapshotRef):
        _judge(ref, winner)
    free = await next_seq(objects, prefix, ref.lineage)
    raise TakenError(f"{name_of(ref.lineage, ref.seq)} was just taken", free)


async def pin(objects: ObjectStore, prefix: str, wanted: Pin) -> None:
    """Keep a snapshot from every rule; an earlier pin is replaced.

    Raises NotFoundError where the snapshot is gone, ObjectStoreError.
    """
    key = pin_key(prefix, check_lineage(wanted.lineage), wanted.seq)
    for _ in range(ATTEMPTS):
        if await write(objects, key, body_of(wanted), await _etag(objects, key)):
            break
    else:
        raise ObjectStoreError(f"{key}: changes too often")
    # looked at afterwards: what was deleted meanwhile must not seem kept
    target = ref_key(prefix, wanted.lineage, wanted.seq)
    if not isinstance(await read_ref(objects, prefix, target), SnapshotRef):
        await remove(objects, key)
        raise NotFoundError(target)


async def unpin(objects: ObjectStore, prefix: str, lineage: str, seq: int) -> None:
    """Let the rules have it again; unpinning what is not pinned is no error."""
    await remove(objects, pin_key(prefix, check_lineage(lineage), seq))


async def pins(objects: ObjectStore, prefix: str, lineage: str = "") -> list[Pin]:
    """Return the pins; one that is damaged holds for ever. Raises ObjectStoreError."""
    found, damaged = await _read_all(objects, under(prefix, "pins", *_part(lineage)), Pin)
    for one in damaged:
        whose, _, _ = one.key.removeprefix(under(prefix, "pins/")).rpartition("/")
        found.append(Pin(lineage=whose, seq=_number(one.key), who="unknown", why=one.why, at=NEVER))
    return found


async def tombstones(objects: ObjectStore, prefix: str, lineage: str = "") -> list[Tombstone]:
    """Return the tombstones, by lineage and number. Raises ObjectStoreError.

    One that is damaged had no effect yet: it is read back before anything is deleted.
    """
    return (await _read_all(objects, under(prefix, "tombstones", *_part(lineage)), Tombstone))[0]


async def bury(
    objects: ObjectStore, prefix: str, ref: SnapshotRef, *, why: str, now: datetime
) -> None:
    """Delete a reference and leave a tombstone, which comes first. Idempotent.

    Raises ObjectStoreError; done halfway it is done again.
    """
    stone = Tombstone(
        lineage=ref.lineage,
        seq=ref.seq,
        home_epoch=ref.home_epoch,
        manifest=ref.manifest,
        at=now,
        why=why,
    )
    # an earlier one stays: the delay of the other regions counts from the first
    await create(objects, buried_key(prefix, "tombstones", stone), body_of(stone))
    await drop(objects, prefix, stone)


async def drop(objects: ObjectStore, prefix: str, stone: Tombstone) -> bool:
    """Delete the reference that a tombstone speaks of; False: there is none. Idempotent."""
    key = ref_key(prefix, stone.lineage, stone.seq)
    found = await read_ref(objects, prefix, key)
    if not isinstance(found, SnapshotRef) or not stone.buries(found):
        return False
    await remove(objects, key)
    await remove(objects, pin_key(prefix, stone.lineage, stone.seq))
    return True


async def park(objects: ObjectStore, prefix: str, ref: SnapshotRef) -> None:
    """Put a reference of a region that had lost the lineage aside; its data is kept. Idempotent."""
    await create(objects, buried_key(prefix, "parked", ref), body_of(ref))
    key = ref_key(prefix, ref.lineage, ref.seq)
    if await read_ref(objects, prefix, key) == ref:
        await remove(objects, key)


async def parked(objects: ObjectStore, prefix: str) -> list[SnapshotRef]:
    """Return the references that were put aside. Raises ObjectStoreError."""
    return (await _read_all(objects, under(prefix, "parked/"), SnapshotRef))[0]


def _judge(ref: SnapshotRef, other: SnapshotRef) -> None:
    later = (other.home_epoch, other.incarnation) > (ref.home_epoch, ref.incarnation)
    if later and other.lineage == ref.lineage:
        raise FencedError(
            f"{name_of(ref.lineage, ref.seq)}: incarnation {ref.incarnation} of home epoch "
            f"{ref.home_epoch} is replaced by {other.incarnation} of {other.home_epoch}"
        )


def pin_key(prefix: str, lineage: str, seq: int) -> str:
    """Return the key of a pin."""
    return under(prefix, "pins", lineage, f"{seq:0{DIGITS}d}.json")


def _part(lineage: str) -> Sequence[str]:
    return (check_lineage(lineage), "") if lineage else ("",)


def _number(key: str) -> int:
    digits = key.rpartition("/")[2][:DIGITS]
    return int(digits) if digits.isascii() and digits.isdecimal() else 0


async def _read_all(
    objects: ObjectStore, below: str, model: type[M]
) -> tuple[list[M], list[Damaged]]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(key: str) -> M | Damaged | None:
        async with gate:
            try:
                found = await read(objects, key, model)
            except DamagedError as problem:
                return Damaged(key, str(problem))
            return found and found[0]

    keys = [info.key for info in await objects.list(below)]
    found = await asyncio.gather(*map(one, keys))
    return (
        [item for item in found if isinstance(item, model)],
        [item for item in found if isinstance(item, Damaged)],
    )


async def _etag(objects: ObjectStore, key: str) -> str | None:
    try:
        return (await objects.get(key))[1]
    except NotFoundError:
        return None
