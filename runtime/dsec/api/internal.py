"""Messages of the controller's internal API, which only gateways call."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.reasons import EndReason
from dsec.api.snapshot import RestoreFrom
from dsec.api.wire import CreateBatch

LEASE = "dsec-controller"
"""The Lease of the leading controller, in the control plane's own namespace."""
ENDPOINT_ANNOTATION = "dsec.dev/endpoint"
"""On that Lease: where the leader serves its internal API."""


class CreatesCall(WireModel):
    """A batch of keyed creates that the gateway has authorised."""

    project: str
    user: str = ""
    correlation_id: str = ""
    batch: CreateBatch


class LeaseWant(WireModel):
    """A slice of quota that a gateway asks for, under an id that it makes."""

    id: str
    project: str
    amounts: dict[str, int] = Field(description="Per dimension of the quota ledger.")
    least: dict[str, int] = Field(default={}, description="A smaller slice is of no use.")


class LeaseCall(WireModel):
    """A gateway asks for leases of quota, renews them and gives them back.

    `lane` is where it writes what it binds; the leader opens it, and with `done` closes it.
    `images` has, by project, what single creates asked for lately.
    """

    holder: str
    lane: str = Field(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,127}$")
    wants: list[LeaseWant] = []
    renew: list[str] = []
    give_back: list[str] = []
    images: dict[str, list[str]] = {}
    done: bool = False


class LeaseTerm(WireModel):
    """A lease that was granted or renewed: it runs from when it was asked for."""

    id: str
    account: str
    amounts: dict[str, int]
    duration_s: float


class LeaseAnswer(WireModel):
    """What a gateway may spend and bind.

    `shards` (by tenant) count from when the bind log has been read up to `position`, and only if
    the lane has no mark of the leader after number `marked`. `pins` has, by project, what
    sandboxes use of an image that was asked for. `opened` False: the lane is closed.
    """

    epoch: int
    opened: bool
    marked: int = 0
    position: int = 0
    shards: dict[str, list[int]] = {}
    leases: list[LeaseTerm] = []
    pins: dict[str, dict[str, str]] = {}
    why: str = Field(default="", description="Why there is less than was asked for, in words.")


class DumpCall(WireModel):
    """Dump the next round of decisions."""


class EndCall(WireModel):
    """End sandboxes of a project."""

    project: str
    ids: list[str] = Field(min_length=1, max_length=10_000)
    reason: EndReason = EndReason.STOPPED
    message: str = ""


class ExtendAsk(WireModel):
    """Let the reaper leave a sandbox alone for a while."""

    project: str
    id: str
    seconds: float = Field(gt=0)
    user: str = ""


class MoveVerb(StrEnum):
    """What may be asked of where a sandbox is."""

    MIGRATE = "migrate"
    """To another node, with its state."""
    HIBERNATE = "hibernate"
    """Off its node, saved, until it is woken."""
    WAKE = "wake"
    PUT_BACK = "put-back"
    """On from an earlier snapshot."""


class MoveAsk(WireModel):
    """Move a sandbox, let it sleep, wake it, or put it back to a snapshot of its own."""

    project: str
    id: str
    verb: MoveVerb
    node: str = Field(default="", description="With `migrate`: where to; empty: anywhere.")
    restore: RestoreFrom | None = None
    user: str = ""


class MoveOutcome(WireModel):
    """`known` False: the project has no such sandbox that lives. `why`: not done, in words."""

    known: bool = True
    why: str = ""
    node: str = ""


class ExtendOutcome(WireModel):
    """`known` False: the project has no such sandbox that lives."""

    known: bool = True
    until: datetime | None = None


class EndOutcome(WireModel):
    """`unknown` are ids that the project has not; `taken` False: an agent is silent, repeat."""

    unknown: list[str] = []
    taken: bool = True
