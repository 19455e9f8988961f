"""Compaction on a running leader: what rests leaves a full node, once, whoever dies meanwhile.

Without a policy of snapshots a leader plans, tells, and moves nothing.
"""

from collections.abc import Callable
from typing import Any

import pytest
from dsec.agent.substrates.simulated import Profile
from dsec.api.sandbox import SandboxState
from dsec.controllers.metrics import text
from dsec.journal.history import Question, read
from dsec.placement.compaction import Compactor, Move
from dsec.placement.view import ClusterView
from saving import Saving
from sim_world import Sim
from test_sim_preemption import copies, submit

SMALL = Profile(
    name="small", cpu_milli=8000, memory_bytes=16 << 30, boot=(0.01, 0.05), register=(0.01, 0.05)
)
POOL = {"placement": {"watermarks": {"safePercent": 60, "limitPercent": 90}}}
GIB = 1 << 30


STATE = {"kinds": ["state"]}


async def full_node(sim: Sim, snapshot: Any = STATE) -> tuple[str, str]:
    """Start a node `full` with two paused sandboxes at its limit.

    Returns the uids of the experiment that rests and of the one that runs.
    """
    await sim.records.create(
        {"kind": "SandboxNodePool", "metadata": {"name": "marked"}, "spec": POOL}
    )
    sim.start_controller()
    await sim.add_node("full", SMALL)
    await sim.ready(nodes=1)
    await into_pool(sim, "full")
    await sim.until(lambda: watermark(sim, "full") == (60, 90), 20)
    await sim.clock.sleep(12)
    low = await submit(
        sim,
        "low",
        taskClass="pausable",
        priority="low",
        replicas=2,
        cpu=4000,
        memory=6 * GIB,
        snapshot=snapshot,
    )
    await sim.until(lambda: copies(sim, low) == [(1, "running")] * 2, 30)
    high = await submit(
        sim, "high", taskClass="pausable", priority="high", cpu=8000, memory=3 * GIB
    )
    await sim.until(lambda: copies(sim, high) == [(1, "running")], 120)
    assert copies(sim, low) == [(1, "paused")] * 2
    return low, high


async def into_pool(sim: Sim, name: str) -> None:
    """Make a node a member of the pool with watermarks."""
    node = await sim.records.get("SandboxNode", name)
    node["spec"]["pool"] = "marked"
    await sim.records.replace(node)


def watermark(sim: Sim, name: str) -> tuple[int, int]:
    """Return the watermarks of a node as placement sees it."""
    leader = sim.leader()
    assert leader is not None
    assert leader.controller.term is not None
    found = {node.name: node for node in leader.controller.term.fleet.nodes()}
    return (found[name].safe_percent, found[name].limit_percent) if name in found else (0, 0)


def where(sim: Sim, uid: str) -> list[tuple[str, int, str]]:
    """Return (node, incarnation, state) of all live copies of an experiment."""
    return sorted(
        (name, entry.spec.identity.incarnation, entry.status.state.value)
        for name, agent in sim.agents.items()
        for entry in agent.core
        if entry.live and entry.spec.identity.experiment_uid == uid
    )


def doubles(sim: Sim) -> list[str]:
    """Return the ids of which two copies run."""
    runs = [
        entry.spec.identity.id
        for agent in sim.agents.values()
        for entry in agent.core
        if entry.status.state is SandboxState.RUNNING
    ]
    return sorted({one for one in runs if runs.count(one) > 1})


async def settled(sim: Sim, what: Callable[[], Any], seconds: float) -> None:
    """Wait until something holds; nothing may run twice meanwhile."""
    end = sim.clock.monotonic() + seconds
    while not what():
        assert sim.clock.monotonic() < end, "not in time"
        assert doubles(sim) == []
        await sim.clock.sleep(0.05)


async def another_leads(sim: Sim) -> None:
    """Kill the leader amid its work; nothing may run twice until another one leads."""
    first = sim.leader()
    assert first is not None
    sim.start_controller()
    await sim.kill(first)
    await settled(sim, lambda: sim.leader() is not None, 60)


def test_what_rests_moves_and_goes_on_there(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCHED-04 to its end: both leave, with their next incarnation, and go on elsewhere."""

    async def scenario() -> None:
        async with Sim() as sim:
            saving = Saving(sim)
            saving.install(monkeypatch)
            low, high = await full_node(sim)
            await sim.add_node("empty", SMALL)
            await settled(sim, lambda: [one[0] for one in where(sim, low)] == ["empty"] * 2, 90)
            # each has CPU there, and the work that displaced them runs on where it was
            await settled(sim, lambda: where(sim, low) == [("empty", 2, "running")] * 2, 90)
            assert where(sim, high) == [("full", 1, "running")]
            assert len(saving.held) == 2
            moved = [row async for row in read(sim.objects, Question(kind="moved"))]
            assert {(one.body["node"], one.body["source"]) for one in moved} == {("empty", "full")}
            leader = sim.leader()
            assert leader is not None
            assert b"dsec_controller_moved_total 2.0" in text(leader.controller)
            status = (await sim.experiment("low"))["status"]
            assert (status["ready"], status["roles"][0]["incarnations"]) == (2, 0)
            await sim.clock.sleep(120)
            assert where(sim, low) == [("empty", 2, "running")] * 2, "what has moved stays"
            assert len(saving.held) == 2

    simulate(scenario)


def test_without_snapshots_the_plan_is_told_and_nothing_moves(
    simulate: Callable[..., None],
) -> None:
    """The task and the node say where it would go, and that this waits for snapshots."""

    async def scenario() -> None:
        async with Sim() as sim:
            low, _ = await full_node(sim, None)
            await sim.add_node("empty", SMALL)
            await sim.clock.sleep(60)
            assert where(sim, low) == [("full", 1, "paused")] * 2
            described = await sim.client.get("/v1/projects/lab/experiments/low/describe")
            assert "moves to node empty, as full is at its limit: waits for snapshots" in (
                described.text
            )
            node = await sim.records.get("SandboxNode", "full")
            (said,) = [one for one in node["status"]["conditions"] if one["type"] == "Compacted"]
            assert (said["status"], said["reason"]) == ("False", "NeedsSnapshots")
            assert "frees 12Gi of memory: this waits for snapshots" in said["message"]
            await sim.client.delete("/v1/projects/lab/experiments/high")
            await sim.until(lambda: where(sim, low) == [("full", 1, "running")] * 2, 30)
            await sim.clock.sleep(30)
            node = await sim.records.get("SandboxNode", "full")
            (said,) = [one for one in node["status"]["conditions"] if one["type"] == "Compacted"]
            assert (said["status"], said["reason"]) == ("True", "NothingToMove")

    simulate(scenario)


def test_a_move_that_fails_leaves_it_where_it_rests(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost: it goes on where it is, like all that rests."""

    async def scenario() -> None:
        async with Sim() as sim:
            Saving(sim, refuses=100).install(monkeypatch)
            low, _ = await full_node(sim)
            await sim.add_node("empty", SMALL)
            await sim.clock.sleep(90)
            assert where(sim, low) == [("full", 1, "paused")] * 2
            await sim.client.delete("/v1/projects/lab/experiments/high")
            await sim.until(lambda: where(sim, low) == [("full", 1, "running")] * 2, 30)

    simulate(scenario)


@pytest.mark.parametrize("after", [0.0, 0.1, 0.31, 0.4, 0.62, 0.95, 1.0, 1.2, 1.5, 2.0])
def test_a_leader_killed_amid_a_move_leaves_one_copy(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch, after: float
) -> None:
    """At any line: nothing runs twice, nothing is lost, and the next leader ends what was begun."""

    async def scenario() -> None:
        async with Sim() as sim:
            saving = Saving(sim)
            saving.install(monkeypatch)
            low, _ = await full_node(sim)
            await sim.add_node("empty", SMALL)
            await settled(sim, lambda: saving.held, 90)
            adopted, adopt = [], Compactor.adopt

            def taken_over(own: Compactor, view: ClusterView, move: Move, *rest: Any) -> None:
                adopted.append(move)
                adopt(own, view, move, *rest)

            monkeypatch.setattr(Compactor, "adopt", taken_over)
            await sim.clock.sleep(after)
            await another_leads(sim)
            await settled(
                sim,
                lambda: [one[::2] for one in where(sim, low)] == [("empty", "running")] * 2,
                240,
            )
            assert doubles(sim) == []
            assert all(move.rested for move in adopted), "it was paused, and is known to have been"
            status = (await sim.experiment("low"))["status"]
            assert status["roles"][0]["incarnations"] == 0, "neither was started anew"
            ended = [row async for row in read(sim.objects, Question(kind="sandbox-closed"))]
            assert ended == []

    simulate(scenario)


def test_what_is_asked_for_meanwhile_comes_first(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is deleted amid a move is gone from both nodes."""

    async def scenario() -> None:
        async with Sim() as sim:
            saving = Saving(sim)
            saving.install(monkeypatch)
            low, _ = await full_node(sim)
            await sim.add_node("empty", SMALL)
            await settled(sim, lambda: saving.held, 90)
            await sim.client.delete("/v1/projects/lab/experiments/low")
            await settled(sim, lambda: where(sim, low) == [], 60)
            await sim.clock.sleep(60)
            assert where(sim, low) == []

    simulate(scenario)
