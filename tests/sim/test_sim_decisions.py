"""Why a sandbox is where it is, or waits: asked of the API, told from history."""

from collections.abc import Callable

from dsec.journal.history import Question, read
from dsec.placement.dumps import DecisionDump, replay
from sim_world import Sim, create

DOCUMENT = """
metadata: {name: pair}
spec:
  image: base
  resources: {cpu: 1, memory: 256Mi}
  experiment:
    groups:
      - {name: sampling, role: worker, replicas: 5, resources: {cpu: 1, memory: 256Mi}}
"""
HUGE = {"cpuMilli": 4_000_000, "memoryBytes": 1 << 30}


def test_the_newest_decision_of_a_sandbox(simulate: Callable[..., None]) -> None:
    """Of one that runs, of one that waits, and of none of this project."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n1")
            await sim.ready(nodes=1)
            where = "/v1/projects/lab/sandboxes"
            creates = [create("fits"), create("huge", resources=HUGE)]
            made = await sim.client.post(where, json={"creates": creates})
            fits, huge = (answer["id"] for answer in made.json()["answers"])
            await sim.clock.sleep(2)
            placed = (await sim.client.get(f"{where}/{fits}/decision")).json()
            assert (placed["sandbox"], placed["node"]) == (fits, "n1")
            assert placed["record"]["nodes"] == {"n1": 1}
            waits = (await sim.client.get(f"{where}/{huge}/decision")).json()
            assert waits["node"] == ""
            assert "CPU: asked 4000 cores" in waits["message"]
            (rejected,) = waits["record"]["rejected"]
            assert (rejected["dimension"], rejected["nodes"]) == ("cpu", 1)
            assert placed["record"]["epoch"] == 1

            answer = await sim.client.get("/v1/decisions/dump")
            assert answer.status_code == 200, answer.text
            dumped = DecisionDump.model_validate_json(answer.content)
            assert [request.id for request in dumped.requests] == [huge]
            assert replay(dumped).differences == []
            for path in (f"{where}/sb-none", f"/v1/projects/other/sandboxes/{fits}"):
                assert (await sim.client.get(f"{path}/decision")).status_code == 404

    simulate(scenario)


def test_the_description_of_a_task_tells_the_decision(simulate: Callable[..., None]) -> None:
    """SCHED-27: where, how scored and why not elsewhere; history holds the same record."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            for name in ("n0", "n1"):
                await sim.add_node(name)
            await sim.ready(nodes=2)
            where = "/v1/projects/lab/experiments"
            made = await sim.client.post(where, content=DOCUMENT)
            assert made.status_code == 201, made.text
            await sim.clock.sleep(5)
            name = made.json()["metadata"]["name"]
            described = (await sim.client.get(f"{where}/{name}/describe")).json()
            (section,) = (one for one in described["sections"] if one["title"] == "Decisions")
            lines = {line["name"]: line["text"] for line in section["lines"]}
            assert "5 of 5 alike were placed" in lines["sampling"]
            assert "stranding" in lines["sampling score"], lines
            rows = [row async for row in read(sim.objects, Question(kind="decision"))]
            (record,) = (row.body["record"] for row in rows)
            assert sum(record["nodes"].values()) == 5
            assert record["scores"]

    simulate(scenario)
