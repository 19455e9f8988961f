"""The reaper's rules by their numbers (OPS-05 to OPS-10, CONF-21, CONF-36), with a fake clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from dsec.api.reaping import Finding, Mark
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxState
from dsec.scaling.reaping import Act, Look, Policy, Step, extended, step, worth_keeping

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
POLICY = Policy()
LOOK = Look(
    at=0.0,
    state=SandboxState.RUNNING,
    running_since=0.0,
    max_run=None,
    cpu_milli=2000,
    gpus=0,
    cpu_seconds=0.0,
    beat_age=5.0,
)


@dataclass
class Patrol:
    """Looks at one sandbox every five minutes; remembers what was decided and when."""

    look: Look = LOOK
    use: float = 0.5
    """Share of the booked CPU that it uses."""
    beats: bool = True
    mark: Mark | None = None
    at: float = 0.0
    acts: list[tuple[float, Act]] = field(default_factory=list)
    last: Step | None = None

    def until(self, end: float, every: float = POLICY.patrol) -> "Patrol":
        """Look at regular times up to one."""
        while self.at < end:
            self.go(min(every, end - self.at))
        return self

    def go(self, seconds: float, *, seen: bool = True) -> None:
        """Let time pass, and look at its end unless nobody is there to."""
        self.at += seconds
        used = (self.look.cpu_seconds or 0.0) + seconds * self.use * self.look.cpu_milli / 1000
        age = 5.0 if self.beats else (self.look.beat_age or 0.0) + seconds
        self.look = replace(self.look, at=self.at, cpu_seconds=used, beat_age=age)
        if seen:
            self.last = step(POLICY, self.mark, self.look)
            self.mark = self.last.mark
            if self.last.act is not None:
                self.acts.append((self.at, self.last.act))

    def extend(self, seconds: float) -> None:
        """Do what a user's call does."""
        self.mark = extended(self.mark, self.at, self.at + seconds, "ann", self.look.state)

    @property
    def finding(self) -> Finding | None:
        """What is wrong with it now."""
        return self.mark.finding if self.mark else None

    def first(self, act: Act) -> float:
        """Return when something was decided first."""
        return next(at for at, one in self.acts if one is act)


def test_what_works_is_left_alone() -> None:
    """Two days of half use and steady heartbeats: nothing is found, and nothing is kept."""
    patrol = Patrol().until(2 * DAY)
    assert patrol.acts == []
    assert patrol.mark is not None
    assert not worth_keeping(POLICY, patrol.mark)


def test_rounds_are_five_minutes_apart() -> None:
    """OPS-05."""
    assert POLICY.patrol == 5 * MINUTE


def test_over_its_run_time() -> None:
    """OPS-06: what its node did not end is ended, with that reason."""
    patrol = Patrol(replace(LOOK, max_run=HOUR)).until(HOUR + 5 * MINUTE)
    assert patrol.finding is Finding.RUN_TIME
    assert patrol.acts == [(HOUR + 5 * MINUTE, Act.WARN)]
    patrol.until(2 * HOUR)
    assert patrol.first(Act.END) == HOUR + 35 * MINUTE
    assert Finding.RUN_TIME.reason is EndReason.DEADLINE


def test_silence_of_thirty_one_minutes() -> None:
    """OPS-07: 30 minutes are allowed, 31 are not."""
    patrol = Patrol(beats=False, look=replace(LOOK, beat_age=0.0))
    patrol.go(0.0)
    patrol.until(30 * MINUTE)
    assert patrol.finding is None
    patrol.go(MINUTE)
    assert patrol.finding is Finding.SILENT
    assert patrol.acts == [(31 * MINUTE, Act.WARN)]
    assert patrol.last is not None
    assert patrol.last.words == "no heartbeat for 31 min; 30 min is allowed"
    patrol.until(90 * MINUTE)
    assert patrol.first(Act.END) == 61 * MINUTE
    assert Finding.SILENT.reason is EndReason.HEARTBEAT_LOST


@pytest.mark.parametrize("outage", [31 * MINUTE, 6 * HOUR, 30 * DAY])
def test_an_outage_of_the_control_plane_is_no_silence(outage: float) -> None:
    """OPS-07, CONF-21: only time in which somebody listened counts."""
    patrol = Patrol().until(HOUR)
    patrol.beats = False
    patrol.go(outage)
    assert patrol.mark is not None
    assert patrol.mark.silent <= 2 * POLICY.patrol
    assert patrol.finding is None
    patrol.beats = True
    patrol.until(patrol.at + HOUR)
    assert patrol.acts == []


def test_a_heartbeat_ends_a_silence() -> None:
    """A warning is taken back; the next silence begins at nothing."""
    patrol = Patrol(beats=False).until(40 * MINUTE)
    assert patrol.finding is Finding.SILENT
    patrol.beats = True
    patrol.until(45 * MINUTE)
    assert patrol.acts[-1] == (45 * MINUTE, Act.CLEAR)
    assert patrol.finding is None


def test_a_day_below_one_percent() -> None:
    """OPS-08: 0.9 % for 24 h is idle, 1.1 % never is."""
    idle = Patrol(use=0.009).until(23.9 * HOUR)
    assert idle.acts == []
    idle.until(24.2 * HOUR)
    assert idle.finding is Finding.IDLE
    assert idle.last is not None
    idle.until(25 * HOUR)
    assert [act for _, act in idle.acts[:2]] == [Act.WARN, Act.END]
    assert Finding.IDLE.reason is EndReason.IDLE
    busy = Patrol(use=0.011).until(3 * DAY)
    assert busy.acts == []


def test_five_busy_minutes_begin_the_day_anew() -> None:
    """Use must stay low: a mean over the day would hide a short job."""
    patrol = Patrol(use=0.0).until(23 * HOUR)
    patrol.use = 0.5
    patrol.go(POLICY.patrol)
    patrol.use = 0.0
    patrol.until(patrol.at + 23 * HOUR)
    assert patrol.acts == []


def test_paused_ones_are_exempt_and_have_their_own_limit() -> None:
    """OPS-08, CONF-36."""
    paused = replace(LOOK, state=SandboxState.PAUSED)
    patrol = Patrol(paused, use=0.0, beats=False).until(30.9 * DAY)
    assert patrol.acts == []
    patrol.until(31.1 * DAY)
    assert patrol.finding is Finding.PAUSED


def test_a_gpu_is_judged_by_one_core() -> None:
    """A program that feeds a GPU with a third of a core of 64 is at work."""
    fed = replace(LOOK, cpu_milli=64_000, gpus=1)
    patrol = Patrol(fed, use=0.3 / 64).until(2 * DAY)
    assert patrol.acts == []
    assert Patrol(replace(fed, gpus=0), use=0.3 / 64).until(2 * DAY).finding is Finding.IDLE


def test_use_that_nobody_counts_is_not_idleness() -> None:
    """A node that cannot tell, or a counter that began anew, says nothing."""
    patrol = Patrol(use=0.0).until(12 * HOUR)
    assert patrol.mark is not None
    assert step(POLICY, patrol.mark, replace(patrol.look, cpu_seconds=None)).mark.idle == 0
    busy = Patrol(use=0.5).until(HOUR)
    again = replace(busy.look, at=busy.at + 300, cpu_seconds=0.0)
    assert step(POLICY, busy.mark, again).mark.idle == 0


def test_an_extension_postpones_and_silence_does_not() -> None:
    """OPS-09: after the extended time there is a new warning and a new window."""
    patrol = Patrol(use=0.0).until(24.2 * HOUR)
    warned = patrol.first(Act.WARN)
    assert patrol.mark is not None
    assert patrol.mark.due == warned + 30 * MINUTE
    patrol.extend(DAY)
    until = patrol.at + DAY
    patrol.until(until - MINUTE)
    assert [act for _, act in patrol.acts] == [Act.WARN]
    patrol.until(until + 10 * MINUTE)
    assert [act for _, act in patrol.acts] == [Act.WARN, Act.WARN]
    patrol.until(until + HOUR)
    assert Act.END in [act for _, act in patrol.acts]


def test_what_is_put_away_too_slowly_is_a_zombie() -> None:
    """W-23: its program has ended and the sandbox stays; nodes get an hour for archives."""
    patrol = Patrol(replace(LOOK, state=SandboxState.ARCHIVING)).until(HOUR)
    assert patrol.acts == []
    patrol.until(HOUR + 10 * MINUTE)
    assert patrol.finding is Finding.ZOMBIE
    patrol.until(2 * HOUR)
    assert Act.END in [act for _, act in patrol.acts]


def test_a_catch_is_counted_once_and_ordered_again() -> None:
    """OPS-10: what it cost is told with the catch; a leader that comes later only repeats it."""
    patrol = Patrol(use=0.0)
    while Act.END not in [act for _, act in patrol.acts]:
        patrol.go(POLICY.patrol)
    assert patrol.last is not None
    assert patrol.last.wasted == pytest.approx(patrol.at - POLICY.patrol, abs=POLICY.patrol)
    # the mark goes through the store, as at a change of leaders
    assert patrol.mark is not None
    patrol.mark = Mark.model_validate_json(patrol.mark.model_dump_json(by_alias=True))
    patrol.until(patrol.at + 20 * MINUTE)
    assert _acts(patrol.acts)[-4:] == [Act.AGAIN] * 4
    assert _acts(patrol.acts).count(Act.END) == 1


@pytest.mark.parametrize("jump", [-30 * DAY, 30 * DAY])
def test_a_clock_that_jumps_reaps_nobody(jump: float) -> None:
    """One round at most is counted, whatever the clock does."""
    patrol = Patrol(use=0.0).until(HOUR)
    assert patrol.mark is not None
    patrol.at += jump
    patrol.go(0.0)
    patrol.until(patrol.at + 20 * HOUR)
    assert patrol.acts == []


def _acts(acts: Iterable[tuple[float, Act]]) -> list[Act]:
    return [act for _, act in acts]
