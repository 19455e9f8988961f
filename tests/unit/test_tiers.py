"""`make test` can fail: by a skip that nobody allowed, and where the machine lacks something."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[1] / "tiers.py"

SUITE = """<testsuites><testsuite tests="3" failures="0" errors="0" skipped="2">
<testcase classname="a" name="runs"/>
<testcase classname="b" name="documents"><skipped message="the sources' documents are not here; set
X"/></testcase>
<testcase classname="c" name="engine"><skipped message="Pulumi is not installed"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def tiers() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("tiers", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_allowed_skips_pass(tiers: ModuleType, tmp_path: Path) -> None:
    """A tool that is missing would hide a whole tier behind a green line."""
    report = tmp_path / "one.xml"
    report.write_text(SUITE)
    assert tiers.forbidden_skips([report]) == ["c.engine: Pulumi is not installed"]
    assert tiers.counts_of(report) == {"passed": 1, "failed": 0, "skipped": 2}


def test_a_machine_that_lacks_something_stops_first(
    tiers: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
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


def test_every_tier_is_listed(tiers: ModuleType) -> None:
    """A new folder of tests runs, or is named here."""
    folders = {path.parent.relative_to(SOURCE.parent).parts[0] for path in _files()}
    assert folders == {*tiers.TIERS, "unit"}


def _files() -> list[Path]:
    return list(SOURCE.parent.glob("*/**/test_*.py"))
