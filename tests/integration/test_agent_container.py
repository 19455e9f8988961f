"""The agent program over real containers: killed, restarted and moved on, its sandboxes live."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from agent_world import eventually, sandbox_id, spec
from dsec.agent.cpusets import SHARED
from dsec.local.initbin import ensure_init
from dsec.world.tls import CONTROLLER
from test_agent_tls import Authority, Served, authority, served

__all__ = ["authority", "served"]  # fixtures

pytestmark = pytest.mark.root
PROGRAMS = ["/bin/sh", "/bin/sleep", "/bin/cat", "/bin/echo"]


def root_filesystem(directory: Path) -> Path:
    """Make a root file system of a shell and three programs, with the libraries they need."""
    for program in PROGRAMS:
        needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        files = [word for word in needed.stdout.split() if word.startswith("/")]
        for file in [program, *files]:
            target = directory / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(file).resolve(), target)
    return directory


@dataclass
class Node:
    """One real node: state directory, cgroup and the agent's process."""

    served: Served
    authority: Authority
    directory: Path
    cgroup: str
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    clients: list[httpx2.AsyncClient] = field(default_factory=list)

    async def start(self) -> httpx2.AsyncClient:
        """Start the agent; return a controller's client once it is registered."""
        before = len(self.served.gateway.registrations)
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dsec.agent", "--state-dir", str(self.directory)),
            *("--gateway", self.served.url, "--ca", str(self.authority.path)),
            *("--node-name", "real", "--cgroup", self.cgroup, "--local-roots"),
            env={**os.environ, "DSEC_INIT": str(ensure_init())},
        )
        await eventually(lambda: len(self.served.gateway.registrations) > before)
        endpoint = self.served.gateway.registrations[-1].endpoint
        client = self.authority.network(CONTROLLER).client(endpoint + "/v1")
        self.clients.append(client)
        for _ in range(600):
            try:
                await client.get("state")
                break
            except httpx2.TransportError:
                await asyncio.sleep(0.05)
        return client

    async def kill(self) -> None:
        """End the agent as the kernel does."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


def remove_groups(name: str) -> None:
    """Remove the test's own cgroup, which is empty by now, from every hierarchy."""
    for group in Path("/sys/fs/cgroup").glob(f"*{name}"):
        with contextlib.suppress(FileNotFoundError):
            (group / SHARED).rmdir()
        group.rmdir()


@pytest.fixture
async def node(served: Served, authority: Authority, tmp_path: Path) -> AsyncIterator[Node]:
    """One node; whatever is left of it goes at the end."""
    node = Node(served, authority, tmp_path / "agent", f"/dsec-test-{os.getpid()}")
    yield node
    client = await node.start() if node.process and node.process.returncode else node.clients[-1]
    ids = [one["identity"]["id"] for one in (await state(client))["sandboxes"]]
    await client.post("stop", json={"epoch": 1, "ids": ids, "graceSeconds": 0})
    told = await state(client)
    while told["live"]:
        told = (await client.get("state", params={"since": told["seq"], "wait": 5})).json()
    await node.kill()
    remove_groups(node.cgroup)
    await asyncio.gather(*(one.aclose() for one in node.clients))


async def state(client: httpx2.AsyncClient) -> dict[str, Any]:
    """Return all that the agent says."""
    answer = await client.get("state", params={"since": -1})
    return dict(answer.json())


async def test_containers_outlive_the_agent(node: Node, tmp_path: Path) -> None:
    """A counter in a container counts on over kill -9 and a clean stop; ends are told once."""
    image = f"rootfs:{root_filesystem(tmp_path / 'root')}"
    loop = "i=0; while true; do i=$((i+1)); echo $i > /workspace/count; sleep 0.05; done"
    long = spec(1, None, image=image, command=["/bin/sh", "-c", loop])
    short = spec(2, None, image=image, command=["/bin/sh", "-c", "sleep 1.5; echo out; exit 3"])
    client = await node.start()
    answer = await client.post("sandboxes", json={"epoch": 1, "specs": [long.wire(), short.wire()]})
    assert [one["accepted"] for one in answer.json()["answers"]] == [True, True]
    history = node.served.gateway.history
    await eventually(lambda: "sandbox-running" in history(sandbox_id(2)))
    await eventually(lambda: "sandbox-running" in history(sandbox_id(1)))

    await node.kill()
    await asyncio.sleep(2)
    client = await node.start()
    await eventually(lambda: "sandbox-ended" in history(sandbox_id(2)))
    told = {one["identity"]["id"]: one for one in (await state(client))["sandboxes"]}
    end = told[sandbox_id(2)]["end"]
    assert (end["reason"], end["exitCode"], end["stdout"]) == ("failed", 3, "out\n")
    assert told[sandbox_id(1)]["state"] == "running"
    assert end["evidence"]["pidNamespace"] > 0

    process = node.process
    assert process is not None
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 30) == 0
    client = await node.start()
    assert (await state(client))["live"] == 1
    call = {"epoch": 1, "ids": [sandbox_id(1)], "graceSeconds": 0.2}
    await client.post("stop", json=call)
    await eventually(lambda: "sandbox-ended" in history(sandbox_id(1)))
    assert history(sandbox_id(1)).count("sandbox-running") == 1
    assert (await state(client))["used"]["cpuMilli"] == 0
