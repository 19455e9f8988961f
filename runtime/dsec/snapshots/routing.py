"""Which repository may be copied where: pure. Residency limits destinations, and never bends.

Data whose regions leave no destination is copied nowhere, and that is said (CONF-29): a remote copy
is worth much, but not a breach. What is not known counts as forbidden: a repository whose tenant
has no record any more stays where it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dsec.api.replication import ReplicationPolicySpec
from dsec.snapshots.layout import bound_to

Regions = frozenset[str]


@dataclass(frozen=True, slots=True)
class Route:
    """One repository to one region."""

    prefix: str
    tenant: str
    region: str


@dataclass(frozen=True, slots=True)
class Barred:
    """A repository that gets fewer copies than were asked for, and why."""

    prefix: str
    tenant: str
    copies: int
    why: str


@dataclass(frozen=True, slots=True)
class Residency:
    """Where data may be: by tenant, and what single tasks of it are bound to beyond that.

    An empty list of a tenant is no limit. `tighter` has the regions of each task that names any.
    """

    tenants: Mapping[str, Sequence[str]]
    tighter: Mapping[str, Iterable[Sequence[str]]]

    def of(self, prefix: str) -> Regions | None:
        """Return the regions that a repository may be in; None: anywhere.

        Raises LookupError where its tenant is not known.
        """
        tenant, own = bound_to(prefix)
        limits = [self.tenants[tenant], own]
        if not own:
            # the tenant's shared repository holds data of all of them
            limits += self.tighter.get(tenant, ())
        sets = [frozenset(one) for one in limits if one]
        return frozenset.intersection(*sets) if sets else None


def routes(
    spec: ReplicationPolicySpec, repositories: Iterable[str], residency: Residency, *, home: str
) -> tuple[list[Route], list[Barred]]:
    """Return what is copied where, and what is not; `home` is the region that copies come from."""
    found, barred = [], []
    for prefix in sorted(set(repositories), key=str.encode):
        tenant, _ = bound_to(prefix)
        if spec.tenants and tenant not in spec.tenants:
            continue
        try:
            regions = residency.of(prefix)
        except LookupError:
            why = f"tenant {tenant} is not known, so neither is where its data may be"
            barred.append(Barred(prefix, tenant, 0, why))
            continue
        allowed = [
            one.region
            for one in spec.destinations
            if one.region != home and _may(one.region, regions, spec.residency)
        ]
        found += [Route(prefix, tenant, region) for region in allowed]
        if len(allowed) < spec.min_copies:
            barred.append(Barred(prefix, tenant, len(allowed), _why(spec, regions, len(allowed))))
    return found, barred


def _may(region: str, regions: Regions | None, policy: Sequence[str]) -> bool:
    return (regions is None or region in regions) and (not policy or region in policy)


def _why(spec: ReplicationPolicySpec, regions: Regions | None, copies: int) -> str:
    asked = ", ".join(one.region for one in spec.destinations)
    if regions is None:
        may = "anywhere"
    else:
        may = ", ".join(sorted(regions)) or "nowhere: its rules exclude each other"
    return f"{copies} of {spec.min_copies} copies: its data may be in {may}; destinations: {asked}"
