"""`dsec local up` and `down`: a real Kubernetes on this machine, in one directory and one network.

`up` converges: it may be repeated, interrupted and repeated, and changes only what differs. The
parts are run by the supervisor; this module prepares what they read, waits for them and checks
that the node takes pods. `down` removes everything outside the directory and counts what is left.
"""

import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from dsec.local import cleanup, cluster_config, cluster_plan, cluster_state, images
from dsec.local.cleanup import Leftovers
from dsec.local.cluster_state import ClusterState
from dsec.local.network import ensure_network
from dsec.local.processes import (
    LocalError,
    boot_id,
    end_process,
    read_json,
    write_atomically,
)
from dsec.local.supervisor import ensure_supervisor, supervisor_identity, wait_ready
from dsec.local.toolchain import ensure as ensure_tools

READY_SECONDS = 180.0
"""How long `up` waits for all parts; on an idle machine they take a tenth of it."""

LOCK_SECONDS = 300.0
"""How long a command waits for another one on the same cluster; `up` may be building images."""

_DIRECTORIES = ("etcd", "registry", "s3", "s3-tmp", "kubelet", "pod-logs", "cni", "containerd")
_STOP_FIRST = ("kube-proxy", "kubelet")
_CNI_PLACES = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")

Report = Callable[[str, str], None]
"""Called with a step and its state: "running", "done", or a part's state."""


def up(
    name: str,
    directory: Path,
    report: Report,
    image_names: tuple[str, ...] = images.CLUSTER_IMAGES,
    base: str = images.BUILT_BASE,
) -> ClusterState:
    """Bring the cluster up and return its state. Raises LocalError, ToolchainError."""
    _need_root()
    state = cluster_state.ensure(name, directory)
    with state.run.lock("command", f"another `dsec local` command works on {name}", LOCK_SECONDS):
        report("programs", "running")
        programs = find_programs()
        cni = _cni_programs()
        report("programs", "done")
        report("network", "running")
        _prepare(state)
        report("network", "done")
        keys = cluster_config.ensure_keys(state)
        pause = f"{state.registry}/{images.reference('pause')}"
        files = cluster_config.render(state, keys, pause, cni)
        for path, text in files.items():
            _write_if_changed(path, text)
        parts = cluster_plan.plan(state, keys, programs)
        state.run.write_plan(parts)
        ensure_supervisor(state.run, state.network.enter())
        wait_ready(state.run, ["registry"], READY_SECONDS, report)
        built = images.ensure_images(state.registry, image_names, report, base)
        write_atomically(state.directory / "images.json", json.dumps(built, indent=1))
        wait_ready(state.run, [part.name for part in parts], READY_SECONDS, report)
        report("bucket", "running")
        ensure_bucket(state)
        report("bucket", "done")
        report("node", "running")
        wait_node(state)
        report("node", "done")
    return state


def down(name: str, directory: Path, report: Report, *, purge: bool = False) -> Leftovers:
    """Stop the cluster and remove what is outside its directory; with purge the directory too.

    Always finishes; returns what could not be removed (normally nothing). Raises LocalError when
    no cluster has that name, or another command works on it.
    """
    _need_root()
    state = cluster_state.load(name, directory)
    if state is None:
        raise LocalError(f"no local cluster {name!r} in {directory}: nothing to stop")
    with state.run.lock("command", f"another `dsec local` command works on {name}", LOCK_SECONDS):
        report("parts", "running")
        supervisor = supervisor_identity(state.run)
        if supervisor is not None:
            end_process(supervisor, grace=5.0)
        for first in _STOP_FIRST:
            state.run.stop(first)
        report("parts", "done")
        report("pods", "running")
        cleanup.kill_members(state.footprint)
        _wait_shims(state)
        report("pods", "done")
        report("control plane", "running")
        for part in reversed(state.run.plan()):
            state.run.stop(part.name, part.stop_seconds)
        report("control plane", "done")
        left = cleanup.remove(state.footprint)
        _forget_boot(state)
    if purge and left.total() == 0:
        shutil.rmtree(directory)
    return left


def status(name: str, directory: Path) -> dict[str, Any]:
    """Return what runs: name, server, kubeconfig, node readiness and every part's state."""
    state = cluster_state.load(name, directory)
    if state is None:
        return {"name": name, "state": "absent", "parts": []}
    supervisor = supervisor_identity(state.run)
    told = (read_json(state.run.root / "status.json") or {"parts": {}})["parts"]
    parts = []
    for part in state.run.plan():
        identity = state.run.running(part.name)
        said = told.get(part.name, {})
        current = said.get("state", "unknown") if identity else "stopped"
        restarts = said.get("restarts", 0)
        pid = identity.pid if identity else None
        parts.append({"name": part.name, "state": current, "pid": pid, "restarts": restarts})
    states = {p["state"] for p in parts}
    whole = "up" if states == {"ready"} else "down" if states <= {"stopped"} else "partly up"
    node = None
    if whole != "down":
        node = node_ready(state)
    return {
        "name": name,
        "state": whole,
        "supervisor": supervisor.pid if supervisor else None,
        "nodeReady": node,
        "server": state.server,
        "registry": state.registry,
        "s3": state.s3_url,
        "kubeconfig": str(state.kubeconfig),
        "images": read_json(state.directory / "images.json") or {},
        "parts": parts,
    }


def find_programs() -> dict[str, Path]:
    """Return every program of the plan by name. Raises LocalError, ToolchainError."""
    found = dict(ensure_tools([*cluster_plan.TOOLS, "kube-proxy", "kubectl"]))
    missing = []
    for program in cluster_plan.PROGRAMS:
        if program in found:
            continue
        path = shutil.which(program) or _beside_python(program)
        if path is None:
            missing.append(program)
        else:
            found[program] = Path(path)
    if missing:
        raise LocalError(
            f"not installed: {', '.join(missing)}; `dsec doctor` says how to get each of them"
        )
    return found


def node_ready(state: ClusterState) -> bool:
    """Return whether the kubelet that runs now has reported Ready.

    False too when the API server does not answer. A report of an earlier kubelet says nothing.
    """
    note = state.run.root / "parts" / "kubelet.json"
    if not note.exists():
        return False
    begun = datetime.fromtimestamp(int(note.stat().st_mtime), UTC)
    try:
        with api(state) as client:
            answer = client.get(f"/api/v1/nodes/{state.node_name}")
    except httpx2.HTTPError:
        return False
    conditions = answer.json().get("status", {}).get("conditions", []) if answer.is_success else []
    return any(
        c["type"] == "Ready"
        and c["status"] == "True"
        and datetime.fromisoformat(c["lastHeartbeatTime"]) >= begun
        for c in conditions
    )


def wait_node(state: ClusterState) -> None:
    """Wait until the node takes pods. Raises LocalError with kubelet's log as the next place."""
    deadline = time.monotonic() + READY_SECONDS
    while not node_ready(state):
        if time.monotonic() > deadline:
            raise LocalError(
                f"node {state.node_name} is not Ready after {READY_SECONDS:.0f} s; see "
                f"{state.run.logs / 'kubelet.log'}"
            )
        time.sleep(0.3)


def api(state: ClusterState) -> httpx2.Client:
    """Return a client of the API server with the administrator's certificate."""
    context = ssl.create_default_context(cafile=str(state.pki / "cluster-ca.crt"))
    context.load_cert_chain(state.pki / "admin.crt", state.pki / "admin.key")
    return httpx2.Client(base_url=state.server, verify=context, timeout=10.0, trust_env=False)


def bucket_client(state: ClusterState) -> Any:
    """Return boto3's S3 client for the cluster's object store."""
    import boto3

    make: Callable[..., Any] = boto3.client  # boto3 states no types
    return make(
        "s3",
        endpoint_url=state.s3_url,
        aws_access_key_id=state.s3_access_key,
        aws_secret_access_key=state.s3_secret_key,
        region_name="local",
    )


def ensure_bucket(state: ClusterState) -> None:
    """Make the bucket of the platform and see an object through it.

    After a restart the server answers before it has found its volumes again. Raises LocalError.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    client = bucket_client(state)
    deadline = time.monotonic() + 60.0
    while True:
        try:
            existing = [b["Name"] for b in client.list_buckets()["Buckets"]]
            if cluster_state.BUCKET not in existing:
                client.create_bucket(Bucket=cluster_state.BUCKET)
            place = {"Bucket": cluster_state.BUCKET, "Key": "probe-of-local-up"}
            client.put_object(**place, Body=b"ready")
            client.get_object(**place)["Body"].read()
            client.delete_object(**place)
        except (BotoCoreError, ClientError) as e:
            if time.monotonic() > deadline:
                raise LocalError(f"the S3 server keeps no object: {e}") from e
            time.sleep(0.5)
        else:
            return


def _prepare(state: ClusterState) -> None:
    note = read_json(state.run.root / "parts" / "containerd.json")
    if note is not None and note["boot"] != boot_id():
        # the machine was restarted without a `down`
        _forget_boot(state)
    cleanup.prepare_cgroup(state.cgroup)
    ensure_network(state.network)
    for name in _DIRECTORIES:
        (state.directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    agent = state.agent_directory
    agent.mkdir(mode=0o700, exist_ok=True)
    if str(agent) not in cleanup.mounts(state.directory):
        # mounts that the agent makes in its pod must reach the node, and stay when the pod goes
        subprocess.run(["mount", "--bind", str(agent), str(agent)], check=True)
    subprocess.run(["mount", "--make-rshared", str(agent)], check=True)


def _wait_shims(state: ClusterState) -> None:
    """Give containerd a moment to remove the shims of pods that just ended."""
    if state.run.running("containerd") is None:
        return
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        names = [e.split(" ", 1)[1] for e in cleanup.count(state.footprint).processes]
        if not any(name.startswith("containerd-shim") for name in names):
            return
        time.sleep(0.2)


def _forget_boot(state: ClusterState) -> None:
    """Drop what is only true while the parts run, as a reboot would."""
    for path in ("containerd/run", "containerd/runc", "cni"):
        shutil.rmtree(state.directory / path, ignore_errors=True)
    (state.run.root / "status.json").unlink(missing_ok=True)


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text)


def _beside_python(program: str) -> str | None:
    """Return a program that a Python package installed beside this interpreter."""
    import sys

    path = Path(sys.executable).parent / program
    return str(path) if path.exists() else None


def _cni_programs() -> str:
    for place in _CNI_PLACES:
        if Path(place, "bridge").exists():
            return place
    raise LocalError(
        "no CNI plugins in " + ", ".join(_CNI_PLACES) + " (Debian: containernetworking-plugins)"
    )


def _need_root() -> None:
    if os.geteuid() != 0:
        raise LocalError("a local cluster needs root: namespaces, mounts and cgroups; use sudo")
