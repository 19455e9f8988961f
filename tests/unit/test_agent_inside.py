"""Calls from inside, at the agent: how many at once, and that every outcome is an answer."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import pytest
from dsec.agent.core import Core
from dsec.agent.inside import MOST_AT_ONCE, Inside
from dsec.agent.snapshot_marks import Marks
from dsec.agent.uplink import AwayError, RefusedError, Uplink
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.api.wire import NodeInventory
from dsec.world.clock import SystemClock
from dsec.world.http import POOL

SANDBOX = "sb-" + "a" * 26
PATH = "/v1/queue/traj"


@dataclass
class Gateway:
    """Stands for the way to the gateway: hangs until it is let go, or fails."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    problem: Exception | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def ask(self, method: str, path: str, _body: bytes) -> bytes:
        """Answer a call."""
        self.asked.append((method, path))
        await self.open.wait()
        if self.problem is not None:
            raise self.problem
        return b"{}"


def inside(gateway: Gateway) -> Inside:
    """Return the calls of a node with one sandbox."""
    node = NodeInventory(cpu_milli=1000, memory_bytes=1 << 30, disk_bytes=1 << 30)
    core = Core("n", 1, node)
    spec = SandboxSpec(
        identity=Identity(id=SANDBOX, tenant="t", project="p"),
        image="base",
        resources=Resources(cpu_milli=100, memory_bytes=1 << 20, pids=8, disk_bytes=1 << 20),
    )
    core.admit(spec, datetime(2026, 1, 1, tzinfo=UTC))
    return Inside(core, cast("Uplink", gateway), lambda _: Marks(SystemClock()))


async def test_a_gateway_that_hangs_is_asked_so_often_and_no_more() -> None:
    """The next call is told to come again at once; when one is answered there is room for it."""
    gateway = Gateway()
    calls = inside(gateway)
    under_way = [
        asyncio.create_task(calls.call(SANDBOX, "GET", PATH, b"")) for _ in range(MOST_AT_ONCE)
    ]
    await asyncio.sleep(0)
    status, body = await calls.call(SANDBOX, "GET", PATH, b"")
    assert (status, json.loads(body)["code"]) == (429, "busy")
    gateway.open.set()
    assert {status for status, _ in await asyncio.gather(*under_way)} == {200}
    assert await calls.call(SANDBOX, "GET", PATH, b"") == (200, b"{}")
    assert POOL.max_connections is not None
    assert POOL.max_connections > MOST_AT_ONCE


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (AwayError("no answer"), 503, "away"),
        (RefusedError(403, "denied", "not yours"), 403, "denied"),
        (RefusedError(418, "", "odd"), 418, "refused"),
    ],
)
async def test_what_goes_wrong_is_an_answer(problem: Exception, status: int, code: str) -> None:
    """A program never waits for nothing, and learns what a repeat is good for."""
    gateway = Gateway(problem=problem)
    gateway.open.set()
    found, body = await inside(gateway).call(SANDBOX, "POST", f"{PATH}/take", b"{}")
    assert (found, json.loads(body)["code"]) == (status, code)
    assert gateway.asked == [("POST", f"/agent/v1/sandboxes/{SANDBOX}/queues/traj/take")]


async def test_a_sandbox_that_is_not_here_is_not_asked_for() -> None:
    """Nor is a path that is none."""
    gateway = Gateway()
    calls = inside(gateway)
    other = "sb-" + "b" * 26
    assert (await calls.call(other, "GET", PATH, b""))[0] == 409
    assert (await calls.call(SANDBOX, "GET", "/v1/state", b""))[0] == 404
    assert gateway.asked == []
