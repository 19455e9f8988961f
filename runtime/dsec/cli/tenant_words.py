"""A tenant for people: what it owns, what of it is used or lent to gateways, and what is free."""

from collections.abc import Callable
from typing import Any

from dsec.cli.output import cores, size

DIMENSIONS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("cpuMilli", lambda value: f"{cores(value)} cores"),
    ("memoryBytes", lambda value: f"{size(value)} memory"),
    ("gpuCount", lambda value: f"{value} GPUs"),
    ("sandboxes", lambda value: f"{value} sandboxes"),
)


def lent(record: dict[str, Any]) -> str:
    """Return what gateways hold of a tenant's quota, empty: nothing."""
    held = record.get("status", {}).get("leased") or {}
    return ", ".join(words(held[name]) for name, words in DIMENSIONS if held.get(name))


def tenant_lines(record: dict[str, Any]) -> list[str]:
    """Return the description of a tenant's record."""
    spec, status = record.get("spec", {}), record.get("status", {})
    quota = spec.get("quota") or {}
    owned, most = quota.get("nominal") or {}, quota.get("ceiling")
    used, held = status.get("used") or {}, status.get("leased") or {}
    free = {
        name: max(0, owned[name] - (used.get(name) or 0) - (held.get(name) or 0))
        for name, _ in DIMENSIONS
        if owned.get(name) is not None
    }
    projects = ", ".join(spec.get("projects") or []) or "no"
    counts = f"{status.get('experiments', 0)} tasks, {status.get('keyed', 0)} single sandboxes"
    lines = [
        f"tenant {record['metadata']['name']}: {projects} projects, {counts}",
        f"  owns        {_amounts(owned) or 'whatever there is: no quota is set'}",
    ]
    if most is not None:
        lines.append(f"  at most     {_amounts(most) or 'no limit'}, with what it borrows")
    lines.append(f"  uses        {_amounts(used) or 'nothing'}")
    told = lent(record)
    if told:
        told += ": lent to gateways for single creates, counted as used until it is given back"
    lines.append(f"  lent        {told or 'nothing: no gateway creates for it now'}")
    if free:
        lines.append(f"  free        {_amounts(free)}")
    lines += [
        f"  {one['type']} {one['status']}: {one.get('message') or one.get('reason')}"
        for one in status.get("conditions") or []
    ]
    return lines


def _amounts(found: dict[str, Any]) -> str:
    return ", ".join(
        words(found[name]) for name, words in DIMENSIONS if found.get(name) is not None
    )
