"""When snapshots are due on a node, and when they had better wait."""

import pytest
from dsec.agent.pressure import parse
from dsec.agent.snapshot_plan import (
    DEFER_MOST,
    MARK_LEAST,
    MARK_MOST,
    MISSED_MOST,
    SPREAD,
    USUAL_SECONDS,
    Change,
    Pressure,
    deferral,
    ended_whole,
    first_wait,
    interval,
    kinds_of,
    patience,
)
from dsec.api.reasons import EndReason
from dsec.api.sandbox import End
from dsec.api.snapshot import SnapshotKind, SnapshotPlan

MIB = 1 << 20


def plan(**more: object) -> SnapshotPlan:
    """Return a plan of state."""
    return SnapshotPlan.model_validate({"kinds": ["state"], **more})


@pytest.mark.parametrize("seconds", [300.0, 600.0, 900.0, 1800.0])
def test_a_fixed_interval_is_kept_however_fast_state_changes(seconds: float) -> None:
    """Every preset gives its own spacing."""
    fixed = plan(interval_seconds=seconds)
    assert interval(fixed, None) == seconds
    assert interval(fixed, Change(100 * MIB, 90 * MIB, 1.0)) == seconds
    assert interval(plan(), None) is None


def test_an_adaptive_interval_follows_the_speed_of_change() -> None:
    """Four times as fast: a quarter of the interval; at rest it is as long as it may be."""
    adaptive = plan(adaptive=True, interval_seconds=400)
    size = 1000 * MIB
    slow = interval(adaptive, Change(size, 50 * MIB, 400))
    fast = interval(adaptive, Change(size, 200 * MIB, 400))
    assert slow == pytest.approx(400)
    assert fast == pytest.approx(100)
    assert interval(adaptive, Change(size, size, 1)) == 400 / SPREAD
    assert interval(adaptive, Change(size, 0, 400)) == 400 * SPREAD
    assert interval(plan(adaptive=True), None) == USUAL_SECONDS


def test_the_first_one_keeps_the_spacing_over_a_restart_of_the_agent() -> None:
    """What is overdue comes soon, and not that of all sandboxes at once."""
    assert first_wait(300, None, 0.0) == 300
    assert first_wait(300, 100, 0.0) == 200
    assert 0 < first_wait(300, 9999, 0.5) <= 30


def test_a_mark_is_waited_for_as_long_as_the_program_makes_any() -> None:
    """Half a period, within bounds; who never marks is soon not waited for."""
    assert patience(200, marks=3, missed=9) == 100
    assert patience(1, marks=1, missed=0) == MARK_LEAST
    assert patience(None, marks=1, missed=0) == MARK_MOST
    assert patience(200, marks=0, missed=0) == MARK_LEAST
    assert patience(200, marks=0, missed=MISSED_MOST) == 0


def test_a_busy_moment_defers_a_snapshot_but_not_for_ever() -> None:
    """The reason is in words; a node that is always busy does not lose its work."""
    busy = Pressure(io=0.8, cpu=0.1)
    later = deferral(busy, 0, 300)
    assert later is not None
    assert later[0] == pytest.approx(30)
    assert later[1] == "work waited for the disk in 80% of the last 10 s, bound 50%"
    assert deferral(busy, DEFER_MOST, 300) is None
    assert deferral(Pressure(io=0.2, cpu=0.99), 0, 300) is not None
    assert deferral(Pressure(), 0, 300) is None


def test_what_is_most_complete_is_stored_last() -> None:
    """The newest one is restored; a freeze is nothing that is stored."""
    every = plan(kinds=["disk", "freeze", "state"])
    assert kinds_of(every) == [SnapshotKind.STATE, SnapshotKind.DISK]
    assert kinds_of(plan(kinds=["freeze"])) == []


@pytest.mark.parametrize(
    ("reason", "exit_code", "asked", "whole"),
    [
        (EndReason.COMPLETED, 0, False, True),
        (EndReason.FAILED, 1, False, False),
        (EndReason.FAILED, 143, True, True),
        (EndReason.SIGNALED, None, True, False),
        (EndReason.OOM_KILLED, 0, False, False),
    ],
)
def test_what_was_killed_may_have_been_writing(
    reason: EndReason, exit_code: int | None, asked: bool, whole: bool
) -> None:
    """Only who left of its own will has files that belong together."""
    assert ended_whole(End(reason=reason, exit_code=exit_code), asked=asked) is whole


def test_pressure_is_read_as_the_kernel_writes_it() -> None:
    """Line `some`; anything else is unknown."""
    text = "some avg10=12.50 avg60=0.0 avg300=0.0 total=1\nfull avg10=99.0 avg60=0 avg300=0 total=1"
    assert parse(text) == 0.125
    assert parse("") is None
