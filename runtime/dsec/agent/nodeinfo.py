"""What a node has and can do, asked of the kernel."""

import os
import platform
from pathlib import Path

from dsec.api.sandbox import IsolationLevel
from dsec.api.wire import NodeInventory


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


def node_inventory(state: Path, *, cgroup: int, runtime: str, disk: str) -> NodeInventory:
    """Return capacity and features. Disk is what is free below the state directory now."""
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
    return NodeInventory(
        cpu_milli=(os.cpu_count() or 1) * 1000,
        memory_bytes=_memory_bytes(),
        disk_bytes=space.f_bavail * space.f_frsize,
        pids=int(Path("/proc/sys/kernel/pid_max").read_text()),
        isolation=[IsolationLevel.CONTAINER],
        features=features,
    )
