"""`make test` can fail: by a skip that nobody allowed, and where the machine lacks something."""

from collections import Counter
from pathlib import Path

import pytest
import tiers

SUITE = """<testsuites><testsuite tests="3" failures="0" errors="0" skipped="2">
<testcase classname="a" name="runs"/>
<testcase classname="b" name="documents"><skipped message="the sources' documents are not here; set
X"/></testcase>
<testcase classname="c" name="engine"><skipped message="Pulumi is not installed"/></testcase>
</testsuite></testsuites>"""
FOLDER = Path(tiers.__file__).parent


def test_only_allowed_skips_pass(tmp_path: Path) -> None:
    """A tool that is missing would hide a whole tier behind a green line."""
    report = tmp_path / "one.xml"
    report.write_text(SUITE)
    assert tiers.forbidden_skips([report]) == ["c.engine: Pulumi is not installed"]
    assert tiers.counts_of(report) == {"passed": 1, "failed": 0, "skipped": 2}


def test_a_machine_that_lacks_something_stops_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is changed in CI only; elsewhere the message says how."""
    said = tmp_path / "said"
    fake = tmp_path / "dsec"
    fake.write_text(f'#!/bin/sh\necho "$@" >>{said}\necho crun is missing\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setattr(tiers, "DSEC", fake)
    for variable, options in (("", ""), ("true", " --fix --yes")):
        said.unlink(missing_ok=True)
        monkeypatch.setenv("CI", variable)
        assert tiers.main() == 2
        assert said.read_text() == f"doctor --for tests{options}\n"
        assert "crun is missing" in capfd.readouterr().out


def test_every_file_is_run_once() -> None:
    """A new file of tests is in the plan, in one run or in two that share it by a mark."""
    runs = [run for phase in tiers.PHASES for lane in phase for run in lane]
    assert max(Counter(run.name for run in runs).values()) == 1, "names are names of reports"
    for file in FOLDER.glob("*/**/test_*.py"):
        inside = file.relative_to(FOLDER)
        ours = [run for run in runs if any(inside.is_relative_to(path) for path in run.paths)]
        if inside.parts[0] != "unit":
            marks = sorted(run.marks for run in ours)
            assert marks in ([""], ["not pulumi", "pulumi"]), (inside, marks)
    named = {path for run in runs for path in run.paths}
    assert [path for path in named if not (FOLDER / path).exists()] == []
