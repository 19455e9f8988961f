"""Ways to get a node, and the nodes that were got: plain frozen data."""

from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

from dsec.api.experiment import TaskClass
from dsec.api.scaling import Market
from dsec.placement.request import SPOT_TAINT, Node, Request

TIERS: tuple[Market, ...] = (Market.OWNED, Market.RESERVED, Market.SPOT, Market.ON_DEMAND)
"""What is used first: what is paid for anyway, then the cheaper (COST-05)."""
CLOUD = frozenset({Market.SPOT, Market.ON_DEMAND})
"""Paid by the second: bought after a wait, given back when empty."""
LATE = 5.0
"""A node that is not ready after so many times its usual time does not come any more."""
LATE_LEAST_S = 600.0


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to get a node: a make, at a place, paid for in one way.

    `node` describes what comes; its name is filled in per node. `price_per_hour` in `currency`.
    `limit`: most nodes of it; of owned machines how many there are.
    """

    pool: str
    provider: str
    instance_type: str
    region: str
    zone: str
    market: Market
    node: Node
    price_per_hour: Decimal
    currency: str
    boot_seconds: float = 90.0
    minimum_bill_seconds: int = 60
    limit: int | None = None

    @property
    def key(self) -> str:
        """What backoff, prices and random streams go by, the one spelling of it."""
        parts = (self.pool, self.region, self.zone, self.instance_type, self.market.value)
        return "/".join(parts)

    @property
    def cloud(self) -> bool:
        """Whether it is paid by the second."""
        return self.market in CLOUD

    def named(self, name: str) -> Node:
        """Return the node that comes, with its place, pool, price and the taint of spot nodes.

        Cards get names of their own: two nodes never have the same card.
        """
        node = self.node
        taints = node.taints
        if self.market is Market.SPOT and SPOT_TAINT not in taints:
            taints = (*taints, SPOT_TAINT)
        devices = tuple(replace(card, uuid=f"{name}:{card.uuid}") for card in node.devices)
        return replace(
            node,
            name=name,
            pool=self.pool or node.pool,
            region=self.region or node.region,
            zone=self.zone or node.zone,
            taints=taints,
            devices=devices,
            price_micro=int(self.price_per_hour * 1_000_000),
        )


class NodePhase(StrEnum):
    """Where a node is in its life. Each counts towards limits until it is gone."""

    REQUESTED = "requested"
    """Asked for, or about to be: reserved before the provider is called."""
    BOOTING = "booting"
    READY = "ready"
    CORDONED = "cordoned"
    """Takes no new work."""
    DRAINING = "draining"
    """Its work is being moved away."""
    ABNORMAL = "abnormal"
    """Something on it could not be moved: kept with its scene for somebody to look (ELAS-22)."""
    ENDING = "ending"


COMING = frozenset({NodePhase.REQUESTED, NodePhase.BOOTING})


@dataclass(frozen=True, slots=True)
class Running:
    """One sandbox on a node. Times in UTC seconds, `expected_remaining_s` where it is known.

    `movable`: there is a mover, and a snapshot of it can be taken. `moved_under`: the demand (see
    `FleetState.demand`) that it was moved for last.
    """

    id: str
    request: Request
    started_at: float
    task_class: TaskClass
    movable: bool = False
    paused: bool = False
    last_moved_at: float | None = None
    moved_under: str = ""
    expected_remaining_s: float | None = None
    devices: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    budget: str = ""

    @property
    def interruptible(self) -> bool:
        """Whether its task consents to being paused."""
        return self.task_class is not TaskClass.GUARANTEED


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One node that was got, or is about to be. Times in UTC seconds.

    `since` is when its phase began. `protected`: high-risk work is on it (ELAS-15).
    `registered`: what its agent reported; until that is known the offering's description counts.
    `rebalance_at`: the provider foretold an interruption without naming a time. `arriving`: what is
    being moved to it, which holds room here and on its old node. `covers`: ids of the requests that
    it was bought for; they have the first right to it until it is ready.
    """

    name: str
    offering: Offering
    phase: NodePhase
    requested_at: float
    ready_at: float | None = None
    run_until: float | None = None
    idle_since: float | None = None
    protected: bool = False
    spot_notice_at: float | None = None
    rebalance_at: float | None = None
    work: tuple[Running, ...] = ()
    arriving: tuple[Running, ...] = ()
    covers: tuple[str, ...] = ()
    token: str = ""
    registered: Node | None = None
    failed_moves: tuple[str, ...] = ()
    since: float | None = None

    @property
    def coming(self) -> bool:
        """Whether it is on its way."""
        return self.phase in COMING

    def late(self, now: float) -> bool:
        """Return whether it is on its way for so long that it is not expected any more."""
        most = max(LATE_LEAST_S, LATE * self.offering.boot_seconds)
        return self.coming and now - self.requested_at > most

    @property
    def busy(self) -> bool:
        """Whether something is on it, or on its way to it."""
        return bool(self.work or self.arriving)

    @property
    def leaving(self) -> bool:
        """Whether the provider takes it back, or said that it may."""
        return self.spot_notice_at is not None or self.rebalance_at is not None

    def described(self, now: float) -> Node:
        """Return what counts as its capacity: what it registered, else what was bought.

        Cards are advertised later than the node itself: until `LATE_LEAST_S` after it became ready
        those that were bought count as coming.
        """
        bought = self.offering.named(self.name)
        seen = self.registered
        if seen is None or self.coming:
            return bought
        fresh = self.ready_at is None or now - self.ready_at <= LATE_LEAST_S
        devices = bought.devices if fresh and len(seen.devices) < len(bought.devices) else None
        return replace(
            bought,
            cpu_milli=seen.cpu_milli,
            memory_bytes=seen.memory_bytes,
            disk_bytes=seen.disk_bytes,
            pids=seen.pids,
            sandboxes=seen.sandboxes,
            labels=tuple(sorted((dict(bought.labels) | dict(seen.labels)).items())),
            devices=seen.devices if devices is None else devices,
            images=seen.images,
            datasets=seen.datasets,
            rack=seen.rack or bought.rack,
        )


def may_be_interrupted(request: Request) -> bool:
    """Return whether its task consents to spot nodes: pausable and preemptible work does."""
    return request.task_class is not TaskClass.GUARANTEED


def tolerant(request: Request) -> Request:
    """Return the request as it is placed in a fleet: it tolerates spot nodes where it consents."""
    if not may_be_interrupted(request) or SPOT_TAINT in request.tolerations:
        return request
    return replace(request, tolerations=(*request.tolerations, SPOT_TAINT))
