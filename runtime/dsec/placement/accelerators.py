"""Accelerators of any vendor: class, memory, modes, and slices with the places they may lie at.

A card is in one mode at a time (GPU-21): given whole, passed through, shared by clients (shares,
mps), or cut into slices (mig). Shared clients are bounded by memory, by milli of the card and by
their number; slices by places: a profile of length 4 may begin at 0 or 4 only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from dsec.api.sandbox import GpuMode
from dsec.placement.dimensions import GIB, SHARES_PER_GIB, WHOLE

CLIENTS = 12
"""Most clients of one shared card: past it the MPS server is the bottleneck (GPU-04, GPU-05)."""
DRIVER_RESERVE = 256 << 20
"""Least memory that the driver keeps of a card, in bytes; else 3 %: shares that sum to a whole card
must not run out of memory together."""
MODES: tuple[GpuMode, ...] = (
    GpuMode.WHOLE,
    GpuMode.PASSTHROUGH,
    GpuMode.SHARES,
    GpuMode.MPS,
    GpuMode.MIG,
)
NUMBER = {mode: number for number, mode in enumerate(MODES, 1)}
"""Mode as kept in arrays; 0 is idle."""
BIT = {mode: 1 << number for mode, number in NUMBER.items()}
EXCLUSIVE = frozenset({NUMBER[GpuMode.WHOLE], NUMBER[GpuMode.PASSTHROUGH]})
SLICED = NUMBER[GpuMode.MIG]
SHARING = BIT[GpuMode.SHARES] | BIT[GpuMode.MPS]
_WHOLE_BIT, _PASSTHROUGH_BIT = BIT[GpuMode.WHOLE], BIT[GpuMode.PASSTHROUGH]
_SLICED_BIT = BIT[GpuMode.MIG]


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of slice: `length` units of the card, beginning at one of `starts`."""

    name: str
    length: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slicing:
    """How cards of a make can be cut. Places are bits of a mask of occupied units."""

    name: str
    profiles: tuple[Profile, ...]

    def profile(self, name: str) -> Profile | None:
        """Return a profile by name, or None where this make has no such."""
        return next((one for one in self.profiles if one.name == name), None)


def _eight(name: str, small: tuple[str, ...]) -> Slicing:
    """Return the cut of a card with 8 memory units and 7 compute units.

    Names in order: one unit, one compute with two memory units, two, three, four, all. One-unit
    slices end before the eighth unit, which has no compute.
    """
    one, wide, two, three, four, whole = small
    return Slicing(
        name,
        (
            Profile(one, 1, (0, 1, 2, 3, 4, 5, 6)),
            Profile(wide, 2, (0, 2, 4, 6)),
            Profile(two, 2, (0, 2, 4)),
            Profile(three, 4, (0, 4)),
            Profile(four, 4, (0,)),
            Profile(whole, 8, (0,)),
        ),
    )


_A30 = Slicing(
    "a30-24",
    (
        Profile("1g.6gb", 1, (0, 1, 2, 3)),
        Profile("2g.12gb", 2, (0, 2)),
        Profile("4g.24gb", 4, (0,)),
    ),
)
SLICINGS: tuple[tuple[tuple[str, ...], int, Slicing], ...] = (
    (("a30",), 24, _A30),
    (
        ("a100",),
        40,
        _eight("a100-40", ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")),
    ),
    (
        ("a100", "a800", "h100", "h800"),
        80,
        _eight("80", ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")),
    ),
    (
        ("h100", "h20", "gh200"),
        96,
        _eight("96", ("1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb")),
    ),
    (
        ("h200",),
        141,
        _eight("h200-141", ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb")),
    ),
)
"""(words of the model name, memory in GB, cut). The vendor's manual of multi-instance GPUs; other
makes bring their own with the card."""


def slicing_for(model: str, memory_bytes: int) -> Slicing | None:
    """Return how a card of a known make can be cut, or None. Example: "NVIDIA A100-SXM4-80GB"."""
    words = model.lower().replace("-", " ").replace("_", " ").split()
    for names, gigabytes, slicing in SLICINGS:
        near = abs(memory_bytes - gigabytes * GIB) <= gigabytes * GIB // 12
        if near and any(word.startswith(name) for word in words for name in names):
            return slicing
    return None


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One card. `memory_bytes` as the driver reports it."""

    uuid: str
    model: str = ""
    memory_bytes: int = 0
    modes: tuple[GpuMode, ...] = (GpuMode.WHOLE,)
    clients: int = CLIENTS
    """Most sandboxes that share it at once."""
    slicing: Slicing | None = None
    healthy: bool = True
    """False: running work stays, nothing new comes."""

    @property
    def allocatable_bytes(self) -> int:
        """Memory that sandboxes may be given: all but the driver's reserve."""
        return max(0, self.memory_bytes - max(-(-self.memory_bytes * 3 // 100), DRIVER_RESERVE))

    @property
    def shares(self) -> int:
        """Its GPU memory shares: 10 per GiB, of the data sheet's whole number."""
        return SHARES_PER_GIB * -(-self.memory_bytes // GIB)

    @property
    def support(self) -> int:
        """Modes as bits; 0 where it is not healthy."""
        return sum(BIT[mode] for mode in set(self.modes)) if self.healthy else 0


class Card(IntEnum):
    """What is kept of each card while work comes and goes."""

    MILLI = 0
    """Free thousandths for a share; 0 while given whole, or sliced."""
    MEMORY = 1
    """Free bytes for clients."""
    OPEN = 2
    """Modes, as bits, in which it takes one more."""
    COUNT = 3
    """Sandboxes on it; a slice counts as one."""
    MODE = 4
    """Number of its present mode; 0 idle."""
    SLICES = 5
    """Occupied units, as bits."""
    CLIENT_LIMIT = 6
    """Most clients: the card's own, or the least that a client's profile allows."""


# list indices in the hot path: plain numbers are quicker than members of an enumeration
_MILLI, _MEMORY, _OPEN, _COUNT = int(Card.MILLI), int(Card.MEMORY), int(Card.OPEN), int(Card.COUNT)
_MODE, _SLICES, _LIMIT = int(Card.MODE), int(Card.SLICES), int(Card.CLIENT_LIMIT)


class Claim(NamedTuple):
    """What one sandbox holds of one card."""

    uuid: str
    mode: int
    milli: int = 0
    memory: int = 0
    slices: int = 0
    limit: int = 0
    """Most clients that its profile allows beside it, itself included; 0: no limit of its own."""
    profile: str = ""

    @property
    def device(self) -> str:
        """The name that the agent is told: the card's, with the slice's place where it is one."""
        if not self.slices:
            return self.uuid
        return f"{self.uuid}/{self.profile}@{(self.slices & -self.slices).bit_length() - 1}"


CardState = list[int]
"""One entry per `Card`."""


def idle(card: Accelerator) -> CardState:
    """Return the state of a card that nobody uses."""
    milli = WHOLE if card.healthy else 0
    return [milli, card.allocatable_bytes, card.support, 0, 0, 0, card.clients]


def take(state: CardState, card: Accelerator, claim: Claim) -> None:
    """Book a claim on a card, in place. A mode that is closed stays closed: so do all others."""
    state[_COUNT] += 1
    state[_MODE] = mode = claim.mode
    if mode in EXCLUSIVE:
        state[_MILLI] = state[_MEMORY] = state[_OPEN] = 0
    elif mode == SLICED:
        state[_MILLI] = state[_MEMORY] = 0
        state[_SLICES] |= claim.slices
        room = card.slicing is not None and any(
            place_slice(card.slicing, one.name, state[_SLICES]) for one in card.slicing.profiles
        )
        state[_OPEN] = state[_OPEN] & 1 << SLICED if room else 0
    else:
        # what runs is booked even beyond the card; its free part is an index, never below 0
        state[_MILLI] = max(0, state[_MILLI] - claim.milli)
        state[_MEMORY] -= claim.memory
        if claim.limit and claim.limit < state[_LIMIT]:
            state[_LIMIT] = claim.limit
        state[_OPEN] = state[_OPEN] & 1 << mode if state[_COUNT] < state[_LIMIT] else 0


@lru_cache(maxsize=4096)
def place_slice(slicing: Slicing, name: str, occupied: int) -> int:
    """Return the mask of the best free place for a profile, 0 where there is none.

    The best place leaves most to others: the sum over profiles of length x places still free. So a
    slice goes to an edge that large profiles do not need, and the largest run stays whole.
    """
    profile = slicing.profile(name)
    best, best_left = 0, -1
    for start in profile.starts if profile else ():
        mask = ((1 << profile.length) - 1) << start if profile else 0
        if mask & occupied:
            continue
        left = _left(slicing, occupied | mask)
        # of equal places the highest: low ones are where the longest profiles begin
        if left >= best_left:
            best, best_left = mask, left
    return best


def _left(slicing: Slicing, occupied: int) -> int:
    """Return how much may still be cut: places of long profiles count by their length squared."""
    return sum(
        one.length * one.length
        for one in slicing.profiles
        for start in one.starts
        if not (((1 << one.length) - 1) << start) & occupied
    )


def client_claim(
    card: Accelerator, mode: int, *, milli: int, memory: int, shares: int, limit: int
) -> Claim:
    """Return what a client takes of a card, in milli and in bytes, whichever it was asked in.

    What is not given follows from the other: shares and milli are parts of the allocatable memory,
    so that shares which sum to the whole card fit with the driver's reserve (TEN-06).
    """
    room = card.allocatable_bytes
    if shares and card.shares:
        memory = max(memory, shares * room // card.shares)
    if not memory:
        memory = milli * room // WHOLE
    if not milli:
        milli = max(1, memory * WHOLE // room) if room else WHOLE
    return Claim(card.uuid, mode, milli, memory, limit=limit)


def summary(states: Sequence[CardState]) -> tuple[int, int, int, int]:
    """Return the columns WHOLE, PASSTHROUGH, SHARE and SLICES of a node."""
    whole = passed = share = slices = 0
    for state in states:
        open_ = state[_OPEN]
        if not open_:
            continue
        if open_ & _WHOLE_BIT:
            whole += 1
        if open_ & _PASSTHROUGH_BIT:
            passed += 1
        if open_ & SHARING and state[_MILLI] > share:
            share = state[_MILLI]
        if open_ & _SLICED_BIT:
            slices += 1
    return whole, passed, share, slices
