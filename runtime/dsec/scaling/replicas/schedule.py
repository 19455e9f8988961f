"""Bounds of a count by time of the week (ELAS-18, ELAS-28). Pure; days and hours are wall time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dsec.api.elastic import ElasticWindow
from dsec.api.scaling import Weekday

DAYS = tuple(Weekday)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most replicas now."""

    low: int
    high: int
    window: str = ""
    """The window that set them, as start-end; empty: the role's own."""


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone. Raises ValueError where there is none of that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name}: no time zone of that name; use one like Asia/Shanghai") from None


def bounds_at(
    windows: Sequence[ElasticWindow], zone: str, utc: datetime, own: Bounds, *, shrink: bool = True
) -> Bounds:
    """Return the bounds that hold at a UTC time: those of the first window, else the role's own.

    With `shrink` off a window may raise bounds only. A floor of at least 1 always holds: what a
    schedule takes down to nothing cannot come back before work times out.
    """
    local = utc.astimezone(zone_of(zone))
    found = next((one for one in windows if _holds(one, local)), None)
    if found is None:
        return own
    low = own.low if found.min is None else max(1, found.min)
    high = own.high if found.max is None else max(1, found.max)
    if not shrink:
        low, high = max(low, own.low), max(high, own.high)
    return Bounds(min(low, high), high, f"{found.start}-{found.end}")


def _holds(window: ElasticWindow, local: datetime) -> bool:
    start, end, minute = (
        _minutes(window.start),
        _minutes(window.end),
        local.hour * 60 + local.minute,
    )
    if start < end:
        return start <= minute < end and _on(window, local)
    # over midnight: its second part belongs to the day on which it began
    return (minute >= start and _on(window, local)) or (
        minute < end and _on(window, local - timedelta(days=1))
    )


def _on(window: ElasticWindow, local: datetime) -> bool:
    return not window.days or DAYS[local.weekday()] in window.days


def _minutes(clock: str) -> int:
    hours, _, minutes = clock.partition(":")
    return int(hours) * 60 + int(minutes)
