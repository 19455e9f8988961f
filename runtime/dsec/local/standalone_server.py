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
from pathlib import Path
from typing import Any

import structlog
from starlette.types import ASGIApp

from dsec.agent.agent import run_agent
from dsec.agent.app import Node, make_app
from dsec.agent.config import AgentConfig
from dsec.agent.images import ImageStore
from dsec.agent.register import Registrar
from dsec.agent.substrates.oci import OciSubstrate
from dsec.api.meta import API_VERSION
from dsec.api.tenant import DefaultResources, ImageMirror, TenantDefaults, TenantSpec
from dsec.api.wire import NodeAdmission
from dsec.gateway.auth import key_entry
from dsec.local import standalone_state
from dsec.local.control import ADMIN_GROUP, ControlConfig, build_control
from dsec.local.initbin import ensure_init
from dsec.local.standalone_state import PROJECT, SERVE_LOCK, StandaloneState
from dsec.snapshots.keys import make_key_file, read_key_file
from dsec.world import logs
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.files import FileObjects, FileRecords
from dsec.world.inprocess import InProcessNetwork
from dsec.world.memory import AccessRule, AccessTable
from dsec.world.serve import Listener
from dsec.world.tls import AGENT, CONTROLLER, GATEWAY, Peer

NODE = "local"

_CONTROLLER_URL, _GATEWAY_URL, _AGENT_URL = "http://controller", "http://gateway", "http://agent"

log = structlog.get_logger()


class Standalone:
    """All parts over one directory. `base` is the image of sandboxes that name none."""

    def __init__(self, state: StandaloneState, base: str) -> None:
        self._state = state
        self._base = base
        self._routes: dict[str, ASGIApp] = {}
        self._clock, self._randomness = SystemClock(), system_randomness()
        access = AccessTable(rules=[AccessRule(subjects=(ADMIN_GROUP,))])
        folder = state.directory / "records"
        self._records = FileRecords(folder, self._clock, self._randomness, access)

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT, or until a part fails for good (raises what it raised)."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await self._seed()
        keys = self._state.directory / "snapshot-keys.json"
        make_key_file(keys, self._randomness)
        config = ControlConfig(
            internal_url=_CONTROLLER_URL,
            internal_secret=self._randomness.randbytes(16).hex(),
            api_keys=[key_entry(self._state.api_key, "local", [ADMIN_GROUP])],
            snapshot_keys=read_key_file(keys, self._randomness),
        )
        control = await build_control(
            self._records,
            FileObjects(self._state.directory / "objects"),
            self._network("standalone", CONTROLLER, GATEWAY),
            self._clock,
            self._randomness,
            config,
        )
        self._routes[_CONTROLLER_URL] = control.internal_app
        self._routes[_GATEWAY_URL] = control.gateway_app
        async with AsyncExitStack() as closing:
            listener = Listener("127.0.0.1", self._state.port)
            closing.push_async_callback(listener.close)
            parts = [control.run(), await self._agent(closing)]
            running = [asyncio.ensure_future(part) for part in parts]
            closing.push_async_callback(_cancel, running)
            await listener.start(control.gateway_app)
            log.info("standalone dsec serves", server=self._state.server)
            stopping = asyncio.ensure_future(stop.wait())
            done, _ = await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            for task in done - {stopping}:
                task.result()

    def _network(self, name: str, *roles: str) -> InProcessNetwork:
        """Return the network as one part sees it: whom it calls knows it by name and roles."""
        return InProcessNetwork(self._routes, peer=Peer(name, frozenset(roles)))

    async def _agent(self, closing: AsyncExitStack) -> Any:
        """Start the agent; return what keeps it registered."""
        images = ImageStore(self._state.directory / "images", local_roots=True)
        substrate = OciSubstrate(
            self._state.directory / "sandboxes",
            cgroup=self._state.cgroup,
            init=ensure_init(),
            images=images,
        )
        config = AgentConfig(
            state_dir=self._state.directory / "agent", gateway=_GATEWAY_URL, node_name=NODE
        )
        network = self._network(NODE, AGENT)
        agent = await run_agent(config, substrate, network, self._clock, self._randomness)
        closing.push_async_callback(agent.close)
        node = Node(agent=agent)

        def admitted(admission: NodeAdmission) -> None:
            node.capability_key_pem = admission.capability_public_key_pem

        self._routes[_AGENT_URL] = make_app({NODE: node})
        endpoint = f"{_AGENT_URL}/n/{NODE}"
        registrar = Registrar(agent, endpoint, self._randomness, on_admission=admitted)
        await images.prepare(self._base)
        return registrar.keep()

    async def _seed(self) -> None:
        """Put in what a stack would declare: a tenant with one project."""
        await self._records.apply(_record("v1", "Namespace", PROJECT))
        tenant = _record(API_VERSION, "Tenant", PROJECT)
        tenant["spec"] = default_tenant(self._base).wire()
        await self._records.apply(tenant)


def default_tenant(base: str) -> TenantSpec:
    """Return the one tenant: no quota but the machine, and limits for those who set none."""
    return TenantSpec(
        display_name="this machine",
        projects=[PROJECT],
        defaults=TenantDefaults(
            resources=DefaultResources(
                cpu_milli=500, memory_bytes=512 << 20, pids=256, disk_bytes=1 << 30
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
    """Serve a state directory until SIGTERM or SIGINT. Raises LocalError where another does."""
    logs.configure()
    state = standalone_state.ensure(directory)
    with state.run.lock(SERVE_LOCK, f"another process serves {directory}"):
        asyncio.run(_main(state, base))


def main() -> None:
    """Serve: `python -m dsec.local.standalone_server STATE_DIRECTORY IMAGE`."""
    run(Path(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
