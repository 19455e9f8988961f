"""One process's agents on the network: TLS identity, registration and the shared listener."""

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dsec.agent import spotwatch
from dsec.agent.agent import Agent, run_agent
from dsec.agent.app import Node, make_app
from dsec.agent.config import AgentConfig, split_address
from dsec.agent.metrics import Metrics
from dsec.agent.register import Registrar
from dsec.agent.tls import CertificateStore
from dsec.api.wire import NodeAdmission
from dsec.world.clock import Clock, Randomness
from dsec.world.http import NetworkPlain, NetworkTls
from dsec.world.instance import InstanceMetadata
from dsec.world.serve import Listener
from dsec.world.substrate import Substrate

if TYPE_CHECKING:
    from dsec.agent.identity import AwsVoucher


def endpoint_of(base: str, node: str) -> str:
    """Return the URL of a node's API below a server's address."""
    root = base if base.startswith(("http://", "https://")) else f"https://{base}"
    return f"{root.rstrip('/')}/n/{node}"


@dataclass(slots=True)
class _Member:
    agent: Agent
    registrar: Registrar
    certificates: CertificateStore
    registration: asyncio.Task[None]
    voucher: "AwsVoucher | None" = None
    metadata: InstanceMetadata | None = None
    watching: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Host:
    """A listener and the agents behind it. Serving starts with the first certificate.

    All nodes share the first one's server certificate: it names the address, and the path names
    the node. Each has a client certificate of its own.
    """

    listen: str
    advertise: str
    clock: Clock
    randomness: Randomness
    nodes: dict[str, Node] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)
    _members: dict[str, _Member] = field(default_factory=dict)
    _listener: Listener | None = None
    _tls: ssl.SSLContext | None = None
    _tls_from: str = ""

    @property
    def base(self) -> str:
        """Return the address that gateways are told, once bound."""
        return self.advertise or (self._listener.address if self._listener else "")

    def bind(self) -> None:
        """Take the port. Raises OSError."""
        host, port = split_address(self.listen)
        self._listener = Listener(host, port)

    async def add(self, config: AgentConfig, substrate: Substrate, *, boot_id: str = "") -> Agent:
        """Start an agent and keep it registered.

        Raises SpoolError, StateError, SubstrateError, OSError.
        """
        if self._listener is None:
            self.bind()
        name = config.node_name
        hosts = sorted({_host_of(self.base), split_address(self.listen)[0]} - {"0.0.0.0", "::"})  # noqa: S104 - no name to certify
        store = CertificateStore(config.state_dir / "tls", name, hosts, config.ca)
        network = NetworkTls(store.client(config.ca, self.clock.now()))
        agent = await run_agent(
            config,
            substrate,
            network,
            self.clock,
            self.randomness,
            boot_id=boot_id,
            metrics=self.metrics,
            identified=store.valid(self.clock.now()),
            stores=NetworkPlain(),
        )
        node = self.nodes[name] = Node(agent=agent)

        def admitted(admission: NodeAdmission) -> None:
            node.capability_key_pem = admission.capability_public_key_pem or node.capability_key_pem

        def renewed() -> None:
            network.use(store.client(config.ca, self.clock.now()))
            if self._tls is not None and self._tls_from in {name, *self._orphaned()}:
                self._tls_from = name
                store.load_into(self._tls)

        voucher = _aws_voucher(config) if config.join == "aws" else None
        registrar = Registrar(
            agent,
            self.endpoint(name),
            self.randomness,
            certificates=store,
            token_file=config.token_file,
            voucher=voucher.token if voucher is not None else None,
            on_admission=admitted,
            on_certificate=renewed,
        )
        task = asyncio.create_task(registrar.keep())
        member = self._members[name] = _Member(agent, registrar, store, task, voucher)
        if config.watch_spot:
            member.metadata = InstanceMetadata(NetworkPlain(), config.metadata_url)
            looking = spotwatch.watch(member.metadata, self.clock, agent.notice)
            member.watching = asyncio.create_task(looking)
        return agent

    def endpoint(self, name: str) -> str:
        """Return the URL that a node registers."""
        return endpoint_of(self.base, name)

    def registered(self, name: str) -> bool:
        """Say whether a node has been admitted since it was added."""
        return name in self._members and self._members[name].registrar.admission is not None

    def _orphaned(self) -> set[str]:
        """Return the node whose certificate is served though it has gone, if that is so."""
        return set() if self._tls_from in self._members else {self._tls_from}

    async def serve(self) -> None:
        """Wait for a first certificate (also one from an earlier run), then answer calls."""
        while self._tls is None:
            for name, member in self._members.items():
                if member.certificates.valid(self.clock.now()):
                    self._tls, self._tls_from = member.certificates.server(), name
                    break
            else:
                await self.clock.sleep(0.05)
        if self._listener is not None:
            await self._listener.start(make_app(self.nodes), self._tls)

    def metrics_app(self) -> Starlette:
        """Return the scrape endpoint, /metrics. Nothing in it is secret: serve it without TLS."""

        async def answer(_: Request) -> Response:
            found = [(node.agent.core, node.agent.spool) for node in self.nodes.values()]
            return Response(self.metrics.text(found), media_type="text/plain; version=0.0.4")

        return Starlette(routes=[Route("/metrics", answer)])

    async def remove(self, name: str) -> None:
        """Stop one agent; its sandboxes go on. Idempotent."""
        member = self._members.pop(name, None)
        self.nodes.pop(name, None)
        if member is not None:
            tasks = [task for task in (member.registration, member.watching) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await member.agent.close()
            if member.metadata is not None:
                await member.metadata.close()
            if member.voucher is not None:
                member.voucher.close()

    async def close(self) -> None:
        """Stop everything; sandboxes go on. Idempotent."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        await asyncio.gather(*(self.remove(name) for name in list(self._members)))


def _aws_voucher(config: AgentConfig) -> "AwsVoucher":
    # the client of AWS is large: a node that joins otherwise does not carry it
    from dsec.agent.identity import AwsVoucher

    return AwsVoucher(config)


def _host_of(base: str) -> str:
    rest = base.split("://", 1)[-1].split("/", 1)[0]
    return rest.rpartition(":")[0].strip("[]") if ":" in rest else rest
