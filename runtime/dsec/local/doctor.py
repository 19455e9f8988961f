"""What each way of using dsec needs of a machine: a pure function from facts to findings.

`dsec.local.doctor_probe` collects the facts; the command line prints the findings.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from dsec.local.doctor_facts import (
    CLUSTER,
    CONTROLLERS,
    HERE,
    NAMESPACES,
    PACKAGES,
    TOOLED,
    DebianPackage,
    Facts,
    Way,
)
from dsec.local.toolchain_table import TOOLS


class Verdict(StrEnum):
    """How a prerequisite stands. Only `missing` stops a way."""

    OK = "ok"
    MISSING = "missing"
    NOTE = "note"


# What the existing cluster needs on this side: the engine and its plugin, and kubectl.
EXISTING_TOOLS = frozenset({"pulumi", "pulumi-resource-kubernetes", "kubectl"})

MINIMUM_PYTHON = (3, 11)
MINIMUM_UV = (0, 6)
# dsec-init is written in the 2024 edition
MINIMUM_RUST = (1, 85)
MINIMUM_GO = (1, 26)
MEMORY_MIB = {Way.STANDALONE: 1024, Way.LOCAL: 3072, Way.EXISTING: 512, Way.TESTS: 4096}

_GO_CACHES_MIB = 4500
_IMAGES_MIB = 900
_IMAGES_MINUTES = 4.0
_INIT_MINUTES = 0.5
_START_MINUTES = 1.0
_DOWNLOAD_MINUTES = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One prerequisite: what is here, what is wanted, how to get it."""

    name: str
    verdict: Verdict
    found: str
    wanted: str
    ways: tuple[Way, ...]
    remedy: str = ""
    needs_root: bool = False
    packages: tuple[str, ...] = ()  # Debian's, which --fix installs


@dataclass(frozen=True, slots=True)
class Plan:
    """One way: can it start, and what will it take. Minutes and mebibytes are estimates."""

    way: Way
    ready: bool
    missing: tuple[str, ...]
    minutes: float
    megabytes: int
    installs: tuple[str, ...]
    root_for: tuple[str, ...]


def version_text(version: Iterable[int] | None) -> str:
    """Return a version with dots, or `absent`."""
    return ".".join(str(part) for part in version) if version else "absent"


def findings(facts: Facts) -> list[Finding]:
    """Judge every prerequisite of every way, in the order in which to read them."""
    judged = [
        *_machine(facts),
        *_kernel(facts),
        *_languages(facts),
        *(_package(package, facts) for package in PACKAGES),
        *_tools(facts),
        _cluster(facts),
    ]
    return [replace(f, remedy="", packages=()) if f.verdict is Verdict.OK else f for f in judged]


def _judge(good: bool, otherwise: Verdict = Verdict.MISSING) -> Verdict:
    return Verdict.OK if good else otherwise


def _machine(facts: Facts) -> list[Finding]:
    known = {"x86_64", "aarch64"}
    need = max(MEMORY_MIB[way] for way in CLUSTER)
    return [
        Finding(
            "system",
            _judge(facts.system == "Linux" and facts.machine in known),
            f"{facts.system} {facts.machine}",
            "Linux on x86_64 or aarch64",
            HERE,
            "use a Linux machine or virtual machine, or an existing cluster",
        ),
        Finding(
            "root",
            _judge(facts.root),
            "root" if facts.root else "an ordinary user",
            "root: sandboxes need mounts, namespaces and control groups",
            HERE,
            "run dsec with sudo",
            needs_root=True,
        ),
        Finding(
            "memory",
            _judge(facts.memory_mib >= need, Verdict.NOTE),
            f"{facts.memory_mib} MiB",
            f"{need} MiB for a local cluster, {MEMORY_MIB[Way.STANDALONE]} MiB standalone",
            HERE,
            "close other programs; with less, sandboxes are refused sooner",
        ),
    ]


def _kernel(facts: Facts) -> list[Finding]:
    lacking_controllers = CONTROLLERS - facts.controllers
    lacking_namespaces = NAMESPACES - facts.namespaces
    return [
        Finding(
            "control groups",
            _judge(bool(facts.cgroup) and not lacking_controllers),
            f"{facts.cgroup or 'not mounted'}: {', '.join(sorted(facts.controllers)) or 'none'}",
            f"v1, v2 or both, with {', '.join(sorted(CONTROLLERS))}",
            HERE,
            f"mount the controllers {', '.join(sorted(lacking_controllers))} on /sys/fs/cgroup",
            needs_root=True,
        ),
        Finding(
            "namespaces",
            _judge(not lacking_namespaces),
            ", ".join(sorted(facts.namespaces & NAMESPACES)) or "none",
            ", ".join(sorted(NAMESPACES)),
            HERE,
            f"use a kernel built with {', '.join(sorted(lacking_namespaces))} namespaces",
        ),
        Finding(
            "overlayfs",
            _judge("overlay" in facts.filesystems),
            "present" if "overlay" in facts.filesystems else "absent",
            "present: a sandbox's root is layers",
            HERE,
            "modprobe overlay",
            needs_root=True,
        ),
        Finding(
            "EROFS",
            _judge("erofs" in facts.filesystems, Verdict.NOTE),
            "present" if "erofs" in facts.filesystems else "absent",
            "present: read-only layers start faster; without it they are unpacked",
            HERE,
            "modprobe erofs",
            needs_root=True,
        ),
        Finding(
            "loop devices",
            _judge(facts.loop_devices, Verdict.NOTE),
            "present" if facts.loop_devices else "absent",
            "present: a sandbox's disk is a file; without them it is memory",
            HERE,
            "modprobe loop",
            needs_root=True,
        ),
        Finding(
            "nftables in the kernel",
            _judge(facts.nftables),
            "present" if facts.nftables else "absent",
            "present: the local cluster has a network of its own",
            CLUSTER,
            "modprobe nf_tables",
            needs_root=True,
        ),
    ]


def _languages(facts: Facts) -> list[Finding]:
    builds = bool(_missing_tools(facts, [tool.name for tool in TOOLS])) and not facts.release_hosts
    go_good = facts.go is not None and facts.go[:2] >= MINIMUM_GO
    rust_good = facts.rust is not None and facts.rust[:2] >= MINIMUM_RUST
    return [
        Finding(
            "Python",
            _judge(facts.python[:2] >= MINIMUM_PYTHON),
            version_text(facts.python),
            f"{version_text(MINIMUM_PYTHON)} or newer",
            tuple(Way),
            "uv python install 3.11",
        ),
        Finding(
            "uv",
            _judge(facts.uv is not None and facts.uv[:2] >= MINIMUM_UV),
            version_text(facts.uv),
            f"{version_text(MINIMUM_UV)} or newer: installs the locked packages",
            (Way.LOCAL, Way.TESTS),
            "pip install uv, or see https://docs.astral.sh/uv",
        ),
        Finding(
            "Go",
            _judge(go_good, Verdict.MISSING if builds else Verdict.NOTE),
            version_text(facts.go),
            f"{version_text(MINIMUM_GO)} or newer: builds tools that cannot be downloaded",
            TOOLED,
            "install it from https://go.dev/dl" if builds else "not needed now",
        ),
        Finding(
            "Rust",
            _judge(rust_good, Verdict.NOTE if facts.init_given else Verdict.MISSING),
            version_text(facts.rust),
            f"{version_text(MINIMUM_RUST)} or newer: builds dsec-init, the PID 1 of a sandbox",
            HERE,
            "install it from https://rustup.rs",
        ),
        Finding(
            "C library for static programs",
            _judge(facts.static_libc),
            "present" if facts.static_libc else "absent",
            "cc and libc.a: dsec-init and the pause program are static",
            HERE,
            "apt-get install gcc libc6-dev" if facts.apt else "install gcc and a static libc",
            needs_root=True,
            packages=("gcc", "libc6-dev") if facts.apt else (),
        ),
    ]


def _package(package: DebianPackage, facts: Facts) -> Finding:
    version = facts.packages.get(package.name, "")
    # either runtime starts sandboxes, so one of them is enough for standalone
    substitute = package.name == "crun" and bool(facts.packages.get("runc"))
    good = bool(version) or substitute
    remedy = f"apt-get install {package.name}"
    if not facts.apt:
        remedy = f"install {package.program} with this system's package manager"
    found = version or ("absent, runc is there" if substitute else "absent")
    return Finding(
        package.name,
        _judge(good),
        found,
        f"{package.program}: {package.purpose}",
        package.ways,
        remedy,
        needs_root=True,
        packages=(package.name,) if facts.apt else (),
    )


def _missing_tools(facts: Facts, names: Iterable[str]) -> list[str]:
    return [name for name in names if not facts.tools.get(name)]


def _tools(facts: Facts) -> list[Finding]:
    """Missing tools are no obstacle where they can be had: installing them is part of the way."""
    found = []
    go_good = facts.go is not None and facts.go[:2] >= MINIMUM_GO
    possible = facts.release_hosts or (facts.checkout and go_good)
    for tool in TOOLS:
        where = facts.tools.get(tool.name, "")
        ways = TOOLED if tool.name in EXISTING_TOOLS else CLUSTER
        remedy = f"dsec tools install {tool.name}"
        if facts.release_hosts:
            remedy += " (download)"
        else:
            remedy += f" (build, {tool.core_minutes:g} core-minutes)"
        if not possible:
            remedy += "; needs Go and a checkout of dsec, or a way to the release hosts"
        verdict = Verdict.OK if where else (Verdict.NOTE if possible else Verdict.MISSING)
        found.append(Finding(tool.name, verdict, where or "absent", tool.version, ways, remedy))
    return found


def _cluster(facts: Facts) -> Finding:
    contexts = ", ".join(facts.contexts[:5])
    return Finding(
        "kubeconfig",
        _judge(bool(facts.contexts)),
        contexts or "no contexts",
        "a context of the cluster to use",
        (Way.EXISTING,),
        "set KUBECONFIG, or pass --kubeconfig and --context",
    )


def plan(facts: Facts, way: Way, found: list[Finding] | None = None) -> Plan:
    """Say what one way takes from here to the first sandbox."""
    found = findings(facts) if found is None else found
    mine = [finding for finding in found if way in finding.ways]
    missing = tuple(f.name for f in mine if f.verdict is Verdict.MISSING)
    installs: list[str] = []
    minutes = megabytes = 0.0
    packages = {name for f in mine for name in f.packages}
    if packages:
        size = sum(package.megabytes for package in PACKAGES if package.name in packages)
        installs.append(f"Debian packages, {size} MiB: {', '.join(sorted(packages))}")
        minutes, megabytes = minutes + 1, megabytes + size
    wanted = [tool for tool in TOOLS if any(f.name == tool.name for f in mine)]
    names = set(_missing_tools(facts, [tool.name for tool in wanted]))
    if lacking := [tool for tool in wanted if tool.name in names]:
        size = sum(tool.megabytes for tool in lacking)
        installs.append(f"{len(lacking)} tools, {size} MiB, in {facts.tools_folder}")
        megabytes += size
        if facts.release_hosts:
            minutes += _DOWNLOAD_MINUTES
        else:
            minutes += sum(tool.core_minutes for tool in lacking) / facts.cpus
            installs.append(f"Go's build and module caches, {_GO_CACHES_MIB} MiB")
            megabytes += _GO_CACHES_MIB
    if way in HERE:
        minutes += _INIT_MINUTES
        installs.append(f"state and logs in {facts.state_folder}")
    if way in CLUSTER:
        minutes += _START_MINUTES
    if way in CLUSTER and not facts.images:
        minutes, megabytes = minutes + _IMAGES_MINUTES, megabytes + _IMAGES_MIB
        installs.append(f"images, {_IMAGES_MIB} MiB, in {facts.tools_folder.parent}")
    if megabytes > facts.disk_free_mib:
        missing = (*missing, f"disk: {megabytes:.0f} MiB wanted, {facts.disk_free_mib} MiB free")
    # a check that is met by being root still is something that needs root
    root_for = tuple(f.name for f in mine if f.needs_root and f.verdict is not Verdict.OK)
    if way in HERE:
        root_for = ("running sandboxes", *(name for name in root_for if name != "root"))
    return Plan(
        way, not missing, missing, round(minutes, 1), round(megabytes), tuple(installs), root_for
    )


def packages_to_install(found: Iterable[Finding], ways: Iterable[Way]) -> list[str]:
    """Return the Debian packages whose absence stops one of `ways`."""
    chosen = set(ways)
    return sorted({name for f in found if chosen & set(f.ways) for name in f.packages})
