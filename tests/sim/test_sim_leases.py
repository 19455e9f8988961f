"""Single creates in gateways, out of leases of quota: what users and other work see of it."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from dsec.api.tenant import TenantSpec
from dsec.api.wire import KeyedCreate
from dsec.journal.keyed import keyed_binding, new_id
from dsec.journal.lanes import LANES
from dsec.journal.lanes import decode as decode_lane
from dsec.world.agents import AgentClient, AgentRefusedError
from dsec.world.tls import GATEWAY
from lease_world import MANY, WHERE, Fronts, Starts, ask, placed, quota, warm
from sim_world import Gate, Sim, create


def test_a_gateway_places_what_it_has_a_lease_for(simulate: Callable[..., None]) -> None:
    """Bound in the lane, started at once, seen by all; the leader books it out of the lease."""

    async def scenario() -> None:
        async with Sim(seed=1) as sim:
            process = sim.start_controller()
            for n in range(3):
                await sim.add_node(f"n{n}")
            await sim.ready(nodes=3)
            assert sim.control is not None
            gateway = sim.control.gateway
            await warm(sim, sim.client, gateway)
            term = process.controller.term
            assert term is not None
            before = placed(gateway)
            answers = [await ask(sim.client, f"k{n}") for n in range(20)]
            assert {one["outcome"] for one in answers} == {"bound"}
            assert placed(gateway) - before == 20
            # seen before and after the leader has copied it; a repeat is the same, another is not
            for one in (answers[0], answers[-1]):
                shown = await sim.client.get(f"{WHERE}/{one['id']}")
                assert shown.status_code == 200, shown.text
                assert shown.json()["node"] == one["node"]
            again = await ask(sim.client, "k3")
            assert (again["outcome"], again["id"]) == ("exists", answers[3]["id"])
            other = await ask(sim.client, "k3", item="other")
            assert other["outcome"] == "conflict"
            ledger = term.placer.rounds.planner.ledger
            await sim.clock.sleep(12)
            why = await sim.client.get(f"{WHERE}/{answers[5]['id']}/decision")
            assert why.status_code == 200, why.text
            assert why.json()["node"] == answers[5]["node"]
            assert why.json()["record"]["nodes"] == {answers[5]["node"]: 1}
            assert why.json()["record"]["scores"]
            assert len(term.bind_log.state.bound) == 20 + MANY
            assert ledger.used("research")["sandboxes"] == 20 + MANY
            assert ledger.audit() == []
            live = sim.live()
            assert all(len(live[one["id"]]) == 1 for one in answers)
            # idle: all of it is given back, and the lane is closed
            await sim.until(lambda: not ledger.leased("research").get("sandboxes"), 60)
            await sim.until(lambda: term.bind_log.state.lanes == {}, 5)
            assert (await sim.client.delete(f"{WHERE}/{answers[0]['id']}")).status_code == 202

    simulate(scenario)


def test_without_a_controller_creates_go_on_until_leases_end(
    simulate: Callable[..., None],
) -> None:
    """Then they are refused in words, and done once under the next leader, with the same keys."""

    async def scenario() -> None:
        async with Sim(seed=2) as sim:
            first = sim.start_controller()
            for n in range(3):
                await sim.add_node(f"n{n}")
            await sim.ready(nodes=3)
            assert sim.control is not None
            gateway = sim.control.gateway
            await warm(sim, sim.client, gateway)
            for n in range(24):
                # what is lent follows from what was created lately
                assert (await ask(sim.client, f"early-{n}"))["outcome"] == "bound"
                await sim.clock.sleep(0.5)
            await sim.kill(first)
            died = sim.clock.monotonic()
            asked: dict[str, dict[str, Any]] = {}
            while sim.clock.monotonic() - died < 20:
                key = f"k{len(asked)}"
                asked[key] = await ask(sim.client, key)
                asked[key]["after"] = sim.clock.monotonic() - died
                await sim.clock.sleep(0.5)
            done = {key: one for key, one in asked.items() if one["outcome"] == "bound"}
            refused = {key: one for key, one in asked.items() if key not in done}
            assert 4 < max(one["after"] for one in done.values()) < 10
            assert len(done) >= 8
            assert all(one["outcome"] == "away" for one in refused.values())
            assert any("lease" in one["message"] for one in refused.values()), refused
            assert len(sim.live()) == MANY + 24 + len(done)
            repeated = await ask(sim.client, next(iter(done)))
            assert repeated["outcome"] in ("exists", "away")
            sim.start_controller()
            await sim.ready(nodes=3)
            for key in refused:
                answer = await ask(sim.client, key)
                assert answer["outcome"] in ("bound", "exists"), answer
            for key, one in done.items():
                assert (await ask(sim.client, key))["id"] == one["id"]
            await sim.clock.sleep(15)
            assert len(sim.live()) == MANY + 24 + len(asked)
            assert all(len(copies) == 1 for copies in sim.live().values())

    simulate(scenario)


def test_a_key_through_another_gateway_takes_its_shard_back(
    simulate: Callable[..., None],
) -> None:
    """Bound once, whoever is asked; the leader keeps that shard, and the rest stays lent."""

    async def scenario() -> None:
        async with Sim(seed=3) as sim:
            process = sim.start_controller()
            for n in range(3):
                await sim.add_node(f"n{n}")
            await sim.ready(nodes=3)
            fronts = Fronts(sim)
            first, second = await fronts.start(), await fronts.start()
            await warm(sim, first.client, first.gateway)
            made = await ask(first.client, "mine")
            assert made["outcome"] == "bound"
            term = process.controller.term
            assert term is not None
            (lane,) = term.leasing.lanes.open_lanes.values()
            before = len(lane.shards)
            await sim.clock.sleep(1)
            told = await ask(second.client, "mine")
            assert (told["outcome"], told["id"]) == ("exists", made["id"])
            other = await ask(second.client, "other")
            assert other["outcome"] == "bound"
            await sim.clock.sleep(1)
            assert placed(second.gateway) == 0
            again = await ask(first.client, "other")
            assert (again["outcome"], again["id"]) == ("exists", other["id"])
            both = await asyncio.gather(
                *(ask(one.client, f"race-{n}") for n in range(20) for one in (first, second))
            )
            await asyncio.sleep(3)
            ids: dict[str, set[str]] = {}
            for answer in both:
                if answer["id"]:
                    ids.setdefault(answer["key"], set()).add(answer["id"])
            assert len(ids) == 20
            assert all(len(one) == 1 for one in ids.values())
            assert len(sim.live()) == MANY + 22
            assert 0 < len(lane.shards) < before
            assert term.placer.rounds.planner.ledger.audit() == []
            await fronts.close()

    simulate(scenario)


def test_work_that_waits_gets_back_what_is_lent(simulate: Callable[..., None]) -> None:
    """An experiment that lacks only what a gateway holds starts within seconds."""

    async def scenario() -> None:
        async with Sim(seed=4) as sim:
            await quota(sim, sandboxes=24)
            process = sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            assert sim.control is not None
            await warm(sim, sim.client, sim.control.gateway)
            term = process.controller.term
            assert term is not None
            ledger = term.placer.rounds.planner.ledger
            assert ledger.leased("research")["sandboxes"] > 0
            shown = (await sim.client.get("/v1/tenants")).json()["items"][0]
            await sim.clock.sleep(12)
            shown = (await sim.client.get("/v1/tenants")).json()["items"][0]
            assert shown["status"]["leased"]["sandboxes"] == ledger.leased("research")["sandboxes"]
            role = {
                "name": "worker",
                "replicas": 24 - MANY,
                "image": "base",
                "nodeLabels": {"dsec.dev/simulated": "true"},
                "resources": {"cpuMilli": 500, "memoryBytes": 1 << 26},
            }
            document = {
                "apiVersion": "dsec.dev/v1alpha1",
                "kind": "Experiment",
                "metadata": {"name": "all"},
                "spec": {"roles": [role]},
            }
            made = await sim.client.post("/v1/projects/lab/experiments", json=document)
            assert made.status_code == 201, made.text
            await sim.until(lambda: len(sim.live()) == 24, 15)
            assert not ledger.leased("research").get("sandboxes")
            full = await ask(sim.client, "one-more")
            assert full["outcome"] == "pending"
            assert "quota" in full["message"]

    simulate(scenario)


def test_agents_have_the_last_word(simulate: Callable[..., None]) -> None:
    """Refused by one, it runs on another; refused by all, it waits at the leader and runs later."""

    async def scenario() -> None:
        async with Sim(seed=5) as sim:
            sim.start_controller()
            for n in range(3):
                await sim.add_node(f"n{n}")
            await sim.ready(nodes=3)
            assert sim.control is not None
            gateway = sim.control.gateway
            await warm(sim, sim.client, gateway)
            refusing = ["n0", "n1"]
            for name in refusing:
                sim.agents[name].core.refuse("test", "it takes nothing now")
            before = placed(gateway)
            for n in range(6):
                answer = await ask(sim.client, f"two-{n}")
                assert (answer["outcome"], answer["node"]) == ("bound", "n2"), answer
            assert placed(gateway) - before == 6
            sim.agents["n2"].core.refuse("test", "it takes nothing now")
            waits = await ask(sim.client, "none")
            assert waits["outcome"] in ("pending", "unknown"), waits
            await sim.clock.sleep(10)
            # it waits, or a node is just being asked again
            assert (await ask(sim.client, "none"))["outcome"] in ("pending", "unknown")
            for agent in sim.agents.values():
                agent.core.lift("test")
            await sim.until(lambda: len(sim.live()) == MANY + 7, 20)
            assert all(len(copies) == 1 for copies in sim.live().values())

    simulate(scenario)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_gateway_that_dies_behind_its_row_leaves_a_sandbox(
    simulate: Callable[..., None], frozen: bool
) -> None:
    """The row is written, no agent was called: the leader starts it, once; what is lent is freed.

    A gateway that only stood still changes nothing when it goes on.
    """

    async def scenario() -> None:
        async with Sim(seed=6) as sim:
            process = sim.start_controller()
            for n in range(3):
                await sim.add_node(f"n{n}")
            await sim.ready(nodes=3)
            fronts = Fronts(sim)
            front = await fronts.start()
            await warm(sim, front.client, front.gateway)
            starts = Starts(sim)
            store, key = sim.objects.put_if_absent, "last"

            async def put(name: str, data: bytes) -> str:
                tag = await store(name, data)
                rows = decode_lane(data).rows if name.startswith(LANES) else []
                if any(row.binding is not None and row.binding.key == key for row in rows):
                    front.gate.close()
                return tag

            sim.objects.put_if_absent = put  # type: ignore[method-assign]
            asking = asyncio.create_task(ask(front.client, key))
            await sim.until(lambda: len(sim.live()) == MANY + 1, 25)
            await sim.clock.sleep(20)
            term = process.controller.term
            assert term is not None
            assert term.bind_log.state.lanes == {}
            assert not term.placer.rounds.planner.ledger.leased("research").get("sandboxes")
            if frozen:
                front.gate.open()
            else:
                fronts.kill(front)
            await sim.clock.sleep(20)
            binding = term.bind_log.state.key("research", key)
            assert binding is not None
            assert starts.of[binding.id] == [binding.node]
            assert len(sim.live()) == MANY + 1
            told = await ask(sim.client, key)
            assert (told["outcome"], told["id"]) == ("exists", binding.id)
            await fronts.close()
            await asyncio.gather(asking, return_exceptions=True)

    simulate(scenario)


def test_a_call_that_is_late_starts_nothing(simulate: Callable[..., None]) -> None:
    """A gateway that stood still between its row and its call: somebody else decides by now."""

    async def scenario() -> None:
        async with Sim(seed=8) as sim:
            agent = await sim.add_node("n0")
            network = sim._network("gw", frozenset({GATEWAY}), Gate())
            client = AgentClient(network, "http://nodes/n/n0")
            wanted = KeyedCreate.model_validate(create("k"))
            spec = keyed_binding(
                wanted,
                image="base",
                tenant="research",
                project="lab",
                rights=TenantSpec(),
                sandbox=new_id(sim.clock, sim.rng),
                correlation="",
                now=sim.clock.now(),
            ).spec
            before = sim.clock.now() + timedelta(seconds=2)
            await sim.clock.sleep(3)
            with pytest.raises(AgentRefusedError, match="late"):
                await client.create(1, [spec], before=before)
            assert agent.core.get(spec.identity.id) is None
            (answer,) = await client.create(1, [spec])
            assert answer.accepted
            await client.close()

    simulate(scenario)


def test_a_purge_reaches_what_gateways_make(simulate: Callable[..., None]) -> None:
    """While a tenant's single sandboxes are to end, no gateway makes another."""

    async def scenario() -> None:
        async with Sim(seed=7) as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            assert sim.control is not None
            gateway = sim.control.gateway
            await warm(sim, sim.client, gateway)
            tenant = await sim.records.get("Tenant", "research")
            until = sim.clock.now() + timedelta(seconds=60)
            status = {
                **tenant.get("status", {}),
                "purge": {"by": "ann", "until": until.isoformat()},
            }
            await sim.records.replace_status({**tenant, "status": status})
            await sim.until(lambda: not sim.live(), 30)
            answer = await sim.client.post(WHERE, json={"creates": [create("late")]})
            assert answer.status_code == 422, answer.text
            assert "ends all sandboxes" in answer.json()["message"]
            assert sim.live() == {}

    simulate(scenario)
