"""Small files that outlive the agent: who the node is, and the highest leader epoch it has seen."""

import contextlib
import os
from datetime import datetime
from pathlib import Path

from dsec.world.clock import Randomness

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACHINE_ID = Path("/etc/machine-id")


class StateError(Exception):
    """A file of the state directory cannot be read or written; names the file."""


def replace_durably(path: Path, data: bytes, *, mode: int = 0o600, sync: bool = True) -> None:
    """Write a file so that a crash leaves the old or the new content. Raises StateError."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        temporary.replace(path)
        if sync:
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}") from error


class NodeFiles:
    """The identity files of one node below its state directory."""

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self.directory = directory
        self._durable = durable

    def load_epoch(self) -> int:
        """Return the highest epoch seen, 0 on a new node. Raises StateError."""
        return self._number("epoch")

    def store_epoch(self, epoch: int) -> None:
        """Keep an epoch; once this returns, a lower one is refused for ever. Raises StateError."""
        self._store("epoch", str(epoch))

    def next_incarnation(self, now: datetime) -> int:
        """Return and keep a number greater than at every earlier start of this node's agent.

        It follows the clock (seconds), so that it also grows when the directory was lost.
        """
        incarnation = max(self._number("incarnation") + 1, int(now.timestamp()))
        self._store("incarnation", str(incarnation))
        return incarnation

    def uid(self, randomness: Randomness) -> str:
        """Return the node's lasting identifier: the machine's, else a random one that is kept."""
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "uid").read_text().strip()
        uid = ""
        with contextlib.suppress(OSError):
            uid = MACHINE_ID.read_text().strip()
        uid = uid or randomness.randbytes(16).hex()
        self._store("uid", uid)
        return uid

    def _number(self, name: str) -> int:
        path = self.directory / name
        try:
            return int(path.read_text())
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise StateError(f"{path}: {error}") from error

    def _store(self, name: str, text: str) -> None:
        replace_durably(self.directory / name, text.encode(), sync=self._durable)


def machine_boot_id() -> str:
    """Return the kernel's boot id: it tells a restart of the agent from one of the machine."""
    return BOOT_ID.read_text().strip()
