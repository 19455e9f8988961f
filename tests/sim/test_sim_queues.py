"""Task queues through real gateways: what a killed sandbox had taken goes to another."""

import asyncio
from collections.abc import Callable
from typing import Any

from dsec.controllers.experiments import QUEUES_SECONDS
from dsec.gateway import queues
from dsec.journal.queuelog import QueueLog, folder
from sim_world import Sim

EXPERIMENT = """
name: rollouts
roles:
  - {role: worker, replicas: 2, image: "hub/base:1", resource: {cpu: 1, mem: 256M}}
"""
WHERE = "/v1/projects/lab/experiments/rollouts/queues"


async def start(sim: Sim) -> list[str]:
    """Run the experiment; return its two sandboxes."""
    sim.start_controller()
    await sim.add_node("n0")
    await sim.ready(nodes=1)
    answer = await sim.client.post("/v1/projects/lab/experiments", content=EXPERIMENT)
    assert answer.status_code == 201, answer.text

    async def both() -> list[str]:
        items = (await sim.client.get("/v1/projects/lab/sandboxes?state=running")).json()["items"]
        found = [one["identity"]["id"] for one in items]
        return found if len(found) == 2 else []

    while not (found := await both()):
        await sim.clock.sleep(0.2)
    return sorted(found)


async def post(sim: Sim, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    """Make one call."""
    answer = await sim.client.post(f"{WHERE}/{path}", json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def dead_worker() -> None:
    """SHARE-08: depth equals put minus taken, and an ended sandbox holds nothing."""
    async with Sim() as sim:
        first, second = await start(sim)
        items = [{"id": f"traj-{n}", "body": f"seed {n}"} for n in range(10)]
        assert await post(sim, "traj/put", {"items": items}) == {"accepted": 10, "repeated": 0}
        assert await post(sim, "traj/put", {"items": items}) == {"accepted": 0, "repeated": 10}
        call = {"call": "a", "most": 4, "visibilitySeconds": 3600, "worker": first}
        taken = await post(sim, "traj/take", call)
        assert [one["id"] for one in taken["items"]] == [f"traj-{n}" for n in range(4)]
        assert await post(sim, "traj/take", call) == taken
        status = (await sim.client.get(f"{WHERE}/traj")).json()
        assert (status["depth"], status["taken"]) == (6, 4)
        gone = await sim.client.delete(f"/v1/projects/lab/sandboxes/{first}")
        assert gone.status_code == 202, gone.text

        while (await sim.client.get(f"{WHERE}/traj")).json()["depth"] < 10:
            await sim.clock.sleep(0.2)
        receipt = taken["items"][0]["receipt"]
        assert await post(sim, "traj/ack", {"receipts": [receipt]}) == {
            "done": 0,
            "stale": [receipt],
        }
        refused = await post(sim, "traj/take", {**call, "call": "b"}, 409)
        assert refused["code"] == "fenced"
        again = await post(sim, "traj/take", {**call, "call": "c", "worker": second})
        got = [(one["id"], one["deliveries"]) for one in again["items"]]
        assert got == [(f"traj-{n}", 2) for n in range(4)]
        receipts = [one["receipt"] for one in again["items"]]
        assert await post(sim, "traj/ack", {"receipts": receipts}) == {"done": 4, "stale": []}
        assert sim.control is not None
        gateway = sim.control.gateway
        await queues.measure(gateway)
        lines = gateway.metrics.text().decode().splitlines()
        labels = '{experiment="rollouts",project="lab",queue="traj"}'
        assert f"dsec_queue_depth{labels} 6.0" in lines
        everything = (await sim.client.get(WHERE)).json()["items"]
        assert [(one["name"], one["acknowledged"]) for one in everything] == [("traj", 4)]
        await sim.client.delete("/v1/projects/lab/experiments/rollouts")
        while await sim.objects.list("queues/"):
            await sim.clock.sleep(0.5)
        # a put that was under way meanwhile leaves a queue that nobody has
        late = QueueLog(
            sim.objects, folder("lab", "uid", "late"), sim.clock, writer="g", ended=lambda _: False
        )
        await late.do(lambda queue, now: (queue.put(now, [("a", "x")]), None))
        gone = sim.clock.monotonic() + 3 * QUEUES_SECONDS
        while await sim.objects.list("queues/"):
            assert sim.clock.monotonic() < gone
            await sim.clock.sleep(60.0)


async def waits() -> None:
    """Long poll; a name, a size and a number that cannot be."""
    async with Sim() as sim:
        await start(sim)
        waiting = asyncio.create_task(post(sim, "work/take", {"call": "a", "waitSeconds": 10}))
        await sim.clock.sleep(3)
        await post(sim, "work/put", {"items": [{"id": "one", "body": "x"}]})
        assert len((await waiting)["items"]) == 1
        wrong = await post(sim, "No_Name/take", {"call": "a"}, 422)
        assert "queue" in str(wrong["message"])
        wrong = await post(sim, "work/take", {"call": "b", "most": 0}, 422)
        assert wrong["details"][0]["path"] == "most"
        one_item = {"items": [{"id": "one", "body": "x"}]}
        for number in range(63):
            await post(sim, f"q{number}/put", one_item)
        wrong = await post(sim, "q63/put", one_item, 429)
        assert wrong["code"] == "too-many-queues"
        await post(sim, "q0/put", one_item)
        big = {"items": [{"id": "big", "body": "x" * 300_000}]}
        wrong = await post(sim, "work/put", big, 422)
        assert "262144" in str(wrong["message"])


def test_items_of_a_dead_worker_come_back(simulate: Callable[..., Any]) -> None:
    """See `dead_worker`."""
    simulate(dead_worker)


def test_a_take_waits_for_work_and_mistakes_are_named(simulate: Callable[..., Any]) -> None:
    """See `waits`."""
    simulate(waits)
