"""Removing what nothing needs: packs that no reference, no reader and no running saver relies on.

Two steps with a wait between them. `mark` lists the packs first and the references after it, and
writes down what is in no reference (`waiting`). Who saves may still rely on such a pack: who began
before the list is waited for, and who publishes meanwhile takes its packs off the list
(`leases.confirm`). `sweep` marks again, makes the list final by a conditional write (`deleting`),
takes the packs out of the index, and deletes them. Killed anywhere, the next collector goes on from
the written state.

Unsure is alive: a reference that cannot be read, a manifest that cannot be walked, a store that
does not answer end the cycle, and nothing is removed. Only what was found broken by both steps (a
pack or an index entry is gone: no restore can succeed) keeps nothing alive. Time is counted by this
process alone: between the steps lie `SETTLE_SECONDS`, for stores whose lists are late, and a lease
is dead when it did not change while this collector watched it for `PATIENCE_SECONDS`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.layout import name_of
from dsec.snapshots.leases import (
    PATIENCE_SECONDS,
    GcState,
    Lease,
    Phase,
    lease_key,
    leases,
    pack_key,
    packs_of,
    read_state,
    write_state,
)
from dsec.snapshots.refs import list_refs, parked
from dsec.snapshots.steady import remove
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore, ObjectStoreError

AT_ONCE = 16
DELETES = 16
LOOK_SECONDS = 1.0
SETTLE_SECONDS = 30.0
"""A list that is older than this is not expected of any store."""

Needs = Callable[[SnapshotRef], Awaitable[Collection[str]]]
"""Returns the packs that a snapshot needs, its manifest's among them.

Raises BrokenError where something that it needs is gone, anything else where it cannot tell."""

Forget = Callable[[Collection[str]], Awaitable[None]]
"""Takes packs out of the index, before they go."""


class BrokenError(Exception):
    """Something that a snapshot needs does not exist: it cannot be restored from this store."""


class CollectError(Exception):
    """The collector cannot tell what is needed, and removes nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did. `waits_for`: leases that it was too early for; then nothing went."""

    packs: tuple[str, ...] = ()
    bytes: int = 0
    waits_for: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    """Snapshots that nothing is left to restore from; what only they needed is gone as well."""

    @property
    def done(self) -> bool:
        """Whether the cycle has ended."""
        return not self.waits_for


@dataclass(slots=True)
class Collector:
    """Of one repository. What it remembers is how long it has seen leases not change."""

    objects: ObjectStore
    prefix: str
    clock: Clock
    needs: Needs
    forget: Forget | None = None
    patience: float = PATIENCE_SECONDS
    settle: float = SETTLE_SECONDS
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    _marked: tuple[int, float] | None = None
    """Epoch of the list that waits, and since when this collector knows of it."""
    _broken: frozenset[str] = frozenset()
    """What was broken then."""

    async def collect(self, *, wait: bool = True) -> Swept:
        """Run one cycle; with `wait` until everybody who began before it has ended.

        One that another collector began and left is ended before. Raises CollectError,
        ObjectStoreError.
        """
        state, _ = await read_state(self.objects, self.prefix)
        if state.phase is not Phase.IDLE:
            left = await self._until_done(wait=wait)
            if not left.done:
                return left
        await self.mark()
        return await self._until_done(wait=wait)

    async def _until_done(self, *, wait: bool) -> Swept:
        while True:
            swept = await self.sweep()
            if swept.done or not wait:
                return swept
            await self.clock.sleep(LOOK_SECONDS)

    async def mark(self) -> GcState:
        """Write down what no reference needs; a cycle under way stays as it is.

        Raises CollectError, ObjectStoreError.
        """
        while True:
            state, etag = await read_state(self.objects, self.prefix)
            if state.phase is not Phase.IDLE:
                return state
            await self._look()
            # in this order: a pack that is listed and a reference that comes later are never missed
            packs = await packs_of(self.objects, self.prefix)
            live, broken = await self._live()
            doomed = sorted(packs.keys() - live)
            marked = GcState(epoch=state.epoch + 1, phase=Phase.WAITING, doomed=doomed)
            if await write_state(self.objects, self.prefix, marked, etag):
                self._marked, self._broken = (marked.epoch, self.clock.monotonic()), broken
                return marked

    async def sweep(self) -> Swept:
        """Remove what is still needed by nobody, once nobody is left who began before the mark.

        Raises CollectError, ObjectStoreError.
        """
        while True:
            state, etag = await read_state(self.objects, self.prefix)
            if state.phase is Phase.IDLE:
                return Swept()
            if state.phase is Phase.DELETING:
                return await self._finish(state)
            early = await self._too_early(state)
            if early:
                return Swept(waits_for=early)
            live, broken = await self._live()
            if broken - self._broken:
                # perhaps only a list of the index is late: broken is what is so twice
                self._marked, self._broken = (state.epoch, self.clock.monotonic()), broken
                return Swept(waits_for=tuple(sorted(broken)))
            final = [pack for pack in state.doomed if pack not in live]
            going = GcState(epoch=state.epoch + 1, phase=Phase.DELETING, doomed=final)
            # who published since has changed the state: then look again
            if await write_state(self.objects, self.prefix, going, etag):
                return await self._finish(going)

    async def _too_early(self, state: GcState) -> tuple[str, ...]:
        """Return what a list that waits has to wait for."""
        alive = await self._look()
        before = [f"{one.what} {one.id}" for one in alive if one.epoch < state.epoch]
        now = self.clock.monotonic()
        if self._marked is None or self._marked[0] != state.epoch:
            # another process marked: this one's wait begins now
            _, broken = await self._live()
            self._marked, self._broken = (state.epoch, now), broken
        if now - self._marked[1] < self.settle:
            before.append("lists that may be late")
        return tuple(before)

    async def _finish(self, state: GcState) -> Swept:
        sizes = await packs_of(self.objects, self.prefix)
        if state.doomed and self.forget is not None:
            await self.forget(state.doomed)
        gate = asyncio.Semaphore(DELETES)

        async def erase(pack: str) -> None:
            async with gate:
                await remove(self.objects, pack_key(self.prefix, pack))

        await asyncio.gather(*(erase(pack) for pack in state.doomed))
        idle = GcState(epoch=state.epoch + 1, phase=Phase.IDLE, doomed=state.doomed)
        current, etag = await read_state(self.objects, self.prefix)
        if current == state:
            await write_state(self.objects, self.prefix, idle, etag)
        await self._clear_dead()
        gone = tuple(pack for pack in state.doomed if pack in sizes)
        return Swept(gone, sum(sizes[pack] for pack in gone), broken=tuple(sorted(self._broken)))

    async def _live(self) -> tuple[set[str], frozenset[str]]:
        """Return every pack that a reference or a reader needs, and which of those are broken."""
        listed = await list_refs(self.objects, self.prefix)
        if listed.damaged:
            bad = listed.damaged[0]
            raise CollectError(f"{bad.key}: {bad.why}; nothing is removed until it is repaired")
        aside = await parked(self.objects, self.prefix)
        held = [ref for lease in await leases(self.objects, self.prefix) for ref in lease.holds]
        # many references share a manifest: each is walked once
        each = {ref.manifest: ref for ref in (*listed.refs, *aside, *held)}
        gate = asyncio.Semaphore(AT_ONCE)
        broken: set[str] = set()

        async def one(ref: SnapshotRef) -> Collection[str]:
            name = name_of(ref.lineage, ref.seq)
            async with gate:
                try:
                    return await self.needs(ref)
                except ObjectStoreError:
                    raise
                except BrokenError:
                    broken.add(name)
                    return ()
                except Exception as problem:
                    raise CollectError(
                        f"{name}: cannot tell what it needs ({problem}); nothing is removed until "
                        f"it can be read or is deleted"
                    ) from problem

        found = await asyncio.gather(*(one(ref) for ref in each.values()))
        return {pack for packs in found for pack in packs}, frozenset(broken)

    async def _look(self) -> list[Lease]:
        """Return the leases that live, as far as this collector has watched them."""
        now = self.clock.monotonic()
        found = await leases(self.objects, self.prefix)
        seen: dict[str, tuple[int, float]] = {}
        for one in found:
            beat, since = self._seen.get(one.id, (-1, now))
            seen[one.id] = (one.beat, since if beat == one.beat else now)
        self._seen = seen
        return [one for one in found if now - seen[one.id][1] < self.patience]

    async def _clear_dead(self) -> None:
        alive = {one.id for one in await self._look()}
        for lease in set(self._seen) - alive:
            with contextlib.suppress(ObjectStoreError):
                await remove(self.objects, lease_key(self.prefix, lease))
