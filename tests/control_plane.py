"""The control plane as real processes, for tests that kill, freeze and restart parts of it.

Gateway and controllers run as programs against a real API server and a real object store; nodes
join them with tokens and serve under certificates that the gateway signed.
"""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from cluster import ApiServer
from dsec.agent.simnodes import Plan, SimulatedNode, read_report, store_token, write_plan
from dsec.api.crds import definitions
from dsec.api.internal import LEASE
from dsec.gateway.auth import key_entry, keys_secret
from dsec.world.s3 import S3Config
from dsec_components.keys import Keys, Leaf
from ports import free_ports
from s3_server import s3_server

ADMIN, USER = "dsec_admin_0123456789", "dsec_ann_abcdefghij"
INTERNAL = "internal"
"""The secret between gateways and controllers."""
CONTROLLERS = ("controller-0", "controller-1")


@dataclass
class Plane:
    """Everything that runs, and how to reach it."""

    folder: Path
    apiserver: ApiServer
    api: int
    s3: S3Config
    internal: dict[str, int] = field(default_factory=dict)
    """Port of each controller's internal API."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)

    @property
    def server(self) -> str:
        """URL of the gateway."""
        return f"https://127.0.0.1:{self.api}"

    @property
    def ca(self) -> Path:
        """The CA that everything is verified with."""
        return self.folder / "etc/secrets/ca/ca.crt"

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

    def log(self, name: str) -> str:
        """Return what a process has written so far, earlier ones of its name included."""
        return (self.folder / f"{name}.log").read_text()

    def client(self, key: str = ADMIN) -> httpx2.Client:
        """Return a client of the gateway."""
        return httpx2.Client(
            base_url=self.server,
            verify=ssl.create_default_context(cafile=str(self.ca)),
            headers={"Authorization": f"Bearer {key}"},
            timeout=30,
            trust_env=False,
        )

    def until(self, what: str, check: Callable[[], Any], seconds: float = 60) -> float:
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

    def office(self) -> tuple[str, int]:
        """Return who leads by the Lease (empty: nobody), and the epoch."""
        words = ("get", "lease", LEASE, "-n", "dsec-system", "-o", "json", "--ignore-not-found")
        lease = json.loads(self.apiserver.kubectl(*words).stdout or '{"spec": {}}')["spec"]
        return str(lease.get("holderIdentity") or ""), int(lease.get("leaseTransitions") or 0)

    def join_tokens(self, count: int) -> list[str]:
        """Return tokens that admit one node each."""
        with self.client() as client:
            answer = client.post("/v1/join-tokens", json={"count": count})
            return list(answer.json()["tokens"])

    def simulate(self, tokens: list[str], profile: str = "cpu") -> Path:
        """Start one process with a simulated node per token; return its folder."""
        nodes = self.folder / "nodes"
        for n, token in enumerate(tokens):
            store_token(nodes, f"sim-{n}", token)
        plan = Plan(
            gateway=self.server,
            ca=self.ca,
            nodes=[SimulatedNode(name=f"sim-{n}", profile=profile) for n in range(len(tokens))],
        )
        write_plan(nodes, plan)
        self.start("nodes", ["dsec.agent.simnodes", str(nodes)], {})
        self.until(
            "nodes", lambda: sum(one.registered for one in read_report(nodes)) == len(tokens)
        )
        return nodes


def _secrets(folder: Path, s3: S3Config) -> None:
    """Write the folders that the pods would have mounted."""
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
        "secrets/internal/token": INTERNAL,
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


def _records(tenant: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a stack would have declared."""
    entries = [key_entry(ADMIN, "root", ["system:masters"]), key_entry(USER, "ann", [])]
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in ("dsec-system", "lab")
    ]
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "dsec-agent", "namespace": "dsec-system"},
    }
    research = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": "research"},
        "spec": {"projects": ["lab"], **tenant},
    }
    return [*namespaces, account, keys_secret(entries, "dsec-system"), research]


@contextmanager
def control_plane(
    apiserver: ApiServer,
    folder: Path,
    *,
    tenant: dict[str, Any] | None = None,
    kubeconfigs: Mapping[str, Path] | None = None,
) -> Iterator[Plane]:
    """Run a gateway and two controllers; `tenant` adds to the spec of the tenant of `lab`.

    `kubeconfigs` has those of `gateway` and `controller`; without it both are administrators.

    Every process still in `processes` at the end is ended, frozen ones too.
    """
    for record in [*definitions(), *_records(tenant or {})]:
        done = apiserver.apply(record)
        assert done.returncode == 0, done.stderr
    (folder / "s3").mkdir()
    with s3_server(folder / "s3") as s3:
        _secrets(folder, s3)
        ports = free_ports(7)
        plane = Plane(folder, apiserver, ports[0], s3)
        shared = {"DSEC_BIND": "127.0.0.1", "POD_IP": "127.0.0.1"}
        who = kubeconfigs or dict.fromkeys(("gateway", "controller"), apiserver.kubeconfig)
        try:
            plane.start(
                "gateway",
                ["dsec.gateway"],
                shared
                | {
                    "KUBECONFIG": str(who["gateway"]),
                    "POD_NAME": "gateway-0",
                    "DSEC_ROLE_CONFIG": str(folder / "etc-gateway/config.json"),
                    "DSEC_PORTS": f"api={ports[0]},webhook={ports[1]},metrics={ports[2]}",
                },
            )
            for n, name in enumerate(CONTROLLERS):
                plane.internal[name] = ports[3 + 2 * n]
                plane.start(
                    name,
                    ["dsec.controllers"],
                    shared
                    | {
                        "KUBECONFIG": str(who["controller"]),
                        "POD_NAME": name,
                        "DSEC_ROLE_CONFIG": str(folder / "etc-controller/config.json"),
                        "DSEC_PORTS": f"internal={ports[3 + 2 * n]},metrics={ports[4 + 2 * n]}",
                    },
                )
            with plane.client() as client:
                plane.until("gateway", lambda: client.get("/readyz").status_code == 200)
            yield plane
        finally:
            for process in plane.processes.values():
                process.terminate()
                process.send_signal(signal.SIGCONT)
            for process in plane.processes.values():
                process.wait()


def sandbox(**changes: Any) -> dict[str, Any]:
    """Return a small sandbox for simulated nodes, as it goes over the wire, without a key."""
    return {
        # no registry is asked for an image that is named by its digest
        "image": f"registry.test/base@sha256:{'1' * 64}",
        "labels": {"dsec.dev/simulated": "true"},
        "resources": {"cpuMilli": 100, "memoryBytes": 1 << 26, "pids": 16, "diskBytes": 1 << 20},
        **changes,
    }
