"""Set the tests up, run every tier, print the time of each, close with one total line.

Used by `make test`. Runs of one phase go beside each other where they disturb neither the figures
nor the counts of the other (`tests/lanes.py`). A tier that fails does not stop the next ones: one
run shows everything. The soak tests are left out. Exit code 1 where a check or a test failed, a
tier could not run, or a test was skipped for a reason that is not allowed here; 2 where this
machine lacks something.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lanes import Phase, Row, Run, Runner

ROOT = Path(__file__).resolve().parent.parent
DSEC = Path(sys.executable).with_name("dsec")

E2E_PLATFORM = tuple(
    f"e2e/test_{name}.py" for name in ("documents", "platform_rollout", "platform_stack", "images")
)
"""Files that share the platform or its cluster, in the order of tests/e2e/conftest.py."""

PHASES: tuple[Phase, ...] = (
    (
        # real clusters, one after the other: platform first, then the life of a cluster
        (
            Run("e2e-platform", E2E_PLATFORM),
            Run("e2e-cluster", ("e2e/test_local_cluster.py",)),
        ),
        # mostly waits; what measures take-overs comes last, when the third lane is through
        (
            Run("integration", ("integration",), marks="not pulumi"),
            Run("e2e-standalone", ("e2e/test_standalone.py", "e2e/test_sdk.py")),
            Run("chaos", ("chaos",)),
        ),
        # computes, and measures nothing
        (
            Run("integration-pulumi", ("integration",), marks="pulumi"),
            Run("component", ("component",)),
            Run("policy", ("policy",)),
            Run("sim", ("sim",)),
        ),
    ),
)
"""What runs beside what; unit tests are part of `make check`.

Lanes share no cluster, port, folder or cgroup: each test makes its own. Within a run tests are in
the order of their files: some modules go on where the test before stopped.
"""

MAY_SKIP = ("the sources' documents are not here",)
"""How the reason of an allowed skip begins: these four documents cannot be published."""


def prepare() -> bool:
    """Get what the tests need: packages in CI, tools anywhere. Says what is missing."""
    # whoever runs this by hand is asked before their machine changes, so it only checks
    fix = ["--fix", "--yes"] if os.environ.get("CI") else []
    doctor = [str(DSEC), "doctor", "--for", "tests", *fix]
    done = subprocess.run(doctor, cwd=ROOT, check=False, capture_output=not fix, text=True)
    if done.returncode != 0:
        print(done.stdout or "", done.stderr or "", sep="")
        print("The tests cannot start; to install packages: dsec doctor --for tests --fix")
        return False
    # compilers use every core, and what they make is needed by most tiers
    return subprocess.run([DSEC, "tools", "install"], cwd=ROOT, check=False).returncode == 0


def counts_of(report: Path) -> Counter[str]:
    """Return the counts of a JUnit file; of one that was never written, none."""
    counts: Counter[str] = Counter()
    if not report.exists():
        return counts
    for suite in ET.parse(report).iter("testsuite"):  # noqa: S314  our own file
        total, *rest = (int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped"))
        counts["failed"] += rest[0] + rest[1]
        counts["skipped"] += rest[2]
        counts["passed"] += total - sum(rest)
    return counts


def forbidden_skips(reports: Iterable[Path]) -> list[str]:
    """Return the skipped tests that should have run, each with the reason it gave."""
    found = []
    for report in reports:
        for case in ET.parse(report).iter("testcase"):  # noqa: S314  our own file
            for skip in case.iter("skipped"):
                reason = skip.get("message", "")
                if not reason.startswith(MAY_SKIP):
                    found.append(f"{case.get('classname')}.{case.get('name')}: {reason}")
    return found


def main() -> int:
    """Set up, run the checks, then each phase; return the exit status."""
    first = start = time.monotonic()
    if not prepare():
        return 2
    rows = [Row("set-up", 0, time.monotonic() - start)]
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder)
        start = time.monotonic()
        check = ["make", "check", f"UNIT_OPTIONS=--junitxml={reports / 'unit.xml'}"]
        status = subprocess.run(check, cwd=ROOT, check=False).returncode
        rows.append(Row("check + unit", status, time.monotonic() - start))
        runner = Runner(ROOT, reports)
        for phase in PHASES:
            rows += runner.phase(phase)
        written = sorted(reports.glob("*.xml"))
        total = sum(map(counts_of, written), Counter())
        skips = forbidden_skips(written)
    failed = bool(skips) or any(row.status for row in rows)
    rows.append(Row("all", int(failed), time.monotonic() - first))
    print("\ntier                 result   seconds")
    for row in rows:
        result = f"exit {row.status}" if row.status else "ok"
        print(f"{row.name:<20} {result:<8} {row.seconds:7.1f}")
    for line in skips:
        print(f"must not be skipped: {line}")
    failures = total["failed"] + len(skips)
    if failed and not failures:
        failures = 1
    skipped = total["skipped"] - len(skips)
    print(f"{total['passed']} passed, {failures} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    # ends as Ctrl-C does: what runs is asked to stop, and takes down what it has started
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
