"""W-23: what nobody would miss is found, warned about, and extended or ended; over two leaders."""

import json
from collections.abc import Callable
from typing import Any

from dsec.api.sandbox import Resources
from dsec.controllers.metrics import text
from dsec.scaling.reaping import Policy
from sim_world import Sim, create

QUICK = Policy(patrol=10.0, silent=60.0, idle=120.0, window=60.0, ending=60.0)
"""The rules with shorter times: a day of patrols takes as long as a day of everything else."""
EXPERIMENT = """
name: rollouts
roles:
  - role: worker
    replicas: 1
    image: "hub/base:1"
    resource: {cpu: 1, mem: 256M}
    env: {DSEC_SIM_USE: "0.001"}
"""
WHERE = "/v1/projects/lab/sandboxes"


def quick(sim: Sim) -> None:
    """Let the leader patrol by the shorter times."""
    leader = sim.leader()
    assert leader is not None
    assert leader.controller.term is not None
    leader.controller.term.reaper.policy = QUICK


async def running(sim: Sim, count: int) -> list[dict[str, Any]]:
    """Wait for so many sandboxes to run."""
    for _ in range(200):
        items: list[dict[str, Any]]
        items = (await sim.client.get(f"{WHERE}?state=running")).json()["items"]
        if len(items) == count:
            return items
        await sim.clock.sleep(0.5)
    raise AssertionError(f"not {count} run")


async def end_of(sim: Sim, sandbox: str, seconds: float) -> dict[str, Any]:
    """Wait until a sandbox has ended; return how."""
    start = sim.clock.monotonic()
    while sim.clock.monotonic() - start < seconds:
        status = (await sim.client.get(f"{WHERE}/{sandbox}")).json()
        if status["state"] == "ended":
            return dict(status["end"])
        await sim.clock.sleep(1)
    raise AssertionError(f"{sandbox} did not end within {seconds} s")


async def rows(sim: Sim, kind: str) -> list[dict[str, Any]]:
    """Return the history rows of a kind."""
    await sim.clock.sleep(1)
    found = []
    for info in await sim.objects.list("history/"):
        data, _ = await sim.objects.get(info.key)
        found += [row for row in map(json.loads, data.splitlines()) if row["kind"] == kind]
    return found


def of_node(name: str, **more: Any) -> dict[str, Any]:
    """Return a create of one core, of which it uses half."""
    resources = Resources(cpu_milli=1000, memory_bytes=256 << 20, pids=64, disk_bytes=64 << 20)
    return create(name, resources=resources, **more)


async def recycling(sim: Sim) -> str:
    """Return what a description says of the experiment's one sandbox; empty: nothing."""
    answer = await sim.client.get("/v1/projects/lab/experiments/rollouts/describe")
    sections = {one["title"]: one["lines"] for one in answer.json()["sections"]}
    return str(next((line["text"] for line in sections.get("Recycling", [])), ""))


async def warned(sim: Sim) -> None:
    """Wait until the description warns."""
    for _ in range(400):
        if (await recycling(sim)).startswith("idle: ends at "):
            return
        await sim.clock.sleep(2)
    raise AssertionError("nobody warned")


async def begin(sim: Sim) -> tuple[str, str, str]:
    """Run a busy, a silent and an idle sandbox; return their ids."""
    sim.start_controller()
    await sim.add_node("n1")
    await sim.ready(nodes=1)
    quick(sim)
    told = await sim.client.post("/v1/projects/lab/experiments", content=EXPERIMENT)
    assert told.status_code == 201, told.text
    body = {"creates": [of_node("busy"), of_node("silent", env={"DSEC_SIM_SILENT": "1"})]}
    answers = (await sim.client.post(WHERE, json=body)).json()["answers"]
    busy, silent = (one["id"] for one in answers)
    ids = {one["identity"]["id"] for one in await running(sim, 3)}
    (idle,) = ids - {busy, silent}
    # the round that was under way when the times were made shorter
    await sim.clock.sleep(310)
    return busy, silent, idle


async def new_leader(sim: Sim) -> None:
    """Kill the leader, and have another one."""
    leader = sim.leader()
    assert leader is not None
    await sim.kill(leader)
    sim.start_controller()
    await sim.until(lambda: sim.leader() is not None, 60)
    quick(sim)


def metrics(sim: Sim) -> str:
    """Return the leader's metrics."""
    leader = sim.leader()
    assert leader is not None
    return text(leader.controller).decode()


def test_a_sandbox_left_behind_is_warned_about_and_ended(simulate: Callable[..., None]) -> None:
    """W-23, OPS-05 to OPS-10: idle, silent and busy ones; warning, extension, end, metric."""

    async def scenario() -> None:
        async with Sim() as sim:
            busy, silent, idle = await begin(sim)
            end = await end_of(sim, silent, 200)
            assert end["reason"] == "heartbeat-lost"
            assert "no heartbeat for" in end["message"]
            await warned(sim)
            kept = await sim.client.post(f"{WHERE}/{idle}/extend", json={"seconds": 300})
            assert kept.status_code == 200, kept.text
            await sim.clock.sleep(290)
            assert (await sim.client.get(f"{WHERE}/{idle}")).json()["state"] == "running"
            assert "extended until" in await recycling(sim)

            await warned(sim)
            assert 'dsec_reaper_caught_total{finding="silent"} 1.0' in metrics(sim)
            assert 'dsec_reaper_wasted_core_seconds_total{finding="silent"} 0.0' not in metrics(sim)
            # a leader that dies in the window: the next one goes on from the book
            await new_leader(sim)
            end = await end_of(sim, idle, 400)
            assert end["reason"] == "idle"
            assert "of its CPU was used" in end["message"]
            assert (await sim.client.get(f"{WHERE}/{busy}")).json()["state"] == "running"
            # what nobody used is not started again
            assert len(await running(sim, 1)) == 1

            ended = await rows(sim, "reaper-ended")
            assert {row["sandbox"] for row in ended} == {silent, idle}
            assert len(ended) == 2
            assert all(row["body"]["wastedCoreSeconds"] > 0 for row in ended)
            told = [row["sandbox"] for row in await rows(sim, "reaper-warned")]
            assert told.count(idle) == 2
            assert len(await rows(sim, "reaper-patrol")) > 10

    simulate(scenario)


def test_what_its_node_cannot_put_away_is_closed(simulate: Callable[..., None]) -> None:
    """W-23: the program has ended and the sandbox is left; its copy goes once that is possible."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            agent = await sim.add_node("n1")
            await sim.ready(nodes=1)
            quick(sim)
            answer = await sim.client.post(WHERE, json={"creates": [of_node("one")]})
            sandbox = answer.json()["answers"][0]["id"]
            await running(sim, 1)
            substrate = sim.substrates["n1"]
            destroy = substrate.destroy

            async def stuck(_: str) -> None:
                raise OSError("a process that cannot be killed")

            substrate.destroy = stuck  # type: ignore[method-assign] - a node that fails
            assert (await sim.client.delete(f"{WHERE}/{sandbox}")).status_code == 202
            await sim.clock.sleep(310)
            assert agent.core.live == 1
            end = await end_of(sim, sandbox, 400)
            assert end["reason"] == "infrastructure"
            assert end["message"].startswith("its program has ended, and its node has not")
            (row,) = await rows(sim, "reaper-ended")
            assert (row["sandbox"], row["body"]["finding"]) == (sandbox, "zombie")
            substrate.destroy = destroy  # type: ignore[method-assign]
            await sim.until(lambda: agent.core.live == 0, 120)

    simulate(scenario)


def test_only_own_live_sandboxes_can_be_extended(simulate: Callable[..., None]) -> None:
    """An unknown one is told as such, and a span that is too long names what is allowed."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n1")
            await sim.ready(nodes=1)
            answer = await sim.client.post(WHERE, json={"creates": [of_node("one")]})
            sandbox = answer.json()["answers"][0]["id"]
            gone = await sim.client.post(f"{WHERE}/sb-{'0' * 26}/extend", json={"seconds": 60})
            assert gone.status_code == 404
            long = await sim.client.post(f"{WHERE}/{sandbox}/extend", json={"seconds": 1e9})
            assert long.status_code == 422
            assert "604800" in long.text
            other = await sim.client.post(
                f"/v1/projects/other/sandboxes/{sandbox}/extend", json={"seconds": 60}
            )
            assert other.status_code in (403, 404, 422)

    simulate(scenario)
