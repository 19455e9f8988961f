"""One sandbox: what is asked of an agent, what it answers, and how it ended."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.reasons import EndReason
from dsec.api.snapshot import LastSnapshot, RestoreFrom, SnapshotPlan


class IsolationLevel(StrEnum):
    """The substrate that a sandbox runs on."""

    CONTAINER = "container"
    GVISOR = "gvisor"
    MICROVM = "microvm"
    FUNCTION = "function"


class GpuMode(StrEnum):
    """How a GPU is handed to a sandbox (CONF-07)."""

    WHOLE = "whole"
    MPS = "mps"
    MIG = "mig"
    PASSTHROUGH = "passthrough"
    SHARES = "shares"


class Resources(WireModel):
    """Hard limits of one sandbox; the same figures are what placement books."""

    cpu_milli: int = Field(ge=1, description="CPU time, in thousandths of a core.")
    memory_bytes: int = Field(ge=1 << 20, description="Hard memory limit, in bytes.")
    pids: int = Field(default=512, ge=8, description="Most processes and threads at once.")
    disk_bytes: int = Field(
        default=1 << 30, ge=1 << 20, description="Writable space (root and workspace), in bytes."
    )
    gpu_count: int = Field(
        default=0, ge=0, description="Whole devices, or clients of a shared one."
    )
    gpu_mode: GpuMode | None = Field(default=None, description="How the devices are given.")
    gpu_memory_bytes: int = Field(default=0, ge=0, description="GPU memory per device, in bytes.")
    gpu_shares: int = Field(default=0, ge=0, description="GPU memory shares, 10 per GB (TEN-06).")
    gpu_milli: int = Field(
        default=0, ge=0, le=1000, description="Thousandths of one card; 0: not asked that way."
    )
    disk_iops: int = Field(default=0, ge=0, description="Disk operations per second; 0: none set.")
    disk_bytes_per_second: int = Field(
        default=0, ge=0, description="Disk bandwidth, in bytes per second; 0: none set."
    )


class Identity(WireModel):
    """Who a sandbox is: tags that every row, log line and metric about it carries."""

    id: str = Field(pattern=r"^sb-[0-9a-hjkmnp-tv-z]{26}$", description="Stable for life.")
    tenant: str
    project: str = Field(description="The namespace of its experiment.")
    experiment: str = Field(default="", description="Record name; empty for a direct create.")
    experiment_uid: str = ""
    task_id: str = Field(default="", description="The name that the user gave (DSEC_TASK_ID).")
    role: str = "worker"
    part: str = Field(default="", description="What the role is for (DSEC_ROLE); empty: role.")
    index: int = Field(default=0, ge=0, description="Replica number within its role, from 0.")
    incarnation: int = Field(default=1, ge=1, description="Grows with each replacement.")
    correlation_id: str = Field(default="", description="One id from submit to log line.")


class Mount(WireModel):
    """Space that a sandbox sees at a path."""

    path: str
    kind: str = Field(default="workspace", pattern="^(workspace|scratch|data|output)$")
    read_only: bool = False
    collect: bool = Field(default=False, description="Copied to lasting storage at the end.")


class SandboxSpec(WireModel):
    """Everything an agent needs to run one sandbox; self-contained and immutable."""

    identity: Identity
    image: str = Field(
        description="Reference as resolved, with digest where the registry gave one."
    )
    command: list[str] = Field(default=[], description="argv; empty runs the image's own.")
    entrypoint_registers: bool = Field(
        default=False,
        description="True: the program itself makes the first heartbeat (LIFE-04), with a start "
        "deadline. False: dsec-init registers before it starts the program.",
    )
    env: dict[str, str] = {}
    workdir: str = "/workspace"
    user: str = "root"
    isolation: IsolationLevel = IsolationLevel.CONTAINER
    resources: Resources
    mounts: list[Mount] = []
    stdin: str | None = Field(default=None, description="Text given on standard input, then EOF.")
    item: str | None = Field(
        default=None, description="One line of a batch; also at $DSEC_ITEM_FILE in the workspace."
    )
    max_run_seconds: float | None = Field(default=None, gt=0, description="Kept on the node.")
    start_deadline_seconds: float = Field(default=60.0, gt=0)
    heartbeat_seconds: float = Field(default=15.0, gt=0)
    output_cap_bytes: int = Field(default=1 << 20, description="Newest output kept, per stream.")
    output_hard_cap_bytes: int = Field(
        default=256 << 20, description="Written past this, the command is ended: output-limit."
    )
    grace_seconds: float = Field(default=5.0, ge=0, description="Between SIGTERM and SIGKILL.")
    devices: list[str] = Field(default=[], description="GPU UUIDs chosen by placement or agent.")
    exclusive_cpus: bool = Field(
        default=False, description="Its CPUs are whole ones on which no other sandbox runs."
    )
    cpus: list[int] = Field(
        default=[],
        description="CPUs of its own, chosen by placement or agent; numbered from 0 among those "
        "that sandboxes may use.",
    )
    snapshot: SnapshotPlan | None = Field(default=None, description="What is saved of it, when.")
    restore: RestoreFrom | None = Field(default=None, description="What it starts from.")


class SandboxState(StrEnum):
    """Where a sandbox is in its life."""

    PENDING = "pending"
    """Accepted, no node yet (control plane only)."""
    BOUND = "bound"
    """A node was chosen and journalled."""
    PULLING = "pulling"
    CREATING = "creating"
    STARTING = "starting"
    """The runtime runs; the first heartbeat is awaited."""
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    ARCHIVING = "archiving"
    """Ended; results and scene are being copied. Resources are still booked."""
    ENDED = "ended"
    UNKNOWN = "unknown"
    """The node is silent."""


class Evidence(WireModel):
    """What the kernel and dsec counted: the proof behind an end reason."""

    oom_kills: int = 0
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    pids_max_hits: int = 0
    pids_peak: int | None = None
    disk_used_bytes: int | None = None
    disk_full_writes: int = 0
    cpu_seconds: float | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    dropped_bytes: int = Field(default=0, description="Output past the cap, not kept.")
    pid_namespace: int | None = Field(default=None, description="Inode of the pid namespace.")
    net_namespace: int | None = Field(default=None, description="Inode of the net namespace.")
    pid_namespace_id: int | None = Field(
        default=None, description="The kernel's number of it that is never reused (Linux 6.18)."
    )
    net_namespace_id: int | None = Field(default=None, description="The same of the other.")
    cgroup: str | None = Field(default=None, description="Path below the hierarchy root.")


class End(WireModel):
    """How a sandbox ended. `exit_code` and `signal` are separate: 143 is not SIGTERM."""

    reason: EndReason
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None
    evidence: Evidence = Evidence()
    stdout: str = Field(default="", description="Newest output, cut at a character boundary.")
    stderr: str = ""
    archive: str | None = Field(default=None, description="Object prefix of the archived scene.")
    archive_partial: bool = False


class SandboxStatus(WireModel):
    """What an agent says about one sandbox. Times are UTC, as the node saw them."""

    identity: Identity
    state: SandboxState
    node: str
    node_incarnation: int = 0
    resources: Resources
    seq: int = Field(default=0, description="The node's change number of this status.")
    image: str = ""
    address: str | None = None
    message: str = ""
    registered: bool = False
    last_heartbeat: datetime | None = None
    times: dict[str, datetime] = Field(
        default={}, description="First time each state was entered, by state name."
    )
    end: End | None = None
    snapshot: LastSnapshot | None = None
