"""Run the tests that hold field reports, and print report, test and result of each.

Used by `make cases`. The reports are in cases.toml; a test names one by `@pytest.mark.case(id)`.
Exit code 1 where a report has neither test nor exemption, a mark names an unknown report, a test
fails or is skipped, or too many reports are exempt.
"""

import argparse
import ast
import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
LIST = "cases.toml"
MOST_EXEMPT = 0.05
"""Share of reports that may go without a test."""
WORST = ("failed", "skipped", "passed")
"""Outcomes of a test, the one that counts first."""


@dataclass(slots=True)
class Case:
    """One report: the right behaviour, and what its tests said."""

    id: str
    right: str
    also: tuple[str, ...] = ()
    exempt: str = ""
    results: dict[str, str] = field(default_factory=dict)
    """Outcome by test: passed, failed or skipped."""

    @property
    def result(self) -> str:
        """The worst outcome of its tests; `exempt` or `missing` without any."""
        for outcome in WORST:
            if outcome in self.results.values():
                return outcome
        return "exempt" if self.exempt else "missing"


def read_list(tests: Path = TESTS) -> list[Case]:
    """Return the reports in the order of the file. Raises ValueError where one says too little."""
    cases = []
    for name, entry in tomllib.loads((tests / LIST).read_text()).items():
        unknown = entry.keys() - {"right", "also", "exempt"}
        if unknown or not entry.get("right"):
            raise ValueError(f"{LIST}: {name}: needs `right`, may have `also` and `exempt`")
        also = tuple(entry.get("also", ()))
        cases.append(Case(name, entry["right"], also, entry.get("exempt", "")))
    return cases


def marks_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (report, test function) of every mark in a file of tests, without importing it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.case":
                for argument in mark.args:
                    if isinstance(argument, ast.Constant):
                        yield str(argument.value), node.name


def marked(tests: Path = TESTS) -> dict[str, list[str]]:
    """Return the marked tests (`path::function`) of each report that some test names."""
    found: dict[str, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        for report, function in marks_of(path):
            found.setdefault(report, []).append(f"{path.relative_to(tests.parent)}::{function}")
    return found


def faults(cases: list[Case], tests: dict[str, list[str]]) -> list[str]:
    """Return what is wrong with list and marks before anything runs."""
    names = [name for case in cases for name in (case.id, *case.also)]
    found = [f"{name}: listed twice" for name in sorted({n for n in names if names.count(n) > 1})]
    found += [
        f"{report}: no such report in {LIST}, named by {', '.join(where)}"
        for report, where in sorted(tests.items())
        if report not in names
    ]
    for case in cases:
        held = any(name in tests for name in (case.id, *case.also))
        if not held and not case.exempt:
            found.append(f"{case.id}: neither test nor exemption: {case.right}")
        if held and case.exempt:
            found.append(f"{case.id}: has a test and an exemption")
    exempt = sum(bool(case.exempt) for case in cases)
    if exempt > MOST_EXEMPT * len(cases):
        found.append(f"{exempt} of {len(cases)} reports are exempt: more than {MOST_EXEMPT:.0%}")
    return found


class Results:
    """A pytest plugin that notes the outcome of every marked test."""

    def __init__(self, cases: list[Case]) -> None:
        self._cases = {name: case for case in cases for name in (case.id, *case.also)}
        self._of_test: dict[str, list[Case]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Learn which reports a test stands for."""
        for item in items:
            names = [name for mark in item.iter_markers("case") for name in mark.args]
            held = [self._cases[name] for name in names if name in self._cases]
            self._of_test[item.nodeid] = held

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of set-up, call and tear-down, and of a test's parameters."""
        test = report.nodeid.partition("[")[0]
        for case in self._of_test.get(report.nodeid, []):
            if report.when == "call" or report.outcome != "passed":
                before = case.results.get(test, report.outcome)
                case.results[test] = min(before, report.outcome, key=WORST.index)


def run(cases: list[Case], tests: dict[str, list[str]], folder: Path = TESTS) -> int:
    """Run the marked tests; return pytest's exit status."""
    files = sorted({test.partition("::")[0] for found in tests.values() for test in found})
    if not files:
        return 0
    options = ["-m", "case", "--no-header", "-p", "no:cacheprovider", "-q", "-q"]
    paths = [str(folder.parent / file) for file in files]
    stdout, sys.stdout = sys.stdout, sys.stderr  # ours is data
    try:
        return pytest.main([*options, *paths], plugins=[Results(cases)])
    finally:
        sys.stdout = stdout


def table(cases: list[Case]) -> Iterator[str]:
    """Yield one line per report and test: report, test, result."""
    width = max(len(case.id) for case in cases)
    for case in cases:
        rows = sorted(case.results.items()) or [(case.exempt or "-", case.result)]
        for test, outcome in rows:
            yield f"{case.id:<{width}}  {test}  {outcome}"


def plain(case: Case) -> dict[str, Any]:
    """Return one report as JSON data."""
    return {
        "id": case.id,
        "also": list(case.also),
        "right": case.right,
        "exempt": case.exempt,
        "result": case.result,
        "tests": [{"test": test, "result": one} for test, one in sorted(case.results.items())],
    }


def main(arguments: list[str]) -> int:
    """Check the list, run the tests, print; return the exit status."""
    parser = argparse.ArgumentParser(prog="make cases", description=__doc__)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--tests", type=Path, default=TESTS, help="folder of list and tests")
    given = parser.parse_args(arguments)
    cases, tests = read_list(given.tests), marked(given.tests)
    wrong = faults(cases, tests)
    status = run(cases, tests, given.tests)
    wrong += [f"{c.id}: {c.result}" for c in cases if c.result in {"failed", "skipped"}]
    if status and not wrong:
        wrong.append(f"pytest ended with status {status}")
    if given.output == "json":
        print(json.dumps({"items": [plain(case) for case in cases], "faults": wrong}, indent=2))
    else:
        print("\n".join(table(cases)))
        for line in wrong:
            print(f"FAULT {line}")
        held = sum(case.result == "passed" for case in cases)
        exempt = sum(case.result == "exempt" for case in cases)
        print(f"{held} of {len(cases)} reports held by tests, {exempt} exempt, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
