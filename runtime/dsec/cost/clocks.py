"""A time that money can be counted by: it never goes back, and does not follow a clock that jumps.

Within one boot it advances with BOOTTIME, which counts suspended time and cannot be set, and
follows the wall clock only as fast as a clock is slewed (500 ppm). So a jump of the wall clock, an
hour or a year either way, moves neither a period nor a run-until time, and a leap second is taken
over half an hour. After a restart on the same boot it goes on from its mark; on another it starts
from the wall clock, and never before the mark. The caller keeps the mark with the ledger.
"""

from dataclasses import dataclass

SLEW = 0.0005
"""Seconds per second that the wall clock is followed."""
TOLERANCE = 0.5
"""Seconds; a clock that is further off is told (`off`), and gets no work."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The time counted by, seconds since the epoch, and the readings that it was made from."""

    utc: float
    boot_seconds: float
    boot_id: str
    off: float = 0.0
    """Wall clock minus `utc`."""

    @property
    def trusted(self) -> bool:
        """Whether the wall clock agrees."""
        return abs(self.off) <= TOLERANCE


def advanced(mark: Mark | None, wall: float, boot_seconds: float, boot_id: str) -> Mark:
    """Return the next mark: `wall` UTC seconds, `boot_seconds` BOOTTIME of the boot `boot_id`."""
    if mark is None:
        return Mark(wall, boot_seconds, boot_id)
    if boot_id != mark.boot_id:
        utc = max(mark.utc, wall)
        return Mark(utc, boot_seconds, boot_id, wall - utc)
    passed = max(0.0, boot_seconds - mark.boot_seconds)
    expected = mark.utc + passed
    slew = passed * SLEW
    utc = min(max(wall, expected - slew), expected + slew)
    return Mark(utc, max(boot_seconds, mark.boot_seconds), boot_id, wall - utc)
