"""Parts: the long-running programs of a local stack, started detached and known by identity.

A part outlives the command that started it. What is known of it is on disk: `run/<part>.json`
names the process by pid, start time and boot, so that a recycled pid is never taken for it. The
supervisor (`dsec.local.supervisor`) restarts what crashed; this module starts, finds and stops.
A crash of the supervisor loses nothing: the next one adopts the parts by these files.
"""

import dataclasses
import fcntl
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOG_LIMIT = 32 << 20
"""Bytes of log kept of a part before the file is set aside at its next start."""

STATE_VARIABLE = "DSEC_LOCAL_STATE"
"""Every part carries it, and so do the children it leaves behind: clean-up finds them by it."""

_PROBE_SECONDS = 2.0


class LocalError(Exception):
    """The local stack cannot do what was asked; the message says why and what helps."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How readiness is seen: an http(s) URL that answers 2xx, a tcp address or a unix socket."""

    url: str
    ca: str = ""
    cert: str = ""
    key: str = ""

    def passes(self) -> bool:
        """Return whether the part answers now; never raises, takes at most two seconds."""
        try:
            return self._ask()
        except (OSError, http.client.HTTPException, ssl.SSLError):
            return False

    def _ask(self) -> bool:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(_PROBE_SECONDS)
                s.connect(parts.path)
            return True
        host, port = parts.hostname or "", parts.port or 0
        if parts.scheme == "tcp":
            socket.create_connection((host, port), _PROBE_SECONDS).close()
            return True
        connection = http.client.HTTPConnection(host, port, timeout=_PROBE_SECONDS)
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
            connection = http.client.HTTPSConnection(
                host, port, timeout=_PROBE_SECONDS, context=context
            )
        with suppress_close(connection):
            connection.request("GET", parts.path or "/")
            return 200 <= connection.getresponse().status < 300  # noqa: PLR2004 - HTTP's 2xx


@contextmanager
def suppress_close(connection: http.client.HTTPConnection) -> Iterator[None]:
    """Close the connection at the end, whatever happened."""
    try:
        yield
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Part:
    """One program to keep running. `after` names parts that must be ready first.

    `inputs` is a digest of the files it reads at its start: a change restarts it.
    `stop_seconds` is the grace between SIGTERM and SIGKILL.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    probe: Probe | None = None
    inputs: str = ""
    stop_seconds: float = 10.0

    def fingerprint(self) -> str:
        """Return a digest of all that a running process cannot learn later."""
        text = json.dumps([self.argv, self.env, self.inputs], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for good: pid, start in clock ticks since boot, and the boot."""

    pid: int
    start: int
    boot: str

    def alive(self) -> bool:
        """Return whether this very process still runs (a zombie does not)."""
        return identify(self.pid) == self


def boot_id() -> str:
    """Return the kernel's identifier of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """Return the identity of the live process with that pid, or None."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return Identity(pid, int(fields[19]), boot_id())


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a whole file or nothing: temporary file, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    temporary.rename(path)


def read_json(path: Path) -> Any:
    """Return a JSON file's content, or None where it is absent or half-written."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


class RunDirectory:
    """The files about running parts: `plan.json`, `status.json`, `<part>.json`, `logs/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"

    def write_plan(self, parts: Sequence[Part]) -> None:
        """Store what should run, for the supervisor."""
        plan = [dataclasses.asdict(part) for part in parts]
        write_atomically(self.root / "plan.json", json.dumps(plan, indent=1))

    def plan_digest(self) -> str:
        """Return a digest of the stored plan: the supervisor says which one it follows."""
        path = self.root / "plan.json"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""

    def plan(self) -> list[Part]:
        """Return what should run; empty where no plan was written."""
        stored = read_json(self.root / "plan.json") or []
        return [_part(item) for item in stored]

    def running(self, name: str, fingerprint: str = "") -> Identity | None:
        """Return the live process of a part; with a fingerprint, only if it was started so."""
        stored = read_json(self.root / "parts" / f"{name}.json")
        if stored is None:
            return None
        identity = Identity(stored["pid"], stored["start"], stored["boot"])
        if not identity.alive() or (fingerprint and stored["fingerprint"] != fingerprint):
            return None
        return identity

    def started(self) -> list[str]:
        """Return the names of parts that were started, alive or not, newest first."""
        files = list((self.root / "parts").glob("*.json"))
        return [f.stem for f in sorted(files, key=lambda f: f.stat().st_mtime, reverse=True)]

    def start(self, part: Part) -> subprocess.Popen[bytes]:
        """Start a part in a session of its own and note its identity. Raises LocalError."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{part.name}.log"
        if log.exists() and log.stat().st_size > LOG_LIMIT:
            log.rename(log.with_suffix(".log.1"))
        env = {**os.environ, **part.env, STATE_VARIABLE: str(self.root.parent)}
        try:
            with log.open("ab") as out:
                process = subprocess.Popen(
                    part.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=env,
                    start_new_session=True,
                )
        except OSError as e:
            raise LocalError(f"{part.name} cannot be started: {part.argv[0]}: {e}") from e
        identity = identify(process.pid)
        if identity is not None:
            note = {**dataclasses.asdict(identity), "fingerprint": part.fingerprint()}
            write_atomically(self.root / "parts" / f"{part.name}.json", json.dumps(note))
        return process

    def stop(self, name: str, grace: float = 10.0) -> bool:
        """End a part: SIGTERM, after the grace SIGKILL. Return whether it had been running."""
        identity = self.running(name)
        if identity is not None:
            end_process(identity, grace)
        (self.root / "parts" / f"{name}.json").unlink(missing_ok=True)
        return identity is not None

    @contextmanager
    def lock(self, name: str, message: str, wait: float = 0.0) -> Iterator[None]:
        """Hold a lock that dies with this process.

        Raises LocalError with the message when another holds it for longer than `wait` seconds.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + wait
        with (self.root / f"{name}.lock").open("w") as f:
            while True:
                try:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as e:
                    if time.monotonic() >= deadline:
                        raise LocalError(message) from e
                    time.sleep(0.1)
            yield


def end_process(identity: Identity, grace: float) -> None:
    """Terminate one process and wait until it is gone."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        # the pidfd pins the process, so the identity cannot change between check and signal
        if not identity.alive():
            return
        for sign, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, sign)
            if _gone(identity, seconds):
                return
    finally:
        os.close(descriptor)


def _gone(identity: Identity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while identity.alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _part(item: dict[str, Any]) -> Part:
    probe = item.pop("probe")
    item["argv"], item["after"] = tuple(item["argv"]), tuple(item["after"])
    return Part(**item, probe=Probe(**probe) if probe else None)
