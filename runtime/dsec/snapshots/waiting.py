"""What stands in line in a save: entries, parts of large files, leaves."""

from concurrent.futures import Future
from dataclasses import dataclass, field

from dsec.snapshots.leafcache import KnownLeaf
from dsec.snapshots.manifest import Entry
from dsec.snapshots.scanning import Source
from dsec.snapshots.segments import Segment
from dsec.snapshots.statcache import KnownSegment

SEGMENT_WEIGHT = 128
"""A segment's prints take as much memory as so many entries."""


@dataclass(slots=True)
class Small:
    """What a job read of a small file."""

    pieces: bytes
    size: int
    xattrs: tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True)
class Waiting:
    """An entry in line. Small: a place in a batch. Large: `segments` more follow as `Part`s."""

    entry: Entry
    stat: bytes = b""
    batch: "Future[list[Small | None]] | None" = None
    place: int = 0
    reading: bool = False
    segments: int = 0
    record: bytes = b""
    """Of a file that did not change."""
    weight: int = 1


@dataclass(slots=True)
class Part:
    """A segment in line, of the large file before it."""

    job: "Future[Segment | None] | None"
    known: KnownSegment | None
    last: bool
    weight: int = SEGMENT_WEIGHT


@dataclass(slots=True)
class Reused:
    """A leaf in line of which nothing changed."""

    leaf: KnownLeaf
    weight: int = 64


@dataclass(slots=True)
class Tree:
    """A source that is being read."""

    source: Source
    root: int
    batch: list[tuple[Waiting, bytes, int]] = field(default_factory=list)
    batch_bytes: int = 0
    slow: int = 0
    """So many batches more are read by workers."""


def is_ready(one: Waiting | Part | Reused) -> bool:
    """Return whether finishing this one waits for nothing."""
    if isinstance(one, Reused):
        return True
    if isinstance(one, Part):
        return one.job is None or one.job.done()
    return not one.reading or (one.batch is not None and one.batch.done())
