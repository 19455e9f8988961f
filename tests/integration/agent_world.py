"""What agent tests need around an agent: a gateway that remembers, specs, and clients that lie."""

import asyncio
import random
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from dsec.agent.agent import Agent, run_agent
from dsec.agent.app import Node, make_app
from dsec.agent.config import AgentConfig
from dsec.agent.substrates.simulated import Profile, SimulatedSubstrate
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.api.scene import unpack
from dsec.api.wire import JournalPush, NodeAdmission, NodeRegistration, NodeState
from dsec.world.clock import SystemClock
from dsec.world.inprocess import Call, Fault, InProcessNetwork, no_faults
from dsec.world.tls import GATEWAY, Peer, peer_of
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

GATEWAY_URL = "http://gateway"
NODE = "node-1"
PROFILE = Profile(
    name="test",
    cpu_milli=8_000,
    memory_bytes=16 << 30,
    gpus=2,
    gpu_model="test",
    gpu_memory_bytes=80 << 30,
    boot=(0.0, 0.005),
    register=(0.0, 0.005),
    leaves=("stdout.log",),
)
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def sandbox_id(number: int) -> str:
    """Return a valid sandbox id for a number."""
    text = ""
    for _ in range(26):
        number, digit = divmod(number, 32)
        text = ALPHABET[digit] + text
    return f"sb-{text}"


def spec(number: int, seconds: float | None = 0.05, **changes: Any) -> SandboxSpec:
    """Return a small sandbox; seconds None: it runs until it is stopped."""
    identity = Identity(
        id=sandbox_id(number),
        tenant="research",
        project="research-a",
        experiment=changes.pop("experiment", "exp"),
        experiment_uid=changes.pop("experiment_uid", ""),
        index=changes.pop("index", number),
        incarnation=changes.pop("incarnation", 1),
    )
    env = {} if seconds is None else {"DSEC_SIM_SECONDS": str(seconds)}
    values: dict[str, Any] = {
        "identity": identity,
        "image": "base",
        "env": env,
        "resources": Resources(cpu_milli=100, memory_bytes=64 << 20, pids=64, disk_bytes=1 << 20),
    }
    return SandboxSpec(**(values | changes))


@dataclass
class FakeGateway:
    """Answers what agents ask; keeps rows as a consumer does: once each, in order of arrival."""

    epoch: int = 1
    rows: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    uploads: list[list[str]] = field(default_factory=list)
    """The names of the files of each accepted request."""
    no_batches: bool = False
    fenced: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    refused_rows: dict[str, int] = field(default_factory=dict)
    stranger: bool = False
    nobody: list[str] = field(default_factory=list)
    """Paths of calls that showed no certificate, registrations apart."""
    registrations: list[NodeRegistration] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    clock_offset: float = 0.0
    away: bool = False
    sign: Callable[[str], tuple[str, str]] | None = None
    capability_key: str = ""

    def app(self) -> ASGIApp:
        """Return the application."""
        return Starlette(
            routes=[
                Route("/v1/join-tokens", self._tokens, methods=["POST"]),
                Route("/v1/nodes/{name}", self._forget, methods=["DELETE"]),
                Route("/agent/v1/register", self._register, methods=["POST"]),
                Route("/agent/v1/journal", self._journal, methods=["POST"]),
                Route("/agent/v1/artifacts/{path:path}", self._artifact, methods=["PUT"]),
                Route("/agent/v1/artifacts/{path:path}", self._scene, methods=["POST"]),
            ]
        )

    async def _tokens(self, request: Request) -> Response:
        count = (await request.json())["count"]
        return JSONResponse({"tokens": [f"token-{number}" for number in range(count)]}, 201)

    async def _forget(self, request: Request) -> Response:
        self.forgotten.append(request.path_params["name"])
        return JSONResponse({}, 202)

    def _nobody(self, request: Request) -> bool:
        """Note a call of nobody known, before anything else is looked at."""
        if peer_of(request.scope) is not None:
            return False
        self.nobody.append(request.url.path)
        return True

    async def _register(self, request: Request) -> Response:
        if self.away:
            return Response(status_code=503)
        registration = NodeRegistration.model_validate_json(await request.body())
        self.registrations.append(registration)
        self.tokens.append(request.headers.get("authorization", ""))
        admission = NodeAdmission(
            epoch=self.epoch,
            clock_offset_seconds=self.clock_offset,
            capability_public_key_pem=self.capability_key,
        )
        if registration.csr_pem and self.sign is not None:
            admission.certificate_pem, admission.ca_pem = self.sign(registration.csr_pem)
        return JSONResponse(admission.wire())

    async def _journal(self, request: Request) -> Response:
        if self._nobody(request):
            return JSONResponse({"code": "unauthenticated", "message": "who is it?"}, 401)
        if self.away:
            return Response(status_code=503)
        push = JournalPush.model_validate_json(await request.body())
        refused = [403] if self.stranger else []
        refused += [self.refused_rows.get(f"{row.kind} {row.sandbox}", 0) for row in push.rows]
        if status := max(refused, default=0):
            return JSONResponse({"code": "invalid", "message": "not taken"}, status)
        for row in push.rows:
            self.rows.setdefault((row.node, row.boot_id, row.seq), row.wire())
        return Response(status_code=204)

    async def _artifact(self, request: Request) -> Response:
        if self._nobody(request):
            return JSONResponse({"code": "unauthenticated", "message": "who is it?"}, 401)
        if self.away:
            return Response(status_code=503)
        path = request.path_params["path"]
        body = await request.body()
        if path.split("/")[2] in self.fenced:
            return JSONResponse({"code": "fenced", "message": "superseded"}, 409)
        if path.split("/", 3)[3] in self.refused:
            return JSONResponse({"code": "invalid", "message": "no plain path"}, 422)
        self.artifacts[path] = body
        self.uploads.append([path.split("/", 3)[3]])
        return Response(status_code=204)

    async def _scene(self, request: Request) -> Response:
        if self._nobody(request):
            return JSONResponse({"code": "unauthenticated", "message": "who is it?"}, 401)
        if self.away:
            return Response(status_code=503)
        prefix = request.path_params["path"]
        files = unpack(await request.body())
        if self.no_batches:
            return Response("Not Found", status_code=404)
        if prefix.split("/")[2] in self.fenced:
            return JSONResponse({"code": "fenced", "message": "superseded"}, 409)
        if self.refused & set(files):
            return JSONResponse({"code": "invalid", "message": "no plain path"}, 422)
        self.artifacts |= {f"{prefix}/{name}": content for name, content in files.items()}
        self.uploads.append(list(files))
        return Response(status_code=204)

    def history(self, sandbox: str) -> list[str]:
        """Return the kinds of a sandbox's rows in order of their numbers."""
        mine = [row for row in self.rows.values() if row.get("sandbox") == sandbox]
        return [row["kind"] for row in sorted(mine, key=lambda row: row["seq"])]


@dataclass
class World:
    """One simulated node, its gateway, and a caller with a gateway's certificate."""

    directory: Path
    gateway: FakeGateway = field(default_factory=FakeGateway)
    clock: SystemClock = field(default_factory=SystemClock)
    randomness: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311 - a seeded test
    routes: MutableMapping[str, ASGIApp] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    profile: Profile = PROFILE
    fault: Callable[[Call], Fault] = no_faults
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.routes[GATEWAY_URL] = self.gateway.app()
        self.routes[f"http://agents/n/{NODE}"] = make_app(self.nodes)
        self.substrate = SimulatedSubstrate(self.profile, self.clock, self.randomness)
        caller = InProcessNetwork(
            self.routes,
            peer=Peer("gw-0", frozenset({GATEWAY})),
            fault=self._fault_now,
        )
        self.client = caller.client(f"http://agents/n/{NODE}/v1")

    def _fault_now(self, call: Call) -> Fault:
        """Ask the present fault function: tests replace it under way."""
        return self.fault(call)

    async def start(self) -> Agent:
        """Start an agent process on this node's directory and substrate."""
        config = AgentConfig(
            state_dir=self.directory,
            gateway=GATEWAY_URL,
            node_name=NODE,
            **({"durable": False} | self.settings),
        )
        network = InProcessNetwork(self.routes, peer=Peer(NODE), fault=self._fault_now)
        agent = await run_agent(
            config, self.substrate, network, self.clock, self.randomness, boot_id="boot-1"
        )
        self.nodes[NODE] = Node(agent=agent, capability_key_pem=self.gateway.capability_key)
        return agent

    async def kill(self, agent: Agent) -> None:
        """End an agent as kill -9 does: nothing is written or said any more."""
        tasks = [task for _, task in agent._lives.values()] + agent._background
        agent._lives, agent._background = {}, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """Call the agent's API."""
        return await self.client.post(path, json=body)

    async def create(self, *specs: SandboxSpec, epoch: int = 1) -> list[dict[str, Any]]:
        """Create through the API and return the answers."""
        answer = await self.post(
            "sandboxes", {"epoch": epoch, "specs": [one.wire() for one in specs]}
        )
        assert answer.status_code == 200, answer.text
        return list(answer.json()["answers"])

    async def state(self, since: int = -1, wait: float = 0) -> NodeState:
        """Read the agent's state."""
        answer = await self.client.get("state", params={"since": since, "wait": wait})
        return NodeState.model_validate_json(answer.content)


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds, or fail; a busy machine is slow, and that is no failure."""
    end = datetime.now(UTC).timestamp() + seconds
    while not condition():
        assert datetime.now(UTC).timestamp() < end, "did not come true in time"
        await asyncio.sleep(0.01)
