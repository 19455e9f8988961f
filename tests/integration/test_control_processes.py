"""The control plane as real processes: Kubernetes, S3, mutual TLS, simulated nodes, kill -9.

Two controllers and a gateway run as programs against a real API server and a real object store;
simulated nodes join with a service-account token and serve under certificates that the gateway
signed. A killed controller and a killed gateway change nothing that users see.
"""

import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cluster import ApiServer
from dsec.agent.simnodes import Plan, SimulatedNode, read_report, store_token, write_plan
from dsec.api.crds import definitions
from dsec.gateway.auth import key_entry, keys_secret
from dsec.world.s3 import S3Config
from dsec_components.keys import Keys, Leaf
from s3_server import free_ports, s3_server

pytestmark = pytest.mark.cluster

ADMIN, USER = "dsec_admin_0123456789", "dsec_ann_abcdefghij"
DOCUMENT = """
metadata: {name: pair}
spec:
  image: base
  resources: {cpu: 1, memory: 64Mi}
  experiment:
    groups:
      - {name: sampling, role: worker, replicas: 12, resources: {cpu: 1, memory: 64Mi}}
      - {name: params, role: parameter-server, replicas: 1, resources: {cpu: 1, memory: 64Mi}}
"""


@dataclass
class Plane:
    """Everything that runs, and how to reach it."""

    folder: Path
    apiserver: ApiServer
    api: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)

    def start(self, name: str, command: list[str], env: dict[str, str]) -> None:
        """Start a process under a name."""
        self.commands[name] = (command, env)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command], env=os.environ | env, stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        """Kill -9."""
        self.processes[name].kill()
        self.processes[name].wait()

    def restart(self, name: str) -> None:
        """Start it again as it was."""
        self.start(name, *self.commands[name])

    def client(self, key: str = ADMIN) -> httpx2.Client:
        """Return a client of the gateway."""
        context = ssl.create_default_context(cafile=str(self.folder / "etc/secrets/ca/ca.crt"))
        return httpx2.Client(
            base_url=f"https://127.0.0.1:{self.api}",
            verify=context,
            headers={"Authorization": f"Bearer {key}"},
            timeout=30,
            trust_env=False,
        )

    def until(self, what: str, check: Any, seconds: float = 60) -> float:
        """Wait until a check holds; return how long it took. Shows the logs where it never does."""
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            try:
                if check():
                    return time.monotonic() - start
            except httpx2.TransportError:
                pass
            time.sleep(0.2)
        logs = "\n".join(
            f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log")
        )
        raise AssertionError(f"{what}: not within {seconds} s\n{logs}")


def secrets_of(folder: Path, s3: S3Config) -> None:
    """Write the folder that a pod would have mounted."""
    keys = Keys(b"0" * 32, datetime(2026, 1, 1, tzinfo=UTC), now=datetime.now(UTC))
    files = {
        "config.json": json.dumps(
            {
                "objectStore": {"endpoint": s3.endpoint, "bucket": s3.bucket},
                "namespace": "dsec-system",
            }
        ),
        "secrets/ca/ca.crt": keys.ca,
        "secrets/ca/ca.key": keys.ca_key,
        "secrets/internal/token": "internal",
        "secrets/s3/accessKey": s3.access_key,
        "secrets/s3/secretKey": s3.secret_key,
    }
    for part in ("gateway", "controller", "webhook"):
        leaf = Leaf(f"dsec-{part}", f"dsec-{part}", ("localhost",), ("127.0.0.1",))
        certificate, key = keys.leaf(leaf)
        for place in ("tls", "webhook") if part != "webhook" else ("webhook",):
            files[f"{part}/secrets/{place}/tls.crt"] = certificate
            files[f"{part}/secrets/{place}/tls.key"] = key
    for name, text in files.items():
        for part in ("gateway", "controller"):
            if "/secrets/" in name and not name.startswith(part):
                continue
            path = folder / f"etc-{part}" / name.removeprefix(f"{part}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (folder / "etc").symlink_to(folder / "etc-gateway")


@pytest.fixture(scope="module")
def plane(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Start the whole control plane with six simulated nodes."""
    folder = tmp_path_factory.mktemp("plane")
    done = apiserver.apply(*definitions())
    assert done.returncode == 0, done.stderr
    entries = [key_entry(ADMIN, "root", ["system:masters"]), key_entry(USER, "ann", [])]
    records: list[Any] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in ("dsec-system", "lab")
    ]
    records.append(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "dsec-agent", "namespace": "dsec-system"},
        }
    )
    records.append(keys_secret(entries, "dsec-system"))
    records.append(
        {
            "apiVersion": "dsec.dev/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": "research"},
            "spec": {"projects": ["lab"]},
        }
    )
    for record in records:
        done = apiserver.apply(record)
        assert done.returncode == 0, done.stderr
    token = apiserver.kubectl(
        "create", "token", "dsec-agent", "-n", "dsec-system", "--audience", "dsec"
    ).stdout
    with s3_server(tmp_path_factory.mktemp("s3")) as s3:
        secrets_of(folder, s3)
        ports = free_ports(9)
        running = Plane(folder, apiserver, ports[0])
        shared = {
            "KUBECONFIG": str(apiserver.kubeconfig),
            "DSEC_BIND": "127.0.0.1",
            "POD_IP": "127.0.0.1",
        }
        running.start(
            "gateway",
            ["dsec.gateway"],
            shared
            | {
                "POD_NAME": "gateway-0",
                "DSEC_ROLE_CONFIG": str(folder / "etc-gateway/config.json"),
                "DSEC_PORTS": f"api={ports[0]},webhook={ports[1]},metrics={ports[2]}",
            },
        )
        for n in range(2):
            running.start(
                f"controller-{n}",
                ["dsec.controllers"],
                shared
                | {
                    "POD_NAME": f"controller-{n}",
                    "DSEC_ROLE_CONFIG": str(folder / "etc-controller/config.json"),
                    "DSEC_PORTS": f"internal={ports[3 + 2 * n]},metrics={ports[4 + 2 * n]}",
                },
            )
        try:
            with running.client() as client:
                running.until("gateway", lambda: client.get("/readyz").status_code == 200)
                given = client.post("/v1/join-tokens", json={"count": 5}).json()["tokens"]
            nodes = folder / "nodes"
            for n, one in enumerate([*given, token]):
                store_token(nodes, f"sim-{n}", one)
            plan = Plan(
                gateway=f"https://127.0.0.1:{ports[0]}",
                ca=folder / "etc/secrets/ca/ca.crt",
                nodes=[SimulatedNode(name=f"sim-{n}", profile="cpu") for n in range(6)],
            )
            write_plan(nodes, plan)
            running.start("nodes", ["dsec.agent.simnodes", str(nodes)], {})
            running.until("nodes", lambda: _registered(nodes) == 6)
            yield running
        finally:
            for process in running.processes.values():
                process.terminate()
            for process in running.processes.values():
                process.wait()


def _registered(folder: Path) -> int:
    return sum(node.registered for node in read_report(folder))


def creates(count: int, prefix: str) -> dict[str, Any]:
    """Return a batch of keyed creates."""
    one = {
        "image": "base",
        "labels": {"dsec.dev/simulated": "true"},
        "resources": {"cpuMilli": 100, "memoryBytes": 1 << 26, "pids": 16, "diskBytes": 1 << 20},
    }
    return {"creates": [{**one, "key": f"{prefix}-{n}"} for n in range(count)]}


def bind_all(plane: Plane, client: httpx2.Client, count: int, prefix: str) -> list[str]:
    """Create until each key is answered; return the ids."""
    found: list[str] = []

    def ask() -> bool:
        response = client.post("/v1/projects/lab/sandboxes", json=creates(count, prefix))
        if response.status_code != 200:
            assert response.status_code == 503, response.text
            return False
        answers = response.json()["answers"]
        found[:] = [a["id"] for a in answers if a["outcome"] in ("bound", "exists")]
        return len(found) == count

    plane.until("creates", ask)
    return found


def leader(plane: Plane) -> str:
    """Return the name of the leading controller."""
    lease = json.loads(
        plane.apiserver.kubectl(
            "get", "lease", "dsec-controller", "-n", "dsec-system", "-o", "json"
        ).stdout
    )
    return str(lease["spec"].get("holderIdentity", ""))


def test_an_experiment_runs_in_kubernetes(plane: Plane) -> None:
    """Submit, run, describe, exec, scale, delete; the record shows it all the way."""
    with plane.client() as client:
        made = client.post("/v1/projects/lab/experiments", content=DOCUMENT)
        assert made.status_code == 201, made.text

        def ready(count: int) -> bool:
            record = client.get("/v1/projects/lab/experiments/pair").json()
            return bool(record.get("status", {}).get("ready") == count)

        plane.until("running", lambda: ready(13))
        again = client.post("/v1/projects/lab/experiments", content=DOCUMENT)
        assert again.status_code == 409
        words = client.get("/v1/projects/lab/experiments/pair/describe").json()
        assert "all 13 replicas" in words["headline"]
        items = client.get("/v1/projects/lab/sandboxes?experiment=pair").json()["items"]
        assert len(items) == 13
        body = b"\x04" + len(b'{"command":["true"]}').to_bytes(4, "big") + b'{"command":["true"]}'
        ran = client.post(
            f"/v1/projects/lab/sandboxes/{items[0]['identity']['id']}/exec",
            content=body + b"\x00\x00\x00\x00\x00",
        )
        assert ran.status_code == 200, ran.text
        assert ran.content[0] in (1, 2, 3)
        assert b'"exitCode":0' in ran.content
        gone = client.delete("/v1/projects/lab/experiments/pair")
        assert gone.status_code == 202
        plane.until(
            "deleted",
            lambda: client.get("/v1/projects/lab/experiments/pair").status_code == 404,
        )


def test_rights_are_asked_for_every_call(plane: Plane) -> None:
    """A key without rights is denied with 403, an unknown one with 401, and audited."""
    with plane.client(USER) as client:
        denied = client.get("/v1/projects/lab/experiments", headers={"X-Dsec-Correlation-Id": "x1"})
        assert denied.status_code == 403
        assert denied.json()["code"] == "denied"
        assert denied.headers["X-Dsec-Correlation-Id"] == "x1"
        assert client.get("/v1/whoami").json()["user"] == "ann"
        exec_ = client.post("/v1/projects/lab/sandboxes/sb-x/exec", content=b"")
        assert exec_.status_code == 403
    with plane.client("dsec_admin_wrong") as client:
        assert client.get("/v1/nodes").status_code == 401


def test_a_killed_leader_is_replaced_within_ten_seconds(plane: Plane) -> None:
    """Kill -9 of the leading controller: the other one serves the same keys, ids unchanged."""
    with plane.client() as client:
        before = bind_all(plane, client, 50, "kill")
        first = leader(plane)
        plane.kill(first)
        start = time.monotonic()
        plane.until("takeover", lambda: leader(plane) not in ("", first), 15)
        assert time.monotonic() - start < 12, "slower than ten seconds and a slow machine's margin"
        assert bind_all(plane, client, 50, "kill") == before
        bind_all(plane, client, 20, "after")
        plane.restart(first)
        epochs = client.get("/v1/nodes").json()["items"]
        assert sum(node["status"]["live"] for node in epochs) == 70


def test_a_killed_gateway_comes_back_with_the_same_view(plane: Plane) -> None:
    """Kill -9 of the gateway: its view is built again from records, log and agents."""
    with plane.client() as client:
        ids = bind_all(plane, client, 10, "view")
    plane.kill("gateway")
    plane.restart("gateway")
    with plane.client() as client:
        plane.until("gateway", lambda: client.get("/readyz").status_code == 200)

        def seen() -> bool:
            listed = client.get("/v1/projects/lab/sandboxes?state=running").json()["items"]
            return {one["identity"]["id"] for one in listed} >= set(ids)

        plane.until("view", seen)
