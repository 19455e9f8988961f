"""Nodes, requests and views in few words, for tests of placement. Sizes in GiB, CPU in cores."""

from collections.abc import Sequence
from typing import Any

from dsec.api.sandbox import GpuMode, IsolationLevel, Resources
from dsec.placement.accelerators import Accelerator, slicing_for
from dsec.placement.engine import place
from dsec.placement.request import Decision, Node, Request
from dsec.placement.view import ClusterView

GIB = 1 << 30
A100 = "NVIDIA A100-SXM4-80GB"
ALL_MODES = tuple(GpuMode)
EVERY_LEVEL = frozenset(IsolationLevel)


def cards(count: int, *, model: str = A100, gib: int = 80, prefix: str = "gpu") -> Any:
    """Return cards that offer every mode."""
    memory = gib * GIB
    return tuple(
        Accelerator(
            f"{prefix}-{number}", model, memory, ALL_MODES, slicing=slicing_for(model, memory)
        )
        for number in range(count)
    )


def node(name: str, cores: float = 16, gib: float = 64, gpus: int = 0, **fields: Any) -> Node:
    """Return a node; `gpus` are A100 cards of 80 GB that are named after it."""
    if gpus:
        fields.setdefault("devices", cards(gpus, prefix=f"{name}-gpu"))
    fields.setdefault("pids", 1 << 20)
    for key in ("labels", "datasets"):
        if isinstance(fields.get(key), dict):
            fields[key] = tuple(sorted(fields[key].items()))
    return Node(name, int(cores * 1000), int(gib * GIB), **fields)


def request(name: str, cores: float = 1, gib: float = 1, **fields: Any) -> Request:
    """Return a request. Resources beyond CPU and memory are given by their own names."""
    resources = {key: fields.pop(key) for key in tuple(fields) if key in Resources.model_fields}
    asked = Resources(cpu_milli=int(cores * 1000), memory_bytes=int(gib * GIB), **resources)
    if isinstance(fields.get("labels"), dict):
        fields["labels"] = tuple(sorted(fields["labels"].items()))
    return Request(name, asked, **fields)


def gpu(name: str, count: int = 1, mode: GpuMode = GpuMode.WHOLE, **fields: Any) -> Request:
    """Return a request for GPUs."""
    return request(name, gpu_count=count, gpu_mode=mode, **fields)


def many(count: int, prefix: str = "s", **fields: Any) -> list[Request]:
    """Return equal requests."""
    return [request(f"{prefix}{number}", **fields) for number in range(count)]


def view(*nodes: Node) -> ClusterView:
    """Return a view of empty nodes."""
    made = ClusterView()
    for one in nodes:
        made.put(one)
    return made


def nodes_of(decisions: Sequence[Decision]) -> list[str]:
    """Return where each went; empty where it waits."""
    return [decision.node for decision in decisions]


def counts_of(decisions: Sequence[Decision]) -> dict[str, int]:
    """Return how many each node got."""
    found: dict[str, int] = {}
    for decision in decisions:
        if decision.node:
            found[decision.node] = found.get(decision.node, 0) + 1
    return dict(sorted(found.items()))


def one(seen: ClusterView, asked: Request, **options: Any) -> Decision:
    """Place one request and return its decision."""
    (decision,) = place(seen, [asked], **options)
    return decision


def why(decision: Decision) -> list[str]:
    """Return the dimensions that a refusal names."""
    assert not decision.node, f"{decision.id} is on {decision.node}"
    return [refusal.dimension for refusal in decision.refusals]
