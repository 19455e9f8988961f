"""The work queue and the lease thread: what must end a term does, everything else is retried."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest
from dsec.controllers import __main__ as program
from dsec.controllers.runtime import WorkQueue
from dsec.journal.bindlog import FencedError
from dsec.world.clock import SystemClock
from dsec.world.objects import ObjectStoreError


@pytest.mark.parametrize("problem", [FencedError("epoch 1 is over"), ObjectStoreError("away")])
async def test_a_fenced_reconcile_ends_the_queue(problem: Exception) -> None:
    """A reconcile that lost the bind log is not repeated: `run` raises, and so ends the term."""
    calls: list[Any] = []

    async def reconcile(key: Any) -> None:
        calls.append(key)
        raise problem

    queue = WorkQueue("tests", reconcile, SystemClock(), workers=1)
    queue.add(("lab", "one"))
    with pytest.raises(type(problem)):
        await asyncio.wait_for(queue.run(), 5)
    assert calls == [("lab", "one")]


async def test_any_other_failure_is_repeated() -> None:
    """A bug in one reconcile does not end the term."""
    calls: list[Any] = []
    done = asyncio.Event()

    async def reconcile(key: Any) -> None:
        calls.append(key)
        if len(calls) == 1:
            raise ValueError("a bug")
        done.set()

    queue = WorkQueue("tests", reconcile, SystemClock())
    queue.add(("lab", "one"))
    running = asyncio.ensure_future(queue.run())
    await asyncio.wait_for(done.wait(), 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_dead_lease_thread_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the renewal, the process must not go on deciding."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    async def broken() -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(program, "connect", broken)
    election: Any = SimpleNamespace()
    holding = asyncio.ensure_future(program.hold_on_thread(election)())
    for _ in range(300):
        if codes:
            break
        await asyncio.sleep(0.1)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert codes == [program.EXIT_LOST]
