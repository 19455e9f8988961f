"""Which nodes can take a request at all: one list of small named functions, then the room.

`FILTERS` look at a node's description only; they are asked once per distinct description and class
of requests. What is free is compared in columns, only those that the request asks for. Refusals
group the nodes by the first filter that excludes them, or by every column that they lack.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dsec.api.experiment import TaskClass
from dsec.api.reasons import PendingReason
from dsec.api.sandbox import GpuMode
from dsec.placement.accelerators import EXCLUSIVE, MODES, SLICED, Accelerator, Claim
from dsec.placement.asked import Asked, claim_of
from dsec.placement.dimensions import Column
from dsec.placement.refusal import Refusal
from dsec.placement.request import (
    STAGES_OF_GPU_POOLS,
    Health,
    Node,
    PoolKind,
    Request,
    TaskSize,
)

Filter = Callable[[Node, Request, Asked], Refusal | None]


def health(node: Node, _request: Request, _asked: Asked) -> Refusal | None:
    """Degraded, cordoned and silent nodes get no new work (SCHED-25)."""
    if node.health is Health.READY:
        return None
    return Refusal(PendingReason.HEALTH, node.health.value)


def simulated(node: Node, request: Request, _asked: Asked) -> Refusal | None:
    """Work that says so runs on simulated nodes only, or on real ones only."""
    if request.simulated is None or node.simulated is request.simulated:
        return None
    return Refusal(PendingReason.NO_NODES, f"{'simulated' if request.simulated else 'real'} nodes")


def pool(node: Node, request: Request, _asked: Asked) -> Refusal | None:
    """One of the pools that the request names."""
    if not request.pools or node.pool in request.pools:
        return None
    return Refusal(PendingReason.LABEL, "pool", "|".join(request.pools))


def pool_kind(node: Node, request: Request, asked: Asked) -> Refusal | None:
    """Keep GPU pools for training and exploration, and CPU pools for no GPU (SCHED-12)."""
    if node.kind is PoolKind.CPU and asked.gpus:
        return Refusal(PendingReason.POOL, "pool kind", "GPU work")
    if node.kind is PoolKind.GPU:
        if request.stage not in STAGES_OF_GPU_POOLS and not (asked.gpus and not request.stage):
            return Refusal(PendingReason.POOL, "pool kind", request.stage or "data work")
        if small(asked):
            return Refusal(PendingReason.POOL, "pool kind", "a part of a GPU")
    return None


def small(asked: Asked) -> bool:
    """Return whether it takes parts of cards: work that leaves crumbs."""
    return asked.mode > 0 and asked.mode not in EXCLUSIVE


def task_size(node: Node, _request: Request, asked: Asked) -> Refusal | None:
    """Parts of cards and whole cards have nodes of their own where nodes say so (SCHED-13)."""
    if not asked.mode or node.size is TaskSize.ANY:
        return None
    if (node.size is TaskSize.SMALL) is small(asked):
        return None
    return Refusal(PendingReason.POOL, "task size", "small" if small(asked) else "large")


def taints(node: Node, request: Request, _asked: Asked) -> Refusal | None:
    """Every taint of the node is tolerated."""
    for taint in node.taints:
        tolerated = request.tolerations
        if taint not in tolerated and taint.partition("=")[0] not in tolerated:
            if "*" in tolerated:
                continue
            return Refusal(PendingReason.TAINT, taint)
    return None


def labels(node: Node, request: Request, _asked: Asked) -> Refusal | None:
    """Every label asked for, with its value (SCHED-10)."""
    for wanted in request.labels:
        if wanted not in node.labels:
            return Refusal(PendingReason.LABEL, *wanted)
    return None


def gpu_model(node: Node, request: Request, _asked: Asked) -> Refusal | None:
    """A card of one of the models, by the label `gpu-type` or by the cards themselves (GPU-18)."""
    if not request.gpu_model or not models_lack(node, request):
        return None
    return Refusal(PendingReason.LABEL, "gpu-type", request.gpu_model)


def models_lack(node: Node, request: Request) -> bool:
    """Return whether neither label nor any card says one of the models."""
    wanted = request.gpu_model.split("|")
    typed = next((value for key, value in node.labels if key == "gpu-type"), None)
    return typed not in wanted and all(card.model not in wanted for card in node.devices)


def isolation(node: Node, request: Request, _asked: Asked) -> Refusal | None:
    """The substrate is there."""
    if request.isolation in node.isolation:
        return None
    return Refusal(PendingReason.CAPABILITY, "isolation", request.isolation.value)


def features(node: Node, request: Request, _asked: Asked) -> Refusal | None:
    """What the kernel and the agent must offer."""
    for wanted in request.features:
        if wanted not in node.features:
            return Refusal(PendingReason.CAPABILITY, wanted, "it")
    return None


def gpu_mode(node: Node, request: Request, asked: Asked) -> Refusal | None:
    """Some card can be given in that mode, or cut in that way."""
    if not asked.mode or not node.devices:
        return None
    mode = MODES[asked.mode - 1]
    able = [card for card in node.devices if mode in card.modes]
    if not able:
        return Refusal(PendingReason.CAPABILITY, "gpu mode", mode.value)
    if asked.mode == SLICED and not any(
        card.slicing and card.slicing.profile(request.gpu_slices) for card in able
    ):
        return Refusal(PendingReason.CAPABILITY, "gpu slice", request.gpu_slices)
    return None


FILTERS: tuple[Filter, ...] = (
    health,
    simulated,
    pool,
    pool_kind,
    task_size,
    taints,
    labels,
    gpu_model,
    isolation,
    features,
    gpu_mode,
)
"""Asked in this order; the first that says no names the reason."""


def mismatch(node: Node, request: Request, asked: Asked) -> Refusal | None:
    """Return why a node can never take a request, whatever its room; None: it can."""
    for one in FILTERS:
        found = one(node, request, asked)
        if found is not None:
            return found
    return None


def low(request: Request) -> bool:
    """Return whether it may go between the watermarks: pausable, preemptible or of low priority."""
    return request.task_class is not TaskClass.GUARANTEED or request.priority < 0


def room(request: Request, asked: Asked, *, watermarks: bool) -> Iterator[tuple[Column, int]]:
    """Yield the columns to compare with what is asked of each, but for CPU and its pins.

    Those are the same on every node only without relative shares and over-commit.
    """
    yield Column.MEMORY, asked.memory
    yield Column.PIDS, asked.pids
    if asked.disk:
        yield Column.DISK, asked.disk
    yield Column.DENSITY, 1
    if asked.iops:
        yield Column.IOPS, asked.iops
    if asked.bandwidth:
        yield Column.BANDWIDTH, asked.bandwidth
    if watermarks:
        yield Column.HEADROOM, 1 if low(request) else 2
    if asked.mode == SLICED:
        yield Column.SLICES, 1
    elif asked.mode in EXCLUSIVE:
        passed = MODES[asked.mode - 1] is GpuMode.PASSTHROUGH
        yield Column.PASSTHROUGH if passed else Column.WHOLE, asked.gpus
    elif asked.mode:
        yield Column.SHARE, max(1, asked.milli)


class ClientShape(NamedTuple):
    """What a client takes of a card of each kind."""

    milli: int
    memory: int


def client_shape(asked: Asked, card: Accelerator) -> ClientShape:
    """Return the milli and bytes that a client takes of a card."""
    claim: Claim = claim_of(asked, card)
    return ClientShape(claim.milli, claim.memory)


def card_suits(card: Accelerator, node: Node, request: Request, asked: Asked) -> bool:
    """Return whether a card is of the model, mode and memory asked for, free or not."""
    if MODES[asked.mode - 1] not in card.modes:
        return False
    if request.gpu_model and len({one.model for one in node.devices}) > 1:
        return card.model in request.gpu_model.split("|")
    if asked.mode in EXCLUSIVE:
        return card.memory_bytes >= asked.gpu_memory
    if asked.mode == SLICED:
        return card.slicing is not None and card.slicing.profile(asked.profile) is not None
    return True


def suits_everywhere(nodes: Sequence[Node], request: Request, asked: Asked) -> bool:
    """Return whether on each node either all cards suit or none is there."""
    return all(card_suits(card, node, request, asked) for node in nodes for card in node.devices)
