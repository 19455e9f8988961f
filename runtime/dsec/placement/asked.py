"""A request as figures: what it takes of a node and of its cards, and whether it makes sense."""

from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from pydantic import BaseModel

from dsec.api.reasons import PendingReason
from dsec.api.sandbox import GpuMode, IsolationLevel, Resources
from dsec.placement.accelerators import (
    EXCLUSIVE,
    NUMBER,
    SLICED,
    Accelerator,
    Claim,
    client_claim,
)
from dsec.placement.dimensions import (
    LIMIT,
    WHOLE,
    ShareScale,
    cpu_milli_of_shares,
    quantity_refusal,
)
from dsec.placement.refusal import Refusal
from dsec.placement.request import LEVELS, Node, Request

CONTAINERS = frozenset({IsolationLevel.CONTAINER, IsolationLevel.GVISOR})


class OverCapacityError(ValueError):
    """A booking takes more than there is; nothing was booked."""


class Asked(NamedTuple):
    """The figures of one request, the same on every node but for relative shares."""

    memory: int
    pids: int
    disk: int
    iops: int
    bandwidth: int
    cpu: int
    relative_shares: int
    """CPU in thousandths of the node; 0: none."""
    pins: int
    gpus: int
    mode: int
    """Number of the mode in `accelerators`; 0 without GPU."""
    milli: int
    gpu_memory: int
    gpu_shares: int
    gpu_clients: int
    profile: str

    @classmethod
    def of(cls, request: Request) -> "Asked":
        """Return the figures of a request; they may be absurd: `mistakes` says so."""
        asked = request.resources
        cpu, relative = asked.cpu_milli, 0
        if request.cpu_shares:
            if request.cpu_share_scale is ShareScale.RELATIVE:
                relative = request.cpu_shares
            else:
                cpu = max(cpu, cpu_milli_of_shares(request.cpu_shares, ShareScale.ABSOLUTE))
        mode = 0
        gpus, milli = asked.gpu_count, asked.gpu_milli
        if gpus or milli or asked.gpu_shares or request.gpu_slices:
            gpus, mode = gpus or 1, mode_of(asked, request.gpu_slices)
        return cls(
            asked.memory_bytes,
            asked.pids,
            asked.disk_bytes,
            asked.disk_iops,
            asked.disk_bytes_per_second,
            cpu,
            relative,
            -(-cpu // WHOLE) if request.exclusive_cpus else 0,
            gpus,
            mode,
            milli,
            asked.gpu_memory_bytes,
            asked.gpu_shares,
            request.gpu_clients,
            request.gpu_slices,
        )


def mode_of(asked: Resources, slices: str) -> int:
    """Return the number of the mode that cards are given in; parts of a card are shares."""
    if asked.gpu_mode is not None:
        return NUMBER[asked.gpu_mode]
    if slices:
        return SLICED
    part = 0 < asked.gpu_milli < WHOLE or asked.gpu_shares
    return NUMBER[GpuMode.SHARES if part else GpuMode.WHOLE]


def amounts_of(asked: Asked, node: Node) -> tuple[int, ...]:
    """Return what is booked on a node: the columns MEMORY to PINS."""
    cpu, pins = asked.cpu, asked.pins
    if asked.relative_shares:
        share = cpu_milli_of_shares(asked.relative_shares, ShareScale.RELATIVE, node.cpu_milli)
        cpu = max(cpu, share)
        pins = -(-cpu // WHOLE) if pins else 0
    if pins:
        # a pinned CPU is lost to all that share the rest, with whatever they over-commit
        cpu = pins * node.overcommit_milli
    return asked.memory, asked.pids, asked.disk, 1, asked.iops, asked.bandwidth, cpu, pins


def claim_of(asked: Asked, card: Accelerator, slices: int = 0) -> Claim:
    """Return what is booked of one card."""
    if asked.mode in EXCLUSIVE:
        return Claim(card.uuid, asked.mode)
    if asked.mode == SLICED:
        return Claim(card.uuid, SLICED, slices=slices, profile=asked.profile)
    return client_claim(
        card,
        asked.mode,
        milli=asked.milli,
        memory=asked.gpu_memory,
        shares=asked.gpu_shares,
        limit=asked.gpu_clients,
    )


def claims_of(asked: Asked, node: Node, devices: tuple[str, ...]) -> tuple[Claim, ...]:
    """Return the claims behind the devices of a decision.

    OverCapacityError: one is unknown, or there are more or fewer than were asked for.
    """
    if len(devices) != asked.gpus:
        raise OverCapacityError(f"{node.name}: asked {asked.gpus} devices, given {len(devices)}")
    found = []
    for device in devices:
        uuid, _, place = device.partition("/")
        card = next((one for one in node.devices if one.uuid == uuid), None)
        if card is None:
            raise OverCapacityError(f"{node.name}: there is no device {uuid!r}")
        slices = 0
        if asked.mode == SLICED:
            name, _, start = place.partition("@")
            profile = card.slicing.profile(name) if card.slicing else None
            if profile is None or name != asked.profile or int(start or -1) not in profile.starts:
                raise OverCapacityError(f"{node.name}: {uuid} has no slice {place!r}")
            slices = ((1 << profile.length) - 1) << int(start)
        found.append(claim_of(asked, card, slices))
    if asked.mode != SLICED and len({claim.uuid for claim in found}) != len(found):
        raise OverCapacityError(f"{node.name}: the same device twice in {devices}")
    return tuple(found)


def mistakes(request: Request, asked: Asked) -> tuple[Refusal, ...]:
    """Return why a request can never be placed, whatever the cluster; empty: it makes sense."""
    if _plausible(asked) and not _wishes(request):
        return ()
    found: list[Refusal] = []
    quantities = (
        ("cpu", asked.cpu, 0 if asked.relative_shares else 1),
        ("memory", asked.memory, 1),
        ("pids", asked.pids, 1),
        ("disk", asked.disk, 0),
        ("disk iops", asked.iops, 0),
        ("disk bandwidth", asked.bandwidth, 0),
        ("cpu shares", request.cpu_shares, 0),
        ("gpu", asked.gpus, 0),
        ("gpu memory", asked.gpu_memory, 0),
        ("gpu shares", asked.gpu_shares, 0),
        ("gpu clients", asked.gpu_clients, 0),
        ("gpu share", asked.milli, 0),
    )
    for name, amount, least in quantities:
        refusal = quantity_refusal(name, amount, least)
        if refusal:
            found.append(refusal)
    if not found and asked.milli > WHOLE:
        found.append(Refusal(PendingReason.INVALID, "gpu share", asked.milli, largest=WHOLE))
    found += [Refusal(PendingReason.INVALID, *wish) for wish in _wishes(request)]
    return tuple(found)


def _plausible(asked: Asked) -> bool:
    """Return whether all figures are in range: the quick way out."""
    return (
        0 < asked.memory <= LIMIT
        and 0 < asked.pids <= LIMIT
        and 0 <= asked.disk <= LIMIT
        and 0 <= asked.iops <= LIMIT
        and 0 <= asked.bandwidth <= LIMIT
        and 0 < asked.cpu <= LIMIT
        and not asked.relative_shares
        and (not asked.mode or _plausible_gpu(asked))
    )


def _plausible_gpu(asked: Asked) -> bool:
    return (
        0 < asked.gpus <= LIMIT
        and 0 <= asked.milli <= WHOLE
        and 0 <= asked.gpu_memory <= LIMIT
        and 0 <= asked.gpu_shares <= LIMIT
        and 0 <= asked.gpu_clients <= LIMIT
    )


def _wishes(request: Request) -> list[tuple[str, str]]:
    """Return pairs of wishes that contradict each other, as (what, asked)."""
    found = []
    if request.labels and len(dict(request.labels)) != len(set(request.labels)):
        found.append(("labels", "two values of one label"))
    if request.near and request.spread:
        found.append(("affinity", f"near {request.near} and spread {request.spread}"))
    if request.required_level and request.required_level not in LEVELS:
        found.append(("topology level", f"{request.required_level} (of {', '.join(LEVELS)})"))
    if request.required_level and not request.near:
        found.append(("topology level", f"{request.required_level} without a group to be near to"))
    return found + _gpu_wishes(request)


def _gpu_wishes(request: Request) -> list[tuple[str, str]]:
    """Return the same of modes of cards (CONF-07)."""
    found: list[tuple[str, str]] = []
    resources = request.resources
    mode = resources.gpu_mode
    if request.gpu_slices and mode not in (None, GpuMode.MIG):
        found.append(("gpu mode", f"slices {request.gpu_slices} in mode {mode}"))
    if mode is GpuMode.MIG and not request.gpu_slices:
        found.append(("gpu mode", "mig without the profile of a slice"))
    if mode is GpuMode.PASSTHROUGH and request.isolation is not IsolationLevel.MICROVM:
        found.append(("gpu mode", f"passthrough in a {request.isolation}"))
    if mode in (GpuMode.MPS, GpuMode.SHARES):
        if request.isolation not in CONTAINERS:
            found.append(("gpu mode", f"{mode} in a {request.isolation}"))
        if not (resources.gpu_memory_bytes or resources.gpu_shares or resources.gpu_milli):
            found.append(("gpu mode", f"{mode} without memory, shares or milli"))
    return found


_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def canonical(value: object) -> str:
    """Return text that is equal for equal values, whatever the order of sets."""
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, BaseModel):
        value = tuple(value.model_dump(mode="json").items())
    elif is_dataclass(value) and not isinstance(value, type):
        value = tuple(getattr(value, name) for name in _names(type(value)))
    if isinstance(value, Enum):
        return repr(value.value)
    if isinstance(value, frozenset | set):
        return "{" + ",".join(sorted(canonical(one) for one in value)) + "}"
    if isinstance(value, tuple | list):
        return "(" + ",".join(canonical(one) for one in value) + ")"
    return repr(value)


@lru_cache(maxsize=64)
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
