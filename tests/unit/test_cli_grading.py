"""The 200 programs of the demo: complete, distinct, and failing for the reason they claim."""

import subprocess
import sys
from pathlib import Path

import pytest
from client_fake import status_of
from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, Evidence, SandboxStatus
from dsec.cli import grading
from dsec.cli.demo_report import identities

ALONE = [
    one
    for one in grading.must_fail()
    if one.reason in {EndReason.FAILED, EndReason.SIGNALED}
    and not one.name.startswith(("deletes", "reaches"))
]
"""Those that need no sandbox to fail safely."""


def ideal(index: int, program: grading.Program) -> SandboxStatus:
    """Return the end that a program must have."""
    words = program.expects.replace(",", "").split()
    code = int(words[words.index("exit") + 1]) if "exit" in words else None
    signal = int(words[words.index("signal") + 1]) if words[0] == "signal" else None
    proof = Evidence(oom_kills=1, pids_max_hits=1, dropped_bytes=1, disk_full_writes=1)
    quiet = program.reason in {EndReason.SIGNALED, EndReason.FAILED, EndReason.COMPLETED}
    return status_of(
        index,
        End(
            reason=program.reason,
            exit_code=code,
            signal=signal,
            evidence=Evidence() if quiet else proof,
            stderr="Network is unreachable",
        ),
    )


def test_two_hundred_distinct_programs() -> None:
    """164 solutions and 36 that must fail, each with its own name and a reason."""
    programs = grading.programs()
    assert len(grading.solutions()) == 164
    assert len(grading.must_fail()) == 36
    assert len({one.name for one in programs}) == len({one.source for one in programs}) == 200
    for one in programs:
        assert (one.reason is EndReason.COMPLETED) == one.name.startswith("HumanEval/")
    slow = [one.reason is EndReason.DEADLINE for one in programs]
    assert slow == sorted(slow, reverse=True), "what takes longest has to start first"


def test_the_ideal_result_closes_with_the_promised_line() -> None:
    """Every program as it must end: 164 passed, 36 failed, no surprise."""
    programs = grading.programs()
    grades = grading.grade(programs, [ideal(i, one) for i, one in enumerate(programs)])
    assert grades.line == "164 passed, 36 failed"
    assert grades.as_expected


def test_a_wrong_reason_is_a_surprise_though_the_counts_are_right() -> None:
    """A hog that died for another reason than memory is not what was promised."""
    programs = grading.programs()
    results = [ideal(i, one) for i, one in enumerate(programs)]
    hog = next(i for i, one in enumerate(programs) if one.reason is EndReason.OOM_KILLED)
    results[hog] = status_of(hog, End(reason=EndReason.FAILED, exit_code=1))
    grades = grading.grade(programs, results)
    assert grades.line == "164 passed, 36 failed"
    assert [programs[hog].name] == [program.name for program, _ in grades.surprises]


def test_a_right_reason_without_its_evidence_is_a_surprise() -> None:
    """The reason alone proves nothing."""
    for program in grading.must_fail():
        bare = status_of(0, End(reason=program.reason))
        assert program.fits(bare) == (program.reason is EndReason.DEADLINE), program.name


@pytest.mark.parametrize("program", ALONE, ids=lambda one: one.name)
def test_it_fails_outside_a_sandbox_too(program: grading.Program, tmp_path: Path) -> None:
    """Exit status and signal come from the program, not from the sandbox."""
    done = subprocess.run(
        [sys.executable, "-c", program.source], cwd=tmp_path, capture_output=True, check=False
    )
    signal = -done.returncode if done.returncode < 0 else None
    end = End(
        reason=program.reason,
        signal=signal,
        exit_code=None if signal else done.returncode,
        stderr=done.stderr.decode(),
    )
    assert program.fits(status_of(0, end))


def test_identities_count_by_the_number_that_never_repeats() -> None:
    """An inode may come again; where the kernel gives no number, the screen says inodes."""
    numbered = [
        Evidence(pid_namespace=7, net_namespace=8, pid_namespace_id=one, net_namespace_id=one)
        for one in (1, 2)
    ]
    for evidence, found in (
        (numbered, {"pid namespaces": 2, "net namespaces": 2}),
        (
            [Evidence(pid_namespace=7, net_namespace=8)] * 2,
            {"pid namespace inodes": 1, "net namespace inodes": 1},
        ),
    ):
        ends = [End(reason=EndReason.COMPLETED, evidence=one) for one in evidence]
        counts = identities(status_of(index, end) for index, end in enumerate(ends))
        assert counts == {"sandbox ids": 2, "cgroup paths": 0, **found}
