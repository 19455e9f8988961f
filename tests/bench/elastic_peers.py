"""The rules of other autoscalers, imitated from their documentation: what bench-elastic pairs with.

Each gets what it would have in good hands: owned machines first, bin-packing placement, CPU work
kept off GPU nodes by a taint, spot for work that consents.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from dsec.api.scaling import Market
from dsec.placement.request import Request
from dsec.scaling.nodes.offerings import NodePhase, Offering, tolerant
from dsec.sim.elastic.fleet import Fleet, Machine
from dsec.sim.elastic.market import tainted

GPU_TAINT = "gpu"
WHOLE = 1000


def kept_off(request: Request) -> Request:
    """Return a request as peers place it: GPU work tolerates the taint of GPU nodes."""
    request = tolerant(request)
    if not request.resources.gpu_count:
        return request
    return replace(request, tolerations=(*request.tolerations, GPU_TAINT))


def with_taint(offering: Offering) -> Offering:
    """Return an offering whose GPU nodes keep CPU work off."""
    return tainted(offering, GPU_TAINT) if offering.node.devices else offering


@dataclass(slots=True)
class Bin:
    """What is free on a node that is not there yet: milli-cores, bytes, milli of each card."""

    cpu: int
    memory: int
    cards: list[int]
    work: list[str] = field(default_factory=list)
    name: str = ""

    @classmethod
    def of(cls, offering: Offering) -> "Bin":
        """Return an empty node."""
        node = offering.node
        return cls(node.cpu_milli, node.memory_bytes, [WHOLE] * len(node.devices))

    def take(self, request: Request) -> bool:
        """Put a request in. False: it does not fit, and nothing has changed."""
        asked = request.resources
        if asked.cpu_milli > self.cpu or asked.memory_bytes > self.memory:
            return False
        if asked.gpu_count:
            part = asked.gpu_milli or WHOLE
            # the fullest card that still has room
            fitting = sorted((free, n) for n, free in enumerate(self.cards) if free >= part)
            if len(fitting) < asked.gpu_count:
                return False
            for _, n in fitting[: asked.gpu_count]:
                self.cards[n] -= part
        self.cpu -= asked.cpu_milli
        self.memory -= asked.memory_bytes
        return True


@dataclass(slots=True)
class Nominations:
    """Which waiting work is promised to which nodes that boot."""

    of: dict[str, str] = field(default_factory=dict)

    def uncovered(self, fleet: Fleet) -> list[str]:
        """Return what waits and is promised to no node that is still coming."""
        self.of = {
            work: node
            for work, node in self.of.items()
            if work in fleet.waiting
            and node in fleet.machines
            and fleet.machines[node].phase is NodePhase.BOOTING
        }
        return [work for work in fleet.waiting if work not in self.of]


def by_size(fleet: Fleet, names: Sequence[str]) -> list[str]:
    """Return work in decreasing size: GPUs, CPU, memory."""

    def size(name: str) -> tuple[float, int, int]:
        work = fleet.live[name].work
        asked = work.request.resources
        return (-work.gpus, -asked.cpu_milli, -asked.memory_bytes)

    return sorted(names, key=size)


@dataclass(slots=True)
class Rooms:
    """What is free on the ready nodes; work is put where it would go, and taken out again."""

    fleet: Fleet
    bins: dict[str, Bin] = field(default_factory=dict)
    taints: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count all nodes once; nothing is moved to an empty one of the cloud."""
        for machine in self.fleet.machines.values():
            usable = machine.phase is NodePhase.READY and machine.notice_at is None
            if usable and (machine.work or not machine.offering.cloud):
                room = Bin.of(machine.offering)
                for name in by_size(self.fleet, list(machine.work)):
                    room.take(self.fleet.live[name].request)
                self.bins[machine.name] = room
                described = machine.offering.named(machine.name)
                self.taints[machine.name] = frozenset(described.taints)

    def empty(self, machine: Machine) -> bool:
        """Put the work of a node onto the others. False: not all fits, and nothing has changed."""
        mine = self.bins.pop(machine.name, None)
        touched: dict[str, Bin] = {}
        passed: dict[object, int] = {}
        names = list(self.bins)
        for work in by_size(self.fleet, list(machine.work)):
            request = self.fleet.live[work].request
            asked = request.resources
            kind = (asked.cpu_milli, asked.memory_bytes, asked.gpu_count, asked.gpu_milli)
            for number in range(passed.get(kind, 0), len(names)):
                name = names[number]
                room = self.bins[name]
                if self.taints[name] <= set(request.tolerations) and _fits(room, request):
                    if name not in touched:
                        touched[name] = replace(room, cards=list(room.cards))
                    room.take(request)
                    passed[kind] = number
                    break
            else:
                self.bins.update(touched)
                if mine is not None:
                    self.bins[machine.name] = mine
                return False
        return True


@dataclass(slots=True)
class Karpenter:
    """Batches for 10 s, packs first-fit decreasing onto nodes that keep every type that still fits.

    `spot`: spot for work that consents, on demand where spot is short (for 3 min). `evicting`:
    nodes whose pods fit elsewhere are deleted, at most a tenth at once, and pods start anew; off:
    only empty nodes go (after 30 s).
    """

    offerings: tuple[Offering, ...]
    spot: bool = True
    evicting: bool = True
    batch_s: float = 10.0
    empty_s: float = 30.0
    every_s: float = 60.0
    settled_s: float = 0.0
    """consolidateAfter: a node is left alone so long after its last start."""
    short_s: float = 180.0
    promised: Nominations = field(default_factory=Nominations)
    unavailable: dict[str, float] = field(default_factory=dict)
    began: float | None = None

    def step(self, fleet: Fleet) -> None:
        """Buy for what waits; delete what is not needed."""
        waiting = self.promised.uncovered(fleet)
        if waiting and self.began is None:
            self.began = fleet.now
        if not waiting:
            self.began = None
        elif self.began is not None and fleet.now - self.began >= self.batch_s - 5:
            self._provision(fleet, waiting)
            self.began = None
        self._delete_empty(fleet)
        if self.evicting and not fleet.now % self.every_s and not fleet.waiting:
            self._consolidate(fleet)

    def noticed(self, fleet: Fleet, machine: Machine) -> None:
        """Taint, drain, and let the pods start anew elsewhere."""
        fleet.cordon(machine.name)
        for name in list(machine.work):
            fleet.evict(name)

    def _provision(self, fleet: Fleet, waiting: Sequence[str]) -> None:
        groups: dict[bool, list[str]] = {}
        for name in by_size(fleet, waiting):
            consents = self.spot and fleet.live[name].work.interruptible
            groups.setdefault(consents, []).append(name)
        for consents, names in groups.items():
            usable = [
                one
                for one in self.offerings
                if (consents or one.market is not Market.SPOT)
                and self.unavailable.get(one.key, 0.0) <= fleet.now
            ]
            self._pack(fleet, names, usable)

    def _pack(self, fleet: Fleet, names: Sequence[str], usable: Sequence[Offering]) -> None:
        packs: list[tuple[list[tuple[Offering, Bin]], list[str]]] = []
        reached: dict[object, int] = {}
        for name in names:
            request = fleet.live[name].request
            asked = request.resources
            kind = (asked.cpu_milli, asked.memory_bytes, asked.gpu_count, asked.gpu_milli)
            gpu = bool(asked.gpu_count)
            # one size after the other: what had no room for the last one has none for the next
            for number in range(reached.get(kind, 0), len(packs)):
                types, inside = packs[number]
                left = [pair for pair in types if _fits(pair[1], request)]
                if left and bool(left[0][1].cards) == gpu:
                    for _, room in left:
                        room.take(request)
                    packs[number] = (left, inside)
                    inside.append(name)
                    reached[kind] = number
                    break
            else:
                fresh = [(one, Bin.of(one)) for one in usable if bool(one.node.devices) == gpu]
                left = [pair for pair in fresh if pair[1].take(request)]
                if left:
                    reached[kind] = len(packs)
                    packs.append((left, [name]))
        for types, inside in packs:
            for offering in sorted((one for one, _ in types), key=lambda one: one.price_per_hour):
                known = set(fleet.machines)
                if fleet.buy(offering, 1):
                    (node,) = set(fleet.machines) - known
                    self.promised.of.update(dict.fromkeys(inside, node))
                    break
                self.unavailable[offering.key] = fleet.now + self.short_s

    def _delete_empty(self, fleet: Fleet) -> None:
        for machine in list(fleet.machines.values()):
            idle = machine.idle_since
            if (
                machine.offering.cloud
                and idle is not None
                and not machine.work
                and fleet.now - max(idle, machine.ready_at or 0.0) >= self.empty_s
                and machine.notice_at is None
                and machine.name not in self.promised.of.values()
            ):
                fleet.remove(machine.name)

    def _consolidate(self, fleet: Fleet) -> None:
        ready = [
            one
            for one in fleet.machines.values()
            if one.offering.cloud and one.phase is NodePhase.READY and one.work
        ]
        ready = [one for one in ready if self._settled(fleet, one)]
        budget, rooms = max(1, len(ready) // 10), Rooms(fleet)
        # cheap to disturb first
        for machine in sorted(ready, key=lambda one: (len(one.work), one.name)):
            if budget == 0:
                break
            if not all(fleet.live[name].work.interruptible for name in machine.work):
                continue
            if rooms.empty(machine):
                fleet.remove(machine.name)
                budget -= 1

    def _settled(self, fleet: Fleet, machine: Machine) -> bool:
        """Return whether nothing has started on a node for the time of consolidateAfter."""
        newest = max((fleet.live[name].started_at for name in machine.work), default=0.0)
        return fleet.now - max(newest, machine.ready_at or 0.0) >= self.settled_s


def _fits(bin_: Bin, request: Request) -> bool:
    asked = request.resources
    if asked.cpu_milli > bin_.cpu or asked.memory_bytes > bin_.memory:
        return False
    part = asked.gpu_milli or WHOLE
    return sum(free >= part for free in bin_.cards) >= asked.gpu_count


@dataclass(slots=True)
class ClusterAutoscaler:
    """One group a type; every 10 s the group that wastes least grows; unneeded for 10 min goes.

    `evicting`: a node used below one half whose pods fit elsewhere is unneeded, too.
    """

    offerings: tuple[Offering, ...]
    spot: bool = True
    evicting: bool = True
    every_s: float = 10.0
    unneeded_s: float = 600.0
    backoff_s: float = 300.0
    threshold: float = 0.5
    promised: Nominations = field(default_factory=Nominations)
    unavailable: dict[str, float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)

    def step(self, fleet: Fleet) -> None:
        """Grow one group for what waits; take what has been unneeded for long."""
        if fleet.now % self.every_s:
            return
        waiting = self.promised.uncovered(fleet)
        for consents in (True, False):
            names = [
                name
                for name in waiting
                if (self.spot and fleet.live[name].work.interruptible) is consents
            ]
            if names:
                self._grow(fleet, by_size(fleet, names), consents=consents)
        if not fleet.now % 60:
            self._shrink(fleet)

    def noticed(self, fleet: Fleet, machine: Machine) -> None:
        """The node goes, its pods start anew elsewhere."""
        fleet.cordon(machine.name)
        for name in list(machine.work):
            fleet.evict(name)

    def _grow(self, fleet: Fleet, names: Sequence[str], *, consents: bool) -> None:
        best: tuple[float, Decimal, Offering, list[list[str]]] | None = None
        gpu = bool(fleet.live[names[0]].work.gpus)
        for offering in self.offerings:
            spot = offering.market is Market.SPOT
            if spot != (consents and self.spot) and not (consents and not spot):
                continue
            if bool(offering.node.devices) != gpu:
                continue
            if self.unavailable.get(offering.key, 0.0) > fleet.now:
                continue
            packs = _packed(fleet, names, offering)
            if not packs:
                continue
            cores = sum(fleet.live[n].work.cores for pack in packs for n in pack)
            whole = len(packs) * offering.node.cpu_milli / 1000
            gpus = sum(fleet.live[n].work.gpus for pack in packs for n in pack)
            cards = len(packs) * len(offering.node.devices)
            waste = (1 - cores / whole) + ((1 - gpus / cards) if cards else 0.0)
            key = (waste, offering.price_per_hour / offering.node.cpu_milli, offering, packs)
            if best is None or key[:2] < best[:2]:
                best = key
        if best is None:
            return
        _, _, offering, packs = best
        for pack in packs:
            known = set(fleet.machines)
            if not fleet.buy(offering, 1):
                self.unavailable[offering.key] = fleet.now + self.backoff_s
                break
            (node,) = set(fleet.machines) - known
            self.promised.of.update(dict.fromkeys(pack, node))

    def _shrink(self, fleet: Fleet) -> None:
        promised, rooms = set(self.promised.of.values()), Rooms(fleet)
        for machine in list(fleet.machines.values()):
            if not machine.offering.cloud or machine.phase is not NodePhase.READY:
                continue
            if machine.name in promised or not self._unneeded(fleet, machine):
                self.since.pop(machine.name, None)
                continue
            first = self.since.setdefault(machine.name, fleet.now)
            if fleet.now - first >= self.unneeded_s and (not machine.work or rooms.empty(machine)):
                fleet.remove(machine.name)

    def _unneeded(self, fleet: Fleet, machine: Machine) -> bool:
        if not machine.work:
            return True
        if not self.evicting:
            return False
        work = [fleet.live[name].work for name in machine.work]
        if not all(one.interruptible for one in work):
            return False
        node = machine.offering.node
        used = sum(one.cores for one in work) * 1000 / node.cpu_milli
        if node.devices:
            used = sum(one.gpus for one in work) / len(node.devices)
        return used < self.threshold


def _packed(fleet: Fleet, names: Sequence[str], offering: Offering) -> list[list[str]]:
    """Return the work of each node of an offering, first fit; what fits on none is left out."""
    bins: list[tuple[Bin, list[str]]] = []
    first_open = 0
    for name in names:
        request = fleet.live[name].request
        for bin_, inside in bins[first_open:]:
            if bin_.take(request):
                inside.append(name)
                break
        else:
            fresh = Bin.of(offering)
            if fresh.take(request):
                bins.append((fresh, [name]))
        while first_open < len(bins) - 1 and bins[first_open][0].cpu < 1000:
            first_open += 1
    return [inside for _, inside in bins]


@dataclass(slots=True)
class Static:
    """A fleet that never changes."""

    def step(self, fleet: Fleet) -> None:
        """Do nothing."""

    def noticed(self, fleet: Fleet, machine: Machine) -> None:
        """Static machines are not spot."""
