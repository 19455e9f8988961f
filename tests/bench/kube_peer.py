"""The real kube-scheduler beside a throw-away API server: nodes, pods, and its own clock readings.

The scheduler runs with the settings that its documentation gives for throughput: a client limit
that never throttles, its default parallelism and its default share of nodes to score. Nodes are
records only, so that nothing but scheduling costs time.
"""

import asyncio
import json
import re
import signal
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml
from cluster import ApiServer
from dsec.local.toolchain import lookup
from dsec.local.toolchain_table import TOOLS
from ports import free_ports

POINTS = ("PreFilter", "Filter", "PreScore", "Score")
"""The extension points between a pod taken from the queue and a node chosen for it."""
PODS = "/api/v1/namespaces/default/pods"
BOUND_SECONDS = 300
NEVER_THROTTLED = 10_000
PARALLEL = 32
"""Requests at once, to the API server; more only queue there."""
ADMISSION = "ServiceAccount,TaintNodesByCondition,Priority,LimitRanger"
"""Plugins that need controllers which do not run here, or would taint nodes nobody marks ready."""

_SAMPLE = re.compile(
    r"scheduler_framework_extension_point_duration_seconds_sum\{(?P<labels>[^}]*)\} (?P<value>\S+)"
)


class KubePeer:
    """A running pair; pods live in namespace `default`."""

    def __init__(
        self, server: ApiServer, api: httpx2.AsyncClient, scheduler: httpx2.AsyncClient
    ) -> None:
        self.server = server
        self._program = server.processes[-1]
        self._api = api
        self._scheduler = scheduler

    async def ready(self) -> None:
        """Wait until the scheduler answers. Raises TimeoutError after a minute."""
        async with asyncio.timeout(60):
            while True:
                try:
                    if (await self._scheduler.get("/readyz")).status_code == httpx2.codes.OK:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(0.2)

    async def add_nodes(self, nodes: Iterable[dict[str, Any]]) -> None:
        """Create Node records and wait until the scheduler's cache can have seen them."""
        await self._each([self._post("/api/v1/nodes", node) for node in nodes])
        await asyncio.sleep(2)

    async def create(self, pods: Sequence[dict[str, Any]]) -> float:
        """Create pods and wait until each is bound; return the seconds from first to last.

        Raises TimeoutError where some are not bound within BOUND_SECONDS.
        """
        wanted = {pod["metadata"]["name"] for pod in pods}
        listed = await self._api.get(PODS, params={"limit": 1})
        since = listed.json()["metadata"]["resourceVersion"]
        async with asyncio.timeout(BOUND_SECONDS):
            start = time.perf_counter()
            watcher = asyncio.create_task(self._bound(wanted, since))
            await self._each([self._post(PODS, pod) for pod in pods])
            await watcher
            return time.perf_counter() - start

    async def schedule(self, pods: Sequence[dict[str, Any]]) -> float:
        """Have pods scheduled; return the seconds in the extension points.

        The scheduler stands still until all pods are there: making them must not take its time.
        """
        wanted = {pod["metadata"]["name"] for pod in pods}
        listed = await self._api.get(PODS, params={"limit": 1})
        before = await self._extension_seconds()
        self._program.send_signal(signal.SIGSTOP)
        try:
            await self._each([self._post(PODS, pod) for pod in pods])
        finally:
            self._program.send_signal(signal.SIGCONT)
        async with asyncio.timeout(BOUND_SECONDS):
            await self._bound(wanted, listed.json()["metadata"]["resourceVersion"])
        return await self._extension_seconds() - before

    async def fill(self, pods: list[dict[str, Any]], quiet_seconds: float) -> dict[str, str]:
        """Create pods, wait until nothing more is bound for a while; return name → node."""
        await self._each([self._post(PODS, pod) for pod in pods])
        known, since = await self.placed(), time.perf_counter()
        while len(known) < len(pods) and time.perf_counter() - since < quiet_seconds:
            await asyncio.sleep(1)
            now = await self.placed()
            if len(now) > len(known):
                known, since = now, time.perf_counter()
        return known

    async def placed(self) -> dict[str, str]:
        """Return pod → node of every bound pod."""
        answer = await self._api.get(f"{PODS}?resourceVersion=0")
        answer.raise_for_status()
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in answer.json()["items"]
            if pod["spec"].get("nodeName")
        }

    async def clear(self) -> None:
        """Delete every pod at once and wait until none is left."""
        await self._api.delete(f"{PODS}?gracePeriodSeconds=0", timeout=300)
        for name in await self.placed():
            await self._api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
        await asyncio.sleep(2)

    async def _extension_seconds(self) -> float:
        """Return the time spent so far in PreFilter, Filter, PreScore and Score, in seconds."""
        text = (await self._scheduler.get("/metrics")).text
        total = 0.0
        for sample in _SAMPLE.finditer(text):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
            if labels.get("extension_point") in POINTS:
                total += float(sample["value"])
        return total

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        answer = await self._api.post(path, json=body)
        answer.raise_for_status()

    async def _each(self, posts: list[Any]) -> None:
        gate = asyncio.Semaphore(PARALLEL)

        async def one(post: Any) -> None:
            async with gate:
                await post

        await asyncio.gather(*(one(post) for post in posts))

    async def _bound(self, wanted: set[str], since: str) -> None:
        """Wait for all of these by a watch, which tells of each pod once, when it gets a node."""
        asked = {"watch": "true", "fieldSelector": "spec.nodeName!=", "resourceVersion": since}
        left = set(wanted)
        async with self._api.stream("GET", PODS, params=asked) as events:
            async for line in events.aiter_lines():
                left.discard(json.loads(line)["object"]["metadata"]["name"])
                if not left:
                    return


def node(
    name: str,
    *,
    cpus: int,
    memory_gib: int,
    gpus: int,
    labels: dict[str, str],
    taints: Sequence[str] = (),
) -> Any:
    """Return a Node record that is ready and has room for any number of pods.

    Taints are `key=value`.
    """
    room = {
        "cpu": str(cpus),
        "memory": f"{memory_gib}Gi",
        "pods": "5000",
        "nvidia.com/gpu": str(gpus),
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {
            "taints": [
                {"key": key, "value": value, "effect": "NoSchedule"}
                for key, _, value in (taint.partition("=") for taint in taints)
            ]
        },
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def pod(
    name: str,
    *,
    cpu_milli: int,
    memory_bytes: int,
    gpus: int,
    selector: dict[str, str],
    tolerations: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a pod with limits equal to requests. Tolerations are keys of taints."""
    asked = {"cpu": f"{cpu_milli}m", "memory": str(memory_bytes)}
    if gpus:
        asked["nvidia.com/gpu"] = str(gpus)
    container = {"name": "c", "image": "none", "resources": {"requests": asked, "limits": asked}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "nodeSelector": selector,
            "tolerations": [{"key": key, "operator": "Exists"} for key in tolerations],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        },
    }


@asynccontextmanager
async def kube_peer(folder: Path) -> AsyncIterator[KubePeer]:
    """Run etcd, API server and scheduler in a folder; end them afterwards."""
    programs = {tool.name: lookup(tool) for tool in TOOLS}
    scheduler = programs["kube-scheduler"]
    if scheduler is None:
        raise FileNotFoundError("kube-scheduler: run dsec tools install")
    server = ApiServer.start(
        folder,
        flags=(
            f"--disable-admission-plugins={ADMISSION}",
            f"--max-requests-inflight={NEVER_THROTTLED}",
            f"--max-mutating-requests-inflight={NEVER_THROTTLED}",
            "--enable-priority-and-fairness=false",
        ),
    )
    try:
        port = free_ports(1)[0]
        (folder / "scheduler.yaml").write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {
                        "kubeconfig": str(server.kubeconfig),
                        "qps": NEVER_THROTTLED,
                        "burst": NEVER_THROTTLED,
                    },
                    "leaderElection": {"leaderElect": False},
                }
            )
        )
        server.run(
            scheduler.program,
            f"--config={folder / 'scheduler.yaml'}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={folder / 'scheduler-certs'}",
            f"--authentication-kubeconfig={server.kubeconfig}",
            f"--authorization-kubeconfig={server.kubeconfig}",
            "--authorization-always-allow-paths=/metrics,/readyz,/healthz",
        )
        context = ssl.create_default_context(cafile=server.folder / "certs" / "apiserver.crt")
        own = ssl.create_default_context()
        own.check_hostname = False
        own.verify_mode = ssl.CERT_NONE  # the scheduler signs its own; only figures come from it
        async with (
            httpx2.AsyncClient(
                base_url=server.url,
                verify=context,
                headers={"Authorization": f"Bearer {server.token}"},
                timeout=300,
                trust_env=False,
            ) as api,
            httpx2.AsyncClient(
                base_url=f"https://127.0.0.1:{port}", verify=own, trust_env=False
            ) as own_clock,
        ):
            peer = KubePeer(server, api, own_clock)
            await peer.ready()
            yield peer
    finally:
        server.stop()
