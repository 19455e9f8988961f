"""A fleet in virtual time: work arrives, is placed, runs, moves and ends, and all is billed.

Nodes are bought, boot, are interrupted and given back; placement is the real engine's.

What to buy, move and give back is decided by `Rules`, asked at each step; the fleet does it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from heapq import heappop, heappush
from itertools import groupby
from typing import Protocol

from dsec.api.scaling import Market
from dsec.placement.asked import OverCapacityError
from dsec.placement.engine import place_class
from dsec.placement.mix import Mix
from dsec.placement.request import Decision, Health, Request
from dsec.placement.view import ClusterView, Ints
from dsec.scaling.nodes.offerings import TIERS, FleetNode, NodePhase, Offering, Running, tolerant
from dsec.scaling.nodes.virtual import rows_of
from dsec.sim.elastic.load import Work
from dsec.sim.elastic.market import HOUR, LOOK_S, NOTICE_S, MarketModel

STEP_S = 5.0
GPU_MOVE_S, MOVE_S = 60.0, 20.0
"""What a pause, a move and a wake add to the life of a sandbox."""
TRANSFER_PER_GIB = Decimal("0.001")
"""Of state that moves: one move in ten leaves its zone, at 0.01."""
SNAPSHOT_PER_GIB = Decimal("0.001")
"""A day of storage in an object store, and the requests."""
CARD_GIB = 80


@dataclass(slots=True)
class Live:
    """Work that has arrived and not ended. `left`: seconds that it still has to run."""

    work: Work
    request: Request
    left: float
    since: float
    """When it began to wait, or to run for the last time."""
    node: str = ""
    started_at: float = 0.0
    first_start: float | None = None
    turn: int = 0
    """Grows with each start: ends of earlier ones do not count."""
    moved_at: float | None = None
    moved_under: str = ""
    devices: tuple[str, ...] = ()


@dataclass(slots=True)
class Machine:
    """One node that is paid for."""

    name: str
    offering: Offering
    requested_at: float
    phase: NodePhase = NodePhase.BOOTING
    ready_at: float | None = None
    idle_since: float | None = None
    notice_at: float | None = None
    work: dict[str, None] = field(default_factory=dict)
    covers: tuple[str, ...] = ()
    """What it was bought for, until it is ready."""
    told: FleetNode | None = None
    """What rules were told of it; None: something has changed since."""


@dataclass(slots=True)
class Tally:
    """What a run came to. Money in the market's currency, over the window; times in seconds."""

    bill: dict[str, Decimal] = field(default_factory=dict)
    """By market and kind of node, and `moves`."""
    waits: dict[str, list[float]] = field(default_factory=dict)
    delivered_core_h: float = 0.0
    delivered_gpu_h: float = 0.0
    lost_core_h: float = 0.0
    launches: int = 0
    removals: int = 0
    moves: int = 0
    evictions: int = 0
    interruptions: int = 0
    failures: int = 0
    unfinished: int = 0
    curve: list[tuple[float, int, int, float]] = field(default_factory=list)
    """(time, nodes, waiting, cost per hour) of each sample."""

    @property
    def total(self) -> Decimal:
        """The whole bill."""
        return sum(self.bill.values(), Decimal(0))


class Rules(Protocol):
    """Decides at each step what to buy, to move and to give back."""

    def step(self, fleet: "Fleet") -> None:
        """Look at the fleet, and call its verbs."""

    def noticed(self, fleet: "Fleet", machine: Machine) -> None:
        """Hear that a spot node is taken back in two minutes."""


class Fleet:
    """One run: a load on owned machines and on what rules buy."""

    def __init__(
        self,
        load: Sequence[Work],
        own: Iterable[Offering],
        market: MarketModel,
        rules: Rules,
        *,
        window: tuple[float, float],
        end: float,
        prepare: Callable[[Request], Request] = tolerant,
        move_all: bool = False,
    ) -> None:
        """`window`: the time that is billed and told; `prepare`: how a request is placed.

        `move_all`: work that may not be interrupted may be moved all the same, with a pause.
        """
        self.move_all = move_all
        self.load, self.market, self.rules = load, market, rules
        self.window, self.end, self.prepare = window, end, prepare
        self.view, self.mix = ClusterView([]), Mix()
        self.machines: dict[str, Machine] = {}
        self.live: dict[str, Live] = {}
        self.waiting: dict[str, None] = {}
        self.tally, self.now, self.serial = Tally(), 0.0, 0
        self.changed_at = 0.0
        """When work or nodes last changed otherwise than by a plan."""
        self._events: list[tuple[float, int, str, str, int]] = []
        self._number = 0
        self._full: set[object] = set()
        self._fresh = False
        self._sampled = -LOOK_S
        self._tiers: list[Ints] | None = None
        for offering in own:
            for _ in range(offering.limit or 0):
                machine = self._machine(offering)
                self._ready(machine)

    def run(self, progress: Callable[[float], None] = lambda _: None) -> Tally:
        """Go to the end in steps; return what it came to."""
        position = 0
        while self.now < self.end:
            self.now += STEP_S
            self._happen()
            while position < len(self.load) and self.load[position].at <= self.now:
                self._arrive(self.load[position])
                position += 1
            self._interrupt()
            if self._fresh:
                self._start_waiting()
            self.rules.step(self)
            if self._fresh:
                self._start_waiting()
            self._sample()
            progress(self.now)
        for machine in self.machines.values():
            self._pay(machine)
        self.tally.unfinished = len(self.live)
        return self.tally

    # what rules may do

    def buy(self, offering: Offering, count: int, places: Sequence[tuple[str, ...]] = ()) -> int:
        """Buy nodes; return how many come. Fewer than asked: the offering is short.

        `places`: what each of them is for, where that is known.
        """
        if self.market.short(offering, self.now):
            self.tally.failures += 1
            return 0
        for number in range(count):
            machine = self._machine(offering)
            machine.covers = places[number] if number < len(places) else ()
            self.tally.launches += 1
            ready = self.now + self.market.boot(offering, self.now, number)
            self._push(ready, "ready", machine.name)
        self.changed_at = self.now
        return count

    def remove(self, name: str) -> None:
        """Give a node back. What still runs there starts from nothing somewhere else."""
        machine = self.machines[name]
        for work in list(machine.work):
            self.evict(work)
        self._pay(machine)
        del self.machines[name]
        if machine.ready_at is not None:
            self.view.remove(name)
            self._tiers = None
        self.tally.removals += 1
        self._full.clear()

    def cordon(self, name: str) -> None:
        """Let no new work onto a node."""
        machine = self.machines[name]
        if machine.phase is NodePhase.READY:
            machine.phase = NodePhase.DRAINING
            machine.told = None
            self._tiers = None
            self.view.put(replace(machine.offering.named(name), health=Health.CORDONED))

    def evict(self, work: str) -> None:
        """Stop a sandbox; it waits at the head of the queue and starts from nothing."""
        one = self.live[work]
        done = self.now - one.started_at
        self.tally.lost_core_h += one.work.cores * done / HOUR
        self.tally.evictions += 1
        self._stop(one)
        one.left = one.work.seconds
        self._wait_first(one)

    def rest(self, work: str) -> None:
        """Pause a sandbox and save it; it waits at the head of the queue and goes on from there."""
        one = self.live[work]
        left = one.left - (self.now - one.started_at)
        self._stop(one)
        one.left = max(0.0, left) + (GPU_MOVE_S if one.work.gpus else MOVE_S)
        self._charge_move(one)
        self._wait_first(one)

    def move(self, work: str, node: str, devices: tuple[str, ...], under: str = "") -> bool:
        """Move a sandbox to a node, with a pause. False: it has no room there; it stays."""
        one = self.live[work]
        left = max(0.0, one.left - (self.now - one.started_at))
        old = Decision(work, one.node, one.devices)
        self.view.release(work)
        try:
            self.view.book(one.request, Decision(work, node, devices))
        except OverCapacityError:
            self.view.book(one.request, old, force=True)
            return False
        self._leave(one)
        one.left = left + (GPU_MOVE_S if one.work.gpus else MOVE_S)
        self._charge_move(one)
        one.moved_at, one.moved_under = self.now, under
        self._begin(one, node, devices)
        return True

    def fleet_nodes(self) -> tuple[FleetNode, ...]:
        """Return the nodes as planning sees them."""
        return tuple(self._told(machine) for machine in self.machines.values())

    # what happens by itself

    def _machine(self, offering: Offering) -> Machine:
        self._number += 1
        name = f"{offering.instance_type}-{offering.market.value}-{self._number:06d}"
        machine = self.machines[name] = Machine(name, offering, self.now)
        return machine

    def _ready(self, machine: Machine) -> None:
        machine.phase, machine.ready_at = NodePhase.READY, self.now
        self._tiers = None
        machine.idle_since, machine.told, machine.covers = self.now, None, ()
        self.view.put(machine.offering.named(machine.name))
        self._full.clear()
        self._fresh, self.changed_at = True, self.now

    def _push(self, at: float, kind: str, name: str, turn: int = 0) -> None:
        self.serial += 1
        heappush(self._events, (at, self.serial, kind, name, turn))

    def _happen(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            at, _, kind, name, turn = heappop(self._events)
            if kind == "end":
                one = self.live.get(name)
                if one is not None and one.node and one.turn == turn:
                    self._finish(one, at)
            elif name in self.machines:
                machine = self.machines[name]
                if kind == "ready":
                    self._ready(machine)
                else:
                    self.remove(name)
                    self._fresh = True

    def _arrive(self, work: Work) -> None:
        self.live[work.id] = Live(work, self.prepare(work.request), work.seconds, work.at)
        self.waiting[work.id] = None
        self._fresh, self.changed_at = True, self.now

    def _finish(self, one: Live, at: float) -> None:
        self._stop(one)
        del self.live[one.work.id]
        if self.window[0] <= at < self.window[1]:
            self.tally.delivered_core_h += one.work.cores * one.work.seconds / HOUR
            self.tally.delivered_gpu_h += one.work.gpus * one.work.seconds / HOUR
        if one.work.gpus:
            self.mix.ended()
        self._fresh, self.changed_at = True, self.now

    def _interrupt(self) -> None:
        if self.now % LOOK_S:
            return
        for machine in list(self.machines.values()):
            ready = machine.ready_at
            if machine.notice_at is not None or ready is None:
                continue
            if self.market.interrupted(machine.offering, machine.name, ready, self.now):
                self.tally.interruptions += 1
                machine.notice_at, machine.told = self.now, None
                self._tiers = None
                self._push(self.now + NOTICE_S, "taken", machine.name)
                self.rules.noticed(self, machine)

    def _start_waiting(self) -> None:
        """Place what waits, in order, the cheaper tier of nodes first.

        A class that finds no room is not asked again before something changes.
        """
        self._fresh = False
        asked = [self.live[name] for name in self.waiting]
        for kind, group in groupby(asked, key=lambda one: self._kind(one.request)):
            members = list(group)
            if kind in self._full:
                continue
            learn = True
            for rows in self._rows():
                requests = [one.request for one in members]
                found = place_class(
                    self.view, requests, rows, mix=self.mix, learn=learn, explain=False
                )
                learn = False
                for one, decision in zip(members, found, strict=True):
                    if decision.node:
                        del self.waiting[one.work.id]
                        self._begin(one, decision.node, decision.devices)
                members = [one for one in members if not one.node]
                if not members:
                    break
            else:
                self._full.add(kind)

    def _rows(self) -> list[Ints]:
        """Return the rows of ready nodes by market, what is paid for anyway first."""
        if self._tiers is None:
            names: dict[Market, list[str]] = {market: [] for market in TIERS}
            for machine in self.machines.values():
                if machine.phase is NodePhase.READY and machine.notice_at is None:
                    names[machine.offering.market].append(machine.name)
            self._tiers = [rows_of(self.view, names[one]) for one in TIERS if names[one]]
        return self._tiers

    @staticmethod
    def _kind(request: Request) -> object:
        resources = request.resources
        return (
            resources.cpu_milli,
            resources.memory_bytes,
            resources.gpu_count,
            resources.gpu_milli,
            request.gpu_model,
            request.tolerations,
        )

    def _begin(self, one: Live, node: str, devices: tuple[str, ...]) -> None:
        machine = self.machines[node]
        one.node, one.devices, one.started_at = node, devices, self.now
        one.turn += 1
        machine.work[one.work.id] = None
        machine.idle_since, machine.told = None, None
        if one.first_start is None:
            one.first_start = self.now
            if self.window[0] <= one.work.at < self.window[1]:
                wait = max(0.0, self.now - one.work.at)
                self.tally.waits.setdefault(one.work.kind, []).append(wait)
        self._push(self.now + one.left, "end", one.work.id, one.turn)

    def _leave(self, one: Live) -> None:
        machine = self.machines[one.node]
        del machine.work[one.work.id]
        machine.told = None
        if not machine.work:
            machine.idle_since = self.now
        one.node = ""

    def _stop(self, one: Live) -> None:
        self.view.release(one.work.id)
        self._leave(one)
        self._full.clear()

    def _wait_first(self, one: Live) -> None:
        one.since = self.now
        self.waiting = {one.work.id: None, **self.waiting}
        self._fresh, self.changed_at = True, self.now

    def _charge_move(self, one: Live) -> None:
        self.tally.moves += 1
        if self.window[0] <= self.now < self.window[1]:
            size = Decimal(one.request.resources.memory_bytes) / (1 << 30)
            size += Decimal(str(one.work.gpus)) * CARD_GIB
            cost = size * (TRANSFER_PER_GIB + SNAPSHOT_PER_GIB)
            self.tally.bill["moves"] = self.tally.bill.get("moves", Decimal(0)) + cost

    def _pay(self, machine: Machine) -> None:
        offering = machine.offering
        begin = machine.requested_at
        end = max(self.now, begin + offering.minimum_bill_seconds) if offering.cloud else self.now
        first, last = max(begin, self.window[0]), min(end, self.window[1])
        if last <= first:
            return
        hours = Decimal(str(round((last - first) / HOUR, 9)))
        kind = "GPU" if offering.node.devices else "CPU"
        bill, line = self.tally.bill, f"{offering.market.value} {kind}"
        bill[line] = bill.get(line, Decimal(0)) + hours * offering.price_per_hour

    def _told(self, machine: Machine) -> FleetNode:
        if machine.told is None:
            machine.told = FleetNode(
                machine.name,
                machine.offering,
                machine.phase,
                machine.requested_at,
                ready_at=machine.ready_at,
                idle_since=machine.idle_since,
                spot_notice_at=machine.notice_at,
                work=tuple(self._running(self.live[name]) for name in machine.work),
                covers=machine.covers,
            )
        return machine.told

    def _running(self, one: Live) -> Running:
        return Running(
            one.work.id,
            one.request,
            one.first_start or one.started_at,
            one.request.task_class,
            movable=one.work.interruptible or self.move_all,
            last_moved_at=one.moved_at,
            moved_under=one.moved_under,
            devices=one.devices,
        )

    def _sample(self) -> None:
        if self.now - self._sampled < LOOK_S:
            return
        self._sampled = self.now
        rate = sum(float(one.offering.price_per_hour) for one in self.machines.values())
        self.tally.curve.append((self.now, len(self.machines), len(self.waiting), rate))
