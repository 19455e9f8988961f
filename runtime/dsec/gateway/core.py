"""What every handler of the gateway works with, and the tasks behind it.

`Gateway.run` is started by the composition root and ends by cancelling. All state is soft: records,
bind log, agents and the leader hold what counts, so any number of gateways can run.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from dsec.api.meta import TENANT_LABEL
from dsec.api.records import Tenant
from dsec.api.tenant import TenantSpec
from dsec.gateway.auth import Authority as Authoriser
from dsec.gateway.ca import Authority as CertificateAuthority
from dsec.gateway.collecting import daily
from dsec.gateway.documents import Documents
from dsec.gateway.errors import ApiError
from dsec.gateway.identity import AwsIdentity
from dsec.gateway.leader import Leader
from dsec.gateway.leases import Leases
from dsec.gateway.metrics import Metrics
from dsec.gateway.nodes import NearNodes
from dsec.gateway.placing import Placing
from dsec.gateway.used import Costs
from dsec.gateway.views import Views
from dsec.journal.decisions import DecisionReader
from dsec.journal.denials import Denials
from dsec.journal.history import AUDIT, HistoryWriter
from dsec.journal.lanes import LanedReader
from dsec.journal.queuelog import QueueLogs
from dsec.journal.reaping import ReaperReader
from dsec.journal.results import ResultReader
from dsec.rules import Settings
from dsec.snapshots.keys import KeySource
from dsec.world.cache import Cache, Key
from dsec.world.clock import Clock, Randomness
from dsec.world.network import Network
from dsec.world.objects import ObjectStore, ObjectStoreError
from dsec.world.records import Records

KINDS = ("Experiment", "Tenant", "Namespace", "SandboxNode", "SandboxNodePool", "Budget")
RETRY_SECONDS = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """One gateway process.

    `audit` is the store of audit rows where they have a bucket of their own. `join_secret` admits
    simulated nodes any number of times. `agent_account` is the service account of agent pods.
    `aws` lets machines of AWS join by their role. `snapshot_keys` opens the keys of tenants'
    snapshots; without it none are taken.
    """

    identity: str
    internal_secret: str
    namespace: str = "dsec-system"
    region: str = "local"
    audit: ObjectStore | None = None
    join_secret: str = ""
    agent_account: str = "system:serviceaccount:dsec-system:dsec-agent"
    settings: Settings = field(default_factory=Settings)
    aws: AwsIdentity | None = None
    snapshot_keys: KeySource | None = None


class Gateway:
    """The parts of one gateway."""

    def __init__(
        self,
        records: Records,
        objects: ObjectStore,
        network: Network,
        *,
        clock: Clock,
        randomness: Randomness,
        ca: CertificateAuthority,
        config: GatewayConfig,
    ) -> None:
        self.records = records
        self.objects = objects
        self.network = network
        self.clock = clock
        self.randomness = randomness
        self.ca = ca
        self.config = config
        self.caches = {kind: Cache(records, kind, clock) for kind in KINDS}
        self.authoriser = Authoriser(records, clock, config.namespace)
        self.leader = Leader(records, network, clock, config.namespace, config.internal_secret)
        self.views = Views(network, clock, LanedReader(objects), ResultReader(objects))
        self.metrics = Metrics()
        self.placing = self._placing()
        self.decisions = DecisionReader(objects)
        self.reaper = ReaperReader(objects, clock)
        self.costs = Costs(objects)
        self.audit = HistoryWriter(
            config.audit or objects,
            clock,
            node=f"gateway-{config.identity}",
            boot_id=randomness.randbytes(8).hex(),
            prefix=AUDIT,
            region=config.region,
        )
        self.denials = Denials(clock)
        self.documents = Documents()
        writer = f"{config.identity}-{randomness.randbytes(6).hex()}"
        self.queues = QueueLogs(objects, clock, writer, self._ended)
        self.snapshot_keys: dict[str, bytes] = {}
        """Data keys of repositories that agents asked for, by prefix: in memory only."""
        self._nodes: asyncio.Queue[Key] = asyncio.Queue()
        self.caches["SandboxNode"].listen(self._nodes.put_nowait)

    async def run(self) -> None:
        """Follow records, agents and the bind log for ever."""
        tasks = [
            *(cache.run() for cache in self.caches.values()),
            self._follow_nodes(),
            self._follow_log(),
            self.placing.leases.run(),
            self.audit.run(),
            daily(self),
        ]
        running = [asyncio.ensure_future(task) for task in tasks]
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self.placing.leases.close()
            await self.audit.close()
            await self.views.close()
            await self.leader.close()

    def _ended(self, sandbox: str) -> bool:
        """Return whether a sandbox is known to have ended."""
        binding = self.views.bind_log.state.by_id.get(sandbox)
        return binding is not None and not binding.live

    def _placing(self) -> Placing:
        """Return what places single creates here."""
        reader, nodes = self.views.bind_log, self.caches["SandboxNode"]
        leases = Leases(
            self.leader,
            self.objects,
            reader,
            clock=self.clock,
            randomness=self.randomness,
            identity=self.config.identity,
            unreadable=self.metrics.unreadable.inc,
        )
        near = NearNodes(nodes, self.views, self.clock, self.randomness)
        return Placing(leases, near, self.views, self.clock, self.randomness)

    @property
    def ready(self) -> bool:
        """True once every kind of record has been listed."""
        return all(cache.synced.is_set() for cache in self.caches.values())

    def tenants(self) -> Mapping[str, TenantSpec] | None:
        """Return every tenant by name, or None before the first list is complete."""
        cache = self.caches["Tenant"]
        if not cache.synced.is_set():
            return None
        found = (Tenant.model_validate(record) for record in cache.all())
        return {tenant.metadata.name: tenant.spec for tenant in found}

    def tenant_of(self, project: str) -> tuple[str, TenantSpec]:
        """Return the tenant of a project: its namespace's label. Raises ApiError 422."""
        namespace = self.caches["Namespace"].get(("", project))
        labels = (namespace or {}).get("metadata", {}).get("labels", {})
        tenant = labels.get(TENANT_LABEL, "")
        rights = (self.tenants() or {}).get(tenant)
        if rights is None:
            raise ApiError(
                422,
                "invalid",
                f"project {project} belongs to no tenant: list it in the projects of a Tenant",
                [{"path": "project", "value": project, "allowed": "a project of a tenant"}],
            )
        return tenant, rights

    async def _follow_nodes(self) -> None:
        while True:
            key = await self._nodes.get()
            await self.views.node(key, self.caches["SandboxNode"].get(key))

    async def _follow_log(self) -> None:
        while True:
            try:
                await self.views.bind_log.open()
            except ObjectStoreError as problem:
                log.warning("bind log cannot be read", error=str(problem))
                await self.clock.sleep(RETRY_SECONDS)
                continue
            # from here on readers refresh it when they need it
            await asyncio.Event().wait()
