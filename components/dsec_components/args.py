"""Inputs of the components. Docstrings of the keys become the descriptions in the schema.

The names are those of `dsec.api.config` and of the records, in Python spelling: a validated
configuration dumps into these types as it is. Nested types carry no Args suffix: SDK generators
append it.
"""

from enum import StrEnum
from typing import NotRequired, TypedDict

import pulumi
from dsec.api.config import Deletion, Exposure, KindWeights, Profile, QueueOrder, RegistryTls

from dsec_components._generated import (
    BudgetSpec,
    ExperimentSpec,
    ImageMirror,
    ReplicationRules,
    SandboxNodePoolSpec,
    TenantSpec,
)
from dsec_components.supplier_args import Suppliers


class Wait(StrEnum):
    """What `up` waits for after it has declared an experiment."""

    NONE = "none"
    """The API server has it."""
    ACCEPTED = "accepted"
    """Defaults, presets and images are resolved; it may still be pending."""
    READY = "ready"
    """Every replica runs. An experiment that runs to its end may never be seen so."""


class PlatformImages(TypedDict):
    """The images of the platform itself."""

    runtime: pulumi.Input[str]
    """Gateway and controller, best with digest. Update in place: pods roll."""
    agent: pulumi.Input[str]
    """Node agent with its OCI runtime. Update in place: agents roll, sandboxes live on."""
    pull_policy: NotRequired[pulumi.Input[str]]
    """IfNotPresent (default), Always or Never. Update in place: pods roll."""


class ServerPart(TypedDict):
    """One Deployment of the control plane."""

    replicas: NotRequired[int]
    """Pods; unset: the profile's. Update in place."""
    cpu_milli: NotRequired[int]
    """CPU request, in thousandths of a core; default 100. Update in place: pods roll."""
    memory_bytes: NotRequired[int]
    """Memory request and limit, in bytes; default 512 MiB. Update in place: pods roll."""


class GatewayPart(TypedDict):
    """The gateway, and how clients reach it."""

    replicas: NotRequired[int]
    """Pods; unset: the profile's. Update in place."""
    cpu_milli: NotRequired[int]
    """CPU request, in thousandths of a core; default 100. Update in place: pods roll."""
    memory_bytes: NotRequired[int]
    """Memory request and limit, in bytes; default 512 MiB. Update in place: pods roll."""
    exposure: NotRequired[Exposure]
    """Type of its Service: ClusterIP (default), NodePort or LoadBalancer. Update in place."""
    node_port: NotRequired[int]
    """Port on each node, with NodePort; unset: any free one. Update in place."""
    host: NotRequired[pulumi.Input[str]]
    """Name or address that clients use; part of its certificate. Update in place: pods roll."""


class AgentPart(TypedDict):
    """The DaemonSet whose pods run sandboxes. A roll-out ends no sandbox."""

    replicas: NotRequired[int]
    """Ignored: there is one agent on each node."""
    cpu_milli: NotRequired[int]
    """CPU request of the agent itself, in thousandths of a core. Agents roll."""
    memory_bytes: NotRequired[int]
    """Memory request and limit of the agent itself, in bytes. Agents roll."""
    port: NotRequired[int]
    """Port on the node, for gateways; default 7443. Agents roll."""
    state_dir: NotRequired[str]
    """Directory on the node for sandboxes and layers; default /var/lib/dsec. Agents roll."""
    cgroup: NotRequired[str]
    """Cgroup on the node, parent of all sandboxes; default /dsec. Agents roll."""
    node_selector: NotRequired[dict[str, str]]
    """Labels of nodes that get an agent; empty: all. Update in place."""
    max_unavailable: NotRequired[int]
    """Agents replaced at once in a roll-out; default 1. Update in place."""


class ObjectStore(TypedDict):
    """The S3 bucket that holds journal, results and archives."""

    endpoint: NotRequired[pulumi.Input[str]]
    """URL of an S3 server; empty: the cloud's own. Update in place: pods roll."""
    bucket: NotRequired[pulumi.Input[str]]
    """Bucket; default dsec. Another bucket has another history."""
    region: NotRequired[pulumi.Input[str]]
    """Region given to the client; default us-east-1."""
    secret: NotRequired[str]
    """Name of the Secret that holds the keys; default dsec-object-store. Replace."""
    access_key: NotRequired[pulumi.Input[str]]
    """Access key id; empty: the Secret exists already or is not needed. Kept as a secret."""
    secret_key: NotRequired[pulumi.Input[str]]
    """Secret access key. Kept as a secret."""


class PlatformRegistry(TypedDict):
    """Where images of experiments come from."""

    host: NotRequired[pulumi.Input[str]]
    """host:port of the stack's registry; empty: none."""
    tls: NotRequired[RegistryTls]
    """verify (default), mutual or lan-insecure."""
    immutable_tags: NotRequired[pulumi.Input[bool]]
    """A tag never changes its image (default)."""
    mirrors: NotRequired[list[ImageMirror]]
    """Where images of a prefix are fetched; the first match wins."""


class Scheduling(TypedDict):
    """Queues and preemption."""

    preempt_after_seconds: NotRequired[pulumi.Input[float]]
    """Wait after which work may displace consenting, softer work; default 60."""
    preemption_pools: NotRequired[list[pulumi.Input[str]]]
    """Pools where priority may displace; none: all."""
    queue_order: NotRequired[QueueOrder]
    """Order among equal priorities: arrival (default) or phase."""
    kind_weights: NotRequired[KindWeights]
    """Head start by kind of work: equal (default) or evaluation-first."""
    queue_weights: NotRequired[dict[str, pulumi.Input[float]]]
    """Weight by queue: twice is worth an hour of waiting, 0 is last."""
    patient_queues: NotRequired[list[pulumi.Input[str]]]
    """Queues whose waiting work displaces nobody."""


class Scaling(TypedDict):
    """Switches of elasticity, and where its metrics come from."""

    replicas: NotRequired[pulumi.Input[bool]]
    """Counts of elastic roles follow metrics (default)."""
    growth: NotRequired[pulumi.Input[bool]]
    """Off: what would be added is only told."""
    shrink: NotRequired[pulumi.Input[bool]]
    """Off: what would be removed is only told, and stays."""
    prometheus: NotRequired[pulumi.Input[str]]
    """URL of the Prometheus server to ask; none: only queues, counts and ends are known."""


class PrometheusServerPart(TypedDict):
    """A small Prometheus server of the platform's own: what elastic roles may ask."""

    enabled: NotRequired[bool]
    """Run it; where scaling.prometheus is empty, it is asked. Default: no. Update in place."""
    image: NotRequired[pulumi.Input[str]]
    """Image with /bin/prometheus; needed to run it. Update in place: its pod is replaced."""
    scrape_seconds: NotRequired[int]
    """Time from one scrape of the platform's pods to the next; default 15."""
    retention_hours: NotRequired[int]
    """How long samples are kept, a new pod has none; default 24."""
    disk_bytes: NotRequired[int]
    """Room for samples on its node, in bytes; default 1 GiB."""
    cpu_milli: NotRequired[int]
    """CPU request, in thousandths of a core; default 50."""
    memory_bytes: NotRequired[int]
    """Memory request and limit, in bytes; default 256 MiB."""


class RuntimeArgs(TypedDict):
    """Inputs of Runtime."""

    images: PlatformImages
    """The images of the platform itself."""
    profile: NotRequired[Profile]
    """Size: local, small (default) or production. Update in place."""
    deletion: NotRequired[Deletion]
    """protect (default) keeps the definitions of the records at destroy; purge deletes them."""
    namespace: NotRequired[str]
    """Namespace of the control plane; default dsec-system. Replaces everything inside."""
    region: NotRequired[pulumi.Input[str]]
    """Name of this region in the journal; default local. Update in place: pods roll."""
    gateway: NotRequired[GatewayPart]
    """The gateway."""
    controller: NotRequired[ServerPart]
    """The controller."""
    agent: NotRequired[AgentPart]
    """The agents."""
    object_store: NotRequired[ObjectStore]
    """Where history and results are kept."""
    snapshot_key: NotRequired[str]
    """KMS key, in the region of the object store, that wraps the keys of tenants' snapshots;
    unset: a key of the stack's own. Update in place: pods roll."""
    pools: NotRequired[dict[str, SandboxNodePoolSpec]]
    """Node pools by name: agents run per pool, nodes carry its labels. Agents roll."""
    registry: NotRequired[PlatformRegistry]
    """Where images of experiments come from. Update in place: pods roll."""
    log_level: NotRequired[pulumi.Input[str]]
    """debug, info (default), warning or error. Update in place: pods roll."""
    presets: NotRequired[dict[str, pulumi.Input[str]]]
    """Preset per conflict, for example CONF-10: container. Update in place: pods roll."""
    scheduling: NotRequired[Scheduling]
    """Queues and preemption. Update in place: pods roll."""
    scaling: NotRequired[Scaling]
    """Switches of elasticity, and its metrics. Update in place: pods roll."""
    prometheus: NotRequired[PrometheusServerPart]
    """The platform's own metrics server; off unless set. Update in place: controllers roll."""
    suppliers: NotRequired[Suppliers]
    """Who gives nodes: own machines, AWS, a simulated market. Update in place: pods roll."""
    cluster_networks: NotRequired[list[str]]
    """CIDRs of nodes, API server and object store, for the network policies. Update in place."""
    await_ready: NotRequired[bool]
    """Wait until all pods are ready (default); false only where no kubelet runs them."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels for every object. Update in place."""


class OnPremNodePoolArgs(TypedDict):
    """Inputs of OnPremNodePool."""

    spec: NotRequired[SandboxNodePoolSpec]
    """Kind, labels, membership, agent settings; with scaling, machines are switched on and off."""
    pool_name: NotRequired[str]
    """Name of the SandboxNodePool; default: the component's. Replace."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels of the record itself. Update in place."""


class CloudBurstNodePoolArgs(TypedDict):
    """Inputs of CloudBurstNodePool."""

    spec: SandboxNodePoolSpec
    """With scaling: supplier, offerings, markets, limits, buffers, schedule, run-until."""
    pool_name: NotRequired[str]
    """Name of the SandboxNodePool; default: the component's. Replace."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels of the record itself. Update in place."""


class BudgetArgs(TypedDict):
    """Inputs of Budget."""

    spec: BudgetSpec
    """Scope, target, limit, period and levels. A changed limit is the live limit at once."""
    project: NotRequired[pulumi.Input[str]]
    """Namespace of the project whose spending it limits; not with scope account or pool. Replace.
    """
    namespace: NotRequired[pulumi.Input[str]]
    """Namespace of the control plane, for accounts and pools; default dsec-system. Replace."""
    budget_name: NotRequired[str]
    """Name of the Budget; default: the component's. Replace."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels of the record itself. Update in place."""


class TenantArgs(TypedDict):
    """Inputs of Tenant."""

    spec: NotRequired[TenantSpec]
    """Projects, quota, defaults and what it may use. A changed quota is the live limit at once."""
    tenant_name: NotRequired[str]
    """Name of the Tenant; default: the component's. Replace."""
    create_namespaces: NotRequired[bool]
    """Create the namespaces of its projects (default); false where they exist already."""
    editors: NotRequired[list[str]]
    """Users, or group:NAME, that may run experiments in its projects. Update in place."""
    viewers: NotRequired[list[str]]
    """Users, or group:NAME, that may look. Update in place."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels for every object. Update in place."""


class ImageRegistryArgs(TypedDict):
    """Inputs of ImageRegistry."""

    host: pulumi.Input[str]
    """host:port that nodes use. Update in place."""
    tls: NotRequired[RegistryTls]
    """verify (default), mutual, or lan-insecure, asked for by name. Update in place."""
    immutable_tags: NotRequired[pulumi.Input[bool]]
    """A tag never changes its image (default). Update in place."""
    mirrors: NotRequired[list[ImageMirror]]
    """Where images of a prefix are fetched; the first match wins. Update in place."""
    namespace: NotRequired[pulumi.Input[str]]
    """Namespace of the control plane; default dsec-system. Replace."""
    registry_name: NotRequired[str]
    """Name of the registry; default: the component's. Replace."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels for every object. Update in place."""


class ExperimentArgs(TypedDict):
    """Inputs of Experiment: exactly one of spec, document and document_file."""

    project: pulumi.Input[str]
    """Namespace that it runs in; its tenant is the namespace's. Replace."""
    spec: NotRequired[ExperimentSpec]
    """Roles, resources, data, elasticity and policies, typed."""
    document: NotRequired[pulumi.Input[str]]
    """Text of a task document in any dialect."""
    document_file: NotRequired[str]
    """File with a task document in any dialect, relative to the program."""
    experiment_name: NotRequired[str]
    """Name of the record; default: the document's name, else the component's. Replace."""
    wait: NotRequired[Wait]
    """What `up` waits for: accepted (default), ready, or none."""
    collect_minutes: NotRequired[int]
    """How long destroy waits while results are collected; default 10."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels of the record. Update in place."""


class SnapshotHome(TypedDict):
    """The bucket that snapshots are saved to: the one of the platform."""

    region: str
    """Region of the bucket, for example eu-central-1. Replace."""
    bucket: NotRequired[str]
    """Bucket; default dsec. Another bucket has another history."""
    endpoint: NotRequired[pulumi.Input[str]]
    """URL of an S3 server that has the bucket; unset: the cloud's own, where it is made."""
    create: NotRequired[bool]
    """Make bucket and key (default); false where they exist. Never with an endpoint."""


class SnapshotCopy(TypedDict):
    """A bucket in another region that snapshots are copied to."""

    region: str
    """Region of the bucket, for example eu-west-1. Replace."""
    bucket: NotRequired[str]
    """Bucket; default dsec."""
    endpoint: NotRequired[pulumi.Input[str]]
    """URL of an S3 server, https://; unset: the cloud's own, where the bucket is made."""
    create: NotRequired[bool]
    """Make bucket and key (default); false where they exist. Never with an endpoint."""
    secret: NotRequired[str]
    """Secret with accessKey and secretKey; made where the keys are given; unset: identity of pods.
    """
    access_key: NotRequired[pulumi.Input[str]]
    """Access key id. Kept as a secret."""
    secret_key: NotRequired[pulumi.Input[str]]
    """Secret access key. Kept as a secret."""


class SnapshotStoreArgs(TypedDict):
    """Inputs of SnapshotStore."""

    home: SnapshotHome
    """The bucket of this region."""
    copies: NotRequired[list[SnapshotCopy]]
    """Buckets of other regions. One more is copied to in the next cycle."""
    replication: NotRequired[dict[str, ReplicationRules]]
    """Policies by name, each to all copies; none: `daily`, all snapshots once a day. In place."""
    roles: NotRequired[list[pulumi.Input[str]]]
    """IAM roles of gateways and controllers: they get the rights to the buckets, and no others."""
    kms_key: NotRequired[str]
    """ARN of the KMS key that wraps tenants' keys: the roles get the right to use it."""
    version_days: NotRequired[int]
    """Days that S3 keeps what dsec has deleted; default 30, 0: for ever. Update in place."""
    deletion: NotRequired[Deletion]
    """protect (default) keeps buckets and keys at destroy; purge deletes them and their content."""
    region: NotRequired[pulumi.Input[str]]
    """Name of this region in records, where it is not that of the home bucket."""
    namespace: NotRequired[pulumi.Input[str]]
    """Namespace of the control plane; default dsec-system. Replace."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels of records and tags of what is made on AWS. Update in place."""


class PlatformSnapshots(TypedDict):
    """Where snapshots are kept: the bucket of the object store, and copies in other regions."""

    create: NotRequired[bool]
    """Make the object store's bucket and key (default); never with an endpoint."""
    copies: NotRequired[list[SnapshotCopy]]
    """Buckets of other regions."""
    replication: NotRequired[dict[str, ReplicationRules]]
    """Policies by name, each to all copies; none: `daily`, all snapshots once a day."""
    roles: NotRequired[list[pulumi.Input[str]]]
    """IAM roles of gateways and controllers: they get the rights to the buckets, and no others."""
    kms_key: NotRequired[str]
    """ARN of the KMS key that wraps tenants' keys; unset: a key of the stack's own. Snapshots
    that were saved under another key are not opened by it."""
    version_days: NotRequired[int]
    """Days that S3 keeps what dsec has deleted; default 30, 0: for ever."""


class PlatformExperiment(TypedDict):
    """An experiment that lives and dies with the platform: spec or document, exactly one."""

    project: pulumi.Input[str]
    """Namespace that it runs in."""
    spec: NotRequired[ExperimentSpec]
    """What is asked, typed."""
    document: NotRequired[str]
    """File with a task document in any dialect, relative to the program."""
    wait: NotRequired[Wait]
    """What `up` waits for: accepted (default), ready, or none."""


class PlatformBudget(TypedDict):
    """A budget that the platform sets."""

    project: NotRequired[pulumi.Input[str]]
    """Namespace of the project whose spending it limits; not with scope account or pool."""
    spec: BudgetSpec
    """Scope, target, limit, period and levels."""


class PlatformArgs(TypedDict):
    """Inputs of Platform: one installation, whole."""

    images: PlatformImages
    """The images of the platform itself."""
    deletion: NotRequired[Deletion]
    """protect (default): destroy refuses while experiments of others live. purge: deletes all."""
    kubeconfig: pulumi.Input[str]
    """Kubeconfig (text) with which destroy looks for experiments of others. Kept as a secret."""
    profile: NotRequired[Profile]
    """Size of the control plane: local, small (default) or production."""
    namespace: NotRequired[str]
    """Namespace of the control plane; default dsec-system."""
    region: NotRequired[pulumi.Input[str]]
    """Name of this region; default local."""
    gateway: NotRequired[GatewayPart]
    """The gateway."""
    controller: NotRequired[ServerPart]
    """The controller."""
    agent: NotRequired[AgentPart]
    """The agents."""
    object_store: NotRequired[ObjectStore]
    """Where history and results are kept."""
    log_level: NotRequired[pulumi.Input[str]]
    """debug, info (default), warning or error."""
    presets: NotRequired[dict[str, pulumi.Input[str]]]
    """Preset per conflict for every tenant that names none."""
    scheduling: NotRequired[Scheduling]
    """Queues and preemption."""
    scaling: NotRequired[Scaling]
    """Switches of elasticity, and its metrics."""
    prometheus: NotRequired[PrometheusServerPart]
    """The platform's own metrics server; off unless set."""
    suppliers: NotRequired[Suppliers]
    """Who gives nodes: own machines, AWS, a simulated market."""
    cluster_networks: NotRequired[list[str]]
    """CIDRs of nodes, API server and object store, for the network policies."""
    registry: NotRequired[PlatformRegistry]
    """Image source of experiments."""
    pools: NotRequired[dict[str, SandboxNodePoolSpec]]
    """Node pools by name."""
    tenants: NotRequired[dict[str, TenantSpec]]
    """Tenants by name."""
    budgets: NotRequired[dict[str, PlatformBudget]]
    """Budgets by name: what accounts, projects, tasks and pools may spend."""
    snapshots: NotRequired[PlatformSnapshots]
    """Buckets with keys and rights, and copies in other regions; unset: the object store as it is.
    """
    experiments: NotRequired[dict[str, PlatformExperiment]]
    """Experiments by resource name."""
    await_ready: NotRequired[bool]
    """Wait until all pods are ready (default); false only where no kubelet runs them."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels for every object."""
