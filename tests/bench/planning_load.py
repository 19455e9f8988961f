"""Fleets, offerings and waiting work of realistic mixes, for the bench of node planning.

Offerings: 14 shapes with 1, 4 and 8 cards or none, on-demand and spot, prices as on a list. Work:
131 classes drawn by weight, sharing of cards and whole cards and CPU alone, or bursts of many equal
small sandboxes.
"""

from decimal import Decimal
from random import Random

from dsec.api.experiment import TaskClass
from dsec.api.sandbox import GpuMode, Resources
from dsec.api.scaling import Market
from dsec.placement.accelerators import Accelerator
from dsec.placement.request import Node, Request
from dsec.scaling.nodes.offerings import FleetNode, NodePhase, Offering, Running
from dsec.scaling.nodes.state import FleetState, Pending

GIB = 1 << 30
NOW = 1_800_000_000.0
MODES = (GpuMode.WHOLE, GpuMode.SHARES)
SHAPES: tuple[tuple[str, int, int, str, int, str], ...] = (
    ("c8", 8, 32, "", 0, "0.384"),
    ("c16", 16, 64, "", 0, "0.768"),
    ("c32", 32, 128, "", 0, "1.536"),
    ("c64", 64, 256, "", 0, "3.072"),
    ("c96", 96, 384, "", 0, "4.608"),
    ("c128", 128, 512, "", 0, "6.144"),
    ("t1", 8, 32, "t4", 1, "0.81"),
    ("t1b", 16, 64, "t4", 1, "1.05"),
    ("a1", 24, 96, "a10", 1, "1.62"),
    ("a1b", 32, 128, "a10", 1, "2.01"),
    ("t4", 48, 192, "t4", 4, "4.60"),
    ("a4", 96, 384, "a10", 4, "7.10"),
    ("t8", 96, 384, "t4", 8, "11.00"),
    ("a8", 192, 768, "a10", 8, "13.35"),
)
"""(name, cores, GiB, model, cards, price per hour)."""


def shape(name: str, cores: int, gib: int, model: str, cards: int) -> Node:
    """Return the description of one make of node."""
    devices = tuple(Accelerator(f"card-{n}", model, 16 * GIB, MODES) for n in range(cards))
    labels = (("gpu-type", model),) if model else ()
    return Node(name, cores * 1000, gib * GIB, pids=1 << 20, devices=devices, labels=labels)


def offerings(zones: int = 1) -> tuple[Offering, ...]:
    """Return all shapes on-demand and on spot at 0.4 of the price, in some zones."""
    return tuple(
        Offering(
            "cloud",
            "simulated",
            name,
            "east",
            f"east-{zone}",
            market,
            shape(name, cores, gib, model, cards),
            Decimal(price) * (Decimal("0.4") if market is Market.SPOT else 1),
            "USD",
        )
        for name, cores, gib, model, cards, price in SHAPES
        for market in (Market.ON_DEMAND, Market.SPOT)
        for zone in range(zones)
    )


def classes(count: int, seed: int) -> list[tuple[Resources, TaskClass, float]]:
    """Return classes of work with weights: two thirds parts of cards or whole cards."""
    random = Random(seed)  # noqa: S311  a benchmark, no secret
    found = []
    for _ in range(count):
        kind = random.choices(("part", "whole", "many", "cpu"), (35, 40, 5, 20))[0]
        gpus = {"part": 1, "whole": 1, "many": random.choice((2, 4, 8)), "cpu": 0}[kind]
        cores = random.choice((2, 4, 6, 8, 10, 12, 16)) * max(1, gpus if kind == "many" else 1)
        resources = Resources(
            cpu_milli=cores * 1000,
            memory_bytes=cores * random.choice((2, 3, 4)) * GIB,
            gpu_count=gpus,
            gpu_milli=random.choice((100, 250, 330, 500, 800)) if kind == "part" else 0,
        )
        class_ = TaskClass.PREEMPTIBLE if random.random() < 0.1 else TaskClass.GUARANTEED
        found.append((resources, class_, random.paretovariate(1.1)))
    return found


def waiting(count: int, seed: int, *, rollouts: float = 0.0) -> tuple[Pending, ...]:
    """Return waiting requests of 131 classes; a part of them equal small preemptible ones."""
    random = Random(seed)  # noqa: S311  a benchmark, no secret
    mix = classes(131, seed)
    burst = Resources(cpu_milli=4000, memory_bytes=4 * GIB)
    weights = [weight for _, _, weight in mix]
    found = []
    for number in range(count):
        resources, class_ = burst, TaskClass.PREEMPTIBLE
        if random.random() >= rollouts:
            resources, class_, _ = random.choices(mix, weights)[0]
        request = Request(f"w{number}", resources, task_class=class_)
        found.append(Pending(request, NOW - 120 - random.random() * 60, 10.0))
    return tuple(found)


def fleet(count: int, seed: int, each: int = 8) -> tuple[FleetNode, ...]:
    """Return ready on-demand CPU nodes, well filled, of which every tenth still boots."""
    random = Random(seed)  # noqa: S311  a benchmark, no secret
    makes = [one for one in offerings() if not one.node.devices and one.market is Market.ON_DEMAND]
    found = []
    for number in range(count):
        offering = random.choice(makes)
        booting = number % 10 == 0
        part = Resources(
            cpu_milli=offering.node.cpu_milli // (each + 1),
            memory_bytes=offering.node.memory_bytes // (each + 1),
        )
        work = tuple(
            Running(
                f"r{number}-{one}",
                Request(f"r{number}-{one}", part),
                NOW - 3600,
                TaskClass.GUARANTEED,
                movable=True,
            )
            for one in range(0 if booting else random.randint(each // 2, each))
        )
        phase = NodePhase.BOOTING if booting else NodePhase.READY
        ready = None if booting else NOW - 3000
        found.append(FleetNode(f"n{number}", offering, phase, NOW - 60, ready, work=work))
    return tuple(found)


def state(nodes: int, pending: int, seed: int, *, rollouts: float = 0.0) -> FleetState:
    """Return a fleet with waiting work."""
    return FleetState(
        NOW, fleet(nodes, seed), waiting(pending, seed, rollouts=rollouts), offerings(2)
    )
