"""Set the tests up, run every tier in order, print the time of each, close with one total line.

Used by `make test`. A tier that fails does not stop the next ones: one run shows everything. The
soak tests are left out. Exit code 1 where a check or a test failed, a tier could not run, or a
test was skipped for a reason that is not allowed here; 2 where this machine lacks something.
"""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DSEC = Path(sys.executable).with_name("dsec")

TIERS = {
    "component": ("-n", "2"),
    "policy": (),
    "integration": (),
    "sim": ("-n", "2"),
    "chaos": (),
    "e2e": (),
}
"""In the order of cost, with options; unit tests are part of `make check`.

Only tiers that start no program run two files at a time: the others share cgroups and ports of the
machine, and some measure time.
"""

MAY_SKIP = ("the sources' documents are not here",)
"""How the reason of an allowed skip begins: these four documents cannot be published."""

NO_TESTS = 5
"""Pytest's exit status for a folder without tests."""


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


def pytest_tier(tier: str, report: Path) -> int:
    """Run one tier; return its exit status."""
    command = [sys.executable, "-m", "pytest", f"tests/{tier}", "-m", "not soak", *TIERS[tier]]
    status = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, check=False).returncode
    return 0 if status == NO_TESTS else status


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
    """Set up, run the checks, then each tier; return the exit status."""
    start = time.monotonic()
    if not prepare():
        return 2
    rows = [("set-up", 0, time.monotonic() - start)]
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder)
        start = time.monotonic()
        check = ["make", "check", f"UNIT_OPTIONS=--junitxml={reports / 'unit.xml'}"]
        status = subprocess.run(check, cwd=ROOT, check=False).returncode
        rows.append(("check + unit", status, time.monotonic() - start))
        for tier in (one for one in TIERS if (ROOT / "tests" / one).is_dir()):
            print(f"\n── {tier} tests", flush=True)
            start = time.monotonic()
            status = pytest_tier(tier, reports / f"{tier}.xml")
            rows.append((tier, status, time.monotonic() - start))
        written = sorted(reports.glob("*.xml"))
        total = sum(map(counts_of, written), Counter())
        skips = forbidden_skips(written)
    print("\ntier            result   seconds")
    for name, status, seconds in rows:
        print(f"{name:<15} {'ok' if status == 0 else f'exit {status}':<8} {seconds:7.1f}")
    for line in skips:
        print(f"must not be skipped: {line}")
    failed = bool(skips) or any(status for _, status, _ in rows)
    failures = total["failed"] + len(skips)
    if failed and not failures:
        failures = 1
    skipped = total["skipped"] - len(skips)
    print(f"{total['passed']} passed, {failures} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
