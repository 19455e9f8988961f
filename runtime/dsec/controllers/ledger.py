"""The ledger: used = sum over live sandboxes, always computed, never counted up and down. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dsec.api.reasons import PendingReason
from dsec.api.sandbox import Resources
from dsec.api.tenant import Amounts, TenantSpec
from dsec.journal.bindings import Binding
from dsec.placement.core import ClusterView, NodeView
from dsec.placement.refusal import Refusal


@dataclass(slots=True)
class Used:
    """Sums of one tenant or node; memory in bytes, CPU in milli-cores."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_count: int = 0
    sandboxes: int = 0

    def add(self, resources: Resources) -> None:
        """Book one sandbox."""
        self.cpu_milli += resources.cpu_milli
        self.memory_bytes += resources.memory_bytes
        self.gpu_count += resources.gpu_count
        self.sandboxes += 1

    def amounts(self) -> Amounts:
        """Return the sums as they stand in a record."""
        return Amounts(
            cpu_milli=self.cpu_milli,
            memory_bytes=self.memory_bytes,
            gpu_count=self.gpu_count,
            sandboxes=self.sandboxes,
        )


def used_by_tenant(live: Iterable[Binding]) -> dict[str, Used]:
    """Return what each tenant uses now."""
    sums: dict[str, Used] = {}
    for binding in live:
        sums.setdefault(binding.tenant, Used()).add(binding.spec.resources)
    return sums


def limit_of(tenant: TenantSpec) -> Amounts:
    """Return the most that a tenant may use: its ceiling, else its nominal share (TEN-02)."""
    return tenant.quota.ceiling or tenant.quota.nominal


def over_quota(used: Used, limit: Amounts, asked: Resources) -> Refusal | None:
    """Return the first dimension in which one more sandbox would pass the limit, or None."""
    for name, dimension, want in (
        ("sandboxes", "sandboxes", 1),
        ("cpu_milli", "cpu", asked.cpu_milli),
        ("memory_bytes", "memory", asked.memory_bytes),
        ("gpu_count", "gpu", asked.gpu_count),
    ):
        most = getattr(limit, name)
        if most is not None and want and getattr(used, name) + want > most:
            free = max(0, most - getattr(used, name))
            return Refusal(PendingReason.QUOTA, dimension, want, free, largest=most)
    return None


def admit(
    wanted: Sequence[Binding], live: Iterable[Binding], limits: Mapping[str, Amounts]
) -> tuple[list[Binding], dict[str, Refusal]]:
    """Split requests, in order, into those within quota and the refusals of the others.

    This is the one gate for every way of making a sandbox. A gang is admitted whole or not at all;
    of a tenant without an entry in `limits` nothing is.
    """
    sums = used_by_tenant(live)
    admitted: list[Binding] = []
    refused: dict[str, Refusal] = {}
    gangs: dict[str, list[Binding]] = {}
    for binding in wanted:
        gangs.setdefault(binding.gang or binding.id, []).append(binding)
    for members in gangs.values():
        tenant = members[0].tenant
        limit = limits.get(tenant)
        if limit is None:
            # a tenant that is gone has no quota: no limit known is not no limit
            gone = Refusal(PendingReason.QUOTA, "tenant", tenant)
            refused |= {member.id: gone for member in members}
            continue
        before = sums.get(tenant, Used())
        trial = Used(before.cpu_milli, before.memory_bytes, before.gpu_count, before.sandboxes)
        refusal = None
        for member in members:
            refusal = over_quota(trial, limit, member.spec.resources)
            if refusal is not None:
                break
            trial.add(member.spec.resources)
        if refusal is None:
            sums[tenant] = trial
            admitted += members
        else:
            refused |= {member.id: refusal for member in members}
    return admitted, refused


def booked(nodes: Sequence[NodeView], live: Iterable[Binding]) -> ClusterView:
    """Return the nodes with every live binding booked on them. The given views are changed."""
    by_name = {node.name: node for node in nodes}
    for binding in live:
        node = by_name.get(binding.node)
        if node is not None:
            node.book(binding.spec.resources, binding.spec.devices)
    return ClusterView(list(nodes))
