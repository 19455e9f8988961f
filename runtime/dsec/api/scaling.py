"""How a pool of nodes grows and shrinks: what may be bought, how much of it, when, and for what."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.meta import Bytes, Count, Money, Word
from dsec.api.sandbox import IsolationLevel

Clock = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$", max_length=5)]
"""Time of day, for example 20:00."""
Pause = Annotated[int, Field(ge=0, le=86_400)]


class Market(StrEnum):
    """How a node is paid for, the cheapest way to use it first."""

    OWNED = "owned"
    """Own machines: paid for whether they run or not."""
    RESERVED = "reserved"
    """Paid for by a commitment, used or not."""
    SPOT = "spot"
    """Taken back by the provider at short notice; for pausable and preemptible work only."""
    ON_DEMAND = "on-demand"


class NodePreset(StrEnum):
    """When nodes are added and removed (CONF-37)."""

    NODE_LOAD = "node-load"
    """By load and backlog held for minutes, one step in ten minutes (ELAS-14 to ELAS-17)."""
    WAIT_AND_BUDGET = "wait-and-budget"
    """By work that has waited longer than its burst wait and that a budget covers (COST-05)."""


class Shrinking(StrEnum):
    """Whether nodes are removed (ELAS-29)."""

    ON = "on"
    DRY_RUN = "dry-run"
    """Removals are decided and told, and not made."""
    OFF = "off"


class Weekday(StrEnum):
    """Days of a schedule."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


class PoolOffering(WireModel):
    """One make of node that the pool may get, with what it has."""

    instance_type: Word = Field(description="Name at the provider, for example m7i.8xlarge.")
    markets: list[Market] = Field(
        default=[Market.ON_DEMAND], max_length=4, description="Ways in which it may be paid for."
    )
    regions: list[Word] = Field(default=[], max_length=32, description="Empty: the pool's.")
    zones: list[Word] = Field(default=[], max_length=32, description="Empty: the pool's.")
    cpu_milli: int = Field(ge=1, le=10**8, description="CPU, in thousandths of a core.")
    memory_bytes: Bytes = Field(description="Memory, in bytes.")
    gpu_count: Annotated[int, Field(ge=0, le=256)] = Field(default=0, description="GPUs.")
    gpu_model: Word = Field(default="", description="Model of its GPUs.")
    gpu_memory_bytes: Bytes = Field(default=0, description="Memory of each GPU, in bytes.")
    disk_bytes: Bytes | None = Field(
        default=None, description="Writable space, in bytes; unset: as much as is asked for."
    )
    isolation: list[IsolationLevel] = Field(
        default=[IsolationLevel.CONTAINER], max_length=4, description="Substrates that it has."
    )
    features: list[Word] = Field(
        default=[], max_length=64, description="What its kernel and agent offer, for example pvc."
    )
    price_per_hour: Money | None = Field(
        default=None, description="Overrides the price book, per node and hour."
    )
    boot_seconds: Annotated[int, Field(ge=0, le=7200)] = Field(
        default=90, description="From buying to ready, as a rule."
    )
    minimum_bill_seconds: Pause = Field(default=60, description="Least time that is billed.")
    limit: Count | None = Field(
        default=None, description="Most nodes of it; of owned machines: how many there are."
    )


class WarmBuffer(WireModel):
    """Room kept free for what comes: so many more sandboxes of that size."""

    name: Word = Field(description="For people, for example rollouts.")
    count: Count = Field(description="Places kept free; removed only above 1.5 times that.")
    cpu_milli: int = Field(ge=1, le=10**8, description="CPU of one place.")
    memory_bytes: Bytes = Field(ge=1 << 20, description="Memory of one place, in bytes.")
    gpu_count: Annotated[int, Field(ge=0, le=256)] = Field(default=0, description="GPUs of one.")
    gpu_model: Word = Field(default="", description="Model of those GPUs; empty: any.")
    burn_percent: Annotated[int, Field(ge=0, le=100)] = Field(
        default=100,
        description="What is bought for it costs at most this part of what all nodes cost (5 is a "
        "sound value in a large fleet); 100: whatever it takes.",
    )


class ScheduleWindow(WireModel):
    """Other bounds at some times of the week."""

    days: list[Weekday] = Field(
        default=[], max_length=7, description="On which it begins; empty: every day."
    )
    start: Clock = Field(description="Begin, in the pool's time zone.")
    end: Clock = Field(description="End; earlier than start: on the next day.")
    min_nodes: Count | None = Field(default=None, description="Replaces minNodes.")
    max_nodes: Count | None = Field(default=None, description="Replaces maxNodes.")


class PoolScaling(WireModel):
    """How a pool grows and shrinks. Bounds win over every trigger (ELAS-33)."""

    supplier: Word = Field(
        default="onprem", description="Who gives nodes: onprem, aws or simulated."
    )
    min_nodes: Count = Field(default=0, description="Least nodes, whatever the load.")
    max_nodes: Count = Field(default=0, description="Most nodes, those on their way included.")
    floor: Count = Field(
        default=1,
        description="Outside of scheduled hours nodes go down to this, never to 0 (ELAS-18).",
    )
    offerings: list[PoolOffering] = Field(
        default=[], max_length=64, description="Makes of node that it may get."
    )
    markets: list[Market] = Field(
        default=[], max_length=4, description="Ways to pay that are allowed; empty: all."
    )
    regions: list[Word] = Field(default=[], max_length=32, description="Where offerings name none.")
    zones: list[Word] = Field(default=[], max_length=64, description="Where offerings name none.")
    preset: NodePreset | None = Field(
        default=None,
        description="Unset: node-load for owned machines, wait-and-budget for others (CONF-37).",
    )
    burst_wait_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=10, description="How long work queues before spot or on-demand nodes are bought."
    )
    buffers: list[WarmBuffer] = Field(default=[], max_length=16, description="Room kept free.")
    max_cpu_milli: Bytes | None = Field(default=None, description="Most CPU of all its nodes.")
    max_gpus: Count | None = Field(default=None, description="Most GPUs of all its nodes.")
    max_cost_per_hour: Money | None = Field(
        default=None, description="Most that all its nodes cost in an hour."
    )
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = Field(
        default="USD", description="ISO 4217 code of its amounts."
    )
    schedule: list[ScheduleWindow] = Field(
        default=[], max_length=32, description="First window that holds wins."
    )
    time_zone: Word = Field(default="UTC", description="IANA name that the schedule is in.")
    run_until_seconds: Annotated[int, Field(ge=60, le=86_400)] = Field(
        default=1800, description="How far ahead a node is paid for; renewed at half of it."
    )
    frozen: bool = Field(
        default=False,
        description="Nothing is bought, moved or removed; notices of the provider are followed.",
    )
    consolidation: bool = Field(
        default=True, description="Move pausable work so that nodes fall empty."
    )
    shrink: Shrinking = Field(default=Shrinking.ON, description="Whether nodes are removed.")
    empty_seconds: Pause | None = Field(
        default=None,
        description="How long a node is idle before it goes; unset: 600 with node-load, else 60.",
    )
