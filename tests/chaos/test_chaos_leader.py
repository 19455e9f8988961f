"""A leader that is frozen, then wakes up and believes in itself: real processes, real stores."""

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections import Counter
from datetime import UTC, datetime

import httpx2
import pytest
from chaos_world import BATCH, Creators, bind_log, copies, each_node, many, say
from control_plane import INTERNAL, Plane, sandbox
from dsec.controllers.__main__ import EXIT_LOST
from dsec.journal.bindings import Row
from dsec.journal.bindlog import BindLog, FencedError
from dsec.world.agents import AgentClient, AgentStaleError
from dsec.world.clock import SystemClock
from dsec.world.s3 import S3Objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

FROZEN = 30.0
TAKE_OVER = 20.0
"""Ten seconds, held exactly in tests/sim/test_sim_election.py, and a busy machine's margin."""


class StaleWriter:
    """The bind log as a leader has it in memory while it stands still."""

    def __init__(self, plane: Plane, leader: str, epoch: int) -> None:
        self._objects = S3Objects(plane.s3)
        self._log = BindLog(self._objects, SystemClock(), leader)
        asyncio.run(self._log.open())
        self._log.epoch = epoch

    def fenced(self) -> str:
        """Append as that leader would after it woke up; return why the log refuses."""
        try:
            with pytest.raises(FencedError) as refused:
                asyncio.run(self._log.append([Row(kind="end", at=datetime.now(UTC), id="sb-none")]))
        finally:
            self._objects.close()
        return str(refused.value)


def late_creates(plane: Plane, leader: str, count: int) -> None:
    """Ask a frozen leader for creates that nobody else is asked for: it finds them on waking."""
    creates = [sandbox(key=f"late-{n}") for n in range(count)]
    body = {"project": "lab", "user": "root", "batch": {"creates": creates}}
    # it may die instead of answering
    with contextlib.suppress(httpx2.TransportError):
        answer = httpx2.post(
            f"http://127.0.0.1:{plane.internal[leader]}/internal/v1/creates",
            content=json.dumps(body),
            headers={"Authorization": f"Bearer {INTERNAL}"},
            timeout=60,
            trust_env=False,
        )
        assert answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE, answer.text


async def stale_call(client: AgentClient, epoch: int) -> bool:
    """Call an agent with an old epoch; return whether it refused."""
    try:
        await client.epoch(epoch)
    except AgentStaleError:
        return True
    return False


@pytest.mark.parametrize("count", many(500, 5000))
def test_a_frozen_leader_decides_nothing_more(plane: Plane, count: int) -> None:
    """SIGSTOP for 30 s amid keyed creates: another leads within ten, the old one only dies."""
    first, epoch = plane.office()
    process = plane.processes[first]
    prefix = f"frozen{count}"
    with Creators(plane, prefix, count) as creating:
        plane.until("a quarter is bound", lambda: len(creating.found) >= count // 4)
        process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            bound = len(creating.found)
            writer = StaleWriter(plane, first, epoch)
            took = plane.until("take-over", lambda: plane.office()[0] not in {"", first})
            second, next_epoch = plane.office()
            # two batches may have been answered in the instant of the signal
            plane.until("creates go on", lambda: len(creating.found) > bound + 2 * BATCH)
            served = time.monotonic() - stopped
            late = threading.Thread(target=late_creates, args=(plane, first, 20))
            late.start()
            time.sleep(max(0.0, FROZEN - (time.monotonic() - stopped)))
        finally:
            process.send_signal(signal.SIGCONT)
        ended = plane.until("the old leader ends", lambda: process.poll() is not None)
        late.join()
    assert took < TAKE_OVER
    # on a busy machine clients repeat late; the old leader stands still all the while
    assert served < FROZEN
    assert next_epoch > epoch
    assert process.returncode == EXIT_LOST
    # whoever else holds its epoch is refused by the log and by every agent
    fence = writer.fenced()
    refusals = each_node(plane, lambda client: stale_call(client, epoch))
    assert all(refusals.values()), refusals
    assert plane.office() == (second, next_epoch)
    plane.restart(first)

    state = bind_log(plane)
    assert state.epoch == next_epoch
    mine = [b for b in state.by_id.values() if b.key.startswith(f"{prefix}-")]
    assert not [b for b in state.by_id.values() if b.key.startswith("late-")]
    assert len(creating.found) == len(mine) == count
    assert {b.key: b.id for b in mine} == creating.found
    assert {b.spec.identity.incarnation for b in mine} == {1}
    live: dict[str, list[str]] = {}

    def all_live() -> bool:
        # a key is answered once it is bound; its agent is called after that
        everywhere = copies(plane)
        live.update({b.id: everywhere.get(b.id, []) for b in mine})
        return all(live.values())

    plane.until("all live on their nodes", all_live, 120)
    assert Counter(len(nodes) for nodes in live.values()) == {1: count}
    assert [b.id for b in mine if live[b.id] != [b.node]] == []
    last = [line for line in plane.log(first).splitlines() if "over" in line or "lost" in line]
    say(
        f"{count} creates, {bound} before SIGSTOP of {first} (epoch {epoch}); {second} led after "
        f"{took:.1f} s (epoch {next_epoch}), creates went on after {served:.1f} s; "
        f"{first} ended {ended:.1f} s after SIGCONT: {last[-1] if last else '?'}; {fence}; "
        f"{len(refusals)} of {len(refusals)} agents refused epoch {epoch}; "
        f"{creating.repeats} batches repeated; {count} live, one copy each"
    )
