"""What a further replica is worth: cost of a valid sample, and where more or less of it pays. Pure.

ROAD-09 to ROAD-12. A gain curve is measured: counts with the valid samples a second that they gave.
Money is Decimal in one currency; rates are floats and become Decimal where they meet money.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

HOUR = Decimal(3600)


@dataclass(frozen=True, slots=True)
class Point:
    """A count and the valid samples a second that it gave."""

    count: int
    rate: float


@dataclass(frozen=True, slots=True)
class Task:
    """A role that may be made larger or smaller for money's sake."""

    name: str
    count: int
    low: int
    high: int
    price_per_hour: Decimal
    """Of one replica."""
    curve: tuple[Point, ...]


def cost_per_sample(cost: Decimal, valid: int) -> Decimal | None:
    """Return what a valid sample cost (ROAD-09); None where there is none yet."""
    return cost / valid if valid > 0 else None


def rate_at(curve: Sequence[Point], count: float) -> float:
    """Return the rate at a count: linear between measured ones, through zero, flat beyond."""
    known = [Point(0, 0.0), *sorted((p for p in curve if p.count > 0), key=lambda p: p.count)]
    for one, two in pairwise(known):
        if count <= two.count:
            part = (count - one.count) / (two.count - one.count)
            return one.rate + part * (two.rate - one.rate)
    return known[-1].rate


def marginal(curve: Sequence[Point], count: int) -> float:
    """Return the samples a second that the last replica adds."""
    return rate_at(curve, count) - rate_at(curve, count - 1)


def _per_money(task: Task, count: int) -> Decimal:
    gain = Decimal(repr(marginal(task.curve, count)))
    return gain / task.price_per_hour if task.price_per_hour else gain * HOUR


def cut(tasks: Sequence[Task], save_per_hour: Decimal) -> dict[str, int]:
    """Return counts that save so much an hour: who gains least from its last replica goes first.

    ROAD-10: of two tasks the one with the flatter curve loses replicas. Nobody falls below its
    least count; where that is not enough, everything that can go has gone.
    """
    counts = {one.name: one.count for one in tasks}
    left = save_per_hour
    while left > 0:
        able = [one for one in tasks if counts[one.name] > one.low]
        if not able:
            break
        worst = min(able, key=lambda one: (_per_money(one, counts[one.name]), one.name))
        counts[worst.name] -= 1
        left -= worst.price_per_hour
    return counts


def spend(tasks: Sequence[Task], room_per_hour: Decimal) -> dict[str, int]:
    """Return counts that use room of a budget: small tasks first, while a replica still helps.

    ROAD-11: with head-room parallelism rises without any queue.
    """
    counts = {one.name: one.count for one in tasks}
    left = room_per_hour
    while True:
        able = [
            one
            for one in tasks
            if counts[one.name] < one.high
            and one.price_per_hour <= left
            and marginal(one.curve, counts[one.name] + 1) > 0
        ]
        if not able:
            return counts
        small = min(able, key=lambda one: (counts[one.name], one.name))
        counts[small.name] += 1
        left -= small.price_per_hour


def choose(task: Task, samples: int, speed: Decimal) -> int:
    """Return the count that is best for so many samples, between least money and least time.

    ROAD-12: `speed` is 0 (least money) to 1 (the fastest). Time and money are each taken relative
    to their least; of equals the smaller count wins.
    """
    options: dict[int, tuple[Decimal, Decimal]] = {}
    for count in range(max(1, task.low), task.high + 1):
        rate = Decimal(repr(rate_at(task.curve, count)))
        if rate > 0:
            hours = samples / rate / HOUR
            options[count] = (hours, hours * count * task.price_per_hour)
    if not options:
        return task.count
    fastest = min(hours for hours, _ in options.values())
    cheapest = min(money for _, money in options.values())

    def score(count: int) -> Decimal:
        hours, money = options[count]
        dear = money / cheapest if cheapest else Decimal(1)
        return speed * hours / fastest + (1 - speed) * dear

    return min(options, key=lambda count: (score(count), count))


def table(tasks: Mapping[str, tuple[Decimal, int]]) -> list[tuple[str, Decimal | None]]:
    """Return tasks with the cost of their valid samples, dearest first, without samples last."""
    rows = [(name, cost_per_sample(cost, valid)) for name, (cost, valid) in tasks.items()]
    return sorted(rows, key=lambda row: (row[1] is None, -(row[1] or Decimal(0)), row[0]))
