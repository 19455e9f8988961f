"""The fleet as planning sees it: what waits, what runs, what may be bought, what is remembered.

All of it is plain frozen data, made anew by the caller before each plan. What must survive a
restart is in it as `since` times (UTC seconds): the caller persists `memories`, `backoffs`, the
nodes (with what was reserved) and `serial`. Losing them delays shrinking and never removes a node.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal

from dsec.api.elastic_status import GuardState
from dsec.api.scaling import Market
from dsec.placement.request import Request
from dsec.placement.view import ClusterView
from dsec.scaling.nodes.offerings import TIERS, FleetNode, Offering


@dataclass(frozen=True, slots=True)
class Pending:
    """One request that has no place, since when, and how long it waits before cloud is bought.

    `burst_wait_s`: of its task (CONF-37); None: the pool's. `budget`: path account/project/task.
    `regions`: where its data may be; empty: anywhere (ROAD-05). `sensitive`: its region is not
    chosen by price (ROAD-06).
    """

    request: Request
    since: float
    burst_wait_s: float | None = None
    budget: str = ""
    regions: tuple[str, ...] = ()
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class Backoff:
    """A way to get nodes that failed: nothing of it until `until`, then one node as a probe.

    `key`: an offering, or a scope that holds several (see backoff.py). `failures` in a row.
    """

    key: str
    failures: int
    until: float
    code: str = ""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Room kept free for `count` more of a request; nodes go only above `SLACK` times that.

    `burn_percent`: what is bought for it costs at most that part of what all nodes cost.
    """

    name: str
    request: Request
    count: int
    burn_percent: int = 100
    pool: str = ""


SLACK = 1.5
"""Bought below the buffer, removed only above this many times it: between them nothing happens."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Most of something, over the nodes of some pools and markets; empty: all. None: no limit.

    `cost_per_hour` is in `currency` and adds up what is priced in it; nothing that is priced in
    another one is bought where it holds.
    """

    name: str
    pools: tuple[str, ...] = ()
    markets: tuple[Market, ...] = ()
    nodes: int | None = None
    cpu_milli: int | None = None
    gpus: int | None = None
    cost_per_hour: Decimal | None = None
    currency: str = "USD"

    def covers(self, offering: Offering) -> bool:
        """Return whether nodes of an offering count towards it."""
        return (not self.pools or offering.pool in self.pools) and (
            not self.markets or offering.market in self.markets
        )


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What is remembered of a pool between plans.

    `busy_since`, `calm_since`: CPU above or below the thresholds without a break. `backlog_since`:
    work waits. `cpu_percent`, `cpu_at`: the last sample. `acted_at`: last step under the preset
    node-load. `guard`: of the oscillation guard.
    """

    pool: str
    busy_since: float | None = None
    calm_since: float | None = None
    backlog_since: float | None = None
    cpu_percent: float | None = None
    cpu_at: float | None = None
    acted_at: float | None = None
    guard: GuardState = field(default_factory=GuardState)


@dataclass(frozen=True, slots=True)
class FleetState:
    """Everything that one plan is made from. `now` in UTC seconds.

    `serial` grows with each plan that is carried out: tokens of purchases are made of it.
    `view`: a view of the ready nodes with what runs there, where the caller has one; it is forked,
    never changed. Without it one is made from the nodes.
    """

    now: float
    nodes: tuple[FleetNode, ...] = ()
    pending: tuple[Pending, ...] = ()
    offerings: tuple[Offering, ...] = ()
    backoffs: tuple[Backoff, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    limits: tuple[Limit, ...] = ()
    memories: tuple[PoolMemory, ...] = ()
    serial: int = 0
    scope: str = "dsec"
    consolidated_at: float | None = None
    view: ClusterView | None = field(default=None, compare=False)

    def memory(self, pool: str) -> PoolMemory:
        """Return what is remembered of a pool."""
        return next((one for one in self.memories if one.pool == pool), PoolMemory(pool))

    def remembering(self, memory: PoolMemory) -> "FleetState":
        """Return the state with the memory of one pool replaced."""
        rest = [one for one in self.memories if one.pool != memory.pool]
        return replace(self, memories=tuple(sorted([*rest, memory], key=lambda one: one.pool)))

    def of_pool(self, pool: str) -> Iterator[FleetNode]:
        """Yield the nodes of a pool, whatever their phase."""
        return (node for node in self.nodes if node.offering.pool == pool)

    @property
    def pools(self) -> tuple[str, ...]:
        """Names of the pools that have offerings or nodes."""
        found = {one.pool for one in self.offerings} | {one.offering.pool for one in self.nodes}
        return tuple(sorted(found))

    @property
    def burn(self) -> Decimal:
        """What all nodes cost in an hour, in the currency of their offerings."""
        return sum((one.offering.price_per_hour for one in self.nodes), Decimal(0))

    @property
    def demand(self) -> str:
        """A digest of what runs and waits: moves leave it as it is, starts and ends change it."""
        ids = [one.request.id for one in self.pending]
        ids += [one.id for node in self.nodes for one in node.work]
        return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]


def tier_of(offering: Offering) -> int:
    """Return the place of an offering's market in the order of use."""
    return TIERS.index(offering.market)
