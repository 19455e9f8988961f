"""What a sandbox leaves on disk for the agent that comes after: written ahead of each step."""

import contextlib
import fcntl
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from dsec.api.sandbox import SandboxSpec

SOCKET = "ctl"
ROOTS = "roots.json"
"""Which descriptor of init is the writable space; the next one is the whole root."""
FIRST_FD = 3
_NS_GET_ID = 2 << 30 | 8 << 16 | 0xB7 << 8 | 13
"""ioctl of namespace files, with a u64 for the answer."""


def start_time(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot; None when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def namespace_numbers(pid: int) -> dict[str, int]:
    """Return a process's pid and net namespaces: inodes, and ids where the kernel has them.

    Inodes are given again once a namespace is gone; ids never are. Raises OSError.
    """
    numbers: dict[str, int] = {}
    for kind in ("pid", "net"):
        fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            numbers[f"{kind}_namespace"] = os.fstat(fd).st_ino
            answer = bytearray(8)
            with contextlib.suppress(OSError):  # older kernels
                fcntl.ioctl(fd, _NS_GET_ID, answer)
                numbers[f"{kind}_namespace_id"] = int.from_bytes(answer, sys.byteorder)
        finally:
            os.close(fd)
    return numbers


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class Record:
    """The directory of one sandbox: specification, images, sockets, logs."""

    home: Path

    @property
    def stdout(self) -> Path:
        """The ring of standard output."""
        return self.home / "stdout.ring"

    @property
    def stderr(self) -> Path:
        """The ring of standard error."""
        return self.home / "stderr.ring"

    @property
    def end_file(self) -> Path:
        """How the main command ended, in init's words."""
        return self.home / "end.json"

    def put(self, name: str, value: object) -> None:
        """Write a JSON file whole or not at all."""
        draft = self.home / f".{name}.{os.getpid()}"
        draft.write_text(json.dumps(value))
        draft.replace(self.home / name)

    def get(self, name: str) -> dict[str, object]:
        """Read a JSON file; empty where it is missing or cut."""
        try:
            value = json.loads((self.home / name).read_text())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def spec(self) -> SandboxSpec | None:
        """Return the specification; None where the create did not come that far."""
        value = self.get("spec.json")
        return SandboxSpec.model_validate(value) if value else None

    def write_created(self, pid: int) -> None:
        """Note the running init, so that a reused process id is never taken for it."""
        started = start_time(pid)
        self.put("created.json", {"pid": pid, "startTime": started, "boot": boot_id()})

    def init_pid(self) -> int | None:
        """Return the live init's process id; None when it is gone."""
        value = self.get("created.json")
        pid = value.get("pid")
        if not isinstance(pid, int) or value.get("boot") != boot_id():
            return None
        return pid if start_time(pid) == value.get("startTime") else None
