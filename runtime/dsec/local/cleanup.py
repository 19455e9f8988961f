"""Leaving a machine as it was: find and remove what a local stack put outside its directory.

Works from what the kernel says now, never from what was remembered to have been started, so that
it finishes after any crash and its count can be trusted: every process with the stack's mark or
in its cgroups, every mount below its directory, its namespaces, its interface, its cgroups.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsec.local.network import ClusterNetwork, is_namespace, remove_network
from dsec.local.processes import STATE_VARIABLE, identify

_KILL_SECONDS = 15.0
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Where a local stack leaves traces. `cgroups` are absolute; standalone has no network."""

    directory: Path
    cgroups: tuple[str, ...]
    network: ClusterNetwork | None = None


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What of a stack is on the machine, by kind; each entry is a name for people."""

    processes: list[str]
    mounts: list[str]
    loops: list[str]
    namespaces: list[str]
    interfaces: list[str]
    rules: list[str]
    cgroups: list[str]

    def total(self) -> int:
        """Return how many there are."""
        return sum(len(entries) for entries in self.by_kind().values())

    def by_kind(self) -> dict[str, list[str]]:
        """Return the entries by kind."""
        return {kind: list(getattr(self, kind)) for kind in self.__slots__}

    def sentence(self) -> str:
        """Return one sentence: nothing, or how many of each kind and the first names."""
        found = {kind: entries for kind, entries in self.by_kind().items() if entries}
        if not found:
            return "nothing is left on this machine: " + ", ".join(f"0 {k}" for k in self.__slots__)
        parts = [f"{len(e)} {kind} ({', '.join(e[:3])})" for kind, e in found.items()]
        return "left on this machine: " + ", ".join(parts)


def count(stack: Footprint) -> Leftovers:
    """Count what is there now."""
    network = stack.network
    namespaces = (network.cluster_namespace, network.storage_namespace) if network else ()
    return Leftovers(
        processes=[f"{pid} {_command(pid)}" for pid in processes(stack)],
        mounts=mounts(stack.directory),
        loops=_loops(stack.directory),
        namespaces=[path.name for path in namespaces if is_namespace(path)],
        interfaces=_interfaces(stack),
        rules=_rules(stack),
        cgroups=[str(path) for root in _cgroup_roots(stack) for path in _tree(root)],
    )


def processes(stack: Footprint) -> list[int]:
    """Return the live processes of the cluster: by its mark in the environment, or by cgroup."""
    mark = f"{STATE_VARIABLE}={stack.directory}".encode()
    groups = stack.cgroups
    return [
        pid
        for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())
        if pid != os.getpid()
        and (_in_group(pid, groups) or _has_mark(pid, mark))
        and identify(pid) is not None
    ]


def mounts(directory: Path) -> list[str]:
    """Return the mount points below a directory, in the order of mounting."""
    below = f"{directory}/"
    points = []
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n")[:-1]:
        point = _plain(line.split(" ")[4])
        if point.startswith(below):
            points.append(point)
    return points


def _plain(field: str) -> str:
    r"""Return a path of a kernel's list of mounts: it writes odd characters as `\040`, no more."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _loops(directory: Path) -> list[str]:
    """Return the loop devices over files of the stack; each goes with its last mount."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            if path.read_text().startswith(f"{directory}/"):
                found.append(path.parts[3])
    return found


def kill_members(stack: Footprint) -> None:
    """End every process of pods and sandboxes, frozen ones too. containerd then tidies up."""
    for root in _cgroup_roots(stack):
        for path in _tree(root):
            # a frozen process takes no signal before it is thawed
            _write(path / "freezer.state", "THAWED")
            _write(path / "cgroup.freeze", "0")
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        pids = {pid for root in _cgroup_roots(stack) for p in _tree(root) for pid in _members(p)}
        if not pids:
            return
        _kill(pids)
        time.sleep(0.1)


def remove(stack: Footprint) -> Leftovers:
    """Remove everything outside the directory; return what could not be removed."""
    kill_members(stack)
    deadline = time.monotonic() + _KILL_SECONDS
    while (pids := processes(stack)) and time.monotonic() < deadline:
        _kill(set(pids))
        time.sleep(0.1)
    if stack.network:
        remove_network(stack.network)
    for point in reversed(mounts(stack.directory)):
        _unmount(point)
    _remove_cgroups(stack)
    _remove_traces(stack)
    return count(stack)


def prepare_cgroup(group: str) -> None:
    """Make the pods' cgroup in every hierarchy: kubelet refuses a root that is not there."""
    for mount in _cgroup_mounts():
        root = mount / group.lstrip("/")
        root.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # v1: a new cpuset is empty, and no task can enter an empty one
            above = mount / name
            if above.exists() and not (root / name).read_text().strip():
                _write(root / name, above.read_text())


def _remove_cgroups(stack: Footprint) -> None:
    for root in _cgroup_roots(stack):
        for path in reversed(list(_tree(root))):
            for _ in range(20):
                with suppress(FileNotFoundError):
                    try:
                        path.rmdir()
                    except OSError:
                        time.sleep(0.05)
                        continue
                break


def _remove_traces(stack: Footprint) -> None:
    """Remove links and notes that kubelet and CNI keep at fixed places of the host."""
    if stack.network:
        for path in Path("/var/lib/cni/results").glob(f"{stack.network.link}-*"):
            path.unlink(missing_ok=True)
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{stack.directory}/"):
            link.unlink(missing_ok=True)


def _cgroup_mounts() -> Iterator[Path]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] in {"cgroup", "cgroup2"} and fields[3] == "/":
            yield Path(fields[4])


def _cgroup_roots(stack: Footprint) -> list[Path]:
    """Return the stack's cgroups that exist, in every hierarchy."""
    return [
        root
        for mount in _cgroup_mounts()
        for group in stack.cgroups
        if (root := mount / group.lstrip("/")).exists()
    ]


def _tree(root: Path) -> Iterator[Path]:
    """Yield a cgroup and all below it, parents first."""
    yield root
    try:
        children = [entry for entry in root.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return
    for child in children:
        yield from _tree(child)


def _members(cgroup: Path) -> list[int]:
    try:
        return [int(pid) for pid in (cgroup / "cgroup.procs").read_text().split() if pid != "0"]
    except OSError:
        return []


def _in_group(pid: int, groups: tuple[str, ...]) -> bool:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return False
    paths = [line.split(":", 2)[2] for line in lines]
    return any(path == g or path.startswith(f"{g}/") for path in paths for g in groups)


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _unmount(point: str) -> None:
    target = os.fsencode(point)
    if _libc.umount2(target, 0) != 0:
        _libc.umount2(target, _MNT_DETACH)


def _write(path: Path, text: str) -> None:
    if path.exists():
        with suppress(OSError):
            path.write_text(text)


def _interfaces(stack: Footprint) -> list[str]:
    if stack.network is None:
        return []
    links = json.loads(_query(["ip", "-j", "link", "show"]) or "[]")
    return [link["ifname"] for link in links if link["ifname"] == stack.network.link]


def _rules(stack: Footprint) -> list[str]:
    """Return packet rules and routes of the host that name the cluster: there should be none."""
    if stack.network is None:
        return []
    network, link = stack.network.layout.cluster.rsplit(".", 2)[0] + ".", stack.network.link
    rules = [line for line in _query(["nft", "list", "ruleset"]).splitlines() if network in line]
    routes = [line for line in _query(["ip", "route"]).splitlines() if link in line.split()]
    return [line.strip() for line in (*rules, *routes)]


def _query(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""
