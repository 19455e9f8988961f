"""What a node has and can do, asked of the kernel, and how much of it is offered."""

import contextlib
import os
import platform
import stat
from pathlib import Path

from dsec.agent.config import AgentConfig
from dsec.api.sandbox import IsolationLevel
from dsec.api.wire import NodeInventory

RESERVED_SHARE, RESERVED_MOST = 16, 1 << 30
"""Memory kept for the node where nobody says how much: one part in so many, at most so much."""


def supports_loop() -> bool:
    """Return whether loop devices can be made on this node."""
    return os.access("/dev/loop-control", os.R_OK | os.W_OK)


def _filesystems() -> set[str]:
    return {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}


def _memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo has no MemTotal")


def node_inventory(
    state: Path, *, cgroup: int, runtime: str, disk: str, cpuset: bool = False
) -> NodeInventory:
    """Return capacity and features. `cpuset`: whether sandboxes can have CPUs to themselves.

    Disk is what is free below the state directory and what its sandboxes hold: those that live
    through a restart of the agent are booked against it.
    """
    space = os.statvfs(state)
    systems = _filesystems()
    features = {
        "cgroup": f"v{cgroup}",
        "runtime": runtime,
        "disk-limit": "ext4-image" if disk == "loop" else "tmpfs",
        "kernel": platform.release(),
        "arch": platform.machine(),
        "erofs": "yes" if "erofs" in systems else "no",
        "kvm": "yes" if os.access("/dev/kvm", os.R_OK | os.W_OK) else "no",
    }
    if cpuset:
        features["cpuset"] = "yes"
    return NodeInventory(
        cpu_milli=(os.cpu_count() or 1) * 1000,
        memory_bytes=_memory_bytes(),
        disk_bytes=space.f_bavail * space.f_frsize + _held_bytes(state / "sandboxes"),
        pids=int(Path("/proc/sys/kernel/pid_max").read_text()),
        isolation=[IsolationLevel.CONTAINER],
        features=features,
    )


def _held_bytes(sandboxes: Path) -> int:
    """Return the bytes on disk of all sandboxes: their disk images and kept output."""
    held = 0
    for file in sandboxes.glob("*/*"):
        # one that is removed meanwhile holds nothing
        with contextlib.suppress(OSError):
            found = file.lstat()
            held += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
    return held


def offered(found: NodeInventory, config: AgentConfig) -> NodeInventory:
    """Return what sandboxes may book of a node: less the reserve, CPU times the over-commitment.

    Raises ValueError where the reserve leaves nothing.
    """
    reserve = config.reserved_memory_bytes
    if reserve is None:
        # a simulated machine runs nothing besides
        reserve = 0 if found.simulated else min(found.memory_bytes // RESERVED_SHARE, RESERVED_MOST)
    cpu, memory = found.cpu_milli - config.reserved_cpu_milli, found.memory_bytes - reserve
    for name, left, asked, most in (
        ("reserved_cpu_milli", cpu, config.reserved_cpu_milli, found.cpu_milli),
        ("reserved_memory_bytes", memory, reserve, found.memory_bytes),
    ):
        if left <= 0:
            raise ValueError(f"{name}: {asked} leaves nothing; the node has {most}")
    features = dict(found.features)
    if config.cpu_overcommit > 1:
        features["cpu-overcommit"] = f"{config.cpu_overcommit:g}"
    return found.model_copy(
        update={
            "cpu_milli": int(cpu * config.cpu_overcommit),
            "memory_bytes": memory,
            "whole_cpus": cpu // 1000,
            "max_sandboxes": config.max_sandboxes or found.max_sandboxes,
            "features": features,
        }
    )
