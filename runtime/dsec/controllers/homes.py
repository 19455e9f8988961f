"""Whose home is where: what of this region lives elsewhere now, and what goes with copies.

Part of the replicator's loop. It reads the home epochs that the stores of all regions know, freezes
what another region has taken, writes the cards that another region needs to go on with what is
here, and says where data may be: by the records, and by what is remembered beside the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsec.api.records import Experiment, Tenant
from dsec.api.status import Override, OverrideKind
from dsec.controllers.replicas import completed
from dsec.journal.history import HistoryWriter
from dsec.snapshots.bounds import remember
from dsec.snapshots.cards import Card, write_card
from dsec.snapshots.failover import RESTORE_FROM, returning
from dsec.snapshots.homes import Home
from dsec.snapshots.layout import prefix_of, under
from dsec.snapshots.replicating import REPOSITORY
from dsec.snapshots.routing import Residency
from dsec.world.cache import Cache
from dsec.world.clock import Clock
from dsec.world.objects import NotFoundError, ObjectStore
from dsec.world.records import Record, RecordConflictError, RecordNotFoundError, Records

PARKED_BY = "failover"
LOOK_SECONDS = 30.0
"""Between two looks at which repositories there are: each costs a request for each tenant."""


@dataclass(slots=True)
class Homes:
    """Of one term. `parked`: homes of experiments of this region that live elsewhere, by root."""

    records: Records
    objects: ObjectStore
    clock: Clock
    caches: Mapping[str, Cache]
    history: HistoryWriter
    region: str
    parked: dict[str, Home] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    """Regions that did not answer the last time."""
    _carded: dict[str, tuple[int, bool]] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    """Repositories that exist."""
    _looked: float | None = None

    async def learn(self, others: Mapping[str, ObjectStore], unread: Sequence[str]) -> None:
        """Read all homes and park what lives elsewhere; `unread` are regions without a store.

        Raises ObjectStoreError, RecordsError.
        """
        roots = {f"exp/{record['metadata']['uid']}" for record in self.caches["Experiment"].all()}
        found = await returning(
            self.objects, others, await self.repositories(), roots, here=self.region
        )
        self.unread = tuple(sorted({*unread, *found.unread}))
        self.parked = dict(found.parked)
        for record in self.caches["Experiment"].all():
            home = self.parked.get(f"exp/{record['metadata']['uid']}")
            if home is not None:
                await self._park(record, home)

    async def residency(self, repositories: Sequence[str]) -> Residency:
        """Return where data may be, by the records and by what is remembered beside it."""
        tenants = {
            record["metadata"]["name"]: Tenant.model_validate(record).spec
            for record in self.caches["Tenant"].all()
        }
        owners = {project: name for name, one in tenants.items() for project in one.projects}
        named: dict[str, set[tuple[str, ...]]] = {}
        for record in self.caches["Experiment"].all():
            regions = (record.get("spec") or {}).get("residency") or ()
            owner = owners.get(record["metadata"].get("namespace", ""))
            if owner and regions and set(regions) != set(tenants[owner].residency):
                named.setdefault(owner, set()).add(tuple(sorted(regions)))
        tighter = {}
        for tenant in tenants:
            prefix = prefix_of(tenant)
            if prefix in repositories:
                tighter[tenant] = await remember(self.objects, prefix, named.get(tenant, set()))
        return Residency({name: one.residency for name, one in tenants.items()}, tighter)

    async def repositories(self) -> list[str]:
        """Return the repositories of tenants that exist: their names are known, none is listed.

        One that is made is seen within LOOK_SECONDS. Raises ObjectStoreError.
        """
        now = self.clock.monotonic()
        if self._looked is not None and now - self._looked < LOOK_SECONDS:
            return sorted(self._known)
        wanted = set()
        for record in self.caches["Tenant"].all():
            name = record["metadata"]["name"]
            usual = (record.get("spec") or {}).get("residency") or ()
            wanted.add(prefix_of(name))
            wanted |= {
                prefix_of(name, (one.get("spec") or {}).get("residency") or (), usual)
                for one in self.caches["Experiment"].all()
            }
        for prefix in sorted(wanted - self._known):
            try:
                await self.objects.size(under(prefix, REPOSITORY))
            except NotFoundError:
                continue
            self._known.add(prefix)
        self._looked = now
        return sorted(self._known)

    async def keep_cards(self) -> None:
        """Write what another region needs of each experiment that keeps snapshots."""
        tenants = {
            project: record["metadata"]["name"]
            for record in self.caches["Tenant"].all()
            for project in (record.get("spec") or {}).get("projects") or ()
        }
        repositories = frozenset(await self.repositories())
        for record in self.caches["Experiment"].all():
            card = self._card(record, tenants)
            if card is None or prefix_of(card.tenant) not in repositories:
                continue
            mark = card.generation, card.ended
            if self._carded.get(card.root) != mark:
                await write_card(self.objects, prefix_of(card.tenant), card)
                self._carded[card.root] = mark

    def _card(self, record: Record, tenants: Mapping[str, str]) -> Card | None:
        meta = record["metadata"]
        tenant, root = tenants.get(meta.get("namespace", "")), f"exp/{meta['uid']}"
        if tenant is None or root in self.parked or not (record.get("spec") or {}).get("snapshot"):
            return None
        return Card(
            root=root,
            tenant=tenant,
            project=meta.get("namespace", ""),
            name=meta["name"],
            region=self.region,
            generation=int(meta.get("generation", 1)),
            origin=(meta.get("annotations") or {}).get(RESTORE_FROM, ""),
            # nothing to continue
            ended=bool(meta.get("deletionTimestamp")) or completed(record),
            record={
                "apiVersion": record.get("apiVersion"),
                "kind": record.get("kind"),
                "metadata": {key: meta[key] for key in ("labels", "annotations") if meta.get(key)},
                "spec": record.get("spec", {}),
            },
            at=self.clock.now(),
        )

    async def _park(self, record: Record, home: Home) -> None:
        """Freeze an experiment that another region has; its scene stays."""
        experiment = Experiment.model_validate(record)
        if any(one.kind is OverrideKind.FREEZE for one in experiment.status.overrides):
            return
        by = f"{PARKED_BY}: home is {home.region} since epoch {home.epoch}"
        fresh = Override(kind=OverrideKind.FREEZE, by=by, at=self.clock.now())
        kept = [*experiment.status.overrides, fresh]
        wire = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in kept]
        status = {**(record.get("status") or {}), "overrides": wire}
        try:
            written = await self.records.replace_status({**record, "status": status})
        except (RecordConflictError, RecordNotFoundError):
            return  # it changed: the next look sees it as it is then
        self.caches["Experiment"].put(written)
        self.history.add(
            "parked",
            experiment=experiment.metadata.name,
            project=experiment.metadata.namespace,
            region=home.region,
            home_epoch=home.epoch,
        )
