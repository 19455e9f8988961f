"""`make cases` fails on a report that nothing holds, on an unknown mark and on a failing test."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[1] / "cases.py"

TWO = """["one#1"]
right = "It works."
["two#2"]
also = ["two#3"]
right = "That works too."
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("cases", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _tests(folder: Path, body: str) -> Path:
    (folder / "cases.toml").write_text(TWO)
    (folder / "test_some.py").write_text(f'"""Some."""\nimport pytest\n{body}')
    return folder


def test_a_case_that_nothing_holds_is_a_fault(tool: ModuleType, tmp_path: Path) -> None:
    """An alias holds its report; an unknown id and a second listing are named."""
    tests = tmp_path / "tests"
    tests.mkdir()
    _tests(
        tests,
        "@pytest.mark.case('two#3')\n@pytest.mark.case('three#1')\ndef test_it() -> None: ...\n",
    )
    cases = tool.read_list(tests)
    found = tool.faults(cases, tool.marked(tests))
    assert found == [
        "three#1: no such report in cases.toml, named by tests/test_some.py::test_it",
        "one#1: neither test nor exemption: It works.",
    ]


def test_exemptions_are_few_and_needed(tool: ModuleType) -> None:
    """At most one in twenty, and none for what has a test."""
    cases = [tool.Case("a#1", "x", exempt="needs a GPU"), tool.Case("a#2", "x")]
    found = tool.faults(cases, {"a#1": ["t"], "a#2": ["t"]})
    assert found == [
        "a#1: has a test and an exemption",
        "1 of 2 reports are exempt: more than 5%",
    ]


def test_the_result_of_a_case_is_its_worst_test(tmp_path: Path) -> None:
    """One of two tests fails: the report fails, the exit code says so, and stdout is JSON."""
    tests = tmp_path / "tests"
    tests.mkdir()
    _tests(
        tests,
        "@pytest.mark.case('one#1')\ndef test_good() -> None: ...\n"
        "@pytest.mark.case('one#1', 'two#2')\n"
        "@pytest.mark.parametrize('n', [0, 1])\ndef test_bad(n) -> None: assert n\n"
        "@pytest.mark.case('two#2')\ndef test_rest() -> None: ...\n",
    )
    command = [sys.executable, SOURCE, "--tests", tests, "--output", "json"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # none is needed, and they cost
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    assert [(one["id"], one["result"]) for one in said["items"]] == [
        ("one#1", "failed"),
        ("two#2", "failed"),
    ]
    assert [
        (one["test"].rpartition("::")[2], one["result"]) for one in said["items"][0]["tests"]
    ] == [
        ("test_bad", "failed"),
        ("test_good", "passed"),
    ]
    assert said["faults"] == ["one#1: failed", "two#2: failed"]


def test_every_report_has_a_test(tool: ModuleType) -> None:
    """Marks and list agree, without running anything."""
    cases = tool.read_list()
    assert len(cases) > 60
    assert tool.faults(cases, tool.marked()) == []
    assert json.dumps([tool.plain(case) for case in cases])
