"""Counts that follow load, through the real gateway and controller in virtual time."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from dsec.agent.substrates.simulated import Profile
from dsec.controllers.replica_scaler import Switches
from dsec.scaling.replicas.proposals import Recorded, recorded
from dsec.world.metrics import MetricsAwayError
from sim_world import Sim

WHERE = "/v1/projects/lab/experiments/rollouts"
USE = 'avg(use{project="lab",experiment="rollouts",role="sim"})'


def document(**changes: Any) -> str:
    """Return an experiment with one elastic role of one core a replica."""
    elastic = {
        "metric": "queue_depth",
        "preset": "role-queue",
        "target": 64,
        "perInstanceRate": 16,
        **changes.pop("elastic", {}),
    }
    role = {
        "name": "sim",
        "replicas": 4,
        "min": 4,
        "max": 12,
        "image": "hub/base:1",
        "nodeLabels": {"dsec.dev/simulated": "true"},
        "resources": {"cpuMilli": 1000, "memoryBytes": 256 << 20},
        "elastic": elastic,
        **changes,
    }
    return json.dumps(
        {
            "apiVersion": "dsec.dev/v1alpha1",
            "kind": "Experiment",
            "metadata": {"name": "rollouts"},
            "spec": {"roles": [role]},
        }
    )


async def submit(sim: Sim, text: str) -> None:
    """Submit an experiment."""
    answer = await sim.client.post("/v1/projects/lab/experiments", content=text)
    assert answer.status_code == 201, answer.text


async def status(sim: Sim) -> dict[str, Any]:
    """Return the status of the experiment."""
    return dict((await sim.experiment("rollouts"))["status"])


async def scaling(sim: Sim) -> dict[str, Any]:
    """Return what the scaler of its role knows."""
    return dict((await status(sim))["scaling"][0])


def of(sim: Sim, name: str) -> int:
    """Return how many sandboxes of an experiment live."""
    return sum(
        1
        for agent in sim.agents.values()
        for entry in agent.core
        if entry.live and entry.spec.identity.experiment == name
    )


async def history(sim: Sim) -> list[dict[str, Any]]:
    """Return every row of history, in the order of its objects."""
    found: list[dict[str, Any]] = []
    for info in await sim.objects.list("history/"):
        data, _ = await sim.objects.get(info.key)
        found += map(json.loads, data.splitlines())
    return found


async def put(sim: Sim, start: int, count: int) -> None:
    """Put items into the role's queue."""
    items = [{"id": f"t{n}", "body": "x"} for n in range(start, start + count)]
    answer = await sim.client.post(f"{WHERE}/queues/sim/put", json={"items": items})
    assert answer.status_code == 200, answer.text


async def work_off(sim: Sim, most: int) -> None:
    """Take and acknowledge items, as workers do."""
    taken = await sim.client.post(
        f"{WHERE}/queues/sim/take",
        json={"call": f"c{sim.clock.monotonic()}", "most": most, "visibilitySeconds": 600},
    )
    receipts = [one["receipt"] for one in taken.json()["items"]]
    done = await sim.client.post(f"{WHERE}/queues/sim/ack", json={"receipts": receipts})
    assert done.json()["done"] == len(receipts)


def test_a_queue_raises_replicas_and_its_end_lowers_them(simulate: Callable[..., None]) -> None:
    """ELAS-03, ELAS-27: 100 items make 7 of 4, none makes 4 again, and others get the room."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            # room for seven, and not for the other task beside them
            await sim.add_node("n0", Profile(name="sim", cpu_milli=8000, memory_bytes=64 << 30))
            await sim.ready(nodes=1)
            await submit(sim, document())
            await sim.until(lambda: of(sim, "rollouts") == 4, 60)
            await put(sim, 0, 100)
            began = sim.clock.monotonic()
            await sim.until(lambda: of(sim, "rollouts") == 7, 200)
            # more than three periods of 30 s, and the start of the first
            assert 90 <= sim.clock.monotonic() - began <= 130
            await sim.clock.sleep(5)
            told = await status(sim)
            assert told["overrides"][0]["by"] == "dsec-scaler"
            assert told["ready"] == 7
            knows = told["scaling"][0]
            assert knows["message"].startswith("raised from 4 to 7: queue depth 100 is above 64")
            (growth,) = knows["growths"]
            assert growth["firstResult"] >= growth["acted"] > growth["triggered"]
            words = (await sim.client.get(f"{WHERE}/describe")).json()
            lines = {
                line["name"]: line["text"]
                for section in words["sections"]
                if section["title"] == "Scaling"
                for line in section["lines"]
            }
            assert lines["sim"] == knows["message"]
            assert lines["sim growth"].startswith("4 to 7")
            assert (await sim.experiment("rollouts"))["spec"]["roles"][0]["replicas"] == 4
            other = json.loads(document(elastic={}, replicas=1, min=1, max=1))
            other["metadata"]["name"] = "other"
            other["spec"]["roles"][0]["resources"]["cpuMilli"] = 4000
            del other["spec"]["roles"][0]["elastic"]
            await submit(sim, json.dumps(other))
            await work_off(sim, 100)
            assert of(sim, "other") == 0
            await sim.until(lambda: of(sim, "rollouts") == 4, 200)
            await sim.until(lambda: of(sim, "other") == 1, 10)
            assert (await scaling(sim))["reason"] in {"shrunk", "steady"}

    simulate(scenario)


@pytest.mark.case("autoscaler#7873")
def test_another_leader_goes_on_where_the_first_was(simulate: Callable[..., None]) -> None:
    """Killed after two of four rounds: the fourth round in all raises the count, not the sixth."""

    async def scenario() -> None:
        async with Sim() as sim:
            first = sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            await submit(sim, document())
            await sim.until(lambda: of(sim, "rollouts") == 4, 60)
            await put(sim, 0, 100)
            while (await scaling(sim)).get("growRounds", 0) < 2:
                await sim.clock.sleep(1)
            before = await scaling(sim)
            await sim.kill(first)
            sim.start_controller()
            await sim.until(lambda: sim.leader() is not None, 120)
            assert (await scaling(sim))["growRounds"] >= before["growRounds"]
            await sim.until(lambda: of(sim, "rollouts") == 7, 75)
            assert (await scaling(sim))["guard"]["last"] == "grow"

    simulate(scenario)


def test_metrics_of_prometheus_drive_a_role_and_their_loss_holds_it(
    simulate: Callable[..., None],
) -> None:
    """three-signal: queue and use raise it; without Prometheus nothing is removed."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.metrics.values = {"depth()": 500, USE: 90}
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            elastic = {"preset": "three-signal", "query": "depth()"}
            await submit(sim, document(elastic=elastic))
            await sim.until(lambda: of(sim, "rollouts") == 6, 200)
            sim.metrics.values = dict.fromkeys(("depth()", USE), MetricsAwayError("it is away"))
            await sim.clock.sleep(400)
            knows = await scaling(sim)
            assert (of(sim, "rollouts"), knows["reason"]) == (6, "no-data")
            assert "(it is away)" in knows["message"]
            sim.metrics.values = {"depth()": 0, USE: 20}
            await sim.until(lambda: of(sim, "rollouts") == 4, 300)
            await sim.clock.sleep(60)  # history is written in batches
            rows = [row for row in await history(sim) if row["kind"] == "replicas-sampled"]
            assert len(rows) >= 2
            when = datetime.fromisoformat(rows[0]["utc"])
            assert recorded(when, rows[0]["body"], "queue_depth") == Recorded(when, 4, 90.0, 500.0)
            scaled = [r["body"] for r in await history(sim) if r["kind"] == "replicas-scaled"]
            assert [(one["before"], one["after"]) for one in scaled] == [(4, 6), (6, 4)]

    simulate(scenario)


def test_shrinking_switched_off_is_only_told(simulate: Callable[..., None]) -> None:
    """OPS-18, ELAS-29: growth first; the rest of the installation works as before."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.switches = Switches(shrink=False)
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            await submit(sim, document(replicas=8))
            await put(sim, 0, 40)
            await sim.until(lambda: of(sim, "rollouts") == 8, 60)
            await sim.clock.sleep(200)
            knows = await scaling(sim)
            assert (of(sim, "rollouts"), knows["reason"], knows["would"]) == (8, "would-shrink", 4)

    simulate(scenario)


def test_a_scaler_that_is_off_leaves_counts_to_people(simulate: Callable[..., None]) -> None:
    """ELAS-01: without it, `scale` and everything else works."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.switches = Switches(replicas=False)
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            await submit(sim, document())
            await put(sim, 0, 500)
            await sim.until(lambda: of(sim, "rollouts") == 4, 60)
            await sim.clock.sleep(200)
            assert of(sim, "rollouts") == 4
            call = {"role": "sim", "replicas": 5}
            answer = await sim.client.post(f"{WHERE}/scale", json=call)
            assert answer.status_code == 200, answer.text
            await sim.until(lambda: of(sim, "rollouts") == 5, 30)

    simulate(scenario)


def test_a_quota_is_the_ceiling_of_growth(simulate: Callable[..., None]) -> None:
    """ELAS-33: the count stops at what the quota has room for; no replica waits for it."""

    async def scenario() -> None:
        async with Sim() as sim:
            tenant = await sim.records.get("Tenant", "research")
            tenant["spec"]["quota"] = {"nominal": {"sandboxes": 6}}
            await sim.records.replace(tenant)
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            await submit(sim, document())
            await put(sim, 0, 400)
            await sim.until(lambda: of(sim, "rollouts") == 6, 240)
            await sim.clock.sleep(120)
            told = await status(sim)
            assert (told["desired"], told["pending"]) == (6, 0)
            assert told["scaling"][0]["limit"] == "quota"

    simulate(scenario)


def test_a_person_and_the_scaler_change_the_same_count(simulate: Callable[..., None]) -> None:
    """A scale by hand stands until the metric says otherwise; a changed declaration starts anew."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            await submit(sim, document())
            await put(sim, 0, 130)
            call = {"role": "sim", "replicas": 9}
            answer = await sim.client.post(f"{WHERE}/scale", json=call)
            assert answer.status_code == 200, answer.text
            await sim.clock.sleep(100)
            assert of(sim, "rollouts") == 9
            await work_off(sim, 130)
            await sim.until(lambda: of(sim, "rollouts") == 4, 300)
            text = document(replicas=6)
            answer = await sim.client.post("/v1/projects/lab/experiments?mode=apply", content=text)
            assert answer.status_code == 200, answer.text
            await sim.until(lambda: of(sim, "rollouts") == 6, 30)
            await sim.until(lambda: of(sim, "rollouts") == 4, 300)

    simulate(scenario)


def test_growth_touches_nothing_else(simulate: Callable[..., None]) -> None:
    """ELAS-20, ELAS-24: the trainer's sandbox runs on as it is, and no node is asked for."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            whole = json.loads(document())
            (workers,) = whole["spec"]["roles"]
            plain = {k: v for k, v in workers.items() if k not in {"elastic", "min", "max"}}
            whole["spec"]["roles"].append(plain | {"name": "trainer", "replicas": 1})
            await submit(sim, json.dumps(whole))
            await sim.until(lambda: of(sim, "rollouts") == 5, 60)

            def trainer() -> list[tuple[str, str]]:
                return [
                    (entry.spec.identity.id, entry.status.state.value)
                    for agent in sim.agents.values()
                    for entry in agent.core
                    if entry.spec.identity.role == "trainer"
                ]

            await sim.until(lambda: trainer()[0][1] == "running", 30)
            before, nodes = trainer(), len(sim.agents)
            await put(sim, 0, 190)
            while of(sim, "rollouts") < 13:
                assert trainer() == before
                await sim.clock.sleep(1)
            await sim.clock.sleep(30)
            assert (trainer(), len(sim.agents)) == (before, nodes)
            assert (await status(sim))["pending"] == 0

    simulate(scenario)


def test_a_role_that_somebody_set_to_nothing_stays_so(simulate: Callable[..., None]) -> None:
    """Without a min, zero is a person's off switch; with a min of zero the queue starts it."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            await submit(sim, document(min=None, replicas=0))
            await put(sim, 0, 100)
            await sim.clock.sleep(200)
            assert of(sim, "rollouts") == 0
            text = document(min=0, replicas=0)
            answer = await sim.client.post("/v1/projects/lab/experiments?mode=apply", content=text)
            assert answer.status_code == 200, answer.text
            await sim.until(lambda: of(sim, "rollouts") == 7, 200)

    simulate(scenario)
