"""What chaos tests ask of a running control plane: agents, bind log and journal, read directly.

Nothing here goes through the gateway: what it says is what is being tested.
"""

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2
import pytest
from control_plane import ADMIN, Plane, sandbox
from dsec.agent.simnodes import read_report
from dsec.api.sandbox import Resources, SandboxStatus
from dsec.api.wire import JournalRow, KeyedAnswer, KeyedCreate
from dsec.client import Client
from dsec.client.context import Context
from dsec.journal.bindings import Bindings
from dsec.journal.bindlog import BindLogReader
from dsec.journal.history import Question, read
from dsec.local import cleanup
from dsec.local.cleanup import Footprint
from dsec.local.images_context import sandbox_root
from dsec.world.agents import AgentClient
from dsec.world.http import NetworkTls
from dsec.world.s3 import S3Objects
from dsec.world.tls import client_context

BATCH = 50
T = TypeVar("T")


def many(small: int, full: int) -> list[Any]:
    """Return the sizes of a scenario: a small one always, the full one in the soak."""
    return [small, pytest.param(full, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]


def say(text: str) -> None:
    """Print a figure of a run; pytest shows it with -s."""
    print(f"\n   {text}", flush=True)  # noqa: T201 - figures are what a chaos run is for


def client_of(plane: Plane) -> Client:
    """Return a client of the SDK, as users have it."""
    return Client(Context(plane.server, ADMIN, str(plane.ca), "lab"))


def each_node(plane: Plane, act: Callable[[AgentClient], Awaitable[T]]) -> dict[str, T]:
    """Do something with every simulated node's agent, as a controller; return by node."""

    async def run() -> dict[str, T]:
        secrets = plane.folder / "etc-controller/secrets/tls"
        context = client_context(plane.ca)
        context.load_cert_chain(secrets / "tls.crt", secrets / "tls.key")
        network = NetworkTls(context)
        found = {}
        for node in read_report(plane.folder / "nodes"):
            client = AgentClient(network, node.endpoint)
            try:
                found[node.name] = await act(client)
            finally:
                await client.close()
        return found

    return asyncio.run(run())


def copies(plane: Plane) -> dict[str, list[str]]:
    """Return, by sandbox, the simulated nodes on which a copy lives, as their agents say."""

    async def ask(client: AgentClient) -> list[SandboxStatus]:
        return (await client.state(-1, "", 0.0)).sandboxes

    found: dict[str, list[str]] = {}
    for node, statuses in each_node(plane, ask).items():
        for status in statuses:
            if status.end is None:
                found.setdefault(status.identity.id, []).append(node)
    return found


def bind_log(plane: Plane) -> Bindings:
    """Return what the bind log says now."""

    async def run() -> Bindings:
        objects = S3Objects(plane.s3)
        try:
            reader = BindLogReader(objects)
            await reader.open()
        finally:
            objects.close()
        return reader.state

    return asyncio.run(run())


def journal(plane: Plane, wanted: set[str]) -> list[JournalRow]:
    """Return the journal's rows of these sandboxes, by node, boot and number."""

    async def run() -> list[JournalRow]:
        objects = S3Objects(plane.s3)
        try:
            return [row async for row in read(objects, Question()) if row.sandbox in wanted]
        finally:
            objects.close()

    return asyncio.run(run())


class Creators:
    """Two clients that create by key, in batches, and repeat each until it has its answer."""

    def __init__(self, plane: Plane, prefix: str, count: int, **changes: Any) -> None:
        self._plane = plane
        self._changes = changes
        keys = [f"{prefix}-{n}" for n in range(count)]
        self._batches = iter([keys[i : i + BATCH] for i in range(0, count, BATCH)])
        self._lock = threading.Lock()
        self.found: dict[str, str] = {}
        self.repeats = 0
        self._threads = [threading.Thread(target=self._work) for _ in range(2)]
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the last answer; raises what a client failed with."""
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            with self._plane.client() as client:
                while batch := self._next():
                    while not self._ask(client, batch):
                        self.repeats += 1
                        threading.Event().wait(0.3)
        except BaseException as failure:  # noqa: BLE001 - a thread's failure is the test's
            self._failure = failure

    def _next(self) -> list[str]:
        with self._lock:
            return next(self._batches, [])

    def _ask(self, client: httpx2.Client, batch: list[str]) -> bool:
        body = {"creates": [sandbox(key=key, **self._changes) for key in batch]}
        try:
            response = client.post("/v1/projects/lab/sandboxes", json=body)
        except httpx2.TransportError:
            return False
        if response.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
            return False
        assert response.status_code == httpx2.codes.OK, response.text
        bound = [a for a in response.json()["answers"] if a["outcome"] in {"bound", "exists"}]
        for answer in bound:
            known = self.found.setdefault(answer["key"], answer["id"])
            assert known == answer["id"], f"key {answer['key']} moved from {known}"
        return len(bound) == len(batch)


def base_image() -> str:
    """Return the sandbox base as a local image; built once for each state of its recipe."""

    def run(*argv: str) -> str:
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsec" / "tests"
    return f"rootfs:{sandbox_root(Path(__file__).resolve().parents[2], cache, run)}"


@dataclass(frozen=True, slots=True)
class Real:
    """A node with real containers; its agent is the process `agent` of the plane."""

    name: str
    image: str
    footprint: Footprint

    def answers(self, client: Client, since: float = 0.0) -> bool:
        """Say whether the gateway has heard its agent since a moment of the monotonic clock."""
        ages = [n["ageSeconds"] for n in client.nodes() if n["metadata"]["name"] == self.name]
        return ages != [] and ages[0] is not None and ages[0] < time.monotonic() - since

    def sleepers(self, client: Client, count: int) -> list[KeyedAnswer]:
        """Create sandboxes that do nothing, with the smallest limits that let them."""
        limits = Resources(cpu_milli=20, memory_bytes=16 << 20, pids=16, disk_bytes=1 << 20)
        return client.create_batch(
            [
                KeyedCreate(
                    key=f"sleeper-{count}-{n}",
                    image=self.image,
                    command=["sleep", "infinity"],
                    resources=limits,
                )
                for n in range(count)
            ]
        )

    def processes(self) -> set[int]:
        """Return every process that is in a sandbox."""
        return set(cleanup.processes(self.footprint))

    def private_kib(self, processes: set[int]) -> int:
        """Return the memory that these processes share with nobody, in KiB."""
        total = 0
        for pid in processes:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
        return total
