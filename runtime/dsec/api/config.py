"""The typed configuration of a stack: one value from which the Platform component makes all."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from dsec.api.base import Model
from dsec.api.budget import BudgetScope, BudgetSpec
from dsec.api.experiment import ExperimentSpec
from dsec.api.fields import to_wire
from dsec.api.meta import DnsName, Labels, Word
from dsec.api.mistakes import DocumentError, Mistake, mistakes_of
from dsec.api.nodes import SandboxNodePoolSpec
from dsec.api.replication import ReplicationRules
from dsec.api.suppliers import SuppliersConfig
from dsec.api.tenant import TenantSpec


class Deletion(StrEnum):
    """What `destroy` does with what users put into the platform."""

    PROTECT = "protect"
    """Refuse while there are experiments that the stack did not declare; keep data."""
    PURGE = "purge"
    """Remove everything, data included."""


class Profile(StrEnum):
    """Size of the control plane, where the configuration does not say it part by part."""

    LOCAL = "local"
    """One machine: one replica of each part."""
    SMALL = "small"
    """Two replicas of each part, spread where possible."""
    PRODUCTION = "production"
    """Three gateways and two controllers, never on one machine."""


class RegistryTls(StrEnum):
    """How a registry is trusted (CONF-26)."""

    MUTUAL = "mutual"
    VERIFY = "verify"
    LAN_INSECURE = "lan-insecure"


class ImagesConfig(Model):
    """The images of the platform itself."""

    runtime: Word = Field(description="Gateway, controller and admission.")
    agent: Word = Field(description="Node agent with its OCI runtime.")
    pull_policy: Annotated[str, Field(pattern="^(IfNotPresent|Always|Never)$")] = Field(
        default="IfNotPresent", description="Of the platform's own pods."
    )


class PartConfig(Model):
    """One role of the control plane."""

    replicas: Annotated[int, Field(ge=1, le=99)] | None = Field(
        default=None, description="Unset: what the profile says."
    )
    cpu_milli: Annotated[int, Field(ge=1)] = Field(default=100, description="CPU request.")
    memory_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        default=512 << 20, description="Memory request and limit, in bytes."
    )


class Exposure(StrEnum):
    """How clients reach the gateway: the type of its Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class GatewayConfig(PartConfig):
    """The gateway, and how clients reach it."""

    memory_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        default=1 << 30,
        description="Memory request and limit, in bytes; each connection of an agent takes some.",
    )
    exposure: Exposure = Field(default=Exposure.CLUSTER_IP, description="Type of its Service.")
    node_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Port on each node, with NodePort; unset: any free one."
    )
    host: Word = Field(
        default="", description="Name or address that clients use; part of its certificate."
    )


class AgentConfig(PartConfig):
    """The agents; sandboxes are outside this share."""

    port: Annotated[int, Field(ge=1, le=65535)] = Field(
        default=7443, description="Port on the node, for gateways."
    )
    state_dir: Annotated[str, Field(pattern="^/[^ ]+$")] = Field(
        default="/var/lib/dsec", description="On the node: sandboxes, layers, spool."
    )
    cgroup: Annotated[str, Field(pattern="^/[^ ]+$")] = Field(
        default="/dsec", description="On the node: parent of all sandboxes."
    )
    node_selector: Labels = Field(default={}, description="Nodes that get an agent; empty: all.")
    max_unavailable: Annotated[int, Field(ge=1)] = Field(
        default=1, description="Agents replaced at once in a roll-out; sandboxes live on."
    )


class ObjectStoreConfig(Model):
    """The S3 bucket that holds journal, results and archives."""

    endpoint: Word = Field(default="", description="URL; empty: the cloud's own.")
    bucket: Word = Field(default="dsec", description="Bucket.")
    region: Word = Field(default="us-east-1", description="Region given to the client.")
    secret: DnsName = Field(
        default="dsec-object-store",
        description="Secret of the platform's namespace with accessKey and secretKey.",
    )


class RegistryConfig(Model):
    """Where images of experiments come from."""

    host: Word = Field(default="", description="host:port of the stack's registry; empty: none.")
    tls: RegistryTls = Field(default=RegistryTls.VERIFY, description="How it is trusted.")
    immutable_tags: bool = Field(default=True, description="A tag never changes its image.")


class QueueOrder(StrEnum):
    """What decides among waiting work of equal priority (TEN-23)."""

    ARRIVAL = "arrival"
    """First come, first served, with a head start by weight."""
    PHASE = "phase"
    """Evaluation, training, exploration; then arrival."""


class KindWeights(StrEnum):
    """Head start by kind of work (TEN-13)."""

    EQUAL = "equal"
    EVALUATION_FIRST = "evaluation-first"


class CompactionTrigger(StrEnum):
    """When paused sandboxes are moved away from full nodes (CONF-17)."""

    AUTO_AT_LIMIT = "auto-at-limit"
    """As soon as a node has reached its limit watermark."""
    LONG_QUEUE_ONLY = "long-queue-only"
    """It has, work of a long queue waits, and a short task has waited out its time."""


class SchedulingConfig(Model):
    """Queues, preemption and compaction of an installation."""

    preempt_after_seconds: Annotated[float, Field(ge=0, le=1e6)] = Field(
        default=60.0, description="Wait after which work may displace consenting, softer work."
    )
    preemption_pools: list[DnsName] = Field(
        default=[], max_length=64, description="Pools where priority may displace; empty: all."
    )
    queue_order: QueueOrder = Field(
        default=QueueOrder.ARRIVAL, description="Order among equal priorities."
    )
    kind_weights: KindWeights = Field(
        default=KindWeights.EQUAL, description="Head start by kind of work."
    )
    queue_weights: dict[Word, Annotated[float, Field(ge=0, le=1e6)]] = Field(
        default={},
        max_length=64,
        description="Weight by queue: twice is worth an hour of waiting, 0 is last.",
    )
    patient_queues: list[Word] = Field(
        default=[], max_length=64, description="Queues whose waiting work displaces nobody."
    )
    compaction: CompactionTrigger = Field(
        default=CompactionTrigger.AUTO_AT_LIMIT, description="When full nodes are compacted."
    )
    compaction_after_seconds: Annotated[float, Field(ge=0, le=1e6)] = Field(
        default=300.0,
        description="Wait of a short task after which a long queue compacts (long-queue-only).",
    )


class ScalingConfig(Model):
    """Which parts of elasticity are switched on (OPS-18), and where metrics come from."""

    replicas: bool = Field(default=True, description="Counts of elastic roles follow metrics.")
    growth: bool = Field(default=True, description="Off: what would be added is only told.")
    shrink: bool = Field(
        default=True, description="Off: what would be removed is only told, and stays."
    )
    prometheus: Annotated[str, Field(pattern=r"^(https?://[^ ]+)?$", max_length=1024)] = Field(
        default="",
        description="URL of the Prometheus server to ask; empty: only queues, counts and ends.",
    )


class PrometheusConfig(Model):
    """A small Prometheus server of the platform's own: what elastic roles may ask."""

    enabled: bool = Field(
        default=False, description="Run it; where scaling.prometheus is empty, it is asked."
    )
    image: Word = Field(default="", description="Image with /bin/prometheus; needed to run it.")
    scrape_seconds: Annotated[int, Field(ge=5, le=300)] = Field(
        default=15, description="Time from one scrape of the platform's pods to the next."
    )
    retention_hours: Annotated[int, Field(ge=1, le=8784)] = Field(
        default=24, description="How long samples are kept; a new pod has none."
    )
    disk_bytes: Annotated[int, Field(ge=64 << 20)] = Field(
        default=1 << 30, description="Room for samples on its node, in bytes."
    )
    cpu_milli: Annotated[int, Field(ge=1)] = Field(default=50, description="CPU request.")
    memory_bytes: Annotated[int, Field(ge=32 << 20)] = Field(
        default=256 << 20, description="Memory request and limit, in bytes."
    )


class BudgetConfig(Model):
    """A budget that the stack sets."""

    project: DnsName | None = Field(
        default=None,
        description="Whose spending it limits, with scope project or task; unset: it limits an "
        "account or a pool, and lies in the namespace of the platform.",
    )
    spec: BudgetSpec = Field(description="Limit, period, levels.")


class SnapshotCopyConfig(Model):
    """A bucket in another region that snapshots are copied to."""

    region: Word = Field(description="Region of the bucket, for example eu-west-1.")
    bucket: Word = Field(default="dsec", description="Bucket.")
    endpoint: Word = Field(
        default="", description="URL of an S3 server, https://; empty: the cloud's own."
    )
    create: bool = Field(
        default=True, description="Make it with a key of its own; never with an endpoint."
    )
    secret: DnsName | None = Field(
        default=None, description="Secret with accessKey and secretKey; unset: the pods' identity."
    )


class SnapshotsConfig(Model):
    """Where snapshots are kept: the bucket of objectStore, and its copies in other regions."""

    create: bool = Field(
        default=True,
        description="Make the bucket of objectStore with a key of its own; never with an endpoint.",
    )
    copies: list[SnapshotCopyConfig] = Field(
        default=[], max_length=16, description="In other regions."
    )
    replication: dict[DnsName, ReplicationRules] = Field(
        default={}, description="Policies by name; empty: all snapshots, once a day, everywhere."
    )
    roles: list[Word] = Field(
        default=[],
        max_length=10,
        description="IAM roles of gateways and controllers that get the rights to the buckets.",
    )
    kms_key: Annotated[str, Field(pattern=r"^(arn:aws[a-z-]*:kms:[^ ]+)?$", max_length=256)] = (
        Field(
            default="",
            description="ARN of the KMS key that wraps the keys of tenants, in the region of "
            "objectStore; one of many regions opens them in each. Empty: a key of the stack's own.",
        )
    )
    version_days: Annotated[int, Field(ge=0, le=3650)] = Field(
        default=30,
        description="What dsec has deleted can be had for so long where buckets are made here; "
        "0: for ever.",
    )


class ExperimentConfig(Model):
    """An experiment that lives and dies with the stack: spec or document, exactly one."""

    project: DnsName = Field(description="Namespace.")
    spec: ExperimentSpec | None = Field(default=None, description="What is asked.")
    document: Word | None = Field(
        default=None, description="Path of a task document, relative to the stack program."
    )


class PlatformConfig(Model):
    """Everything that a stack says about its platform."""

    deletion: Deletion = Field(default=Deletion.PROTECT, description="What destroy may remove.")
    profile: Profile = Field(default=Profile.SMALL, description="Size of the control plane.")
    namespace: DnsName = Field(default="dsec-system", description="Of the platform's own pods.")
    region: Word = Field(default="local", description="Name of this region.")
    images: ImagesConfig = Field(description="Images of the platform.")
    gateway: GatewayConfig = Field(default=GatewayConfig(), description="HTTP API.")
    controller: PartConfig = Field(default=PartConfig(), description="Reconcilers, placement.")
    agent: AgentConfig = Field(default=AgentConfig(), description="Per node; replicas are ignored.")
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = Field(
        default="info", description="debug, info, warning or error."
    )
    cluster_networks: list[Word] = Field(
        default=["0.0.0.0/0"],
        max_length=64,
        description="CIDRs of nodes, API server and object store, for the network policies.",
    )
    registry: RegistryConfig = Field(default=RegistryConfig(), description="Image source.")
    object_store: ObjectStoreConfig = Field(
        default=ObjectStoreConfig(), description="Journal, results, archives."
    )
    pools: dict[DnsName, SandboxNodePoolSpec] = Field(default={}, description="Node pools by name.")
    tenants: dict[DnsName, TenantSpec] = Field(default={}, description="Tenants by name.")
    experiments: dict[DnsName, ExperimentConfig] = Field(
        default={}, description="Experiments by resource name."
    )
    budgets: dict[DnsName, BudgetConfig] = Field(default={}, description="Budgets by name.")
    snapshots: SnapshotsConfig | None = Field(
        default=None,
        description="Buckets and copies in other regions; unset: objectStore as it is.",
    )
    presets: dict[str, Word] = Field(
        default={}, description="Preset per conflict for every tenant that names none."
    )
    scheduling: SchedulingConfig = Field(
        default=SchedulingConfig(), description="Queues and preemption."
    )
    scaling: ScalingConfig = Field(
        default=ScalingConfig(), description="Switches of elasticity, and its metrics."
    )
    prometheus: PrometheusConfig = Field(
        default=PrometheusConfig(), description="The platform's own metrics server; off unless set."
    )
    suppliers: SuppliersConfig = Field(
        default=SuppliersConfig(), description="Who gives nodes: own, AWS, simulated."
    )
    labels: Labels = Field(default={}, description="On every object that the stack makes.")

    @property
    def gateway_replicas(self) -> int:
        """Gateways to run."""
        by_profile = {Profile.LOCAL: 1, Profile.SMALL: 2, Profile.PRODUCTION: 3}
        return self.gateway.replicas or by_profile[self.profile]

    @property
    def controller_replicas(self) -> int:
        """Controllers to run; one of them leads."""
        by_profile = {Profile.LOCAL: 1, Profile.SMALL: 2, Profile.PRODUCTION: 2}
        return self.controller.replicas or by_profile[self.profile]


_MAPS: Mapping[str, type[BaseModel]] = {
    "pools": SandboxNodePoolSpec,
    "tenants": TenantSpec,
    "experiments": ExperimentConfig,
    "budgets": BudgetConfig,
}


def platform_config(data: Mapping[str, Any]) -> PlatformConfig:
    """Read a stack's configuration. Raises DocumentError with every mistake and its path."""
    found: list[Mistake] = []
    wire = to_wire(PlatformConfig, data, mistakes=found)
    for part, model in _MAPS.items():
        entries = wire.get(part)
        if isinstance(entries, Mapping):
            wire[part] = {
                name: to_wire(model, one, path=f"{part}.{name}", mistakes=found)
                for name, one in entries.items()
            }
    config = None
    try:
        config = PlatformConfig.model_validate(wire)
    except ValidationError as error:
        found.extend(mistakes_of(error))
    if config:
        found.extend(_across(config))
    if found or config is None:
        raise DocumentError(found)
    return config


def _across(config: PlatformConfig) -> list[Mistake]:
    """Find what no field can say alone."""
    found = []
    owners: dict[str, str] = {}
    for tenant, spec in config.tenants.items():
        for index, project in enumerate(spec.projects):
            path = f"tenants.{tenant}.projects[{index}]"
            if project in owners:
                rule = f"a project belongs to one tenant, and {owners[project]} has it"
                found.append(Mistake(path, project, "a namespace of no other tenant", rule))
            owners.setdefault(project, tenant)
        found += _unknown_pools(config, spec.pools, f"tenants.{tenant}.pools")
    found += _unknown_pools(
        config, config.scheduling.preemption_pools, "scheduling.preemptionPools"
    )
    for pool, made in config.pools.items():
        marks = made.placement.watermarks
        if marks.safe_percent > marks.limit_percent:
            path, most = f"pools.{pool}.placement.watermarks.safePercent", marks.limit_percent
            rule = f"at most limitPercent ({most})"
            found.append(Mistake(path, marks.safe_percent, rule, f"must be {rule}"))
    if config.prometheus.enabled and not config.prometheus.image:
        rule = "the name of an image"
        found.append(Mistake("prometheus.image", "", rule, f"must be {rule}: it is enabled"))
    for name, budget in config.budgets.items():
        found += _misplaced(config, budget, owners, f"budgets.{name}")
    for name, one in config.experiments.items():
        found += _homeless(one, owners, f"experiments.{name}")
    return found


def _homeless(one: ExperimentConfig, owners: Mapping[str, str], path: str) -> list[Mistake]:
    """Find an experiment that says nothing, says it twice, or runs where nobody is at home."""
    found = []
    if (one.spec is None) == (one.document is None):
        rule = "exactly one of spec and document"
        found.append(Mistake(path, None, rule, f"must have {rule}"))
    if one.project not in owners:
        known = ", ".join(sorted(owners)) or "none is declared"
        message = f"no tenant has the project {one.project}; projects: {known}"
        found.append(Mistake(f"{path}.project", one.project, known, message))
    return found


def _misplaced(
    config: PlatformConfig, budget: BudgetConfig, owners: Mapping[str, str], path: str
) -> list[Mistake]:
    """Find where a budget limits what is not there, or lies where it must not."""
    scope, target = budget.spec.scope, budget.spec.target
    if scope in {BudgetScope.PROJECT, BudgetScope.TASK}:
        if budget.project in owners:
            return []
        known = ", ".join(sorted(owners)) or "none is declared"
        rule = f"a budget of scope {scope} names its project; projects: {known}"
        return [Mistake(f"{path}.project", budget.project, known, rule)]
    if budget.project is not None:
        rule = f"a budget of scope {scope} is the platform's: no project sets it"
        return [Mistake(f"{path}.project", budget.project, "unset", rule)]
    named = config.pools if scope is BudgetScope.POOL else config.tenants
    if target in named:
        return []
    known = ", ".join(sorted(named)) or "none is declared"
    return [Mistake(f"{path}.spec.target", target, known, f"no such {scope}; known: {known}")]


def _unknown_pools(config: PlatformConfig, pools: list[DnsName], path: str) -> list[Mistake]:
    known = ", ".join(sorted(config.pools)) or "none is declared"
    return [
        Mistake(f"{path}[{index}]", pool, known, f"no such pool; pools: {known}")
        for index, pool in enumerate(pools)
        if pool not in config.pools
    ]
