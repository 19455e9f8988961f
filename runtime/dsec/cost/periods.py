"""Periods of budgets: calendar, billing cycle and rolling window, in a time zone. Pure.

Everything outside is seconds since the epoch (UTC); a zone only decides where midnight is. A day
with a change of summer time has 23 or 25 hours, and a period that contains one is that much
shorter or longer; a midnight that a zone leaves out is the first moment after the gap. POSIX time
has no leap seconds: 23:59:60 is the first second of the next day (`instant`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from dsec.api.budget import BudgetPeriod, PeriodKind, PeriodUnit
from dsec.cost.amounts import MoneyError

_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")
_LEAP = re.compile(r":60(?=[.,Z+-]|$)")
_MONTHS: Mapping[PeriodUnit, int] = {
    PeriodUnit.MONTH: 1,
    PeriodUnit.QUARTER: 3,
    PeriodUnit.YEAR: 12,
}
_DAYS: Mapping[PeriodUnit, int] = {PeriodUnit.DAY: 1, PeriodUnit.WEEK: 7}
_MONDAY = date(1970, 1, 5)


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open time, seconds since the epoch; None is without an end on that side."""

    start: float | None = None
    end: float | None = None

    def __contains__(self, at: float) -> bool:
        return (self.start is None or self.start <= at) and (self.end is None or at < self.end)


ALL_TIME = Span()


@dataclass(frozen=True, slots=True)
class Period:
    """When a budget starts anew. Build it with `period_of`, which checks."""

    kind: PeriodKind = PeriodKind.TOTAL
    every: PeriodUnit = PeriodUnit.MONTH
    anchor: date | None = None
    rolling_seconds: int = 0
    zone: str = "UTC"

    def span(self, at: float) -> Span:
        """Return the period that holds a time; for a rolling window, the one that ends there."""
        if self.kind is PeriodKind.TOTAL:
            return Span()
        if self.kind is PeriodKind.ROLLING:
            return Span(at - self.rolling_seconds, None)
        where = zone_of(self.zone)
        today = datetime.fromtimestamp(at, where).date()
        first = self._first(today)
        start, end = self._bounds(first, where)
        # where midnight does not exist or comes twice, the date alone can be off by one
        if at < start:
            start, end = self._bounds(self._step(first, -1), where)
        elif at >= end:
            start, end = self._bounds(self._step(first, 1), where)
        return Span(start, end)

    def _bounds(self, first: date, where: tzinfo) -> tuple[float, float]:
        return midnight(first, where), midnight(self._step(first, 1), where)

    def _first(self, today: date) -> date:
        """Return the first day of the cycle that holds a day."""
        anchor = self.anchor or (_MONDAY if self.every in _DAYS else date(1970, 1, 1))
        if self.every in _DAYS:
            days = _DAYS[self.every]
            return anchor + timedelta(days=(today - anchor).days // days * days)
        months = _MONTHS[self.every]
        passed = (today.year - anchor.year) * 12 + today.month - anchor.month
        first = _plus_months(anchor, passed // months * months)
        return first if first <= today else _plus_months(anchor, passed // months * months - months)

    def _step(self, first: date, by: int) -> date:
        if self.every in _DAYS:
            return first + timedelta(days=by * _DAYS[self.every])
        # from the anchor and not from the last first day: the 31st is clamped in short months only
        anchor = self.anchor or date(1970, 1, 1)
        passed = (first.year - anchor.year) * 12 + first.month - anchor.month
        return _plus_months(anchor, passed + by * _MONTHS[self.every])


FOREVER = Period()
"""One period without start and end."""


def period_of(declared: BudgetPeriod) -> Period:
    """Return the period that a record declares. Raises MoneyError: field, value, remedy."""
    zone_of(declared.time_zone)
    if declared.kind is PeriodKind.ROLLING and declared.rolling_seconds is None:
        raise MoneyError("period.rollingSeconds: unset; kind rolling needs 3600 to 31622400")
    if declared.kind is PeriodKind.ANCHORED and declared.anchor is None:
        raise MoneyError("period.anchor: unset; kind anchored needs a date such as 2026-03-10")
    anchor = None
    if declared.kind is PeriodKind.ANCHORED and declared.anchor is not None:
        try:
            anchor = date.fromisoformat(declared.anchor)
        except ValueError:
            raise MoneyError(
                f"period.anchor: {declared.anchor!r} is no date such as 2026-03-10"
            ) from None
    return Period(
        declared.kind, declared.every, anchor, declared.rolling_seconds or 0, declared.time_zone
    )


def zone_of(name: str) -> tzinfo:
    """Return a zone by IANA name or fixed offset. Raises MoneyError."""
    match = _OFFSET.fullmatch(name)
    if match:
        minutes = int(match[2]) * 60 + int(match[3])
        if int(match[3]) < 60 and minutes <= 14 * 60:  # noqa: PLR2004 - minutes of an hour; the widest zone
            return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))
    elif name == "UTC":
        return UTC
    else:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    raise MoneyError(
        f"period.timeZone: {name!r}; an IANA zone such as Europe/Berlin or an offset from -14:00 "
        f"to +14:00 is allowed"
    )


def midnight(day: date, where: tzinfo) -> float:
    """Return when a day begins in a zone, in seconds since the epoch.

    A midnight that comes twice is the first of the two; one that is left out is the end of the gap.
    """
    begin = datetime.combine(day, time(), where)
    at = begin.timestamp()
    if datetime.fromtimestamp(at, where).replace(tzinfo=None) == begin.replace(tzinfo=None):
        return at
    # in a gap, fold=0 reads with the offset before it: that moment is the gap's length too late
    after = begin.replace(fold=1).timestamp()
    return _first_of(day, where, min(at, after), max(at, after))


def instant(text: str) -> float:
    """Return an ISO 8601 time with its zone as seconds since the epoch.

    A leap second is the second after it, as POSIX counts. Raises MoneyError for a time without
    zone: it would be read as another one elsewhere.
    """
    folded = _LEAP.sub(":59", text)
    try:
        at = datetime.fromisoformat(folded)
    except ValueError:
        raise MoneyError(f"time: {text!r} is no ISO 8601 time") from None
    return aware(at) + (1 if folded != text else 0)


def aware(at: datetime) -> float:
    """Return a time as seconds since the epoch. Raises MoneyError for one without zone."""
    if at.tzinfo is None:
        raise MoneyError(f"time: {at.isoformat()} has no zone; add one such as Z or +09:00")
    return at.timestamp()


def _first_of(day: date, where: tzinfo, low: float, high: float) -> float:
    """Return the first second of a day between two times, of which the later is within it."""

    def inside(at: float) -> bool:
        return datetime.fromtimestamp(at, where).date() >= day

    if inside(low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if inside(middle) else (middle, high)
    return high


def _plus_months(day: date, months: int) -> date:
    """Return a date that many months on; the day is clamped to the month's last."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = (date(year + (month == 11), (month + 1) % 12 + 1, 1) - timedelta(days=1)).day  # noqa: PLR2004 - December
    return date(year, month + 1, min(day.day, last))
