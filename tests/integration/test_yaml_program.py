"""A program in YAML over the hosted component package: the committed template, run by the engine.

The Kubernetes provider renders manifests into a folder, so that no cluster is needed.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from dsec.local import toolchain
from dsec.local.toolchain_table import TEST_TOOLS
from pulumi_folder import ROOT, skip_without_pulumi

# a first run may have to build the language host
pytestmark = [pytest.mark.pulumi, pytest.mark.timeout(900)]

TEMPLATE = ROOT / "stacks" / "templates" / "experiment-yaml" / "Pulumi.yaml"


@dataclass
class Program:
    """The template in a folder of its own; manifests are rendered to `rendered`."""

    folder: Path
    text: dict[str, Any]
    environment: dict[str, str]

    @property
    def rendered(self) -> Path:
        """Where the provider puts manifests."""
        return self.folder / "rendered"

    def write(self) -> None:
        """Write the program."""
        (self.folder / "Pulumi.yaml").write_text(yaml.safe_dump(self.text))

    def pulumi(self, *words: str, code: int = 0) -> str:
        """Run the engine and return all it printed; fail unless it ends with `code`."""
        done = subprocess.run(
            ["pulumi", *words, "--non-interactive", "--color", "never"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Return the template with a provider that renders, and an empty stack."""
    skip_without_pulumi()
    tools = toolchain.env()
    host = toolchain.ensure(tools=TEST_TOOLS)["pulumi-language-yaml"]
    (tmp_path / "state").mkdir()
    environment = {
        **os.environ,
        **tools,
        "PATH": f"{host.parent}{os.pathsep}{tools['PATH']}",
        "PULUMI_BACKEND_URL": f"file://{tmp_path}/state",
        "PULUMI_CONFIG_PASSPHRASE": "test",
    }
    environment.pop("VIRTUAL_ENV", None)
    text = yaml.safe_load(TEMPLATE.read_text())
    made = Program(tmp_path, text, environment)
    # what `pulumi package add <clone>/components` writes
    text["packages"] = {"dsec": str(ROOT / "components")}
    del text["config"]["kubeconfig"]
    properties = text["resources"]["cluster"]["properties"]
    del properties["kubeconfig"]
    properties["renderYamlToDirectory"] = str(made.rendered)
    made.write()
    made.pulumi("stack", "init", "dev")
    yield made
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_the_template_declares_its_experiment_and_mistakes_are_named(program: Program) -> None:
    """The record is what the program says; a wrong value is refused with its path."""
    asked = program.text["resources"]["walk"]["properties"]["spec"]
    said = program.pulumi("up", "--yes", "--skip-preview")
    assert "experiment: " in said
    (path,) = program.rendered.rglob("*.yaml")
    record = yaml.safe_load(path.read_text())
    assert (record["kind"], record["metadata"]["namespace"]) == ("Experiment", "demo")
    assert record["spec"]["roles"] == asked["roles"]

    asked["roles"][1]["replicas"] = -1
    program.write()
    said = program.pulumi("preview", code=1)
    assert "roles[1].replicas" in said
    assert "must be at least 0, not -1" in said
    assert "inputs.py" not in said, "no traceback"
