"""The oscillation guard: it doubles with each mistake, decays, and only ever delays."""

import pytest
from dsec.api.elastic_status import GuardState, Step
from dsec.scaling.guard import GuardRule, acted, hold_seconds, shifted, wait_seconds
from hypothesis import given
from hypothesis import strategies as st

RULE = GuardRule()
TIMES = st.integers(0, 10_000_000).map(float)


def after(*steps: tuple[Step, float]) -> GuardState:
    """Return the state after these changes."""
    state = GuardState()
    for step, at in steps:
        state = acted(state, step, at)
    return state


def test_a_shrink_that_was_undone_makes_the_next_wait_twice_as_long() -> None:
    """Sixty seconds, then 120, 240; ten minutes at most; half an hour later sixty again."""
    state = GuardState()
    holds = []
    for turn in range(6):
        at = turn * 120.0
        holds.append(hold_seconds(state, at))
        state = acted(acted(state, Step.SHRINK, at), Step.GROW, at + 60)
    assert holds == [60, 120, 240, 480, 600, 600]
    assert hold_seconds(state, 660 + 1800) == 60


def test_what_is_no_mistake_does_not_count() -> None:
    """A shrink after growth ends a burst; growth long after a shrink is another burst."""
    assert hold_seconds(after((Step.GROW, 0), (Step.SHRINK, 60)), 60) == 60
    late = after((Step.SHRINK, 0), (Step.GROW, 601))
    assert hold_seconds(late, 601) == 60
    assert hold_seconds(after((Step.SHRINK, 0), (Step.GROW, 600)), 600) == 120


@pytest.mark.case("autoscaler#7873")
def test_a_restart_keeps_what_has_been_waited() -> None:
    """The state and the since-time come back from JSON: the wait goes on where it was."""
    state = after((Step.SHRINK, 0), (Step.GROW, 100))
    assert wait_seconds(state, since=200, now=260) == 60
    again = GuardState.model_validate_json(state.model_dump_json(by_alias=True))
    assert again == state
    assert wait_seconds(again, since=200, now=320) == 0


def test_a_rule_that_delays_for_ever_is_refused() -> None:
    """The cap is not below the base, and no span is negative."""
    with pytest.raises(ValueError, match="cap_seconds"):
        GuardRule(base_seconds=700)


@given(
    steps=st.lists(st.tuples(st.sampled_from(Step), TIMES), max_size=40),
    since=TIMES,
    now=TIMES,
    shift=st.integers(-1_000_000, 1_000_000).map(float),
)
def test_the_wait_is_bounded_whatever_the_clocks(
    steps: list[tuple[Step, float]], since: float, now: float, shift: float
) -> None:
    """Never above the cap, never below zero, and the same after clock and state are shifted."""
    state = after(*steps)
    wait = wait_seconds(state, since=since, now=now)
    assert 0 <= wait <= RULE.cap_seconds
    assert len(state.reversals) <= 16
    moved = wait_seconds(shifted(state, shift), since=since + shift, now=now + shift)
    assert moved == wait
