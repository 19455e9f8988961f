"""The money ledger: once per id, rebuilt from rows in any order, and sums that come to zero."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from cost_make import TASK, allowance, commitment, usd
from dsec.api.budget import PeriodKind, PeriodUnit
from dsec.cost.amounts import ZERO, MoneyError, divided
from dsec.cost.budgets import Allowance
from dsec.cost.entries import Entry, EntryKind, entry_of, row_of
from dsec.cost.flows import committed, extended, given, opened, released, settled, turned
from dsec.cost.ledger import Ledger
from dsec.cost.periods import FOREVER, Period, Span
from hypothesis import given as property_of
from hypothesis import strategies as st

RUN = "acme/vision/run"


def use(
    source: str,
    since: float,
    until: float,
    amount: str = "0.10",
    *,
    path: str = TASK,
    pool: str = "burst",
    region: str = "",
) -> Entry:
    """Return an entry of use."""
    return Entry(
        f"consume/{source}/{since:.0f}/{path}",
        EntryKind.CONSUME,
        until,
        path,
        {"USD": usd(amount)},
        source,
        since,
        until,
        region,
        pool,
        what="use",
    )


def ledger_of(*entries: Entry) -> Ledger:
    """Return a ledger with entries."""
    ledger = Ledger()
    ledger.extend(entries)
    return ledger


def test_use_counts_for_its_path_all_above_and_the_pool() -> None:
    """Once each; not for a neighbour."""
    ledger = ledger_of(use("n1", 0, 300), use("n1", 300, 600), use("n2", 0, 300, path=RUN))
    for path, spent in (
        ("acme", "0.30"),
        ("acme/vision", "0.30"),
        (TASK, "0.20"),
        (RUN, "0.10"),
        ("pool:burst", "0.30"),
        ("zeta", "0"),
    ):
        assert ledger.spent(allowance("1", path), Span(), "") == usd(spent), path


def test_an_entry_counts_once() -> None:
    """The same id again changes nothing; with another content it is refused."""
    ledger = ledger_of(use("n1", 0, 300))
    assert not ledger.append(use("n1", 0, 300))
    assert not ledger.append(replace(use("n1", 0, 300), at=999.0))
    with pytest.raises(MoneyError, match="booked with another content"):
        ledger.append(use("n1", 0, 300, "0.11"))
    assert ledger.total("acme", "USD") == usd("0.10")


def test_time_is_not_booked_twice() -> None:
    """After a restart metering goes on where the rows end; what overlaps is refused as a whole."""
    ledger = ledger_of(use("n1", 0, 300))
    assert ledger.charged_until("n1") == 300
    books = ledger.books()
    with pytest.raises(MoneyError, match="booked already up to 300; book from there"):
        ledger.extend([use("n2", 0, 300), use("n1", 200, 400)])
    assert ledger.books() == books
    assert ledger.append(use("n1", 300, 400))


def test_a_window_counts_what_began_in_it() -> None:
    """Days and single quarters of an hour; a cut quarter counts whole, on the safe side."""
    at = [0, 899, 900, 86_100, 86_400, 86_400 * 3]
    ledger = ledger_of(*(use(f"n{n}", begin, begin, "1") for n, begin in enumerate(at)))
    one = allowance("9")
    for span, count in (
        (Span(), 6),
        (Span(0, 86_400), 4),
        (Span(86_400, None), 2),
        (Span(900, 86_400), 2),
        (Span(899, 901), 3),
        (Span(None, 900), 2),
        (Span(86_400 * 2, 86_400 * 3), 0),
    ):
        assert ledger.spent(one, span, "") == count, span


def test_regions_are_counted_apart_where_a_budget_has_escrow() -> None:
    """And together where it has none."""
    ledger = ledger_of(use("n1", 0, 9, "1", region="a"), use("n2", 0, 9, "2", region="b"))
    parted = allowance("9", regions=(("a", 50), ("b", 50)))
    assert ledger.spent(parted, Span(), "a") == usd(1)
    assert ledger.spent(allowance("9"), Span(), "a") == usd(3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": ""}, "entry.id: empty"),
        ({"path": "a//b"}, "path: 'a//b'"),
        ({"amounts": {"USD": usd(-1)}}, "amounts.USD"),
        ({"amounts": {"USD": Decimal("NaN")}}, "amounts.USD"),
        ({"amounts": {"usd": usd(1)}}, "amounts: 'usd'"),
        ({"amounts": {"USD": 0.1}}, "an exact amount from 0"),
        ({"since": None}, "use needs a source and a time"),
        ({"until": -5.0}, "since <= until"),
        ({"until": 1000.0}, "crosses a quarter of an hour; cut it there"),
        ({"commitment": commitment()}, "belongs to commit and release"),
    ],
)
def test_a_row_that_makes_no_sense_is_named(change: dict[str, object], said: str) -> None:
    """Nothing that could not be summed is ever booked."""
    with pytest.raises(MoneyError, match=said):
        replace(use("n1", 0, 300), **change)  # type: ignore[arg-type]


def test_rows_are_json_and_malformed_ones_are_named() -> None:
    """Amounts stay exact; what is missing is said."""
    for entry in (use("n1", 0, 300), *committed(Ledger(), commitment(), 5.0)):
        row = json.loads(json.dumps(row_of(entry)))
        assert entry_of(row) == entry
        assert entry_of({**row, "added later": 1}) == entry
    with pytest.raises(MoneyError, match="'amounts' is missing or malformed"):
        entry_of({"id": "x", "kind": "consume", "at": 0, "path": "a"})
    with pytest.raises(MoneyError, match="missing or malformed"):
        entry_of({"id": "x", "kind": "steal", "at": 0, "path": "a", "amounts": {}})


def test_promises_end_with_their_release_and_are_charged_up_to_what_is_booked() -> None:
    """A new revision takes the place of the old; a crash between its rows promises too much."""
    ledger = Ledger()
    one = commitment("n1", until=1800.0)
    ledger.extend(committed(ledger, one, 0.0))
    ledger.append(use("n1", 0, 300))
    assert [(held.run_until, held.charged_until) for held in ledger.open()] == [(1800.0, 300)]
    rows = committed(ledger, extended(one, 3600.0), 900.0)
    assert [row.kind for row in rows] == [EntryKind.COMMIT, EntryKind.RELEASE]
    ledger.append(rows[0])
    assert [held.run_until for held in ledger.open()] == [3600.0]
    ledger.append(rows[1])
    assert [held.run_until for held in ledger.open(TASK)] == [3600.0]
    assert ledger.open(RUN) == []
    ledger.extend(released(ledger, "n1", 999.0))
    assert ledger.open() == []
    assert released(ledger, "n1", 1000.0) == ()
    sums = {
        kind: sum((e.amounts["USD"] for e in ledger.entries.values() if e.kind is kind), ZERO)
        for kind in (EntryKind.COMMIT, EntryKind.RELEASE)
    }
    assert sums[EntryKind.COMMIT] == sums[EntryKind.RELEASE] > 0


def test_a_task_given_100_that_used_60_returns_40() -> None:
    """TEN-03 and COST-06: allocate, consume and return come to zero; the project has 40 more."""
    project, task = allowance("500", "acme/vision"), allowance("100", TASK)
    ledger = ledger_of(*opened(Ledger(), project, Span(), 0.0))
    new = given(ledger, task, 0.0, above=[project])
    assert not isinstance(new, str)
    ledger.extend(new)
    assert ledger.balance("acme/vision", "USD") == usd(400)
    ledger.extend(committed(ledger, commitment("n1"), 0.0))
    ledger.append(use("n1", 0, 300, "60"))
    ledger.extend(settled(ledger, TASK, 400.0))
    assert ledger.balances(TASK) == {}
    assert ledger.balance("acme/vision", "USD") == usd(440)
    assert ledger.open() == []
    assert settled(ledger, TASK, 500.0) == ()
    kinds = [e.kind.value for e in ledger.entries.values() if e.path == TASK]
    assert kinds == ["allocate", "commit", "consume", "release", "return"]
    # a late report of use: closing again settles that too
    ledger.append(use("n1", 300, 310, "5"))
    ledger.extend(settled(ledger, TASK, 600.0))
    assert ledger.balances(TASK) == {}
    assert ledger.balance("acme/vision", "USD") == usd(435)


def test_a_project_cannot_give_what_it_has_not() -> None:
    """In words, and nothing is booked; without a budget above the limit alone counts."""
    project, task = allowance("30", "acme/vision"), allowance("100", TASK)
    ledger = ledger_of(*opened(Ledger(), project, Span(), 0.0))
    assert given(ledger, task, 0.0, above=[project]) == (
        "budget of acme/vision: asked 100.00 USD for acme/vision/walk, free 30.00 USD; starts when "
        "other tasks of acme/vision give back what they did not spend or its limit is raised"
    )
    assert not isinstance(given(Ledger(), task, 0.0), str)


def test_what_is_left_at_the_end_of_a_month_does_not_stay() -> None:
    """The next month has its limit and no more, however often it is turned."""
    monthly = allowance("100", "acme", period=Period(PeriodKind.CALENDAR, PeriodUnit.MONTH))
    january, february = 15 * 86_400.0, 40 * 86_400.0
    span = monthly.period.span(january)
    ledger = ledger_of(
        *opened(Ledger(), monthly, span, january), use("n", january, january, "30", path="acme")
    )
    ledger.extend(turned(ledger, monthly, span, february))
    assert ledger.balance("acme", "USD") == usd(100)
    ledger.extend(turned(ledger, monthly, span, february + 9))
    assert ledger.balance("acme", "USD") == usd(100)


def test_a_limit_that_is_changed_gives_or_takes_the_difference() -> None:
    """Raised from 100 to 150, lowered to 120: 120 in all; asked again: nothing."""
    ledger = Ledger()
    for limit in (100, 150, 150, 120, 120):
        ledger.extend(opened(ledger, allowance(limit), Span(), float(limit)))
        assert ledger.balance("acme", "USD") == usd(limit)
    assert [e.kind.value for e in ledger.entries.values()] == ["allocate", "allocate", "return"]


def test_old_rows_become_sums_and_are_still_known() -> None:
    """Memory stays bounded; what is asked of the ledger does not change, nor is it booked again."""
    ledger = Ledger()
    one = commitment("n1", until=1800.0)
    rows = [*committed(ledger, one, 0.0)]
    ledger.extend(rows)
    for turn in range(1, 9):
        new = [
            *committed(ledger, replace(one, run_until=900.0 * turn, revision=turn), turn * 900.0),
            *(use("n1", at, at + 300) for at in range(turn * 900, turn * 900 + 900, 300)),
        ]
        rows += ledger.extend(new)
    books = ledger.books()
    assert ledger.forget(1e9) == len(rows) - 1  # the last promise is open
    assert ledger.books() == books
    assert ledger.extend(rows) == []
    assert ledger.spent(allowance(9), Span(900, 1800), "") == usd("0.30")
    assert ledger.append(use("n1", 8100, 8400))


AMOUNTS = st.decimals(0, 1000, places=6, allow_nan=False, allow_infinity=False)


@property_of(data=st.data())
def test_the_rows_in_any_order_and_repeated_make_the_same_books(data: st.DataObject) -> None:
    """A crash loses nothing and doubles nothing."""
    ledger, rows = Ledger(), []
    clocks: dict[str, float] = {}
    for step in range(data.draw(st.integers(1, 12))):
        source = data.draw(st.sampled_from(["n1", "n2", "n3"]))
        since = clocks.get(source, 0.0)
        until = min(since + data.draw(st.integers(1, 300)), (since // 900 + 1) * 900)
        path = data.draw(st.sampled_from([TASK, RUN, "acme/text", "pool:burst"]))
        new = [use(source, since, until, str(data.draw(AMOUNTS)), path=path, region="r")]
        clocks[source] = until
        kind = data.draw(st.integers(0, 3))
        held = [one for one in ledger.open() if one.id == source]
        if kind == 1:
            one = extended(held[0], until + 60) if held else commitment(source, until=60.0)
            new += committed(ledger, one, until)
        elif kind == 2:
            new += released(ledger, source, until)
        elif kind == 3:
            limit = allowance(str(data.draw(AMOUNTS)), path)
            new += [replace(one, id=f"x/{step}") for one in opened(ledger, limit, Span(), until)]
        rows += [json.loads(json.dumps(row_of(one))) for one in ledger.extend(new)]
    books = ledger.books()
    ledger.forget(data.draw(st.integers(0, 4000)))
    assert ledger.books() == books
    assert ledger.extend(map(entry_of, rows)) == []
    saved = json.loads(json.dumps(ledger.checkpoint()))
    left = [row_of(one) for one in ledger.entries.values()]
    assert Ledger.rebuild(left, saved).books() == books
    assert Ledger.rebuild(data.draw(st.permutations(rows)), saved).books() == books
    shuffled = data.draw(st.permutations(rows + rows[: len(rows) // 2]))
    again = Ledger.rebuild(shuffled)
    assert again.books() == books
    for path in (TASK, RUN):
        again.extend(settled(again, path, 9e5))
        assert again.balances(path) == {}


@property_of(total=AMOUNTS, weights=st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_parts_add_up_and_are_fair(total: Decimal, weights: list[int]) -> None:
    """Largest remainder: the sum is exact, and no part is off by a millionth."""
    parts = divided(total, weights)
    assert sum(parts) == total
    whole = sum(weights)
    if whole:
        for part, weight in zip(parts, weights, strict=True):
            assert abs(part - total * weight / whole) < Decimal("0.000001")


def test_what_cannot_be_divided_is_refused() -> None:
    """No parts, a weight below nothing, less than a millionth."""
    for total, weights in ((usd(1), []), (usd(1), [1, -1]), (usd("0.0000001"), [1])):
        with pytest.raises(MoneyError):
            divided(total, weights)
    assert divided(usd(1), [0, 0]) == (usd(1), ZERO)
    assert Allowance("a", "a", usd(1), "USD").period is FOREVER
