"""References: the objects that make snapshots exist, and everything that is known by their number.

A reference is created once, under the next number of its lineage, and never changed: whoever is
late finds the number taken. Three fences stand before it: the number, the incarnation (a copy that
was replaced publishes nothing), and the home epoch (a region that lost a lineage does not, either).
A number is never given twice: what is deleted leaves a tombstone, which the other regions follow.

Objects: `refs/<lineage>/<seq>.json`, `tombstones/<lineage>/<seq>-<home epoch>.json`,
`parked/<lineage>/<seq>-<home epoch>.json`, `pins/<lineage>/<seq>.json`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import Field, ValidationError

from dsec.api.base import WireModel
from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.homes import home_of, root_of
from dsec.snapshots.layout import check_lineage, name_of, under
from dsec.world.objects import (
    NotFoundError,
    ObjectInfo,
    ObjectStore,
    ObjectStoreError,
    PreconditionError,
)

DIGITS = 12
AT_ONCE = 16
"""References that are read at the same time."""
ATTEMPTS = 4
"""Tries of a write whose answer was lost, and of a read that came back damaged."""


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


async def list_refs(objects: ObjectStore, prefix: str, lineage: str = "") -> Listed:
    """Return the references of a lineage, or of the whole repository. Raises ObjectStoreError."""
    below = under(prefix, "refs", check_lineage(lineage), "") if lineage else under(prefix, "refs/")
    infos = await objects.list(below)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(info: ObjectInfo) -> SnapshotRef | Damaged | None:
        async with gate:
            return await read_ref(objects, prefix, info.key, size=info.size)

    found = [item for item in await asyncio.gather(*map(one, infos)) if item is not None]
    refs = [item for item in found if isinstance(item, SnapshotRef)]
    return Listed(
        tuple(sorted(refs, key=lambda ref: (ref.lineage, ref.seq))),
        tuple(item for item in found if isinstance(item, Damaged)),
    )


async def read_ref(
    objects: ObjectStore, prefix: str, key: str, *, size: int | None = None
) -> SnapshotRef | Damaged | None:
    """Return what lies under the key of a reference; None: it is gone.

    With the size that a list says, a body that always comes back shorter is no damage of what is
    stored but an ObjectStoreError. Raises ObjectStoreError.
    """
    why, whole = "", size is None
    for _ in range(ATTEMPTS):
        try:
            data, _ = await objects.get(key)
        except NotFoundError:
            return None
        try:
            ref = SnapshotRef.model_validate_json(data)
        except ValidationError as problem:
            # perhaps only this answer was cut short
            whole = whole or len(data) == size
            why = f"no reference: {problem.errors()[0]['msg']}"
            continue
        if ref_key(prefix, ref.lineage, ref.seq) == key:
            return ref
        why = f"holds {name_of(ref.lineage, ref.seq)}, which belongs elsewhere"
        whole = True
        break
    if not whole:
        raise ObjectStoreError(f"{key}: its body never comes whole")
    return Damaged(key, why)


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

    Returns once the reference was read back. Raises FencedError, TakenError, ValueError, and
    ObjectStoreError where the outcome is unknown: the caller tries the same reference again.
    """
    key = ref_key(prefix, check_lineage(ref.lineage), ref.seq)
    home = await home_of(objects, prefix, root_of(ref.lineage))
    if home is not None and home.epoch > ref.home_epoch:
        raise FencedError(
            f"{name_of(ref.lineage, ref.seq)}: its home is {home.region} since epoch {home.epoch}, "
            f"and this one is of epoch {ref.home_epoch}"
        )
    listed = await list_refs(objects, prefix, ref.lineage)
    for other in in_force(listed.refs):
        _judge(ref, other)
    free = await next_seq(objects, prefix, ref.lineage)
    there = {one.seq for one in listed.refs} | {_number(one.key) for one in listed.damaged}
    if ref.seq < free and ref.seq not in there:
        raise TakenError(f"{name_of(ref.lineage, ref.seq)} was given, {free} is free", free)
    data = body_of(ref)
    problem: Exception = ObjectStoreError(f"{key}: never stored whole")
    for _ in range(ATTEMPTS):
        try:
            with contextlib.suppress(PreconditionError):
                # one that is there is another's, or ours whose answer was lost: reading tells
                await objects.put_if_absent(key, data)
            if await _stored(objects, prefix, ref):
                return ref
        except ObjectStoreError as failure:
            problem = failure
    raise problem


async def _stored(objects: ObjectStore, prefix: str, ref: SnapshotRef) -> bool:
    """Return whether a reference lies under its key, whole; one that was cut short is put right.

    Raises FencedError, TakenError, ObjectStoreError.
    """
    key, data = ref_key(prefix, ref.lineage, ref.seq), body_of(ref)
    try:
        stored, etag = await objects.get(key)
    except NotFoundError:
        return False
    if stored == data:
        return True
    other = _parsed(stored)
    if other is not None and other != ref:
        _judge(ref, other)
        free = await next_seq(objects, prefix, ref.lineage)
        raise TakenError(f"{name_of(ref.lineage, ref.seq)} was just taken", free)
    if data.startswith(stored):
        # cut short when it was stored, or only when it was read: our own body either way
        try:
            await objects.put_if_match(key, data, etag)
        except PreconditionError as problem:
            raise ObjectStoreError(f"{key}: changes under our hands") from problem
    return False


async def pin(objects: ObjectStore, prefix: str, wanted: Pin) -> None:
    """Keep a snapshot from every rule. Raises NotFoundError where it is gone, ObjectStoreError."""
    key = ref_key(prefix, check_lineage(wanted.lineage), wanted.seq)
    await objects.put(pin_key(prefix, wanted.lineage, wanted.seq), body_of(wanted))
    # looked at afterwards: what was deleted meanwhile must not seem kept
    await objects.get(key)


async def unpin(objects: ObjectStore, prefix: str, lineage: str, seq: int) -> None:
    """Let the rules have it again; unpinning what is not pinned is no error."""
    await objects.delete(pin_key(prefix, check_lineage(lineage), seq))


async def pins(objects: ObjectStore, prefix: str, lineage: str = "") -> list[Pin]:
    """Return the pins. Raises ObjectStoreError, also where one cannot be read: it may hold."""
    return await _read_all(objects, under(prefix, "pins", *_part(lineage)), Pin)


async def tombstones(objects: ObjectStore, prefix: str, lineage: str = "") -> list[Tombstone]:
    """Return the tombstones, by lineage and number. Raises ObjectStoreError."""
    return await _read_all(objects, under(prefix, "tombstones", *_part(lineage)), Tombstone)


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
    await create_or_keep(objects, buried_key(prefix, "tombstones", stone), body_of(stone))
    await drop(objects, prefix, stone)


async def drop(objects: ObjectStore, prefix: str, stone: Tombstone) -> bool:
    """Delete the reference that a tombstone speaks of; False: there is none. Idempotent."""
    key = ref_key(prefix, stone.lineage, stone.seq)
    found = await read_ref(objects, prefix, key)
    if not isinstance(found, SnapshotRef) or not stone.buries(found):
        return False
    await objects.delete(key)
    await objects.delete(pin_key(prefix, stone.lineage, stone.seq))
    return True


async def park(objects: ObjectStore, prefix: str, ref: SnapshotRef) -> None:
    """Put a reference of a region that had lost the lineage aside; its data is kept. Idempotent."""
    await create_or_keep(objects, buried_key(prefix, "parked", ref), body_of(ref))
    key = ref_key(prefix, ref.lineage, ref.seq)
    if await read_ref(objects, prefix, key) == ref:
        await objects.delete(key)


async def parked(objects: ObjectStore, prefix: str) -> list[SnapshotRef]:
    """Return the references that were put aside. Raises ObjectStoreError."""
    return await _read_all(objects, under(prefix, "parked/"), SnapshotRef)


async def create_or_keep(objects: ObjectStore, key: str, data: bytes) -> None:
    """Create an object; one that is there stays. Raises ObjectStoreError after several tries."""
    for attempt in range(ATTEMPTS):
        try:
            await objects.put_if_absent(key, data)
        except PreconditionError:
            return
        except ObjectStoreError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def _judge(ref: SnapshotRef, other: SnapshotRef) -> None:
    later = (other.home_epoch, other.incarnation) > (ref.home_epoch, ref.incarnation)
    if later and other.lineage == ref.lineage:
        raise FencedError(
            f"{name_of(ref.lineage, ref.seq)}: incarnation {ref.incarnation} of home epoch "
            f"{ref.home_epoch} is replaced by {other.incarnation} of {other.home_epoch}"
        )


def _parsed(data: bytes) -> SnapshotRef | None:
    try:
        return SnapshotRef.model_validate_json(data)
    except ValidationError:
        return None


def pin_key(prefix: str, lineage: str, seq: int) -> str:
    """Return the key of a pin."""
    return under(prefix, "pins", lineage, f"{seq:0{DIGITS}d}.json")


def _part(lineage: str) -> Sequence[str]:
    return (check_lineage(lineage), "") if lineage else ("",)


def _number(key: str) -> int:
    digits = key.rpartition("/")[2][:DIGITS]
    return int(digits) if digits.isascii() and digits.isdecimal() else 0


async def _read_all(objects: ObjectStore, below: str, model: type) -> list:  # type: ignore[type-arg]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(key: str) -> WireModel | None:
        async with gate:
            for attempt in range(ATTEMPTS):
                try:
                    data, _ = await objects.get(key)
                    found: WireModel = model.model_validate_json(data)  # type: ignore[attr-defined]
                except NotFoundError:
                    return None
                except ValidationError as problem:
                    if attempt == ATTEMPTS - 1:
                        raise ObjectStoreError(f"{key}: damaged: {problem}") from problem
                else:
                    return found
        return None

    keys = [info.key for info in await objects.list(below)]
    return [item for item in await asyncio.gather(*map(one, keys)) if item is not None]
