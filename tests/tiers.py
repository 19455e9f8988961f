"""Run every tier of the tests in order, print the time of each, and close with one total line.

Used by `make test`. A tier that fails does not stop the next ones: one run shows everything. The
soak tests are left out. Exit code 1 where a check or a test failed or a tier could not run.
"""

import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TIERS = ("component", "policy", "integration", "sim", "chaos", "e2e")
"""In the order of cost; unit tests are part of `make check`."""

NO_TESTS = 5
"""Pytest's exit status for a folder without tests."""


def pytest_tier(tier: str, reports: Path) -> tuple[int, Counter[str]]:
    """Run one tier; return its exit status and its counts."""
    report = reports / f"{tier}.xml"
    command = [sys.executable, "-m", "pytest", f"tests/{tier}", "-m", "not soak"]
    status = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, check=False).returncode
    return (0 if status == NO_TESTS else status), counts_of(report)


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


def main() -> int:
    """Run the checks, then each tier; return the exit status."""
    total: Counter[str] = Counter()
    rows = []
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder)
        start = time.monotonic()
        unit = reports / "unit.xml"
        status = subprocess.run(
            ["make", "check", f"UNIT_OPTIONS=--junitxml={unit}"],
            cwd=ROOT,
            check=False,
        ).returncode
        failed |= status != 0
        rows.append(("check + unit", status, time.monotonic() - start))
        for tier in (one for one in TIERS if (ROOT / "tests" / one).is_dir()):
            print(f"\n── {tier} tests", flush=True)
            start = time.monotonic()
            status, counts = pytest_tier(tier, reports)
            failed |= status != 0
            total += counts
            rows.append((tier, status, time.monotonic() - start))
        total += counts_of(unit)
    print("\ntier            result   seconds")
    for name, status, seconds in rows:
        print(f"{name:<15} {'ok' if status == 0 else f'exit {status}':<8} {seconds:7.1f}")
    failures = total["failed"] + (1 if failed and not total["failed"] else 0)
    print(f"{total['passed']} passed, {failures} failed, {total['skipped']} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
