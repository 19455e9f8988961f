"""The committed Pulumi project with a configuration and a state of its own, for tests."""

import os
from pathlib import Path

import pytest
import yaml
from dsec.local import toolchain

ROOT = Path(__file__).parents[1]


def skip_without_pulumi() -> None:
    """Skip the test where the engine or its Kubernetes plugin is not there."""
    chain = toolchain.select(["pulumi", "pulumi-resource-kubernetes"], toolchain.TOOLS)
    if any(toolchain.lookup(tool) is None for tool in chain):
        pytest.skip("Pulumi is not installed: dsec tools install")


def make_project(folder: Path) -> dict[str, str]:
    """Lay the project out in a folder; return the environment in which the engine runs there."""
    for name in ("config", "state"):
        (folder / name).mkdir()
    (folder / "program").symlink_to(ROOT / "stacks")
    project = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    project["main"], project["stackConfigDir"] = "program/", "config"
    project["runtime"]["options"]["virtualenv"] = str(ROOT / ".venv")
    project["plugins"]["providers"][0]["path"] = str(ROOT / "components")
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump(project))
    environment = {
        **os.environ,
        **toolchain.env(),
        "PULUMI_BACKEND_URL": f"file://{folder}/state",
        "PULUMI_CONFIG_PASSPHRASE": "test",
    }
    environment.pop("VIRTUAL_ENV", None)
    return environment
