"""Calls from inside a sandbox: its own experiment's queues, its own role's count, nothing else."""

import json
from collections.abc import Callable
from typing import Any

from dsec.agent.inside import gateway_path
from sim_world import Sim, create
from test_sim_scaling import document

TASK = """
name: {name}
roles:
  - {{role: worker, replicas: 2, image: "hub/base:1", resource: {{cpu: 1, mem: 256M}}}}
"""
LAB = "/v1/projects/lab"


async def start(sim: Sim, *names: str) -> dict[str, list[str]]:
    """Run tasks of two workers each; return their sandboxes."""
    sim.start_controller()
    await sim.add_node("n0")
    await sim.ready(nodes=1)
    for name in names:
        answer = await sim.client.post(f"{LAB}/experiments", content=TASK.format(name=name))
        assert answer.status_code == 201, answer.text
    return {name: await running(sim, name, 2) for name in names}


async def running(sim: Sim, name: str, count: int) -> list[str]:
    """Wait for so many running sandboxes of a task; return their ids."""
    for _ in range(200):
        items = (await sim.client.get(f"{LAB}/sandboxes?state=running&experiment={name}")).json()
        if len(items["items"]) == count:
            return sorted(one["identity"]["id"] for one in items["items"])
        await sim.clock.sleep(0.5)
    raise AssertionError(f"{name}: not {count} run")


async def call(sim: Sim, sandbox: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Do what a program inside does; return status and answer."""
    method = "GET" if body is None else "POST"
    data = b"" if body is None else json.dumps(body).encode()
    status, answer = await sim.substrates["n0"].on_call(sandbox, method, path, data)
    return status, json.loads(answer)


def test_a_worker_takes_and_acknowledges_its_own_work(simulate: Callable[..., None]) -> None:
    """SHARE-08 from inside: what it takes is its own, and goes to others when it ends."""

    async def scenario() -> None:
        async with Sim() as sim:
            first, second = (await start(sim, "rollouts"))["rollouts"]
            items = [{"id": f"traj-{n}", "body": "seed"} for n in range(3)]
            status, answer = await call(sim, first, "/v1/queue/traj/put", {"items": items})
            assert (status, answer) == (200, {"accepted": 3, "repeated": 0})
            take = {"call": "a", "most": 2, "visibilitySeconds": 3600}
            status, taken = await call(sim, first, "/v1/queue/traj/take", take)
            assert [one["id"] for one in taken["items"]] == ["traj-0", "traj-1"]
            receipts = {"receipts": [taken["items"][0]["receipt"]]}
            status, answer = await call(sim, first, "/v1/queue/traj/ack", receipts)
            assert (status, answer["done"]) == (200, 1)
            status, told = await call(sim, first, "/v1/queue/traj")
            assert (told["depth"], told["taken"], told["acknowledged"]) == (1, 1, 1)
            # the same call of another worker is another call
            status, others = await call(sim, second, "/v1/queue/traj/take", take)
            assert [one["id"] for one in others["items"]] == ["traj-2"]
            receipts = {"receipts": [others["items"][0]["receipt"]]}
            await call(sim, second, "/v1/queue/traj/release", receipts)
            long = {**take, "call": "x" * 128}
            assert (await call(sim, first, "/v1/queue/traj/take", long))[0] == 422
            # another worker's name is not for it to use
            status, answer = await call(
                sim, first, "/v1/queue/traj/take", {**take, "call": "b", "worker": second}
            )
            assert (status, answer["code"]) == (403, "denied")

            assert (await sim.client.delete(f"{LAB}/sandboxes/{first}")).status_code == 202
            for _ in range(100):
                status, told = await call(sim, second, "/v1/queue/traj")
                if told["depth"] == 2:
                    break
                await sim.clock.sleep(0.5)
            assert told["depth"] == 2
            status, answer = await call(sim, first, "/v1/queue/traj/put", {"items": items})
            assert (status, answer["code"]) == (409, "fenced")

    simulate(scenario)


def test_no_queue_of_another_task_is_in_reach(simulate: Callable[..., None]) -> None:
    """Queues are named within the own experiment; other sandboxes' names are refused by the log."""

    async def scenario() -> None:
        async with Sim() as sim:
            found = await start(sim, "rollouts", "other")
            mine, theirs = found["rollouts"][0], found["other"][0]
            items = {"items": [{"id": "secret", "body": "x"}]}
            assert (await call(sim, theirs, "/v1/queue/traj/put", items))[0] == 200
            status, told = await call(sim, mine, "/v1/queue/traj")
            assert (status, told["depth"]) == (200, 0)
            for path in (
                "/v1/queue/traj/../../other/queues/traj",
                "/v1/queue/traj/drop",
                f"/v1/projects/lab/experiments/other/queues/traj?x={theirs}",
            ):
                assert (await call(sim, mine, path, {}))[0] == 404
            # an agent that lies about its sandboxes: this one is bound to another node
            await sim.add_node("n1")
            answers = await sim.agents["n1"].uplink._asking.post(
                f"/agent/v1/sandboxes/{mine}/queues/traj/put", json=items
            )
            assert answers.status_code == 403, answers.text
            assert answers.json()["message"] == f"{mine} is no sandbox of n1"
            assert (await sim.client.post(f"/agent/v1/sandboxes/{mine}/scale", json={})).is_error

    simulate(scenario)


def test_a_task_asks_for_its_own_count(simulate: Callable[..., None]) -> None:
    """ELAS-23: a fixed role is set within its bounds; another role is refused."""

    async def scenario() -> None:
        async with Sim() as sim:
            sandbox = (await start(sim, "rollouts"))["rollouts"][0]
            status, answer = await call(sim, sandbox, "/v1/scale", {"replicas": 4})
            assert (status, answer["scalerDecides"]) == (200, False)
            await running(sim, "rollouts", 4)
            overrides = (await sim.experiment("rollouts"))["status"]["overrides"]
            assert [(one["kind"], one["by"]) for one in overrides] == [("scale", sandbox)]
            status, answer = await call(
                sim, sandbox, "/v1/scale", {"replicas": 4, "role": "learner"}
            )
            assert (status, answer["code"]) == (403, "denied")
            assert "its own role" in answer["message"]
            assert (await call(sim, sandbox, "/v1/scale", {"replicas": -1}))[0] == 422

    simulate(scenario)


def test_an_elastic_roles_scaler_decides_at_once(simulate: Callable[..., None]) -> None:
    """ELAS-23: a wish within max is granted as asked, beyond it as far as max; it is told why."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            text = document(elastic={"periodSeconds": 3600})
            answer = await sim.client.post(f"{LAB}/experiments", content=text)
            assert answer.status_code == 201, answer.text
            sandbox = (await running(sim, "rollouts", 4))[0]
            for wish, count in ((8, 8), (100, 12)):
                status, answer = await call(sim, sandbox, "/v1/scale", {"replicas": wish})
                assert (status, answer["scalerDecides"]) == (200, True)
                await running(sim, "rollouts", count)
                state = (await sim.experiment("rollouts"))["status"]
                assert state["scaling"][0]["reason"] == "requested"
                assert [one["kind"] for one in state["overrides"]] == ["scale"]

    simulate(scenario)


def test_what_belongs_to_no_experiment_has_no_queue(simulate: Callable[..., None]) -> None:
    """A direct create is told so; an unknown gateway answer is not mistaken for a refusal."""

    async def scenario() -> None:
        async with Sim() as sim:
            await start(sim, "rollouts")
            made = await sim.client.post(f"{LAB}/sandboxes", json={"creates": [create("one")]})
            sandbox = made.json()["answers"][0]["id"]
            status, answer = await call(sim, sandbox, "/v1/queue/traj")
            assert (status, answer["code"]) == (409, "no-experiment")
            sim.faults.cut.add("n0")
            status, answer = await call(sim, sandbox, "/v1/queue/traj")
            assert (status, answer["code"]) == (503, "away")

    simulate(scenario)


def test_paths_are_the_table_and_nothing_else() -> None:
    """A path can name no other sandbox and no other route."""
    base = "/agent/v1/sandboxes/sb-1"
    assert gateway_path("sb-1", "POST", "/v1/scale") == f"{base}/scale"
    assert gateway_path("sb-1", "GET", "/v1/queue/a-1") == f"{base}/queues/a-1"
    assert gateway_path("sb-1", "POST", "/v1/queue/a/take") == f"{base}/queues/a/take"
    for method, path in (
        ("GET", "/v1/scale"),
        ("POST", "/v1/queue/a"),
        ("GET", "/v1/queue/a/take"),
        ("POST", "/v1/queue/A/take"),
        ("POST", "/v1/queue/a%2fb/take"),
        ("POST", "/v1/queue/a/take/"),
        ("POST", "/v1/queue/a/take\n"),
        ("DELETE", "/v1/queue/a"),
    ):
        assert gateway_path("sb-1", method, path) is None
