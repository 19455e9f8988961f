"""A control plane with the rights that the stack declares, two nodes, and all that one node holds.

Gateway and controllers run under their service accounts with the roles of the components; node-a
runs a sandbox of tenant `research`, node-b one of tenant `other`. `Loot` is what root on node-a
has.
"""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml
from cluster import ApiServer
from control_plane import Plane, control_plane, sandbox
from dsec.agent import capability
from dsec.api.wire import JournalRow
from dsec.journal.history import AUDIT, HISTORY, Question, read
from dsec.world.s3 import S3Objects
from dsec.world.tls import client_context
from dsec_components.access import CONTROLLER_RULES, EDITOR, GATEWAY_RULES, MEMBERS, SYSTEM_RULES
from ports import free_ports

SYSTEM = "dsec-system"
RBAC = "rbac.authorization.k8s.io"
ACCOUNT = "dsec-agent"


def rules_of(rules: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rules as Kubernetes spells them."""
    return [{"apiGroups" if k == "api_groups" else k: v for k, v in r.items()} for r in rules]


def _role(kind: str, name: str, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    place = {"namespace": SYSTEM} if kind == "Role" else {}
    meta = {"name": name, **place}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta, "rules": rules_of(rules)}


def _binding(role: str, kind: str, subject: dict[str, str], namespace: str = "") -> dict[str, Any]:
    meta = {"name": role, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [subject],
    }


def declared() -> list[dict[str, Any]]:
    """Return namespaces, accounts, the roles of the components, a second tenant and its user."""
    records: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in (SYSTEM, "lab", "annex")
    ]
    for part in ("gateway", "controller", "agent"):
        meta = {"name": f"dsec-{part}", "namespace": SYSTEM}
        records.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    for part, rules in (("gateway", GATEWAY_RULES), ("controller", CONTROLLER_RULES)):
        name = f"dsec-{part}"
        who = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}
        records += [
            _role("ClusterRole", name, rules),
            _binding(name, "ClusterRole", who),
            _role("Role", name, SYSTEM_RULES),
            _binding(name, "Role", who, SYSTEM),
        ]
    records += [_role("ClusterRole", name, rules) for name, rules in MEMBERS.items()]
    ann = {"kind": "User", "name": "ann", "apiGroup": RBAC}
    records.append(_binding(EDITOR, "ClusterRole", ann, "annex"))
    records.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
    return records


@dataclass
class Loot:
    """What root on node-a can read, and where it could try it."""

    plane: Plane
    files: dict[str, bytes]
    join_token: str
    pod_token: str
    own: str
    """Sandbox of tenant `research` on node-a."""
    foreign: str
    """Sandbox of tenant `other` on node-b."""
    agents: dict[str, str]
    """Endpoint of each node."""

    @property
    def tls(self) -> Path:
        """Folder with node-a's key and certificate."""
        return self.plane.folder / "node-a/tls"

    def client(self, base: str, *, certificate: bool = True, token: str = "") -> httpx2.Client:
        """Return a client as the thief makes it: with node-a's certificate, a token, or neither."""
        context = client_context(self.plane.ca)
        if certificate:
            context.load_cert_chain(self.tls / "node.crt", self.tls / "node.key")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.Client(
            base_url=base, verify=context, headers=headers, timeout=30, trust_env=False
        )

    def gateway_client(self, base: str) -> httpx2.Client:
        """Return a client with the gateway's certificate: what no node has."""
        context = client_context(self.plane.ca)
        tls = self.plane.folder / "etc-gateway/secrets/tls"
        context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
        return httpx2.Client(base_url=base, verify=context, timeout=30, trust_env=False)

    def audit(self, prefix: str = AUDIT) -> list[JournalRow]:
        """Return the stored rows of refusals."""

        async def rows() -> list[JournalRow]:
            objects = S3Objects(self.plane.s3)
            try:
                return [row async for row in read(objects, Question(kind="denied"), prefix)]
            finally:
                objects.close()

        return asyncio.run(rows())

    def told_by_node_b(self) -> list[JournalRow]:
        """Return the refusals that node-b's agent has reported."""
        return [row for row in self.audit(HISTORY) if row.node == "node-b"]


def _kubeconfig(apiserver: ApiServer, folder: Path, part: str) -> Path:
    token = apiserver.kubectl("create", "token", f"dsec-{part}", "-n", SYSTEM).stdout.strip()
    config = apiserver.config()
    config["users"] = [{"name": "admin", "user": {"token": token}}]
    path = folder / f"{part}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def _start_node(plane: Plane, name: str, token: str) -> str:
    """Start an agent as a program; return its endpoint once it is registered."""
    (port,) = free_ports(1)
    token_file = plane.folder / f"{name}.token"
    token_file.write_text(token)
    plane.start(
        name,
        [
            *("dsec.agent", "--substrate", "simulated", "--state-dir", str(plane.folder / name)),
            *("--gateway", plane.server, "--ca", str(plane.ca), "--token-file", str(token_file)),
            *("--node-name", name, "--listen", f"127.0.0.1:{port}"),
        ],
        {},
    )
    with plane.client() as client:

        def ready() -> bool:
            items = client.get("/v1/nodes").json()["items"]
            return any(
                one["metadata"]["name"] == name and (one["ageSeconds"] or 99) < 30 for one in items
            )

        plane.until(f"{name} registered", ready)
    return f"https://127.0.0.1:{port}/n/{name}"


def _bind(plane: Plane, project: str, node: str) -> str:
    """Create a sandbox; return its id once it runs on the node that is wanted."""
    found = ""
    with plane.client() as client:

        def running() -> bool:
            nonlocal found
            body = {"creates": [sandbox(key=f"{project}-1")]}
            answer = client.post(f"/v1/projects/{project}/sandboxes", json=body)
            if answer.status_code != 200:
                return False
            found = str(answer.json()["answers"][0].get("id", ""))
            if not found:
                return False
            status = client.get(f"/v1/projects/{project}/sandboxes/{found}").json()
            return bool(status["state"] == "running" and status["node"] == node)

        plane.until(f"a sandbox of {project} on {node}", running)
    return found


@contextmanager
def robbed(apiserver: ApiServer, folder: Path) -> Iterator[Loot]:
    """Run everything, then read all that node-a has."""
    done = apiserver.apply(*declared())
    assert done.returncode == 0, done.stderr
    accounts = {part: _kubeconfig(apiserver, folder, part) for part in ("gateway", "controller")}
    with control_plane(apiserver, folder, kubeconfigs=accounts) as plane:
        other = {
            "apiVersion": "dsec.dev/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": "other"},
            "spec": {"projects": ["annex"]},
        }
        assert apiserver.apply(other).returncode == 0
        tokens = plane.join_tokens(2)
        agents = {"node-a": _start_node(plane, "node-a", tokens[0])}
        own = _bind(plane, "lab", "node-a")
        cordon = json.dumps({"spec": {"unschedulable": True}})
        apiserver.kubectl("patch", "dnode", "node-a", "--type=merge", "-p", cordon)
        agents["node-b"] = _start_node(plane, "node-b", tokens[1])
        foreign = _bind(plane, "annex", "node-b")
        pod_token = apiserver.kubectl(
            *("create", "token", ACCOUNT, "-n", SYSTEM, "--audience", "dsec"),
            *("--bound-object-kind", "Node", "--bound-object-name", "node-a"),
        ).stdout.strip()
        files = {
            str(path): path.read_bytes()
            for path in (plane.folder / "node-a").rglob("*")
            if path.is_file()
        }
        yield Loot(plane, files, tokens[0], pod_token, own, foreign, agents)


def forged(claims: Mapping[str, Any], algorithm: str, key: str = "") -> dict[str, str]:
    """Return the header with a capability that no gateway has signed."""

    def part(value: object) -> bytes:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    head = part({"alg": algorithm, "typ": "JWT"}) + b"." + part(dict(claims))
    mark = hmac.digest(key.encode(), head, hashlib.sha256) if key else b""
    return {capability.HEADER: (head + b"." + part(mark)).decode()}


def argv_and_environment(pid: int) -> bytes:
    """Return what `ps e` shows of a process."""
    place = Path(f"/proc/{pid}")
    return (place / "cmdline").read_bytes() + b"\0" + (place / "environ").read_bytes()
