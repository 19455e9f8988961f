"""A node that reaches its run-until: owners warned, work archived, machine ended, by itself."""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_world import World, eventually, sandbox_id, spec
from dsec.agent.deadline import FILE
from dsec.api.reasons import EndReason
from dsec.world.inprocess import InProcessNetwork
from dsec.world.tls import CONTROLLER, Peer

SLOW = timedelta(seconds=5)
"""How late a busy machine starts the program that ends it; an archive's patience is longer."""


def _node(folder: Path, *, seconds: float, wind_down: float = 3.0, warn: float = 1.0) -> World:
    """Return a node with so many seconds to live, whose machine ends by writing a file."""
    world = World(folder / "node")
    world.settings = {
        "run_until": datetime.now(UTC) + timedelta(seconds=seconds),
        "wind_down_seconds": wind_down,
        "warn_seconds": warn,
        "shutdown": [
            sys.executable,
            "-c",
            f"import pathlib; pathlib.Path({str(folder / 'off')!r}).touch()",
        ],
    }
    caller = InProcessNetwork(world.routes, peer=Peer("ctl-0", frozenset({CONTROLLER})))
    world.client = caller.client("http://agents/n/node-1/v1")
    return world


def _ended(folder: Path) -> datetime:
    """Return when the machine was ended."""
    return datetime.fromtimestamp((folder / "off").stat().st_mtime, UTC)


async def _extend(world: World, seconds: float, *, epoch: int = 1, revision: int = 1) -> Any:
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    body = {"epoch": epoch, "runUntil": until, "leftSeconds": seconds, "revision": revision}
    return await world.post("run-until", body)


async def _ends_in_good_order(tmp_path: Path) -> None:
    """Without any control plane: warned, ended as preempted, archived, shipped, then off."""
    world = _node(tmp_path, seconds=5.5)
    agent = await world.start()
    await world.create(spec(1, None), spec(2, None))
    await eventually((tmp_path / "off").exists)
    assert _ended(tmp_path) <= world.settings["run_until"] + SLOW
    history = world.gateway.history(sandbox_id(1))
    assert history.index("sandbox-warned") < history.index("sandbox-stopping")
    assert history[-1] == "sandbox-ended"
    assert f"research-a/exp/{sandbox_id(2)}/result.json" in world.gateway.artifacts
    state = await world.state()
    assert state.ending
    ends = [status.end for status in state.sandboxes]
    assert {end.reason for end in ends if end} == {EndReason.PREEMPTED}
    assert all(end and "paid time" in end.message for end in ends)
    (refused,) = await world.create(spec(3))
    assert not refused["accepted"]
    assert "run-until" in refused["reason"]
    await agent.close()


async def test_an_extension_keeps_the_node(tmp_path: Path) -> None:
    """The controller moves the end; an old epoch and an old decision do not."""
    # warned after two seconds, and with a minute to be extended in
    world = _node(tmp_path, seconds=64.0, wind_down=2.0, warn=60.0)
    agent = await world.start()
    await world.create(spec(1, None))
    await eventually(lambda: "sandbox-warned" in world.gateway.history(sandbox_id(1)))
    agent.see_epoch(5)
    stale = await _extend(world, 3600, epoch=4)
    assert (stale.status_code, stale.json()["code"]) == (409, "stale-epoch")
    answer = (await _extend(world, 3600, epoch=5, revision=3)).json()
    assert answer["leftSeconds"] == pytest.approx(3600, abs=60)
    older = (await _extend(world, 10, epoch=5, revision=2)).json()
    assert (older["revision"], older["ending"]) == (3, False)
    state = await world.state()
    assert state.run_until is not None
    assert (state.run_until - state.utc).total_seconds() == pytest.approx(3600, abs=60)
    await asyncio.sleep(1.0)
    assert not agent.wind_down.ending
    (status,) = (await world.state()).sandboxes
    assert status.message == "its node is paid for longer and goes on"
    await agent.close()


async def _survives_the_agent(tmp_path: Path) -> None:
    """A killed agent's successor ends the node at the same time."""
    world = _node(tmp_path, seconds=4.0, wind_down=2.0)
    first = await world.start()
    await world.create(spec(1, None))
    until = world.settings.pop("run_until")
    await world.kill(first)
    assert json.loads((tmp_path / "node" / FILE).read_bytes())["bootId"] == "boot-1"
    second = await world.start()
    # its end is the first one's, however long the start took
    assert second.deadline.run_until is not None
    assert second.deadline.run_until <= until + timedelta(seconds=0.1)
    await eventually((tmp_path / "off").exists)
    late = (await _extend(world, 3600)).json()
    assert late["ending"]
    assert late["leftSeconds"] < 10
    await second.close()


async def _money_ends_before_an_archive_does(tmp_path: Path) -> None:
    """With the gateway away nothing can be archived, and the machine goes all the same."""
    world = _node(tmp_path, seconds=4.5, wind_down=3.5)
    agent = await world.start()
    await world.create(spec(1, None))
    await asyncio.sleep(0.3)
    world.gateway.away = True
    await eventually((tmp_path / "off").exists)
    assert _ended(tmp_path) <= world.settings["run_until"] + SLOW
    await agent.close()


async def test_nodes_end_by_themselves(tmp_path: Path) -> None:
    """Three nodes at once, since each takes its time: in order, over a kill, without a gateway."""
    scenarios = (_ends_in_good_order, _survives_the_agent, _money_ends_before_an_archive_does)
    for scenario in scenarios:
        (tmp_path / scenario.__name__).mkdir()
    await asyncio.gather(*(scenario(tmp_path / scenario.__name__) for scenario in scenarios))
