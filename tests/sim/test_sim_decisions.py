"""Why a sandbox is where it is, or waits: asked of the API, told from history."""

from collections.abc import Callable

from dsec.placement.dumps import DecisionDump, replay
from sim_world import Sim, create

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
