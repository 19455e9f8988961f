"""What a ReplicationPolicy may say: every mistake at once, before anything is sent."""

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from dsec.api.mistakes import Mistake
from dsec.api.replication import ReplicationPolicySpec
from dsec.api.snapshot import STORED


def mistakes(spec: ReplicationPolicySpec, *, region: str = "") -> list[Mistake]:
    """Return what has to be corrected; `region` is the one that copies come from, where known."""
    return [*_destinations(spec, region), *_kinds(spec), *_copies(spec)]


def plain_transport(endpoint: str) -> str:
    """Return why bytes to an endpoint would not be encrypted on their way; empty: they are.

    On loopback nothing leaves the machine, so there plain HTTP is no mistake.
    """
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    if parts.scheme == "https" and parts.hostname:
        return ""
    if parts.scheme == "http" and _loopback(parts.hostname or ""):
        return ""
    if parts.scheme == "http" and parts.hostname:
        return "copies are encrypted in transit: the endpoint has to be https://"
    return "no address: wanted is https://host[:port]"


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _destinations(spec: ReplicationPolicySpec, region: str) -> Iterator[Mistake]:
    seen: set[str] = set()
    for at, one in enumerate(spec.destinations):
        path = f"spec.destinations[{at}]"
        if not one.region.strip():
            yield Mistake(
                f"{path}.region", one.region, "a region", "a destination names its region"
            )
        if region and one.region == region:
            yield Mistake(
                f"{path}.region",
                one.region,
                f"a region other than {region}",
                f"{one.region} is where the snapshots are: a copy beside them protects nothing",
            )
        if one.region in seen:
            yield Mistake(
                f"{path}.region", one.region, "each region once", f"{one.region} is there twice"
            )
        seen.add(one.region)
        if why := plain_transport(one.endpoint):
            yield Mistake(f"{path}.endpoint", one.endpoint, "https://host[:port]", why)
        if not one.bucket.strip():
            yield Mistake(f"{path}.bucket", one.bucket, "a bucket", "a destination has a bucket")
        if spec.residency and one.region not in spec.residency:
            allowed = ", ".join(spec.residency)
            yield Mistake(
                f"{path}.region", one.region, allowed, f"{one.region} is not in spec.residency"
            )


def _kinds(spec: ReplicationPolicySpec) -> Iterator[Mistake]:
    for at, kind in enumerate(spec.kinds):
        if kind not in STORED:
            yield Mistake(
                f"spec.kinds[{at}]",
                kind.value,
                ", ".join(sorted(STORED)),
                f"{kind.value} stores nothing that could be copied",
            )


def _copies(spec: ReplicationPolicySpec) -> Iterator[Mistake]:
    if spec.min_copies > len(spec.destinations):
        yield Mistake(
            "spec.minCopies",
            spec.min_copies,
            f"1 to {len(spec.destinations)}",
            f"{spec.min_copies} copies need as many destinations",
        )
