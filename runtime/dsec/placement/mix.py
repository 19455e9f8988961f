"""The observed mix of GPU requests, learned on line, and the tables of stranded GPU made from it.

One `Mix` per leader: the engine tells it every request that it is asked to place (`observe`) and
takes `tables()` before it scores a batch. Older requests count less, by the number of requests
since and not by time, so that a replay of the same requests makes the same tables. What is lost
with it is only foresight: a new one starts from a few generic classes and has learned the rest
after some hundred requests; `state` and `from_state` carry it over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
from dsec.placement.turnover import draws_for, kept_table, order_scale, shunned

HALF_LIFE = 20_000
"""Requests after which one counts half: long enough for classes of one in a thousand."""
DRIFT = 0.1
"""Tables are made anew when so much of a group's mix has moved (total variation distance)."""
FIRST_CHECK = 16
CHECK_EVERY = 1 / 2
"""Drift is looked at after so many more requests, as a part of those seen: building tables for a
mix that is still being learned would only chase noise."""
LONGEST_CHECK = 1024
TURNOVER_HALF_LIFE = 2000
"""Requests after which an end counts half in the turnover."""
FULL_TURNOVER = 0.3
"""Ends per request that count as full turnover: the sooner nodes are kept whole, the better."""
TURNOVER_LEVELS = 4
"""Steps of the turnover that tables are made for."""
FEWEST_ASKED = 500.0
"""The first few ends say little."""
PRIOR_WEIGHT = 4.0
"""What the generic classes count for together, in requests."""
PRIOR = ((1, 250), (1, 500), (1, WHOLE), (2, WHOLE), (4, WHOLE), (8, WHOLE))
"""(cards, milli of each) before anything was seen; CPU as half of the cards' part of the node."""
Part = tuple[Floats, NodeTable, Floats | None]
"""Tables of one group: V, H, and what idle cards are worth together."""
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


class Demand(NamedTuple):
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
        self._asked = self._ended = 0.0
        """Requests and ends, the older ones decayed."""
        self._level = 0
        """Step of the turnover behind the tables."""
        self._next_check = FIRST_CHECK
        self._groups: list[Group] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._built: list[dict[Shape, float]] = []
        self._parts: list[Part] = []
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
        decay = 0.5 ** (count / TURNOVER_HALF_LIFE)
        self._asked = self._asked * decay + count
        self._ended *= decay
        if self._unit > 1e9 or len(self._counts) > MOST_CLASSES:  # noqa: PLR2004  far from infinity
            self._tidy()

    def ended(self, count: int = 1) -> None:
        """Count requests for GPUs that have ended and given back what they held."""
        self._ended += count

    @property
    def turnover(self) -> float:
        """Ends per request of late, as a part of `FULL_TURNOVER`; 0 while a cluster only fills."""
        return min(1.0, self._ended / max(self._asked, FEWEST_ASKED) / FULL_TURNOVER)

    def _turned(self) -> bool:
        """Move to another step of the turnover where it is clearly past the present one."""
        exact = self.turnover * TURNOVER_LEVELS
        if abs(exact - self._level) <= 0.75:  # noqa: PLR2004  of a step: more than half does not flap
            return False
        self._level = round(exact)
        return True

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
        known = self.seen >= self._next_check
        step = min(LONGEST_CHECK, max(FIRST_CHECK, int(self.seen * CHECK_EVERY)))
        self._next_check = self.seen + step
        # a mix that goes on from a state starts from the state's step
        turned = known and self._turned()
        turnover = self._level / TURNOVER_LEVELS
        changed = False
        cache: dict[tuple[object, ...], Part] = {}
        for number, group in enumerate(self._groups):
            shapes = self.shapes(group)
            frequencies = {replace(one, weight=0.0): one.weight for one in shapes}
            if number < len(self._parts):
                if not turned and distance(frequencies, self._built[number]) <= DRIFT:
                    continue
                self._built[number] = frequencies
                self._parts[number] = _build(group, shapes, (turnover, self._barred(group)), cache)
            else:
                self._built.append(frequencies)
                self._parts.append(_build(group, shapes, (turnover, self._barred(group)), cache))
            changed = True
        if changed:
            version = self._tables.version + 1
            kept = [one for _, _, one in self._parts if one is not None]
            parts = [(cards, nodes) for cards, nodes, _ in self._parts]
            self._tables = stack(parts, version, kept, order_scale(turnover))
        return self._tables

    def _barred(self, group: Group) -> float:
        """Return the part of all requests that ask for other models or pools than a group's."""
        barred = sum(
            count
            for demand, count in self._counts.items()
            if (demand.models and group.model not in demand.models)
            or (demand.pools and group.pool not in demand.pools)
        )
        return barred / max(sum(self._counts.values()), PRIOR_WEIGHT * self._unit)

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
        other._asked, other._ended, other._level = self._asked, self._ended, self._level
        other._groups, other._numbers = list(self._groups), dict(self._numbers)
        other._built, other._parts = list(self._built), list(self._parts)
        other._tables = self._tables
        return other

    def state(self) -> dict[str, Any]:
        """Return what was learned as JSON data, for dumps of decisions and for a successor."""
        return {
            "seen": self.seen,
            "turnover": {"asked": self._asked, "ended": self._ended, "level": self._level},
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
        # states of older releases have none
        turnover = state.get("turnover", {})
        mix._asked = float(turnover.get("asked", 0.0))
        mix._ended = float(turnover.get("ended", 0.0))
        mix._level = min(TURNOVER_LEVELS, max(0, int(turnover.get("level", 0))))
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
    busy: tuple[float, float],
    cache: dict[tuple[object, ...], Part],
) -> Part:
    turnover, barred = busy
    key = (tuple(shapes), group.cpu_milli, group.gpus, barred if turnover else 0.0)
    if key not in cache:
        cards = card_table(shapes, draws_for(turnover))
        nodes = shunned(node_table(shapes, group.cpu_milli, group.gpus), turnover * barred)
        cache[key] = (cards, nodes, kept_table(shapes, nodes, group.gpus, turnover))
    return cache[key]
