"""Leases of those who work on a repository, and what they have to ask before they say "done".

Object `writers/<id>.json`: who saves, restores, replicates or repacks. A lease makes a collector
patient; it is no fence, because a saver can sleep through any time limit. The fence is the epoch of
the repository's collector (`gc/state.json`): who has published looks at it once more, and data that
was removed meanwhile makes it a failed snapshot instead of a broken one. No step of this compares
the clocks of two machines.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.layout import under
from dsec.snapshots.sealing import name_object
from dsec.snapshots.steady import DamagedError, create, read, remove, size_of, write
from dsec.world.clock import Clock, Randomness
from dsec.world.objects import ObjectStore, ObjectStoreError

BEAT_SECONDS = 30.0
PATIENCE_SECONDS = 600.0
"""A lease that did not change for so long, as the collector itself has seen, holds nobody up."""
ATTEMPTS = 4
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
AFTER_DAMAGE = 1 << 48
"""Epochs from here on follow a damaged state; no collector counts so far."""


class DoomedError(Exception):
    """Packs that a new snapshot needs were being removed: it has to be taken again."""

    def __init__(self, packs: Collection[str]) -> None:
        some = ", ".join(sorted(packs)[:3])
        super().__init__(f"{len(packs)} packs were collected meanwhile ({some}): save again")
        self.packs = frozenset(packs)


class Phase(StrEnum):
    """What the collector of a repository is doing."""

    IDLE = "idle"
    WAITING = "waiting"
    """`doomed` are listed; who began before is waited for, and may still save what it needs."""
    DELETING = "deleting"
    """`doomed` are going; nobody can save them any more."""


class GcState(WireModel):
    """Where the collector of a repository is. The epoch grows with every change of phase."""

    epoch: int = Field(default=0, ge=0)
    phase: Phase = Phase.IDLE
    doomed: list[str] = Field(default=[], description="Packs; while idle those that went last.")


class Lease(WireModel):
    """Somebody at work. `beat` changes while it lives; `epoch` is the collector's at its start."""

    id: str
    what: str = Field(description="saving, restoring, replicating or repacking.")
    epoch: int = Field(ge=0)
    beat: int = Field(default=0, ge=0)
    at: datetime
    holds: list[SnapshotRef] = Field(default=[], description="What is read: counts as referenced.")


@dataclass(slots=True)
class Working:
    """One's own lease while it is held."""

    objects: ObjectStore
    prefix: str
    lease: Lease
    avoid: frozenset[str]
    """Packs that were going when the work began: not to be relied on."""

    async def confirm(self, needs: Collection[str]) -> None:
        """See that all packs of what was just published are there to stay.

        Called after the reference is written and before anybody is told. Raises DoomedError,
        ObjectStoreError (nothing is known: ask again).
        """
        await confirm(self.objects, self.prefix, self.lease.epoch, needs)


@asynccontextmanager
async def working(
    objects: ObjectStore,
    prefix: str,
    *,
    what: str,
    clock: Clock,
    randomness: Randomness,
    holds: Collection[SnapshotRef] = (),
) -> AsyncIterator[Working]:
    """Hold a lease. Begin before the index is read. Raises ObjectStoreError."""
    state, _ = await read_state(objects, prefix)
    lease = Lease(
        id=randomness.randbytes(12).hex(),
        what=what,
        epoch=state.epoch,
        at=clock.now(),
        holds=list(holds),
    )
    await create(objects, lease_key(prefix, lease.id), _body(lease))
    avoid = frozenset(state.doomed if state.phase is not Phase.IDLE else ())
    beating = asyncio.ensure_future(_beat(objects, prefix, lease, clock))
    try:
        yield Working(objects, prefix, lease, avoid)
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        # one that stays only makes a collector wait
        with contextlib.suppress(ObjectStoreError):
            await remove(objects, lease_key(prefix, lease.id))


async def confirm(
    objects: ObjectStore, prefix: str, epoch: int, needs: Collection[str], *, claim: bool = True
) -> None:
    """See that packs which a published reference needs stay; `epoch` is that of its beginning.

    With `claim` packs that were only about to go are taken off the list: by a conditional write, so
    that the collector, which marks again before it deletes, sees the new reference. Raises
    DoomedError, ObjectStoreError.
    """
    needed = set(needs)
    for _ in range(ATTEMPTS):
        state, etag = await read_state(objects, prefix)
        lost = needed & set(state.doomed)
        if lost and (state.phase is Phase.DELETING or (state.phase is Phase.WAITING and not claim)):
            raise DoomedError(lost)
        if lost and state.phase is Phase.WAITING:
            kept = [pack for pack in state.doomed if pack not in lost]
            if not await write_state(objects, prefix, _after(state, kept), etag):
                continue
        if state.epoch != epoch or lost:
            # what went may be there again: a copy from another region has the same name
            missing = needed - (await packs_of(objects, prefix)).keys()
            # a list can be old
            gone = [one for one in missing if await size_of(objects, pack_key(prefix, one)) is None]
            if gone:
                raise DoomedError(gone)
        return
    raise ObjectStoreError(f"{state_key(prefix)}: changes too often")


def state_key(prefix: str) -> str:
    """Return the key of the collector's state."""
    return under(prefix, "gc", "state.json")


def lease_key(prefix: str, lease: str) -> str:
    """Return the key of a lease."""
    return under(prefix, "writers", f"{lease}.json")


def pack_key(prefix: str, pack: str) -> str:
    """Return the key of a pack, by its name: the hash of its bytes."""
    return under(prefix, "packs", pack[:2], pack)


async def packs_of(objects: ObjectStore, prefix: str) -> dict[str, int]:
    """Return the sizes of all packs that are stored, by their names. Raises ObjectStoreError."""
    found = await objects.list(under(prefix, "packs/"))
    return {info.key.rpartition("/")[2]: info.size for info in found}


async def read_state(objects: ObjectStore, prefix: str) -> tuple[GcState, str | None]:
    """Return the collector's state and its etag (None: it never ran). Raises ObjectStoreError.

    A damaged one was left by a collector that died while it wrote: nothing is going any more, and
    an epoch that nobody began with makes everybody look for what they need.
    """
    key = state_key(prefix)
    try:
        found = await read(objects, key, GcState)
    except DamagedError:
        data, etag = await objects.get(key)
        return GcState(epoch=AFTER_DAMAGE + int(name_object(data)[:8], 16)), etag
    return found or (GcState(), None)


async def write_state(objects: ObjectStore, prefix: str, state: GcState, etag: str | None) -> bool:
    """Write the next state over one version; False: another was faster.

    Raises ObjectStoreError where the outcome is unknown.
    """
    data = state.model_dump_json(by_alias=True).encode()
    return await write(objects, state_key(prefix), data, etag)


async def leases(objects: ObjectStore, prefix: str) -> list[Lease]:
    """Return all leases. Raises ObjectStoreError.

    One that is damaged belongs to somebody, too: it counts as begun before everything.
    """
    found = []
    for info in await objects.list(under(prefix, "writers/")):
        try:
            one = await read(objects, info.key, Lease)
        except DamagedError:
            name = info.key.rpartition("/")[2].removesuffix(".json")
            found.append(Lease(id=name, what="unknown", epoch=0, beat=info.size, at=NEVER))
            continue
        if one is not None:
            found.append(one[0])
    return found


def _after(state: GcState, doomed: list[str]) -> GcState:
    return GcState(epoch=state.epoch, phase=state.phase, doomed=doomed)


def _body(lease: Lease) -> bytes:
    return lease.model_dump_json(by_alias=True).encode()


async def _beat(objects: ObjectStore, prefix: str, lease: Lease, clock: Clock) -> None:
    while True:
        await clock.sleep(BEAT_SECONDS)
        lease.beat += 1
        lease.at = clock.now()
        # a beat that is lost costs patience alone
        with contextlib.suppress(ObjectStoreError):
            await objects.put(lease_key(prefix, lease.id), _body(lease))
