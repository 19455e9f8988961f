"""`dsec demo`: from a bare machine to 200 graded programs, in one command that may be repeated.

Each phase is a command that a person could give; this module runs them in order, says what comes
next and how long it takes, and stops at the first that fails. What a phase finds done it leaves as
it is, so an interrupted demo goes on where it was.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.codes import EXIT_FAILED
from dsec.cli.demo_report import Times, show
from dsec.cli.output import note

if TYPE_CHECKING:
    from dsec.api.sandbox import SandboxStatus
    from dsec.cli.grading import Program

GRADING_SECONDS = 900.0
"""The most that grading may take; on two idle cores it takes a tenth."""

FIRST = ["python3", "-c", "print(1)"]
"""The first program that anyone runs here."""

_NEXT = """
What comes next, and how long it takes on two cores:
  tool chain      etcd, Kubernetes, Pulumi: seconds if it is here, minutes to download,
                  about 35 min to build where there is nothing to download from; once
  local cluster   1 min, and 3 min more for the images, once
  pulumi up       1 to 2 min: the platform, checked by the policy pack
  HumanEval       1 to 3 min: 164 solutions and 36 programs that must fail
"""


def demo(
    *,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Without Kubernetes and without a tool chain.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Straight to the local cluster.")
    ] = False,
) -> None:
    """Run a first sandbox, then HumanEval: 200 programs, each in a sandbox of its own.

    By default first without Kubernetes, then on a local cluster that Pulumi sets up. May be
    interrupted and repeated. Exit code 0 only where all 164 solutions pass and each of the 36
    others fails for its own reason.
    """
    from dsec.cli import demo_steps as steps

    if standalone and cluster:
        raise typer.BadParameter("choose one of --standalone and --cluster")
    # a standalone dsec that somebody already runs here must not be ended on the way
    place = [] if standalone else ["--state-dir", str(steps.state_directory() / "demo")]
    times = Times()
    with steps.tools_in_background(needed=not standalone) as tools:
        if not cluster:
            with _phase("a first sandbox, without Kubernetes", times):
                steps.dsec("up", "--standalone", *place)
                _run_first()
        if not standalone:
            note(_NEXT)
            if not cluster:
                steps.dsec("down", "--purge", *place)
            with _phase("tool chain", times):
                tools.wait()
            with _phase("local cluster and images", times):
                steps.dsec("local", "up")
            with _phase("pulumi up --stack local, with the policy pack", times):
                steps.pulumi_up()
        with _phase("HumanEval", times):
            programs, results = _grade()
    _close(programs, results, times)


def _run_first() -> None:
    """Run the first program and say what came of it."""
    from dsec.cli.ends import reason_of
    from dsec.cli.session import client

    start = time.monotonic()
    with client() as dsec:
        (status,) = dsec.run(count=1, command=FIRST, memory="64Mi", disk="16Mi", timeout_seconds=60)
    seconds = time.monotonic() - start
    printed = status.end.stdout.strip() if status.end else ""
    note(f"$ {' '.join(FIRST)}\n{printed}")
    note(f"   sandbox {status.identity.id}: {reason_of(status)} in {seconds:.1f} s")
    if printed != "1":
        raise typer.Exit(EXIT_FAILED)


def _grade() -> tuple[list["Program"], list["SandboxStatus"]]:
    """Run all programs, each in its sandbox; return both lists in the same order."""
    from dsec.cli.grading import COMMAND, LIMITS, programs
    from dsec.cli.progress import shown
    from dsec.cli.session import client

    wanted = programs()
    with client() as dsec, shown("HumanEval") as report:
        results = dsec.run(
            command=COMMAND,
            items=[one.item() for one in wanted],
            timeout_seconds=GRADING_SECONDS,
            on_progress=report,
            **LIMITS,
        )
    return wanted, results


def _close(programs: list["Program"], results: list["SandboxStatus"], times: Times) -> None:
    from dsec.cli.grading import grade

    grades = grade(programs, results)
    show(programs, results, grades, times, times.rows[-1][1])
    if not grades.as_expected:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _phase(title: str, times: Times) -> Iterator[None]:
    """Name a phase, and note how long it took."""
    note(f"\n══ {title}")
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    times.add(title, seconds)
    note(f"   {title}: {seconds:.1f} s")
