"""Several gateways over one simulation, and what the objects say of their leases and lanes."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
from dsec.api.sandbox import SandboxSpec
from dsec.gateway.app import build_app
from dsec.gateway.core import Gateway, GatewayConfig
from dsec.journal.bindings import Bindings
from dsec.journal.bindlog import SEGMENTS, decode
from dsec.journal.lanes import LANES
from dsec.journal.lanes import decode as decode_lane
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
