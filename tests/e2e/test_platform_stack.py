"""`pulumi up` on the local cluster: the platform runs experiments, changes live, and goes away.

Tests run in order: each goes on where the one before stopped.
"""

import json
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from dsec.local import toolchain
from dsec.local.cluster import api
from dsec.local.cluster_state import ClusterState

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pulumi,
    pytest.mark.root,
    pytest.mark.timeout(400),
]

ROOT = Path(__file__).parents[2]
STACK = "local"


@dataclass
class Stack:
    """A copy of the project whose configuration and state are in a temporary folder."""

    folder: Path
    cluster: ClusterState
    environment: dict[str, str]

    def configure(self, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        """Write the committed configuration of the local stack, with a change to its values."""
        path = self.folder / "config" / f"Pulumi.{STACK}.yaml"
        known = yaml.safe_load(path.read_text()) if path.exists() else {}
        committed = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{STACK}.yaml").read_text())
        known["config"] = {**committed["config"], "dsec:localCluster": self.cluster.name}
        change(known["config"])
        path.write_text(yaml.safe_dump(known))

    def pulumi(self, *words: str) -> str:
        """Run the engine and return all it printed; fail unless it succeeds."""
        done = subprocess.run(
            ["pulumi", *words, "--non-interactive", "--color", "never"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def up(self, *words: str) -> str:
        """Run `pulumi up` without preview."""
        return self.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, *words)

    def get(self, path: str) -> dict[str, Any]:
        """Return what the Kubernetes API says at a path."""
        with api(self.cluster) as client:
            answer = client.get(path)
        return dict(answer.json())


@pytest.fixture(scope="module")
def stack(local_cluster: ClusterState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return the stack `local`, not yet up; destroys what a failed test left."""
    chain = toolchain.select(["pulumi", "pulumi-resource-kubernetes"], toolchain.TOOLS)
    if any(toolchain.lookup(tool) is None for tool in chain):
        pytest.skip("Pulumi is not installed: dsec tools install")
    folder = tmp_path_factory.mktemp("platform")
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
    made = Stack(folder, local_cluster, environment)
    made.pulumi("stack", "init", STACK)
    made.configure()
    yield made
    subprocess.run(
        ["pulumi", "destroy", "--yes", "--skip-preview", "--stack", STACK, "--non-interactive"],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[httpx2.Client]:
    """Return a client of the gateway, by the outputs of the stack."""
    text = stack.pulumi("stack", "output", "--json", "--show-secrets", "--stack", STACK)
    told = json.loads(text)
    authority = stack.folder / "ca.pem"
    authority.write_text(told["caCertificate"])
    with httpx2.Client(
        base_url=told["server"],
        verify=ssl.create_default_context(cafile=str(authority)),
        headers={"Authorization": f"Bearer {told['apiKey']}"},
        trust_env=False,
        timeout=20,
    ) as made:
        yield made


def wait(what: str, ask: Callable[[], bool], seconds: float = 60) -> None:
    """Ask until it is so."""
    end = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.5)


def ready(client: httpx2.Client, name: str) -> bool:
    """Say whether every replica of an experiment runs."""
    record = client.get(f"/v1/projects/demo/experiments/{name}").json()
    conditions = record.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def test_up_makes_a_platform_that_runs_what_the_stack_declares(
    stack: Stack, request: pytest.FixtureRequest
) -> None:
    """With the policy pack; the Python example and the document both run, roles visible inside."""
    text = stack.up("--policy-pack", str(ROOT / "policies"))
    assert "error" not in text.lower()
    client: httpx2.Client = request.getfixturevalue("client")
    for name in ("example-roles", "walk"):
        wait(f"{name} is ready", lambda n=name: ready(client, n))
    listed = client.get("/v1/projects/demo/sandboxes", params={"state": "running"}).json()
    by_role = {(one["identity"]["experiment"], one["identity"]["role"]) for one in listed["items"]}
    assert by_role == {
        ("example-roles", "trainer"),
        ("example-roles", "worker"),
        ("walk", "trainer"),
        ("walk", "sim"),
    }
    node = stack.get(f"/apis/dsec.dev/v1alpha1/sandboxnodes/{stack.cluster.node_name}")
    assert node["spec"]["pool"] == "local"
    assert node["spec"]["labels"] == {"region": "local"}


def test_nothing_drifts_while_it_works(stack: Stack) -> None:
    """Refresh and a second up agree with the running platform."""
    stack.pulumi(*("refresh", "--yes", "--skip-preview", "--expect-no-changes", "--stack", STACK))
    stack.up("--expect-no-changes")


def test_the_stack_changes_a_live_limit_and_takes_an_experiment_away(
    stack: Stack, client: httpx2.Client
) -> None:
    """A smaller quota holds at once; a removed experiment is collected and cleaned."""

    def change(config: dict[str, Any]) -> None:
        platform = config["dsec:platform"]
        platform["tenants"]["demo"]["quota"] = {"nominal": {"cpuMilli": 200}}
        del platform["experiments"]["walk"]

    stack.configure(change)
    stack.up()
    answer = client.get("/v1/projects/demo/experiments/walk")
    assert answer.status_code == 404
    running = client.get("/v1/projects/demo/sandboxes", params={"state": "running"}).json()["items"]
    assert {one["identity"]["experiment"] for one in running} == {"example-roles"}
    document = (
        "metadata: {name: theirs}\nspec:\n  entrypoint: [sleep, '600']\n"
        "  resources: {cpu: 150m, memory: 64Mi}\n"
    )
    made = client.post("/v1/projects/demo/experiments", content=document)
    assert made.status_code in {200, 201}, made.text

    def waits_for_quota() -> bool:
        record = client.get("/v1/projects/demo/experiments/theirs").json()
        reasons = record.get("status", {}).get("pendingReasons", [])
        return any(one["reason"] == "quota" for one in reasons)

    wait("a sentence about the quota", waits_for_quota)


def test_purge_leaves_nothing_in_the_cluster(stack: Stack) -> None:
    """The experiment of somebody else goes too: the local stack says purge."""
    stack.pulumi("destroy", "--yes", "--skip-preview", "--stack", STACK)
    groups = stack.get("/apis")["groups"]
    assert "dsec.dev" not in {one["name"] for one in groups}
    for path in (
        "/api/v1/namespaces",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    ):
        names = [one["metadata"]["name"] for one in stack.get(path)["items"]]
        assert [name for name in names if "dsec" in name or name == "demo"] == [], path
    state = json.loads(stack.pulumi("stack", "export", "--stack", STACK))
    assert state["deployment"].get("resources", []) == []
