"""The rule of one role: its document over its preset's numbers, decided once per look. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dsec.api.elastic import Elastic, ElasticWindow, ReplicaPreset, ScalingDirection, TriggerMode
from dsec.api.experiment import ElasticTier, ExperimentSpec, Role, Stage
from dsec.scaling.guard import DEFAULT_GUARD, GuardRule
from dsec.scaling.replicas.presets import numbers
from dsec.scaling.signals import Signal

STALE_PERIODS = 3
"""A reading older than so many periods is no reading."""
_USES = frozenset({Signal.CPU, Signal.MEMORY, Signal.GPU, Signal.USE})


@dataclass(frozen=True, slots=True)
class Rule:
    """Everything that a look at one role goes by."""

    role: str
    preset: ReplicaPreset
    metric: str
    target: float
    lower: float
    low: int
    high: int
    grow_periods: int
    shrink_periods: int
    period_seconds: float = 30.0
    mode: TriggerMode = TriggerMode.EDGE
    ladder: tuple[int, ...] = ()
    step: int = 0
    capacity: float = 0.0
    """What one instance works off in the drain time (CONF-03); 0: not known."""
    grow_factor: float = 1.0
    use_high: float = 0.0
    use_low: float = 0.0
    use_goal: float = 0.0
    band: float = 0.0
    latency_seconds: float | None = None
    cooldown_seconds: float = 0.0
    protection_seconds: float = 0.0
    grow_only: bool = False
    windows: tuple[ElasticWindow, ...] = ()
    zone: str = "UTC"
    scheduled_shrink: bool = True
    stage: Stage | None = None
    speed: float | None = None
    guard: GuardRule = DEFAULT_GUARD

    @property
    def stale_seconds(self) -> float:
        """Age above which a reading is not believed."""
        return STALE_PERIODS * self.period_seconds


def preset_of(elastic: Elastic, chosen: Mapping[str, str]) -> ReplicaPreset:
    """Return the preset of a role: its own, else what fits its metric, else CONF-02.

    A metric of utilisation or throughput names its rule by itself: a queue's rule cannot read it.
    """
    if elastic.preset is not None:
        return elastic.preset
    asked = chosen.get("CONF-02", "")
    if elastic.metric in _USES:
        return ReplicaPreset.CPU_TARGET
    if elastic.metric.endswith("throughput"):
        dynamic = ReplicaPreset.THROUGHPUT_DYNAMIC
        return dynamic if dynamic in {asked, chosen.get("CONF-04")} else ReplicaPreset.THROUGHPUT
    return ReplicaPreset(asked) if asked in set(ReplicaPreset) else ReplicaPreset.THREE_SIGNAL


def rule_of(role: Role, spec: ExperimentSpec) -> Rule:
    """Return the rule of an elastic role. `spec` is the resolved one: its presets are decided.

    Without `max` a role never grows above its declared count: a scaler without a ceiling is a bill
    without one. Without `min` it never falls below one. Raises ValueError for a role that is not
    elastic.
    """
    elastic = role.elastic
    if elastic is None:
        raise ValueError(f"role {role.name} is not elastic")
    preset = preset_of(elastic, spec.presets)
    base = numbers(preset, spec.elastic_tier or ElasticTier.BALANCED)
    low = max(1 if role.min is None else role.min, 0)
    high = max(role.replicas if role.max is None else role.max, low)
    target = float(elastic.target or base.target)
    window = elastic.window_seconds
    confirm = None if window is None else max(1, math.ceil(window / elastic.period_seconds))
    rate = base.rate if elastic.per_instance_rate is None else float(elastic.per_instance_rate)
    mode = elastic.mode or (
        TriggerMode.LEVEL if spec.presets.get("CONF-04") == "level" else TriggerMode.EDGE
    )
    latency = elastic.latency_target_ms
    cooldown = elastic.cooldown_seconds
    return Rule(
        role=role.name,
        preset=preset,
        metric=elastic.metric,
        target=target,
        lower=target * base.lower_part if elastic.lower is None else float(elastic.lower),
        low=low,
        high=high,
        grow_periods=elastic.grow_periods or confirm or base.grow_periods,
        # a dip of a single round never removes anything, whatever the document says (ELAS-13)
        shrink_periods=max(2, elastic.shrink_periods or confirm or base.shrink_periods),
        period_seconds=float(elastic.period_seconds),
        mode=mode,
        ladder=tuple(sorted(set(elastic.ladder))),
        step=elastic.step or base.step,
        capacity=rate * elastic.drain_seconds,
        grow_factor=base.grow_factor,
        use_high=base.use_high,
        use_low=base.use_low,
        use_goal=base.use_goal,
        band=base.band,
        latency_seconds=None if latency is None else latency / 1000,
        cooldown_seconds=base.cooldown_seconds if cooldown is None else float(cooldown),
        protection_seconds=float(elastic.protection_seconds),
        grow_only=elastic.direction is ScalingDirection.GROW_ONLY,
        windows=tuple(elastic.schedule),
        zone=elastic.time_zone,
        scheduled_shrink=elastic.scheduled_shrink,
        stage=spec.stage,
        speed=None if elastic.speed_percent is None else elastic.speed_percent / 100,
    )


def needs(rule: Rule) -> tuple[str, ...]:
    """Return the names of the signals that a rule may read, the one it cannot do without first."""
    signals = [rule.metric, Signal.RETRY_RATE, Signal.IO_WAIT, Signal.CPU]
    if rule.preset is ReplicaPreset.THREE_SIGNAL:
        signals += [Signal.USE, Signal.MEMORY, Signal.GPU, Signal.LATENCY]
    elif rule.preset in {ReplicaPreset.THROUGHPUT, ReplicaPreset.THROUGHPUT_DYNAMIC}:
        signals += [Signal.QUEUE_DEPTH, Signal.ACTIVE_AGENTS]
    return tuple(dict.fromkeys(str(one) for one in signals))
