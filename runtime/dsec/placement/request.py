"""What is placed, where it can go, and the answer: plain frozen data."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

from dsec.api.experiment import Stage, TaskClass
from dsec.api.nodes import PlacementTraits
from dsec.api.sandbox import GpuMode, IsolationLevel, Resources
from dsec.api.wire import NodeInventory
from dsec.placement.accelerators import Accelerator, Slicing, slicing_for
from dsec.placement.dimensions import UNMETERED, WHOLE, ShareScale
from dsec.placement.refusal import Refusal


class Health(StrEnum):
    """Whether a node takes new work (SCHED-25); running work is not touched."""

    READY = "ready"
    DEGRADED = "degraded"
    CORDONED = "cordoned"
    UNHEALTHY = "unhealthy"
    NOT_READY = "not-ready"
    OUT_OF_POOL = "out-of-pool"


class PoolKind(StrEnum):
    """What a pool is for (SCHED-12)."""

    ANY = ""
    CPU = "cpu"
    """Data cleaning, filtering, scoring: nothing with a GPU."""
    GPU = "gpu"
    """Training and exploration only, and no parts of a card."""
    MIXED = "mixed"
    """Parts of a card, and whatever goes beside them."""


class TaskSize(StrEnum):
    """Which GPU work a node is for (SCHED-13): small work leaves crumbs that whole cards need."""

    ANY = ""
    SMALL = "small"
    """Parts of a card only."""
    LARGE = "large"
    """Whole cards only."""


SPOT_TAINT = "dsec.dev/spot"
"""On every spot node; work that may be interrupted tolerates it."""
MOST_CPU_MILLI = 10**8
MOST_DEVICES = 256
"""Far more than machines have; every CPU and device costs memory in each view."""
LEVELS = ("host", "rack", "zone", "region")
"""Levels of the topology, narrow to wide; a host is its node."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine as its owner describes it: totals, not what is free."""

    name: str
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int = UNMETERED
    disk_iops: int = UNMETERED
    disk_bytes_per_second: int = UNMETERED
    pids: int = 1 << 15
    sandboxes: int = 2000
    """Density cap: most sandboxes at once (GPU-05)."""
    devices: tuple[Accelerator, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[str, ...] = ()
    """`key` or `key=value`; a request needs a toleration of each."""
    pool: str = ""
    kind: PoolKind = PoolKind.ANY
    size: TaskSize = TaskSize.ANY
    isolation: frozenset[IsolationLevel] = frozenset({IsolationLevel.CONTAINER})
    features: frozenset[str] = frozenset()
    simulated: bool = False
    health: Health = Health.READY
    rack: str = ""
    zone: str = ""
    region: str = ""
    segment: str = ""
    """Fast network segment (SCHED-06)."""
    images: frozenset[str] = frozenset()
    """References whose layers are here."""
    datasets: tuple[tuple[str, int], ...] = ()
    """(data set, percent of it that is here), from cache or prefetch (SCHED-05)."""
    price_micro: int = 0
    """Per hour, in millionths of the currency."""
    safe_percent: int = 100
    limit_percent: int = 100
    """Watermarks of booked CPU and memory (SCHED-03)."""
    overcommit_milli: int = WHOLE
    """CPU given out per CPU present, in thousandths: the density preset of CONF-20; 1000 none."""
    cpus: tuple[int, ...] = ()
    """CPU numbers that exclusive sandboxes may be pinned to (SCHED-29)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sandbox to place. All fields but `id` make its class: equal ones are placed together."""

    id: str
    resources: Resources
    isolation: IsolationLevel = IsolationLevel.CONTAINER
    labels: tuple[tuple[str, str], ...] = ()
    """Each must be on the node with that value."""
    tolerations: tuple[str, ...] = ()
    """A taint, the key of taints, or `*` for all."""
    pools: tuple[str, ...] = ()
    """Any of these; empty: every pool."""
    gpu_model: str = ""
    """Any of these models or values of the label `gpu-type`, joined by `|`."""
    gpu_slices: str = ""
    """Profile of a slice, for example `3g.40gb`; implies the mode mig."""
    gang: str = ""
    gang_group: str = ""
    """Gangs of one group are placed together or not at all."""
    simulated: bool | None = None
    """True: simulated nodes only; False: real ones only; None: real ones first."""
    features: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    """Nodes whose agents have just refused it."""
    tenant: str = ""
    queue: str = "default"
    stage: str = ""
    """A `Stage`, or empty for data work (cleaning, filtering, scoring)."""
    priority: int = 0
    """Below 0 is low."""
    task_class: TaskClass = TaskClass.GUARANTEED
    image: str = ""
    datasets: tuple[str, ...] = ()
    near: str = ""
    """Group whose members exchange often: packed, device link to host to rack to zone to region."""
    spread: str = ""
    """Group whose members rarely exchange: spread evenly."""
    exclusive_cpus: bool = False
    required_level: str = ""
    """One of `LEVELS` that the `near` group must not leave."""
    segment: str = ""
    """Network segment that is preferred (SCHED-06)."""
    gpu_clients: int = 0
    """Most clients of the card that its profile bears, itself included; 0: the card's own limit."""
    cpu_shares: int = 0
    """Asks CPU in shares; the larger of this and the resources' milli-cores is booked."""
    cpu_share_scale: ShareScale = ShareScale.ABSOLUTE

    def class_key(self) -> tuple[Any, ...]:
        """Return every field but `id`, in their order: equal for requests of one class.

        Written out, since a batch asks for it once a request: four times as quick as an attrgetter.
        """
        return (
            self.resources,
            self.isolation,
            self.labels,
            self.tolerations,
            self.pools,
            self.gpu_model,
            self.gpu_slices,
            self.gang,
            self.gang_group,
            self.simulated,
            self.features,
            self.avoid,
            self.tenant,
            self.queue,
            self.stage,
            self.priority,
            self.task_class,
            self.image,
            self.datasets,
            self.near,
            self.spread,
            self.exclusive_cpus,
            self.required_level,
            self.segment,
            self.gpu_clients,
            self.cpu_shares,
            self.cpu_share_scale,
        )


def renamed(request: Request, id_: str) -> Request:
    """Return an equal request of another id, in a fifth of the time of a new one."""
    made = object.__new__(Request)
    for put, value in zip(_PUT, request.class_key(), strict=True):
        put(made, value)
    _PUT_ID(made, id_)
    return made


# a frozen class lets nobody set a field but through its slots
_PUT = tuple(vars(Request)[one.name].__set__ for one in fields(Request) if one.name != "id")
_PUT_ID = vars(Request)["id"].__set__


class Decision(NamedTuple):
    """The answer to one request: a node with its devices, or refusals with reasons."""

    id: str
    node: str = ""
    devices: tuple[str, ...] = ()
    """Cards, or slices as `card/profile@place`."""
    refusals: tuple[Refusal, ...] = ()
    scores: tuple[tuple[str, float], ...] = ()
    """Parts of the chosen node's cost, only where a record was asked for."""
    cpus: tuple[int, ...] = ()
    """CPUs that it is pinned to, when exclusive."""


def node_of(
    name: str,
    inventory: NodeInventory,
    *,
    labels: dict[str, str] | None = None,
    pool: str = "",
    traits: PlacementTraits | None = None,
    health: Health = Health.READY,
) -> Node:
    """Return a node of a registered inventory. Its key figures are those that the agent reported.

    `traits` are what its pool says. Well-known labels of the node come before them: the topology
    (`rack`, `zone`, `region`, `segment`), the watermarks (`safe-percent`, `limit-percent`) and the
    price (`price-micro`); taints of the label `taints`, separated by commas, are added to those of
    the pool. Labels alone fill the pool's kind (`pool-kind`) and the task size (`task-size`).
    Raises ValueError where one has an unknown value, or a figure makes no sense.
    """
    _check(inventory)
    given = labels or {}
    traits = traits or PlacementTraits()
    marks, where = traits.watermarks, traits.topology
    limit = _figure(given, "limit-percent", marks.limit_percent, 1, 100)
    safe = _figure(given, "safe-percent", min(marks.safe_percent, limit), 1, limit)
    own = [one for one in given.get("taints", "").split(",") if one]
    devices = tuple(
        Accelerator(
            one.uuid,
            one.model,
            one.memory_bytes,
            tuple(GpuMode(mode) for mode in one.modes),
            slicing=_slicing(one.model, one.memory_bytes, one.modes),
        )
        for one in sorted(inventory.devices, key=lambda one: one.index)
    )
    models = sorted({one.model for one in devices})
    derived = {"gpu-type": models[0]} if len(models) == 1 else {}
    return Node(
        name,
        inventory.cpu_milli,
        inventory.memory_bytes,
        inventory.disk_bytes,
        pids=inventory.pids,
        sandboxes=inventory.max_sandboxes,
        devices=devices,
        labels=tuple(sorted((derived | given).items())),
        taints=tuple(dict.fromkeys((*traits.taints, *own))),
        pool=pool,
        kind=PoolKind(given.get("pool-kind", "")),
        size=TaskSize(given.get("task-size", "")),
        isolation=frozenset(inventory.isolation),
        features=frozenset(inventory.features),
        simulated=inventory.simulated,
        health=health,
        rack=given.get("rack", where.rack),
        zone=given.get("zone", where.zone),
        region=given.get("region", where.region),
        segment=given.get("segment", where.segment),
        price_micro=_figure(given, "price-micro", traits.price_micro, 0, UNMETERED),
        safe_percent=safe,
        limit_percent=limit,
        cpus=tuple(range(inventory.whole_cpus or inventory.cpu_milli // WHOLE)),
    )


def _figure(labels: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """Return the figure of a label, or the default. Raises ValueError."""
    text = labels.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise ValueError(f"labels.{name}: {text!r}; {least} to {most} are allowed")
    return int(text)


def _check(inventory: NodeInventory) -> None:
    """Raise ValueError for what no machine has: arrays could not hold it, or would fill memory."""
    devices = inventory.devices
    figures = [
        ("cpuMilli", inventory.cpu_milli, MOST_CPU_MILLI),
        ("devices", len(devices), MOST_DEVICES),
        *(
            (f"devices[{n}].memoryBytes", one.memory_bytes, UNMETERED)
            for n, one in enumerate(devices)
        ),
    ]
    for name, figure, most in figures:
        if not 0 <= figure <= most:
            raise ValueError(f"inventory.{name}: {figure}; 0 to {most} are allowed")
    if len({one.uuid for one in devices}) < len(devices):
        # a card that is counted twice would be given out twice
        raise ValueError("inventory.devices: two have the same uuid; each has one of its own")


def _slicing(model: str, memory_bytes: int, modes: list[str]) -> Slicing | None:
    return slicing_for(model, memory_bytes) if GpuMode.MIG.value in modes else None


STAGES_OF_GPU_POOLS = frozenset({Stage.TRAINING.value, Stage.EXPLORATION.value})
