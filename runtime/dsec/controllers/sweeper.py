"""The daily sweep of snapshots on the leader: the rules of retention, over what this region took.

References go here; their bytes go with the next collection (gateways). Nothing is removed where the
time is not sure, and nothing of what another region took, or has taken over: its own sweep says.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from pydantic import ValidationError

from dsec.api.lineage import lineage_of
from dsec.api.snapshot import SnapshotPlan, SnapshotRef
from dsec.api.tenant import TenantSpec
from dsec.journal.bindings import Bindings
from dsec.journal.history import HistoryWriter
from dsec.snapshots.homes import home_of, root_of
from dsec.snapshots.layout import name_of, prefix_of
from dsec.snapshots.refs import (
    Pin,
    buried_key,
    bury,
    in_force,
    list_refs,
    pins,
    tombstones,
)
from dsec.snapshots.retention import SWEEP_SECONDS, Activity, outlived, sweep
from dsec.snapshots.steady import remove
from dsec.snapshots.surety import Surety
from dsec.world.clock import Clock
from dsec.world.objects import ObjectStore, ObjectStoreError

FIRST_SECONDS = 600.0
"""A new leader sweeps so long after its start: leaders that change often sweep all the same."""

log = structlog.get_logger()


@dataclass(slots=True)
class Sweeper:
    """Of one term. `run` is its task; `known()` are the uids of experiments with a record."""

    objects: ObjectStore
    bindings: Bindings
    tenants: Callable[[], Mapping[str, TenantSpec]]
    known: Callable[[], set[str]]
    history: HistoryWriter
    clock: Clock
    region: str
    removed: int = 0
    """Snapshots removed in this term."""
    _surety: dict[str, Surety] = field(default_factory=dict)

    async def run(self) -> None:
        """Sweep again and again."""
        await self.clock.sleep(FIRST_SECONDS)
        while True:
            for tenant in sorted(self.tenants()):
                try:
                    await self.look(tenant)
                except ObjectStoreError as problem:
                    log.warning("snapshots are not swept", tenant=tenant, why=str(problem))
                except Exception:
                    # what lies in a store can be anything: it must not end a leader's term
                    log.exception("snapshots are not swept", tenant=tenant)
            await self.clock.sleep(SWEEP_SECONDS)

    async def look(self, tenant: str) -> int:
        """Sweep one tenant's snapshots; return how many went. Raises ObjectStoreError."""
        prefix = prefix_of(tenant)
        listed = await list_refs(self.objects, prefix)
        if not listed.refs:
            return 0
        surety = self._surety.setdefault(prefix, Surety(self.objects, prefix, self.clock))
        if why := await surety.why_unsure(ref.created for ref in listed.refs):
            log.warning("snapshots are not swept", tenant=tenant, why=why)
            return 0
        held = await pins(self.objects, prefix)
        by_lineage: dict[str, list[SnapshotRef]] = defaultdict(list)
        for ref in listed.refs:
            by_lineage[ref.lineage].append(ref)
        live = {lineage_of(one.spec.identity) for one in self.bindings.by_id.values() if one.live}
        count = 0
        for lineage, refs in by_lineage.items():
            if await self._ours(prefix, refs):
                own = [one for one in held if one.lineage == lineage]
                count += await self._sweep(prefix, refs, own, lives=lineage in live)
        for stone in outlived(await tombstones(self.objects, prefix), now=self.clock.now()):
            await remove(self.objects, buried_key(prefix, "tombstones", stone))
        self.removed += count
        return count

    async def _sweep(
        self, prefix: str, refs: Sequence[SnapshotRef], own: Sequence[Pin], *, lives: bool
    ) -> int:
        now = self.clock.now()
        newest = in_force(refs)[0]
        activity = Activity(ended=self._ended(newest, lives=lives), retain=_retain(newest))
        going = sweep(refs, now=now, activity=activity, pins=own, held=self._held(newest))
        for leaving in going:
            await bury(self.objects, prefix, leaving.ref, why=leaving.why, now=now)
            ref = leaving.ref
            self.history.add(
                "snapshot-removed",
                tenant=ref.tenant,
                experiment=ref.experiment,
                sandbox=ref.sandbox,
                snapshot=name_of(ref.lineage, ref.seq),
                bytes=ref.bytes,
                why=leaving.why,
            )
        return len(going)

    async def _ours(self, prefix: str, refs: Iterable[SnapshotRef]) -> bool:
        """Return whether a lineage is at home here: by its home, else by who took the newest."""
        counting = in_force(refs)
        if not counting:
            return False
        home = await home_of(self.objects, prefix, root_of(counting[0].lineage))
        return (counting[0].region if home is None else home.region) == self.region

    def _ended(self, newest: SnapshotRef, *, lives: bool) -> datetime | None:
        """Return since when nothing of a lineage goes on; None: it does, or may again."""
        kind, owner, *_ = newest.lineage.split("/")
        if lives or (kind == "exp" and owner in self.known()):
            return None
        known = self.bindings.by_id.get(newest.sandbox)
        ended = known.ended_at if known is not None else None
        return ended or newest.created

    def _held(self, newest: SnapshotRef) -> set[int]:
        """Return the numbers that something restores from now, or waits to."""
        asked = (one.spec.restore for one in self.bindings.by_id.values() if one.live)
        return {
            one.seq
            for one in asked
            if one is not None and one.seq is not None and one.lineage == newest.lineage
        }


def _retain(ref: SnapshotRef) -> int | None:
    """Return how many copies its task asked for; None: it does not say, or not so as we read it."""
    plan = ref.spec.get("snapshot")
    if not isinstance(plan, dict):
        return None
    try:
        return SnapshotPlan.model_validate(plan).retain
    except ValidationError:
        return None
