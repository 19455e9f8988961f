"""How fast sandboxes come and go on this machine: `make bench-create`.

Runs `true` in many sandboxes of a standalone dsec of its own and prints the rate and the spans
between the stages of a life. Nothing is asserted about the figures: they belong to the machine.
"""

import os
import statistics
from pathlib import Path

import pytest
from dsec.api.sandbox import SandboxState, SandboxStatus
from dsec.client import Client, Context
from dsec.local import standalone, standalone_state

COUNT = 200
SPANS = (
    (SandboxState.BOUND, SandboxState.CREATING),
    (SandboxState.CREATING, SandboxState.STARTING),
    (SandboxState.STARTING, SandboxState.RUNNING),
    (SandboxState.RUNNING, SandboxState.ARCHIVING),
    (SandboxState.ARCHIVING, SandboxState.ENDED),
)


def quiet(step: str, state: str) -> None:
    """Take a progress report and show nothing."""


def spans(results: list[SandboxStatus], begin: str, end: str) -> list[float]:
    """Return the seconds between two states, of those sandboxes that passed both."""
    return sorted(
        (one.times[end] - one.times[begin]).total_seconds()
        for one in results
        if begin in one.times and end in one.times
    )


@pytest.mark.root
def test_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measure; every sandbox must complete."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    state = standalone.up(tmp_path / "alone", quiet)
    context = Context(server=state.server, api_key=state.api_key, project=standalone_state.PROJECT)
    try:
        with Client(context) as dsec:
            limits = {"cpu": "100m", "memory": "32Mi", "pids": 16, "disk": "8Mi"}
            dsec.run(count=4, command=["true"], **limits)
            results = dsec.run(count=COUNT, command=["true"], timeout_seconds=600, **limits)
    finally:
        left = standalone.down(tmp_path / "alone", quiet, purge=True)
    assert left.total() == 0
    assert {one.end.reason for one in results if one.end} == {"completed"}
    begin = min(one.times["bound"] for one in results)
    seconds = (max(one.times["ended"] for one in results) - begin).total_seconds()
    with capsys.disabled():
        print(f"\n{COUNT} sandboxes in {seconds:.1f} s: {COUNT / seconds:.1f} a second")  # noqa: T201  the figures are the result
        for first, second in SPANS:
            found = spans(results, first.value, second.value)
            p50, p99 = statistics.median(found), found[int(len(found) * 0.99)]
            print(f"  {first} → {second:<10} p50 {p50:.3f} s  p99 {p99:.3f} s")  # noqa: T201  same
