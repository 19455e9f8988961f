"""Clusters and requests that use every filter of placement, and a checker that knows none of them.

The cluster: racks in zones, CPU nodes, nodes with small cards and with eight large ones, a pool of
each kind, some nodes tainted, some with watermarks, each with some images and data sets. Requests
select on labels, tolerate taints, name pools, stages, images, data sets and models. The checker
replays decisions in plain arithmetic, from descriptions alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from dsec.api.experiment import TaskClass
from dsec.api.sandbox import GpuMode, Resources
from dsec.placement.accelerators import Accelerator
from dsec.placement.request import Decision, Node, PoolKind, Request

GIB = 1 << 30
IMAGES = tuple(f"registry.internal/image-{number}@sha256:{number:064x}" for number in range(12))
DATASETS = ("games", "maths", "code", "web")
MODES = (GpuMode.WHOLE, GpuMode.SHARES)
LARGE, SMALL = "a100", "t4"
BATCH_MEMORY = 4 * GIB


def cluster(count: int, seed: int = 1) -> list[Node]:
    """Return nodes of three makes, the same for the same seed."""
    random = Random(seed)  # noqa: S311  a benchmark, no secret
    return [_node(number, random) for number in range(count)]


def _node(number: int, random: Random) -> Node:
    make = random.choices(("cpu", SMALL, LARGE), (3, 3, 4))[0]
    gpus = {"cpu": 0, SMALL: 2, LARGE: 8}[make]
    memory = {"cpu": 0, SMALL: 16, LARGE: 80}[make] * GIB
    cores, gib = {"cpu": (64, 256), SMALL: (96, 384), LARGE: (128, 1024)}[make]
    kind = {"cpu": PoolKind.CPU, SMALL: PoolKind.MIXED, LARGE: PoolKind.ANY}[make]
    zone = number * 4 // 5000
    return Node(
        f"node-{number}",
        cores * 1000,
        gib * GIB,
        disk_bytes=4 << 40,
        disk_iops=200_000,
        disk_bytes_per_second=4 << 30,
        devices=tuple(Accelerator(f"gpu-{number}-{n}", make, memory, MODES) for n in range(gpus)),
        labels=(("gpu-type", make), ("region", "east" if zone % 2 else "west")),
        taints=("team=a",) if random.random() < 0.1 else (),
        pool=f"pool-{make}",
        kind=kind,
        features=frozenset({"erofs", "pvc"} if random.random() < 0.9 else {"erofs"}),
        rack=f"rack-{number // 40}",
        zone=f"zone-{zone}",
        region="east" if zone % 2 else "west",
        images=frozenset(random.sample(IMAGES, 6)),
        datasets=tuple((name, random.randrange(0, 101, 10)) for name in DATASETS[:2]),
        price_micro=(500_000, 2_000_000, 20_000_000)[("cpu", SMALL, LARGE).index(make)],
        safe_percent=80,
        limit_percent=95,
        cpus=tuple(range(cores)),
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of request: cores, GiB, cards, milli of each, and what it wishes for."""

    cores: int
    gib: int
    gpus: int = 0
    milli: int = 1000
    weight: int = 1
    wishes: tuple[tuple[str, object], ...] = ()


SHAPES = (
    Shape(2, 8, weight=25, wishes=(("stage", "exploration"), ("image", IMAGES[0]))),
    Shape(4, 16, weight=10, wishes=(("labels", (("region", "east"),)), ("image", IMAGES[1]))),
    Shape(8, 24, weight=6, wishes=(("tolerations", ("team",)), ("disk", 1000))),
    Shape(4, 16, 1, 250, 12, (("gpu_model", f"{LARGE}|{SMALL}"), ("image", IMAGES[2]))),
    Shape(6, 24, 1, 500, 12, (("pools", ("pool-a100", "pool-t4")), ("datasets", ("games",)))),
    Shape(8, 32, 1, 810, 8, (("stage", "evaluation"), ("low", True))),
    Shape(8, 48, 1, 1000, 12, (("stage", "training"), ("image", IMAGES[3]))),
    Shape(24, 128, 2, 1000, 4, (("features", ("pvc",)), ("stage", "training"))),
    Shape(48, 256, 4, 1000, 2, (("gpu_model", LARGE), ("stage", "training"))),
    Shape(96, 512, 8, 1000, 2, (("gpu_model", LARGE), ("datasets", ("games", "maths")))),
)


def request(name: str, shape: Shape, resources: Resources | None = None) -> Request:
    """Return one request of a shape."""
    wishes = dict(shape.wishes)
    low = bool(wishes.pop("low", False))
    wishes.pop("disk", None)
    return Request(
        name,
        resources or resources_of(shape),
        tenant="team",
        task_class=TaskClass.PAUSABLE if low else TaskClass.GUARANTEED,
        **wishes,  # type: ignore[arg-type]  # fields of Request by name
    )


def resources_of(shape: Shape, cpu: float = 1.0, memory: float = 1.0) -> Resources:
    """Return a shape's resources, CPU and memory times those factors."""
    iops = dict(shape.wishes).get("disk", 0)
    return Resources(
        cpu_milli=int(shape.cores * 1000 * cpu),
        memory_bytes=int(shape.gib * GIB * memory),
        gpu_count=shape.gpus,
        gpu_milli=shape.milli if 0 < shape.milli < 1000 and shape.gpus else 0,
        disk_iops=int(str(iops)),
        disk_bytes_per_second=10_000 * int(str(iops)),
    )


def unique(count: int, seed: int, prefix: str = "u") -> list[Request]:
    """Return requests of which no two are equal: CPU and memory differ by up to 3 %."""
    random = Random(seed)  # noqa: S311  a benchmark, no secret
    weights = [shape.weight for shape in SHAPES]
    found = []
    for number in range(count):
        shape = random.choices(SHAPES, weights)[0]
        factors = random.uniform(0.97, 1.03), random.uniform(0.97, 1.03)
        found.append(request(f"{prefix}{number}", shape, resources_of(shape, *factors)))
    return found


def batches(count: int, size: int, seed: int, prefix: str = "b") -> list[list[Request]]:
    """Return batches of equal requests, of shapes drawn by their weight."""
    random = Random(seed)  # noqa: S311  a benchmark, no secret
    weights = [shape.weight for shape in SHAPES]
    found = []
    for number in range(count):
        shape = random.choices(SHAPES, weights)[0]
        resources = resources_of(shape)
        names = (f"{prefix}{number}-{one}" for one in range(size))
        found.append([request(name, shape, resources) for name in names])
    return found


@dataclass(slots=True)
class _Used:
    cpu: int = 0
    memory: int = 0
    disk: int = 0
    pids: int = 0
    sandboxes: int = 0
    iops: int = 0
    bandwidth: int = 0
    milli: dict[str, int] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)


def violations(
    nodes: Sequence[Node], requests: Sequence[Request], decisions: Sequence[Decision]
) -> Iterator[str]:
    """Replay decisions in their order and say what was not allowed, one line each."""
    by_name = {node.name: node for node in nodes}
    used = {node.name: _Used() for node in nodes}
    seen: set[str] = set()
    for asked, decision in zip(requests, decisions, strict=True):
        if asked.id != decision.id or asked.id in seen:
            yield f"{asked.id}: answered as {decision.id}"
        seen.add(asked.id)
        if not decision.node:
            if not decision.refusals:
                yield f"{asked.id}: refused without a reason"
            continue
        node = by_name[decision.node]
        for wrong in (*_ineligible(node, asked), *_over(node, used[node.name], asked, decision)):
            yield f"{asked.id} on {node.name}: {wrong}"


def _ineligible(node: Node, asked: Request) -> Iterator[str]:
    labels = dict(node.labels)
    for key, value in asked.labels:
        if labels.get(key) != value:
            yield f"label {key}"
    for taint in node.taints:
        if taint.split("=")[0] not in asked.tolerations:
            yield f"taint {taint}"
    if asked.pools and node.pool not in asked.pools:
        yield "pool"
    if not set(asked.features) <= node.features:
        yield "features"
    if asked.gpu_model and labels["gpu-type"] not in asked.gpu_model.split("|"):
        yield "model"
    if node.kind is PoolKind.CPU and asked.resources.gpu_count:
        yield "GPU work in a CPU pool"


def _over(node: Node, used: _Used, asked: Request, decision: Decision) -> Iterator[str]:
    """Book one decision and say what it goes beyond."""
    want = asked.resources
    full = 100 * max(used.cpu / node.cpu_milli, used.memory / node.memory_bytes)
    if full >= (95 if asked.task_class is TaskClass.PAUSABLE else 80):
        yield f"watermark at {full:.0f} %"
    used.cpu += want.cpu_milli
    used.memory += want.memory_bytes
    used.disk += want.disk_bytes
    used.pids += want.pids
    used.sandboxes += 1
    used.iops += want.disk_iops
    used.bandwidth += want.disk_bytes_per_second
    limits = (
        ("cpu", used.cpu, node.cpu_milli),
        ("memory", used.memory, node.memory_bytes),
        ("disk", used.disk, node.disk_bytes),
        ("pids", used.pids, node.pids),
        ("density", used.sandboxes, node.sandboxes),
        ("iops", used.iops, node.disk_iops),
        ("bandwidth", used.bandwidth, node.disk_bytes_per_second),
    )
    for name, value, most in limits:
        if value > most:
            yield f"{name}: {value} of {most}"
    if len(set(decision.devices)) != want.gpu_count:
        yield f"{len(set(decision.devices))} cards for {want.gpu_count}"
    for device in decision.devices:
        if all(card.uuid != device for card in node.devices):
            yield f"no card {device}"
        if want.gpu_milli:
            used.milli[device] = used.milli.get(device, 0) + want.gpu_milli
            if device in used.whole or used.milli[device] > 1000:
                yield f"{device}: {used.milli[device]} milli"
        elif device in used.whole or device in used.milli:
            yield f"{device} twice"
        else:
            used.whole.add(device)
