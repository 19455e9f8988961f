"""Nodes while equal requests are placed on them, and what becomes of their cards.

Nodes that are alike become full in the same way: what each further request does to cards and to
the stranded capacity is worked out once per state that some node was in, as a `Course`.
"""

from dataclasses import dataclass, field

from dsec.placement.accelerators import CardState, Claim
from dsec.placement.request import Node
from dsec.placement.scratch import Need

Held = tuple[tuple[Claim, ...], tuple[str, ...]]
"""What a sandbox holds of cards, and their names as the agent is told them."""
States = dict[int, tuple[int, ...]]
"""By number of a card, its state."""


@dataclass(slots=True, eq=False)
class Course:
    """What a request after the other does to a node; `pricing` and `cards` work it out as needed.

    What is not given at first is set by those that use it. Lists have one entry per request.
    """

    row: int
    profile: int
    """Of the first node that was in that state."""
    states: list[CardState]
    """Of the cards after the last request so far."""
    cpu: int
    usable: float
    stranded: float
    idle: int
    """The same of free CPU, usable milli, stranded milli and idle cards."""
    costs: list[float] = field(default_factory=list)
    """What each request strands."""
    after: list[tuple[float, float, int, tuple[int, ...]]] = field(default_factory=list)
    """Usable, stranded, idle cards, and the columns of cards after each request."""
    chosen: list[tuple[int, ...]] = field(default_factory=list)
    """Numbers of the cards that each gets."""
    places: list[tuple[int, ...]] = field(default_factory=list)
    """Where on those each gets slices."""
    changes: list[list[tuple[int, tuple[int, ...]]]] = field(default_factory=list)
    """The numbers and states of those cards afterwards."""
    full: bool = False
    """The cards do not suffice for another."""
    at: tuple[int, ...] = ()
    """Which of `clients` the next request gets, or which cards."""
    at_places: tuple[int, ...] = ()
    change: float = 0.0
    """What V of the cards changes by, for the next request."""
    extra: float = 0.0
    """Cost beyond stranding."""
    taken: int = 0
    """Milli that are no longer free."""
    broken: int = 0
    """Cards that were idle."""
    free: list[int] = field(init=False)
    """Numbers of cards that will do and are free, of requests for whole ones."""
    clients: list[tuple[int, int, int]] = field(init=False)
    """(card, milli, bytes of a client) of the cards that will do, of requests for parts."""
    offers: list[float] = field(init=False)
    """What V of each of those changes by."""


@dataclass(slots=True, eq=False)
class Spot:
    """One node: what it had when it was opened, and how many requests have come since."""

    row: int
    node: Node
    profile: int
    columns: list[int]
    amounts: tuple[int, ...]
    """What each request takes of the columns MEMORY to PINS."""
    needs: tuple[Need, ...]
    """The same of those that it takes something of."""
    room: int
    """How many have room in the columns."""
    base: float
    """Static part of the cost."""
    course: Course | None
    """None where nothing can be stranded."""
    count: int = 0
    cost: float = 0.0
    """Of the next request."""
    same: int = 0
    every: int = 0
    """Sandboxes of the stage, and of all stages."""
    members: int = 0
    """Of the spread group."""
    cpus: tuple[int, ...] = ()
    """Numbers of CPUs that nobody is pinned to."""
    held: dict[tuple[int, ...], Held] | None = None
    """What was given of cards before, by their numbers."""
    parts: tuple[tuple[str, float], ...] = ()
    """Of its cost by name, as far as they do not change; empty: nobody has asked."""
