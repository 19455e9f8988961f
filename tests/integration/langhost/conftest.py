"""A Pulumi project in a temporary folder, with its own state, that runs on the offline host."""

import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from dsec.local import toolchain


@dataclass
class Project:
    """A folder with a Pulumi program and the environment to run it in."""

    folder: Path
    environment: dict[str, str]

    def write(self, files: dict[str, str]) -> None:
        """Write files below the project's folder; the texts may be indented."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip())

    def pulumi(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run the engine; fail unless it ends with `code` (None: any)."""
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive", "--color", "never"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert code is None or done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done

    def up(self, *arguments: str, code: int | None = 0) -> str:
        """Run `pulumi up` without preview and return all it printed."""
        done = self.pulumi("up", "--yes", "--skip-preview", *arguments, code=code)
        return done.stdout + done.stderr


@pytest.fixture(scope="session")
def tool_variables() -> dict[str, str]:
    """Return the variables of the tool chain; skip where Pulumi is not installed."""
    (pulumi,) = toolchain.select(["pulumi"], toolchain.TOOLS)
    if toolchain.lookup(pulumi) is None:
        pytest.skip("Pulumi is not installed: 'dsec tools install pulumi'")
    return toolchain.env()


def variables_for(folder: Path, tools: dict[str, str]) -> dict[str, str]:
    """Return the environment of a project whose state is below `folder`."""
    variables = {
        **os.environ,
        **tools,
        "PULUMI_BACKEND_URL": f"file://{folder}/state",
        "PULUMI_CONFIG_PASSPHRASE": "a passphrase for tests",
        "PULUMI_HOME": str(folder / "home"),
        "PULUMI_STACK": "dev",
    }
    variables.pop("VIRTUAL_ENV", None)
    return variables


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
