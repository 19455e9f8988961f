"""Builders of scaling tests: roles, rounds, and demand curves played to a scaler (ELAS-30)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from dsec.api.elastic import Elastic
from dsec.api.elastic_status import Reading, RoleScaling
from dsec.api.experiment import ExperimentSpec, Role
from dsec.scaling.replicas.evaluate import Facts, evaluate
from dsec.scaling.replicas.rules import Rule, rule_of

START = datetime(2026, 3, 2, tzinfo=UTC)
"""A Monday."""


def rule(
    *,
    replicas: int = 4,
    low: int | None = None,
    high: int | None = None,
    spec: Mapping[str, Any] | None = None,
    **elastic: Any,
) -> Rule:
    """Return the rule of a role with these fields of `elastic`; `spec` adds to the experiment."""
    elastic.setdefault("metric", "queue_depth")
    role = Role(name="sim", replicas=replicas, min=low, max=high, elastic=Elastic(**elastic))
    made = ExperimentSpec(roles=[role], **dict(spec or {}))
    return rule_of(made.roles[0], made)


def readings(**values: float | None) -> list[Reading]:
    """Return fresh readings; None is a missing one."""
    return [Reading(name=name, value=value) for name, value in values.items()]


@dataclass
class Player:
    """Plays rounds to the scaler of one role, and does what it says.

    `ready` follows the count at once. Every round goes through JSON, as a restart would.
    """

    rule: Rule
    count: int
    now: datetime = START
    state: RoleScaling = field(default_factory=lambda: RoleScaling(role="sim"))
    counts: list[int] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of every round, beside count and ready."""

    def round(self, *, seconds: float | None = None, **values: float | None) -> RoleScaling:
        """Play one round with these signals; time moves by a period, or by `seconds`."""
        period = self.rule.period_seconds if seconds is None else seconds
        self.now += timedelta(seconds=period)
        facts = Facts(**({"count": self.count, "ready": self.count} | self.facts))
        state = evaluate(self.rule, self.state, readings(**values), facts, self.now)
        self.state = RoleScaling.model_validate_json(state.model_dump_json(by_alias=True))
        assert self.state == state
        self.count = state.count
        self.counts.append(self.count)
        return self.state

    def rounds(self, number: int, **values: float | None) -> RoleScaling:
        """Play the same round several times."""
        for _ in range(number):
            self.round(**values)
        return self.state

    def until_change(self, most: int = 100, **values: float | None) -> int:
        """Play one round again and again; return in which the count changed, 0: in none."""
        before = self.count
        for number in range(1, most + 1):
            self.round(**values)
            if self.count != before:
                return number
        return 0


# ------------------------------------------------------------------ demand curves


@dataclass(frozen=True)
class Part:
    """A stretch of a curve: so many seconds from one level to another."""

    seconds: float
    level: float
    to: float | None = None


def curve(parts: Sequence[Part], period: float) -> Iterator[float]:
    """Yield the demand at each period: constant or linear over each part."""
    for one in parts:
        rounds = max(1, round(one.seconds / period))
        end = one.level if one.to is None else one.to
        for at in range(rounds):
            yield one.level + (end - one.level) * at / max(1, rounds - 1)


Signals = Callable[[float, int], dict[str, float | None]]
"""From demand and count to what is read."""


def play(player: Player, demand: Iterable[float], signals: Signals) -> list[int]:
    """Play a demand curve; return the count after each round."""
    before = len(player.counts)
    for level in demand:
        player.round(**signals(level, player.count))
    return player.counts[before:]


def changes(counts: Sequence[int]) -> list[int]:
    """Return the counts without repeats: the path."""
    return [one for at, one in enumerate(counts) if at == 0 or one != counts[at - 1]]


def reversals(counts: Sequence[int]) -> int:
    """Return how often the direction turned."""
    path = changes(counts)
    signs = [b > a for a, b in pairwise(path)]
    return sum(1 for a, b in pairwise(signs) if a != b)
