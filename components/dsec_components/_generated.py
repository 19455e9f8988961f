"""Inputs of the components, one TypedDict per record model. Generated; edits are lost.

Names carry no Args suffix: SDK generators append it. The component analyser needs real types, so
there is no postponed evaluation of annotations here, and closed sets are strings whose words the
description lists.
"""

from typing import NotRequired, TypedDict

import pulumi


class RoleResources(TypedDict):
    """Hard ceilings of one replica. What is left out must come from the tenant's defaults."""

    cpu_milli: NotRequired[pulumi.Input[int]]
    """CPU time, in thousandths of a core."""

    memory_bytes: NotRequired[pulumi.Input[int]]
    """Hard memory limit, in bytes."""

    pids: NotRequired[pulumi.Input[int]]
    """Most processes and threads at once."""

    disk_bytes: NotRequired[pulumi.Input[int]]
    """Writable space (root and workspace), in bytes."""

    disk_iops: NotRequired[pulumi.Input[int]]
    """Ceiling of disk operations a second."""

    disk_bytes_per_second: NotRequired[pulumi.Input[int]]
    """Ceiling of disk bandwidth, in bytes a second."""


class Gpu(TypedDict):
    """GPUs of one replica (CONF-07, CONF-08)."""

    count: NotRequired[pulumi.Input[int]]
    """Whole devices, or clients of shares."""

    mode: NotRequired[pulumi.Input[str]]
    """How the devices are given. One of: whole, mps, mig, passthrough, shares."""

    memory_bytes: NotRequired[pulumi.Input[int]]
    """Ceiling of GPU memory per device, in bytes."""

    shares: NotRequired[pulumi.Input[int]]
    """GPU memory shares, 10 per GB of device memory."""

    model: NotRequired[pulumi.Input[str]]
    """Device model, matched with the node label gpu-type."""


class RoleMount(TypedDict):
    """Space that the replicas of a role see at a path."""

    name: pulumi.Input[str]
    """Unique within the role."""

    path: pulumi.Input[str]
    """Where the sandbox sees it."""

    kind: NotRequired[pulumi.Input[str]]
    """What it is for. One of: workspace, scratch, data, output."""

    read_only: NotRequired[pulumi.Input[bool]]
    """The sandbox cannot write to it."""

    size_bytes: NotRequired[pulumi.Input[int]]
    """Capacity, in bytes."""

    claim: NotRequired[pulumi.Input[str]]
    """PersistentVolumeClaim of the project."""

    dataset: NotRequired[pulumi.Input[str]]
    """Data set to show there."""

    collect: NotRequired[pulumi.Input[bool]]
    """Copied to lasting storage at the end."""

    retention_seconds: NotRequired[pulumi.Input[int]]
    """How long the collected copy is kept."""


class ElasticWindow(TypedDict):
    """Other bounds at some times of the week; the first window that holds wins."""

    days: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """On which it begins; empty: every day. One of: mon, tue, wed, thu, fri, sat, sun."""

    start: pulumi.Input[str]
    """Begin, in the time zone of the schedule."""

    end: pulumi.Input[str]
    """End; not after start: on the next day."""

    min: NotRequired[pulumi.Input[int]]
    """Replaces the role's min."""

    max: NotRequired[pulumi.Input[int]]
    """Replaces the role's max."""


class Elastic(TypedDict):
    """Declared elasticity of a role; bounds are the role's min and max (API-16)."""

    metric: pulumi.Input[str]
    """Name of the metric, for example queue_depth or cpu."""

    target: NotRequired[pulumi.Input[int]]
    """Set-point or trigger, in the metric's unit."""

    lower: NotRequired[pulumi.Input[int]]
    """Below it the role shrinks; unset: the preset's part of target."""

    preset: NotRequired[pulumi.Input[str]]
    """How the count follows the metric; unset: presets of CONF-02. One of: role-queue, cpu-target,
    throughput, throughput-dynamic, three-signal.
    """

    mode: NotRequired[pulumi.Input[str]]
    """Of throughput presets; unset: presets of CONF-04. One of: edge, level."""

    query: NotRequired[pulumi.Input[str]]
    """PromQL that gives the metric as one number; unset: by its name."""

    period_seconds: NotRequired[pulumi.Input[int]]
    """Time from one evaluation to the next."""

    window_seconds: NotRequired[pulumi.Input[int]]
    """How long a reading has to last before the count changes, both ways; below 60 the count may
    swing. Unset: the preset's periods.
    """

    grow_periods: NotRequired[pulumi.Input[int]]
    """Evaluations in a row before it grows; unset: by preset and tier."""

    shrink_periods: NotRequired[pulumi.Input[int]]
    """The same before it shrinks."""

    ladder: NotRequired[pulumi.Input[list[pulumi.Input[int]]]]
    """The only counts it takes, rising."""

    step: NotRequired[pulumi.Input[int]]
    """Instances added or removed at once, where there is no ladder."""

    per_instance_rate: NotRequired[pulumi.Input[int]]
    """What one instance works off in a second, in the metric's unit."""

    drain_seconds: NotRequired[pulumi.Input[int]]
    """Time in which the queue should be worked off (CONF-03)."""

    latency_target_ms: NotRequired[pulumi.Input[int]]
    """Sampling latency above it counts as a long queue."""

    cooldown_seconds: NotRequired[pulumi.Input[int]]
    """Least time between two changes; unset: the preset's."""

    protection_seconds: NotRequired[pulumi.Input[int]]
    """Nothing is removed for so long after the role has grown."""

    direction: NotRequired[pulumi.Input[str]]
    """Which changes are made. One of: both, grow-only."""

    schedule: NotRequired[pulumi.Input[list[pulumi.Input[ElasticWindow]]]]
    """Bounds by time of the week."""

    time_zone: NotRequired[pulumi.Input[str]]
    """IANA name that the schedule is in."""

    scheduled_shrink: NotRequired[pulumi.Input[bool]]
    """False: windows only raise bounds, and what they would remove is told."""

    speed_percent: NotRequired[pulumi.Input[int]]
    """Where the cost of a valid sample is known: 0 least money, 100 the fastest."""


class Vertical(TypedDict):
    """CPU and memory limits of running replicas follow what they use, within these bounds."""

    min_cpu_milli: NotRequired[pulumi.Input[int]]
    """Least CPU limit; unset: a quarter of the declared one."""

    max_cpu_milli: NotRequired[pulumi.Input[int]]
    """Most; unset: the declared limit."""

    max_memory_bytes: NotRequired[pulumi.Input[int]]
    """Most memory; unset: the declared limit."""


class Role(TypedDict):
    """Replicas that do the same work."""

    name: pulumi.Input[str]
    """Unique within the experiment. Change: replace."""

    part: NotRequired[pulumi.Input[str]]
    """The part it plays: worker, trainer, parameter-server. Empty: name. Change: replace."""

    replicas: NotRequired[pulumi.Input[int]]
    """Replicas wanted; with elastic, the start value. Change: live."""

    min: NotRequired[pulumi.Input[int]]
    """Scaling never goes below. Change: live."""

    max: NotRequired[pulumi.Input[int]]
    """Scaling never goes above. Change: live."""

    image: NotRequired[pulumi.Input[str]]
    """Image reference; empty: the tenant's default image. Change: new replicas only."""

    pull_policy: NotRequired[pulumi.Input[str]]
    """When the registry is asked. One of: if-not-present, always. Change: new replicas only."""

    command: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """argv; empty runs the image's own. Change: new replicas only."""

    registration: NotRequired[pulumi.Input[str]]
    """Who makes the first heartbeat. One of: init, program. Change: new replicas only."""

    env: NotRequired[pulumi.Input[dict[str, pulumi.Input[str]]]]
    """Environment variables; no secrets. Change: new replicas only."""

    workdir: NotRequired[pulumi.Input[str]]
    """Working directory; unset: the workspace. Change: new replicas only."""

    resources: NotRequired[pulumi.Input[RoleResources]]
    """Hard ceilings of one replica. Change: new replicas only."""

    gpu: NotRequired[pulumi.Input[Gpu]]
    """GPUs of one replica. Change: new replicas only."""

    exclusive_cpus: NotRequired[pulumi.Input[bool]]
    """Its CPUs, rounded up to whole ones, are its own: no other sandbox runs there. Change: new
    replicas only.
    """

    privileged: NotRequired[pulumi.Input[bool]]
    """Always refused; named so that asking for it has an answer. Change: new replicas only."""

    mounts: NotRequired[pulumi.Input[list[pulumi.Input[RoleMount]]]]
    """Space beside the root file system. Change: new replicas only."""

    ports: NotRequired[pulumi.Input[list[pulumi.Input[int]]]]
    """TCP ports that the program listens on. Change: new replicas only."""

    node_labels: NotRequired[pulumi.Input[dict[str, pulumi.Input[str]]]]
    """Labels that a node must carry. Change: new replicas only."""

    tolerations: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Taints that a node may carry: `key`, `key=value`, or `*` for all. Change: new replicas only.
    """

    items_ref: NotRequired[pulumi.Input[str]]
    """SHA-256 of an uploaded JSONL; replica i gets line i. Change: replace."""

    restart_policy: NotRequired[pulumi.Input[str]]
    """What happens to a replica that fails. One of: never, on-failure, checkpoint. Change: live."""

    completion: NotRequired[pulumi.Input[str]]
    """What the normal end of a replica means. One of: keep, run-to-end. Change: replace."""

    elastic: NotRequired[pulumi.Input[Elastic]]
    """What drives its count. Change: live."""

    vertical: NotRequired[pulumi.Input[Vertical]]
    """CPU and memory limits of running replicas follow their use. Change: live."""


class Dataset(TypedDict):
    """A data set that every replica sees read-only."""

    uri: pulumi.Input[str]
    """For example dataset://sim_data_v3."""

    path: NotRequired[pulumi.Input[str]]
    """Where; unset: the preset of CONF-30."""


class SnapshotPolicy(TypedDict):
    """When the state is saved and how many copies are kept."""

    kinds: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """What is held; empty: the preset of CONF-05. One of: state, checkpoint, disk, freeze."""

    interval_seconds: NotRequired[pulumi.Input[int]]
    """Period; unset with adaptive: chosen from the measured cost."""

    adaptive: NotRequired[pulumi.Input[bool]]
    """The period follows cost and loss."""

    retain: NotRequired[pulumi.Input[int]]
    """Newest copies kept."""

    consistency: NotRequired[pulumi.Input[str]]
    """How a consistent point is found."""

    paths: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Where its state is; empty: the workspace."""


class Network(TypedDict):
    """Deny-all plus what is declared (CONF-12)."""

    mode: NotRequired[pulumi.Input[str]]
    """Inside the experiment. One of: regular, training."""

    egress: NotRequired[pulumi.Input[str]]
    """Outside the experiment. One of: deny, allow-list, open."""

    allowed_domains: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Domains that the gateway lets through."""

    services: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """host:port that may be reached."""

    fast: NotRequired[pulumi.Input[bool]]
    """Wants one fast network segment."""


class ExperimentBudget(TypedDict):
    """The most that the experiment may cost."""

    limit: pulumi.Input[str]
    """Exact decimal amount."""

    currency: NotRequired[pulumi.Input[str]]
    """ISO 4217 code; unset: the tenant's."""

    on_exceed: NotRequired[pulumi.Input[str]]
    """What happens then. One of: degrade, stop-growing, pause, terminate."""


class Relation(TypedDict):
    """A declared flow between two roles."""

    kind: pulumi.Input[str]
    """broadcast, aggregate or shared."""

    source: pulumi.Input[str]
    """Role that sends."""

    target: pulumi.Input[str]
    """Role that receives."""


class Communication(TypedDict):
    """How much the replicas of a role talk to each other; placement keeps talkers close."""

    members: pulumi.Input[str]
    """Name of a role."""

    frequency: pulumi.Input[str]
    """high or low."""


class ExperimentSpec(TypedDict):
    """What was asked. Belongs to the submitter or stack; dsec never writes it."""

    name: NotRequired[pulumi.Input[str]]
    """Name as given (DSEC_TASK_ID); unset: the record's name. Change: replace."""

    tenant: NotRequired[pulumi.Input[str]]
    """Tenant named by the document; must be the namespace's own. Change: replace."""

    project: NotRequired[pulumi.Input[str]]
    """Project named by the document; must be the namespace's own. Change: replace."""

    priority: NotRequired[pulumi.Input[str]]
    """Order in the queue. One of: low, normal, high, urgent. Change: live."""

    queue: NotRequired[pulumi.Input[str]]
    """Queue that it waits in. Change: live."""

    stage: NotRequired[pulumi.Input[str]]
    """Phase of training. One of: exploration, training, evaluation. Change: live."""

    task_class: NotRequired[pulumi.Input[str]]
    """What preemption may do to it. One of: guaranteed, pausable, preemptible. Change: live."""

    isolation_level: NotRequired[pulumi.Input[str]]
    """Substrate of its sandboxes; unset: the preset of CONF-10. One of: container, gvisor, microvm,
    function. Change: replace.
    """

    roles: pulumi.Input[list[pulumi.Input[Role]]]
    """Its roles, by unique name. Change: live."""

    data: NotRequired[pulumi.Input[list[pulumi.Input[Dataset]]]]
    """Data sets that every replica sees. Change: new replicas only."""

    workspace_bytes: NotRequired[pulumi.Input[int]]
    """Capacity of the workspace, in bytes. Change: new replicas only."""

    snapshot: NotRequired[pulumi.Input[SnapshotPolicy]]
    """State saving. Change: live."""

    elastic_tier: NotRequired[pulumi.Input[str]]
    """How eagerly replicas follow their metric. One of: aggressive, balanced, conservative. Change:
    live.
    """

    network: NotRequired[pulumi.Input[Network]]
    """What may be reached. Change: new replicas only."""

    budget: NotRequired[pulumi.Input[ExperimentBudget]]
    """Cost ceiling. Change: live."""

    max_run_seconds: NotRequired[pulumi.Input[int]]
    """Longest run time of each sandbox. Change: live."""

    relations: NotRequired[pulumi.Input[list[pulumi.Input[Relation]]]]
    """Flows between roles. Change: live."""

    communication: NotRequired[pulumi.Input[list[pulumi.Input[Communication]]]]
    """How much replicas talk. Change: live."""

    labels: NotRequired[pulumi.Input[dict[str, pulumi.Input[str]]]]
    """Tags for people, reports and rules. Change: live."""

    residency: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Regions that its data may be in; empty: tenant's. Change: replace."""

    accessible_to: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Other tenants that may read its results. Change: live."""

    archive_paths: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Directories archived before destroy. Change: new replicas only."""

    debug_logs: NotRequired[pulumi.Input[bool]]
    """Keep DEBUG output too. Change: new replicas only."""

    dialect: NotRequired[pulumi.Input[str]]
    """Form of the source document. One of: roles, spec, task, groups, experiment. Change: live."""

    source_digest: NotRequired[pulumi.Input[str]]
    """SHA-256 of the source document, for review (API-21). Change: live."""

    presets: NotRequired[pulumi.Input[dict[str, pulumi.Input[str]]]]
    """Preset per conflict, for example CONF-09: ckpt-600. Change: new replicas only."""


class Amounts(TypedDict):
    """An amount of each dimension; unset is unlimited."""

    cpu_milli: NotRequired[pulumi.Input[int]]
    """CPU, in thousandths of a core."""

    memory_bytes: NotRequired[pulumi.Input[int]]
    """Memory, in bytes."""

    gpu_count: NotRequired[pulumi.Input[int]]
    """GPUs."""

    sandboxes: NotRequired[pulumi.Input[int]]
    """Live sandboxes."""


class Quota(TypedDict):
    """Own share and borrowing limit (TEN-02)."""

    nominal: NotRequired[pulumi.Input[Amounts]]
    """What the tenant owns."""

    ceiling: NotRequired[pulumi.Input[Amounts]]
    """Most with borrowing; unset: equal to nominal."""

    projects: NotRequired[pulumi.Input[dict[str, pulumi.Input[Amounts]]]]
    """What single projects own of the nominal amounts; others share what is left."""


class DefaultResources(TypedDict):
    """Ceilings for roles that declare none; each use is listed in status.resolved."""

    cpu_milli: NotRequired[pulumi.Input[int]]
    """CPU, in thousandths of a core."""

    memory_bytes: NotRequired[pulumi.Input[int]]
    """Memory limit, in bytes."""

    pids: NotRequired[pulumi.Input[int]]
    """Most processes and threads."""

    disk_bytes: NotRequired[pulumi.Input[int]]
    """Writable space, in bytes."""

    gpu_memory_bytes: NotRequired[pulumi.Input[int]]
    """GPU memory ceiling of shared devices, in bytes."""


class ImageMirror(TypedDict):
    """Where images of a prefix really come from."""

    prefix: pulumi.Input[str]
    """Start of the reference, for example registry.internal/."""

    mirror: pulumi.Input[str]
    """What replaces the prefix; a full reference replaces all."""


class TenantDefaults(TypedDict):
    """What fills the gaps of this tenant's documents. Every use is listed in status.resolved."""

    resources: NotRequired[pulumi.Input[DefaultResources]]
    """Ceilings where a role declares none."""

    gpu: NotRequired[pulumi.Input[Gpu]]
    """Unused dimensions of a declared gpu."""

    image: NotRequired[pulumi.Input[str]]
    """Image of roles that name none."""

    image_mirrors: NotRequired[pulumi.Input[list[pulumi.Input[ImageMirror]]]]
    """First matching prefix wins."""

    presets: NotRequired[pulumi.Input[dict[str, pulumi.Input[str]]]]
    """Preset per conflict, for example CONF-10: microvm."""

    isolation_level: NotRequired[pulumi.Input[str]]
    """Where the document names none. One of: container, gvisor, microvm, function."""

    currency: NotRequired[pulumi.Input[str]]
    """ISO 4217 code of budgets that name none."""

    max_run_seconds: NotRequired[pulumi.Input[int]]
    """Longest run time where the document names none."""

    workspace_bytes: NotRequired[pulumi.Input[int]]
    """Workspace capacity."""


class TenantSpec(TypedDict):
    """A team: its projects, its share and its defaults."""

    display_name: NotRequired[pulumi.Input[str]]
    """Name for people. Change: live."""

    projects: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Namespaces that belong to it. Change: live."""

    document_tenants: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Names that documents may use for this tenant. Change: live."""

    quota: NotRequired[pulumi.Input[Quota]]
    """Share and ceiling. Change: live."""

    defaults: NotRequired[pulumi.Input[TenantDefaults]]
    """What fills the gaps of documents. Change: new replicas only."""

    registries: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Image prefixes allowed; empty: all. Change: live."""

    pools: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Node pools it may use; empty: all. Change: live."""

    residency: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Regions that its data may be in; empty: all. Change: live."""

    allow_open_egress: NotRequired[pulumi.Input[bool]]
    """Its experiments may open all egress. Change: live."""


class AgentSettings(TypedDict):
    """How the agents of a pool run; its agents roll when it changes."""

    heartbeat_seconds: NotRequired[pulumi.Input[int]]
    """Heartbeat period given to sandboxes."""

    max_sandboxes: NotRequired[pulumi.Input[int]]
    """Most live sandboxes on a node."""

    reserved_cpu_milli: NotRequired[pulumi.Input[int]]
    """Kept for the node itself."""

    reserved_memory_bytes: NotRequired[pulumi.Input[int]]
    """Kept for the node itself; default: a sixteenth, at most 1 GiB."""

    start_deadline_seconds: NotRequired[pulumi.Input[int]]
    """Time to the first heartbeat."""


class Watermarks(TypedDict):
    """How full a node may become, in percent of its CPU and memory (SCHED-03)."""

    safe_percent: NotRequired[pulumi.Input[int]]
    """Above it only low-priority or pausable work is placed."""

    limit_percent: NotRequired[pulumi.Input[int]]
    """From it on nothing is placed; at least safePercent."""


class Topology(TypedDict):
    """Where nodes are; a node's own labels of these names come first."""

    rack: NotRequired[pulumi.Input[str]]
    """Rack."""

    zone: NotRequired[pulumi.Input[str]]
    """Zone."""

    region: NotRequired[pulumi.Input[str]]
    """Region."""

    segment: NotRequired[pulumi.Input[str]]
    """Fast network segment (SCHED-06)."""


class PlacementTraits(TypedDict):
    """What placement minds about the nodes of a pool."""

    watermarks: NotRequired[pulumi.Input[Watermarks]]
    """How full they may become."""

    taints: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """`key` or `key=value`; work needs a toleration of each."""

    topology: NotRequired[pulumi.Input[Topology]]
    """Where they are."""

    price_micro: NotRequired[pulumi.Input[int]]
    """Price of a node-hour in millionths of the currency; cheaper nodes come first."""


class PoolOffering(TypedDict):
    """One make of node that the pool may get, with what it has."""

    instance_type: pulumi.Input[str]
    """Name at the provider, for example m7i.8xlarge."""

    markets: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Ways in which it may be paid for. One of: owned, reserved, spot, on-demand."""

    regions: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Empty: the pool's."""

    zones: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Empty: the pool's."""

    cpu_milli: pulumi.Input[int]
    """CPU, in thousandths of a core."""

    memory_bytes: pulumi.Input[int]
    """Memory, in bytes."""

    gpu_count: NotRequired[pulumi.Input[int]]
    """GPUs."""

    gpu_model: NotRequired[pulumi.Input[str]]
    """Model of its GPUs."""

    gpu_memory_bytes: NotRequired[pulumi.Input[int]]
    """Memory of each GPU, in bytes."""

    disk_bytes: NotRequired[pulumi.Input[int]]
    """Writable space, in bytes; unset: as much as is asked for."""

    isolation: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Substrates that it has. One of: container, gvisor, microvm, function."""

    features: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """What its kernel and agent offer, for example pvc."""

    price_per_hour: NotRequired[pulumi.Input[str]]
    """Overrides the price book, per node and hour."""

    boot_seconds: NotRequired[pulumi.Input[int]]
    """From buying to ready, as a rule."""

    minimum_bill_seconds: NotRequired[pulumi.Input[int]]
    """Least time that is billed."""

    limit: NotRequired[pulumi.Input[int]]
    """Most nodes of it; of owned machines: how many there are."""


class WarmBuffer(TypedDict):
    """Room kept free for what comes: so many more sandboxes of that size."""

    name: pulumi.Input[str]
    """For people, for example rollouts."""

    count: pulumi.Input[int]
    """Places kept free; removed only above 1.5 times that."""

    cpu_milli: pulumi.Input[int]
    """CPU of one place."""

    memory_bytes: pulumi.Input[int]
    """Memory of one place, in bytes."""

    gpu_count: NotRequired[pulumi.Input[int]]
    """GPUs of one."""

    gpu_model: NotRequired[pulumi.Input[str]]
    """Model of those GPUs; empty: any."""

    burn_percent: NotRequired[pulumi.Input[int]]
    """What is bought for it costs at most this part of what all nodes cost (5 is a sound value in a
    large fleet); 100: whatever it takes.
    """


class ScheduleWindow(TypedDict):
    """Other bounds at some times of the week."""

    days: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """On which it begins; empty: every day. One of: mon, tue, wed, thu, fri, sat, sun."""

    start: pulumi.Input[str]
    """Begin, in the pool's time zone."""

    end: pulumi.Input[str]
    """End; earlier than start: on the next day."""

    min_nodes: NotRequired[pulumi.Input[int]]
    """Replaces minNodes."""

    max_nodes: NotRequired[pulumi.Input[int]]
    """Replaces maxNodes."""


class PoolScaling(TypedDict):
    """How a pool grows and shrinks. Bounds win over every trigger (ELAS-33)."""

    supplier: NotRequired[pulumi.Input[str]]
    """Who gives nodes: onprem, aws or simulated."""

    min_nodes: NotRequired[pulumi.Input[int]]
    """Least nodes, whatever the load."""

    max_nodes: NotRequired[pulumi.Input[int]]
    """Most nodes, those on their way included."""

    floor: NotRequired[pulumi.Input[int]]
    """Outside of scheduled hours nodes go down to this, never to 0 (ELAS-18)."""

    offerings: NotRequired[pulumi.Input[list[pulumi.Input[PoolOffering]]]]
    """Makes of node that it may get."""

    markets: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Ways to pay that are allowed; empty: all. One of: owned, reserved, spot, on-demand."""

    regions: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Where offerings name none."""

    zones: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Where offerings name none."""

    preset: NotRequired[pulumi.Input[str]]
    """Unset: node-load for owned machines, wait-and-budget for others (CONF-37). One of: node-load,
    wait-and-budget.
    """

    burst_wait_seconds: NotRequired[pulumi.Input[int]]
    """How long work queues before spot or on-demand nodes are bought."""

    buffers: NotRequired[pulumi.Input[list[pulumi.Input[WarmBuffer]]]]
    """Room kept free."""

    max_cpu_milli: NotRequired[pulumi.Input[int]]
    """Most CPU of all its nodes."""

    max_gpus: NotRequired[pulumi.Input[int]]
    """Most GPUs of all its nodes."""

    max_cost_per_hour: NotRequired[pulumi.Input[str]]
    """Most that all its nodes cost in an hour."""

    currency: NotRequired[pulumi.Input[str]]
    """ISO 4217 code of its amounts."""

    schedule: NotRequired[pulumi.Input[list[pulumi.Input[ScheduleWindow]]]]
    """First window that holds wins."""

    time_zone: NotRequired[pulumi.Input[str]]
    """IANA name that the schedule is in."""

    run_until_seconds: NotRequired[pulumi.Input[int]]
    """How far ahead a node is paid for; renewed at half of it."""

    frozen: NotRequired[pulumi.Input[bool]]
    """Nothing is bought, moved or removed; notices of the provider are followed."""

    consolidation: NotRequired[pulumi.Input[bool]]
    """Move pausable work so that nodes fall empty."""

    shrink: NotRequired[pulumi.Input[str]]
    """Whether nodes are removed. One of: on, dry-run, off."""

    empty_seconds: NotRequired[pulumi.Input[int]]
    """How long a node is idle before it goes; unset: 600 with node-load, else 60."""


class MachineCost(TypedDict):
    """From it follows the price of a node-hour; the formula is in docs/budgets.md."""

    currency: NotRequired[pulumi.Input[str]]
    """ISO 4217 code of its amounts."""

    purchase: pulumi.Input[str]
    """Price of one machine."""

    years: pulumi.Input[int]
    """Years that it is used for."""

    residual: NotRequired[pulumi.Input[str]]
    """What it is worth after that."""

    watts: NotRequired[pulumi.Input[int]]
    """Mean draw."""

    pue: NotRequired[pulumi.Input[str]]
    """Power of the site over power of its machines, 1 or more."""

    per_kwh: NotRequired[pulumi.Input[str]]
    """Price of a kilowatt-hour."""

    monthly_overhead: NotRequired[pulumi.Input[str]]
    """Room, network, service, people; per machine and month."""


class SandboxNodePoolSpec(TypedDict):
    """Nodes of one make."""

    kind: NotRequired[pulumi.Input[str]]
    """cpu, gpu or mixed. One of: cpu, gpu, mixed. Change: replace."""

    labels: NotRequired[pulumi.Input[dict[str, pulumi.Input[str]]]]
    """Labels that its nodes carry. Change: live."""

    node_selector: NotRequired[pulumi.Input[dict[str, pulumi.Input[str]]]]
    """Kubernetes node labels that make a node a member. Change: live."""

    agent: NotRequired[pulumi.Input[AgentSettings]]
    """How its agents run. Change: new replicas only."""

    placement: NotRequired[pulumi.Input[PlacementTraits]]
    """What placement minds about its nodes. Change: live."""

    scaling: NotRequired[pulumi.Input[PoolScaling]]
    """How it grows and shrinks; unset: by hand. Change: live."""

    cost: NotRequired[pulumi.Input[MachineCost]]
    """What an own machine of it costs; unset: priceMicro says. Change: live."""


class SandboxImageSpec(TypedDict):
    """An image that experiments of the project use."""

    reference: pulumi.Input[str]
    """Reference with tag or digest. Change: replace."""

    digest: NotRequired[pulumi.Input[str]]
    """Expected digest; empty: whatever the tag meant first. Change: live."""

    preload_pools: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Pools whose nodes fetch it ahead of use. Change: live."""


class BudgetPeriod(TypedDict):
    """When the budget starts anew, and where midnight is."""

    kind: NotRequired[pulumi.Input[str]]
    """When it starts anew. One of: total, calendar, anchored, rolling."""

    every: NotRequired[pulumi.Input[str]]
    """Length of a calendar period or billing cycle. One of: day, week, month, quarter, year."""

    anchor: NotRequired[pulumi.Input[str]]
    """First day of some billing cycle, as 2026-03-10; needed by kind anchored."""

    rolling_seconds: NotRequired[pulumi.Input[int]]
    """Length of the window; needed by kind rolling."""

    time_zone: NotRequired[pulumi.Input[str]]
    """IANA zone such as Europe/Berlin, or an offset such as +09:00."""


class BudgetLevel(TypedDict):
    """What happens at a part of the limit."""

    percent: NotRequired[pulumi.Input[int]]
    """Part of the limit at which it holds."""

    level: NotRequired[pulumi.Input[str]]
    """How strict it is. One of: soft, hard, terminate."""

    action: NotRequired[pulumi.Input[str]]
    """What is done where the task chose nothing. One of: warn, degrade, stop-growing, pause, end.
    """


class RegionShare(TypedDict):
    """The part of the limit that one region may spend without asking the others."""

    region: pulumi.Input[str]
    """Region, for example eu-central-1."""

    percent: pulumi.Input[int]
    """Part of the limit, in percent; at most 100 in all."""


class BudgetSpec(TypedDict):
    """The most that may be spent in a period, and what happens on the way there."""

    scope: NotRequired[pulumi.Input[str]]
    """Whose spending it counts. One of: account, project, task, pool. Change: replace."""

    target: NotRequired[pulumi.Input[str]]
    """Tenant, experiment or pool by name; unset for a project: its own namespace. Change: replace.
    """

    limit: pulumi.Input[str]
    """Exact decimal amount per period. Change: live."""

    unit: NotRequired[pulumi.Input[str]]
    """What the limit counts. One of: money, gpu-hours, cpu-hours. Change: replace."""

    currency: NotRequired[pulumi.Input[str]]
    """ISO 4217 code where the unit is money; unset: the tenant's. Change: replace."""

    period: NotRequired[pulumi.Input[BudgetPeriod]]
    """When it starts anew, and where midnight is. Change: live."""

    levels: NotRequired[pulumi.Input[list[pulumi.Input[BudgetLevel]]]]
    """What happens at parts of the limit. Change: live."""

    alert_percents: NotRequired[pulumi.Input[list[pulumi.Input[int]]]]
    """An event at each, once in a period. Change: live."""

    regions: NotRequired[pulumi.Input[list[pulumi.Input[RegionShare]]]]
    """Escrow of each region; empty: one region has all. Change: live."""


class ReplicationRules(TypedDict):
    """Which snapshots are copied, how often, and what may be spent on it."""

    tenants: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Whose snapshots; empty: every tenant's. Change: live."""

    kinds: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Which kinds; empty: all that are stored. One of: state, checkpoint, disk, freeze. Change:
    live.
    """

    mode: NotRequired[pulumi.Input[str]]
    """When copies are made. One of: scheduled, continuous. Change: live."""

    interval_seconds: NotRequired[pulumi.Input[int]]
    """Between the starts of two cycles, where scheduled. Change: live."""

    recovery_point_seconds: NotRequired[pulumi.Input[int]]
    """Oldest copy that is in sync; unset: twice the interval, continuous 15 min. Change: live."""

    residency: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Regions that copies may be in; empty: all that the tenant allows. Change: live."""

    bandwidth_bytes_per_second: NotRequired[pulumi.Input[int]]
    """Most that all its copies together may send; unset: no limit. Change: live."""

    min_copies: NotRequired[pulumi.Input[int]]
    """Remote copies that everything has at least. Change: live."""

    deletes: NotRequired[pulumi.Input[str]]
    """What happens to copies of what was deleted. One of: follow, keep. Change: live."""

    delete_delay_seconds: NotRequired[pulumi.Input[int]]
    """What was deleted by mistake can be had for so long. Change: live."""

    read_back: NotRequired[pulumi.Input[bool]]
    """Each copy is read again and compared: twice the traffic. Change: live."""

    paused: NotRequired[pulumi.Input[bool]]
    """No cycle starts. Change: live."""


class ReplicationDestination(TypedDict):
    """A store in another region."""

    region: pulumi.Input[str]
    """Region that the store is in, for example eu-west-1."""

    bucket: NotRequired[pulumi.Input[str]]
    """Its bucket."""

    endpoint: NotRequired[pulumi.Input[str]]
    """Address, https:// except on loopback; empty: the region's own S3."""

    secret: NotRequired[pulumi.Input[str]]
    """Secret with accessKey and secretKey; unset: the identity of the controller."""


class ReplicationPolicySpec(TypedDict):
    """Which snapshots are copied, where to, how often, and what may be spent on it."""

    tenants: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Whose snapshots; empty: every tenant's. Change: live."""

    kinds: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Which kinds; empty: all that are stored. One of: state, checkpoint, disk, freeze. Change:
    live.
    """

    mode: NotRequired[pulumi.Input[str]]
    """When copies are made. One of: scheduled, continuous. Change: live."""

    interval_seconds: NotRequired[pulumi.Input[int]]
    """Between the starts of two cycles, where scheduled. Change: live."""

    recovery_point_seconds: NotRequired[pulumi.Input[int]]
    """Oldest copy that is in sync; unset: twice the interval, continuous 15 min. Change: live."""

    residency: NotRequired[pulumi.Input[list[pulumi.Input[str]]]]
    """Regions that copies may be in; empty: all that the tenant allows. Change: live."""

    bandwidth_bytes_per_second: NotRequired[pulumi.Input[int]]
    """Most that all its copies together may send; unset: no limit. Change: live."""

    min_copies: NotRequired[pulumi.Input[int]]
    """Remote copies that everything has at least. Change: live."""

    deletes: NotRequired[pulumi.Input[str]]
    """What happens to copies of what was deleted. One of: follow, keep. Change: live."""

    delete_delay_seconds: NotRequired[pulumi.Input[int]]
    """What was deleted by mistake can be had for so long. Change: live."""

    read_back: NotRequired[pulumi.Input[bool]]
    """Each copy is read again and compared: twice the traffic. Change: live."""

    paused: NotRequired[pulumi.Input[bool]]
    """No cycle starts. Change: live."""

    destinations: pulumi.Input[list[pulumi.Input[ReplicationDestination]]]
    """Stores of other regions. Change: live."""
