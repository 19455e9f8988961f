"""The rules that plans follow: figures with their reasons, pool by pool, and bounds by the hour.

Defaults were found by simulating a week of mixed work (burst batches, GPU jobs) on a fleet of own
and cloud machines; where a figure is flat, the comment says so.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from dsec.api.sandbox import Resources
from dsec.api.scaling import Market, NodePreset, PoolScaling, ScheduleWindow, Shrinking, Weekday
from dsec.placement.request import Request
from dsec.scaling.guard import DEFAULT_GUARD, GuardRule
from dsec.scaling.nodes.offerings import CLOUD, Offering
from dsec.scaling.nodes.state import Buffer, Limit

WEEK = tuple(Weekday)


@dataclass(frozen=True, slots=True)
class Window:
    """Other bounds between two times of day, in minutes since midnight; it may pass midnight."""

    days: frozenset[int]
    """0 is Monday; empty: every day. The day on which it begins counts."""
    start: int
    end: int
    min_nodes: int | None = None
    max_nodes: int | None = None

    def holds(self, at: datetime) -> bool:
        """Return whether a local time is inside. Start and end alike: the whole day."""
        minute = at.hour * 60 + at.minute
        if self.start < self.end:
            return self.start <= minute < self.end and self._on(at)
        if minute >= self.start:
            return self._on(at)
        return minute < self.end and self._on(at - timedelta(days=1))

    def _on(self, at: datetime) -> bool:
        return not self.days or at.weekday() in self.days


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least and most nodes of a pool at a time; None: no most."""

    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class PoolRules:
    """How one pool grows and shrinks; see `PoolScaling` for the fields of the same names."""

    pool: str
    min_nodes: int = 0
    max_nodes: int | None = None
    floor: int = 1
    windows: tuple[Window, ...] = ()
    time_zone: str = "UTC"
    markets: tuple[Market, ...] = ()
    preset: NodePreset | None = None
    burst_wait_s: float = 10.0
    empty_s: float | None = None
    shrink: Shrinking = Shrinking.ON
    consolidation: bool = True
    frozen: bool = False
    run_until_s: float = 1800.0
    max_cpu_milli: int | None = None
    max_gpus: int | None = None
    max_cost_per_hour: Decimal | None = None
    currency: str = "USD"
    buffers: tuple[Buffer, ...] = ()

    def bounds(self, now: float) -> Bounds:
        """Return the bounds at a time. A scheduled pool never goes below its floor (ELAS-18)."""
        least, most = self.min_nodes, self.max_nodes
        if self.windows:
            local = datetime.fromtimestamp(now, UTC).astimezone(ZoneInfo(self.time_zone))
            held = next((one for one in self.windows if one.holds(local)), None)
            if held is not None:
                least = least if held.min_nodes is None else held.min_nodes
                most = most if held.max_nodes is None else held.max_nodes
            least = max(least, self.floor)
        return Bounds(least if most is None else min(least, most), most)

    @property
    def stays(self) -> bool:
        """Whether nothing is removed for being idle."""
        return self.frozen or self.shrink is Shrinking.OFF

    def preset_of(self, offering: Offering) -> NodePreset:
        """Return when nodes of an offering are added and removed (CONF-37)."""
        owned = offering.market is Market.OWNED
        return self.preset or (NodePreset.NODE_LOAD if owned else NodePreset.WAIT_AND_BUDGET)

    def limits(self, now: float) -> list[Limit]:
        """Return the pool's limits at a time."""
        most = self.bounds(now).most
        return [
            Limit(
                f"pool {self.pool}",
                pools=(self.pool,),
                nodes=most,
                cpu_milli=self.max_cpu_milli,
                gpus=self.max_gpus,
                cost_per_hour=self.max_cost_per_hour,
                currency=self.currency,
            )
        ]


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Figures of all pools, and the rules of each. Times in seconds, parts of one.

    `headroom`: what an unused part of a bought GPU node is worth, as part of its price: nodes of
    four cards then win over single ones where a buffer will fill them (`headroom_with_buffer`).
    """

    pools: tuple[PoolRules, ...] = ()
    headroom: float = 0.6
    headroom_with_buffer: float = 0.9
    spot_patience_s: float = 60.0
    """Work that may run on spot waits so long for spot before on-demand is bought for it."""
    idle_protection_s: float = 600.0
    """Of the preset node-load (ELAS-17)."""
    empty_s: float = 60.0
    """Of wait-and-budget; the cost is flat up to 120 s."""
    cooldown_s: float = 600.0
    """Between two steps of the preset node-load (ELAS-16)."""
    busy_percent: float = 70.0
    calm_percent: float = 30.0
    load_window_s: float = 300.0
    """CPU above or below for so long (ELAS-14, ELAS-15)."""
    backlog_window_s: float = 10.0
    """Of the preset node-load, as long as the burst wait: own machines are asked first."""
    backlog_least: int = 1
    """Requests that wait before a backlog counts."""
    use_below: float = 0.5
    """Nodes used less are consolidated: the knee; 0.9 moves four times as much for 4 % more.
    Onto machines that are paid for anyway nodes go however full they are."""
    least_age_s: float = 300.0
    consolidate_every_s: float = 60.0
    payback: float = 2.0
    """A saving has to be worth so many times the moves."""
    pause_s: float = 20.0
    pause_gpu_s: float = 60.0
    move_price_per_gib: Decimal = Decimal("0.0002")
    """Snapshot, transfer and a day of storage of one GiB of memory, that of cards included."""
    move_again_s: float = 600.0
    drains_at_once: float = 0.10
    """Part of a pool's nodes that may be drained at once; at least one."""
    consolidations_tried: int = 64
    """Most nodes looked at in one plan."""
    exchanges_tried: int = 16
    """Most machines on which room is made for larger work, in one plan."""
    spot_notice_s: float = 100.0
    """Work is paused and saved within this after a notice; providers give 120 s."""
    wind_down_s: float = 300.0
    """Before its run-until time a node stops, saves and archives."""
    home_region: str = ""
    """Where work runs that is not chosen by price; empty: anywhere (ROAD-06)."""
    guard: GuardRule = field(default=DEFAULT_GUARD)

    def of(self, pool: str) -> PoolRules:
        """Return the rules of a pool."""
        for one in self.pools:
            if one.pool == pool:
                return one
        return PoolRules(pool)

    def idle_s(self, offering: Offering) -> float:
        """Return how long a node is idle before it goes. What is paid for anyway goes late."""
        pool = self.of(offering.pool)
        if pool.empty_s is not None:
            return pool.empty_s
        if pool.preset_of(offering) is NodePreset.NODE_LOAD or offering.market not in CLOUD:
            return self.idle_protection_s
        return self.empty_s

    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers of all pools."""
        return tuple(one for pool in self.pools for one in pool.buffers)


def pool_rules(pool: str, asked: PoolScaling) -> PoolRules:
    """Return the rules of a pool. Raises ZoneInfoNotFoundError for an unknown time zone."""
    if asked.schedule:
        ZoneInfo(asked.time_zone)
    cost = asked.max_cost_per_hour
    return PoolRules(
        pool,
        min_nodes=asked.min_nodes,
        max_nodes=asked.max_nodes,
        floor=asked.floor,
        windows=tuple(_window(one) for one in asked.schedule),
        time_zone=asked.time_zone,
        markets=tuple(asked.markets),
        preset=asked.preset,
        burst_wait_s=asked.burst_wait_seconds,
        empty_s=asked.empty_seconds,
        shrink=asked.shrink,
        consolidation=asked.consolidation and not asked.frozen,
        frozen=asked.frozen,
        run_until_s=asked.run_until_seconds,
        max_cpu_milli=asked.max_cpu_milli,
        max_gpus=asked.max_gpus,
        max_cost_per_hour=None if cost is None else Decimal(cost),
        currency=asked.currency,
        buffers=tuple(
            Buffer(
                f"{pool}/{one.name}",
                Request(
                    f"buffer/{pool}/{one.name}",
                    Resources(
                        cpu_milli=one.cpu_milli,
                        memory_bytes=one.memory_bytes,
                        gpu_count=one.gpu_count,
                    ),
                    gpu_model=one.gpu_model,
                    pools=(pool,),
                ),
                one.count,
                burn_percent=one.burn_percent,
                pool=pool,
            )
            for one in asked.buffers
        ),
    )


def _window(asked: ScheduleWindow) -> Window:
    days = frozenset(WEEK.index(day) for day in asked.days)
    return Window(days, _minute(asked.start), _minute(asked.end), asked.min_nodes, asked.max_nodes)


def _minute(clock: str) -> int:
    hour, _, minute = clock.partition(":")
    return int(hour) * 60 + int(minute)


def floor_of(used: list[int], percent: int = 50) -> int:
    """Return a floor from the node counts that task profiles needed in the past (ELAS-18).

    The count that covered `percent` of the samples; never 0, since a start from zero can outlast
    the time-outs of short tasks.
    """
    if not used:
        return 1
    ordered = sorted(used)
    return max(1, ordered[min(len(ordered) - 1, len(ordered) * percent // 100)])
