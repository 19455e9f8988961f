"""Quota refusals in words: which quota, whose, what was asked, what is free, what would start it.

A shortage of quota is told apart from one of the cluster: more machines would not help (TEN-22).
"""

from collections.abc import Callable
from enum import StrEnum

from dsec.placement.refusal import Refusal


class Limit(StrEnum):
    """Which figure of an account stands in the way."""

    NOMINAL = "nominal"
    """Guaranteed work is admitted within what the account owns and nowhere else."""
    CEILING = "ceiling"
    """The most that the account may use."""
    LENT = "lent"
    """The account owns it, but others have borrowed it."""
    IDLE = "idle"
    """Nobody in the cohort has any left to lend."""
    CLOSED = "closed"
    """The task has ended."""
    LEASE = "lease"
    """The slice that a gateway was lent."""


NAMES = {
    "cpu_milli": "CPU",
    "memory_bytes": "memory",
    "disk_bytes": "disk",
    "gpu_milli": "GPUs",
    "gpu_memory_bytes": "GPU memory",
    "sandboxes": "sandboxes",
    "cpu_shares": "CPU shares",
    "gpu_shares": "GPU memory shares",
}
UNITS = {
    "cpu_milli": "cpu",
    "memory_bytes": "memory",
    "disk_bytes": "disk",
    "gpu_memory_bytes": "gpu memory",
}
"""Dimensions of the ledger to those that placement writes with a unit."""


def quota_sentence(refusal: Refusal, amount: Callable[[str, int | str], str]) -> str:
    """Return a refusal of the ledger as a sentence; `amount` writes a figure with its unit."""
    limit = Limit(refusal.limit)
    if limit is Limit.CLOSED:
        return (
            f"quota of {refusal.whose}: asked {refusal.asked} more, free 0: the task has ended; "
            f"starts when it is submitted again"
        )
    asked, free, largest = (
        figure(refusal.dimension, value, amount)
        for value in (refusal.asked, refusal.free, refusal.largest)
    )
    place, remedy = _LIMITS[limit](refusal.whose)
    name = NAMES[refusal.dimension]
    return (
        f"quota of {name}, {place}: asked {asked}, free {free} of {largest}; starts when {remedy}"
    )


def figure(dimension: str, value: int | str, amount: Callable[[str, int | str], str]) -> str:
    """Return a figure of the ledger with its unit; `amount` writes those of placement."""
    if dimension == "gpu_milli" and isinstance(value, int):
        whole, rest = divmod(value, 1000)
        return f"{whole}.{rest:03d}".rstrip("0").rstrip(".")
    return amount(UNITS.get(dimension, dimension), value)


_LIMITS: dict[Limit, Callable[[str], tuple[str, str]]] = {
    Limit.NOMINAL: lambda whose: (
        f"own share of {whose}",
        f"guaranteed work of {whose} ends, its share is raised, or this may be paused or preempted",
    ),
    Limit.CEILING: lambda whose: (
        f"ceiling of {whose}",
        f"other work of {whose} ends or its ceiling is raised",
    ),
    Limit.LENT: lambda whose: (
        f"own share of {whose}, lent to others",
        "those who borrowed it have given it back, which is asked of them",
    ),
    Limit.IDLE: lambda whose: (
        f"idle shares of {whose}",
        "others leave more of their shares idle or the tenant's own share is raised",
    ),
    Limit.LEASE: lambda whose: (
        f"slice lent to {whose}",
        "the controller lends more, which is asked of it",
    ),
}
