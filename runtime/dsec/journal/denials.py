"""How many refusals of one caller get a row of their own: a flood must not fill the audit store.

A bucket per caller: the first BURST denials are written one by one, then one each EVERY seconds.
What was not written is counted, and the count goes into the caller's next row.
"""

from dataclasses import dataclass, field

from dsec.world.clock import Clock

BURST = 200
EVERY = 5.0
CALLERS = 10_000
"""Callers kept; beyond that all start afresh, which costs rows and loses counts, never memory."""


@dataclass(slots=True)
class _Bucket:
    """Of one caller: rows that may be written, and denials that were not."""

    rows: float
    at: float
    unwritten: int = 0


@dataclass(slots=True)
class Denials:
    """Of one process. Soft: a restart begins with full buckets."""

    clock: Clock
    _buckets: dict[str, _Bucket] = field(default_factory=dict)

    def take(self, caller: str) -> int | None:
        """Note one denial: None, it is only counted; else how many were since the last row."""
        now = self.clock.monotonic()
        bucket = self._buckets.get(caller)
        if bucket is None:
            if len(self._buckets) >= CALLERS:
                self._buckets.clear()
            bucket = self._buckets[caller] = _Bucket(BURST, now)
        bucket.rows = min(BURST, bucket.rows + (now - bucket.at) / EVERY)
        bucket.at = now
        if bucket.rows < 1:
            bucket.unwritten += 1
            return None
        bucket.rows -= 1
        unwritten, bucket.unwritten = bucket.unwritten, 0
        return unwritten
