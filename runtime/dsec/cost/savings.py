"""What was saved and wasted, and how well pools were used. Pure; each figure has its formula."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dsec.cost.amounts import CPU_HOURS, GPU_HOURS, HOUR, ZERO, MoneyError, ceil_micro, over
from dsec.cost.entries import Entry
from dsec.cost.metering import NodeUse, SandboxUse
from dsec.cost.periods import ALL_TIME, Span
from dsec.cost.report import By, Row, plain, report


@dataclass(frozen=True, slots=True)
class Saving:
    """Actual use beside a static allocation, in instance-seconds and in percent (COST-08)."""

    actual: Fraction
    static: Fraction
    percent: Decimal
    formula: str


def saving(trace: Sequence[tuple[float, int]], end: float, *, static: int | None = None) -> Saving:
    """Return what a trace of counts saves against a fixed count; unset: its own peak.

    `trace` is (time, count from then on), in order of time. Raises MoneyError for an empty trace,
    one that is not in order, and a static count of none.
    """
    times = [at for at, _ in trace] + [end]
    if not trace or times != sorted(times) or times[0] == end:
        raise MoneyError(f"trace: {list(trace)[:3]!r} to {end}; times in order are allowed")
    fixed = max(count for _, count in trace) if static is None else static
    if fixed < 1:
        raise MoneyError(f"static: {fixed}; 1 or more is allowed")
    actual = sum(
        (
            Fraction(count) * (Fraction(times[at + 1]) - Fraction(times[at]))
            for at, (_, count) in enumerate(trace)
        ),
        Fraction(0),
    )
    whole = fixed * (Fraction(end) - Fraction(times[0]))
    percent = _percent(1 - actual / whole)
    formula = (
        f"1 - instance-hours used / (static count * hours) = 1 - {float(actual / HOUR):.2f} / "
        f"({fixed} * {float((Fraction(end) - Fraction(times[0])) / HOUR):.2f}) = {percent} %"
    )
    return Saving(actual, whole, percent, formula)


@dataclass(frozen=True, slots=True)
class Waste:
    """One experiment, what it cost, and whether anybody has read what it made (COST-09)."""

    task: str
    money: Decimal
    read: bool


def waste(
    entries: Iterable[Entry], read: Mapping[str, bool], currency: str, *, span: Span = ALL_TIME
) -> tuple[Waste, ...]:
    """Return experiments by cost, the dearest first, marked where their results were never read."""
    rows = report(entries, By.TASK, span=span)
    found = [
        Waste(one.key, one.money.get(currency, ZERO), read.get(one.key, False))
        for one in rows
        if one.key.count("/") == 2  # noqa: PLR2004 - tenant/project/task
    ]
    return tuple(sorted(found, key=lambda one: (-one.money, one.task)))


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How much of a pool was booked, and used where that was measured, in percent (COST-14)."""

    pool: str
    cpu_percent: Decimal
    gpu_percent: Decimal | None
    """None: it has no GPUs."""
    measured_gpu_percent: Decimal | None
    available_hours: Mapping[str, Decimal]
    booked_hours: Mapping[str, Decimal]


def utilisation(
    nodes: Sequence[NodeUse],
    sandboxes: Mapping[str, Sequence[SandboxUse]],
    span: tuple[int, int],
    *,
    measured: Mapping[str, Sequence[tuple[float, Decimal]]] | None = None,
) -> tuple[Utilisation, ...]:
    """Return the use of each pool: booked resource-hours / resource-hours of its nodes.

    `sandboxes` by node; `measured` by pool: (seconds, GPU use from 0 to 1), a mean over time.
    """
    since, until = span
    have: dict[str, dict[str, Fraction]] = {}
    used: dict[str, dict[str, Fraction]] = {}
    for node in nodes:
        begin = max(since, node.begin)
        end = min(until, until if node.ended is None else int(node.ended))
        here = SandboxUse(node.node, "", node.price.shape, float(begin), float(end))
        _sum(have.setdefault(node.pool, {}), here, (begin, end))
        mine = used.setdefault(node.pool, {})
        for one in sandboxes.get(node.node, ()):
            _sum(mine, one, (begin, end))
    found = []
    for pool in sorted(have):
        cpu, gpu = (_share(used[pool], have[pool], unit) for unit in (CPU_HOURS, GPU_HOURS))
        samples = (measured or {}).get(pool, ())
        weight = sum((Fraction(seconds) for seconds, _ in samples), Fraction(0))
        mean = (
            _percent(sum((Fraction(s) * Fraction(v) for s, v in samples), Fraction(0)) / weight)
            if weight
            else None
        )
        found.append(
            Utilisation(pool, cpu or ZERO, gpu, mean, _hours(have[pool]), _hours(used[pool]))
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class IdleCost:
    """What a pool's nodes cost while nobody used them, beside what was used (COST-17)."""

    pool: str
    used: Decimal
    idle: Decimal
    idle_percent: Decimal
    of_idle: Mapping[str, Decimal]
    """The idle cost of owned nodes by what it pays for: amortisation, energy, overhead."""


def idle_costs(
    rows: Iterable[Row], nodes: Sequence[NodeUse], currency: str
) -> tuple[IdleCost, ...]:
    """Return the idle cost per pool from a report by pool and the nodes that it is about."""
    parts: dict[str, dict[str, Decimal]] = {}
    for node in nodes:
        mine = parts.setdefault(node.pool, {})
        for name, amount in node.price.idle_parts.items():
            mine[name] = mine.get(name, ZERO) + amount
    found = []
    for row in rows:
        money, idle = row.money.get(currency, ZERO), row.idle.get(currency, ZERO)
        weights = parts.get(row.key, {})
        whole = sum(weights.values(), ZERO)
        of_idle = {name: idle * one / whole for name, one in weights.items()} if whole else {}
        share = _percent(Fraction(idle) / Fraction(money)) if money else ZERO
        found.append(IdleCost(row.key, money - idle, idle, share, of_idle))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class IdleQuota:
    """A quota that nobody used in a period (COST-15)."""

    path: str
    nominal: Mapping[str, int]
    last_used: float | None


def idle_quotas(
    nominal: Mapping[str, Mapping[str, int]], last_used: Mapping[str, float], span: Span
) -> tuple[IdleQuota, ...]:
    """Return the accounts with a quota and no use in a span, those unused for longest first."""
    found = [
        IdleQuota(path, amounts, last_used.get(path))
        for path, amounts in nominal.items()
        if any(amounts.values())
        and (path not in last_used or (span.start is not None and last_used[path] < span.start))
    ]
    return tuple(sorted(found, key=lambda one: (one.last_used or 0.0, one.path)))


def cost_per_sample(money: Decimal, valid: int) -> Decimal | None:
    """Return cost / valid samples, rounded up to a millionth (ROAD-09); None: there are none."""
    return ceil_micro(Fraction(money) / valid) if valid > 0 else None


def cost_of_next(price_per_hour: Decimal, gain_per_second: Decimal) -> Decimal | None:
    """Return what the next valid sample costs on one more instance: price / gain (ROAD-10).

    `gain_per_second`: valid samples that the last instance added. None: it adds none.
    """
    if gain_per_second <= 0:
        return None
    return ceil_micro(over(price_per_hour, 1) / Fraction(gain_per_second))


def task_report(
    task: str,
    entries: Iterable[Entry],
    *,
    started: float,
    ended: float,
    throughput: Sequence[tuple[float, Decimal]],
    trace: Sequence[tuple[float, int]] = (),
) -> dict[str, Any]:
    """Return the four sections of a task's report (COST-07) as JSON data.

    `throughput` is (time, samples a second); `trace` its replica counts, for the saving figure.
    """
    row = next((one for one in report(entries, By.TASK) if one.key == task), Row(task, {}))
    shown = plain(row)
    found: dict[str, Any] = {
        "task": task,
        "trainingTime": {"started": started, "ended": ended, "seconds": ended - started},
        "resourceUse": {"cpuHours": shown["cpuHours"], "gpuHours": shown["gpuHours"]},
        "throughputCurve": [[at, f"{value:f}"] for at, value in throughput],
        "cost": {name: shown[name] for name in ("money", "rounded", "idle", "storage", "egress")},
    }
    if trace:
        figure = saving(trace, ended)
        found["cost"]["saving"] = {"percent": f"{figure.percent:f}", "formula": figure.formula}
    return found


def _sum(into: dict[str, Fraction], one: SandboxUse, span: tuple[int, int]) -> None:
    seconds = one.seconds(*span)
    for unit, milli in ((CPU_HOURS, one.booked.cpu_milli), (GPU_HOURS, one.booked.gpu_milli)):
        into[unit] = into.get(unit, Fraction(0)) + Fraction(milli, 1000) * seconds / HOUR


def _share(used: Mapping[str, Fraction], have: Mapping[str, Fraction], unit: str) -> Decimal | None:
    return _percent(used.get(unit, Fraction(0)) / have[unit]) if have.get(unit) else None


def _hours(sums: Mapping[str, Fraction]) -> dict[str, Decimal]:
    return {unit: ceil_micro(one) for unit, one in sums.items() if one}


def _percent(share: Fraction) -> Decimal:
    return Decimal(round(share * 1000)) / 10
