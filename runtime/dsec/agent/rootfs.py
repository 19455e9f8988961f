"""The writable space of a sandbox: its size, and what is put into it before the start."""

import json
import os
import stat
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dsec.agent.images import Stack
from dsec.api.sandbox import SandboxSpec

CACHE_PATH = "/tmp/dsec_cache"  # noqa: S108 - the name in the contract, inside the sandbox
WORKSPACE = "/workspace"
DATASET = "/dataset"
OUTPUT = "/output"
IDENTITY_FILE = "/workspace/.dsec/identity.json"
ITEM_FILE = "/workspace/.dsec/item"
RESTORE_FILE = "/workspace/.dsec/restored.json"
"""What a restored program finds of its snapshot."""
PLUGIN_HOME = "/opt/dsec/plugins"
API = "http://ctrl-plane:8080"
HEARTBEAT = f"{API}/heartbeat"
_MIB = 1 << 20


class PathError(ValueError):
    """A mount path that the image does not allow."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory to make in the writable layer."""

    path: str
    mode: int
    uid: int
    gid: int


def make_disk(templates: Path, target: Path, size: int) -> None:
    """Make a sparse ext4 image with `size` usable bytes; blocks. Raises OSError, RuntimeError.

    File systems of one size start alike: one is formatted, the others are copies of its few blocks.
    """
    template = templates / f"ext4-{size}.img"
    if not template.exists():
        draft = templates / f"draft-{uuid.uuid4().hex}"
        with draft.open("xb") as file:
            # inode tables and bitmaps take about a fiftieth
            file.truncate(size + size // 50 + 2 * _MIB)
        command = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-I", "256"]
        command += ["-O", "^has_journal,^resize_inode,^metadata_csum"]
        command += ["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", str(draft)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            draft.unlink()
            raise RuntimeError(f"mkfs.ext4: {done.stderr.strip()}")
        # its blocks must be on disk before its name is: after a power failure it is copied as it is
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(template)
    copy_sparse(template, target)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file's data and keep its holes."""
    with source.open("rb") as a, target.open("xb") as b:
        size = os.fstat(a.fileno()).st_size
        os.ftruncate(b.fileno(), size)
        at = 0
        while True:
            try:
                at = os.lseek(a.fileno(), at, os.SEEK_DATA)
            except OSError:
                return  # no data after here
            hole = os.lseek(a.fileno(), at, os.SEEK_HOLE)
            os.lseek(b.fileno(), at, os.SEEK_SET)
            while at < hole:
                moved = os.sendfile(b.fileno(), a.fileno(), at, hole - at)
                if moved == 0:
                    return
                at += moved


def environment(spec: SandboxSpec, image_env: dict[str, str]) -> dict[str, str]:
    """Return the environment of the main command: image, then spec, then the contract."""
    identity = spec.identity
    gpus = ",".join(spec.devices)
    data = (mount.path for mount in spec.mounts if mount.kind == "data")
    contract = {
        "DSEC_ROLE": identity.part or identity.role,
        "DSEC_TASK_ID": identity.task_id or identity.id,
        "DSEC_WS_PATH": WORKSPACE,
        "DSEC_DATA_PATH": next(data, DATASET),
        "DSEC_CACHE_PATH": CACHE_PATH,
        "DSEC_HB_INTERVAL": f"{spec.heartbeat_seconds:g}",
        "DSEC_HB_ENDPOINT": HEARTBEAT,
        "DSEC_API_ENDPOINT": API,
        "DSEC_TENANT_ID": identity.tenant,
        "DSEC_SANDBOX_ID": identity.id,
        "DSEC_GPU_LIST": gpus,
        "CUDA_VISIBLE_DEVICES": gpus,
        "PLUGIN_HOME": PLUGIN_HOME,
    }
    if spec.item is not None:
        contract["DSEC_ITEM_FILE"] = ITEM_FILE
    if spec.restore is not None:
        contract["DSEC_RESTORE_FILE"] = RESTORE_FILE
    return {**image_env, **spec.env, **contract}


def identity_text(spec: SandboxSpec) -> str:
    """Return the identity file: two replicas differ in worker number, id and devices only."""
    identity = spec.identity
    return json.dumps(
        {
            "sandbox_id": identity.id,
            "tenant": identity.tenant,
            "project": identity.project,
            "experiment": identity.experiment,
            "task_id": identity.task_id or identity.id,
            "role": identity.role,
            "worker": identity.index,
            "incarnation": identity.incarnation,
            "gpus": spec.devices,
            "correlation_id": identity.correlation_id,
        },
        indent=1,
    )


def _lower_stat(stack: Stack, path: str) -> os.stat_result | None:
    for name in stack.lower:
        try:
            found = (Path(stack.base) / name / path.lstrip("/")).lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        whiteout = stat.S_ISCHR(found.st_mode) and found.st_rdev == 0
        return None if whiteout else found
    return None


def directories(spec: SandboxSpec, stack: Stack) -> list[Directory]:
    """Return the directories to make, parents first, with the image's modes where it has them.

    Raises PathError for a mount path that is not absolute and plain, or leads through a link.
    """
    fixed = {WORKSPACE: 0o755, DATASET: 0o755, OUTPUT: 0o755, "/tmp": 0o1777}  # noqa: S108 - inside the sandbox
    fixed |= {CACHE_PATH: 0o1777, f"{WORKSPACE}/.dsec": 0o755, PLUGIN_HOME: 0o755, "/etc": 0o755}
    fixed |= {"/proc": 0o555, "/sys": 0o555, "/dev": 0o755, "/.dsec": 0o755}
    fixed |= {mount.path: 0o755 for mount in spec.mounts if mount.path not in fixed}
    wanted: dict[str, Directory] = {}
    for text, mode in fixed.items():
        pure = PurePosixPath(text)
        if not pure.is_absolute() or ".." in pure.parts or str(pure) == "/":
            raise PathError(f"mount path {text!r} must be absolute, not / and without '..'")
        for path in [*reversed(pure.parents), pure][1:]:
            key = str(path)
            if key in wanted:
                continue
            below = _lower_stat(stack, key)
            if below is not None and not stat.S_ISDIR(below.st_mode):
                if key not in fixed or key not in {"/tmp", WORKSPACE, DATASET, OUTPUT}:  # noqa: S108 - inside the sandbox
                    raise PathError(f"mount path {text!r}: {key} is no directory in the image")
                below = None  # the contract's own directories win over links of the image
            if below is None:
                wanted[key] = Directory(key, mode if path == pure else 0o755, 0, 0)
            else:
                bits = stat.S_IMODE(below.st_mode)
                wanted[key] = Directory(key, bits, below.st_uid, below.st_gid)
    return list(wanted.values())


def files(spec: SandboxSpec) -> list[dict[str, object]]:
    """Return the files to write into the writable layer."""
    host = spec.identity.id
    hosts = f"127.0.0.1\tlocalhost ctrl-plane {host}\n::1\tlocalhost ip6-localhost\n"
    result: list[dict[str, object]] = [
        {"path": "/etc/hosts", "mode": 0o644, "content": hosts},
        {"path": "/etc/hostname", "mode": 0o644, "content": f"{host}\n"},
        {
            "path": "/etc/resolv.conf",
            "mode": 0o644,
            "content": "# no network: names come from /etc/hosts\noptions attempts:1 timeout:1\n",
        },
        {"path": IDENTITY_FILE, "mode": 0o644, "content": identity_text(spec)},
    ]
    if spec.item is not None:
        result.append({"path": ITEM_FILE, "mode": 0o644, "content": f"{spec.item}\n"})
    return result
