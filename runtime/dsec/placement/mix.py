"""The observed mix of GPU requests, learned on line, and the tables of stranded GPU made from it.

One `Mix` per leader: the engine tells it every request that it is asked to place (`observe`) and
takes `tables()` before it scores a batch. Older requests count less, by the number of requests
since and not by time, so that a replay of the same requests makes the same tables. What is lost
with it is only foresight: a new one starts from a few generic classes and has learned the rest
after some hundred requests; `state` and `from_state` carry it over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsec.placement.stranding import (
    WHOLE,
    Floats,
    NodeTable,
    Shape,
    Tables,
    card_table,
    node_table,
    stack,
)

HALF_LIFE = 20_000
"""Requests after which one counts half: long enough for classes of one in a thousand."""
DRIFT = 0.1
"""Tables are made anew when so much of a group's mix has moved (total variation distance)."""
FIRST_CHECK = 16
CHECK_EVERY = 1 / 2
"""Drift is looked at after so many more requests, as a part of those seen: building tables for a
mix that is still being learned would only chase noise."""
LONGEST_CHECK = 1024
PRIOR_WEIGHT = 4.0
"""What the generic classes count for together, in requests."""
PRIOR = ((1, 250), (1, 500), (1, WHOLE), (2, WHOLE), (4, WHOLE), (8, WHOLE))
"""(cards, milli of each) before anything was seen; CPU as half of the cards' part of the node."""
MOST_CLASSES = 4096
"""Remembered; the rarest are forgotten beyond."""
MOST_SHAPES = 256
"""Behind the tables of one group; the most frequent."""


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Nodes that share tables: one pool and one device model. Sizes are those of the largest."""

    pool: str = ""
    model: str = ""
    cpu_milli: int = 0
    gpus: int = 0
    memory_bytes: int = 0
    """Of one card; what a request for GPU memory is a part of."""


@dataclass(frozen=True, slots=True, order=True)
class Demand:
    """One class of requests for GPUs, as asked. Give `milli` or `memory_bytes` of each card."""

    cpu_milli: int
    gpus: int
    milli: int = WHOLE
    memory_bytes: int = 0
    """Of each card, where the request asks for memory instead: its part depends on the model."""
    models: tuple[str, ...] = ()
    """Any of these; empty: every model."""
    pools: tuple[str, ...] = ()


class Mix:
    """Decayed counts of request classes, and the tables made from them when they have drifted."""

    def __init__(self) -> None:
        self.seen = 0
        self._counts: dict[Demand, float] = {}
        self._unit = 1.0
        """What the next request counts: growing instead of shrinking all others."""
        self._next_check = FIRST_CHECK
        self._groups: list[Group] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._built: list[dict[Shape, float]] = []
        self._parts: list[tuple[Floats, NodeTable]] = []
        self._tables = stack([], 0)

    def group(self, group: Group) -> int:
        """Return the number of a group of nodes; numbers never change. Larger nodes widen it."""
        key = (group.pool, group.model)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._groups)
            self._groups.append(group)
            return number
        known = self._groups[number]
        wider = replace(
            known,
            cpu_milli=max(known.cpu_milli, group.cpu_milli),
            gpus=max(known.gpus, group.gpus),
            # cards of one model have one size; a part of the smaller is the safe figure
            memory_bytes=min(known.memory_bytes, group.memory_bytes)
            if known.memory_bytes
            else group.memory_bytes,
        )
        if wider != known:
            self._groups[number] = wider
            if number < len(self._parts):
                self._built[number] = {}
                self._next_check = min(self._next_check, self.seen)
        return number

    def observe(self, demand: Demand, count: int = 1) -> None:
        """Count equal requests that have just been asked for; those without GPUs are left out."""
        if count <= 0 or demand.gpus <= 0:
            return
        self.seen += count
        self._counts[demand] = self._counts.get(demand, 0.0) + self._unit * count
        self._unit *= 2.0 ** (count / HALF_LIFE)
        if self._unit > 1e9 or len(self._counts) > MOST_CLASSES:  # noqa: PLR2004  far from infinity
            self._tidy()

    def _tidy(self) -> None:
        kept = sorted(self._counts.items(), key=lambda one: (-one[1], one[0]))
        kept = kept[: MOST_CLASSES * 3 // 4]
        self._counts = {
            demand: count / self._unit for demand, count in kept if count > 1e-3 * self._unit
        }
        self._unit = 1.0

    def tables(self) -> Tables:
        """Return the tables of all groups, made anew where the mix has drifted.

        Building takes some 50 ms a group whose mix is unlike the others'; without drift the same
        object is returned.
        """
        if len(self._parts) == len(self._groups) and self.seen < self._next_check:
            return self._tables
        step = min(LONGEST_CHECK, max(FIRST_CHECK, int(self.seen * CHECK_EVERY)))
        self._next_check = self.seen + step
        changed = False
        cache: dict[tuple[object, ...], tuple[Floats, NodeTable]] = {}
        for number, group in enumerate(self._groups):
            shapes = self.shapes(group)
            frequencies = {replace(one, weight=0.0): one.weight for one in shapes}
            if number < len(self._parts):
                if distance(frequencies, self._built[number]) <= DRIFT:
                    continue
                self._built[number] = frequencies
                self._parts[number] = _build(group, shapes, cache)
            else:
                self._built.append(frequencies)
                self._parts.append(_build(group, shapes, cache))
            changed = True
        if changed:
            self._tables = stack(self._parts, self._tables.version + 1)
        return self._tables

    def shapes(self, group: Group) -> list[Shape]:
        """Return the classes that nodes of a group may serve; their weights sum to 1."""
        counts: dict[tuple[int, int, int], float] = {}
        for demand, count in self._counts.items():
            if demand.models and group.model not in demand.models:
                continue
            if demand.pools and group.pool not in demand.pools:
                continue
            milli = _milli(demand, group)
            if milli > WHOLE or demand.gpus > group.gpus:
                continue
            key = (demand.cpu_milli, demand.gpus, milli)
            counts[key] = counts.get(key, 0.0) + count / self._unit
        for gpus, milli in PRIOR:
            if gpus <= group.gpus:
                cpu = group.cpu_milli * gpus * milli // (2 * WHOLE * max(1, group.gpus))
                counts[cpu, gpus, milli] = counts.get((cpu, gpus, milli), 0.0) + (
                    PRIOR_WEIGHT / len(PRIOR)
                )
        top = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:MOST_SHAPES]
        total = sum(count for _, count in top)
        return sorted(
            (Shape(*key, weight=count / total) for key, count in top),
            key=lambda one: (one.cpu_milli, one.gpus, one.milli),
        )

    def copy(self) -> "Mix":
        """Return a copy for what-if: it may observe without this one learning."""
        other = Mix()
        other.seen, other._unit, other._next_check = self.seen, self._unit, self._next_check
        other._counts = dict(self._counts)
        other._groups, other._numbers = list(self._groups), dict(self._numbers)
        other._built, other._parts = list(self._built), list(self._parts)
        other._tables = self._tables
        return other

    def state(self) -> dict[str, Any]:
        """Return what was learned as JSON data, for dumps of decisions and for a successor."""
        return {
            "seen": self.seen,
            "classes": [
                {
                    "cpuMilli": demand.cpu_milli,
                    "gpus": demand.gpus,
                    "milli": demand.milli,
                    "memoryBytes": demand.memory_bytes,
                    "models": list(demand.models),
                    "pools": list(demand.pools),
                    "count": count / self._unit,
                }
                for demand, count in sorted(self._counts.items())
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Mix":
        """Return a mix that goes on from there; its groups are told to it anew."""
        mix = cls()
        mix.seen = int(state["seen"])
        mix._next_check = mix.seen + FIRST_CHECK
        for one in state["classes"]:
            demand = Demand(
                int(one["cpuMilli"]),
                int(one["gpus"]),
                int(one["milli"]),
                int(one["memoryBytes"]),
                tuple(one["models"]),
                tuple(one["pools"]),
            )
            mix._counts[demand] = float(one["count"])
        return mix


def distance(first: Mapping[Shape, float], second: Mapping[Shape, float]) -> float:
    """Return the total variation distance of two mixes: 0 equal, 1 nothing in common."""
    keys = first.keys() | second.keys()
    return sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in keys) / 2


def _milli(demand: Demand, group: Group) -> int:
    """Return the part of a card, rounded up; more than WHOLE: no card of the group has it."""
    if not demand.memory_bytes:
        return demand.milli
    if not group.memory_bytes:
        return WHOLE
    return max(1, -(-demand.memory_bytes * WHOLE // group.memory_bytes))


def _build(
    group: Group,
    shapes: Sequence[Shape],
    cache: dict[tuple[object, ...], tuple[Floats, NodeTable]],
) -> tuple[Floats, NodeTable]:
    key = (tuple(shapes), group.cpu_milli, group.gpus)
    if key not in cache:
        cache[key] = (card_table(shapes), node_table(shapes, group.cpu_milli, group.gpus))
    return cache[key]
