"""The same nodes and requests for dsec and for kube-scheduler, and nothing that only one knows.

Three makes of machine in two regions, a tenth of them tainted; requests of CPU, memory and whole
cards that select on labels and tolerate the taint. Cards are a countable resource to the peer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import kube_peer
from dsec.api.sandbox import GpuMode, Resources
from dsec.placement.accelerators import Accelerator
from dsec.placement.request import Decision, Node, Request

GIB = 1 << 30
TAINT = "team=a"
TYPE, REGION = "gpu-type", "region"


@dataclass(frozen=True, slots=True)
class Make:
    """A make of machine: cores, GiB, cards and GiB of each, and its part of the cluster."""

    name: str
    cores: int
    gib: int
    cards: int
    card_gib: int
    weight: int


MAKES = (
    Make("cpu", 64, 256, 0, 0, 3),
    Make("t4", 96, 384, 2, 16, 3),
    Make("a100", 128, 1024, 8, 80, 4),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of request: cores, GiB, cards, its part of the stream, and what it selects."""

    cores: int
    gib: int
    cards: int = 0
    weight: int = 1
    labels: tuple[tuple[str, str], ...] = ()
    tolerates: bool = False


SHAPES = (
    Shape(2, 8, weight=20),
    Shape(4, 16, weight=10, labels=((REGION, "east"),)),
    Shape(8, 24, weight=6, tolerates=True),
    Shape(4, 16, 1, 8, ((TYPE, "t4"),)),
    Shape(8, 48, 1, 14, ((TYPE, "a100"),)),
    Shape(6, 24, 1, 8, tolerates=True),
    Shape(24, 128, 2, 6, ((TYPE, "a100"), (REGION, "west"))),
    Shape(48, 256, 4, 4, ((TYPE, "a100"),)),
    Shape(96, 512, 8, 4, ((TYPE, "a100"),), tolerates=True),
)


def machines(count: int, seed: int = 1) -> list[Node]:
    """Return nodes, the same for the same seed."""
    random = Random(seed)  # noqa: S311  a benchmark, no secret
    return [
        _machine(
            number,
            random.choices(MAKES, [make.weight for make in MAKES])[0],
            "east" if random.random() < 0.5 else "west",
            tainted=random.random() < 0.1,
        )
        for number in range(count)
    ]


def _machine(number: int, make: Make, region: str, *, tainted: bool) -> Node:
    name = f"node-{number}"
    return Node(
        name,
        make.cores * 1000,
        make.gib * GIB,
        disk_bytes=64 << 40,
        pids=1 << 22,
        devices=tuple(
            Accelerator(f"{name}-{n}", make.name, make.card_gib * GIB, (GpuMode.WHOLE,))
            for n in range(make.cards)
        ),
        labels=((TYPE, make.name), (REGION, region)),
        taints=(TAINT,) if tainted else (),
        region=region,
    )


def unique(count: int, seed: int, prefix: str) -> list[Request]:
    """Return requests of which no two are equal: CPU and memory differ by up to 3 %."""
    random = Random(seed)  # noqa: S311  a benchmark, no secret
    weights = [shape.weight for shape in SHAPES]
    return [
        _request(
            f"{prefix}-{number}",
            random.choices(SHAPES, weights)[0],
            random.uniform(0.97, 1.03),
            random.uniform(0.97, 1.03),
        )
        for number in range(count)
    ]


def identical(count: int, seed: int, prefix: str) -> list[Request]:
    """Return equal requests, of the shape whose turn it is; whole machines are too many to ask."""
    shape = SHAPES[seed % (len(SHAPES) - 1)]
    return [_request(f"{prefix}-{number}", shape) for number in range(count)]


def _request(name: str, shape: Shape, cpu: float = 1.0, memory: float = 1.0) -> Request:
    return Request(
        name,
        Resources(
            cpu_milli=int(shape.cores * 1000 * cpu),
            memory_bytes=int(shape.gib * GIB * memory),
            gpu_count=shape.cards,
        ),
        labels=shape.labels,
        tolerations=("team",) if shape.tolerates else (),
    )


def as_node(node: Node) -> dict[str, Any]:
    """Return a machine as the peer's record."""
    return kube_peer.node(
        node.name,
        cpus=node.cpu_milli // 1000,
        memory_gib=node.memory_bytes // GIB,
        gpus=len(node.devices),
        labels=dict(node.labels),
        taints=node.taints,
    )


def as_pods(requests: Iterable[Request]) -> list[dict[str, Any]]:
    """Return requests as the peer's pods."""
    return [
        kube_peer.pod(
            one.id,
            cpu_milli=one.resources.cpu_milli,
            memory_bytes=one.resources.memory_bytes,
            gpus=one.resources.gpu_count,
            selector=dict(one.labels),
            tolerations=one.tolerations,
        )
        for one in requests
    ]


@dataclass(frozen=True, slots=True)
class Filled:
    """How much of a cluster is given out, in percent of all there is."""

    cpu: float
    gpu: float


def filled(
    nodes: Sequence[Node], requests: Sequence[Request], placed: dict[str, str] | set[str]
) -> Filled:
    """Return what the placed requests take."""
    taken = [one.resources for one in requests if one.id in placed]
    cpu, cards = sum(n.cpu_milli for n in nodes), sum(len(n.devices) for n in nodes)
    return Filled(
        100 * sum(one.cpu_milli for one in taken) / cpu,
        100 * sum(one.gpu_count for one in taken) / cards,
    )


def wrong(
    nodes: Sequence[Node], requests: Sequence[Request], decisions: Sequence[Decision]
) -> Iterator[str]:
    """Replay decisions in plain arithmetic and say what was not allowed, one line each."""
    by_name = {node.name: node for node in nodes}
    cpu = {node.name: node.cpu_milli for node in nodes}
    memory = {node.name: node.memory_bytes for node in nodes}
    cards = {card.uuid: node.name for node in nodes for card in node.devices}
    for one, decision in zip(requests, decisions, strict=True):
        if decision.id != one.id:
            yield f"{one.id}: answered as {decision.id}"
        if not decision.node:
            if not decision.refusals:
                yield f"{one.id}: refused without a reason"
            continue
        node, asked = by_name[decision.node], one.resources
        cpu[node.name] -= asked.cpu_milli
        memory[node.name] -= asked.memory_bytes
        given = [cards.pop(card, "") for card in decision.devices]
        checks = (
            ("cpu", cpu[node.name] >= 0),
            ("memory", memory[node.name] >= 0),
            ("labels", set(one.labels) <= set(node.labels)),
            ("taint", not node.taints or bool(one.tolerations)),
            ("cards", given == [node.name] * asked.gpu_count),
        )
        yield from (f"{one.id} on {node.name}: {what}" for what, good in checks if not good)
