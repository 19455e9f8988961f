"""What people ask about snapshots, and what they are told."""

from datetime import datetime

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.snapshot import SnapshotKind, SnapshotRef

RATE = 50e9 / 90
"""Bytes a second of a restore, at least: 50 GB in about 90 s (SNAP-13)."""
START_SECONDS = 5.0
"""From a decision to a running command, without its state."""


def restore_seconds(size: float) -> float:
    """Return about how long a sandbox takes to go on from a snapshot of so many bytes."""
    return START_SECONDS + size / RATE


class Snapshot(WireModel):
    """One stored snapshot, as people see it."""

    name: str = Field(description="LINEAGE@NUMBER.")
    ref: SnapshotRef
    pinned: bool = False
    pinned_why: str = ""
    live: bool = Field(default=False, description="What it was taken of goes on.")


class Snapshots(WireModel):
    """Stored snapshots, newest first. `damaged`: objects that cannot be what their keys say."""

    items: list[Snapshot]
    damaged: list[str] = []


class TakeSnapshot(WireModel):
    """Take one now. Without a kind it is the first of the task's policy."""

    kind: SnapshotKind | None = None


class PinSnapshot(WireModel):
    """Keep one from every rule."""

    why: str = Field(default="", max_length=256)
    until: datetime | None = None


class RestoreCall(WireModel):
    """Go on from a snapshot: what still lives is put back to it, else a sandbox is made of it."""

    any_image: bool = Field(default=False, description="Also under another image than its own.")
    key: str = Field(default="", max_length=200, description="Of a sandbox that is made.")


class ForkCall(WireModel):
    """Make new sandboxes of a snapshot, each with an identity of its own."""

    count: int = Field(default=1, ge=1, le=1000)
    key: str = Field(default="", max_length=150, description="Prefix of their keys.")
    image: str = Field(default="", description="Another one; needs anyImage.")
    any_image: bool = False
    env: dict[str, str] = {}


class Restored(WireModel):
    """What goes on from a snapshot: `put-back` the same sandbox, `made` a new one."""

    how: str
    snapshot: str
    id: str = ""
    message: str = ""


class VerifyAnswer(WireModel):
    """What a snapshot holds, and what is wrong with it."""

    name: str
    good: bool
    files: int = 0
    bytes: int = 0
    checked_bytes: int = 0
    problems: list[str] = []


class Difference(WireModel):
    """One path that differs. `what`: added, removed, changed."""

    path: str
    what: str
    before: int | None = Field(default=None, description="Size in bytes.")
    after: int | None = None


class Differences(WireModel):
    """How two snapshots differ, from the older to the newer; `more` are not listed."""

    before: str
    after: str
    items: list[Difference]
    added: int = 0
    removed: int = 0
    changed: int = 0
    more: int = 0


class Collected(WireModel):
    """What a collection removed from one tenant's store."""

    tenant: str
    packs: int = 0
    bytes: int = 0
    waits_for: list[str] = Field(default=[], description="Who still saves; nothing went then.")
    broken: list[str] = Field(default=[], description="Snapshots that cannot be restored at all.")
    problem: str = ""


class CollectedAll(WireModel):
    """Of every tenant."""

    items: list[Collected]


class MigrateCall(WireModel):
    """Move a sandbox to another node; empty: to any that has room."""

    node: str = ""


class DrainCall(WireModel):
    """Empty a node, or every node of a pool. `evict`: what cannot move ends, and starts again."""

    evict: bool = False
    undo: bool = Field(default=False, description="Let work come back.")


class Drained(WireModel):
    """The nodes that a drain is about."""

    nodes: list[str]
