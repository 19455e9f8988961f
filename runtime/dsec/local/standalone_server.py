"""Standalone mode's one process: gateway, controller and agent over files, in one event loop.

Started by the supervisor (`dsec up --standalone`) with the state directory as argument, or in the
foreground. The three parts are those of a cluster; only what is between them is shorter: records
and objects are files, calls between the parts stay in the process, and who calls is known without
certificates. Sandboxes are no children of it: they outlive it, and the next process adopts them.
"""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from starlette.types import ASGIApp

from dsec.agent import logs
from dsec.agent.agent import run_agent
from dsec.agent.app import Node, make_app
from dsec.agent.config import AgentConfig
from dsec.agent.images import ImageStore
from dsec.agent.register import Registrar
from dsec.agent.substrates.oci import OciSubstrate
from dsec.api.meta import API_VERSION
from dsec.api.tenant import DefaultResources, ImageMirror, TenantDefaults, TenantSpec
from dsec.api.wire import NodeAdmission
from dsec.controllers import app as controller_app
from dsec.controllers.controller import Controller, ControllerConfig
from dsec.controllers.term import World
from dsec.gateway import app as gateway_app
from dsec.gateway import ca
from dsec.gateway.auth import key_entry, keys_secret
from dsec.gateway.core import Gateway, GatewayConfig
from dsec.local import standalone_state
from dsec.local.initbin import ensure_init
from dsec.local.processes import write_atomically
from dsec.local.standalone_state import PROJECT, StandaloneState
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.files import FileObjects, FileRecords
from dsec.world.inprocess import InProcessNetwork
from dsec.world.memory import AccessRule, AccessTable
from dsec.world.serve import Listener
from dsec.world.tls import AGENT, CONTROLLER, GATEWAY, Peer

NODE = "local"
SYSTEM = "dsec-system"
ADMINS = "dsec.dev:admins"

_CONTROLLER_URL, _GATEWAY_URL, _AGENT_URL = "http://controller", "http://gateway", "http://agent"

log = structlog.get_logger()


class Standalone:
    """All parts over one directory. `base` is the image of sandboxes that name none."""

    def __init__(self, state: StandaloneState, base: str) -> None:
        self._state = state
        self._base = base
        self._routes: dict[str, ASGIApp] = {}
        clock, randomness = SystemClock(), system_randomness()
        access = AccessTable(rules=[AccessRule(subjects=(ADMINS,))])
        self._records = FileRecords(state.directory / "records", clock, randomness, access)
        self._world = World(
            self._records,
            FileObjects(state.directory / "objects"),
            self._network(CONTROLLER),
            clock,
            randomness,
        )

    def _network(self, role: str, name: str = "") -> InProcessNetwork:
        return InProcessNetwork(self._routes, peer=Peer(name or role, frozenset({role})))

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT, or until a part fails for good (raises what it raised)."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await self._seed()
        # an internal secret guards the controller's calls in a cluster; in here nobody listens in
        secret = self._world.randomness.randbytes(16).hex()
        controller = Controller(
            self._world, ControllerConfig("standalone", _CONTROLLER_URL, exit_on_loss=False)
        )
        self._routes[_CONTROLLER_URL] = controller_app.build_app(controller, secret)
        gateway = Gateway(
            self._records,
            self._world.objects,
            self._network(GATEWAY),
            clock=self._world.clock,
            randomness=self._world.randomness,
            ca=self._authority(),
            config=GatewayConfig("standalone", secret),
        )
        self._routes[_GATEWAY_URL] = application = gateway_app.build_app(gateway)
        async with AsyncExitStack() as closing:
            listener = Listener("127.0.0.1", self._state.port)
            closing.push_async_callback(listener.close)
            parts = [controller.run(), gateway.run(), await self._agent(closing)]
            running = [asyncio.ensure_future(part) for part in parts]
            closing.push_async_callback(_cancel, running)
            await listener.start(application)
            log.info("standalone dsec serves", server=self._state.server)
            stopping = asyncio.ensure_future(stop.wait())
            done, _ = await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            for task in done - {stopping}:
                task.result()

    async def _agent(self, closing: AsyncExitStack) -> Any:
        """Start the agent; return what keeps it registered."""
        images = ImageStore(self._state.directory / "images")
        substrate = OciSubstrate(
            self._state.directory / "sandboxes",
            cgroup=self._state.cgroup,
            init=ensure_init(),
            images=images,
        )
        config = AgentConfig(
            state_dir=self._state.directory / "agent", gateway=_GATEWAY_URL, node_name=NODE
        )
        clock, randomness = self._world.clock, self._world.randomness
        agent = await run_agent(config, substrate, self._network(AGENT, NODE), clock, randomness)
        closing.push_async_callback(agent.close)
        node = Node(agent=agent)

        def admitted(admission: NodeAdmission) -> None:
            node.capability_key_pem = admission.capability_public_key_pem

        self._routes[_AGENT_URL] = make_app({NODE: node})
        endpoint = f"{_AGENT_URL}/n/{NODE}"
        registrar = Registrar(agent, endpoint, randomness, on_admission=admitted)
        await images.prepare(self._base)
        return registrar.keep()

    async def _seed(self) -> None:
        """Put in what a stack would declare: a tenant with one project, and one API key."""
        entry = key_entry(self._state.api_key, "local", [ADMINS])
        await self._records.apply(_record("v1", "Namespace", SYSTEM))
        await self._records.apply(keys_secret([entry], SYSTEM))
        await self._records.apply(_record("v1", "Namespace", PROJECT))
        tenant = _record(API_VERSION, "Tenant", PROJECT)
        tenant["spec"] = default_tenant(self._base).wire()
        await self._records.apply(tenant)

    def _authority(self) -> ca.Authority:
        """Return the authority that signs exec capabilities; kept, as sandboxes outlive us."""
        certificate, key = (self._state.directory / f"ca.{end}" for end in ("crt", "key"))
        if key.exists() and certificate.exists():
            return ca.load(certificate.read_text(), key.read_text())
        authority, pem = ca.create(datetime.now(UTC))
        write_atomically(key, pem)
        write_atomically(certificate, authority.ca_pem)
        return authority


def default_tenant(base: str) -> TenantSpec:
    """Return the one tenant: no quota but the machine, and limits for those who set none."""
    return TenantSpec(
        display_name="this machine",
        projects=[PROJECT],
        defaults=TenantDefaults(
            resources=DefaultResources(
                cpu_milli=1000, memory_bytes=512 << 20, pids=256, disk_bytes=1 << 30
            ),
            image=base,
            image_mirrors=[ImageMirror(prefix="base", mirror=base)],
        ),
    )


def _record(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


async def _cancel(tasks: list["asyncio.Future[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _main(state: StandaloneState, base: str) -> None:
    # the substrate starts tasks of its own: everything is made inside the loop
    await Standalone(state, base).serve()


def run(directory: Path, base: str) -> None:
    """Serve a state directory in the foreground until SIGTERM or SIGINT."""
    state = standalone_state.ensure(directory)
    asyncio.run(_main(state, base))


def main() -> None:
    """Serve: `python -m dsec.local.standalone_server STATE_DIRECTORY IMAGE`."""
    logs.configure()
    run(Path(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
