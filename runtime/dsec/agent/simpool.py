"""The machines of the simulated provider: an agent for each that it shows as running.

`python -m dsec.agent.simpool DIRECTORY` reads DIRECTORY/pool.json, follows the provider's object in
the store until SIGTERM, and serves the agents of all machines behind one port. A machine that the
provider ends is gone at once, as a real one; before its run-until its agent winds down by itself. A
process that is started again finds the machines that are still there, without their sandboxes.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import structlog
from pydantic import Field

from dsec.agent.simnodes import Fleet, Plan, SimulatedNode, program, store_token
from dsec.agent.substrates.simulated import PROFILES
from dsec.api.base import Model
from dsec.api.suppliers import SimulatedSupplier
from dsec.api.wire import NodeNotice
from dsec.providers.opening import weather_of
from dsec.providers.provider import EventKind, NodeProvider, Phase, ProviderNode
from dsec.providers.simulated import SimulatedProvider
from dsec.world.clock import SystemClock
from dsec.world.files import FileObjects
from dsec.world.http import NetworkTls
from dsec.world.objects import ObjectStore
from dsec.world.s3 import S3Config, S3Objects
from dsec.world.tls import client_context

SETTINGS = "pool.json"
LOOK_SECONDS = 1.0
"""How often the provider is asked: much less than a boot takes."""
USUAL_PROFILE = "cpu"

_log = structlog.get_logger(__name__)

Join = Callable[[ProviderNode], Awaitable[str]]
"""Returns a join token for a machine."""


class PoolSettings(Model):
    """What the process is told; the keys are paths of files, so that no secret is in here."""

    gateway: str = Field(pattern="^https://[^ ]+$")
    ca: Path
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    api_key_file: Path = Field(description="Key of a user who may create join tokens.")
    profiles: dict[str, str] = Field(default={}, description="Pool to profile; default: cpu.")
    market: SimulatedSupplier = SimulatedSupplier()
    files: Path | None = Field(default=None, description="Object store in a folder.")
    endpoint: str = Field(default="", description="Else an S3 server.")
    bucket: str = "dsec"
    region: str = "us-east-1"
    access_key_file: Path | None = None
    secret_key_file: Path | None = None


class SimulatedPool:
    """Keeps a fleet of agents equal to what a provider shows."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        provider: NodeProvider,
        join: Join,
        profiles: dict[str, str],
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._provider = provider
        self._join = join
        self._profiles = profiles
        self._nodes: dict[str, SimulatedNode] = {}
        self.fleet = Fleet(directory, plan)

    async def look(self) -> None:
        """Start and stop agents as machines have come and gone, and pass notices on.

        Raises what the start of an agent raises, and httpx2.HTTPError: no token for a new one.
        """
        held = await self._provider.list()
        if not held.complete:
            return
        shown = {node.id: node for node in held.nodes if node.phase is Phase.RUNNING}
        for name, node in shown.items():
            if name not in self._nodes:
                store_token(self._directory, name, await self._join(node))
                self._nodes[name] = self._made(node)
        self._nodes = {name: node for name, node in self._nodes.items() if name in shown}
        await self.fleet.follow(self._plan.model_copy(update={"nodes": [*self._nodes.values()]}))
        for event in await self._provider.events():
            known = self.fleet.host.nodes.get(event.node)
            if known is not None and event.kind is not EventKind.GONE:
                deadline = None if event.deadline is None else _utc(event.deadline)
                await known.agent.notice(
                    NodeNotice(
                        kind=event.kind.value,
                        at=_utc(event.at),
                        deadline=deadline,
                        message=event.words,
                    )
                )

    def _made(self, node: ProviderNode) -> SimulatedNode:
        return SimulatedNode(
            name=node.name,
            profile=self._profiles.get(node.pool, USUAL_PROFILE),
            labels={"market": node.market, **({"zone": node.zone} if node.zone else {})},
            pool=node.pool,
            run_until=None if node.run_until is None else _utc(node.run_until),
        )


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def store_of(settings: PoolSettings) -> ObjectStore:
    """Return the store that the provider's object is in."""
    if settings.files is not None:
        return FileObjects(settings.files)
    keys = [
        "" if path is None else path.read_text().strip()
        for path in (settings.access_key_file, settings.secret_key_file)
    ]
    return S3Objects(S3Config(settings.bucket, settings.endpoint, settings.region, *keys))


def joiner(settings: PoolSettings) -> Join:
    """Return what asks the gateway for tokens."""
    network = NetworkTls(client_context(settings.ca))

    async def join(node: ProviderNode) -> str:
        key = settings.api_key_file.read_text().strip()
        async with network.client(settings.gateway) as client:
            answer = await client.post(
                "/v1/join-tokens",
                json={"count": 1, "pool": node.pool},
                headers={"Authorization": f"Bearer {key}"},
            )
            answer.raise_for_status()
        return str(answer.json()["tokens"][0])

    return join


async def run(directory: Path) -> int:
    """Follow the provider until SIGTERM; return the exit code."""
    settings = PoolSettings.model_validate_json((directory / SETTINGS).read_bytes())
    if unknown := set(settings.profiles.values()) - set(PROFILES):
        raise ValueError(f"profiles: {', '.join(sorted(unknown))}; known: {', '.join(PROFILES)}")
    provider = SimulatedProvider(store_of(settings), SystemClock(), weather_of(settings.market))
    plan = Plan(
        gateway=settings.gateway,
        ca=settings.ca,
        listen=settings.listen,
        advertise=settings.advertise,
    )
    pool = SimulatedPool(directory, plan, provider, joiner(settings), settings.profiles)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    pool.fleet.host.bind()
    serving = asyncio.create_task(pool.fleet.host.serve())
    try:
        while not stop.is_set():
            try:
                await pool.look()
            except httpx2.HTTPError as error:
                _log.warning("a new machine gets no token, will repeat", error=str(error))
            pool.fleet.report()
            if serving.done():
                serving.result()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_SECONDS)
    finally:
        serving.cancel()
        await pool.fleet.host.close()
    return 0


def main() -> int:
    """Run the program."""
    return program("dsec.agent.simpool", "simulated pool", run)


if __name__ == "__main__":
    sys.exit(main())
