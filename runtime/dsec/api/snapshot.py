"""Snapshots: what is asked of agents, and what a stored one says about itself."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from dsec.api.base import WireModel


class SnapshotKind(StrEnum):
    """What a snapshot holds (CONF-05)."""

    STATE = "state"
    """Files that the task names: checkpoint, replay buffer increment, random state, metadata."""
    CHECKPOINT = "checkpoint"
    """The checkpoint files that the task names, and nothing else."""
    DISK = "disk"
    """The whole writable layer."""
    FREEZE = "freeze"
    """Nothing is stored: its processes rest on their node, and cannot go on elsewhere."""


STORED = frozenset({SnapshotKind.STATE, SnapshotKind.CHECKPOINT, SnapshotKind.DISK})
"""Kinds that can be restored elsewhere."""


class Consistency(StrEnum):
    """How a point in time is found at which the files belong together (SNAP-15, SNAP-16)."""

    MARKS = "marks"
    """The program says when; a snapshot that is due waits for it, and is taken without where it
    stays silent for too long."""
    FREEZE = "freeze"
    """The program gets a notice, then its processes and its file system are frozen."""


class SnapshotPlan(WireModel):
    """What an agent saves of a sandbox by itself, also while no control plane is there."""

    kinds: list[SnapshotKind] = Field(min_length=1)
    interval_seconds: float | None = Field(
        default=None, gt=0, description="Period; unset: only when asked, and at the end."
    )
    adaptive: bool = Field(default=False, description="The period follows how fast state changes.")
    consistency: Consistency = Consistency.MARKS
    paths: list[str] = Field(
        default=[],
        description="Absolute paths of the state; empty: /workspace. A disk snapshot has all.",
    )
    retain: int = Field(default=3, ge=1, description="Newest copies kept while it lives.")
    final: bool = Field(default=True, description="One more is taken before it is destroyed.")


class RestoreFrom(WireModel):
    """The snapshot that a sandbox starts from."""

    lineage: str = Field(description="Whose snapshots; see SnapshotRef.")
    seq: int | None = Field(default=None, ge=1, description="Which; unset: the newest good one.")
    any_image: bool = Field(
        default=False, description="Also where the image differs from the one that it was taken of."
    )
    fork: bool = Field(
        default=False, description="It is a new one of its own, not the old one going on."
    )


class SnapshotRef(WireModel):
    """One stored snapshot. Immutable; the object that makes the snapshot exist.

    A lineage is what goes on from one to the next: a replica of an experiment, over all its
    sandboxes (`exp/<experiment uid>/<role>/<index>`), or a sandbox of its own (`sb/<id>`). `seq`
    grows by one within it, and a create of the next number fails for whoever is late: that is the
    fence between two copies.
    """

    tenant: str
    project: str
    lineage: str
    seq: int = Field(ge=1)
    kind: SnapshotKind
    sandbox: str
    incarnation: int = Field(ge=1)
    experiment: str = ""
    node: str = ""
    created: datetime
    manifest: str = Field(description="Hex id of the manifest in the tenant's repository.")
    parent: int | None = Field(default=None, description="The number that it was taken after.")
    files: int = Field(ge=0)
    bytes: int = Field(ge=0, description="Sum of the file sizes.")
    stored_bytes: int = Field(ge=0, description="What this one added to the store.")
    seconds: float = Field(default=0.0, ge=0, description="From its start to the publishing.")
    held_seconds: float = Field(default=0.0, ge=0, description="Its processes stood still so long.")
    consistency: str = Field(default="", description="marks, freeze, or stopped.")
    reason: str = Field(default="", description="period, asked, move, final or wind-down.")
    image: str = ""
    image_digest: str = ""
    devices: list[str] = Field(default=[], description="Models of its accelerators, in order.")
    region: str = ""
    home_epoch: int = Field(default=0, ge=0)
    spec: dict[str, object] = Field(
        default={}, description="The sandbox as an agent was told to run it (SandboxSpec)."
    )
    sealed: str = Field(
        default="",
        description="What `spec` leaves out, in base64, sealed with the tenant's key: variables of "
        "its environment and its input.",
    )
    meta: dict[str, object] = Field(
        default={}, description="What the program said with its mark: step, stage, sequence numbers"
    )


class LastSnapshot(WireModel):
    """The newest good snapshot of a live sandbox, as its agent says (SNAP-25)."""

    seq: int
    kind: SnapshotKind
    at: datetime
    bytes: int = 0
    seconds: float = 0.0


class SnapshotCall(WireModel):
    """Take a snapshot now. `hold`: its processes stay frozen afterwards, for a move."""

    epoch: int
    kind: SnapshotKind | None = Field(default=None, description="Unset: the first of its plan.")
    reason: str = "asked"
    hold: bool = False


class SnapshotAnswer(WireModel):
    """The snapshot that was stored."""

    epoch: int
    ref: SnapshotRef
