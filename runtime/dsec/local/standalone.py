"""`dsec up --standalone` and `dsec down`: dsec on this machine, without Kubernetes.

`up` makes the sandbox base (once), starts the one process under the supervisor, waits until its
node takes sandboxes and tells the client where it is. `down` ends process and sandboxes, and counts
what is left.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2

from dsec.client import context
from dsec.client.context import Context
from dsec.local import cleanup, images, standalone_state
from dsec.local.cleanup import Leftovers
from dsec.local.images_context import code_digest, sandbox_root
from dsec.local.initbin import ensure_init
from dsec.local.processes import LocalError, Part, Probe, end_process
from dsec.local.standalone_state import PROJECT, SERVE_LOCK, StandaloneState
from dsec.local.supervisor import ensure_supervisor, supervisor_identity, wait_ready

READY_SECONDS = 60.0
PART = "dsec"

Report = Callable[[str, str], None]


def up(directory: Path, report: Report, port: int = 0) -> StandaloneState:
    """Start it, or bring what is there to what it should be. Raises LocalError, InitBuildError."""
    state, base = prepare(directory, report, port)
    with state.run.lock("command", "another `dsec up` or `dsec down` is at work; wait for it"):
        if state.run.running(PART) is None:
            _refuse_foreground(state)
        state.run.write_plan([_part(state, base)])
        ensure_supervisor(state.run)
        wait_ready(state.run, [PART], READY_SECONDS, report)
        report("node", "running")
        _wait_node(state)
        report("node", "done")
        save_context(state)
    return state


def prepare(directory: Path, report: Report, port: int = 0) -> tuple[StandaloneState, str]:
    """Make what it needs and return its state and the image of sandboxes that name none."""
    need_root()
    with ThreadPoolExecutor(1) as beside:
        # each is one process's work for the most part; together they use both cores
        report("dsec-init", "running")
        init = beside.submit(ensure_init)
        report("sandbox base", "running")
        tar = sandbox_root(images.source_tree(), images.cache_directory(), images.run_tool)
        report("sandbox base", "done")
        init.result()
        report("dsec-init", "done")
    return standalone_state.ensure(directory, port), f"rootfs:{tar}"


def down(directory: Path, report: Report, *, purge: bool = False) -> Leftovers:
    """End the process and every sandbox. Always finishes; returns what could not be removed.

    Raises LocalError where there is none, or another command works on it.
    """
    need_root()
    state = standalone_state.load(directory)
    if state is None:
        raise LocalError(f"no standalone dsec in {directory}: nothing to stop")
    with state.run.lock("command", "another `dsec up` or `dsec down` is at work; wait for it"):
        report("dsec", "running")
        supervisor = supervisor_identity(state.run)
        if supervisor is not None:
            end_process(supervisor, grace=5.0)
        state.run.stop(PART)
        _refuse_foreground(state)
        report("dsec", "done")
        report("sandboxes", "running")
        left = cleanup.remove(state.footprint)
        report("sandboxes", "done")
        (state.run.root / "status.json").unlink(missing_ok=True)
    known = context.load(environ={})
    if known.server == state.server:
        context.path().unlink(missing_ok=True)
    if purge and left.total() == 0:
        shutil.rmtree(directory)
    return left


def save_context(state: StandaloneState) -> Path:
    """Make it the server of this user's client; return the file."""
    return context.save(Context(server=state.server, api_key=state.api_key, project=PROJECT))


def need_root() -> None:
    """Refuse to go on without root. Raises LocalError."""
    if os.geteuid() != 0:
        raise LocalError("sandboxes need root: namespaces, mounts and control groups; use sudo")


def _refuse_foreground(state: StandaloneState) -> None:
    """Raise LocalError while a process that the supervisor does not know serves the directory."""
    with state.run.lock(SERVE_LOCK, "it runs in the foreground of another terminal; Ctrl-C there"):
        pass


def _part(state: StandaloneState, base: str) -> Part:
    command = (sys.executable, "-m", "dsec.local.standalone_server", str(state.directory), base)
    return Part(
        name=PART,
        argv=command,
        env={"PYTHONUNBUFFERED": "1"},
        probe=Probe(f"{state.server}/readyz"),
        inputs=f"{state.port} {code_digest(images.source_tree())}",
    )


def _wait_node(state: StandaloneState) -> None:
    """Wait until the node takes sandboxes. Raises LocalError."""
    deadline = time.monotonic() + READY_SECONDS
    headers = {"Authorization": f"Bearer {state.api_key}"}
    with httpx2.Client(base_url=state.server, headers=headers, trust_env=False) as client:
        while True:
            try:
                answer = client.get("/v1/nodes")
                items = answer.json()["items"] if answer.is_success else []
            except httpx2.TransportError:
                items = []
            if any(node["ageSeconds"] is not None for node in items):
                return
            if time.monotonic() > deadline:
                log = state.run.logs / f"{PART}.log"
                raise LocalError(f"the node does not register; see {log}")
            time.sleep(0.1)
