"""Periods of budgets: calendar, cycle, rolling; zones, summer time, leap seconds, clocks."""

from datetime import UTC, date, datetime, timedelta

import pytest
from dsec.api.budget import BudgetPeriod, PeriodKind, PeriodUnit
from dsec.cost.amounts import MoneyError
from dsec.cost.clocks import Mark, advanced
from dsec.cost.periods import FOREVER, Period, Span, aware, instant, period_of, zone_of
from hypothesis import given
from hypothesis import strategies as st

HOUR = 3600
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Kathmandu",
    "+09:00",
    "-03:30",
]


def at(*when: int) -> float:
    """Return a UTC time."""
    return datetime(*when, tzinfo=UTC).timestamp()  # type: ignore[arg-type,misc]


def local(span: Span, zone: str) -> tuple[str, str]:
    """Return a span as local times."""
    assert span.start is not None
    assert span.end is not None
    where = zone_of(zone)
    return (
        datetime.fromtimestamp(span.start, where).strftime("%Y-%m-%d %H:%M"),
        datetime.fromtimestamp(span.end, where).strftime("%Y-%m-%d %H:%M"),
    )


@pytest.mark.parametrize(
    ("zone", "when", "length"),
    [
        ("Europe/Berlin", (2026, 3, 29, 12), 23),
        ("Europe/Berlin", (2026, 10, 25, 12), 25),
        ("Europe/Berlin", (2026, 6, 1, 12), 24),
        ("America/Sao_Paulo", (2018, 11, 4, 12), 23),  # midnight does not exist
        ("America/Havana", (2018, 11, 4, 12), 25),  # midnight comes twice
        ("Australia/Lord_Howe", (2026, 4, 4, 22), 24.5),
        ("UTC", (2016, 12, 31, 12), 24),  # a leap second: POSIX has none
    ],
)
def test_a_day_is_as_long_as_its_zone_says(zone: str, when: tuple[int, ...], length: float) -> None:
    """Both changes of summer time, and midnights that are left out or repeated."""
    span = Period(PeriodKind.CALENDAR, PeriodUnit.DAY, zone=zone).span(at(*when))
    assert span.start is not None
    assert span.end is not None
    assert (span.end - span.start) / HOUR == length
    assert at(*when) in span


@pytest.mark.parametrize(
    ("every", "first", "last"),
    [
        (PeriodUnit.WEEK, "2026-11-23 00:00", "2026-11-30 00:00"),
        (PeriodUnit.MONTH, "2026-11-01 00:00", "2026-12-01 00:00"),
        (PeriodUnit.QUARTER, "2026-10-01 00:00", "2027-01-01 00:00"),
        (PeriodUnit.YEAR, "2026-01-01 00:00", "2027-01-01 00:00"),
    ],
)
def test_calendar_periods_begin_at_local_midnight(every: PeriodUnit, first: str, last: str) -> None:
    """Weeks on Monday, the others on the first."""
    period = Period(PeriodKind.CALENDAR, every, zone="Europe/Berlin")
    assert local(period.span(at(2026, 11, 29, 22, 30)), "Europe/Berlin") == (first, last)


@pytest.mark.parametrize(
    ("when", "first", "last"),
    [
        ((2026, 3, 9, 23), "2026-02-10 00:00", "2026-03-10 00:00"),
        ((2026, 3, 10, 0), "2026-03-10 00:00", "2026-04-10 00:00"),
        ((2026, 4, 1, 0), "2026-03-10 00:00", "2026-04-10 00:00"),
    ],
)
def test_a_cycle_runs_from_its_anchor(when: tuple[int, ...], first: str, last: str) -> None:
    """From the tenth to the tenth, whatever the first of the month does."""
    period = Period(PeriodKind.ANCHORED, PeriodUnit.MONTH, date(2025, 7, 10))
    assert local(period.span(at(*when)), "UTC") == (first, last)


def test_a_cycle_from_the_31st_is_clamped_in_short_months_only() -> None:
    """January 31, February 28, March 31, April 30."""
    period = Period(PeriodKind.ANCHORED, PeriodUnit.MONTH, date(2026, 1, 31))
    starts = []
    when = at(2026, 2, 1)
    for _ in range(4):
        span = period.span(when)
        starts.append(local(span, "UTC")[0][:10])
        assert span.end is not None
        when = span.end
    assert starts == ["2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30"]


@given(
    zone=st.sampled_from(ZONES),
    every=st.sampled_from(PeriodUnit),
    seconds=st.integers(1_200_000_000, 2_000_000_000),
    anchor=st.none() | st.dates(date(2000, 1, 1), date(2030, 12, 31)),
)
def test_periods_adjoin_and_cover_every_second(
    zone: str, every: PeriodUnit, seconds: int, anchor: date | None
) -> None:
    """No second is in two periods or in none; a period answers with itself."""
    kind = PeriodKind.ANCHORED if anchor else PeriodKind.CALENDAR
    period = Period(kind, every, anchor, zone=zone)
    span = period.span(seconds)
    assert span.start is not None
    assert span.end is not None
    assert seconds in span
    assert period.span(span.start) == span
    assert period.span(span.end - 1) == span
    assert period.span(span.end).start == span.end
    assert period.span(span.start - 1).end == span.start


def test_rolling_and_total() -> None:
    """A window that ends now, and one period for ever."""
    window = Period(PeriodKind.ROLLING, rolling_seconds=24 * HOUR)
    assert window.span(at(2026, 3, 29, 12)) == Span(at(2026, 3, 28, 12), None)
    assert FOREVER.span(5.0) == Span(None, None)
    assert -1e9 in FOREVER.span(5.0)


def test_a_leap_second_is_the_second_after_it() -> None:
    """23:59:60 is midnight as POSIX counts; no second is billed twice or lost."""
    assert instant("2016-12-31T23:59:60Z") == at(2017, 1, 1)
    assert instant("2016-12-31T23:59:59Z") == at(2017, 1, 1) - 1
    assert instant("2017-01-01T08:59:60+09:00") == at(2017, 1, 1)
    with pytest.raises(MoneyError, match="no ISO 8601"):
        instant("2016-12-31T25:00:00Z")


def test_a_time_without_zone_is_refused() -> None:
    """It would be another time elsewhere."""
    with pytest.raises(MoneyError, match="has no zone; add one such as Z"):
        instant("2026-03-01T00:00:00")
    with pytest.raises(MoneyError, match="has no zone"):
        aware(datetime(2026, 3, 1))  # noqa: DTZ001 - that is the question


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"kind": "rolling"}, "rollingSeconds: unset"),
        ({"kind": "anchored"}, "anchor: unset"),
        ({"kind": "anchored", "anchor": "2026-02-30"}, "'2026-02-30' is no date"),
        ({"time_zone": "Mars/Olympus"}, "timeZone: 'Mars/Olympus'; an IANA zone"),
        ({"time_zone": "+15:00"}, "timeZone: '.15:00'"),
        ({"time_zone": "../../etc/passwd"}, "timeZone"),
    ],
)
def test_what_is_no_period_is_named(declared: dict[str, str], said: str) -> None:
    """Field, value, what is allowed."""
    with pytest.raises(MoneyError, match=said):
        period_of(BudgetPeriod.model_validate(declared))


def test_a_jump_of_the_wall_clock_moves_nothing() -> None:
    """A month forward, a day back: time goes on by what has passed."""
    mark = advanced(None, 1000.0, 50.0, "a")
    for passed, wall in ((60.0, 1060.0), (60.0, 2.7e6), (60.0, -85_000.0)):
        before = mark.utc
        mark = advanced(mark, wall, mark.boot_seconds + passed, "a")
        assert abs(mark.utc - before - passed) <= 60 * 0.0005
        assert mark.trusted is (wall == 1060.0)


def test_a_leap_second_of_the_clock_is_taken_slowly() -> None:
    """The wall clock repeats a second: half an hour later both agree again."""
    mark = Mark(1000.0, 0.0, "a")
    for second in range(1, 2400):
        mark = advanced(mark, 1000.0 + second - 1, float(second), "a")
    assert abs(mark.off) < 1e-6


def test_time_never_goes_back_over_restarts() -> None:
    """Another machine with an earlier clock waits; a suspended one has counted on."""
    mark = advanced(Mark(1000.0, 5.0, "a"), 900.0, 1.0, "b")
    assert mark.utc == 1000.0
    assert not mark.trusted
    assert advanced(mark, 950.0, 51.0, "b").utc >= 1050.0 - 0.1
    assert advanced(Mark(1000.0, 5.0, "a"), 4600.0, 3605.0, "a").utc == 4600.0
    assert advanced(Mark(1000.0, 5.0, "a"), 1000.0, 3.0, "a").utc == 1000.0


def test_midnight_of_a_day_that_a_zone_skipped() -> None:
    """Apia had no 30 December 2011: the 29th is followed by the 31st."""
    period = Period(PeriodKind.CALENDAR, PeriodUnit.DAY, zone="Pacific/Apia")
    span = period.span(at(2011, 12, 30, 9, 59))
    assert local(span, "Pacific/Apia") == ("2011-12-29 00:00", "2011-12-31 00:00")
    assert span.end is not None
    assert span.end - (span.start or 0) == timedelta(days=1).total_seconds()
