"""Accounts of the quota ledger: amounts, their units, and who may use how much.

An account is a tenant, a project of it or a task of that: `tenant`, `tenant/project`,
`tenant/project/task` (TEN-03). Each has, per dimension, a nominal amount (what it owns) and a
ceiling (the most, with what it borrows). A dimension without a figure is unlimited. A ceiling that
is not given is equal to the nominal amount (TEN-02, CONF-16).

Amounts are whole numbers of the dimension's unit, of any size. Everything else is refused:
fractions would drift, and a negative one would pay for somebody else's.

Shares (TEN-05, TEN-06, CONF-08). Absolute: a core is 12.5 shares everywhere, so a share is exactly
80 milli-cores and a limit in shares is a limit in milli-cores. Relative: each machine has 1,000;
what a request takes of them is known once it has a machine. A GB of GPU memory is 10 shares; the
GB of device data sheets is the GiB that drivers report.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsec.api.experiment import TaskClass
from dsec.api.sandbox import GpuMode, Resources
from dsec.placement.dimensions import (
    GIB,
    SHARES_PER_GIB,
    ShareScale,
    cpu_milli_of_shares,
    cpu_shares_of,
)

DIMENSIONS = (
    "gpu_memory_bytes",
    "gpu_milli",
    "gpu_shares",
    "memory_bytes",
    "disk_bytes",
    "sandboxes",
    "cpu_milli",
    "cpu_shares",
)
"""What quotas count, incompressible first: that is the order in which shortages are told."""
ALIASES: Mapping[str, tuple[str, int]] = {"gpu_count": ("gpu_milli", 1000)}
"""Other names of the same thing, with their factor. Both names of one request are summed."""
MILLI_PER_SHARE = cpu_milli_of_shares(1, ShareScale.ABSOLUTE)
EXCLUSIVE = frozenset({GpuMode.WHOLE, GpuMode.PASSTHROUGH})
LEVELS = ("tenant", "project", "task")

Amounts = Mapping[str, int]
"""Dimension to amount."""


class QuotaError(ValueError):
    """A quota, account or entry that makes no sense; the message names field, value and remedy."""


def amounts(given: Mapping[str, object], where: str = "amounts") -> dict[str, int]:
    """Return checked amounts: known dimensions, whole, not negative; None and 0 are left out.

    Raises QuotaError.
    """
    found: dict[str, int] = {}
    for name, value in given.items():
        dimension, factor = ALIASES.get(name, (name, 1))
        if dimension not in DIMENSIONS:
            known = ", ".join((*DIMENSIONS, *ALIASES))
            raise QuotaError(f"{where}.{name}: no such dimension; known are {known}")
        if value is None:
            continue
        # True is an int to Python, and no amount of anything
        if not isinstance(value, int) or isinstance(value, bool):
            raise QuotaError(f"{where}.{name}: {value!r} is no whole number of its unit")
        if value < 0:
            raise QuotaError(f"{where}.{name}: {value} is negative; 0 or more is allowed")
        if value:
            found[dimension] = found.get(dimension, 0) + value * factor
    return found


def limits(
    given: Mapping[str, object], where: str = "limits", unit: str = "absolute"
) -> dict[str, int]:
    """Return checked limits: as amounts, but 0 is a limit; None is none.

    In the unit `absolute` a limit in CPU shares becomes one in milli-cores, the lower of the two
    where both are given; in the unit `relative` it stays (CONF-08). Raises QuotaError.
    """
    if unit not in {"absolute", "relative"}:
        raise QuotaError(f"{where}: unit {unit!r}; absolute and relative are allowed")
    checked = amounts(given, where)
    set_ = {ALIASES.get(name, (name, 1))[0] for name, value in given.items() if value is not None}
    found = {dimension: checked.get(dimension, 0) for dimension in DIMENSIONS if dimension in set_}
    if unit == "absolute" and "cpu_shares" in found:
        milli = found.pop("cpu_shares") * MILLI_PER_SHARE
        found["cpu_milli"] = min(milli, found.get("cpu_milli", milli))
    return found


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    """Return the sum of amounts."""
    found: dict[str, int] = {}
    for part in parts:
        for dimension, value in part.items():
            found[dimension] = found.get(dimension, 0) + value
    return found


def amounts_of(
    resources: Resources, *, machine_cpu_milli: int = 0, card_bytes: int = 0
) -> dict[str, int]:
    """Return what one sandbox counts in the ledger.

    `machine_cpu_milli` (0: not placed yet) adds its relative CPU shares. `card_bytes` (0: not
    known) is the memory of the card that a shared client runs on; without it a client counts as a
    whole card, never as less than it takes.
    """
    memory = max(resources.gpu_memory_bytes, resources.gpu_shares * GIB // SHARES_PER_GIB)
    cards = resources.gpu_count
    if resources.gpu_milli or resources.gpu_shares:
        # a part of a card is of one card where no number is said
        cards = max(1, cards)
    part = 1000
    if resources.gpu_milli:
        part = min(1000, resources.gpu_milli)
    elif card_bytes and memory and (resources.gpu_mode or GpuMode.SHARES) not in EXCLUSIVE:
        part = min(1000, -(-1000 * memory // card_bytes))
    found = {
        "cpu_milli": resources.cpu_milli,
        "memory_bytes": resources.memory_bytes,
        "disk_bytes": resources.disk_bytes,
        "sandboxes": 1,
        "gpu_milli": part * cards,
        "gpu_memory_bytes": memory * cards,
        "gpu_shares": gpu_shares(memory) * cards,
    }
    if machine_cpu_milli:
        found["cpu_shares"] = cpu_shares_of(
            resources.cpu_milli, ShareScale.RELATIVE, machine_cpu_milli
        )
    return {dimension: value for dimension, value in found.items() if value}


def gpu_shares(memory_bytes: int) -> int:
    """Return the whole GPU memory shares that an amount takes, rounded up: 80 GB are 800."""
    return -(-memory_bytes * SHARES_PER_GIB // GIB)


@dataclass(frozen=True, slots=True)
class Account:
    """Who may use how much. Raises QuotaError where it makes no sense.

    `cohort` (tenants only): the tenants that lend each other what is idle; empty: a tenant that
    neither lends nor borrows. `above_nominal` (tenants only): the class that guaranteed work gets
    where the nominal amount is used up: the tenant's consent to give it back. `closed`: the task
    has ended; what it was given and does not use is its parent's again (TEN-03).
    """

    path: str
    nominal: Amounts = field(default_factory=dict)
    ceiling: Amounts | None = None
    cohort: str = "cluster"
    above_nominal: TaskClass | None = None
    closed: bool = False

    def __post_init__(self) -> None:
        parts = split(self.path)
        nominal = limits(self.nominal, f"{self.path}: nominal", "relative")
        ceiling = None
        if self.ceiling is not None:
            ceiling = limits(self.ceiling, f"{self.path}: ceiling", "relative")
            for dimension, most in ceiling.items():
                # without a nominal figure the ceiling is all that bounds it: it is owned up to it
                if nominal.setdefault(dimension, most) > most:
                    raise QuotaError(
                        f"{self.path}: ceiling.{dimension}: {most} is below nominal "
                        f"{nominal[dimension]}; the ceiling counts what is owned and borrowed"
                    )
        if self.above_nominal is TaskClass.GUARANTEED:
            raise QuotaError(
                f"{self.path}: aboveNominal: guaranteed; what is borrowed has to be given back: "
                f"pausable and preemptible are allowed"
            )
        if self.above_nominal and len(parts) > 1:
            raise QuotaError(f"{self.path}: aboveNominal: is set on tenants, not below them")
        if self.closed and len(parts) < len(LEVELS):
            raise QuotaError(f"{self.path}: closed: only a task ends")
        object.__setattr__(self, "nominal", nominal)
        object.__setattr__(self, "ceiling", ceiling)

    def most(self, dimension: str) -> int | None:
        """Return the most of a dimension that it may use, None: unlimited."""
        return (self.nominal if self.ceiling is None else self.ceiling).get(dimension)


def split(path: str) -> tuple[str, ...]:
    """Return the names of a path of one to three levels. Raises QuotaError."""
    parts = tuple(path.split("/"))
    if len(parts) > len(LEVELS) or not all(parts):
        raise QuotaError(f"account {path!r}: tenant, tenant/project or tenant/project/task")
    return parts
