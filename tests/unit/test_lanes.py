"""Lanes of test processes: beside each other, in order, each seen, and stopped without a rest."""

import sys
import threading
import time
from pathlib import Path

import lanes
import pytest
from lanes import NO_TESTS, STOPPED, Row, Run, Runner

MEET = """
import pathlib, time
pathlib.Path("{mine}").touch()
while not pathlib.Path("{other}").exists():
    time.sleep(0.02)
"""
"""Ends only where the other one runs at the same time."""
TIDY = """
import pathlib, time
try:
    pathlib.Path("up").touch()
    time.sleep(60)
finally:
    pathlib.Path("down").touch()
"""
SECOND = "import pathlib; pathlib.Path('begun').touch()"


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Return a runner in a folder of its own, of plain programs instead of pytest."""
    monkeypatch.setattr(Run, "command", lambda run, _: [sys.executable, "-c", run.paths[0]])
    return Runner(tmp_path, tmp_path)


def statuses(rows: list[Row]) -> list[tuple[str, int]]:
    """Return names and exit statuses."""
    return [(row.name, row.status) for row in rows]


def test_lanes_run_beside_each_other(runner: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    """Two meet; what fails stops nothing; the output of each is shown under its name."""
    left = Run("left", (MEET.format(mine="l", other="r"),))
    right = Run("right", (MEET.format(mine="r", other="l"),))
    fails = Run("fails", ("import sys; print('why'); sys.exit('the reason')",))
    empty = Run("empty", (f"raise SystemExit({NO_TESTS})",))
    rows = runner.phase(((left, empty), (fails, right)))
    assert statuses(rows) == [("left", 0), ("empty", 0), ("fails", 1), ("right", 0)]
    assert all(row.seconds > 0 for row in rows)
    out = capfd.readouterr().out
    assert out.index("── fails (beside the others") < out.index("why") < out.index("── right")
    assert "the reason" in out
    assert all(out.count(f"── {row.name}") == 1 for row in rows)


def test_a_phase_tells_what_it_waits_for(
    runner: Runner, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence for minutes looks like a hang."""
    monkeypatch.setattr(lanes, "TELL_SECONDS", 0.05)
    told = ""

    def release() -> None:
        nonlocal told
        while "waiting for slow" not in told:
            told += capfd.readouterr().out
            time.sleep(0.02)
        (runner.root / "told").touch()

    helper = threading.Thread(target=release, daemon=True)
    helper.start()
    rows = runner.phase(
        ((Run("quick", ("",)),), (Run("slow", (MEET.format(mine="slow", other="told"),)),))
    )
    assert statuses(rows) == [("quick", 0), ("slow", 0)]


def test_an_interrupt_lets_tests_tidy_up(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs takes down what it has started, nothing else begins, and the interrupt goes on."""

    def interrupted(*_: object) -> None:
        while not (runner.root / "up").exists():
            time.sleep(0.02)
        raise KeyboardInterrupt

    monkeypatch.setattr(lanes, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.phase(((Run("tidy", (TIDY,)), Run("never", (SECOND,))),))
    assert (runner.root / "down").exists()
    assert not (runner.root / "begun").exists()


def test_nothing_begins_after_a_stop(runner: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    """A lane that was just about to start its next run leaves it, and shows nothing of it."""
    runner.stop()
    rows = runner.phase(((Run("live", (SECOND,)),), (Run("late", (SECOND,)),)))
    assert statuses(rows) == [("live", STOPPED), ("late", STOPPED)]
    assert not (runner.root / "begun").exists()
    assert "late" not in capfd.readouterr().out


def test_the_command_leaves_the_soak_out(tmp_path: Path) -> None:
    """A run that shares its files by a mark keeps to the mark, too."""
    words = Run("some", ("sim", "chaos"), marks="not pulumi").command(tmp_path / "some.xml")
    assert words[1:] == [
        *("-m", "pytest", "tests/sim", "tests/chaos", "-m", "not pulumi and not soak"),
        f"--junitxml={tmp_path}/some.xml",
    ]
    assert "not soak" in Run("all", ("sim",)).command(tmp_path)
