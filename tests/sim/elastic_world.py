"""A simulated cloud under a simulated installation: machines that are bought come up as agents.

What exists is one object in the store, as a cloud's own records: it outlives every controller. A
machine that runs has an agent; one that has ended is gone at once, with what ran on it.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from dsec.agent.substrates.simulated import Profile
from dsec.placement.request import SPOT_TAINT
from dsec.providers.provider import (
    BuyAnswer,
    Failure,
    FailureKind,
    NodeProvider,
    Phase,
    ProviderNode,
    Scope,
    Wanted,
)
from dsec.providers.simulated import Billed, SimulatedProvider
from dsec.providers.weather import Weather
from dsec.world.clock import Clock
from sim_world import Sim

EIGHT = Profile(
    name="eight", cpu_milli=8000, memory_bytes=32 << 30, boot=(0.01, 0.05), register=(0.01, 0.05)
)
CALM = Weather(boot=(30.0, 40.0), out={}, hazard_per_hour=0.0)
LOOK_SECONDS = 1.0
SIMULATED = {"dsec.dev/simulated": "true"}


@dataclass
class Cloud:
    """The machines of a simulated provider. `before` and `after` are called around each call."""

    sim: Sim
    weather: Weather = CALM
    before: Callable[[str], Any] | None = None
    calls: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    refuses: str = ""
    """Key of an offering that has no machines."""

    def __post_init__(self) -> None:
        """Let controllers buy here."""
        self.truth = SimulatedProvider(self.sim.objects, self.sim.clock, self.weather)
        self.sim.suppliers = self.providers
        self.sim.tasks.append(asyncio.create_task(self._follow()))

    def providers(self, objects: Any, clock: Clock) -> dict[str, NodeProvider]:
        """Return the providers of one controller."""
        return {"simulated": Watched(SimulatedProvider(objects, clock, self.weather), self)}

    async def machines(self) -> dict[str, ProviderNode]:
        """Return what exists, by name."""
        return {node.name: node for node in (await self.truth.list()).nodes}

    async def bill(self) -> list[Billed]:
        """Return what was ever bought, with what it costs up to now."""
        return list(await self.truth.bill())

    async def total(self, price: str) -> Decimal:
        """Return the whole bill at one price per hour, rounded up to a millionth each."""
        hours = [Decimal(one.end - one.start) / 3600 for one in await self.bill()]
        return sum((Decimal(price) * one for one in hours), Decimal(0))

    async def _follow(self) -> None:
        while True:
            shown = {
                name: node
                for name, node in (await self.machines()).items()
                if node.phase is Phase.RUNNING
            }
            for name in [one for one in self.sim.agents if one.startswith("sim-")]:
                if name not in shown:
                    await self.sim.lose_node(name)
            for name, node in shown.items():
                if name not in self.sim.agents:
                    await self._boot(node)
            await self.sim.clock.sleep(LOOK_SECONDS)

    async def _boot(self, node: ProviderNode) -> None:
        make = node.offering.split("/")[3]
        labels = {"market": node.market, "zone": node.zone, "instance-type": make}
        if node.market == "spot":
            labels["taints"] = SPOT_TAINT
        until = None if node.run_until is None else datetime.fromtimestamp(node.run_until, UTC)
        await self.sim.add_node(
            node.name,
            replace(EIGHT, labels=labels),
            pool=node.pool,
            run_until=until,
            # whoever simulates the machine ends it
            shutdown=["true"],
            **self.settings,
        )


@dataclass
class Watched:
    """A provider whose calls are counted, and may be the last that its caller makes."""

    inner: SimulatedProvider
    cloud: Cloud

    async def _call(self, name: str) -> None:
        self.cloud.calls.append(name)
        if self.cloud.before is not None:
            await self.cloud.before(name)

    async def buy(self, purchase: Wanted, *, epoch: int, run_until: float) -> BuyAnswer:
        """Buy."""
        await self._call("before buy")
        if purchase.offering.key == self.cloud.refuses:
            await self._call("after buy")
            failure = Failure(FailureKind.CAPACITY, Scope.OFFERING, "out", "none of it now")
            return BuyAnswer(purchase.token, purchase.count, failure=failure)
        answer = await self.inner.buy(purchase, epoch=epoch, run_until=run_until)
        await self._call("after buy")
        return answer

    async def end(self, nodes: Iterable[str], *, epoch: int) -> Any:
        """End."""
        await self._call("before end")
        answer = await self.inner.end(nodes, epoch=epoch)
        await self._call("after end")
        return answer

    async def extend(self, nodes: Iterable[str], run_until: float, *, epoch: int) -> Any:
        """Extend."""
        await self._call("before extend")
        answer = await self.inner.extend(nodes, run_until, epoch=epoch)
        await self._call("after extend")
        return answer

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on."""
        return getattr(self.inner, name)


def pool(**scaling: Any) -> dict[str, Any]:
    """Return the record of a pool `burst` of cloud nodes with 8 cores, a unit an hour each."""
    offering = {
        "instanceType": "c8",
        "markets": scaling.pop("markets", ["on-demand"]),
        "cpuMilli": 8000,
        "memoryBytes": 32 << 30,
        "pricePerHour": scaling.pop("price", "1.00"),
        "bootSeconds": 60,
    }
    spec = {
        "supplier": "simulated",
        "maxNodes": 20,
        "regions": ["east"],
        "zones": ["a"],
        "offerings": [offering],
        **scaling,
    }
    return {
        "kind": "SandboxNodePool",
        "metadata": {"name": "burst"},
        "spec": {"agent": {"reservedMemoryBytes": 0}, "scaling": spec},
    }


async def submit(sim: Sim, name: str, replicas: int, *, cpu: int = 4000, **spec: Any) -> str:
    """Submit single replicas, by default two a node; return the uid."""
    env = spec.pop("env", {})
    role = {
        "name": "worker",
        "image": "base",
        "nodeLabels": SIMULATED,
        "replicas": replicas,
        # each by itself, not as a gang
        "completion": "run-to-end",
        "env": env,
        "resources": {"cpuMilli": cpu, "memoryBytes": 1 << 28},
    }
    document = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": name},
        "spec": {"roles": [role], **spec},
    }
    made = await sim.client.post("/v1/projects/lab/experiments", content=json.dumps(document))
    assert made.status_code == 201, made.text
    return str(made.json()["metadata"]["uid"])


async def scaling(sim: Sim) -> dict[str, Any]:
    """Return what the pool's status says of its scaling."""
    record = await sim.records.get("SandboxNodePool", "burst")
    return dict((record.get("status") or {}).get("scaling") or {})


async def said(sim: Sim) -> list[str]:
    """Return the pool's decisions in words."""
    return [one["text"] for one in (await scaling(sim)).get("decisions", [])]


def running(sim: Sim, uid: str) -> int:
    """Return how many copies of an experiment run."""
    return sum(
        1
        for agent in sim.agents.values()
        for entry in agent.core
        if entry.spec.identity.experiment_uid == uid and entry.status.state.value == "running"
    )
