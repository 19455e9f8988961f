"""One look at one role: from readings and what is remembered to a count and its reason. Pure.

Order of what has a say: bounds and budgets, the task's own request, missing data, the preset's
wish, confirmation by rounds, what freezes growth, cooldown, guard and protection, the ladder, and
last whether such a change is made or only told. Nothing passes a bound, on any path (ELAS-33).

The state counts on a line of time of its own, at most two periods per look: a clock that is set,
or a controller that was away, neither shortens a wait nor loses one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from dsec.api.elastic_status import (
    Growth,
    Limit,
    Means,
    Reading,
    RoleScaling,
    ScalingReason,
    Step,
)
from dsec.scaling import guard, words
from dsec.scaling.replicas import steps
from dsec.scaling.replicas.leans import Lean, Look, holds_ample, lean_of
from dsec.scaling.replicas.rules import Rule
from dsec.scaling.replicas.schedule import Bounds, bounds_at
from dsec.scaling.signals import Signal, fresh, mean_of, noted
from dsec.scaling.words import Said

R = ScalingReason
MISSING_ROUNDS = 3
"""Rounds without the metric after which a streak that it had begun is over."""
RETRY_LEAST, RETRY_TIMES = 0.1, 3.0
"""Growth freezes at so many retries per replica and minute, and so many times the usual rate."""
CALM_ROUNDS = 3
"""Rounds below half of that before growth thaws."""
IO_HIGH, CPU_LOW = 30.0, 40.0
"""Percent: waiting this much while computing no more is a bottleneck of data, not of replicas."""
GROWTHS_KEPT = 8
SLACK_SECONDS = 1.0
"""Rounds do not come to the microsecond: a wait with less than this left is over."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a look needs to know beside metrics.

    Ceilings are counts of the role, those that run included; None: not limited.
    """

    count: int
    """Replicas wanted now: declared, or as somebody set it."""
    ready: int
    quota: int | None = None
    budget: int | None = None
    """Unlike the other two it also takes away: a spent budget waits for no guard."""
    nodes: int | None = None
    worth: int | None = None
    """Best count for money and time together (ROAD-12): it stops growth, and takes nothing."""
    grow: bool = True
    """Whether growth is switched on in this installation (OPS-18)."""
    shrink: bool = True
    requested: int | None = None
    """What the task itself asked for since the last look (ELAS-23)."""
    spare: bool = False
    """The budget has room that nothing else needs (ROAD-11)."""


def evaluate(
    rule: Rule, old: RoleScaling, readings: Sequence[Reading], facts: Facts, utc: datetime
) -> RoleScaling:
    """Return what the scaler of a role knows after one round; its `count` is what it wants.

    One call is one round: who calls keeps the period. The result depends on the arguments alone,
    and survives JSON.
    """
    values = fresh(readings, rule.stale_seconds)
    state = _begin(rule, old, facts, readings, utc)
    state = _watch_retries(state, values)
    look = Look(rule, state, values, facts.count, facts.ready)
    lean = lean_of(look)
    state = _follow(rule, _streaks(state, lean, utc), lean, values)
    bounds = _bounds(rule, facts, utc)
    return _Decision(look, lean, facts, bounds, utc).made(state)


def _begin(
    rule: Rule, old: RoleScaling, facts: Facts, readings: Sequence[Reading], utc: datetime
) -> RoleScaling:
    away = 0.0 if old.utc is None else (utc - old.utc).total_seconds()
    at = old.at + min(max(away, 0.0), 2 * rule.period_seconds)
    changes: dict[str, object] = {
        "role": rule.role,
        "preset": rule.preset,
        "count": facts.count,
        "utc": utc,
        "at": at,
        "round_at": at,
        "would": None,
        "advice": "",
        "limit": None,
        "readings": list(readings)[:16],
    }
    if old.preset not in {None, rule.preset}:
        # another rule reads another metric: nothing of the old one's streaks holds
        fresh_state = RoleScaling(role=rule.role, guard=old.guard, growths=old.growths)
        return fresh_state.model_copy(update=changes)
    return old.model_copy(update=changes)


def _watch_retries(state: RoleScaling, values: dict[str, float]) -> RoleScaling:
    """Freeze growth on a fast rise of the retry rate, and thaw it after calm rounds (ELAS-12)."""
    rate = values.get(Signal.RETRY_RATE)
    if rate is None:
        return state
    bound = max(RETRY_LEAST, RETRY_TIMES * (mean_of(state.retries) or 0.0))
    if rate >= bound:
        return state.model_copy(update={"frozen": True, "calm_rounds": 0})
    if not state.frozen:
        return state.model_copy(update={"retries": noted(state.retries, state.at, rate)})
    calm = state.calm_rounds + 1 if rate < bound / 2 else 0
    return state.model_copy(update={"calm_rounds": calm, "frozen": calm < CALM_ROUNDS})


def _streaks(state: RoleScaling, lean: Lean, utc: datetime) -> RoleScaling:
    if lean.reason is R.NO_DATA:
        missing = min(state.missing_rounds + 1, MISSING_ROUNDS)
        changes: dict[str, object] = {
            "missing_rounds": missing,
            # nobody saw that the load was low
            "shrink_rounds": 0,
            "shrink_since": None,
        }
        if missing >= MISSING_ROUNDS:
            changes |= {"grow_rounds": 0, "asked_at": None, "usual": None}
        return state.model_copy(update=changes)
    grow = min(state.grow_rounds + 1, 1_000_000) if lean.step is Step.GROW else 0
    shrink = min(state.shrink_rounds + 1, 1_000_000) if lean.step is Step.SHRINK else 0
    return state.model_copy(
        update={
            "missing_rounds": 0,
            "grow_rounds": grow,
            "shrink_rounds": shrink,
            "asked_at": (state.asked_at or utc) if grow else None,
            "shrink_since": (state.at if state.shrink_rounds == 0 else state.shrink_since)
            if shrink
            else None,
            "usual": lean.usual if lean.step else None,
        }
    )


def _follow(rule: Rule, state: RoleScaling, lean: Lean, values: dict[str, float]) -> RoleScaling:
    """Note what later rounds compare with: the hour's mean, thresholds crossed back, agents."""
    value = values.get(rule.metric)
    changes: dict[str, object] = {}
    if value is not None:
        # while a streak is being confirmed its own values would move what they are compared with
        streak, most = state.grow_rounds or state.shrink_rounds, rule.grow_periods
        most = rule.shrink_periods if state.shrink_rounds else most
        if not 0 < streak <= most:
            changes["values"] = noted(state.values, state.at, value)
        if lean.step is not Step.GROW and lean.reason is not R.NOT_CROSSED:
            changes["crossed"] = True
        if lean.step is not Step.SHRINK and lean.reason is not R.NOT_CROSSED:
            changes["crossed_low"] = True
    agents = values.get(Signal.ACTIVE_AGENTS)
    if agents is not None and agents >= 1 and state.agents is None:
        changes["agents"] = agents
    return state.model_copy(update=changes)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The bounds of this round, and which ceiling is the lowest."""

    low: int
    high: int
    window: str
    limit: Limit
    hard: int
    """Above it replicas are taken away at once: max and budget; quota and nodes only stop."""


def _bounds(rule: Rule, facts: Facts, utc: datetime) -> _Allowed:
    own = Bounds(rule.low, rule.high)
    now = bounds_at(rule.windows, rule.zone, utc, own, shrink=rule.scheduled_shrink)
    hard = now.high if facts.budget is None else min(now.high, max(facts.budget, 0))
    ceilings = [
        (now.high, Limit.MAX),
        *(
            (max(one, 0), limit)
            for one, limit in (
                (facts.budget, Limit.BUDGET),
                (facts.quota, Limit.QUOTA),
                (facts.nodes, Limit.NODES),
                (facts.worth, Limit.WORTH),
            )
            if one is not None
        ),
    ]
    high, limit = min(ceilings, key=lambda one: one[0])
    # a budget that is spent takes below min, too
    return _Allowed(min(now.low, hard), high, now.window, limit, hard)


@dataclass(frozen=True, slots=True)
class _Decision:
    """The last part of a look: what is made of a wish."""

    look: Look
    lean: Lean
    facts: Facts
    allowed: _Allowed
    utc: datetime

    def made(self, state: RoleScaling) -> RoleScaling:
        """Return the state with the decision in it."""
        count, allowed = self.facts.count, self.allowed
        if not allowed.low <= count <= allowed.hard:
            limit = allowed.limit if count > allowed.hard else None
            because = words.outside(allowed.low, allowed.hard, allowed.window, limit)
            return self._bounded(state, because)
        if self.facts.requested is not None:
            return self._requested(state, self.facts.requested)
        if self.lean.step is Step.GROW:
            return self._grow(state)
        if self.lean.step is Step.SHRINK and not self.facts.spare:
            return self._shrink(state)
        if self.facts.spare and self.lean.reason is R.STEADY and not state.frozen:
            return self._spend(state)
        return self._say(state, self.lean.reason, self.lean.because)

    # ------------------------------------------------------------------ ways to change

    def _bounded(self, state: RoleScaling, because: str) -> RoleScaling:
        """Bring a count that is outside of its bounds back: no confirmation, no guard.

        Max, min and budget win over switches, too; what only a schedule wants obeys them.
        """
        rule, count, allowed = self.look.rule, self.facts.count, self.allowed
        to = steps.inside(rule.ladder, count, allowed.low, allowed.hard)
        if to > count and to > allowed.high:
            # quota or nodes have no room for the whole of min: as far as they reach
            to = max(count, allowed.high)
            if to == count:
                return self._say(state, R.AT_LIMIT, because, limit=allowed.limit)
        most = rule.high if self.facts.budget is None else min(rule.high, self.facts.budget)
        forced = count > most or count < min(rule.low, allowed.low)
        return self._set(state, to, R.BOUNDS, because, forced=forced)

    def _requested(self, state: RoleScaling, asked: int) -> RoleScaling:
        count, low = self.facts.count, self.allowed.low
        to = steps.inside(self.look.rule.ladder, asked, low, max(count, self.allowed.high))
        to = max(to, count) if asked > count else min(to, count)
        if to > count and state.frozen:
            return self._say(state, R.FROZEN, words.asked(asked))
        if to == count:
            limit = self.allowed.limit if asked > to else None
            reason = R.AT_LIMIT if limit else R.STEADY
            return self._say(state, reason, words.asked(asked), limit=limit)
        return self._set(state, to, R.REQUESTED, words.asked(asked))

    def _spend(self, state: RoleScaling) -> RoleScaling:
        """ROAD-11: room in the budget makes a small task faster, one step at a time."""
        rule, count = self.look.rule, self.facts.count
        to = steps.up(rule.ladder, rule.step or 1, count, None, self.allowed.high)
        if to <= count or self._wait(state) > SLACK_SECONDS:
            return self._say(state, R.STEADY, self.lean.because)
        return self._set(state, to, R.GROWN, words.headroom(to))

    def _grow(self, state: RoleScaling) -> RoleScaling:
        rule, count, lean = self.look.rule, self.facts.count, self.lean
        to = steps.up(rule.ladder, rule.step, count, lean.count, self.allowed.high)
        if state.frozen:
            usual = mean_of(state.retries) or 0.0
            rate = self.look.values.get(Signal.RETRY_RATE, 0.0)
            return self._say(state, R.FROZEN, words.retries(rate, usual))
        io_wait, cpu = self.look.values.get(Signal.IO_WAIT), self.look.values.get(Signal.CPU)
        if io_wait is not None and cpu is not None and io_wait >= IO_HIGH and cpu <= CPU_LOW:
            advice = words.io_advice(io_wait, cpu)
            return self._say(state, R.IO_BOUND, lean.because).model_copy(update={"advice": advice})
        if to <= count:
            return self._say(state, R.AT_LIMIT, lean.because, limit=self.allowed.limit)
        if state.grow_rounds < rule.grow_periods:
            rounds = (state.grow_rounds, rule.grow_periods)
            return self._say(state, R.CONFIRMING_GROWTH, lean.because, to, rounds=rounds)
        if (wait := self._wait(state)) > SLACK_SECONDS:
            return self._say(state, R.COOLDOWN, lean.because, to, seconds=wait)
        return self._set(state, to, R.GROWN, lean.because)

    def _shrink(self, state: RoleScaling) -> RoleScaling:
        rule, count, lean = self.look.rule, self.facts.count, self.lean
        to = steps.down(rule.ladder, rule.step, count, lean.count, self.allowed.low)
        if to >= count or holds_ample(self.look):
            return self._say(state, R.AT_FLOOR, lean.because)
        if state.shrink_rounds < rule.shrink_periods:
            rounds = (state.shrink_rounds, rule.shrink_periods)
            return self._say(state, R.CONFIRMING_SHRINK, lean.because, to, rounds=rounds)
        since = state.shrink_since if state.shrink_since is not None else state.at
        # the preset's own confirmation is the base: the guard adds only what mistakes cost
        confirmed = (rule.shrink_periods - 1) * rule.period_seconds
        hold = replace(rule.guard, base_seconds=min(rule.guard.cap_seconds, confirmed))
        waits = (
            (R.COOLDOWN, self._wait(state)),
            (R.PROTECTED, self._protected(state)),
            (R.GUARD, guard.wait_seconds(state.guard, since=since, now=state.at, rule=hold)),
        )
        for reason, wait in waits:
            if wait > SLACK_SECONDS:
                return self._say(state, reason, lean.because, to, seconds=wait)
        return self._set(state, to, R.SHRUNK, lean.because)

    # ------------------------------------------------------------------ parts

    def _wait(self, state: RoleScaling) -> float:
        last = state.guard.last_at
        if last is None:
            return 0.0
        return max(0.0, self.look.rule.cooldown_seconds - (state.at - last))

    def _protected(self, state: RoleScaling) -> float:
        if state.guard.last is not Step.GROW or state.guard.last_at is None:
            return 0.0
        return max(0.0, self.look.rule.protection_seconds - (state.at - state.guard.last_at))

    def _set(
        self,
        state: RoleScaling,
        to: int,
        reason: ScalingReason,
        because: str,
        *,
        forced: bool = False,
    ) -> RoleScaling:
        """Change the count, or tell only that it would be changed."""
        count, rule = self.facts.count, self.look.rule
        step = Step.GROW if to > count else Step.SHRINK
        switched = self.facts.grow if step is Step.GROW else self.facts.shrink
        if step is Step.SHRINK and rule.grow_only and reason is not R.REQUESTED:
            switched = False
        if not (forced or switched):
            only = R.WOULD_GROW if step is Step.GROW else R.WOULD_SHRINK
            return self._say(state, only, because, to).model_copy(update={"would": to})
        agents = self.look.values.get(Signal.ACTIVE_AGENTS)
        rounds = state.grow_rounds if step is Step.GROW else state.shrink_rounds
        said = self._say(state, reason, because, to, rounds=(rounds, rounds))
        changes: dict[str, object] = {
            "count": to,
            "guard": guard.acted(state.guard, step, state.at, rule.guard),
            "grow_rounds": 0,
            "shrink_rounds": 0,
            "shrink_since": None,
            "asked_at": None,
            "usual": None,
            "agents": agents if agents is not None and agents >= 1 else state.agents,
        }
        if step is Step.GROW:
            growth = Growth(
                count_before=count,
                count_after=to,
                triggered=state.asked_at or self.utc,
                acted=self.utc,
            )
            changes |= {
                "crossed": False,
                "grown_from": count,
                "growths": [*state.growths, growth][-GROWTHS_KEPT:],
            }
        else:
            changes["crossed_low"] = False
        return said.model_copy(update=changes)

    def _say(
        self,
        state: RoleScaling,
        reason: ScalingReason,
        because: str,
        to: int | None = None,
        *,
        rounds: tuple[int, int] = (0, 0),
        seconds: float = 0.0,
        limit: Limit | None = None,
    ) -> RoleScaling:
        count = self.facts.count
        after = count if to is None else to
        said = Said(reason, because, count, after, *rounds, seconds, limit)
        since = state.since if state.reason is reason and state.since else self.utc
        return state.model_copy(
            update={
                "reason": reason,
                "message": words.told(said),
                "since": since,
                "limit": limit,
            }
        )


def first_result(state: RoleScaling, ready: int, utc: datetime) -> RoleScaling:
    """Return the state with the time at which the newest growth first showed (ELAS-25).

    `ready` are the replicas that gave a result, or are registered where nothing counts results.
    """
    if not state.growths:
        return state
    last = state.growths[-1]
    if last.first_result is not None or ready <= last.count_before:
        return state
    done = last.model_copy(update={"first_result": utc})
    return state.model_copy(update={"growths": [*state.growths[:-1], done]})


def forget_hour(state: RoleScaling) -> RoleScaling:
    """Return the state without its baselines: the task became another one (a new generation)."""
    return state.model_copy(update={"values": Means(), "retries": Means(), "usual": None})
