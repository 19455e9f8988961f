"""The interface of whatever nodes are bought from, and its typed answers.

Every call may be repeated: a purchase is known by its token, an end by the node, an extension by
its revision. A call never raises for what a provider may answer; that is a `Failure`, and one whose
outcome is not known says so (`unsure`). It raises `StaleEpochError` alone, for a leader that has
been followed by another.

Implementations: `aws`, `onprem`, `simulated`. None keeps anything that counts: what exists is what
`list` finds by tag, so that another process goes on where one has died.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Protocol


class StaleEpochError(Exception):
    """The caller's leader epoch is lower than one that this provider has seen."""

    def __init__(self, epoch: int, highest: int) -> None:
        """Say both epochs."""
        super().__init__(f"epoch {epoch} is stale; nodes carry the tag of epoch {highest}")
        self.epoch = epoch
        self.highest = highest


class FailureKind(StrEnum):
    """Why a provider did not do what it was asked; each has one answer of the planner."""

    CAPACITY = "capacity"
    """The offering has no more now: back off from this offering, take the next in the same pass."""
    THROTTLED = "throttled"
    """Too many calls: back off from the provider as a whole; nothing is wrong with the offering."""
    LIMIT = "limit"
    """A quota of the account: offerings of the same quota fail alike until somebody raises it."""
    REFUSED = "refused"
    """Setting or permission is wrong: a repeat cannot help until somebody acts."""
    UNKNOWN = "unknown"
    """Not known why, or whether it was done: back off as for capacity, then `list` tells."""


class Scope(StrEnum):
    """What a failure speaks of, and so what is to be left alone for a while."""

    OFFERING = "offering"
    """One offering: pool, region, zone, type and market."""
    QUOTA = "quota"
    """All offerings under one quota; `Failure.quota` names it."""
    PROVIDER = "provider"
    """Everything of this provider."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, for the planner (kind, scope) and for people (words)."""

    kind: FailureKind
    scope: Scope
    code: str
    """The provider's own code, as it came; `timeout` or `connection` where none came."""
    words: str
    unsure: bool = False
    """It may have been done all the same: repeat with the same token, or look with `list`."""
    quota: str = ""
    retry_after: float | None = None
    """Seconds, where the provider said so."""


class Offered(Protocol):
    """What a provider needs of an offering; `dsec.scaling.nodes.offerings.Offering` has it."""

    @property
    def key(self) -> str:
        """`pool/region/zone/type/market`."""
        ...

    @property
    def pool(self) -> str: ...  # noqa: D102 - the name of the pool that a node will join

    @property
    def instance_type(self) -> str: ...  # noqa: D102 - the provider's name of a shape

    @property
    def region(self) -> str: ...  # noqa: D102 - the provider's region

    @property
    def zone(self) -> str: ...  # noqa: D102 - its zone; empty: any

    @property
    def market(self) -> str: ...  # noqa: D102 - owned, reserved, spot or on-demand


class Wanted(Protocol):
    """What a provider needs of a purchase; the planner's `Purchase` has it."""

    @property
    def offering(self) -> Offered: ...  # noqa: D102 - what is bought

    @property
    def count(self) -> int: ...  # noqa: D102 - how many nodes, at least 1

    @property
    def token(self) -> str: ...  # noqa: D102 - unique for ever; a repeat is the same purchase


class Phase(StrEnum):
    """What the provider says of a machine; whether its agent has joined is not its business."""

    REQUESTED = "requested"
    """Bought, not begun."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    """Powered off, kept: parked where owned; elsewhere its volumes still cost."""
    ENDING = "ending"
    GONE = "gone"
    """Costs nothing any more."""

    @property
    def costs(self) -> bool:
        """True while somebody pays for the machine."""
        return self in {Phase.REQUESTED, Phase.STARTING, Phase.RUNNING, Phase.ENDING}


@dataclass(frozen=True, slots=True)
class ProviderNode:
    """One machine as the provider shows it. Times are UTC seconds since 1970."""

    id: str
    """The provider's identifier."""
    name: str
    """The name that its agent registers with."""
    offering: str
    """Key of the offering that it was bought as: its price and its backoff go by it."""
    pool: str
    token: str
    """Token of its purchase; empty: nobody of ours bought it, though it carries our tags."""
    phase: Phase
    launched_at: float
    run_until: float | None = None
    """From its tag; None: the tag is missing or cannot be read."""
    epoch: int = 0
    market: str = ""
    zone: str = ""
    address: str = ""
    """Where the machine is reached, as the provider knows it; empty: not known."""
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OrphanVolume:
    """A volume with our tags that hangs on no machine, and costs."""

    id: str
    token: str
    created_at: float
    bytes: int


@dataclass(frozen=True, slots=True)
class BuyAnswer:
    """What became of a purchase. Some nodes and a failure: that many, and why no more.

    No failure and fewer nodes than asked: the rest of this token's nodes has ended already.
    """

    token: str
    asked: int
    nodes: tuple[ProviderNode, ...] = ()
    failure: Failure | None = None

    @property
    def short(self) -> int:
        """How many nodes are missing."""
        return max(0, self.asked - len(self.nodes))


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """Which nodes end now, or have ended before; and which do not, with the reason of each."""

    ended: frozenset[str] = frozenset()
    failed: dict[str, Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything that carries our tags and costs. `complete` False: a list broke off (`failure`).

    What is not in an incomplete answer is not known to be gone.
    """

    nodes: tuple[ProviderNode, ...] = ()
    volumes: tuple[OrphanVolume, ...] = ()
    complete: bool = True
    failure: Failure | None = None


class EventKind(StrEnum):
    """What a provider tells by itself."""

    SPOT_NOTICE = "spot-notice"
    """The machine will be taken away at `deadline`."""
    REBALANCE = "rebalance"
    """The machine is more likely than others to be taken away soon."""
    GONE = "gone"
    """The machine has ended, by whose will ever; the words say why."""


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """Something that happened to a node. Repeats are harmless: take them by (node, kind)."""

    kind: EventKind
    node: str
    """Name of the node."""
    at: float
    deadline: float | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class PriceQuote:
    """What an hour of a shape costs. `zone` is empty where all zones of the region cost alike."""

    region: str
    zone: str
    instance_type: str
    market: str
    per_hour: Decimal
    currency: str
    at: float
    """UTC seconds since when it holds."""


class NodeProvider(Protocol):
    """Somebody who gives nodes. One object serves the pools of one provider and region."""

    async def buy(self, purchase: Wanted, *, epoch: int, run_until: float) -> BuyAnswer:
        """Buy nodes that end by themselves at `run_until`. Idempotent by the purchase's token.

        A repeat with another `run_until` answers with the nodes as they were bought.
        Raises StaleEpochError.
        """
        ...

    async def list(self) -> Holdings:
        """Return all that carries our tags and costs, bought by whom ever, orphans included."""
        ...

    async def end(self, nodes: Iterable[str], *, epoch: int) -> EndAnswer:
        """End nodes by the provider's identifiers for good. Idempotent. Raises StaleEpochError."""
        ...

    async def extend(self, nodes: Iterable[str], run_until: float, *, epoch: int) -> EndAnswer:
        """Write a later end into the tags of nodes; `ended` holds those that carry it now.

        Call it before the agents are told: a tag that is late would let the reaper end a node that
        has been paid for. Idempotent. Raises StaleEpochError.
        """
        ...

    async def remove_volumes(self, volumes: Iterable[str], *, epoch: int) -> EndAnswer:
        """Delete volumes that hang on no machine. Idempotent. Raises StaleEpochError."""
        ...

    async def events(self) -> tuple[ProviderEvent, ...]:
        """Return what has happened lately; poll it. Empty where the provider cannot be asked."""
        ...

    async def close(self) -> None:
        """Let connections and threads go."""
        ...


@dataclass(slots=True)
class Fence:
    """Remembers the highest leader epoch that was seen, in calls and in tags."""

    highest: int = 0

    def admit(self, epoch: int) -> None:
        """Take note of a caller's epoch. Raises StaleEpochError where it is lower than one seen."""
        if epoch < self.highest:
            raise StaleEpochError(epoch, self.highest)
        self.highest = epoch

    def learn(self, epochs: Iterable[int]) -> None:
        """Take note of epochs that tags carry."""
        self.highest = max(self.highest, *epochs, 0)
