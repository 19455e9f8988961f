"""Machines, pools of machines, and the images that they hold."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.machinecost import MachineCost
from dsec.api.meta import (
    Bytes,
    Conditions,
    Count,
    DnsName,
    Labels,
    Live,
    NewReplicas,
    Replace,
    Word,
)
from dsec.api.pool_status import PoolScalingStatus
from dsec.api.power import PowerControl
from dsec.api.scaling import PoolScaling
from dsec.api.tenant import Amounts
from dsec.api.wire import NodeInventory, Usage

DRAIN = "dsec.dev/drain"
"""Annotation of a node that somebody wants empty: MOVE or EVICT, and its cordon stays."""
MOVE, EVICT = "move", "evict"
"""What cannot be moved is waited for, or is ended and starts again elsewhere."""


class RecordReason(StrEnum):
    """Reasons in the conditions of Tenant, SandboxNodePool, SandboxNode and SandboxImage."""

    READY = "Ready"
    """Ready=True."""
    NAMESPACE_TAKEN = "NamespaceTaken"
    """Tenant Ready=False: a project's namespace belongs to another tenant."""
    NO_NODES = "NoNodes"
    """SandboxNodePool Ready=False: no node of the pool is ready."""
    AGENT_SILENT = "AgentSilent"
    """SandboxNode Ready=Unknown: no answer within the failover preset (CONF-21)."""
    CORDONED = "Cordoned"
    """SandboxNode Ready=False: spec.unschedulable is set."""
    CLOCK_OFF = "ClockOff"
    """SandboxNode Ready=False: its clock is off by more than 500 ms."""
    LOCAL_IMAGE = "LocalImage"
    """SandboxImage Ready=True: a file of the machine, of which no registry is asked."""
    IMAGE_UNKNOWN = "ImageUnknown"
    """SandboxImage Ready=False: the registry has no such image."""
    REGISTRY_AWAY = "RegistryAway"
    """SandboxImage Ready=Unknown: its registry does not answer, or does not let us ask."""
    NO_REGISTRY = "NoRegistry"
    """SandboxImage Ready=Unknown: this installation asks no registries; nodes use the tag."""
    NEEDS_SNAPSHOTS = "NeedsSnapshots"
    """SandboxNode Compacted=False: what rests could leave it, but nothing can be moved yet."""
    MOVING = "Moving"
    """SandboxNode Compacted=False: it is at its limit, and what rests is leaving it."""
    DRAINING = "Draining"
    """SandboxNode Drained=False: somebody wants it empty, and something is still there."""
    DRAINED = "Drained"
    """SandboxNode Drained=True: it is empty, and takes no work."""
    NOT_ASKED = "NotAsked"
    """SandboxNode Drained=Unknown: nobody wants it empty any more."""
    NOTHING_TO_MOVE = "NothingToMove"
    """SandboxNode Compacted=True: below its limit, or nothing that rests could leave it."""
    INVALID = "Invalid"
    """SandboxImage, SandboxNode, Tenant Ready=False: contradicts itself; the message says how."""
    TAG_CURRENT = "TagCurrent"
    """SandboxImage Current=True: the tag names the digest in use."""
    TAG_MOVED = "TagMoved"
    """SandboxImage Current=False: the tag names other content than the digest in use."""
    NOT_OFFERED = "NotOffered"
    """SandboxImage Preloaded=False: this version fetches images at their first use only."""


class PoolKind(StrEnum):
    """What the nodes of a pool are for."""

    CPU = "cpu"
    GPU = "gpu"
    MIXED = "mixed"


class AgentSettings(WireModel):
    """How the agents of a pool run; its agents roll when it changes."""

    heartbeat_seconds: Annotated[int, Field(ge=1, le=3600)] = Field(
        default=15, description="Heartbeat period given to sandboxes."
    )
    max_sandboxes: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=2000, description="Most live sandboxes on a node."
    )
    reserved_cpu_milli: Bytes = Field(default=0, description="Kept for the node itself.")
    reserved_memory_bytes: Bytes | None = Field(
        default=None, description="Kept for the node itself; default: a sixteenth, at most 1 GiB."
    )
    start_deadline_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=60, description="Time to the first heartbeat."
    )


class Watermarks(WireModel):
    """How full a node may become, in percent of its CPU and memory (SCHED-03)."""

    safe_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        default=100, description="Above it only low-priority or pausable work is placed."
    )
    limit_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        default=100, description="From it on nothing is placed; at least safePercent."
    )


class Topology(WireModel):
    """Where nodes are; a node's own labels of these names come first."""

    rack: Word = Field(default="", description="Rack.")
    zone: Word = Field(default="", description="Zone.")
    region: Word = Field(default="", description="Region.")
    segment: Word = Field(default="", description="Fast network segment (SCHED-06).")


class PlacementTraits(WireModel):
    """What placement minds about the nodes of a pool."""

    watermarks: Watermarks = Field(default=Watermarks(), description="How full they may become.")
    taints: list[Annotated[str, Field(pattern=r"^[^\s=,]+(=[^\s=,]*)?$", max_length=253)]] = Field(
        default=[],
        max_length=32,
        description="`key` or `key=value`; work needs a toleration of each.",
    )
    topology: Topology = Field(default=Topology(), description="Where they are.")
    price_micro: Annotated[int, Field(ge=0, le=10**12)] = Field(
        default=0,
        description="Price of a node-hour in millionths of the currency; cheaper nodes come first.",
    )


class SandboxNodePoolSpec(WireModel):
    """Nodes of one make."""

    kind: Replace[PoolKind] = Field(default=PoolKind.CPU, description="cpu, gpu or mixed.")
    labels: Live[Labels] = Field(default={}, description="Labels that its nodes carry.")
    node_selector: Live[Labels] = Field(
        default={}, description="Kubernetes node labels that make a node a member."
    )
    agent: NewReplicas[AgentSettings] = Field(
        default=AgentSettings(), description="How its agents run."
    )
    placement: Live[PlacementTraits] = Field(
        default=PlacementTraits(), description="What placement minds about its nodes."
    )
    scaling: Live[PoolScaling | None] = Field(
        default=None, description="How it grows and shrinks; unset: by hand."
    )
    cost: Live[MachineCost | None] = Field(
        default=None, description="What an own machine of it costs; unset: priceMicro says."
    )


class SandboxNodePoolStatus(WireModel):
    """The pool as seen."""

    observed_generation: int = Field(default=0, ge=0, description="Generation spoken of.")
    conditions: Conditions = Field(default=[], description="Ready; see RecordReason.")
    nodes: Count = Field(default=0, description="Registered nodes.")
    ready: Count = Field(default=0, description="Ready nodes.")
    capacity: Amounts = Field(default=Amounts(), description="Sum over its nodes.")
    scaling: PoolScalingStatus | None = Field(
        default=None, description="What its scaling did and remembers; unset: by hand."
    )


class SandboxNodeSpec(WireModel):
    """A machine that runs sandboxes."""

    pool: Replace[DnsName | None] = Field(default=None, description="Pool that it belongs to.")
    labels: Live[Labels] = Field(default={}, description="Labels that placement matches.")
    unschedulable: Live[bool] = Field(default=False, description="Takes no new sandboxes.")
    power: Live[PowerControl | None] = Field(
        default=None, description="How it is switched; unset: by hand, so it is always on."
    )


class SandboxNodeStatus(WireModel):
    """What the agent last said."""

    observed_generation: int = Field(default=0, ge=0, description="Generation spoken of.")
    conditions: Conditions = Field(default=[], description="Ready; see RecordReason.")
    uid: Word = Field(default="", description="Stable for the machine's life.")
    endpoint: Word = Field(default="", description="https URL of the agent.")
    boot_id: Word = Field(default="", description="Changes with each boot.")
    incarnation: int = Field(default=0, ge=0, description="Grows with each agent start.")
    inventory: NodeInventory | None = Field(default=None, description="What it has and can do.")
    placement: PlacementTraits | None = Field(
        default=None, description="What its pool says for placement; unset: none does."
    )
    used: Usage = Field(default=Usage(), description="Sum over its live sandboxes.")
    live: Count = Field(default=0, description="Live sandboxes.")
    last_seen: datetime | None = Field(default=None, description="Last registration (UTC).")


class SandboxImageSpec(WireModel):
    """An image that experiments of the project use."""

    reference: Replace[Word] = Field(description="Reference with tag or digest.")
    digest: Live[Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64})?$")]] = Field(
        default="", description="Expected digest; empty: whatever the tag meant first."
    )
    preload_pools: Live[list[DnsName]] = Field(
        default=[], max_length=64, description="Pools whose nodes fetch it ahead of use."
    )


class SandboxImageStatus(WireModel):
    """What the registry said."""

    observed_generation: int = Field(default=0, ge=0, description="Generation spoken of.")
    conditions: Conditions = Field(
        default=[], description="Ready, Current, Preloaded; see RecordReason."
    )
    ready: bool = Field(default=False, description="It can be used.")
    digest: Word = Field(default="", description="Digest in use.")
    size_bytes: Bytes = Field(
        default=0, description="Compressed size, in bytes; of several machines' the largest."
    )
