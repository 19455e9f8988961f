"""The steps of the demo that are more than one call: the tool chain, and `pulumi up`."""

import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec.cli.output import note

HEARTBEAT_SECONDS = 30.0
"""So often a long wait says that it is alive."""

STACK = "local"
_PACK = ("--policy-pack", "policies", "--suppress-progress", "--suppress-outputs")


class StepError(Exception):
    """A step of the demo failed; its command has said why."""

    exit_code = 1


def state_directory() -> Path:
    """Return where the log of tool builds and Pulumi's state are kept."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "dsec"


def dsec(*arguments: str) -> None:
    """Run a command of this program; what it says goes to stderr. Raises StepError."""
    note(f"$ dsec {' '.join(arguments)}")
    _run([sys.executable, "-m", "dsec.cli.main", *arguments])


def _run(
    command: list[str], environment: dict[str, str] | None = None, folder: Path | None = None
) -> None:
    done = subprocess.run(command, stdout=sys.stderr, env=environment, cwd=folder, check=False)
    if done.returncode != 0:
        raise StepError(
            f"'{' '.join(command[-4:])}' ended with status {done.returncode}; mend what it names "
            "and run 'dsec demo' again: it goes on from here"
        )


class Tools:
    """The installation of the tool chain in the background; None where all is here already."""

    def __init__(self, process: "subprocess.Popen[bytes] | None", log: Path) -> None:
        self._process = process
        self._log = log

    def wait(self) -> None:
        """Wait for its end, and say now and then how far it is. Raises StepError."""
        if self._process is None:
            note("   all tools are here")
            return
        start = time.monotonic()
        while True:
            try:
                status = self._process.wait(HEARTBEAT_SECONDS)
                break
            except subprocess.TimeoutExpired:
                note(f"   {time.monotonic() - start:.0f} s: {_last_line(self._log)}")
        if status != 0:
            raise StepError(f"the tool chain is not complete; {self._log} says what is missing")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "starting"


@contextmanager
def tools_in_background(*, needed: bool) -> Iterator[Tools]:
    """Start `dsec tools install` first of all; it ends with the block, and can be resumed."""
    from dsec.local import toolchain

    log = state_directory() / "tools.log"
    if not needed or all(toolchain.lookup(tool) for tool in toolchain.TOOLS):
        yield Tools(None, log)
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    note(f"$ dsec tools install    (in the background; {log})")
    with log.open("wb") as stream:
        process = subprocess.Popen(
            # what the user waits for meanwhile comes first; alone, it has the machine to itself
            ["nice", "-n", "10", sys.executable, "-m", "dsec.cli.main", "tools", "install"],
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield Tools(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def pulumi_environment() -> dict[str, str]:
    """Return the variables under which Pulumi works here: tools, a state folder, a passphrase.

    Where the user has chosen a backend or a passphrase, theirs are used.
    """
    from dsec.local import toolchain

    environment = {**os.environ, **toolchain.env()}
    if "PULUMI_BACKEND_URL" not in environment:
        folder = state_directory() / "pulumi"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment["PULUMI_BACKEND_URL"] = f"file://{folder}"
    if not {"PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"} & set(environment):
        file = state_directory() / "pulumi-passphrase"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            file.write_text(secrets.token_hex(16))
        environment["PULUMI_CONFIG_PASSPHRASE_FILE"] = str(file)
    return environment


def pulumi_up() -> None:
    """Bring the platform up on the local cluster and make it the user's context."""
    from dsec.client import Context, context, save
    from dsec.local.images import source_tree

    tree, environment = source_tree(), pulumi_environment()

    def pulumi(*arguments: str) -> None:
        note(f"$ pulumi {' '.join(arguments)}")
        plain = [] if sys.stderr.isatty() else ["--non-interactive"]
        _run(["pulumi", *arguments, *plain], environment, tree)

    with _kept(tree / "stacks" / f"Pulumi.{STACK}.yaml"):
        if _cluster_is_another():
            pulumi("stack", "rm", STACK, "--yes", "--force", "--preserve-config")
        pulumi("stack", "select", "--create", STACK)
        pulumi("up", "--stack", STACK, "--yes", "--skip-preview", *_PACK)
        _remember_cluster()
        found = outputs(environment, tree)
    authority = context.path().with_name("local-ca.pem")
    authority.parent.mkdir(parents=True, exist_ok=True)
    authority.write_text(found["caCertificate"])
    save(
        Context(
            server=found["server"],
            api_key=found["apiKey"],
            ca_file=str(authority),
            project=found["project"],
        )
    )


def _cluster() -> tuple[Path, str]:
    """Return the file that names the cluster of the last `up`, and the name of today's.

    Each cluster is made with keys of its own, so these name it.
    """
    from dsec.local import cluster_state

    made = cluster_state.default_root() / STACK / "cluster.json"
    return state_directory() / "pulumi-cluster", hashlib.sha256(made.read_bytes()).hexdigest()


def _cluster_is_another() -> bool:
    """Say whether Pulumi's state speaks of a cluster that was purged since: it is of no use."""
    note_file, now = _cluster()
    return note_file.exists() and note_file.read_text() != now


def _remember_cluster() -> None:
    note_file, now = _cluster()
    note_file.write_text(now)


@contextmanager
def _kept(file: Path) -> Iterator[None]:
    """Leave a file as it was.

    The engine writes a salt that belongs to this machine's passphrase into a configuration that
    belongs to everyone; without it the next run makes another.
    """
    text = file.read_bytes()
    try:
        yield
    finally:
        if file.read_bytes() != text:
            file.write_bytes(text)


def outputs(environment: dict[str, str], tree: Path) -> dict[str, str]:
    """Return the outputs of the local stack, secrets included. Raises StepError."""
    command = ["pulumi", "stack", "output", "--stack", STACK, "--json", "--show-secrets"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tree, check=False
    )
    if done.returncode != 0:
        raise StepError(f"pulumi gives no outputs: {done.stderr.strip()}")
    found: dict[str, str] = json.loads(done.stdout)
    return found
