"""The OCI runtime configuration of a sandbox, and the launch specification of dsec-init."""

import resource
from collections.abc import Sequence
from pathlib import Path

from dsec.agent.cgroups import SandboxCgroups
from dsec.agent.images import Stack
from dsec.agent.rootfs import directories, files
from dsec.api.sandbox import SandboxSpec

CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
    "CAP_SETUID", "CAP_SETPCAP", "CAP_SETFCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT",
)  # fmt: skip
"""What root may still do inside. Nothing about networks, mounts, devices, tracing or modules."""

_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
    "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list",
    "/proc/timer_stats", "/sys/firmware", "/sys/devices/virtual/powercap",
)  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_SHM_MOST = 64 << 20
_FILES_MOST = 65_536
LAYERS = "l"
"""Name of the link to the image layers in a sandbox's directory."""
PLATFORM = "/.dsec"
"""Where init and the reference entry script are, read-only."""


def _mounts(spec: SandboxSpec, platform: Path) -> list[dict[str, object]]:
    safe = ["nosuid", "noexec", "nodev"]
    shm = min(_SHM_MOST, spec.resources.memory_bytes // 2)
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": safe},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=64k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        },
        {
            "destination": "/dev/shm",  # noqa: S108 - inside the sandbox
            "type": "tmpfs",
            "source": "shm",
            "options": [*safe, "mode=1777", f"size={shm}"],
        },
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": safe},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*safe, "ro"]},
        {
            "destination": PLATFORM,
            "type": "bind",
            "source": str(platform),
            "options": ["bind", "ro", "nosuid", "nodev"],
        },
    ]


def runtime_config(
    spec: SandboxSpec, platform: Path, init_args: Sequence[str], cgroups_path: str | None
) -> dict[str, object]:
    """Return config.json. The network namespace is the launcher's own; init is the process."""
    linux: dict[str, object] = {
        "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")],
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
    }
    if cgroups_path is not None:
        linux["cgroupsPath"] = cgroups_path
    kinds = ("bounding", "effective", "permitted")
    # an agent without CAP_SYS_RESOURCE cannot give more than it has
    files_most = min(_FILES_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    return {
        "ociVersion": "1.0.2",
        "hostname": spec.identity.id,
        "root": {"path": "rootfs"},
        "mounts": _mounts(spec, platform),
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": [f"{PLATFORM}/init", "run", *init_args],
            "env": [],
            "noNewPrivileges": True,
            "capabilities": {kind: list(CAPABILITIES) for kind in kinds},
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": files_most, "hard": files_most},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            ],
        },
        "linux": linux,
    }


def init_arguments(spec: SandboxSpec, version: int, join: int) -> list[str]:
    """Return init's arguments: what it cannot learn from its socket before the first heartbeat."""
    return [
        f"--cgroup=v{version}",
        f"--join={join}",
        f"--task={spec.identity.task_id or spec.identity.id}",
        f"--role={spec.identity.role}",
        f"--gpus={','.join(spec.devices)}",
    ]


def launch_spec(
    spec: SandboxSpec,
    stack: Stack,
    home: Path,
    *,
    cgroups: SandboxCgroups,
    disk: str,
    fds: Sequence[int],
    runtime: Sequence[str],
) -> dict[str, object]:
    """Return what `dsec-init launch` reads. Raises PathError for impossible mount paths."""
    sandbox = spec.identity.id
    hierarchies = cgroups.hierarchies
    # crun refuses hybrid machines: it gets to see plain version 1
    hide = str(hierarchies.unified) if hierarchies.version == 1 and hierarchies.unified else ""
    return {
        "joinSelf": [str(path) for path in cgroups.join_init(sandbox)],
        "joinUser": [str(path) for path in cgroups.join_user(sandbox)],
        "userCgroup": str(cgroups.leaf_parent(sandbox)),
        "hide": hide,
        "disk": {
            "kind": disk,
            "at": str(home / "disk"),
            "image": str(home / "disk.img"),
            "nodes": str(home),
            "bytes": spec.resources.disk_bytes,
        },
        "home": str(home),
        # through a link in the home, so that no path of the node shows in the guest's mounts
        "lower": [f"{LAYERS}/{name}" for name in stack.lower],
        "rootfs": str(home / "rootfs"),
        "dirs": [
            {"path": d.path, "mode": d.mode, "uid": d.uid, "gid": d.gid}
            for d in directories(spec, stack)
        ],
        "files": files(spec),
        "fds": list(fds),
        "exec": list(runtime),
    }
