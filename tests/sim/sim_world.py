"""A whole dsec in one process and in virtual time: records, objects, controllers, gateway, agents.

Every process is behind a gate: a closed gate stops all that it does, as SIGSTOP does, and what is
sent to it waits. Messages are lost by a seeded random source.
"""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import httpx2
from dsec.agent.agent import Agent, run_agent
from dsec.agent.app import Node, make_app
from dsec.agent.config import AgentConfig
from dsec.agent.register import Registrar
from dsec.agent.substrates.simulated import Profile, SimulatedSubstrate
from dsec.api.sandbox import Resources
from dsec.api.wire import KeyedCreate, NodeAdmission
from dsec.controllers.app import build_app as build_internal
from dsec.controllers.controller import Controller, ControllerConfig
from dsec.controllers.outside import World
from dsec.controllers.replica_scaler import Switches
from dsec.gateway.auth import key_entry, keys_secret
from dsec.local.control import ADMIN_GROUP, Control, ControlConfig, build_control
from dsec.providers.provider import NodeProvider
from dsec.snapshots.keys import KeySource
from dsec.world.clock import Clock
from dsec.world.inprocess import Call, Fault, InProcessNetwork
from dsec.world.memory import AccessRule, AccessTable, MemoryObjects, MemoryRecords
from dsec.world.metrics import MemoryMetrics
from dsec.world.records import Record, RecordList, User, WatchEvent
from dsec.world.registry import SimulatedRegistry
from dsec.world.tls import AGENT, CONTROLLER, GATEWAY, Peer
from starlette.types import ASGIApp, Receive, Scope, Send

START = datetime(2026, 1, 1, tzinfo=UTC)
KEY = "dsec_sim_0123456789"
PROFILE = Profile(
    name="sim",
    cpu_milli=96_000,
    memory_bytes=512 << 30,
    boot=(0.01, 0.05),
    register=(0.01, 0.05),
)


Suppliers = Callable[[Any, Clock], Mapping[str, NodeProvider]]
"""Makes the providers of one controller from its store and its clock."""


class LoopClock:
    """The virtual loop's time as a Clock."""

    def now(self) -> datetime:
        """Return the time of day."""
        return START + timedelta(seconds=asyncio.get_running_loop().time())

    def monotonic(self) -> float:
        """Return seconds since the start."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(seconds)


class Gate:
    """Stops and lets go one process."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def close(self) -> None:
        """Stop the process."""
        self._open.clear()

    def open(self) -> None:
        """Let it go on."""
        self._open.set()

    async def __call__(self) -> None:
        """Wait while the gate is closed."""
        await self._open.wait()


class GatedClock(LoopClock):
    """The clock of a process that can be stopped."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time, and while the process is stopped."""
        await asyncio.sleep(seconds)
        await self._gate()


class Gated:
    """Passes calls of a store through a gate, before and after."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._gate()
            try:
                return await method(*args, **kwargs)
            finally:
                await self._gate()

        return call


class GatedRecords(Gated):
    """Records behind a gate."""

    async def watch(self, kind: str, version: str) -> AsyncIterator[WatchEvent]:
        """Watch through the gate."""
        async for event in self._inner.watch(kind, version):
            await self._gate()
            yield event


def gated_app(app: ASGIApp, gate: Gate) -> ASGIApp:
    """Return an application that does not answer while its process is stopped."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await gate()
        await app(scope, receive, send)

    return serve


class GatedNetwork(InProcessNetwork):
    """A network whose answers wait for the caller's gate."""

    def __init__(self, routes: dict[str, ASGIApp], *, peer: Peer, fault: Any, gate: Gate) -> None:
        super().__init__(routes, peer=peer, fault=fault)
        self._gate = gate

    def client(self, base_url: str, *, timeout: float = 10.0) -> httpx2.AsyncClient:
        """Return a client that stands still with its process."""
        gate = self._gate

        async def before(_: httpx2.Request) -> None:
            await gate()

        async def after(_: httpx2.Response) -> None:
            await gate()

        client = super().client(base_url, timeout=timeout)
        client.event_hooks = {"request": [before], "response": [after]}
        return client


@dataclass
class Faults:
    """What the network does; seeded."""

    rng: random.Random
    lost_requests: float = 0.0
    lost_replies: float = 0.0
    cut: set[str] = field(default_factory=set)

    def __call__(self, call: Call) -> Fault:
        """Decide about one request."""
        target = call.url.split("/n/")[-1].split("/")[0] if "/n/" in call.url else ""
        if target in self.cut or call.source in self.cut:
            return Fault.LOSE_REQUEST
        draw = self.rng.random()
        if draw < self.lost_requests:
            return Fault.LOSE_REQUEST
        if draw < self.lost_requests + self.lost_replies:
            return Fault.LOSE_REPLY
        return Fault.NONE


@dataclass
class Process:
    """A controller process of the simulation."""

    name: str
    gate: Gate
    controller: Controller
    task: asyncio.Task[None]


class Sim:
    """One simulated installation."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a repeatable simulation
        self.clock = LoopClock()
        access = AccessTable([AccessRule((ADMIN_GROUP,))], {"user-token": User("ann")})
        self.records = MemoryRecords(self.clock, self.rng, access)
        self.objects = MemoryObjects()
        self.registry: SimulatedRegistry | None = None
        self.metrics = MemoryMetrics()
        self.switches = Switches()
        self.snapshot_keys: KeySource | None = None
        self.suppliers: Suppliers = lambda _objects, _clock: {}
        self.routes: dict[str, ASGIApp] = {}
        self.faults = Faults(self.rng)
        self.processes: dict[str, Process] = {}
        self.killed: list[Process] = []
        self.agents: dict[str, Agent] = {}
        self.substrates: dict[str, SimulatedSubstrate] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.registrars: dict[str, asyncio.Task[Any]] = {}
        self.control: Control | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="dsec-sim-")
        self._starts = 0

    async def __aenter__(self) -> Self:
        """Start records and the gateway; no controller yet, no agents."""
        await self.records.create(
            {
                "kind": "Tenant",
                "metadata": {"name": "research"},
                "spec": {"projects": ["lab"], "quota": {"nominal": {}}},
            }
        )
        entry = key_entry(KEY, "admin", [ADMIN_GROUP])
        await self.records.create(keys_secret([entry], "dsec-system"))
        gate = Gate()
        network = self._network("gateway", frozenset({GATEWAY}), gate)
        config = ControlConfig(
            identity="gw", internal_url="http://none", snapshot_keys=self.snapshot_keys
        )
        self.control = await build_control(
            self.records, self.objects, network, self.clock, self.rng, config
        )
        self.routes["http://gateway"] = self.control.gateway_app
        self.tasks.append(asyncio.create_task(self.control.gateway.run()))
        self.client = self._network("client", frozenset(), Gate()).client(
            "http://gateway", timeout=60.0
        )
        self.client.headers["Authorization"] = f"Bearer {KEY}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop everything."""
        # the killed ones too: what hangs at a closed gate could never be taken down
        for process in (*self.processes.values(), *self.killed):
            process.gate.open()
            process.task.cancel()
        tasks = [*self.tasks, *self.registrars.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(
            *(process.task for process in (*self.processes.values(), *self.killed)),
            *tasks,
            return_exceptions=True,
        )
        for agent in self.agents.values():
            await agent.close()
        await self.client.aclose()
        self.folder.cleanup()

    def _network(self, name: str, units: frozenset[str], gate: Gate) -> GatedNetwork:
        return GatedNetwork(self.routes, peer=Peer(name, units), fault=self.faults, gate=gate)

    # ------------------------------------------------------------------ processes

    def start_controller(self) -> Process:
        """Start one more controller."""
        self._starts += 1
        name = f"c{self._starts}"
        gate = Gate()
        clock = GatedClock(gate)
        world = World(
            GatedRecords(self.records, gate),
            Gated(self.objects, gate),
            self._network(name, frozenset({CONTROLLER}), gate),
            clock,
            self.rng,
            self.registry,
            self.metrics,
            self.suppliers(Gated(self.objects, gate), clock),
        )
        config = ControllerConfig(
            identity=name, endpoint=f"http://{name}", exit_on_loss=True, switches=self.switches
        )
        controller = Controller(world, config)
        self.routes[f"http://{name}"] = gated_app(build_internal(controller, "in-process"), gate)
        task = asyncio.create_task(controller.run())
        process = self.processes[name] = Process(name, gate, controller, task)
        return process

    async def kill(self, process: Process) -> None:
        """Kill a controller: nothing of it goes on, nothing is released."""
        process.gate.close()
        self.routes.pop(f"http://{process.name}", None)
        del self.processes[process.name]
        process.task.cancel()
        # a killed process says no goodbye: the cancelled tasks hang at the closed gate
        self.killed.append(process)
        await asyncio.sleep(0)

    def leader(self) -> Process | None:
        """Return the process that leads, if one does."""
        leading = [p for p in self.processes.values() if p.controller.leading]
        return max(leading, key=lambda p: p.controller.epoch, default=None)

    async def add_node(self, name: str, profile: Profile = PROFILE, **settings: Any) -> Agent:
        """Start an agent with a simulated substrate and register it."""
        substrate = SimulatedSubstrate(profile, self.clock, self.rng, node=name)
        self.substrates[name] = substrate
        config = AgentConfig(
            state_dir=Path(self.folder.name) / name,
            gateway="http://gateway",
            node_name=name,
            labels={**profile.labels, **settings.pop("labels", {})},
            durable=False,
            archive_patience=30.0,
            **settings,
        )
        network = self._network(name, frozenset({AGENT}), Gate())
        agent = await run_agent(
            config, substrate, network, self.clock, self.rng, boot_id=f"boot-{name}"
        )
        node = Node(agent=agent)
        self.routes[f"http://nodes/n/{name}"] = make_app({name: node})

        def admitted(admission: NodeAdmission) -> None:
            node.capability_key_pem = admission.capability_public_key_pem

        registrar = Registrar(agent, f"http://nodes/n/{name}", self.rng, on_admission=admitted)
        self.registrars[name] = asyncio.create_task(registrar.keep())
        self.agents[name] = agent
        return agent

    async def lose_node(self, name: str) -> None:
        """Switch a machine off: nothing of it goes on."""
        self.routes.pop(f"http://nodes/n/{name}", None)
        registrar = self.registrars.pop(name)
        registrar.cancel()
        await asyncio.gather(registrar, return_exceptions=True)
        await self.agents.pop(name).close()

    # ------------------------------------------------------------------ what users do

    async def until(self, what: Callable[[], Any], seconds: float, step: float = 0.2) -> float:
        """Wait until something holds; return how long it took. Fails after so many seconds."""
        start = self.clock.monotonic()
        while not what():
            if self.clock.monotonic() - start > seconds:
                raise AssertionError(f"not within {seconds} s: {what}")
            await self.clock.sleep(step)
        return self.clock.monotonic() - start

    async def ready(self, nodes: int = 0) -> None:
        """Wait for a leader, and for so many nodes to be usable."""
        await self.until(lambda: self.leader() is not None, 30)
        if nodes:
            await self.until(lambda: self._usable() >= nodes, 60)

    def _usable(self) -> int:
        leader = self.leader()
        return len(leader.controller.term.fleet.nodes()) if leader else 0

    def live(self) -> dict[str, list[tuple[str, str]]]:
        """Return, by sandbox id, every (node, state) of a copy that has not ended."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, agent in self.agents.items():
            for entry in agent.core:
                if entry.live:
                    found.setdefault(entry.spec.identity.id, []).append(
                        (name, entry.status.state.value)
                    )
        return found

    async def experiment(self, name: str) -> Record:
        """Return an experiment's record."""
        return await self.records.get("Experiment", name, "lab")

    async def experiments(self) -> RecordList:
        """Return all experiments."""
        return await self.records.list("Experiment")


def create(key: str, **changes: Any) -> dict[str, Any]:
    """Return a keyed create for simulated nodes, as it goes over the wire."""
    values: dict[str, Any] = {
        "key": key,
        "image": "base",
        "labels": {"dsec.dev/simulated": "true"},
        "resources": Resources(cpu_milli=500, memory_bytes=256 << 20, pids=64, disk_bytes=64 << 20),
    }
    return KeyedCreate(**(values | changes)).wire()
