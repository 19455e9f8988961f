"""What is known of a machine that dsec could run on: ways of using dsec, packages, facts.

A way, here, is one of standalone, local cluster, existing cluster and the tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Way(StrEnum):
    """A way of using dsec."""

    STANDALONE = "standalone"
    LOCAL = "local"
    EXISTING = "existing"
    TESTS = "tests"


HERE = (Way.STANDALONE, Way.LOCAL, Way.TESTS)
"""The ways that run sandboxes on this machine."""
CLUSTER = (Way.LOCAL, Way.TESTS)
TOOLED = (Way.LOCAL, Way.EXISTING, Way.TESTS)

NAMESPACES = frozenset({"ipc", "mnt", "net", "pid", "uts"})
CONTROLLERS = frozenset({"cpu", "memory", "pids"})


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """A Debian package and the program by which it is recognised, on any distribution."""

    name: str
    program: str
    purpose: str
    ways: tuple[Way, ...]
    megabytes: int


PACKAGES = (
    DebianPackage("crun", "crun", "starts sandboxes; runc does too", HERE, 1),
    DebianPackage("e2fsprogs", "mkfs.ext4", "makes a sandbox's disk of its own size", HERE, 2),
    DebianPackage("skopeo", "skopeo", "fetches images", HERE, 20),
    DebianPackage("runc", "runc", "starts pods", CLUSTER, 9),
    DebianPackage("containerd", "containerd", "runs the pods of the local cluster", CLUSTER, 130),
    DebianPackage("containernetworking-plugins", "bridge", "connects pods", CLUSTER, 55),
    DebianPackage("iptables", "iptables", "services of the local cluster", CLUSTER, 3),
    DebianPackage("nftables", "nft", "keeps the local cluster to itself", CLUSTER, 1),
    DebianPackage("buildah", "buildah", "builds images", CLUSTER, 30),
    DebianPackage("mmdebstrap", "mmdebstrap", "builds a base image offline", CLUSTER, 1),
    DebianPackage("docker-registry", "docker-registry", "serves images", CLUSTER, 16),
    DebianPackage("erofs-utils", "mkfs.erofs", "packs read-only layers", CLUSTER, 1),
    DebianPackage("iproute2", "ip", "makes the network of the local cluster", CLUSTER, 3),
    DebianPackage("util-linux", "nsenter", "enters the namespaces of the cluster", CLUSTER, 4),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found. A version is a tuple of numbers; None or '' says absent."""

    machine: str = "x86_64"
    system: str = "Linux"
    root: bool = True
    cpus: int = 2
    memory_mib: int = 8192
    disk_free_mib: int = 50_000
    python: tuple[int, ...] = (3, 11)
    uv: tuple[int, ...] | None = (0, 13)
    go: tuple[int, ...] | None = (1, 26)
    rust: tuple[int, ...] | None = (1, 95)
    static_libc: bool = True
    apt: bool = True
    cgroup: str = "v2"  # v1, v2, hybrid or ''
    controllers: frozenset[str] = CONTROLLERS
    filesystems: frozenset[str] = frozenset({"overlay", "erofs"})
    namespaces: frozenset[str] = NAMESPACES
    nftables: bool = True
    loop_devices: bool = True
    init_given: bool = False  # DSEC_INIT names a built dsec-init
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version or path
    tools: Mapping[str, str] = field(default_factory=dict)  # name -> where
    release_hosts: bool = False  # every host of missing tools answered
    checkout: bool = True
    images: bool = False  # built before
    contexts: tuple[str, ...] = ()  # of the kubeconfig
    tools_folder: Path = Path("~/.cache/dsec/tools")
    state_folder: Path = Path("~/.local/state/dsec")
