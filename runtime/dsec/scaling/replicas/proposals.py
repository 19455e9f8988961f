"""Thresholds from a recorded week: what a role's own load says about its bounds (ELAS-28). Pure.

Record a week with shrinking off, then read the proposal: it changes nothing by itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from dsec.api.elastic import ElasticWindow
from dsec.api.scaling import Weekday
from dsec.scaling.replicas.schedule import DAYS, zone_of
from dsec.scaling.signals import use_of

WEEK_HOURS = 168
ENOUGH = 0.9
"""Part of the week's hours that have to be recorded; below, the proposal says so."""
QUIET = 0.5
"""Hours whose busiest tenth needs less than this part of the week's are a night."""
USE_GOAL = 70.0
"""Mean use, in percent, that a proposed count would have."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One sample of a week: what the role had, and how busy it was."""

    utc: datetime
    count: int
    use: float
    """Mean use in percent."""
    metric: float
    """The value of the metric that the role follows."""


def recorded(utc: datetime, body: Mapping[str, object], metric: str) -> Recorded | None:
    """Return the sample of a `replicas-sampled` row of history; None where it lacks a figure."""
    readings, count = body.get("readings"), body.get("count")
    if not isinstance(readings, Mapping) or not isinstance(count, int):
        return None
    values = {
        str(name): float(one) for name, one in readings.items() if isinstance(one, int | float)
    }
    use = use_of(values)
    if use is None or metric not in values:
        return None
    return Recorded(utc, count, use, values[metric])


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed numbers, and sentences that say where they come from."""

    target: int
    lower: int
    low: int
    high: int
    windows: tuple[ElasticWindow, ...]
    words: tuple[str, ...]


def propose(samples: Sequence[Recorded], zone: str = "UTC") -> Proposal:
    """Return thresholds and nights for a role. Raises ValueError without any sample.

    The trigger is what the metric is above in its busiest tenth, the lower bound its quietest
    quarter; bounds are the counts that the load needed at a mean use of 70 %.
    """
    if not samples:
        raise ValueError("no sample was recorded: let the role run for a week first")
    place = zone_of(zone)
    need = [max(1, math.ceil(one.count * one.use / USE_GOAL)) for one in samples]
    metric = [one.metric for one in samples]
    by_hour: dict[tuple[Weekday, int], list[int]] = {}
    for one, count in zip(samples, need, strict=True):
        local = one.utc.astimezone(place)
        by_hour.setdefault((DAYS[local.weekday()], local.hour), []).append(count)
    peak = _quantile(need, 0.95)
    quiet = {
        hour: max(counts)
        for hour, counts in by_hour.items()
        if _quantile(counts, 0.9) <= peak * QUIET
    }
    windows = _windows(quiet)
    target, lower = _quantile(metric, 0.9), _quantile(metric, 0.25)
    words = [
        f"trigger {target:.0f}: the metric is above it in the busiest tenth of the time",
        f"lower bound {lower:.0f}: it is below in the quietest quarter",
        (
            f"at {USE_GOAL:.0f} % use between {min(need)} and {max(need)} replicas were needed, "
            f"{peak:.0f} or fewer in 95 % of the time"
        ),
        *(
            f"{one.start}-{one.end} on {', '.join(one.days)}: at most {one.max} were needed"
            for one in windows
        ),
    ]
    covered = len(by_hour) / WEEK_HOURS
    if covered < ENOUGH:
        words.append(
            f"only {len(by_hour)} of {WEEK_HOURS} hours of a week were recorded: wait before use"
        )
    return Proposal(
        target=round(target),
        lower=min(round(lower), round(target)),
        low=min(need),
        high=max(need),
        windows=tuple(windows),
        words=tuple(words),
    )


def _windows(quiet: Mapping[tuple[Weekday, int], int]) -> list[ElasticWindow]:
    """Return stretches of quiet hours, equal ones of several days as one window."""
    found: dict[tuple[int, int], list[tuple[Weekday, int]]] = {}
    for day in DAYS:
        hours = sorted(hour for name, hour in quiet if name is day)
        runs = groupby(enumerate(hours), key=lambda pair: pair[1] - pair[0])
        for _, run in runs:
            stretch = [hour for _, hour in run]
            most = max(quiet[day, hour] for hour in stretch)
            found.setdefault((stretch[0], stretch[-1] + 1), []).append((day, most))
    return [
        ElasticWindow(
            days=[day for day, _ in days],
            start=f"{start:02d}:00",
            end=f"{end % 24:02d}:00",
            max=max(most for _, most in days),
        )
        for (start, end), days in sorted(found.items())
    ]


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
