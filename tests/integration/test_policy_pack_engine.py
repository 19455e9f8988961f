"""The policy pack under the real engine: preview refuses in words, unknown values wait for up."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from dsec.local import toolchain
from dsec.local.toolchain_table import TOOLS

pytestmark = pytest.mark.pulumi

ROOT = Path(__file__).parents[2]
PACK = ROOT / "policies"
NEEDED = ("pulumi", "pulumi-resource-kubernetes")

PROGRAM = '''"""A stack with one experiment, written to files instead of a cluster."""

import pulumi
import pulumi_kubernetes as k8s
from pulumi import dynamic


class Echo(dynamic.ResourceProvider):
    """Gives back its input once it is created, so that a preview does not know it."""

    def create(self, props):
        return dynamic.CreateResult("echo", outs={"made": props["value"]})


class Later(dynamic.Resource):
    """A value that only the update knows."""

    made: pulumi.Output[str]

    def __init__(self, name, value):
        super().__init__(Echo(), name, {"value": value, "made": None})


render = k8s.Provider("render", render_yaml_to_directory="rendered")
role = {
    "name": "sim",
    "image": "registry.example/sim:1",
    "resources": {"cpuMilli": 1000, "memoryBytes": 1 << 30},
}
BODY
k8s.apiextensions.CustomResource(
    "walk",
    api_version="dsec.dev/v1alpha1",
    kind="Experiment",
    metadata={"name": "walk", "namespace": "gait"},
    spec={"roles": [role]},
    opts=pulumi.ResourceOptions(provider=render),
)
'''


class Stack:
    """A throw-away stack in a folder, with its own state."""

    def __init__(self, folder: Path) -> None:
        missing = [one.name for one in TOOLS if one.name in NEEDED and not toolchain.lookup(one)]
        if missing:
            pytest.skip(f"{', '.join(missing)} not here: run dsec tools install")
        self.folder = folder
        self.env = {
            **os.environ,
            **toolchain.env(),
            "PULUMI_BACKEND_URL": f"file://{folder}",
            "PULUMI_CONFIG_PASSPHRASE": "test",
        }
        settings = {
            "name": "pack-test",
            "runtime": {"name": "python", "options": {"virtualenv": str(ROOT / ".venv")}},
        }
        (folder / "Pulumi.yaml").write_text(json.dumps(settings))
        self.pulumi("stack", "init", "dev", check=True)

    def pulumi(self, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run the engine; stdout and stderr together."""
        return subprocess.run(
            ["pulumi", *words, "--non-interactive", "--color=never"],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=check,
        )

    def program(self, body: str) -> None:
        """Write the program around statements that change `role`."""
        (self.folder / "__main__.py").write_text(PROGRAM.replace("BODY", body))

    def config(self, **policies: dict[str, object]) -> str:
        """Write a configuration of the pack and return its path."""
        path = self.folder / "pack.json"
        path.write_text(json.dumps({f"dsec-{name}": one for name, one in policies.items()}))
        return str(path)


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    """Return an empty stack."""
    return Stack(tmp_path)


def test_preview_refuses_with_resource_rule_and_remedy(stack: Stack) -> None:
    """Privileged, and without a memory limit: both are said at once."""
    stack.program('role["privileged"] = True\ndel role["resources"]["memoryBytes"]')
    done = stack.pulumi("preview", "--policy-pack", str(PACK))
    assert done.returncode != 0
    for words in (
        "dsec-privileged  (kubernetes:dsec.dev/v1alpha1:Experiment: walk)",
        "The Experiment walk must not run privileged",
        "role sim declares no resources.memoryBytes (rule limits)",
        "or give the tenant defaults",
    ):
        assert words in done.stdout, done.stdout


def test_a_good_stack_passes_and_a_moving_tag_only_advises(stack: Stack) -> None:
    """An advisory is shown; the preview succeeds."""
    stack.program('role["image"] = "registry.example/sim:latest"')
    done = stack.pulumi("preview", "--policy-pack", str(PACK))
    assert done.returncode == 0, done.stdout
    assert "[advisory]" in done.stdout
    assert "moves with the registry" in done.stdout


def test_an_unknown_value_is_deferred_at_preview_and_blocks_at_up(stack: Stack) -> None:
    """Mandatory stays mandatory: it only waits until the value is there."""
    stack.program('role["image"] = Later("tag", "registry.example/sim:1").made')
    config = stack.config(digests={"enforcementLevel": "mandatory", "requireDigests": True})
    pack = ("--policy-pack", str(PACK), "--policy-pack-config", config)
    preview = stack.pulumi("preview", *pack)
    assert preview.returncode == 0, preview.stdout
    assert "dsec-digests on walk is deferred to update" in preview.stdout
    update = stack.pulumi("up", "--yes", "--skip-preview", *pack)
    assert update.returncode != 0
    assert "registry.example/sim:1 has no digest (rule digests)" in update.stdout
    assert not list(stack.folder.glob("rendered/**/*walk*"))


def test_a_wrong_configuration_is_refused_by_its_schema(stack: Stack) -> None:
    """The engine checks what the pack declares."""
    stack.program("")
    config = stack.config(replicas={"maxReplicas": "many"})
    done = stack.pulumi("preview", "--policy-pack", str(PACK), "--policy-pack-config", config)
    assert done.returncode != 0
    assert "maxReplicas" in done.stdout


@pytest.mark.case("pulumi-policy#332")
def test_case_pulumi_policy_332(stack: Stack) -> None:
    """Told to remediate what no policy can, the pack refuses in words instead of breaking."""
    stack.program('del role["resources"]["memoryBytes"]')
    config = stack.config(limits={"enforcementLevel": "remediate"})
    done = stack.pulumi("preview", "--policy-pack", str(PACK), "--policy-pack-config", config)
    assert done.returncode != 0
    assert "role sim declares no resources.memoryBytes (rule limits)" in done.stdout
    assert "panic" not in done.stdout


def test_an_exported_state_can_be_judged_without_its_program(stack: Stack) -> None:
    """What reviewers run: no backend, no provider, only the state and the pack."""
    stack.program('role["privileged"] = True')
    assert stack.pulumi("up", "--yes", "--skip-preview").returncode == 0
    stack.pulumi("stack", "export", "--file", "state.json", check=True)
    words = ("policy", "analyze", "--file", "state.json", "--policy-pack", str(PACK))
    done = stack.pulumi(*words)
    assert done.returncode != 0
    assert "The Experiment walk must not run privileged" in done.stdout
