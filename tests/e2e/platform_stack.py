"""The committed project of the stack `local`, brought up on a cluster of the tests."""

import json
import ssl
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import yaml
from dsec.client import Context
from dsec.local.cluster import api
from dsec.local.cluster_state import ClusterState
from pulumi_folder import ROOT, make_project, skip_without_pulumi

STACK = "local"
T = TypeVar("T")


@dataclass
class Stack:
    """A copy of the project whose configuration and state are in a temporary folder."""

    folder: Path
    cluster: ClusterState
    environment: dict[str, str]
    first: str | None = field(default=None, init=False)
    """What the engine said when the stack came up; None before."""

    def bring_up(self) -> str:
        """Bring the stack up with the policy pack, once, and return what the engine said."""
        if self.first is None:
            self.first = self.up("--policy-pack", str(ROOT / "policies"))
        return self.first

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

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Merge a patch into what is at a path, as the administrator of the cluster."""
        with api(self.cluster) as client:
            answer = client.patch(
                path,
                content=json.dumps(body),
                headers={"Content-Type": "application/merge-patch+json"},
            )
        assert answer.is_success, answer.text
        return dict(answer.json())

    def context(self) -> Context:
        """Return how users reach the platform, by the outputs of the stack."""
        text = self.pulumi("stack", "output", "--json", "--show-secrets", "--stack", STACK)
        told = json.loads(text)
        authority = self.folder / "ca.pem"
        authority.write_text(told["caCertificate"])
        return Context(told["server"], told["apiKey"], str(authority), told["project"])

    def client(self) -> httpx2.Client:
        """Return a client of the gateway."""
        context = self.context()
        return httpx2.Client(
            base_url=context.server,
            verify=ssl.create_default_context(cafile=context.ca_file),
            headers={"Authorization": f"Bearer {context.api_key}"},
            trust_env=False,
            timeout=20,
        )

    def destroy(self) -> None:
        """Take away what is left, whatever a failed test did."""
        subprocess.run(
            ["pulumi", "destroy", "--yes", "--skip-preview", "--stack", STACK, "--non-interactive"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            timeout=300,
            check=False,
        )


def new_stack(cluster: ClusterState, folder: Path) -> Stack:
    """Return the stack `local` of a cluster, not yet up; skips the test without Pulumi."""
    skip_without_pulumi()
    made = Stack(folder, cluster, make_project(folder))
    made.pulumi("stack", "init", STACK)
    made.configure()
    return made


def same(read: Callable[[], T], wanted: T, seconds: float = 120) -> None:
    """Read what a gateway sees, which lags what is, until it is as wanted; else show both."""
    end = time.monotonic() + seconds
    while (found := read()) != wanted:
        assert time.monotonic() < end, f"not within {seconds} s: {found} is not {wanted}"
        time.sleep(0.5)


def wait(what: str, ask: Callable[[], bool], seconds: float = 120) -> None:
    """Ask until it is so."""
    end = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.5)
