"""The presets of scaling as data: every number that a rule starts from, by preset and tier.

Balanced has the numbers of the sources; the tiers beside it shift triggers and confirmations, so
that under one load the aggressive role grows first and the conservative one last (ELAS-10).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dsec.api.elastic import ReplicaPreset, TriggerMode
from dsec.api.experiment import ElasticTier
from dsec.api.scaling import NodePreset


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a preset says where the role says nothing. Percentages are of 100."""

    target: float
    """Trigger or set-point, in the metric's unit."""
    grow_periods: int
    shrink_periods: int
    lower_part: float = 0.0
    """The lower bound as a part of target."""
    cooldown_seconds: float = 0.0
    rate: float = 0.0
    """What one instance works off in a second; 0: the rule does not need it."""
    step: int = 0
    """Instances added or removed at once; 0: the computed count."""
    grow_factor: float = 1.0
    use_high: float = 0.0
    use_low: float = 0.0
    use_goal: float = 0.0
    """A shrink leaves this mean use: between the two bounds, so that it is not undone."""
    band: float = 0.0
    """Part of the baseline, or of the target, in which nothing happens."""


A, B, C = ElasticTier.AGGRESSIVE, ElasticTier.BALANCED, ElasticTier.CONSERVATIVE

PRESETS: Mapping[ReplicaPreset, Mapping[ElasticTier, Numbers]] = {
    # source 000: shrinks after 2 periods, grows after more than 3
    ReplicaPreset.ROLE_QUEUE: {
        A: Numbers(rate=16.0, target=56.0, grow_periods=3, shrink_periods=2),
        B: Numbers(rate=16.0, target=64.0, grow_periods=4, shrink_periods=2),
        C: Numbers(rate=16.0, target=72.0, grow_periods=6, shrink_periods=4),
    },
    # source 001: a set-point of 70 %, five minutes of lower load, ten minutes between changes
    ReplicaPreset.CPU_TARGET: {
        A: Numbers(
            target=65.0, grow_periods=1, shrink_periods=10, band=0.1, cooldown_seconds=600.0
        ),
        B: Numbers(
            target=70.0, grow_periods=2, shrink_periods=10, band=0.1, cooldown_seconds=600.0
        ),
        C: Numbers(
            target=75.0, grow_periods=4, shrink_periods=20, band=0.1, cooldown_seconds=600.0
        ),
    },
    # source 002: 1200 samples a second, two rounds both ways, two instances at once
    ReplicaPreset.THROUGHPUT: {
        A: Numbers(target=1050.0, lower_part=0.75, grow_periods=1, shrink_periods=2, step=2),
        B: Numbers(target=1200.0, lower_part=0.75, grow_periods=2, shrink_periods=2, step=2),
        C: Numbers(target=1350.0, lower_part=0.75, grow_periods=4, shrink_periods=4, step=2),
    },
    # source 002, later: 20 % around the mean of the last hour
    ReplicaPreset.THROUGHPUT_DYNAMIC: {
        A: Numbers(target=0.0, band=0.15, grow_periods=1, shrink_periods=2, step=2),
        B: Numbers(target=0.0, band=0.20, grow_periods=2, shrink_periods=2, step=2),
        C: Numbers(target=0.0, band=0.25, grow_periods=4, shrink_periods=4, step=2),
    },
    # source 004: above 80 % and a queue for 3 periods, below 40 % without one for 5
    ReplicaPreset.THREE_SIGNAL: {
        A: Numbers(
            target=56.0,
            lower_part=0.05,
            grow_periods=2,
            shrink_periods=5,
            grow_factor=1.5,
            use_high=70.0,
            use_low=40.0,
            use_goal=55.0,
        ),
        B: Numbers(
            target=64.0,
            lower_part=0.05,
            grow_periods=3,
            shrink_periods=5,
            grow_factor=1.5,
            use_high=80.0,
            use_low=40.0,
            use_goal=60.0,
        ),
        C: Numbers(
            target=72.0,
            lower_part=0.05,
            grow_periods=5,
            shrink_periods=8,
            grow_factor=1.5,
            use_high=90.0,
            use_low=30.0,
            use_goal=60.0,
        ),
    },
}

WORDS: Mapping[str, tuple[str, ...]] = {
    "CONF-02": (
        *(one.value for one in ReplicaPreset),
        NodePreset.NODE_LOAD.value,
        *(one.value for one in ElasticTier),
    ),
    "CONF-04": (
        *(one.value for one in TriggerMode),
        ReplicaPreset.THROUGHPUT_DYNAMIC.value,
    ),
    "CONF-37": (NodePreset.NODE_LOAD.value,),
}
"""Names that documents and records may use, by the conflict that they settle. Conflicts 03, 18, 31,
33, 34 and 36 are settled by what the rules do, and have no names to choose from."""


def numbers(preset: ReplicaPreset, tier: ElasticTier) -> Numbers:
    """Return the numbers of a preset in a tier."""
    return PRESETS[preset][tier]
