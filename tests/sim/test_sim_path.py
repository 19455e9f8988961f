"""The whole path in one process: create, place, bind, dispatch, state, end, results."""

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
