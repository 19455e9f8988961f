"""CPU and memory of running sandboxes: grown on line, right-sized, or frozen at the ceiling. Pure.

ELAS-02 and CONF-33. Growth needs head-room on the node; at the hard ceiling a sandbox that still
wants more is frozen and reclaimed. CPU may be over-committed within a safe bound, memory never is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

OBSERVE_SECONDS = 300.0
"""Use is believed after five minutes."""
GIVE_PART = 4
"""A right-sized sandbox keeps at least a quarter of its request."""
SAFE_PART = 0.7
"""Expected use of all sandboxes is at most this part of a node's cores."""
LEAST_PART = 0.05
"""Of its request, the least that a sandbox is expected to use."""
DEVIATIONS = 3.0
TOP_ONE_IN = 10
"""The busiest tenth of a node's sandboxes have their full request."""
CPU_FULL, MEMORY_FULL = 0.9, 0.85
"""Part of a limit that counts as full."""
THROTTLED = 0.1
"""Part of the periods in which the kernel held a sandbox back."""
CPU_FACTOR, MEMORY_FACTOR = 1.5, 1.25
MEMORY_STEP = 1 << 20
"""Memory limits are whole MiB."""


@dataclass(frozen=True, slots=True)
class Use:
    """What one sandbox used over a while: CPU in thousandths of a core, memory in bytes."""

    seconds: float
    cpu_mean: float
    cpu_sd: float = 0.0
    memory_peak: int = 0
    throttled: float = 0.0
    """Part of the scheduler's periods in which it was held back, 0 to 1."""

    @property
    def cpu_expected(self) -> float:
        """What it will hardly exceed: mean and three deviations."""
        return self.cpu_mean + DEVIATIONS * self.cpu_sd


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a role allows: of CPU in thousandths of a core, of memory in bytes."""

    min_cpu: int
    max_cpu: int
    max_memory: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandbox, now or wanted."""

    cpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class Room:
    """What the node has free beside the sandbox."""

    cpu: int
    memory: int


class Verdict(StrEnum):
    """What becomes of one sandbox's limits."""

    KEEP = "keep"
    RESIZE = "resize"
    NO_ROOM = "no-room"
    """It wants more, and its node has none: it is held at its limit, and could be moved."""
    FREEZE = "freeze"
    """It stands at its hard ceiling and wants more memory: freeze and reclaim (CONF-33)."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A decision about one sandbox."""

    verdict: Verdict
    limits: Limits
    words: str


def resize(now: Limits, use: Use, ceilings: Ceilings, room: Room) -> Resize:
    """Return what to do with the limits of one running sandbox.

    CPU goes up where the sandbox is held back and down to what it uses once that has been seen for
    five minutes; memory only goes up: a limit below what is in use kills.
    """
    cpu, cpu_words = _cpu(now, use, ceilings, room)
    memory, memory_words = _memory(now, use, ceilings, room)
    full = use.memory_peak >= now.memory * MEMORY_FULL
    if full and now.memory >= ceilings.max_memory and use.memory_peak >= ceilings.max_memory:
        said = f"memory {use.memory_peak} is at the ceiling of {ceilings.max_memory}: freeze"
        return Resize(Verdict.FREEZE, now, said)
    wanted = Limits(cpu, memory)
    told = "; ".join(one for one in (cpu_words, memory_words) if one)
    if wanted != now:
        return Resize(Verdict.RESIZE, wanted, told)
    return Resize(Verdict.NO_ROOM if told else Verdict.KEEP, now, told or "limits fit what is used")


def _cpu(now: Limits, use: Use, ceilings: Ceilings, room: Room) -> tuple[int, str]:
    if use.throttled >= THROTTLED or use.cpu_mean >= now.cpu * CPU_FULL:
        asked = min(ceilings.max_cpu, int(now.cpu * CPU_FACTOR) + 1)
        wanted = min(asked, now.cpu + max(0, room.cpu))
        if wanted > now.cpu:
            return wanted, f"CPU {now.cpu} to {wanted}: it uses {use.cpu_mean:.0f}"
        if asked > now.cpu:
            return now.cpu, f"CPU stays {now.cpu}: its node has nothing free"
        return now.cpu, ""
    if use.seconds < OBSERVE_SECONDS:
        return now.cpu, ""
    # half again above what it hardly exceeds: the next burst must not look like a full limit
    wanted = max(ceilings.min_cpu, int(use.cpu_expected * CPU_FACTOR) + 1)
    if wanted < now.cpu:
        return wanted, f"CPU {now.cpu} to {wanted}: it uses {use.cpu_mean:.0f}"
    return now.cpu, ""


def _memory(now: Limits, use: Use, ceilings: Ceilings, room: Room) -> tuple[int, str]:
    if use.memory_peak < now.memory * MEMORY_FULL or now.memory >= ceilings.max_memory:
        return now.memory, ""
    asked = min(ceilings.max_memory, _whole(now.memory * MEMORY_FACTOR))
    wanted = min(asked, now.memory + max(0, room.memory))
    if wanted > now.memory:
        return wanted, f"memory {now.memory} to {wanted}: {use.memory_peak} are in use"
    return now.memory, f"memory stays {now.memory}: its node has nothing free"


def _whole(size: float) -> int:
    return -(-int(size) // MEMORY_STEP) * MEMORY_STEP


# ------------------------------------------------------------------ right-sizing of a node


@dataclass(frozen=True, slots=True)
class Sized:
    """A sandbox with its CPU request and what it used."""

    id: str
    request: int
    use: Use


@dataclass(frozen=True, slots=True)
class NodeSizes:
    """CPU that each sandbox is booked with, and what of the node more work may take."""

    cpu: dict[str, int]
    room: int
    """Thousandths of a core: never so much that expected use passes the safe bound."""


def right_size(cores: int, sandboxes: Sequence[Sized]) -> NodeSizes:
    """Return bookings from observed use, for a node with `cores` thousandths of a core.

    A sandbox that was seen for five minutes is booked with a quarter of its request, or what it
    hardly exceeds where that is more; new ones and the busiest tenth with all of it. Expected use
    (mean + 3 deviations, at least 5 % of the request; the whole request while unseen) of everything
    stays at or below 70 % of the cores: where it does not, nothing is booked below its request.
    """
    ranked = sorted(sandboxes, key=lambda one: (-one.use.cpu_mean / max(1, one.request), one.id))
    top = {one.id for one in ranked[: -(-len(ranked) // TOP_ONE_IN)]}
    seen = {one.id for one in sandboxes if one.use.seconds >= OBSERVE_SECONDS}
    bound = sum(
        max(one.use.cpu_expected, one.request * LEAST_PART) if one.id in seen else one.request
        for one in sandboxes
    )
    safe = cores * SAFE_PART - bound
    small = safe >= 0

    def booked(one: Sized) -> int:
        if not small or one.id in top or one.id not in seen:
            return one.request
        least = max(one.request // GIVE_PART, int(one.use.cpu_expected) + 1)
        return min(one.request, least)

    cpu = {one.id: booked(one) for one in sandboxes}
    free = cores - sum(cpu.values())
    # a newcomer counts with its whole request: it may use all of it
    room = min(free, int(safe)) if sum(cpu.values()) < sum(o.request for o in sandboxes) else free
    return NodeSizes(cpu, max(0, room))
