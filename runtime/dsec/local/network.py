"""The network of a local cluster: a namespace of its own, so that the host gets no rule at all.

One namespace holds the cluster bridge, every Kubernetes program and all packet rules of
kube-proxy; a second one holds the object store's private ports. The host sees one end of a veth
pair and two routes. Removing the namespaces removes everything in them: bridge, rules, veths.
Addresses come from one /16 that overlaps no route of the host, chosen once and kept in the state.
"""

import ipaddress
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsec.local.processes import LocalError

BRIDGE = "dsec0"
S3_PORT = 8333
"""The one port of the object store that the cluster may reach."""

_STORAGE_FILTER = f"""\
table inet dsec
delete table inet dsec
table inet dsec {{
  chain input {{
    type filter hook input priority filter; policy drop;
    iif lo accept
    ct state established,related accept
    tcp dport {S3_PORT} accept
    icmp type echo-request accept
  }}
}}
"""
"""Only S3, which asks for a key, is reachable: the servers behind it ask nobody anything."""

_CANDIDATES = [f"10.{n}.0.0/16" for n in (*range(210, 255), *range(65, 210))]


@dataclass(frozen=True, slots=True)
class Layout:
    """Addresses of one cluster, all inside one /16."""

    cluster: str

    def _at(self, offset: int) -> str:
        return str(ipaddress.ip_network(self.cluster)[offset])

    @property
    def pods(self) -> str:
        """The lower half: bridge, object store and pods."""
        return f"{self._at(0)}/17"

    @property
    def services(self) -> str:
        """ClusterIPs."""
        return f"{self._at(0x8000)}/18"

    @property
    def node(self) -> str:
        """The bridge's own address: API server, registry and kubelet listen here."""
        return self._at(1)

    @property
    def storage(self) -> str:
        """Where the S3 server listens, on the bridge."""
        return self._at(2)

    @property
    def first_pod(self) -> str:
        """Addresses below are the cluster's own."""
        return self._at(16)

    @property
    def last_pod(self) -> str:
        """The end of the pods' range."""
        return self._at(0x7FFE)

    @property
    def kubernetes(self) -> str:
        """The ClusterIP of the API server."""
        return self._at(0x8001)

    @property
    def host_end(self) -> str:
        """The host's address on the link."""
        return self._at(0xFF01)

    @property
    def cluster_end(self) -> str:
        """The namespace's address on the link."""
        return self._at(0xFF02)


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """The namespaces of one cluster, as files that hold them, and the host's interface."""

    layout: Layout
    directory: Path
    link: str

    @property
    def cluster_namespace(self) -> Path:
        """Where bridge, Kubernetes and rules live."""
        return self.directory / "cluster"

    @property
    def storage_namespace(self) -> Path:
        """Where the object store's unauthenticated ports are out of everybody's reach."""
        return self.directory / "storage"

    def enter(self) -> tuple[str, ...]:
        """Return the command prefix that runs a program in the cluster's namespace."""
        return ("nsenter", f"--net={self.cluster_namespace}", "--")

    def enter_storage(self) -> tuple[str, ...]:
        """Return the command prefix that runs a program in the object store's namespace."""
        return ("nsenter", f"--net={self.storage_namespace}", "--")


def link_name(cluster: str) -> str:
    """Return the host interface's name; Linux allows 15 bytes."""
    return f"dsec-{cluster}"[:15]


def choose_layout(taken: Sequence[str] = ()) -> Layout:
    """Return a layout that overlaps neither a route of the host nor a network already taken."""
    routes = [r["dst"] for r in json.loads(_run(["ip", "-j", "route", "show", "table", "all"]))]
    used = [ipaddress.ip_network(r, strict=False) for r in routes if r[0].isdigit()]
    used += [ipaddress.ip_network(t) for t in taken]
    for candidate in _CANDIDATES:
        network = ipaddress.ip_network(candidate)
        if not any(u.version == 4 and u.overlaps(network) for u in used):  # noqa: PLR2004 - IPv4
            return Layout(candidate)
    raise LocalError("no free 10.x.0.0/16 is left beside the routes of this machine")


def is_namespace(path: Path) -> bool:
    """Return whether a network namespace is held at that path."""
    wanted = str(path)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(f[4] == wanted and "nsfs" in f for f in (line.split() for line in mounts))


def ensure_network(network: ClusterNetwork) -> None:
    """Make namespaces, bridge, links and routes; what exists already is left as it is.

    Raises LocalError with the failing command.
    """
    for path in (network.cluster_namespace, network.storage_namespace):
        if not is_namespace(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            _run(["unshare", f"--net={path}", "true"])
    layout, inside, storage = network.layout, network.enter(), network.enter_storage()
    _run([*inside, "ip", "link", "set", "dev", "lo", "up"])
    _run([*storage, "ip", "link", "set", "dev", "lo", "up"])
    if not _has(inside, BRIDGE):
        _run([*inside, "ip", "link", "add", BRIDGE, "type", "bridge"])
    _run([*inside, "ip", "address", "replace", f"{layout.node}/17", "dev", BRIDGE])
    _run([*inside, "ip", "link", "set", "dev", BRIDGE, "up"])
    # forwarded packets between pods and services pass here; the host's own setting stays
    _run([*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1"])
    _ensure_pair(network.link, (), "uplink", inside, network.cluster_namespace)
    _ensure_pair("store", inside, "eth0", storage, network.storage_namespace)
    _run(["ip", "address", "replace", f"{layout.host_end}/30", "dev", network.link])
    _run(["ip", "link", "set", "dev", network.link, "up"])
    _run([*inside, "ip", "address", "replace", f"{layout.cluster_end}/30", "dev", "uplink"])
    _run([*inside, "ip", "link", "set", "dev", "uplink", "up"])
    for destination in (layout.pods, layout.services):
        _run(["ip", "route", "replace", destination, "via", layout.cluster_end])
    # hostNetwork pods and the API server reach ClusterIPs by rules, which need some route first
    _run([*inside, "ip", "route", "replace", "default", "via", layout.host_end])
    _run([*inside, "ip", "link", "set", "dev", "store", "master", BRIDGE, "up"])
    _run([*storage, "ip", "address", "replace", f"{layout.storage}/17", "dev", "eth0"])
    _run([*storage, "ip", "link", "set", "dev", "eth0", "up"])
    _run([*storage, "ip", "route", "replace", "default", "via", layout.node])
    _run([*storage, "nft", "--file", "-"], _STORAGE_FILTER)


def remove_network(network: ClusterNetwork) -> None:
    """Remove the host's end and let go of the namespaces. Idempotent."""
    if _has((), network.link):
        _run(["ip", "link", "delete", network.link])
    for path in (network.storage_namespace, network.cluster_namespace):
        if is_namespace(path):
            _run(["umount", "--lazy", str(path)])
        path.unlink(missing_ok=True)


def _ensure_pair(
    name: str, where: Sequence[str], peer: str, peer_where: Sequence[str], namespace: Path
) -> None:
    """Make a veth pair: `name` here, `peer` in the other namespace."""
    if _has(where, name) and _has(peer_where, peer):
        return
    if _has(where, name):
        _run([*where, "ip", "link", "delete", name])
    # the peer's name is taken only once it is in its namespace: the host may own an eth0
    with namespace.open() as f:
        descriptor = f.fileno()
        command = [*where, "ip", "link", "add", name, "type", "veth", "peer", "name", peer]
        command += ["netns", f"/proc/{os.getpid()}/fd/{descriptor}"]
        _run(command)


def _has(where: Sequence[str], name: str) -> bool:
    command = [*where, "ip", "link", "show", "dev", name]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: Sequence[str], text: str = "") -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as e:
        hint = "Debian: iproute2, nftables, util-linux"
        raise LocalError(f"{command[0]} is not installed ({hint})") from e
    if done.returncode != 0:
        raise LocalError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
