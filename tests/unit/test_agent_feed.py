"""What followers of a node wait for: moves at once, steps on the way to running together."""

import asyncio
from datetime import UTC, datetime

import pytest
from dsec.agent.core import Core
from dsec.agent.feed import STEP_SECONDS, Feed
from dsec.api.sandbox import Identity, Resources, SandboxSpec, SandboxState
from dsec.api.wire import NodeInventory

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 1 << 30
S = SandboxState


class Clock:
    """Time that passes only where somebody sleeps, and says how much did."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        """Return a fixed time: nobody looks at it."""
        return NOW

    def monotonic(self) -> float:
        """Return the seconds slept so far."""
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        """Let everybody else go on first."""
        for _ in range(20):
            await asyncio.sleep(0)
        self.seconds += seconds


class Node:
    """A core with its feed, and a follower that has read all there is."""

    def __init__(self) -> None:
        self.clock = Clock()
        inventory = NodeInventory(cpu_milli=8000, memory_bytes=8 * GIB, disk_bytes=8 * GIB)
        self.core = Core("n", 1, inventory)
        self.feed = Feed(self.core, self.clock, "boot")

    def enter(self, state: SandboxState) -> None:
        """Let a sandbox enter a state, and say so."""
        name = f"sb-{'1' * 26}"
        if state is S.BOUND:
            spec = SandboxSpec(
                identity=Identity(id=name, tenant="t", project="p"),
                image="i",
                resources=Resources(cpu_milli=100, memory_bytes=1 << 20),
            )
            assert self.core.admit(spec, NOW).accepted
        else:
            self.core.advance(name, state, NOW)
        self.feed.notify(state)


async def test_steps_are_gathered() -> None:
    """A sandbox that is on its way answers once, some time after its first step."""
    node = Node()
    since = node.core.seq
    asked = asyncio.create_task(node.feed.more(since, None, 20.0))
    await asyncio.sleep(0)
    for state in (S.BOUND, S.PULLING, S.CREATING):
        node.enter(state)
    await asked
    assert STEP_SECONDS <= node.clock.seconds < 20.0
    (status,) = node.feed.state(since, None).sandboxes
    assert status.state is S.CREATING


@pytest.mark.parametrize("late", [False, True])
async def test_a_move_does_not_wait(late: bool) -> None:
    """What runs is told at once, whether it was asked before or after."""
    node = Node()
    since = node.core.seq
    steps = (S.BOUND, S.PULLING, S.CREATING, S.STARTING, S.RUNNING)
    if late:
        for state in steps:
            node.enter(state)
    asked = asyncio.create_task(node.feed.more(since, None, 20.0))
    await asyncio.sleep(0)
    if not late:
        for state in steps:
            node.enter(state)
    await asked
    assert node.clock.seconds < STEP_SECONDS


async def test_who_asks_for_all_gets_it_at_once() -> None:
    """A question without patience, and one from before a restart, are not held."""
    node = Node()
    since = node.core.seq
    node.enter(S.BOUND)
    await node.feed.more(since, None, 0.0)
    await node.feed.more(-1, None, 20.0)
    assert node.clock.seconds == pytest.approx(0.0)
