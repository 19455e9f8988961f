"""The stack program under the real engine against a real API server without nodes.

Tests run in order: each goes on where the one before stopped. Nothing here waits for pods.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import ApiServer, ToolsMissingError
from pulumi_folder import ROOT, make_project, skip_without_pulumi

pytestmark = [pytest.mark.cluster, pytest.mark.pulumi, pytest.mark.timeout(300)]

STACK = "api"
DIGEST = "sha256:" + "1" * 64
AUDIT = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    verbs: [create, update, patch, delete, deletecollection]
  - level: None
"""
PLATFORM: dict[str, Any] = {
    "deletion": "protect",
    "profile": "local",
    "images": {
        "runtime": f"registry.test/dsec/runtime@{DIGEST}",
        "agent": f"registry.test/dsec/agent@{DIGEST}",
    },
    "gateway": {"exposure": "NodePort", "nodePort": 30443, "host": "127.0.0.1"},
    "registry": {"host": "registry.test:5000"},
    "pools": {"cpu": {"kind": "cpu", "labels": {"region": "test"}}},
    "tenants": {"demo": {"projects": ["demo"], "quota": {"nominal": {"cpuMilli": 4000}}}},
    "experiments": {"walk": {"project": "demo", "document": "documents/walk.yaml"}},
}


@dataclass
class Stack:
    """A copy of the project whose configuration and state are in a temporary folder."""

    folder: Path
    server: ApiServer
    environment: dict[str, str]

    def configure(self, platform: dict[str, Any]) -> None:
        """Write the stack's configuration, keeping what the engine has put there."""
        path = self.folder / "config" / f"Pulumi.{STACK}.yaml"
        known = yaml.safe_load(path.read_text()) if path.exists() else {}
        known["config"] = {
            "dsec:clusterIdentifier": "test",
            "dsec:awaitReady": "false",
            "dsec:platform": platform,
        }
        path.write_text(yaml.safe_dump(known))

    def pulumi(self, *words: str, code: int | None = 0) -> str:
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
        assert code is None or done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def preview(self, *words: str) -> list[dict[str, Any]]:
        """Return the steps of a preview that change something."""
        text = self.pulumi("preview", "--stack", STACK, "--json", *words)
        steps = json.loads(text[text.index("{") :])["steps"]
        return [one for one in steps if one["op"] != "same"]

    def up(self, *words: str, code: int = 0) -> str:
        """Run `pulumi up` without preview."""
        return self.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, *words, code=code)

    def get(self, *words: str) -> dict[str, Any]:
        """Return an object of the cluster."""
        return dict(json.loads(self.server.kubectl("get", *words, "-o", "json").stdout))

    def writes(self) -> list[str]:
        """Return the writes of administrators that were no dry run, since the server started."""
        found = []
        for line in (self.server.folder / "audit.log").read_text().splitlines():
            event = json.loads(line)
            reviews = "selfsubject" in event["requestURI"]
            dry = "dryRun=All" in event["requestURI"]
            if event["user"]["username"] == "admin" and not reviews and not dry:
                found.append(f"{event['verb']} {event['requestURI']}")
        return found


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return the stack, not yet up, and an empty cluster."""
    skip_without_pulumi()
    folder = tmp_path_factory.mktemp("stack")
    place = folder / "server"
    place.mkdir()
    (place / "audit.yaml").write_text(AUDIT)
    try:
        server = ApiServer.start(
            place,
            flags=(
                "--allow-privileged=true",
                f"--audit-policy-file={place / 'audit.yaml'}",
                f"--audit-log-path={place / 'audit.log'}",
                "--audit-log-mode=blocking-strict",
            ),
        )
    except ToolsMissingError as error:
        pytest.skip(str(error))
    environment = {**make_project(folder), "KUBECONFIG": str(server.kubeconfig)}
    made = Stack(folder, server, environment)
    made.pulumi("stack", "init", STACK)
    made.configure(PLATFORM)
    yield made
    server.stop()
    shutil.rmtree(folder / "state", ignore_errors=True)


def test_previews_of_an_empty_cluster_write_nothing_and_agree(stack: Stack) -> None:
    """CRDs, webhook and records in one program: the first preview already knows them all."""
    before = stack.writes()
    first, second = stack.preview(), stack.preview()
    assert stack.writes() == before
    assert [one["op"] for one in first] == ["create"] * len(first)
    assert sorted(one["urn"] for one in first) == sorted(one["urn"] for one in second)


def test_a_rule_refuses_at_preview(stack: Stack) -> None:
    """The policy pack names resource, rule and remedy; nothing is written."""
    bad = stack.folder / "bad.yaml"
    bad.write_text(
        "metadata: {name: bad}\nspec:\n  image: i:1\n  privileged: true\n"
        "  resources: {cpu: 1, memory: 64Mi}\n"
    )
    experiments = {"bad": {"project": "demo", "document": str(bad)}}
    stack.configure({**PLATFORM, "experiments": experiments})
    before = stack.writes()
    text = stack.pulumi(
        "preview", "--stack", STACK, "--policy-pack", str(ROOT / "policies"), code=1
    )
    assert "dsec-bad-experiment" in text
    assert "privileged" in text
    assert stack.writes() == before
    stack.configure(PLATFORM)


def test_the_first_up_makes_the_installation(stack: Stack) -> None:
    """Records come after their definitions, and secrets are in no output."""
    text = stack.up()
    experiment = stack.get("dexp", "walk", "-n", "demo")
    assert experiment["metadata"]["labels"]["dsec.dev/stack"] == "dsec.api"
    assert stack.get("dten", "demo")["spec"]["quota"]["nominal"]["cpuMilli"] == 4000
    key = stack.pulumi("stack", "output", "apiKey", "--show-secrets", "--stack", STACK).strip()
    assert key.startswith("dsec_stack_")
    assert key not in text
    state = stack.pulumi("stack", "export", "--stack", STACK)
    assert key not in state
    assert "BEGIN PRIVATE KEY" not in state


def test_a_second_up_changes_nothing_while_the_runtime_works(stack: Stack) -> None:
    """Status, finalizers and the labels of namespaces are the runtime's; keys are not redrawn."""
    ca = stack.pulumi("stack", "output", "caCertificate", "--stack", STACK)
    kubectl = stack.server.kubectl
    kubectl("label", "namespace", "demo", "dsec.dev/tenant=demo", "--field-manager=dsec")
    status = {"status": {"desired": 3, "ready": 2, "overrides": []}}
    kubectl(
        *("patch", "dexp", "walk", "-n", "demo", "--subresource=status", "--type=merge"),
        *("--field-manager=dsec", "-p", json.dumps(status)),
    )
    finalizer = {"metadata": {"finalizers": ["dsec.dev/collect"]}}
    kubectl(
        *("patch", "dexp", "walk", "-n", "demo", "--type=merge", "--field-manager=dsec"),
        *("-p", json.dumps(finalizer)),
    )
    stack.pulumi(*("refresh", "--yes", "--skip-preview", "--expect-no-changes", "--stack", STACK))
    stack.up("--expect-no-changes")
    assert stack.pulumi("stack", "output", "caCertificate", "--stack", STACK) == ca
    kept = stack.get("dexp", "walk", "-n", "demo")
    assert kept["status"]["ready"] == 2
    assert kept["metadata"]["finalizers"] == ["dsec.dev/collect"]
    assert stack.get("namespace", "demo")["metadata"]["labels"]["dsec.dev/tenant"] == "demo"


def test_an_edited_quota_is_one_update_of_the_live_limit(stack: Stack) -> None:
    """Nothing else changes, nothing is replaced."""
    tenants = {"demo": {**PLATFORM["tenants"]["demo"], "quota": {"nominal": {"cpuMilli": 8000}}}}
    stack.configure({**PLATFORM, "tenants": tenants})
    changes = [one for one in stack.preview() if "kubernetes:" in one["urn"]]
    assert [(one["op"], one["urn"].rsplit("::", 1)[-1]) for one in changes] == [
        ("update", "dsec-demo-tenant")
    ]
    stack.up()
    assert stack.get("dten", "demo")["spec"]["quota"]["nominal"]["cpuMilli"] == 8000


def test_an_edited_kubeconfig_replaces_nothing(stack: Stack) -> None:
    """Another context name and token file: the provider is updated in place."""
    path = stack.folder / "other-kubeconfig"
    config = stack.server.config()
    config["users"].append({"name": "other", "user": {"token": "x"}})
    path.write_text(yaml.safe_dump(config))
    stack.environment["KUBECONFIG"] = str(path)
    operations = {one["op"] for one in stack.preview()}
    assert operations <= {"update"}
    assert operations
    stack.environment["KUBECONFIG"] = str(stack.server.kubeconfig)


def test_destroy_refuses_while_somebody_elses_experiment_lives(stack: Stack) -> None:
    """It names the experiment, shows no traceback and deletes nothing."""
    role = {
        "name": "w",
        "image": f"registry.test/x@{DIGEST}",
        "resources": {"cpuMilli": 10, "memoryBytes": 64 << 20},
    }
    done = stack.server.apply(
        {
            "apiVersion": "dsec.dev/v1alpha1",
            "kind": "Experiment",
            "metadata": {"name": "theirs", "namespace": "demo"},
            "spec": {"roles": [role]},
        }
    )
    assert done.returncode == 0, done.stderr
    before = len(stack.writes())
    text = stack.pulumi("destroy", "--yes", "--skip-preview", "--stack", STACK, code=1)
    assert "demo/theirs" in text
    assert "Traceback" not in text
    assert len(stack.writes()) == before


def test_destroy_of_a_dead_server_ends_with_a_sentence(stack: Stack) -> None:
    """The state is untouched: the cluster may come back."""
    before = stack.pulumi("stack", "export", "--stack", STACK)
    stack.server.stop()
    text = stack.pulumi("destroy", "--yes", "--skip-preview", "--stack", STACK, code=1)
    assert "did not answer" in text
    assert "nothing was deleted" in text
    assert "Traceback" not in text
    after = stack.pulumi("stack", "export", "--stack", STACK)
    names = [
        [one["urn"] for one in json.loads(text)["deployment"]["resources"]]
        for text in (before, after)
    ]
    assert names[0] == names[1]
