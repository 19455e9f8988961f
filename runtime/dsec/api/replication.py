"""Replication of snapshots: which go where, how often, and how far the copies are behind."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.meta import Bytes, Conditions, Count, DnsName, Live, Text, Word
from dsec.api.snapshot import SnapshotKind

REPLICATE_NOW = "dsec.dev/replicate-now"
"""Annotation: another value than the last one asks for a cycle at once."""


class ReplicationMode(StrEnum):
    """When copies are made."""

    SCHEDULED = "scheduled"
    """Every intervalSeconds."""
    CONTINUOUS = "continuous"
    """Always: a cycle starts soon after the last one has ended."""


class DeleteRule(StrEnum):
    """What happens to a copy when its original is deleted."""

    FOLLOW = "follow"
    """It goes after deleteDelaySeconds."""
    KEEP = "keep"
    """It stays until it is deleted there."""


class ReplicationCondition(StrEnum):
    """Conditions of a ReplicationPolicy."""

    READY = "Ready"
    """It is carried out; False: it contradicts itself, or a destination does not answer."""
    IN_SYNC = "InSync"
    """Every destination is within the recovery point that was asked for."""
    PROTECTED = "Protected"
    """All that it selects has at least minCopies remote copies or will have them; False: residency
    leaves no destination for some of it, which is then copied nowhere."""


class ReplicationReason(StrEnum):
    """Reasons in the conditions of a ReplicationPolicy."""

    REPLICATING = "Replicating"
    """Ready=True."""
    INVALID = "Invalid"
    """Ready=False: it contradicts itself; the message says how."""
    DESTINATION_AWAY = "DestinationAway"
    """Ready=False: a destination's store does not answer; the message says which."""
    CONFLICT = "Conflict"
    """Ready=False: both regions made a repository of the same name, with different keys."""
    WITHIN_TARGET = "WithinTarget"
    """InSync=True."""
    BEHIND = "Behind"
    """InSync=False: a copy is older than the recovery point that was asked for."""
    NO_COPY = "NoCopy"
    """InSync=False: something has no copy yet."""
    DAMAGED = "Damaged"
    """InSync=False: something could not be copied whole; the message names it."""
    ALLOWED = "Allowed"
    """Protected=True."""
    NO_DESTINATION = "NoDestination"
    """Protected=False: residency allows no destination for some data (CONF-29)."""
    TOO_FEW = "TooFew"
    """Protected=False: residency leaves fewer destinations than minCopies."""


class ReplicationDestination(WireModel):
    """A store in another region."""

    region: Word = Field(description="Region that the store is in, for example eu-west-1.")
    bucket: Word = Field(default="dsec", description="Its bucket.")
    endpoint: Word = Field(
        default="",
        description="Address, https:// except on loopback; empty: the region's own S3.",
    )
    secret: DnsName | None = Field(
        default=None,
        description="Secret with accessKey and secretKey; unset: the identity of the controller.",
    )


class ReplicationRules(WireModel):
    """Which snapshots are copied, how often, and what may be spent on it."""

    tenants: Live[list[DnsName]] = Field(
        default=[], max_length=256, description="Whose snapshots; empty: every tenant's."
    )
    kinds: Live[list[SnapshotKind]] = Field(
        default=[], max_length=4, description="Which kinds; empty: all that are stored."
    )
    mode: Live[ReplicationMode] = Field(
        default=ReplicationMode.SCHEDULED, description="When copies are made."
    )
    interval_seconds: Live[Annotated[int, Field(ge=10, le=7 * 86_400)]] = Field(
        default=86_400, description="Between the starts of two cycles, where scheduled."
    )
    recovery_point_seconds: Live[Annotated[int, Field(ge=10, le=30 * 86_400)] | None] = Field(
        default=None,
        description="Oldest copy that is in sync; unset: twice the interval, continuous 15 min.",
    )
    residency: Live[list[Word]] = Field(
        default=[],
        max_length=64,
        description="Regions that copies may be in; empty: all that the tenant allows.",
    )
    bandwidth_bytes_per_second: Live[Annotated[int, Field(ge=1, le=1 << 40)] | None] = Field(
        default=None, description="Most that all its copies together may send; unset: no limit."
    )
    min_copies: Live[Annotated[int, Field(ge=1, le=16)]] = Field(
        default=1, description="Remote copies that everything has at least."
    )
    deletes: Live[DeleteRule] = Field(
        default=DeleteRule.FOLLOW, description="What happens to copies of what was deleted."
    )
    delete_delay_seconds: Live[Annotated[int, Field(ge=0, le=90 * 86_400)]] = Field(
        default=7 * 86_400, description="What was deleted by mistake can be had for so long."
    )
    read_back: Live[bool] = Field(
        default=False, description="Each copy is read again and compared: twice the traffic."
    )
    paused: Live[bool] = Field(default=False, description="No cycle starts.")


class ReplicationPolicySpec(ReplicationRules):
    """Which snapshots are copied, where to, how often, and what may be spent on it."""

    destinations: Live[list[ReplicationDestination]] = Field(
        min_length=1, max_length=16, description="Stores of other regions."
    )


class DestinationStatus(WireModel):
    """One destination, as the last cycle left it."""

    region: Word = Field(description="Region of the store.")
    repositories: Count = Field(default=0, description="Copied to it.")
    behind: Count = Field(default=0, description="Snapshots that have no copy there yet.")
    lag_seconds: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Since when the oldest of those waits."
    )
    recovery_point_seconds: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Work that would be lost if this region went away; unset: all of something.",
    )
    worst: Word = Field(default="", description="Lineage that would lose most.")
    sent_bytes: Bytes = Field(default=0, description="By the last cycle.")
    sent_snapshots: Count = Field(default=0, description="By the last cycle.")
    last_success: datetime | None = Field(
        default=None, description="End of the last cycle that left nothing behind (UTC)."
    )
    message: Text = Field(default="", description="What could not be copied, and why.")


class ReplicationPolicyStatus(WireModel):
    """What was copied, and how far the copies are behind."""

    observed_generation: int = Field(default=0, ge=0, description="Generation spoken of.")
    conditions: Conditions = Field(
        default=[], description="Ready, InSync and Protected; see ReplicationReason."
    )
    destinations: list[DestinationStatus] = Field(
        default=[], max_length=16, description="Each as the last cycle left it."
    )
    last_cycle: datetime | None = Field(default=None, description="Its start (UTC).")
    cycle_seconds: Annotated[int, Field(ge=0)] = Field(default=0, description="How long it took.")
    handled: Word = Field(
        default="", description="Value of the annotation replicate-now that was last followed."
    )
