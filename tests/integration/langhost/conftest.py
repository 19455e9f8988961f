"""Projects on the offline host: each test gets one with its own state."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dsec.local import toolchain
from langhost_project import Project, variables_for


@pytest.fixture(scope="session")
def tool_variables() -> dict[str, str]:
    """Return the variables of the tool chain; skip where Pulumi is not installed."""
    (pulumi,) = toolchain.select(["pulumi"], toolchain.TOOLS)
    if toolchain.lookup(pulumi) is None:
        pytest.skip("Pulumi is not installed: 'dsec tools install pulumi'")
    return toolchain.env()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, tool_variables: dict[str, str]) -> Path:
    """Return a folder with a project that has an empty stack, to be copied by each test."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "state").mkdir()
    (folder / "project").mkdir()
    made = Project(folder / "project", variables_for(folder, tool_variables))
    made.write({"Pulumi.yaml": "name: trial\nruntime: python\n"})
    made.pulumi("stack", "init", "dev")
    return folder


@pytest.fixture
def project(
    tmp_path: Path, template: Path, tool_variables: dict[str, str]
) -> Callable[[dict[str, str]], Project]:
    """Return a function that makes a project with a stack `dev` from its files."""

    def make(files: dict[str, str]) -> Project:
        shutil.copytree(template, tmp_path, dirs_exist_ok=True)
        made = Project(tmp_path / "project", variables_for(tmp_path, tool_variables))
        made.write(files)
        return made

    return make
