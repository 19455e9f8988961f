"""The one oscillation guard, for replicas and for nodes: it only ever delays shrinking.

Each time that growth follows soon after a shrink, the shrink was a mistake: the next one has to be
wanted for twice as long. The wait is capped, and decays as such reversals age. Growth, notices of a
provider and stops of a budget never ask the guard.

The state is plain data that the caller persists; times are seconds on one line of the caller's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dsec.api.elastic_status import MAX_REVERSALS, GuardState, Step


@dataclass(frozen=True, slots=True)
class GuardRule:
    """How long a shrink must have been wanted: base * 2^(reversals in the window), capped."""

    base_seconds: float = 60.0
    cap_seconds: float = 600.0
    window_seconds: float = 1800.0
    """A reversal counts for so long."""
    reversal_seconds: float = 600.0
    """Growth this soon after a shrink is a reversal; later it is another burst."""

    def __post_init__(self) -> None:
        """Refuse figures that could delay for ever."""
        spans = (self.base_seconds, self.cap_seconds, self.window_seconds, self.reversal_seconds)
        if min(spans) < 0 or self.cap_seconds < self.base_seconds:
            raise ValueError(f"{self}: needs 0 <= base_seconds <= cap_seconds, and no span below 0")


DEFAULT_GUARD = GuardRule()


def acted(state: GuardState, step: Step, now: float, rule: GuardRule = DEFAULT_GUARD) -> GuardState:
    """Return the state after a change was made. Call it for every grow and shrink that is made."""
    reversals = list(_counted(state.reversals, now, rule))
    if (
        step is Step.GROW
        and state.last is Step.SHRINK
        and state.last_at is not None
        and now - min(state.last_at, now) <= rule.reversal_seconds
    ):
        reversals.append(now)
    return GuardState(reversals=reversals, last=step, last_at=now)


def hold_seconds(state: GuardState, now: float, rule: GuardRule = DEFAULT_GUARD) -> float:
    """Return for how long a shrink must have been wanted before it is made."""
    count = len(_counted(state.reversals, now, rule))
    # 2^40 periods are past every cap, and floats stay small
    return min(rule.cap_seconds, rule.base_seconds * 2.0 ** min(count, 40))


def wait_seconds(
    state: GuardState, *, since: float, now: float, rule: GuardRule = DEFAULT_GUARD
) -> float:
    """Return how long a shrink that has been wanted since then must still wait; 0: it may be made.

    A `since` in the future (a clock went back) counts as now.
    """
    return max(0.0, hold_seconds(state, now, rule) - (now - min(since, now)))


def shifted(state: GuardState, seconds: float) -> GuardState:
    """Return the state on a line of time that is so many seconds further: a clock was set."""
    return GuardState(
        reversals=[at + seconds for at in state.reversals],
        last=state.last,
        last_at=None if state.last_at is None else state.last_at + seconds,
    )


def _counted(reversals: Sequence[float], now: float, rule: GuardRule) -> list[float]:
    # one from the future is from before a clock went back: it counts from now
    return [min(at, now) for at in reversals if now - at < rule.window_seconds][-MAX_REVERSALS:]
