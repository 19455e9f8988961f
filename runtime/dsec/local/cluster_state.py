"""What a local cluster remembers: its name, network and secrets, and where everything lies."""

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from dsec.local.cleanup import Footprint
from dsec.local.network import S3_PORT, ClusterNetwork, Layout, choose_layout, link_name
from dsec.local.processes import LocalError, RunDirectory, read_json, write_atomically

API_PORT, REGISTRY_PORT = 6443, 5000
"""Ports in the cluster's own network namespace, where nothing else can hold them."""

BUCKET = "dsec"

_NAME = re.compile(r"[a-z][a-z0-9]{0,9}")
_SOCKET_LIMIT = 107
"""Bytes of a unix socket's path that Linux takes."""


def default_root() -> Path:
    """Return the directory that holds all local clusters of this user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "dsec" / "local"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One cluster: `directory` holds everything it ever writes."""

    name: str
    directory: Path
    layout: Layout
    s3_access_key: str
    s3_secret_key: str

    @property
    def run(self) -> RunDirectory:
        """Plan, status, identities and logs of the parts."""
        return RunDirectory(self.directory / "run")

    @property
    def network(self) -> ClusterNetwork:
        """The cluster's namespaces and link."""
        return ClusterNetwork(self.layout, self.directory / "netns", link_name(self.name))

    @property
    def footprint(self) -> Footprint:
        """Everything of it that may be found outside its directory."""
        return Footprint(self.directory, (self.cgroup, self.sandbox_cgroup), self.network)

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.directory / "pki"

    @property
    def etc(self) -> Path:
        """Rendered configuration files."""
        return self.directory / "etc"

    @property
    def agent_directory(self) -> Path:
        """The agent's directory on the node; its mounts propagate to the host and back."""
        return self.directory / "agent"

    @property
    def cgroup(self) -> str:
        """The cgroup that holds all pods."""
        return f"/dsec-local-{self.name}"

    @property
    def sandbox_cgroup(self) -> str:
        """The cgroup that holds all sandboxes of this node, never under the pods'."""
        return f"/dsec-sandboxes-{self.name}"

    @property
    def node_name(self) -> str:
        """The Kubernetes node's name."""
        return f"dsec-{self.name}"

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.layout.node}:{API_PORT}"

    @property
    def registry(self) -> str:
        """The registry's host:port; plain HTTP, inside the cluster's network only."""
        return f"{self.layout.node}:{REGISTRY_PORT}"

    @property
    def s3_url(self) -> str:
        """The S3 server's URL."""
        return f"http://{self.layout.storage}:{S3_PORT}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.directory / "kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        """Where containerd answers."""
        return self.directory / "containerd" / "run" / "containerd.sock"


def load(name: str, directory: Path) -> ClusterState | None:
    """Return the state of an existing cluster, or None."""
    stored = read_json(directory / "cluster.json")
    if stored is None:
        return None
    layout = Layout(stored["network"])
    access, secret = stored["s3AccessKey"], stored["s3SecretKey"]
    return ClusterState(name, directory, layout, access, secret)


def ensure(name: str, directory: Path) -> ClusterState:
    """Return the cluster's state, made once. Raises LocalError for a name or path unfit."""
    if not _NAME.fullmatch(name):
        raise LocalError(
            f"name: {name!r}: a lower-case letter, then at most nine more letters or digits"
        )
    known = load(name, directory)
    if known is not None:
        return known
    taken = [
        stored["network"]
        for path in default_root().glob("*/cluster.json")
        if (stored := read_json(path)) is not None
    ]
    state = ClusterState(
        name=name,
        directory=directory,
        layout=choose_layout(taken),
        s3_access_key=secrets.token_hex(10),
        s3_secret_key=secrets.token_urlsafe(32),
    )
    if len(str(state.containerd_socket)) + len(".ttrpc") > _SOCKET_LIMIT:
        raise LocalError(f"state-dir: {directory}: too long for unix sockets; choose a shorter one")
    stored = {
        "network": state.layout.cluster,
        "s3AccessKey": state.s3_access_key,
        "s3SecretKey": state.s3_secret_key,
    }
    write_atomically(directory / "cluster.json", json.dumps(stored, indent=1))
    return state
