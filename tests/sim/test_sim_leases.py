"""Single creates in gateways, out of leases of quota: each key once, and never above the quota."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import httpx2
import pytest
from dsec.api.sandbox import SandboxSpec
from dsec.api.tenant import TenantSpec
from dsec.api.wire import KeyedCreate
from dsec.gateway.app import build_app
from dsec.gateway.core import Gateway, GatewayConfig
from dsec.journal.bindings import Bindings
from dsec.journal.bindlog import SEGMENTS, decode
from dsec.journal.keyed import keyed_binding, new_id
from dsec.journal.lanes import LANES
from dsec.journal.lanes import decode as decode_lane
from dsec.world.agents import AgentClient, AgentRefusedError
from dsec.world.tls import GATEWAY
from sim_world import KEY, Gate, Gated, GatedClock, GatedRecords, Sim, create, gated_app

WHERE = "/v1/projects/lab/sandboxes"
MANY = 6


@dataclass
class Front:
    """One more gateway process, behind a gate, and a client of it."""

    name: str
    gate: Gate
    gateway: Gateway
    task: asyncio.Task[None]
    client: httpx2.AsyncClient


@dataclass
class Fronts:
    """All of them, and what killed ones leave to be taken down."""

    sim: Sim
    alive: list[Front] = field(default_factory=list)
    killed: list[Front] = field(default_factory=list)
    started: int = 0

    async def start(self) -> Front:
        """Start a gateway."""
        sim = self.sim
        self.started += 1
        name, gate = f"gw{self.started}", Gate()
        assert sim.control is not None
        gateway = Gateway(
            GatedRecords(sim.records, gate),
            Gated(sim.objects, gate),
            sim._network(name, frozenset({GATEWAY}), gate),
            clock=GatedClock(gate),
            randomness=sim.rng,
            ca=sim.control.gateway.ca,
            config=GatewayConfig(identity=name, internal_secret="in-process"),  # noqa: S106 - of the simulation
        )
        sim.routes[f"http://{name}"] = gated_app(build_app(gateway), gate)
        task = asyncio.create_task(gateway.run())
        client = sim._network("client", frozenset(), Gate()).client(f"http://{name}", timeout=30.0)
        client.headers["Authorization"] = f"Bearer {KEY}"
        front = Front(name, gate, gateway, task, client)
        self.alive.append(front)
        await sim.until(lambda: gateway.ready, 10)
        return front

    def kill(self, front: Front) -> None:
        """Kill it: nothing of it goes on, nothing is released."""
        front.gate.close()
        self.sim.routes.pop(f"http://{front.name}", None)
        front.task.cancel()
        self.alive.remove(front)
        self.killed.append(front)

    async def close(self) -> None:
        """Take all of them down."""
        for front in (*self.alive, *self.killed):
            front.gate.open()
            front.task.cancel()
            await front.client.aclose()
        await asyncio.gather(
            *(one.task for one in (*self.alive, *self.killed)), return_exceptions=True
        )


async def quota(sim: Sim, **nominal: int) -> None:
    """Set what the tenant owns."""
    tenant = await sim.records.get("Tenant", "research")
    tenant["spec"]["quota"] = {"nominal": nominal}
    await sim.records.replace(tenant)


async def ask(client: httpx2.AsyncClient, key: str, **changes: Any) -> dict[str, Any]:
    """Ask once for one sandbox; an answer, or the words of a refusal."""
    try:
        answer = await client.post(WHERE, json={"creates": [create(key, **changes)]})
    except httpx2.TransportError as problem:
        return {"outcome": "lost", "message": str(problem)}
    if answer.status_code != 200:
        assert answer.status_code == 503, answer.text
        return {"outcome": "away", "message": answer.json()["message"]}
    return dict(answer.json()["answers"][0])


async def warm(sim: Sim, client: httpx2.AsyncClient, gateway: Gateway) -> None:
    """Make creates until the gateway has a lease."""
    for n in range(MANY):
        answer = await ask(client, f"warm-{gateway.config.identity}-{n}")
        assert answer["outcome"] == "bound", answer
    await sim.until(lambda: gateway.placing.leases.valid() > 0, 5)


def placed(gateway: Gateway) -> int:
    """Return how many creates a gateway bound itself."""
    return int(gateway.metrics.creates.labels("gateway")._value.get())


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


class Written:
    """What the objects themselves say at every instant: who has bound what, and how much lives."""

    def __init__(self, sim: Sim) -> None:
        self.ids: dict[str, set[str]] = {}
        self.peak = 0
        self.in_lanes = 0
        self._state = Bindings()
        self._store = sim.objects.put_if_absent
        sim.objects.put_if_absent = self._put  # type: ignore[method-assign]

    async def _put(self, key: str, data: bytes) -> str:
        tag = await self._store(key, data)
        rows = []
        if key.startswith(SEGMENTS):
            rows = decode(data).rows
        elif key.startswith(LANES):
            rows = decode_lane(data).rows
            self.in_lanes += sum(row.binding is not None for row in rows)
        for row in rows:
            if row.binding is not None:
                self.ids.setdefault(row.binding.key, set()).add(row.binding.id)
        self._state.apply(rows)
        self.peak = max(self.peak, len(self._state.bound))
        return tag

    def doubles(self) -> dict[str, set[str]]:
        """Return the keys that more than one sandbox was bound to."""
        return {key: ids for key, ids in self.ids.items() if len(ids) > 1}


class Starts:
    """How often agents began each sandbox, on all nodes together."""

    def __init__(self, sim: Sim) -> None:
        self.of: dict[str, list[str]] = {}
        for name, agent in sim.agents.items():
            agent.create = partial(self._create, name, agent, agent.create)  # type: ignore[method-assign]

    async def _create(self, name: str, agent: Any, inner: Any, specs: list[SandboxSpec]) -> Any:
        known = {spec.identity.id for spec in specs if agent.core.get(spec.identity.id)}
        answers = await inner(specs)
        for one in answers:
            if one.accepted and one.id not in known:
                self.of.setdefault(one.id, []).append(name)
        return answers


async def until_bound(sim: Sim, fronts: Fronts, key: str, found: dict[str, set[str]]) -> None:
    """Ask for a key, through any gateway, until it is bound for good."""
    start = sim.clock.monotonic()
    while True:
        # mostly through one, which then keeps its shards
        front = fronts.alive[0] if sim.rng.random() < 0.9 else sim.rng.choice(fronts.alive)
        client = front.client
        answer = await ask(client, key, env={"DSEC_SIM_SECONDS": "5"})
        assert answer["outcome"] not in ("conflict", "refused"), answer
        if answer["outcome"] in ("bound", "exists"):
            found.setdefault(key, set()).add(answer["id"])
            return
        assert sim.clock.monotonic() - start < 600, (key, answer)
        await sim.clock.sleep(sim.rng.uniform(0.5, 3))


async def trouble(sim: Sim, fronts: Fronts) -> None:
    """Kill, freeze and refuse, one after the other, for ever."""
    while True:
        await sim.clock.sleep(sim.rng.uniform(2, 6))
        what = sim.rng.randrange(5)
        leader = sim.leader()
        if what == 0 and leader is not None:
            await sim.kill(leader)
            sim.start_controller()
        elif what == 1:
            fronts.kill(sim.rng.choice(fronts.alive))
            await fronts.start()
        elif what == 2:
            front = sim.rng.choice(fronts.alive)
            front.gate.close()
            await sim.clock.sleep(sim.rng.choice((1.0, 9.0, 20.0)))
            front.gate.open()
        elif what == 3:
            agent = sim.rng.choice(list(sim.agents.values()))
            agent.core.refuse("test", "it takes nothing now")
            await sim.clock.sleep(2)
            agent.core.lift("test")
        elif leader is not None:
            leader.gate.close()
            await sim.clock.sleep(sim.rng.choice((3.0, 25.0)))
            leader.gate.open()


async def watch_ledger(sim: Sim, most: int, seen: list[int]) -> None:
    """Hold that what is used and lent together never passes the quota, in any leader's books."""
    while True:
        await sim.clock.sleep(0.1)
        leader = sim.leader()
        if leader is None or leader.controller.term is None:
            continue
        ledger = leader.controller.term.placer.rounds.planner.ledger
        used, leased = ledger.used("research"), ledger.leased("research")
        assert used.get("sandboxes", 0) + leased.get("sandboxes", 0) <= most
        assert ledger.audit() == []
        seen.append(leased.get("sandboxes", 0))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(n, marks=pytest.mark.soak) for n in (3, 4, 5))]
)
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.soak)])
def test_whatever_dies_each_key_is_bound_once_and_the_quota_holds(
    simulate: Callable[..., None], count: int, seed: int
) -> None:
    """Gateways and leaders die and freeze, replies are lost, agents refuse, keys come twice."""

    async def scenario() -> None:
        async with Sim(seed=seed) as sim:
            most = max(40, count // 20)
            await quota(sim, sandboxes=most)
            sim.start_controller()
            sim.start_controller()
            nodes = max(5, count // 500)
            for n in range(nodes):
                await sim.add_node(f"n{n:02}")
            await sim.ready(nodes=nodes)
            objects, starts = Written(sim), Starts(sim)
            fronts, lent, found = Fronts(sim), list[int](), dict[str, set[str]]()
            for _ in range(2):
                await fronts.start()
            beside = [
                asyncio.create_task(watch_ledger(sim, most, lent)),
                asyncio.create_task(trouble(sim, fronts)),
            ]
            sim.faults.lost_replies = sim.faults.lost_requests = 0.02
            keys = iter([f"k{n}" for n in range(count)])

            async def worker() -> None:
                for key in keys:
                    twice = sim.rng.random() < 0.2
                    asking = [until_bound(sim, fronts, key, found) for _ in range(1 + twice)]
                    await asyncio.gather(*asking)

            try:
                await asyncio.gather(*(worker() for _ in range(12)))
                for task in beside:
                    assert not task.done(), task.exception()
                beside[1].cancel()
                sim.faults.lost_replies = sim.faults.lost_requests = 0.0
                for front in fronts.alive:
                    front.gate.open()
                for process in sim.processes.values():
                    process.gate.open()
                await sim.ready()
                await sim.until(lambda: not sim.live(), 120)
                await sim.clock.sleep(30)
                assert not beside[0].done(), beside[0].exception()
            finally:
                for task in beside:
                    task.cancel()
                await fronts.close()
            assert objects.doubles() == {}
            assert objects.peak <= most
            assert {key: found[key] for key in found} == {k: objects.ids[k] for k in found}
            assert len(found) == count
            # each acknowledged create was begun once, on one node
            assert all(len(starts.of[one]) == 1 for ids in found.values() for one in ids)
            # the scenario is about gateways that place: enough of it was theirs
            assert objects.in_lanes > count // 10, objects.in_lanes
            assert max(lent) > 0

    simulate(scenario)
