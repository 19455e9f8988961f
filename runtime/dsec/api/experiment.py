"""What an experiment asks for: roles, resources, data, elasticity, network, snapshots, budget."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.communication import Communication, Network, Relation
from dsec.api.elastic import Elastic, Vertical
from dsec.api.meta import (
    Bytes,
    Count,
    DnsName,
    GivenName,
    Labels,
    Live,
    Money,
    NewReplicas,
    Reference,
    Replace,
    Text,
    Word,
)
from dsec.api.sandbox import GpuMode, IsolationLevel
from dsec.api.snapshot import SnapshotKind

MAX_ROLES = 64
MAX_REPLICAS = 100_000
Seconds = Annotated[int, Field(ge=1, le=366 * 86_400)]
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
Path = Annotated[str, Field(pattern=r"^/", max_length=1024)]


class Dialect(StrEnum):
    """The form of the document that an experiment came from (CONF-14)."""

    ROLES = "roles"
    """A: top-level name, tenant, roles."""
    SPEC = "spec"
    """B: metadata and spec."""
    TASK = "task"
    """C: one top-level task."""
    GROUPS = "groups"
    """D: metadata and spec with spec.experiment.groups."""
    EXPERIMENT = "experiment"
    """The record itself: apiVersion dsec.dev/v1alpha1, kind Experiment."""


class TaskClass(StrEnum):
    """What preemption may do to the experiment (CONF-01)."""

    GUARANTEED = "guaranteed"
    PAUSABLE = "pausable"
    PREEMPTIBLE = "preemptible"


class Priority(StrEnum):
    """Order in the queue; a higher one is placed first."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class Stage(StrEnum):
    """Phase of training, for phase-first ordering (TEN-23)."""

    EXPLORATION = "exploration"
    TRAINING = "training"
    EVALUATION = "evaluation"


class Completion(StrEnum):
    """What the normal end of a replica means."""

    KEEP = "keep"
    """The role is kept at its replica count: an ended replica is replaced."""
    RUN_TO_END = "run-to-end"
    """Each replica runs once; the experiment is complete when all have ended."""


class RestartPolicy(StrEnum):
    """What happens to a replica that fails."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    CHECKPOINT = "checkpoint"
    """As on-failure, and the new incarnation starts from the newest checkpoint (API-18)."""


class Registration(StrEnum):
    """Who makes the first heartbeat, which starts the run (LIFE-04)."""

    INIT = "init"
    """dsec-init registers, then starts the program."""
    PROGRAM = "program"
    """The program's entry script registers itself, within the start deadline."""


class PullPolicy(StrEnum):
    """When an image is asked for at the registry."""

    IF_NOT_PRESENT = "if-not-present"
    ALWAYS = "always"


class MountKind(StrEnum):
    """What a mounted space is for."""

    WORKSPACE = "workspace"
    SCRATCH = "scratch"
    DATA = "data"
    OUTPUT = "output"


class ElasticTier(StrEnum):
    """How eagerly replicas follow the metric."""

    AGGRESSIVE = "aggressive"
    BALANCED = "balanced"
    CONSERVATIVE = "conservative"


class OnExceed(StrEnum):
    """What happens when the budget is spent."""

    DEGRADE = "degrade"
    """Roles shrink to their least replica count."""
    STOP_GROWING = "stop-growing"
    """What runs goes on; nothing is added."""
    PAUSE = "pause"
    """Sandboxes are paused; they go on when there is budget."""
    TERMINATE = "terminate"
    """The task ends as over budget, its results collected first."""


class Gpu(WireModel):
    """GPUs of one replica (CONF-07, CONF-08)."""

    count: int = Field(default=1, ge=1, le=16, description="Whole devices, or clients of shares.")
    mode: GpuMode = Field(default=GpuMode.WHOLE, description="How the devices are given.")
    memory_bytes: Bytes | None = Field(
        default=None, description="Ceiling of GPU memory per device, in bytes."
    )
    shares: Count | None = Field(
        default=None, description="GPU memory shares, 10 per GB of device memory."
    )
    model: Word | None = Field(
        default=None, description="Device model, matched with the node label gpu-type."
    )


class RoleResources(WireModel):
    """Hard ceilings of one replica. What is left out must come from the tenant's defaults."""

    cpu_milli: int | None = Field(
        default=None, ge=1, le=4_096_000, description="CPU time, in thousandths of a core."
    )
    memory_bytes: Bytes | None = Field(
        default=None, ge=1 << 20, description="Hard memory limit, in bytes."
    )
    pids: int | None = Field(
        default=None, ge=8, le=1 << 22, description="Most processes and threads at once."
    )
    disk_bytes: Bytes | None = Field(
        default=None, ge=1 << 20, description="Writable space (root and workspace), in bytes."
    )
    disk_iops: Count | None = Field(
        default=None, description="Ceiling of disk operations a second."
    )
    disk_bytes_per_second: Bytes | None = Field(
        default=None, description="Ceiling of disk bandwidth, in bytes a second."
    )


class RoleMount(WireModel):
    """Space that the replicas of a role see at a path."""

    name: DnsName = Field(description="Unique within the role.")
    path: Path = Field(description="Where the sandbox sees it.")
    kind: MountKind = Field(default=MountKind.SCRATCH, description="What it is for.")
    read_only: bool = Field(default=False, description="The sandbox cannot write to it.")
    size_bytes: Bytes | None = Field(default=None, description="Capacity, in bytes.")
    claim: Word | None = Field(default=None, description="PersistentVolumeClaim of the project.")
    dataset: Word | None = Field(default=None, description="Data set to show there.")
    collect: bool = Field(default=False, description="Copied to lasting storage at the end.")
    retention_seconds: Seconds | None = Field(
        default=None, description="How long the collected copy is kept."
    )


class Role(WireModel):
    """Replicas that do the same work."""

    name: Replace[GivenName] = Field(description="Unique within the experiment.")
    part: Replace[Word] = Field(
        default="", description="The part it plays: worker, trainer, parameter-server. Empty: name."
    )
    replicas: Live[Replicas] = Field(
        default=1, description="Replicas wanted; with elastic, the start value."
    )
    min: Live[Replicas | None] = Field(default=None, description="Scaling never goes below.")
    max: Live[Replicas | None] = Field(default=None, description="Scaling never goes above.")
    image: NewReplicas[Reference] = Field(
        default="", description="Image reference; empty: the tenant's default image."
    )
    pull_policy: NewReplicas[PullPolicy] = Field(
        default=PullPolicy.IF_NOT_PRESENT, description="When the registry is asked."
    )
    command: NewReplicas[list[Text]] = Field(
        default=[], max_length=256, description="argv; empty runs the image's own."
    )
    registration: NewReplicas[Registration] = Field(
        default=Registration.INIT, description="Who makes the first heartbeat."
    )
    env: NewReplicas[dict[str, Text]] = Field(
        default={}, max_length=256, description="Environment variables; no secrets."
    )
    workdir: NewReplicas[Path | None] = Field(
        default=None, description="Working directory; unset: the workspace."
    )
    resources: NewReplicas[RoleResources] = Field(
        default=RoleResources(), description="Hard ceilings of one replica."
    )
    gpu: NewReplicas[Gpu | None] = Field(default=None, description="GPUs of one replica.")
    exclusive_cpus: NewReplicas[bool] = Field(
        default=False,
        description="Its CPUs, rounded up to whole ones, are its own: no other sandbox runs there.",
    )
    privileged: NewReplicas[bool] = Field(
        default=False, description="Always refused; named so that asking for it has an answer."
    )
    mounts: NewReplicas[list[RoleMount]] = Field(
        default=[], max_length=32, description="Space beside the root file system."
    )
    ports: NewReplicas[list[Annotated[int, Field(ge=1, le=65535)]]] = Field(
        default=[], max_length=32, description="TCP ports that the program listens on."
    )
    node_labels: NewReplicas[Labels] = Field(
        default={}, description="Labels that a node must carry."
    )
    tolerations: NewReplicas[list[Word]] = Field(
        default=[],
        max_length=32,
        description="Taints that a node may carry: `key`, `key=value`, or `*` for all.",
    )
    items_ref: Replace[Annotated[str, Field(pattern="^[0-9a-f]{64}$", max_length=64)] | None] = (
        Field(default=None, description="SHA-256 of an uploaded JSONL; replica i gets line i.")
    )
    restart_policy: Live[RestartPolicy] = Field(
        default=RestartPolicy.ON_FAILURE, description="What happens to a replica that fails."
    )
    completion: Replace[Completion] = Field(
        default=Completion.KEEP, description="What the normal end of a replica means."
    )
    elastic: Live[Elastic | None] = Field(default=None, description="What drives its count.")
    vertical: Live[Vertical | None] = Field(
        default=None, description="CPU and memory limits of running replicas follow their use."
    )


class Dataset(WireModel):
    """A data set that every replica sees read-only."""

    uri: Word = Field(description="For example dataset://sim_data_v3.")
    path: Path | None = Field(default=None, description="Where; unset: the preset of CONF-30.")


class SnapshotPolicy(WireModel):
    """When the state is saved and how many copies are kept."""

    kinds: list[SnapshotKind] = Field(
        default=[], max_length=4, description="What is held; empty: the preset of CONF-05."
    )
    interval_seconds: Seconds | None = Field(
        default=None, description="Period; unset with adaptive: chosen from the measured cost."
    )
    adaptive: bool = Field(default=False, description="The period follows cost and loss.")
    retain: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None, description="Newest copies kept."
    )
    consistency: Word = Field(default="", description="How a consistent point is found.")
    paths: list[Path] = Field(
        default=[], max_length=32, description="Where its state is; empty: the workspace."
    )


class ExperimentBudget(WireModel):
    """The most that the experiment may cost."""

    limit: Money = Field(description="Exact decimal amount.")
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] | None = Field(
        default=None, description="ISO 4217 code; unset: the tenant's."
    )
    on_exceed: OnExceed = Field(default=OnExceed.DEGRADE, description="What happens then.")


class ExperimentSpec(WireModel):
    """What was asked. Belongs to the submitter or stack; dsec never writes it."""

    name: Replace[GivenName | None] = Field(
        default=None, description="Name as given (DSEC_TASK_ID); unset: the record's name."
    )
    tenant: Replace[Word | None] = Field(
        default=None, description="Tenant named by the document; must be the namespace's own."
    )
    project: Replace[Word | None] = Field(
        default=None, description="Project named by the document; must be the namespace's own."
    )
    priority: Live[Priority] = Field(default=Priority.NORMAL, description="Order in the queue.")
    queue: Live[Word] = Field(default="default", description="Queue that it waits in.")
    stage: Live[Stage | None] = Field(default=None, description="Phase of training.")
    task_class: Live[TaskClass] = Field(
        default=TaskClass.GUARANTEED, description="What preemption may do to it."
    )
    isolation_level: Replace[IsolationLevel | None] = Field(
        default=None, description="Substrate of its sandboxes; unset: the preset of CONF-10."
    )
    roles: Live[list[Role]] = Field(
        min_length=1, max_length=MAX_ROLES, description="Its roles, by unique name."
    )
    data: NewReplicas[list[Dataset]] = Field(
        default=[], max_length=32, description="Data sets that every replica sees."
    )
    workspace_bytes: NewReplicas[Bytes | None] = Field(
        default=None, description="Capacity of the workspace, in bytes."
    )
    snapshot: Live[SnapshotPolicy | None] = Field(default=None, description="State saving.")
    elastic_tier: Live[ElasticTier | None] = Field(
        default=None, description="How eagerly replicas follow their metric."
    )
    network: NewReplicas[Network] = Field(default=Network(), description="What may be reached.")
    budget: Live[ExperimentBudget | None] = Field(default=None, description="Cost ceiling.")
    max_run_seconds: Live[Seconds | None] = Field(
        default=None, description="Longest run time of each sandbox."
    )
    relations: Live[list[Relation]] = Field(
        default=[], max_length=256, description="Flows between roles."
    )
    communication: Live[list[Communication]] = Field(
        default=[], max_length=MAX_ROLES, description="How much replicas talk."
    )
    labels: Live[Labels] = Field(default={}, description="Tags for people, reports and rules.")
    residency: Replace[list[Word]] = Field(
        default=[], max_length=32, description="Regions that its data may be in; empty: tenant's."
    )
    accessible_to: Live[list[Word]] = Field(
        default=[], max_length=32, description="Other tenants that may read its results."
    )
    archive_paths: NewReplicas[list[Word]] = Field(
        default=[], max_length=32, description="Directories archived before destroy."
    )
    debug_logs: NewReplicas[bool] = Field(default=False, description="Keep DEBUG output too.")
    dialect: Live[Dialect] = Field(
        default=Dialect.EXPERIMENT, description="Form of the source document."
    )
    source_digest: Live[Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64})?$")]] = Field(
        default="", description="SHA-256 of the source document, for review (API-21)."
    )
    presets: NewReplicas[dict[str, Word]] = Field(
        default={}, max_length=64, description="Preset per conflict, for example CONF-09: ckpt-600."
    )
