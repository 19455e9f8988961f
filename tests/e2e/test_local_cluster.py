"""The local cluster on the real machine: it works, it converges, it leaves nothing."""

import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from dsec.local import cleanup, cluster, existing_cluster
from dsec.local.cluster_state import BUCKET, ClusterState, default_root
from dsec.local.processes import LocalError, RunDirectory
from dsec.local.supervisor import supervisor_identity

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.timeout(300)]

NAME = "life"
IMAGES = ("pause", "sandbox-base")


def quiet(step: str, state: str) -> None:
    """Take a progress report and show nothing."""


def machine(name: str = NAME, place: str = f"/local/{NAME}/") -> dict[str, list[str]]:
    """Count what of a cluster is on the machine, without dsec's own counting."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    links = json.loads(_output("ip", "-j", "link"))
    groups = _output("find", "/sys/fs/cgroup", "-maxdepth", "2", "-name", f"dsec-*{name}")
    commands = [
        path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists()
    ]
    return {
        "mounts": [line for line in mounts if place in line],
        "links": [link["ifname"] for link in links if link["ifname"] == f"dsec-{name}"],
        "cgroups": groups.split(),
        "processes": [c for c in commands if place in c],
        "rules": [line for line in _output("nft", "list", "ruleset").splitlines() if line.strip()],
        "forwarding": [_output("sysctl", "-n", "net.ipv4.ip_forward")],
    }


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def before() -> dict[str, list[str]]:
    """Return what was on the machine before any test here."""
    return machine()


@pytest.fixture(scope="module")
def state(before: dict[str, list[str]]) -> Iterator[ClusterState]:
    """Return a running cluster of this module's own; takes it down and counts at the end."""
    assert before["mounts"] == []
    directory = default_root() / NAME
    yield cluster.up(NAME, directory, quiet, IMAGES)
    left = cluster.down(NAME, directory, quiet, purge=True)
    assert left.total() == 0, left.sentence()
    assert machine() == before
    assert not directory.exists()


@pytest.fixture(scope="module")
def web(state: ClusterState) -> str:
    """Run a pod that serves HTTP behind a Service; return the Service's address."""
    pinned = json.loads((state.directory / "images.json").read_text())["sandbox-base"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "containers": [
                {
                    "name": "web",
                    "image": pinned,
                    "command": ["python3", "-m", "http.server", "8000"],
                    "readinessProbe": {"httpGet": {"port": 8000}, "periodSeconds": 1},
                }
            ]
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    with cluster.api(state) as client:
        # the default account appears a moment after the namespace
        eventually(
            lambda: client.get("/api/v1/namespaces/default/serviceaccounts/default").is_success
        )
        client.post("/api/v1/namespaces/default/pods", json=pod).raise_for_status()
        made = client.post("/api/v1/namespaces/default/services", json=service)
        made.raise_for_status()
        eventually(lambda: _ready(client))
        return str(made.json()["spec"]["clusterIP"])


def _ready(client: httpx2.Client) -> bool:
    status = client.get("/api/v1/namespaces/default/pods/web").json().get("status", {})
    conditions = status.get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _served(address: str) -> bool:
    try:
        return httpx2.get(f"http://{address}/", trust_env=False, timeout=2.0).is_success
    except httpx2.HTTPError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_service_is_reached_from_host_pod_and_api_server(state: ClusterState, web: str) -> None:
    """Webhooks, agents and people call Services: kube-proxy's rules serve all three."""
    eventually(lambda: _served(web))
    fetch = (
        f"import urllib.request; print(urllib.request.urlopen('http://{web}/', timeout=3).status)"
    )
    inside = [*state.network.enter(), sys.executable, "-c", fetch]
    assert _output(*inside).strip() == "200"
    assert _exec(state, "python3", "-c", fetch).strip() == "200"


def test_a_pod_finds_a_service_by_name_and_nothing_outside(state: ClusterState, web: str) -> None:
    """The cluster's DNS knows Services; a name outside fails at once instead of hanging."""
    script = (
        "import socket, time\n"
        "for name in ('web.default', 'web.default.svc.cluster.local'):\n"
        "    print(socket.gethostbyname(name))\n"
        "begun = time.monotonic()\n"
        "try:\n"
        "    socket.gethostbyname('outside.example')\n"
        "except socket.gaierror:\n"
        "    print(time.monotonic() - begun < 3)"
    )
    assert _exec(state, "python3", "-c", script).split() == [web, web, "True"]


def test_an_existing_cluster_is_looked_at_through_its_kubeconfig(state: ClusterState) -> None:
    """`--kubeconfig` checks version and nodes, and changes nothing."""
    told = existing_cluster.check(state.kubeconfig, "")
    assert told["ready"]
    assert told["nodesReady"] == 1
    assert not told["dsec"]
    with pytest.raises(LocalError, match="context nowhere"):
        existing_cluster.check(state.kubeconfig, "nowhere")


def _exec(state: ClusterState, *command: str) -> str:
    kubectl = cluster.find_programs()["kubectl"]
    options = [f"--kubeconfig={state.kubeconfig}", "exec", "web", "--", *command]
    return _output(str(kubectl), *options)


def test_a_pod_reaches_s3_but_not_the_servers_behind_it(state: ClusterState, web: str) -> None:
    """Only the port that asks for a key is open; master, filer and gRPC ask nobody anything."""
    assert web
    script = (
        "import socket\n"
        "def open_(port):\n"
        "    with socket.socket() as s:\n"
        "        s.settimeout(0.5)\n"
        f"        return s.connect_ex(('{state.layout.storage}', port)) == 0\n"
        "print([p for p in (8333, 18333, 8888, 9333, 8080) if open_(p)])"
    )
    assert _exec(state, "python3", "-c", script).strip() == "[8333]"


def test_the_object_store_has_its_sockets_to_itself(state: ClusterState) -> None:
    """Its servers meet at fixed names in /tmp, which therefore is one of each cluster's own."""
    sockets = {path.name for path in (state.directory / "s3-tmp").glob("*.sock")}
    assert {"seaweedfs-master-grpc-19333.sock", "seaweedfs-filer-grpc-18888.sock"} <= sockets


def test_nothing_listens_beyond_loopback_and_the_bridge(state: ClusterState, web: str) -> None:
    """The host itself gets no listener; inside, each has loopback or an address of the cluster."""
    assert web
    allowed = ipaddress.ip_network(state.layout.cluster)
    ours = {str(pid) for pid in cleanup.processes(state.footprint)}
    for line in _output("ss", "-Hltnup").splitlines():
        assert not any(f"pid={pid}," in line for pid in ours), line
    for prefix in (state.network.enter(), state.network.enter_storage()):
        lines = _output(*prefix, "ss", "-Hltun").splitlines()
        assert lines
        for line in lines:
            address = ipaddress.ip_address(line.split()[4].rpartition(":")[0].strip("[]"))
            assert address.is_loopback or address in allowed, line


def test_the_host_gets_no_rule_and_keeps_its_settings(
    state: ClusterState, before: dict[str, list[str]]
) -> None:
    """Rules and forwarding live in the cluster's own namespace."""
    now = machine()
    assert now["rules"] == before["rules"]
    assert now["forwarding"] == before["forwarding"]
    assert _output(*state.network.enter(), "nft", "list", "tables").count("kube-proxy") > 0


def test_up_again_changes_nothing_and_is_quick(state: ClusterState) -> None:
    """A repeated `up` leaves every process as it is."""
    before = _identities(state)
    started = time.monotonic()
    cluster.up(NAME, state.directory, quiet, IMAGES)
    assert time.monotonic() - started < 60
    assert _identities(state) == before


@pytest.mark.parametrize("part", ["etcd", "containerd", "kubelet", "kube-apiserver"])
def test_a_killed_part_comes_back_and_pods_do_not_notice(
    state: ClusterState, web: str, part: str
) -> None:
    """The supervisor starts it again; the pod's process is the one of before."""
    first, pods = state.run.running(part), _pod_processes(state)
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: state.run.running(part) not in {None, first})
    eventually(lambda: cluster.node_ready(state))
    eventually(lambda: _served(web))
    assert _pod_processes(state) == pods


def _pod_processes(state: ClusterState) -> set[int]:
    mounts = Path("/sys/fs/cgroup")
    group = mounts / "memory" if (mounts / "memory").exists() else mounts
    files = (group / state.cgroup.lstrip("/")).rglob("cgroup.procs")
    return {int(pid) for file in files for pid in file.read_text().split()}


def test_an_interrupted_up_converges(state: ClusterState) -> None:
    """Kill -9 of supervisor and of `up` in the middle; the next `up` adopts what runs."""
    before = _identities(state)
    supervisor = supervisor_identity(state.run)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    command = [sys.executable, "-m", "dsec.cli.main", "local", "up", f"--name={NAME}"]
    up = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.0)
    up.kill()
    up.wait()
    cluster.up(NAME, state.directory, quiet, IMAGES)
    assert _identities(state) == before
    assert cluster.status(NAME, state.directory)["state"] == "up"


def _identities(state: ClusterState) -> dict[str, object]:
    return {part.name: state.run.running(part.name) for part in RunDirectory(state.run.root).plan()}


def test_down_and_up_go_on_with_the_data_within_a_minute(state: ClusterState, web: str) -> None:
    """Records and objects outlive `down`; pods start again; all of it takes less than a minute."""
    store = cluster.bucket_client(state)
    store.put_object(Bucket=BUCKET, Key="kept", Body=b"bytes")
    left = cluster.down(NAME, state.directory, quiet)
    assert left.total() == 0, left.sentence()
    started = time.monotonic()
    cluster.up(NAME, state.directory, quiet, IMAGES)
    assert time.monotonic() - started < 60
    assert store.get_object(Bucket=BUCKET, Key="kept")["Body"].read() == b"bytes"
    eventually(lambda: _served(web))


def test_an_up_killed_at_birth_leaves_nothing_after_down(before: dict[str, list[str]]) -> None:
    """Killed at any moment of its first second, `up` leaves only what `down` finds."""
    directory = default_root() / NAME / "birth"
    clean = machine("birth", f"/local/{NAME}/birth")
    for delay in (0.6, 1.2):
        command = [sys.executable, "-m", "dsec.cli.main", "local", "up", "--name=birth"]
        command += [f"--state-dir={directory}"]
        up = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        up.kill()
        up.wait()
        if (directory / "cluster.json").exists():
            left = cluster.down("birth", directory, quiet, purge=True)
            assert left.total() == 0, left.sentence()
        # also where it died too early to say what it began
        assert machine("birth", f"/local/{NAME}/birth") == clean
    assert before["mounts"] == []
