"""The one list of what a node has and a request takes, incompressible first (SCHED-20).

Columns of a view, one whole number per node: bytes, counts, milli-cores. A request fits where
free >= asked in every column that it asks for. Those after PINS are not booked but follow from the
state of a node and its cards.
"""

from enum import IntEnum, StrEnum

from dsec.api.reasons import PendingReason
from dsec.placement.refusal import Refusal

LIMIT = (1 << 63) - 1
"""Most that a request may ask: larger figures are mistakes, and no 64-bit counter holds them."""
UNMETERED = 1 << 62
"""A total that nobody has measured, and the most that a node counts as having: sums of what was
booked against it stay below 2^63."""
WHOLE = 1000
"""Milli of one card, and of one core."""
ABSOLUTE_SHARES_PER_CORE_X10 = 125
"""12.5 CPU shares a core, ten times: whole numbers (TEN-05)."""
MACHINE_SHARES = 1000
"""CPU shares of one machine, whatever its size (CONF-08, relative)."""
SHARES_PER_GIB = 10
"""GPU memory shares per GiB of a card: an 80 GB card has 800 (TEN-06)."""
GIB = 1 << 30


class Column(IntEnum):
    """What a view keeps of each node, in the order in which it is compared and named."""

    MEMORY = 0
    PIDS = 1
    DISK = 2
    DENSITY = 3
    IOPS = 4
    BANDWIDTH = 5
    CPU = 6
    PINS = 7
    """CPUs that no exclusive sandbox has yet."""
    HEADROOM = 8
    """Of the watermarks: 2 below safe, 1 between safe and limit, 0 at the limit (SCHED-03)."""
    WHOLE = 9
    """Idle cards that may be given whole."""
    PASSTHROUGH = 10
    """Idle cards that may be passed through."""
    SHARE = 11
    """Most free milli of one card that takes clients (shares, mps)."""
    SLICES = 12
    """Cards that have a free slice."""
    EXPLORATION = 13
    """Sandboxes of that stage on the node; as the next two not compared but scored (SCHED-14)."""
    TRAINING = 14
    EVALUATION = 15


BOOKED = 8
"""Columns that bookings change by plain subtraction: all before HEADROOM."""
NAMES: dict[Column, str] = {
    Column.MEMORY: "memory",
    Column.PIDS: "pids",
    Column.DISK: "disk",
    Column.DENSITY: "density",
    Column.IOPS: "disk iops",
    Column.BANDWIDTH: "disk bandwidth",
    Column.CPU: "cpu",
    Column.PINS: "exclusive cpus",
    Column.HEADROOM: "watermark",
    Column.WHOLE: "gpu",
    Column.PASSTHROUGH: "gpu",
    Column.SHARE: "gpu share",
    Column.SLICES: "gpu slice",
}
"""Names in refusals."""


class ShareScale(StrEnum):
    """What a CPU share is (CONF-08)."""

    ABSOLUTE = "absolute"
    """12.5 a core: means the same on every machine."""
    RELATIVE = "relative"
    """A thousandth of the machine."""


def cpu_milli_of_shares(shares: int, scale: ShareScale, machine_cpu_milli: int = 0) -> int:
    """Return milli-cores of CPU shares, rounded up. Example: 400 absolute shares are 32,000.

    `machine_cpu_milli` is the machine that relative shares are of.
    """
    if scale is ShareScale.ABSOLUTE:
        return -(-shares * WHOLE * 10 // ABSOLUTE_SHARES_PER_CORE_X10)
    return -(-shares * machine_cpu_milli // MACHINE_SHARES)


def cpu_shares_of(cpu_milli: int, scale: ShareScale, machine_cpu_milli: int = 0) -> int:
    """Return the shares that milli-cores book, rounded up: the other way round."""
    if scale is ShareScale.ABSOLUTE:
        return -(-cpu_milli * ABSOLUTE_SHARES_PER_CORE_X10 // (WHOLE * 10))
    return -(-cpu_milli * MACHINE_SHARES // machine_cpu_milli) if machine_cpu_milli > 0 else 0


def saturated(amount: int) -> int:
    """Return a node's figure within what a column may hold: never negative, never too large."""
    return min(max(amount, 0), UNMETERED)


def quantity_refusal(name: str, amount: int, least: int = 0) -> Refusal | None:
    """Return why a request may not ask for that amount; None: it may."""
    if amount < least:
        return Refusal(PendingReason.INVALID, name, amount, least)
    if amount > LIMIT:
        return Refusal(PendingReason.INVALID, name, amount, largest=LIMIT)
    return None
