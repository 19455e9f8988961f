"""Where the parts of a repository lie in its bucket, and how lineages and repositories are named.

A repository is what data is deduplicated within: one per tenant, and one more for each set of
regions that data of the tenant is bound to beyond the tenant's own rule. So a pack never holds
bytes of two different residencies, and who copies packs needs no key to keep that rule.
"""

from collections.abc import Iterable
from urllib.parse import quote, unquote

ROOT = "snapshots/"
LONGEST = 900
"""Bytes of a key that are left to a lineage; S3 takes 1024."""


def prefix_of(tenant: str, residency: Iterable[str] = (), usual: Iterable[str] = ()) -> str:
    """Return where data of a tenant is kept that may be in some regions only.

    `residency` is what holds for the data, `usual` what holds for its tenant anyway.
    """
    regions = sorted(set(residency))
    if not regions or set(regions) == set(usual):
        return f"{ROOT}{tenant}/"
    return f"{ROOT}{tenant}.{'+'.join(quote(one, safe='') for one in regions)}/"


def bound_to(prefix: str) -> tuple[str, tuple[str, ...]]:
    """Return the tenant of a repository, and the regions in its name (none: the tenant's rule)."""
    tenant, _, regions = prefix.removeprefix(ROOT).strip("/").partition(".")
    return tenant, tuple(unquote(one) for one in regions.split("+") if one)


def under(prefix: str, *parts: str) -> str:
    """Return a key below the prefix of a repository, given with or without its last slash."""
    return "/".join((prefix.rstrip("/"), *parts))


def repository_of(key: str) -> str:
    """Return the prefix of the repository that a key belongs to. Raises ValueError."""
    name, slash, _ = key.removeprefix(ROOT).partition("/")
    if not key.startswith(ROOT) or not slash or not name:
        raise ValueError(f"{key!r} is in no repository of snapshots")
    return f"{ROOT}{name}/"


def check_lineage(lineage: str) -> str:
    """Return the lineage. Raises ValueError where it is no name for a key."""
    parts = lineage.split("/")
    good = len(parts) > 1 and all(part not in {"", ".", ".."} for part in parts)
    if not good or not lineage.isprintable() or len(lineage.encode()) > LONGEST:
        raise ValueError(
            f"lineage {lineage!r}: wanted is exp/<uid>/<role>/<index> or sb/<id>, printable, "
            f"at most {LONGEST} bytes"
        )
    return lineage


def name_of(lineage: str, seq: int) -> str:
    """Return what people call a snapshot."""
    return f"{lineage}@{seq}"


def parse_name(name: str) -> tuple[str, int]:
    """Return the lineage and the number that people mean. Raises ValueError."""
    lineage, at, seq = name.rpartition("@")
    if not at or not seq.isascii() or not seq.isdecimal() or int(seq) < 1:
        raise ValueError(f"snapshot {name!r}: wanted is LINEAGE@NUMBER, as exp/<uid>/<role>/0@3")
    return check_lineage(lineage), int(seq)
