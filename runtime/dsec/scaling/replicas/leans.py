"""What each preset would like to do with a count, from one round of readings. Pure.

A lean is a wish: confirmation, cooldown, guard, bounds and budgets come after it, in `evaluate`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dsec.api.elastic import ReplicaPreset, TriggerMode
from dsec.api.elastic_status import RoleScaling, ScalingReason, Step
from dsec.api.experiment import Stage
from dsec.scaling import words
from dsec.scaling.replicas.rules import Rule
from dsec.scaling.signals import Signal, mean_of, use_of

BASELINE_ROUNDS = 10
"""Rounds of the last hour that have to be known before their mean is a baseline."""
AGENTS_STEP = 1.2
"""So many times the agents that the count was right for are more agents (ELAS-09)."""


@dataclass(frozen=True, slots=True)
class Lean:
    """A wish. Without `count` it is a step; without `step` the count is right, or is not known."""

    step: Step | None
    because: str
    count: int | None = None
    reason: ScalingReason = ScalingReason.STEADY
    usual: float | None = None
    """The baseline that it was judged by."""


@dataclass(frozen=True, slots=True)
class Look:
    """One round: what is read, and what the role has."""

    rule: Rule
    state: RoleScaling
    values: Mapping[str, float]
    count: int
    ready: int


def lean_of(look: Look) -> Lean:
    """Return the wish of the role's preset. A missing metric is reason NO_DATA, and no wish."""
    metric = look.rule.metric
    if metric not in look.values:
        told = next((one.problem for one in look.state.readings if one.name == metric), "")
        return Lean(None, words.missing(metric, told), reason=ScalingReason.NO_DATA)
    return _LEANS[look.rule.preset](look)


def _role_queue(look: Look) -> Lean:
    """ELAS-03: the count is the depth over what one instance works off in the drain time.

    Growth waits for a depth above the target. With a ladder nothing is removed while it is there,
    also where the formula would: at the set-point the two contradict each other (CONF-03), and the
    count would go up and down for ever. Without one both go to the same computed count.
    """
    rule, depth = look.rule, look.values[look.rule.metric]
    wanted = math.ceil(depth / rule.capacity)
    because, steps = words.works_off(rule.metric, depth, wanted), rule.ladder or rule.step
    if depth > rule.target and (steps or wanted >= look.count):
        because = words.above(rule.metric, depth, rule.target)
        if steps:
            return Lean(Step.GROW, because, max(wanted, look.count + 1))
        if wanted > look.count:
            return Lean(Step.GROW, because, wanted)
        return Lean(None, words.enough(because, look.count, wanted))
    if wanted < look.count:
        return Lean(Step.SHRINK, because, wanted)
    return Lean(None, because)


def _cpu_target(look: Look) -> Lean:
    """ELAS-06: mean use is brought to the target.

    Replicas that still start are counted as coming: their share of the load is on the others yet.
    """
    rule, use = look.rule, look.values[look.rule.metric]
    if look.ready == 0:
        return Lean(None, words.none_runs(), reason=ScalingReason.NO_DATA)
    wanted = math.ceil(round(use * look.ready / rule.target, 6))
    because = words.use_against(rule.metric, use, rule.target, look.ready)
    if look.ready == look.count and abs(use / rule.target - 1) <= rule.band:
        return Lean(None, because)
    if wanted > look.count:
        return Lean(Step.GROW, because, wanted)
    if wanted < look.count and use < rule.target and look.ready >= look.count:
        return Lean(Step.SHRINK, because, wanted)
    return Lean(None, because)


def _throughput(look: Look) -> Lean:
    """ELAS-07 with the other signals of ELAS-09; CONF-04 says when a threshold triggers again."""
    rule, value = look.rule, look.values[look.rule.metric]
    more = _more_agents(look) or _long_queue(look)
    if value > rule.target:
        again = (
            look.state.crossed
            or rule.mode is TriggerMode.LEVEL
            # as much from each instance as crossed the threshold at the count before
            or value / max(1, look.count) > rule.target / max(1, look.state.grown_from)
        )
        because = words.above(rule.metric, value, rule.target)
        if again:
            return Lean(Step.GROW, because)
        return more or Lean(None, words.not_afresh(because), reason=ScalingReason.NOT_CROSSED)
    if more:
        return more
    if value < rule.lower:
        return Lean(Step.SHRINK, words.below(rule.metric, value, rule.lower))
    return Lean(None, words.between(rule.metric, value, rule.lower, rule.target))


def _dynamic(look: Look) -> Lean:
    """ELAS-11: around the role's own mean of the last hour.

    Both ways need a fresh crossing, for the mean lags behind what a change of the count does to it.
    """
    rule, state, value = look.rule, look.state, look.values[look.rule.metric]
    more = _more_agents(look) or _long_queue(look)
    usual = state.usual if state.usual is not None else mean_of(state.values, BASELINE_ROUNDS)
    if usual is None:
        return more or Lean(None, words.no_baseline(), reason=ScalingReason.NO_BASELINE)
    high, low = usual * (1 + rule.band), usual * (1 - rule.band)
    if low <= value <= high:
        return more or Lean(None, words.between(rule.metric, value, low, high))
    over = value > high
    say = words.above_usual if over else words.below_usual
    because = say(rule.metric, value, usual, rule.band)
    if state.crossed if over else state.crossed_low and not more:
        return Lean(Step.GROW if over else Step.SHRINK, because, usual=usual)
    return more or Lean(None, words.not_afresh(because), reason=ScalingReason.NOT_CROSSED)


def _three_signal(look: Look) -> Lean:
    """ELAS-08: a queue or a latency over its threshold, and replicas that are busy."""
    rule, depth, use = look.rule, look.values[look.rule.metric], use_of(look.values)
    if use is None:
        return Lean(None, words.missing(Signal.USE), reason=ScalingReason.NO_DATA)
    latency = look.values.get(Signal.LATENCY)
    slow = rule.latency_seconds is not None and latency is not None
    slow = slow and (latency or 0.0) > (rule.latency_seconds or 0.0)
    because = words.three(rule.metric, depth, use, latency)
    if (depth > rule.target or slow) and use > rule.use_high:
        return Lean(Step.GROW, because, math.ceil(look.count * rule.grow_factor))
    if depth <= max(1.0, rule.lower) and use < rule.use_low and not slow:
        wanted = math.ceil(round(look.ready * use / rule.use_goal, 6))
        if wanted < look.count:
            return Lean(Step.SHRINK, because, wanted)
    return Lean(None, because)


def _more_agents(look: Look) -> Lean | None:
    agents, right = look.values.get(Signal.ACTIVE_AGENTS), look.state.agents
    if agents is None or not right or agents <= right * AGENTS_STEP:
        return None
    wanted = math.ceil(look.count * agents / right)
    return Lean(Step.GROW, words.agents(agents, right), wanted)


def _long_queue(look: Look) -> Lean | None:
    depth, capacity = look.values.get(Signal.QUEUE_DEPTH), look.rule.capacity
    if depth is None or not capacity:
        return None
    wanted = math.ceil(depth / capacity)
    if wanted <= look.count:
        return None
    return Lean(Step.GROW, words.works_off(Signal.QUEUE_DEPTH, depth, wanted), wanted)


def holds_ample(look: Look) -> bool:
    """Return whether exploration runs at full throughput: nothing is taken from it (ELAS-09)."""
    rule = look.rule
    if rule.stage is not Stage.EXPLORATION or rule.metric != Signal.SAMPLE_THROUGHPUT:
        return False
    return look.values.get(rule.metric, 0.0) > rule.target > 0


_LEANS: Mapping[ReplicaPreset, Callable[[Look], Lean]] = {
    ReplicaPreset.ROLE_QUEUE: _role_queue,
    ReplicaPreset.CPU_TARGET: _cpu_target,
    ReplicaPreset.THROUGHPUT: _throughput,
    ReplicaPreset.THROUGHPUT_DYNAMIC: _dynamic,
    ReplicaPreset.THREE_SIGNAL: _three_signal,
}
