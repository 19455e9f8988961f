"""The Tenant controller: its projects' namespaces and their labels, what it uses now, its purge.

Only this controller writes the tenant and project labels of a namespace; an object's tenant is its
namespace's. Quota limits are read from the spec at each placement round, so an edit is live.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from pydantic import ValidationError

from dsec.api.meta import PROJECT_LABEL, TENANT_LABEL, Condition, ConditionStatus, with_condition
from dsec.api.nodes import RecordReason
from dsec.api.reasons import EndReason
from dsec.api.records import Tenant
from dsec.api.tenant import Amounts, Purge, TenantSpec, TenantStatus
from dsec.controllers.collector import Collector
from dsec.controllers.dispatch import Dispatcher
from dsec.controllers.leasing import Leasing
from dsec.controllers.translating import quota_problem
from dsec.journal.bindings import Binding
from dsec.journal.bindlog import BindLog
from dsec.world.cache import Cache, Key, key_of
from dsec.world.clock import Clock
from dsec.world.records import RecordInvalidError, Records

log = structlog.get_logger()
MANAGER = "dsec-tenants"
USAGE_SECONDS = 10.0
"""How often the use of a tenant is written: records have a low write rate."""
PURGE_SECONDS = 1.0
"""The same while its sandboxes are to end and somebody waits for that."""


@dataclass(slots=True)
class Tenants:
    """The reconciler of Tenant records."""

    records: Records
    tenants: Cache
    namespaces: Cache
    experiments: Cache
    bind_log: BindLog
    collector: Collector
    dispatcher: Dispatcher
    leasing: Leasing
    clock: Clock
    _invalid: dict[str, str] = field(default_factory=dict)
    """What is wrong with tenants, as it was said last: placement looks at them at each round."""

    def specs(self) -> Mapping[str, TenantSpec]:
        """Return the live specs of all tenants; one without a valid record has nothing to spend."""
        found: dict[str, TenantSpec] = {}
        invalid: dict[str, str] = {}
        for record in self.tenants.all():
            name = key_of(record)[1]
            try:
                found[name] = Tenant.model_validate(record).spec
            except ValidationError as problem:
                # one bad record must not stop the placement of all others
                invalid[name] = str(problem)
                if invalid[name] != self._invalid.get(name):
                    log.warning("tenant is invalid", tenant=name, error=invalid[name])
        self._invalid = invalid
        return found

    async def reconcile(self, key: Key) -> float | None:
        """Give a tenant its namespaces and write what it uses."""
        record = self.tenants.get(key)
        if record is None:
            await self._release(key[1], frozenset())
            return None
        tenant = Tenant.model_validate(record)
        if tenant.metadata.deletion_timestamp is not None:
            return None
        await self._release(key[1], frozenset(tenant.spec.projects))
        taken = [name for name in tenant.spec.projects if not await self._own(key[1], name)]
        purge = await self._purge(key[1], tenant.status.purge)
        projects = set(tenant.spec.projects)
        members = [e for e in self.experiments.all() if e["metadata"]["namespace"] in projects]
        reason, message = _verdict(taken, quota_problem(key[1], tenant.spec))
        ready = reason is RecordReason.READY
        condition = Condition(
            type="Ready",
            status=ConditionStatus.TRUE if ready else ConditionStatus.FALSE,
            reason=reason.value,
            message=message,
            observed_generation=tenant.metadata.generation,
        )
        now = self.clock.now().replace(microsecond=0)
        status = TenantStatus(
            observed_generation=tenant.metadata.generation,
            conditions=with_condition(tenant.status.conditions, condition, now=now),
            used=used_by(self.bind_log.state.live(), key[1]),
            leased=self.leasing.leased(key[1]),
            experiments=len(members),
            keyed=len(self._keyed(key[1])),
            purge=purge,
        )
        if status != tenant.status:
            body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
            self.tenants.put(await self.records.replace_status({**record, "status": body}))
        return PURGE_SECONDS if purge is not None else USAGE_SECONDS

    async def _purge(self, tenant: str, purge: Purge | None) -> Purge | None:
        """End what no experiment owns where that was asked for. Returns what still holds of it."""
        if purge is None or purge.until <= self.clock.now():
            return None
        message = f"all sandboxes of tenant {tenant} without an experiment are ended by {purge.by}"
        await self.leasing.withhold(tenant)
        found = self._keyed(tenant)
        await self.collector.stop(found, EndReason.STOPPED, message, self.dispatcher)
        if not purge.observed:
            log.info("purge", tenant=tenant, by=purge.by, sandboxes=len(found))
        return purge.model_copy(update={"observed": True})

    def _keyed(self, tenant: str) -> list[Binding]:
        """Return the sandboxes of a tenant that no experiment owns and that have not ended."""
        state = self.bind_log.state
        return [
            b
            for b in (*state.live(), *state.waiting())
            if b.tenant == tenant and not b.spec.identity.experiment_uid
        ]

    def _projects(self, tenant: str) -> list[str]:
        """Return the projects that a tenant's record lists now; none without a record."""
        record = self.tenants.get(("", tenant))
        return list((record or {}).get("spec", {}).get("projects", []))

    async def _release(self, tenant: str, kept: frozenset[str]) -> None:
        """Take a tenant's labels off the namespaces that are its projects no more."""
        for namespace in self.namespaces.all():
            meta = namespace["metadata"]
            labels = meta.get("labels", {})
            if labels.get(TENANT_LABEL) != tenant or meta["name"] in kept:
                continue
            fresh = await self.records.get("Namespace", meta["name"])
            left = dict(fresh["metadata"].get("labels", {}))
            if left.get(TENANT_LABEL) != tenant:
                continue
            for name in (TENANT_LABEL, PROJECT_LABEL):
                left.pop(name, None)
            written = {**fresh, "metadata": {**fresh["metadata"], "labels": left}}
            self.namespaces.put(await self.records.replace(written))
            log.info("project left its tenant", project=meta["name"], tenant=tenant)

    async def _own(self, tenant: str, project: str) -> bool:
        """Make or label a project's namespace. False: another tenant has it."""
        namespace = self.namespaces.get(("", project))
        labels = (namespace or {}).get("metadata", {}).get("labels", {})
        owner = labels.get(TENANT_LABEL, tenant)
        if owner != tenant and project in self._projects(owner):
            return False
        wanted = {TENANT_LABEL: tenant, PROJECT_LABEL: project}
        if all(labels.get(name) == value for name, value in wanted.items()):
            return True
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": project, "labels": wanted},
        }
        try:
            self.namespaces.put(await self.records.apply(body, MANAGER))
        except RecordInvalidError as problem:
            # where the stack makes the namespaces, this controller may only label them
            log.warning("namespace cannot be labelled", project=project, error=str(problem))
        return True


def _verdict(taken: Sequence[str], quota: str) -> tuple[RecordReason, str]:
    if taken:
        return RecordReason.NAMESPACE_TAKEN, f"namespaces of another tenant: {', '.join(taken)}"
    if quota:
        return RecordReason.INVALID, f"the last quota that made sense holds: {quota}"
    return RecordReason.READY, "its namespaces are its own"


def used_by(live: Iterable[Binding], tenant: str) -> Amounts:
    """Return the sum over a tenant's live sandboxes, always made anew (TEN-24)."""
    asked = [binding.spec.resources for binding in live if binding.tenant == tenant]
    return Amounts(
        cpu_milli=sum(one.cpu_milli for one in asked),
        memory_bytes=sum(one.memory_bytes for one in asked),
        gpu_count=sum(one.gpu_count for one in asked),
        sandboxes=len(asked),
    )
