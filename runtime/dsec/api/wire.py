"""Messages between gateway, controller and agents."""

from datetime import datetime

from pydantic import AwareDatetime, Field, field_validator

from dsec.api.base import WireModel
from dsec.api.meta import MAX_INT
from dsec.api.sandbox import IsolationLevel, Resources, SandboxSpec, SandboxState, SandboxStatus
from dsec.api.snapshot import RestoreFrom, SnapshotPlan

PROTOCOL = 1
"""Version of the wire messages; a server serves agents of this version and its two neighbours."""


class Device(WireModel):
    """One accelerator: class, memory and slices, whoever made it."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    modes: list[str] = ["whole"]


class NodeInventory(WireModel):
    """What a node has and can do."""

    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    pids: int = 1 << 15
    max_sandboxes: int = 2000
    devices: list[Device] = []
    isolation: list[IsolationLevel] = [IsolationLevel.CONTAINER]
    features: dict[str, str] = Field(
        default={}, description="What the kernel offers, for example cgroup=v1, erofs=file."
    )
    simulated: bool = False
    whole_cpus: int = Field(
        default=0, ge=0, description="CPUs that sandboxes may have to themselves; 0: cpuMilli says."
    )


class NodeRegistration(WireModel):
    """An agent introduces itself. Answered with a NodeAdmission."""

    protocol: int = PROTOCOL
    name: str
    uid: str = Field(description="Stable for the machine's life (machine-id or SandboxNode UID).")
    boot_id: str
    incarnation: int = Field(description="Grows at every start of the agent process.")
    endpoint: str = Field(description="https URL, with the node's path prefix, that gateways call.")
    pool: str = ""
    labels: dict[str, str] = {}
    inventory: NodeInventory
    csr_pem: str = Field(default="", description="Certificate request; empty renews nothing.")
    utc: datetime


class NodeAdmission(WireModel):
    """The control plane's answer to a registration."""

    certificate_pem: str = ""
    ca_pem: str = ""
    expires: datetime | None = None
    epoch: int = Field(description="The highest leader epoch known; the agent persists it.")
    clock_offset_seconds: float = 0.0
    capability_public_key_pem: str = Field(
        default="", description="Ed25519 key that verifies the gateways' per-sandbox capabilities."
    )


class CreateCall(WireModel):
    """Creates on one node, in one call; idempotent by sandbox id."""

    epoch: int
    specs: list[SandboxSpec]
    before: datetime | None = Field(
        default=None, description="Nothing is started later (UTC): its caller decides no more."
    )


class CreateAnswer(WireModel):
    """The agent's last word on one create."""

    id: str
    accepted: bool
    reason: str = ""
    state: SandboxState = SandboxState.BOUND


class CreateAnswers(WireModel):
    """One answer per spec, in order."""

    answers: list[CreateAnswer]


class StopCall(WireModel):
    """End sandboxes; idempotent."""

    epoch: int
    ids: list[str]
    reason: str = "stopped"
    message: str = ""
    grace_seconds: float = 5.0


class AckCall(WireModel):
    """The control plane has durably recorded these ends; the agent may forget them."""

    epoch: int
    ids: list[str]


class EpochCall(WireModel):
    """A leader's epoch by itself: the body of epoch and resume, and the agent's answer."""

    epoch: int


class PauseCall(EpochCall):
    """Freeze a sandbox; `message` says why, for people."""

    message: str = ""


class RunUntilCall(EpochCall):
    """Move the time at which a node ends by itself; what it is paid for until then is committed.

    Of the two ways to say it the earlier holds: a call that was long under way, or a clock that is
    wrong, never makes a node run longer than was meant.
    """

    run_until: AwareDatetime
    left_seconds: float = Field(gt=0, description="From when the call was sent.")
    revision: int = Field(ge=0, description="Grows with each decision; a lower one changes nothing")


class RunUntilAnswer(EpochCall):
    """What holds now. `ending`: the node winds down, and no call changes that."""

    run_until: AwareDatetime
    left_seconds: float
    revision: int
    ending: bool = False


class NodeNotice(WireModel):
    """What a node has learned about its own end from whoever owns the machine."""

    kind: str = Field(description="spot-notice (taken away at the deadline) or rebalance.")
    at: datetime
    deadline: datetime | None = None
    message: str = ""


class Usage(WireModel):
    """Sums over the live sandboxes of a node."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    pids: int = 0
    gpu_count: int = 0


class NodeState(WireModel):
    """Changes since a sequence number. `full` means: everything not listed is gone.

    `heartbeats` has the last one of each live sandbox that beat since the beat number that was
    asked with; `beat` is the number to ask with next. Who asks with none gets none.
    """

    node: str
    boot_id: str
    incarnation: int
    epoch: int
    seq: int
    full: bool
    utc: datetime
    used: Usage = Usage()
    live: int = 0
    sandboxes: list[SandboxStatus] = []
    beat: int = 0
    heartbeats: dict[str, datetime] = {}
    run_until: datetime | None = Field(default=None, description="When it ends by itself.")
    ending: bool = Field(default=False, description="It winds down and ends.")
    notices: list[NodeNotice] = []


class SandboxUse(WireModel):
    """What a patrol wants to know of one sandbox beside its record."""

    state: SandboxState
    running_since: datetime | None = None
    last_heartbeat: datetime | None = None
    cpu_seconds: float | None = Field(default=None, description="Used so far; unset: not counted.")


class NodeUse(WireModel):
    """Every live sandbox of a node as it is now. `utc` is the node's own time."""

    node: str
    utc: datetime
    sandboxes: dict[str, SandboxUse] = {}


class JournalRow(WireModel):
    """One row of history. Consumers de-duplicate by (node, boot_id, seq), never order by time."""

    region: str = "local"
    node: str
    boot_id: str
    seq: int
    utc: datetime
    tenant: str = ""
    experiment: str = ""
    sandbox: str = ""
    kind: str
    body: dict[str, object] = {}


class JournalPush(WireModel):
    """Rows that an agent ships through the gateway; repeats are harmless."""

    node: str
    boot_id: str
    rows: list[JournalRow]


class KeyedCreate(WireModel):
    """One create with its idempotency key (per tenant, kept 24 h)."""

    key: str = Field(min_length=1, max_length=200)
    image: str = Field(default="", description="Reference; empty: the tenant's default image.")
    command: list[str] = []
    env: dict[str, str] = {}
    resources: Resources
    item: str | None = None
    stdin: str | None = None
    max_run_seconds: float | None = Field(default=None, gt=0)
    isolation: IsolationLevel = IsolationLevel.CONTAINER
    labels: dict[str, str] = {}
    snapshot: SnapshotPlan | None = Field(default=None, description="What is saved of it, when.")
    restore: RestoreFrom | None = Field(default=None, description="What it starts from.")

    @field_validator("resources")
    @classmethod
    def _bounded(cls, resources: Resources) -> Resources:
        """Refuse figures that records could not hold; whoever computes with them may overflow."""
        if max(one for one in vars(resources).values() if isinstance(one, int)) <= MAX_INT:
            return resources
        for name, field in Resources.model_fields.items():
            amount = getattr(resources, name)
            if isinstance(amount, int) and amount > MAX_INT:
                raise ValueError(f"{field.alias}: at most {MAX_INT} is allowed")
        return resources


class CreateBatch(WireModel):
    """Keyed creates of one project."""

    creates: list[KeyedCreate] = Field(min_length=1, max_length=10_000)


class KeyedAnswer(WireModel):
    """What became of one key.

    `outcome`: bound (created now), exists (same key, same body), conflict (same key, other body),
    pending (accepted, waits for room), refused (can never run), unknown (bound node is silent:
    retry after the given time).
    """

    key: str
    outcome: str = Field(pattern="^(bound|exists|conflict|pending|refused|unknown)$")
    id: str = ""
    node: str = ""
    state: SandboxState | None = None
    message: str = ""
    retry_after_seconds: float | None = None


class KeyedAnswers(WireModel):
    """One answer per create, in order."""

    answers: list[KeyedAnswer]


class ErrorBody(WireModel):
    """Every error of the HTTP API."""

    code: str = Field(description="A stable word: not-found, denied, conflict, invalid, ...")
    message: str
    details: list[dict[str, object]] = Field(
        default=[], description="For invalid: path, value, allowed; one entry per mistake."
    )
    correlation_id: str = ""
