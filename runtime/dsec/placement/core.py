"""Placement: which node for which request, or why not. Pure, in one batch, first fit.

`place` looks at classes: requests that ask for the same are placed together, so that thousands of
equal replicas cost one pass over the nodes. Its inputs are never changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dsec.api.reasons import PendingReason
from dsec.api.sandbox import GpuMode, IsolationLevel, Resources
from dsec.api.wire import NodeInventory
from dsec.placement.devices import DeviceView, claim, device_shortfall, free_devices
from dsec.placement.refusal import Refusal

SIMULATED_LABEL = "dsec.dev/simulated"
"""A request with this label set to "true" runs on simulated nodes only."""


@dataclass(slots=True)
class NodeView:
    """One node as placement sees it: totals and what is free. Sizes in bytes, CPU in milli."""

    name: str
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    pids: int
    sandboxes: int
    free_cpu_milli: int
    free_memory_bytes: int
    free_disk_bytes: int
    free_pids: int
    free_sandboxes: int
    devices: list[DeviceView] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    pool: str = ""
    isolation: frozenset[IsolationLevel] = frozenset({IsolationLevel.CONTAINER})
    simulated: bool = False
    schedulable: bool = True
    features: frozenset[str] = frozenset()

    def book(self, resources: Resources, devices: Sequence[str]) -> None:
        """Take what a sandbox is given; figures may go below zero after a resize of the node."""
        self.free_cpu_milli -= resources.cpu_milli
        self.free_memory_bytes -= resources.memory_bytes
        self.free_disk_bytes -= resources.disk_bytes
        self.free_pids -= resources.pids
        self.free_sandboxes -= 1
        claim(self.devices, resources, devices)

    def copy(self) -> "NodeView":
        """Return a copy whose free figures can be booked apart."""
        return replace(self, devices=[replace(device) for device in self.devices])


def node_view(
    name: str,
    inventory: NodeInventory,
    *,
    labels: dict[str, str] | None = None,
    pool: str = "",
    schedulable: bool = True,
) -> NodeView:
    """Return an empty node of that inventory. The key figures are those that the agent reported."""
    views = [
        DeviceView(d.uuid, d.model, d.memory_bytes, frozenset(d.modes), d.memory_bytes)
        for d in sorted(inventory.devices, key=lambda d: d.index)
    ]
    models = sorted({view.model for view in views})
    derived = {"gpu-type": models[0]} if len(models) == 1 else {}
    return NodeView(
        name,
        inventory.cpu_milli,
        inventory.memory_bytes,
        inventory.disk_bytes,
        inventory.pids,
        inventory.max_sandboxes,
        inventory.cpu_milli,
        inventory.memory_bytes,
        inventory.disk_bytes,
        inventory.pids,
        inventory.max_sandboxes,
        views,
        derived | (labels or {}),
        pool,
        frozenset(inventory.isolation),
        inventory.simulated,
        schedulable,
        frozenset(inventory.features),
    )


@dataclass(slots=True)
class ClusterView:
    """Every ready node, with its free figures."""

    nodes: list[NodeView]


@dataclass(frozen=True, slots=True)
class Request:
    """One sandbox to place. Requests of one `gang` are placed all or not at all."""

    id: str
    resources: Resources
    isolation: IsolationLevel = IsolationLevel.CONTAINER
    labels: tuple[tuple[str, str], ...] = ()
    pools: tuple[str, ...] = ()
    gpu_model: str = ""
    gang: str = ""
    simulated: bool | None = None
    """True: simulated nodes only; False: real ones only; None: real ones first."""
    features: tuple[str, ...] = ()
    """What the node must be able to do, by the names of its inventory's features (pvc)."""
    avoid: tuple[str, ...] = ()
    """Nodes whose agents have just refused it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request: a node with its devices, or refusals with reasons."""

    id: str
    node: str = ""
    devices: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()


ClassKey = tuple[object, ...]


def class_of(request: Request) -> ClassKey:
    """Return what makes two requests equal for placement."""
    return (
        tuple(request.resources.model_dump().values()),
        request.isolation,
        request.labels,
        request.pools,
        request.gpu_model,
        request.simulated,
        request.features,
        request.avoid,
    )


def place(view: ClusterView, requests: Sequence[Request]) -> list[Decision]:
    """Return one decision per request, in order.

    Earlier requests come first; a gang takes the place of its first member. Deterministic: equal
    inputs give equal outputs, whatever the order of nodes in the view.
    """
    nodes = [node.copy() for node in sorted(view.nodes, key=lambda n: (n.simulated, n.name))]
    decisions: dict[int, Decision] = {}
    full: dict[ClassKey, tuple[Refusal, ...]] = {}
    start: dict[ClassKey, int] = {}
    gangs: dict[str, list[int]] = {}
    for position, request in enumerate(requests):
        if request.gang:
            gangs.setdefault(request.gang, []).append(position)
    keys = [class_of(request) for request in requests]
    for position, request in enumerate(requests):
        if position in decisions:
            continue
        if not request.gang:
            decisions[position] = _one(nodes, request, keys[position], start, full)
            continue
        members = gangs[request.gang]
        # a gang is tried on copies: when one member has no room, none may have taken any
        trial = [node.copy() for node in nodes]
        trial_start, trial_full = dict(start), dict(full)
        found = [_one(trial, requests[m], keys[m], trial_start, trial_full) for m in members]
        if all(decision.node for decision in found):
            nodes, start, full = trial, trial_start, trial_full
        else:
            found = _gang_refused(found)
        decisions.update(zip(members, found, strict=True))
    return [decisions[position] for position in range(len(requests))]


def _one(
    nodes: list[NodeView],
    request: Request,
    key: ClassKey,
    start: dict[ClassKey, int],
    full: dict[ClassKey, tuple[Refusal, ...]],
) -> Decision:
    """Place one request. Room only shrinks, so a class goes on where its last member was put."""
    if key in full:
        return Decision(request.id, refusals=full[key])
    for index in range(start.get(key, 0), len(nodes)):
        node = nodes[index]
        if _mismatch(node, request) is None and _fits(node, request.resources):
            devices = free_devices(node.devices, request.resources)
            if devices is None:
                continue
            start[key] = index
            node.book(request.resources, devices)
            return Decision(request.id, node.name, devices)
    full[key] = refusals(nodes, request)
    return Decision(request.id, refusals=full[key])


def _fits(node: NodeView, asked: Resources) -> bool:
    return (
        node.free_cpu_milli >= asked.cpu_milli
        and node.free_memory_bytes >= asked.memory_bytes
        and node.free_disk_bytes >= asked.disk_bytes
        and node.free_pids >= asked.pids
        and node.free_sandboxes >= 1
    )


def _mismatch(node: NodeView, request: Request) -> Refusal | None:
    """Return why a node can never take a request, whatever its free room; None: it can."""
    asked = request.resources
    mode = (asked.gpu_mode or GpuMode.WHOLE).value
    models = {node.labels.get("gpu-type"), *(device.model for device in node.devices)}
    wrong_label = next((one for one in request.labels if node.labels.get(one[0]) != one[1]), None)
    if not node.schedulable:
        return Refusal(PendingReason.NO_NODES, "schedulable nodes")
    if request.simulated is not None and node.simulated is not request.simulated:
        wanted = "simulated" if request.simulated else "real"
        return Refusal(PendingReason.NO_NODES, f"{wanted} nodes")
    found = None
    lacking = next((one for one in request.features if one not in node.features), "")
    if request.pools and node.pool not in request.pools:
        found = Refusal(PendingReason.LABEL, "pool", "|".join(request.pools))
    elif wrong_label:
        found = Refusal(PendingReason.LABEL, *wrong_label)
    elif request.gpu_model and request.gpu_model not in models:
        found = Refusal(PendingReason.LABEL, "gpu-type", request.gpu_model)
    elif request.isolation not in node.isolation:
        found = Refusal(PendingReason.CAPABILITY, "isolation", request.isolation.value)
    elif lacking:
        found = Refusal(PendingReason.CAPABILITY, lacking, "it")
    elif asked.gpu_count and node.devices and not any(mode in d.modes for d in node.devices):
        found = Refusal(PendingReason.CAPABILITY, "gpu mode", mode)
    elif node.name in request.avoid:
        found = Refusal(PendingReason.CAPACITY, "agent", 1)
    return found


def refusals(nodes: Sequence[NodeView], request: Request) -> tuple[Refusal, ...]:
    """Say why no node takes a request: what never fits first, then each dimension that lacks.

    Where some node could take it but for room, only room is named: that is what can change.
    """
    if not nodes:
        return (Refusal(PendingReason.NO_NODES, "nodes"),)
    eligible: list[NodeView] = []
    grouped: dict[tuple[PendingReason, str, str], int] = {}
    for node in nodes:
        reason = _mismatch(node, request)
        if reason is None:
            eligible.append(node)
        else:
            key = (reason.reason, reason.dimension, str(reason.asked))
            grouped[key] = grouped.get(key, 0) + 1
    if eligible:
        return _shortfalls(eligible, request.resources)
    return tuple(
        Refusal(reason, dimension, asked, nodes=count, total_nodes=len(nodes))
        for (reason, dimension, asked), count in sorted(grouped.items())
    )


def _shortfalls(nodes: Sequence[NodeView], asked: Resources) -> tuple[Refusal, ...]:
    """Name each dimension that keeps a node from taking it, with the most that any has free."""
    lacking: dict[str, int] = {}
    for node in nodes:
        for dimension, want, free, _ in _figures(node, asked):
            if free < want:
                lacking[dimension] = lacking.get(dimension, 0) + 1
    found = []
    for dimension, count in lacking.items():
        figures = [f for node in nodes for f in _figures(node, asked) if f[0] == dimension]
        found.append(
            Refusal(
                PendingReason.CAPACITY,
                dimension,
                figures[0][1],
                max(0, *(figure[2] for figure in figures)),
                count,
                len(nodes),
                max(figure[3] for figure in figures),
            )
        )
    # the dimension that excludes most nodes is the one to act on
    return tuple(sorted(found, key=lambda one: (-one.nodes, one.dimension)))


def _figures(node: NodeView, asked: Resources) -> list[tuple[str, int, int, int]]:
    """Return (dimension, asked, free, total) of one node."""
    rows = [
        ("cpu", asked.cpu_milli, node.free_cpu_milli, node.cpu_milli),
        ("memory", asked.memory_bytes, node.free_memory_bytes, node.memory_bytes),
        ("disk", asked.disk_bytes, node.free_disk_bytes, node.disk_bytes),
        ("pids", asked.pids, node.free_pids, node.pids),
        ("density", 1, node.free_sandboxes, node.sandboxes),
    ]
    if asked.gpu_count:
        rows.append(device_shortfall(node.devices, asked))
    return rows


def _gang_refused(found: list[Decision]) -> list[Decision]:
    """Return the refusal of a whole gang: members that had room are told what the gang lacks."""
    lacking = next(decision.refusals for decision in found if not decision.node)
    placed = sum(1 for decision in found if decision.node)
    gang = Refusal(PendingReason.GANG, "replicas together", len(found), placed)
    return [
        Decision(d.id, refusals=(gang, *lacking)) if d.node else Decision(d.id, refusals=d.refusals)
        for d in found
    ]
