"""A node's own end: measured in BOOTTIME, kept over restarts, never later than it was meant."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dsec.agent.deadline import FILE, GUARD_SECONDS, LONGEST_FIRST, Deadline, overdue
from dsec.agent.state import StateError
from hypothesis import given
from hypothesis import strategies as st

T = datetime(2027, 1, 15, 8, tzinfo=UTC)


class Clocks:
    """A wall clock that may jump, and the time since boot, which does not."""

    def __init__(self) -> None:
        self.utc = T
        self.boot = 1000.0

    def now(self) -> datetime:
        """Return the wall clock."""
        return self.utc

    def monotonic(self) -> float:
        """Return BOOTTIME."""
        return self.boot

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.go(seconds)

    def go(self, seconds: float) -> None:
        """Let time pass on both."""
        self.utc += timedelta(seconds=seconds)
        self.boot += seconds


def _node(folder: Path, clocks: Clocks, boot: str = "boot-1") -> Deadline:
    return Deadline(folder, clocks, boot, durable=False)


def test_no_end_until_there_is_one(tmp_path: Path) -> None:
    """A node that nobody pays by the hour has no end."""
    deadline = _node(tmp_path, Clocks())
    deadline.start(None)
    assert deadline.left() is None
    assert deadline.run_until is None
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_jumps_of_the_wall_clock_change_nothing(tmp_path: Path, jump: float) -> None:
    """Within one boot only BOOTTIME counts, also for an agent that was started again."""
    clocks = Clocks()
    first = _node(tmp_path, clocks)
    first.start(T + timedelta(seconds=600))
    clocks.go(100)
    clocks.utc += timedelta(seconds=jump)
    assert first.left() == 500
    again = _node(tmp_path, clocks)
    again.start(T + timedelta(seconds=600))
    assert again.left() == 500


def test_a_reboot_wins_no_time(tmp_path: Path) -> None:
    """After a reboot the wall clock counts, and never more than was left before."""
    clocks = Clocks()
    first = _node(tmp_path, clocks)
    first.start(T + timedelta(seconds=600))
    clocks.go(200)
    first.note()
    clocks.boot = 5.0
    clocks.utc += timedelta(seconds=50)
    fine = _node(tmp_path, clocks, "boot-2")
    fine.start(None)
    assert fine.left() == 350
    clocks.boot = 5.0
    clocks.utc -= timedelta(days=300)
    set_back = _node(tmp_path, clocks, "boot-3")
    set_back.start(None)
    assert set_back.left() == 350


def test_a_first_end_is_not_far_away(tmp_path: Path) -> None:
    """A clock of 1970 at the first boot does not make a node run for decades."""
    clocks = Clocks()
    clocks.utc = datetime(1970, 1, 1, tzinfo=UTC)
    deadline = _node(tmp_path, clocks)
    deadline.start(T)
    assert deadline.left() == LONGEST_FIRST


def test_of_two_ways_to_say_it_the_earlier_holds(tmp_path: Path) -> None:
    """A call long under way, or a wrong clock, never gives more time than was meant."""
    clocks = Clocks()
    deadline = _node(tmp_path, clocks)
    deadline.start(T + timedelta(seconds=600))
    assert deadline.extend(T + timedelta(seconds=1800), 1800.0, 1)
    assert deadline.left() == 1800
    clocks.go(300)
    # sent 200 s ago, when 1,700 s were left
    assert deadline.extend(T + timedelta(seconds=1800), 1700.0, 2)
    assert deadline.left() == 1500
    clocks.utc -= timedelta(days=1)
    assert deadline.extend(T + timedelta(seconds=1800), 1400.0, 3)
    assert deadline.left() == 1400


def test_an_older_decision_changes_nothing(tmp_path: Path) -> None:
    """Calls that overtake each other end with the newest decision."""
    deadline = _node(tmp_path, Clocks())
    deadline.extend(T + timedelta(seconds=100), 100.0, 5)
    assert not deadline.extend(T + timedelta(seconds=900), 900.0, 4)
    assert (deadline.left(), deadline.revision) == (100, 5)
    again = _node(tmp_path, Clocks())
    again.start(None)
    assert not again.extend(T + timedelta(seconds=900), 900.0, 4)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b'{"runUntil": "soon", "revision": 1}']
)
def test_a_broken_file_ends_the_node(tmp_path: Path, content: bytes) -> None:
    """What cannot be read bounds nothing: the agent does not start, and the guard ends the node."""
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(StateError, match="run-until"):
        _node(tmp_path, Clocks()).start(T)
    assert overdue(_node(tmp_path, Clocks()), T)


def test_a_full_disk_neither_saves_a_node_nor_ends_it_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot nothing can be written: the time of this boot counts, whatever the clock."""

    def full(path: Path, *_: object, **__: object) -> None:
        raise StateError(f"{path}: No space left on device")

    clocks = Clocks()
    first = _node(tmp_path, clocks)
    first.start(T + timedelta(seconds=600))
    clocks.go(200)
    first.note()
    monkeypatch.setattr("dsec.agent.deadline.replace_durably", full)
    assert not overdue(_node(tmp_path, clocks), None), "the same boot: nothing is written"
    clocks.boot = 5.0
    with pytest.raises(StateError, match="No space left"):
        _node(tmp_path, clocks, "boot-2").start(None)
    assert not overdue(_node(tmp_path, clocks, "boot-2"), None)
    clocks.go(395 + GUARD_SECONDS)
    assert overdue(_node(tmp_path, clocks, "boot-2"), None)
    clocks.utc -= timedelta(days=300)
    clocks.boot = 5.0
    assert not overdue(_node(tmp_path, clocks, "boot-2"), None)
    clocks.boot = 400 + GUARD_SECONDS
    assert overdue(_node(tmp_path, clocks, "boot-2"), None)
    # a new machine: what it was born with holds, and at most a day
    fresh = _node(tmp_path / "new", clocks)
    assert not overdue(fresh, T + timedelta(days=900))
    clocks.boot = LONGEST_FIRST + GUARD_SECONDS
    assert overdue(fresh, T + timedelta(days=900))
    assert not overdue(fresh, None)


def test_the_guard_lets_the_agent_go_first(tmp_path: Path) -> None:
    """A minute after the end the guard acts, with or without a file of the agent."""
    clocks = Clocks()
    assert not overdue(_node(tmp_path, clocks), T + timedelta(seconds=10))
    assert (tmp_path / FILE).exists()
    clocks.go(10 + GUARD_SECONDS - 1)
    assert not overdue(_node(tmp_path, clocks), None)
    clocks.go(1)
    assert overdue(_node(tmp_path, clocks), None)
    assert not overdue(_node(tmp_path / "owned", clocks), None)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("go"), st.floats(0, 3600)),
            st.tuples(st.just("jump"), st.floats(-1e6, 1e6)),
            st.tuples(st.just("restart"), st.just(0.0)),
            st.tuples(st.just("reboot"), st.floats(0, 600)),
            st.tuples(st.just("note"), st.just(0.0)),
        ),
        max_size=12,
    )
)
def test_no_history_runs_longer_than_it_was_paid_for(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, float]]
) -> None:
    """Whatever happens, the node has ended once its paid seconds are over, down time excepted.

    True time is counted here; a reboot may win back at most what passed since the last note.
    """
    folder = tmp_path_factory.mktemp("node")
    clocks, boots, paid, passed, unnoted = Clocks(), 1, 3600.0, 0.0, 0.0
    won = 0.0
    deadline = _node(folder, clocks)
    deadline.start(T + timedelta(seconds=paid))
    for kind, amount in steps:
        if kind == "go":
            clocks.go(amount)
            passed += amount
            unnoted += amount
        elif kind == "jump":
            clocks.utc += timedelta(seconds=amount)
        elif kind == "note":
            deadline.note()
            unnoted = 0.0
        else:
            if kind == "reboot":
                boots += 1
                clocks.boot = 0.0
                clocks.utc += timedelta(seconds=amount)
                passed += amount
                won += unnoted + amount
                unnoted = 0.0
            deadline = _node(folder, clocks, f"boot-{boots}")
            deadline.start(None)
        left = deadline.left()
        assert left is not None
        assert left <= paid - passed + won + 1e-3


def test_the_file_is_plain(tmp_path: Path) -> None:
    """People can read when their node ends."""
    deadline = _node(tmp_path, Clocks())
    deadline.start(T)
    assert json.loads((tmp_path / FILE).read_bytes())["runUntil"] == T.isoformat()
