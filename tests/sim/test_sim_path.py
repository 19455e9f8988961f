"""The whole path in one process: create, place, bind, dispatch, state, end, results."""

import asyncio
import copy
import hashlib
import json
from collections.abc import Callable

from sim_world import Sim, create

DOCUMENT = """
metadata: {name: pair}
spec:
  image: base
  resources: {cpu: 1, memory: 256Mi}
  experiment:
    groups:
      - {name: sampling, role: worker, replicas: 5, resources: {cpu: 1, memory: 256Mi}}
      - {name: params, role: parameter-server, replicas: 1, resources: {cpu: 1, memory: 256Mi}}
"""


def test_keyed_creates_run_end_and_answer(simulate: Callable[..., None]) -> None:
    """A batch is bound once; the same keys exist, another body conflicts; an end is collected."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            for n in range(3):
                await sim.add_node(f"n{n}")
            await sim.ready(nodes=3)
            batch = {"creates": [create(f"k{n}") for n in range(20)]}
            first = await sim.client.post("/v1/projects/lab/sandboxes", json=batch)
            assert first.status_code == 200, first.text
            answers = first.json()["answers"]
            assert {a["outcome"] for a in answers} == {"bound"}, answers
            again = (await sim.client.post("/v1/projects/lab/sandboxes", json=batch)).json()
            assert [a["id"] for a in again["answers"]] == [a["id"] for a in answers]
            assert {a["outcome"] for a in again["answers"]} == {"exists"}
            other = {"creates": [create("k0", command=["other"])]}
            other = (await sim.client.post("/v1/projects/lab/sandboxes", json=other)).json()
            assert other["answers"][0]["outcome"] == "conflict"
            assert len(sim.live()) == 20
            await sim.until(
                lambda: all(states[0][1] == "running" for states in sim.live().values()), 10
            )
            one = answers[0]["id"]
            gone = await sim.client.delete(f"/v1/projects/lab/sandboxes/{one}")
            assert gone.status_code == 202, gone.text
            await sim.clock.sleep(15)
            status = (await sim.client.get(f"/v1/projects/lab/sandboxes/{one}")).json()
            assert status["state"] == "ended", status
            assert status["end"]["reason"] == "stopped"
            listed = (await sim.client.get("/v1/projects/lab/sandboxes?state=running")).json()
            assert len(listed["items"]) == 19

    simulate(scenario)


def test_an_experiment_runs_and_is_removed(simulate: Callable[..., None]) -> None:
    """A document becomes running replicas, is described, scaled, frozen and removed in order."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            made = await sim.client.post("/v1/projects/lab/experiments", content=DOCUMENT)
            assert made.status_code == 201, made.text

            async def status() -> dict[str, object]:
                return (await sim.experiment("pair")).get("status", {})

            for _ in range(100):
                await sim.clock.sleep(0.5)
                if (await status()).get("ready") == 6:
                    break
            now = await status()
            assert now["ready"] == 6, now
            stages = [stage["name"] for stage in now["stages"]]
            assert stages == ["submit", "bind", "image", "create", "start", "running"]
            words = await sim.client.get("/v1/projects/lab/experiments/pair/describe")
            assert "Running: all 6 replicas" in words.json()["headline"]
            scaled = await sim.client.post(
                "/v1/projects/lab/experiments/pair/scale", json={"role": "sampling", "replicas": 2}
            )
            assert scaled.status_code == 200, scaled.text
            await sim.until(lambda: len(sim.live()) == 3, 30)
            frozen = await sim.client.post("/v1/projects/lab/experiments/pair/freeze")
            assert frozen.status_code == 200, frozen.text
            await sim.until(lambda: not sim.live(), 30)
            await sim.clock.sleep(5)
            conditions = {c["type"]: c["status"] for c in (await status())["conditions"]}
            assert conditions["Frozen"] == "True"
            await sim.client.delete("/v1/projects/lab/experiments/pair")
            await sim.clock.sleep(10)
            assert (await sim.experiments()).items == []

    simulate(scenario)


BATCH = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "Experiment",
    "metadata": {"name": "grade"},
    "spec": {
        "roles": [
            {
                "name": "worker",
                "replicas": 40,
                "image": "base",
                "completion": "run-to-end",
                "restartPolicy": "never",
                "nodeLabels": {"dsec.dev/simulated": "true"},
                "env": {"DSEC_SIM_SECONDS": "1"},
                "resources": {"cpuMilli": 16_000, "memoryBytes": 1 << 26},
            }
        ]
    },
}


def test_a_batch_waits_for_room_and_gives_ordered_results(simulate: Callable[..., None]) -> None:
    """Forty items on a node with room for six: all end, each with its line, in order."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            lines = "".join(f'{{"item": {n}}}\n' for n in range(40)).encode()
            digest = hashlib.sha256(lines).hexdigest()
            put = await sim.client.put(f"/v1/projects/lab/inputs/{digest}", content=lines)
            assert put.status_code == 201, put.text
            document = copy.deepcopy(BATCH)
            document["spec"]["roles"][0]["itemsRef"] = digest
            made = await sim.client.post(
                "/v1/projects/lab/experiments", content=json.dumps(document)
            )
            assert made.status_code == 201, made.text
            await sim.clock.sleep(3)
            told = (await sim.experiment("grade"))["status"]
            assert told["pending"] > 20
            assert told["pendingReasons"][0]["message"].startswith("CPU: asked 16 cores, free")
            await sim.clock.sleep(60)
            status = (await sim.experiment("grade"))["status"]
            assert {c["type"]: c["status"] for c in status["conditions"]}["Completed"] == "True"
            assert status["roles"][0]["ended"] == [{"reason": "completed", "count": 40}]
            assert [stage["name"] for stage in status["stages"]][-1] == "end"
            answer = await sim.client.get("/v1/projects/lab/experiments/grade/results")
            rows = [json.loads(line) for line in answer.text.splitlines()]
            assert [row["identity"]["index"] for row in rows] == list(range(40))
            assert {row["end"]["reason"] for row in rows} == {"completed"}
            log = sim.leader().controller.term.bind_log.state
            uid = made.json()["metadata"]["uid"]
            items = {b.spec.identity.index: b.spec.item for b in log.of_experiment(uid)}
            assert items == {n: f'{{"item": {n}}}' for n in range(40)}
            used = (await sim.records.get("Tenant", "research"))["status"]["used"]
            assert used["sandboxes"] == 0

    simulate(scenario)


def test_quota_is_live_and_counts_what_waits(simulate: Callable[..., None]) -> None:
    """At a cap of five the sixth waits with the figure; a raised quota starts it at once."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)

            async def limit(sandboxes: int) -> None:
                tenant = await sim.records.get("Tenant", "research")
                tenant["spec"]["quota"] = {"nominal": {"sandboxes": sandboxes}}
                await sim.records.replace(tenant)

            await limit(5)
            await sim.clock.sleep(1)
            batches = [{"creates": [create(f"k{n}-{m}") for m in range(4)]} for n in range(2)]
            both = await asyncio.gather(
                *(sim.client.post("/v1/projects/lab/sandboxes", json=b) for b in batches)
            )
            answers = [a for one in both for a in one.json()["answers"]]
            assert [a["outcome"] for a in answers].count("bound") == 5
            waits = [a for a in answers if a["outcome"] == "pending"]
            assert len(waits) == 3
            why = waits[0]["message"]
            assert "quota of sandboxes, own share of research: asked 1, free 0 of 5" in why
            await limit(7)
            await sim.until(lambda: len(sim.live()) == 7, 10)
            done = await sim.client.delete(f"/v1/projects/lab/sandboxes/{answers[0]['id']}")
            assert done.status_code == 202
            await sim.clock.sleep(15)
            assert len(sim.live()) == 7, "the freed place goes to the one that waits"

    simulate(scenario)


def test_refusals_by_agents_move_on(simulate: Callable[..., None]) -> None:
    """An agent has the last word: what it refuses goes to another node, once."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            for n in range(2):
                await sim.add_node(f"n{n}")
            await sim.ready(nodes=2)
            sim.agents["n0"].core.refuse("disk", "full")
            made = await sim.client.post(
                "/v1/projects/lab/sandboxes", json={"creates": [create(f"k{n}") for n in range(9)]}
            )
            answers = made.json()["answers"]
            assert {(a["outcome"], a["node"]) for a in answers} == {("bound", "n1")}
            assert {copies[0][0] for copies in sim.live().values()} == {"n1"}

    simulate(scenario)
