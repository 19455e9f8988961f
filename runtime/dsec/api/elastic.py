"""What a role asks of its scaler: metric, preset, periods, steps, schedule; limits on line."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.meta import Bytes, Text, Word
from dsec.api.scaling import Clock, Weekday

MAX_STEPS = 64
Instances = Annotated[int, Field(ge=0, le=100_000)]
Periods = Annotated[int, Field(ge=1, le=1000)]
Span = Annotated[int, Field(ge=0, le=86_400)]


class ReplicaPreset(StrEnum):
    """How the count of a role follows its metric (CONF-02)."""

    ROLE_QUEUE = "role-queue"
    """Queue depth over what one instance works off; shrinks sooner than it grows (ELAS-03)."""
    CPU_TARGET = "cpu-target"
    """Mean CPU use is brought to a target (ELAS-06)."""
    THROUGHPUT = "throughput"
    """Grows above a threshold of sample throughput, shrinks below a lower one (ELAS-07)."""
    THROUGHPUT_DYNAMIC = "throughput-dynamic"
    """The same around the role's own mean of the last hour (ELAS-11)."""
    THREE_SIGNAL = "three-signal"
    """Queue depth, use and latency together (ELAS-08)."""


class TriggerMode(StrEnum):
    """What a threshold of throughput means once it has made the role grow (CONF-04)."""

    EDGE = "edge"
    """A trigger: the next growth needs a fresh crossing, or as much again from each instance."""
    LEVEL = "level"
    """A set-point: it grows while the metric is above, up to max."""


class ScalingDirection(StrEnum):
    """Which changes are made (ELAS-29)."""

    BOTH = "both"
    GROW_ONLY = "grow-only"
    """What would be removed is decided and told, and stays."""


class ElasticWindow(WireModel):
    """Other bounds at some times of the week; the first window that holds wins."""

    days: list[Weekday] = Field(
        default=[], max_length=7, description="On which it begins; empty: every day."
    )
    start: Clock = Field(description="Begin, in the time zone of the schedule.")
    end: Clock = Field(description="End; not after start: on the next day.")
    min: Instances | None = Field(default=None, description="Replaces the role's min.")
    max: Instances | None = Field(default=None, description="Replaces the role's max.")


class Elastic(WireModel):
    """Declared elasticity of a role; bounds are the role's min and max (API-16)."""

    metric: Word = Field(description="Name of the metric, for example queue_depth or cpu.")
    target: int | None = Field(
        default=None, ge=0, description="Set-point or trigger, in the metric's unit."
    )
    lower: int | None = Field(
        default=None,
        ge=0,
        description="Below it the role shrinks; unset: the preset's part of target.",
    )
    preset: ReplicaPreset | None = Field(
        default=None, description="How the count follows the metric; unset: presets of CONF-02."
    )
    mode: TriggerMode | None = Field(
        default=None, description="Of throughput presets; unset: presets of CONF-04."
    )
    query: Text | None = Field(
        default=None, description="PromQL that gives the metric as one number; unset: by its name."
    )
    period_seconds: Annotated[int, Field(ge=5, le=3600)] = Field(
        default=30, description="Time from one evaluation to the next."
    )
    window_seconds: Annotated[int, Field(ge=5, le=86_400)] | None = Field(
        default=None,
        description="How long a reading has to last before the count changes, both ways; below 60 "
        "the count may swing. Unset: the preset's periods.",
    )
    grow_periods: Periods | None = Field(
        default=None, description="Evaluations in a row before it grows; unset: by preset and tier."
    )
    shrink_periods: Periods | None = Field(default=None, description="The same before it shrinks.")
    ladder: list[Instances] = Field(
        default=[], max_length=MAX_STEPS, description="The only counts it takes, rising."
    )
    step: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="Instances added or removed at once, where there is no ladder."
    )
    per_instance_rate: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        default=None, description="What one instance works off in a second, in the metric's unit."
    )
    drain_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=1, description="Time in which the queue should be worked off (CONF-03)."
    )
    latency_target_ms: Annotated[int, Field(ge=1, le=86_400_000)] | None = Field(
        default=None, description="Sampling latency above it counts as a long queue."
    )
    cooldown_seconds: Span | None = Field(
        default=None, description="Least time between two changes; unset: the preset's."
    )
    protection_seconds: Span = Field(
        default=0, description="Nothing is removed for so long after the role has grown."
    )
    direction: ScalingDirection = Field(
        default=ScalingDirection.BOTH, description="Which changes are made."
    )
    schedule: list[ElasticWindow] = Field(
        default=[], max_length=32, description="Bounds by time of the week."
    )
    time_zone: Word = Field(default="UTC", description="IANA name that the schedule is in.")
    scheduled_shrink: bool = Field(
        default=True,
        description="False: windows only raise bounds, and what they would remove is told.",
    )
    speed_percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None,
        description="Where the cost of a valid sample is known: 0 least money, 100 the fastest.",
    )


class Vertical(WireModel):
    """CPU and memory limits of running replicas follow what they use, within these bounds."""

    min_cpu_milli: Annotated[int, Field(ge=1, le=4_096_000)] | None = Field(
        default=None, description="Least CPU limit; unset: a quarter of the declared one."
    )
    max_cpu_milli: Annotated[int, Field(ge=1, le=4_096_000)] | None = Field(
        default=None, description="Most; unset: the declared limit."
    )
    max_memory_bytes: Annotated[Bytes, Field(ge=1 << 20)] | None = Field(
        default=None, description="Most memory; unset: the declared limit."
    )
