"""The supervisor and its parts, with real processes that do nothing."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dsec.local.processes import (
    Identity,
    LocalError,
    Part,
    Probe,
    RunDirectory,
    end_process,
    identify,
    read_json,
)
from dsec.local.supervisor import ensure_supervisor, supervisor_identity, wait_ready

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


def nothing(step: str, state: str) -> None:
    """Take a report."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """Return a run directory; ends all that was started in it."""
    directory = RunDirectory(tmp_path / "run")
    yield directory
    supervisor = supervisor_identity(directory)
    if supervisor:
        end_process(supervisor, 5.0)
    for name in directory.started():
        directory.stop(name, 1.0)


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def up(run: RunDirectory, *parts: Part) -> None:
    """Do what `up` does with a plan."""
    run.write_plan(parts)
    ensure_supervisor(run)
    wait_ready(run, [part.name for part in parts], 30.0, nothing)


def test_a_crashed_part_is_restarted(run: RunDirectory) -> None:
    """Killing a part brings another process, and the count of restarts says so."""
    up(run, Part("a", SLEEP))
    first = run.running("a")
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: run.running("a") not in {None, first})
    eventually(lambda: read_json(run.root / "status.json")["parts"]["a"]["restarts"] == 1)


def test_repeating_up_changes_nothing(run: RunDirectory) -> None:
    """The same plan leaves the same processes."""
    up(run, Part("a", SLEEP), Part("b", SLEEP, after=("a",)))
    before = [run.running(name) for name in ("a", "b")]
    up(run, Part("a", SLEEP), Part("b", SLEEP, after=("a",)))
    assert [run.running(name) for name in ("a", "b")] == before


def test_a_changed_part_alone_is_restarted(run: RunDirectory) -> None:
    """New inputs restart their reader and nobody else; a part no longer wanted ends."""
    up(run, Part("a", SLEEP), Part("b", SLEEP), Part("c", SLEEP))
    before = {name: run.running(name) for name in "abc"}
    up(run, Part("a", SLEEP), Part("b", SLEEP, inputs="new"))
    eventually(lambda: run.running("b") not in {None, before["b"]})
    assert run.running("a") == before["a"]
    eventually(lambda: run.running("c") is None)


def test_parts_outlive_the_supervisor_and_are_adopted(run: RunDirectory) -> None:
    """Kill -9 of the supervisor ends nothing; the next one takes the parts over."""
    up(run, Part("a", SLEEP))
    first, supervisor = run.running("a"), supervisor_identity(run)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    eventually(lambda: not supervisor.alive())
    up(run, Part("a", SLEEP))
    assert run.running("a") == first
    assert supervisor_identity(run) != supervisor


def test_a_recycled_pid_is_never_taken_for_the_part() -> None:
    """The start time must match too: stopping a part must not end somebody else."""
    own = identify(os.getpid())
    assert own is not None
    stale = Identity(own.pid, own.start - 1, own.boot)
    assert not stale.alive()
    end_process(stale, 0.1)  # would end this test


def test_a_part_that_never_answers_is_named_with_its_log(run: RunDirectory) -> None:
    """The error tells who is late and shows the last lines of its log."""
    says = (sys.executable, "-c", "print('no port today', flush=True); import time; time.sleep(99)")
    run.write_plan([Part("web", says, probe=Probe("http://127.0.0.1:1/"))])
    ensure_supervisor(run)
    log = run.logs / "web.log"
    eventually(lambda: log.exists() and "no port today" in log.read_text())
    with pytest.raises(LocalError, match=r"web \(starting\)(.|\n)*no port today"):
        wait_ready(run, ["web"], 0.5, nothing)


def test_a_program_that_does_not_exist_is_an_error_of_its_part(run: RunDirectory) -> None:
    """The supervisor goes on with the others."""
    run.write_plan([Part("bad", ("/no/such/program",)), Part("good", SLEEP)])
    ensure_supervisor(run)
    wait_ready(run, ["good"], 20.0, nothing)
    eventually(lambda: "error" in read_json(run.root / "status.json")["parts"]["bad"])


def test_ready_is_said_of_the_new_process_alone(run: RunDirectory) -> None:
    """After a change `up` never takes the old process's readiness for the new one's."""
    up(run, Part("a", SLEEP))
    first = run.running("a")
    changed = Part("a", SLEEP, inputs="new")
    up(run, changed)
    now = run.running("a", changed.fingerprint())
    assert now not in {None, first}
