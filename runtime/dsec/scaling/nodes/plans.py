"""What a plan says: purchases, drains, removals, renewals, and what was not done, each with why."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

from dsec.placement.compaction import Move
from dsec.scaling.nodes.offerings import FleetNode, Offering
from dsec.scaling.nodes.state import PoolMemory


class Why(StrEnum):
    """The typed reason of a decision; sentences are in words.py."""

    PENDING = "pending"
    """Bought: work waits that no node covers."""
    BUFFER = "buffer"
    """Bought: less room is free than is kept."""
    MINIMUM = "minimum"
    """Bought: fewer nodes than the pool's least number."""
    LOAD = "load"
    """Bought: CPU above the threshold for its time (ELAS-14)."""
    REPLACEMENT = "replacement"
    """Bought: nodes are taken back by the provider, and their work needs a place."""
    EMPTY = "empty"
    """Removed: idle for its time, and nothing needs it."""
    CALM = "calm"
    """Removed: idle for its time in a pool with low CPU (ELAS-15)."""
    SURPLUS = "surplus"
    """Removed: more nodes than the pool's most."""
    LATE = "late"
    """Removed: it never became ready."""
    CONSOLIDATION = "consolidation"
    """Drained: its work fits elsewhere and the saving pays for the moves."""
    SPOT_NOTICE = "spot-notice"
    """Drained: the provider takes it back within minutes."""
    REBALANCE = "rebalance"
    """Drained: the provider foretold that; a replacement is ready."""
    EXPIRY = "expiry"
    """Drained: it is not paid for beyond its run-until time."""
    DRAINED = "drained"
    """Removed: what was on it has moved."""
    RENEWED = "renewed"
    """Its run-until time is extended."""
    NO_OFFERING = "no-offering"
    """Not bought: no node that may be had can hold it."""
    BACKED_OFF = "backed-off"
    """Not bought: every way to get a node for it failed lately."""
    BURST_WAIT = "burst-wait"
    """Not bought: it has not waited long enough for cloud nodes."""
    SPOT_FIRST = "spot-first"
    """Not bought: spot may come back before on-demand is paid for."""
    LOAD_WINDOW = "load-window"
    """Not bought: backlog or load has not lasted long enough (ELAS-14)."""
    COOLDOWN = "cooldown"
    """Not done: the pool's last step is too recent (ELAS-16)."""
    FROZEN = "frozen"
    """Not done: somebody stopped this pool's scaling (OPS-28)."""
    LIMIT = "limit"
    """Not bought: a limit of nodes, CPU, GPUs or money per hour."""
    BUDGET = "budget"
    """Not bought or extended: a budget does not cover it (COST-12)."""
    RESIDENCY = "residency"
    """Not bought: data may not be where nodes are (ROAD-05)."""
    FLOOR = "floor"
    """Not removed: the pool's least number."""
    GUARD = "guard"
    """Not removed yet: the pool went up and down lately."""
    PROTECTED = "protected"
    """Not removed: high-risk work is on it (ELAS-15)."""
    DRY_RUN = "dry-run"
    """Not removed: removals of this pool are only told (ELAS-29)."""
    NOT_MOVABLE = "not-movable"
    """Not drained: something on it cannot be moved."""
    NO_PAYBACK = "no-payback"
    """Not drained: moving costs more than it saves."""
    NO_ROOM = "no-room"
    """Not drained: its work does not fit elsewhere as a whole."""
    SETTLED = "settled"
    """Not drained: what is on it has moved, and demand has not changed since (or too recently)."""
    CAP = "cap"
    """Not drained: as many nodes of the pool are being drained as may be at once."""
    FAILED_MOVE = "failed-move"
    """Kept and flagged: a move away from it failed (ELAS-22)."""


@dataclass(frozen=True, slots=True)
class RegionStage:
    """First of the two stages of a choice: the region; the second is the node in it (ROAD-07).

    `considered`: region and the least price per hour of what would do there, or why it is out.
    `why`: only, residency, home or price.
    """

    region: str
    why: str
    considered: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Purchase:
    """So many nodes of one offering. The provider makes them once per token, however often asked.

    `covers`: ids of the requests that they are for. `paths`: budgets that pay. `triggered_at`:
    since when the oldest of them waits (ELAS-25). `images`, `datasets`: what the nodes fetch while
    they boot, the most wanted first (ELAS-19, ELAS-26). `names`: of the nodes, as they are
    reserved. `places`: what goes on each of them, in the order of names. `region`: why there.
    """

    offering: Offering
    count: int
    token: str
    reason: Why
    covers: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    triggered_at: float | None = None
    images: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    places: tuple[tuple[str, ...], ...] = ()
    region: RegionStage | None = None

    @property
    def price_per_hour(self) -> Decimal:
        """Of all of them, in the offering's currency."""
        return self.offering.price_per_hour * self.count


@dataclass(frozen=True, slots=True)
class Drain:
    """No new work on a node; `moves` take what is there elsewhere, `rests` are paused and saved.

    Moves are made in their order: some may be of work on other nodes, which makes room for what
    follows; where such a one fails, what follows stays. What rests goes to the head of the queue.
    `deadline`: UTC seconds by when it must be done.
    """

    node: str
    reason: Why
    moves: tuple[Move, ...] = ()
    rests: tuple[str, ...] = ()
    deadline: float | None = None
    saving_per_hour: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Removal:
    """A node to give back."""

    node: str
    pool: str
    reason: Why
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Renewal:
    """A node that is paid for until later."""

    node: str
    run_until: float


@dataclass(frozen=True, slots=True)
class Refused:
    """What was not done, and why. `subject`: a class of work, an offering, a node or a pool.

    `figures` are the numbers of the sentence, by name.
    """

    reason: Why
    subject: str
    count: int = 1
    figures: tuple[tuple[str, str], ...] = ()

    def figure(self, name: str) -> str:
        """Return one figure, or nothing."""
        return dict(self.figures).get(name, "")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in the order of the fields: replacements are bought before anything goes.

    `cordons`: nodes that are to take no new work. `memories` and `consolidated_at` are to be kept
    once it is carried out.
    """

    at: float
    buys: tuple[Purchase, ...] = ()
    cordons: tuple[str, ...] = ()
    drains: tuple[Drain, ...] = ()
    removals: tuple[Removal, ...] = ()
    renewals: tuple[Renewal, ...] = ()
    refusals: tuple[Refused, ...] = ()
    memories: tuple[PoolMemory, ...] = ()
    consolidated_at: float | None = None

    @property
    def moves(self) -> tuple[Move, ...]:
        """All moves of all drains."""
        return tuple(move for drain in self.drains for move in drain.moves)


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """How many nodes the budgets cover, and which path refuses the rest.

    `refused_by`: a budget path, or empty where the pool's or everybody's budget refuses.
    """

    width: int
    refused_by: str = ""
    words: str = ""


class Gate(Protocol):
    """The hard budget gate, asked before every purchase and every extension (COST-12)."""

    def width(
        self, offering: Offering, count: int, paths: Sequence[str], taken: Sequence[Purchase]
    ) -> GateAnswer:
        """Return how many of `count` nodes are covered, with what was `taken` in this plan."""
        ...

    def extend(self, node: FleetNode, until: float) -> float:
        """Return how far a node may be paid for, at most `until`; its run-until or less: no."""
        ...


@dataclass(frozen=True, slots=True)
class OpenGate:
    """No budgets: everything is covered."""

    def width(
        self, offering: Offering, count: int, paths: Sequence[str], taken: Sequence[Purchase]
    ) -> GateAnswer:
        """Return all of it."""
        del offering, paths, taken
        return GateAnswer(count)

    def extend(self, node: FleetNode, until: float) -> float:
        """Return all of it."""
        del node
        return until
