"""What a standalone dsec remembers: its port, its API key, and where everything lies."""

import hashlib
import json
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from dsec.local.cleanup import Footprint
from dsec.local.processes import RunDirectory, read_json, write_atomically

PROJECT = "default"
"""The project that a new client works in."""

SERVE_LOCK = "serve"
"""Held by whichever process serves the directory."""

_KEY_ID = "local"


@dataclass(frozen=True, slots=True)
class StandaloneState:
    """One standalone dsec: `directory` holds everything it ever writes."""

    directory: Path
    port: int
    api_key: str

    @property
    def run(self) -> RunDirectory:
        """Plan, status, identity and log of the one part."""
        return RunDirectory(self.directory / "run")

    @property
    def server(self) -> str:
        """The API's URL, on loopback."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def cgroup(self) -> str:
        """The parent of all its sandboxes' control groups; one per directory."""
        return f"/dsec-{hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]}"

    @property
    def footprint(self) -> Footprint:
        """Everything of it that may be found outside its directory."""
        return Footprint(self.directory, (self.cgroup,))


def default_directory() -> Path:
    """Return where this user's standalone dsec lives."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "dsec" / "standalone"


def load(directory: Path) -> StandaloneState | None:
    """Return the state of an existing one, or None."""
    stored = read_json(directory / "standalone.json")
    return StandaloneState(directory, stored["port"], stored["apiKey"]) if stored else None


def ensure(directory: Path, port: int = 0) -> StandaloneState:
    """Return the state, made once; another `port` (0: any free one) replaces the stored one."""
    known = load(directory)
    key = known.api_key if known else f"dsec_{_KEY_ID}_{secrets.token_hex(24)}"
    chosen = port or (known.port if known else _free_port())
    state = StandaloneState(directory, chosen, key)
    if state != known:
        stored = json.dumps({"port": chosen, "apiKey": key}, indent=1)
        write_atomically(directory / "standalone.json", stored)
    return state


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
