"""What a node cost whom: sums to its price, whatever the cells; prices and their parts."""

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest
from cost_make import GIB, NODE, TASK, allowance, price, usd
from dsec.api.budget import PeriodKind, PeriodUnit
from dsec.cost.amounts import ZERO, MoneyError, added, cents, exact, shown
from dsec.cost.awslist import instance_prices, spot_prices, tiered_prices
from dsec.cost.budgets import standing
from dsec.cost.commitments import Commitment, Payer
from dsec.cost.entries import row_of
from dsec.cost.flows import committed
from dsec.cost.gate import state_of
from dsec.cost.ledger import Ledger
from dsec.cost.metering import (
    IdleRule,
    LineKind,
    NodeUse,
    SandboxUse,
    StoredUse,
    bill,
    cells,
    cost_in,
    egress,
    entries,
    meter,
    stored,
)
from dsec.cost.periods import Period, instant
from dsec.cost.prices import (
    NodePrice,
    OwnedCost,
    PriceBook,
    Rates,
    Shape,
    booking_rates,
    dearest,
    of_owned,
    of_rates,
    of_total,
)
from hypothesis import given
from hypothesis import strategies as st

RUN = "acme/vision/run"
HALF = Shape(2000, 8 * GIB)
QUARTER = Shape(1000, 4 * GIB)


def node(per_hour: str = "1", **more: object) -> NodeUse:
    """Return a node that started at 0."""
    return replace(NodeUse("n", price(per_hour), 0.0, pool="own"), **more)  # type: ignore[arg-type]


def box(
    name: str, path: str, booked: Shape, since: float = 0, until: float | None = None
) -> SandboxUse:
    """Return a sandbox."""
    return SandboxUse(name, path, booked, since, until)


def money(lines: object) -> dict[tuple[str, str], Decimal]:
    """Return the amounts of lines in USD, by path and kind."""
    found: dict[tuple[str, str], Decimal] = {}
    for one in lines:  # type: ignore[attr-defined]
        key = (one.path, one.kind.value)
        found[key] = found.get(key, ZERO) + one.amounts.get("USD", ZERO)
    return found


def test_an_owned_node_is_paid_by_use_and_its_idle_rest_by_the_pool() -> None:
    """Half and a quarter booked: the rest is the pool's own line."""
    lines = meter(node("1.2"), [box("a", TASK, HALF), box("b", RUN, QUARTER)], (0, 300))
    assert money(lines) == {
        (TASK, "use"): usd("0.05"),
        (RUN, "use"): usd("0.025"),
        ("pool:own", "idle"): usd("0.025"),
    }
    assert [one.used for one in lines if one.path == TASK] == [{"cpu-hours": usd("0.166667")}]


def test_idle_time_may_be_paid_by_those_who_use_the_node() -> None:
    """In proportion to their use; nobody there: the pool."""
    boxes = [box("a", TASK, HALF), box("b", RUN, QUARTER)]
    lines = meter(node("1.2"), boxes, (0, 300), idle=IdleRule.USERS)
    assert money(lines) == {(TASK, "use"): usd("0.066667"), (RUN, "use"): usd("0.033333")}
    alone = meter(node("1.2"), [], (0, 300), idle=IdleRule.USERS)
    assert money(alone) == {("pool:own", "idle"): usd("0.10")}


def test_a_cloud_node_is_paid_by_whom_it_was_bought_for() -> None:
    """Weights of the commitment first; then the payer's sandboxes and its idle rest."""
    cloud = node("1.2", payers=(Payer(TASK, 3), Payer(RUN)), pool="burst")
    lines = meter(cloud, [box("a", TASK, HALF), box("g", "zeta/p/t", QUARTER)], (0, 300))
    assert money(lines) == {
        (TASK, "use"): usd("0.05"),
        (TASK, "idle"): usd("0.025"),
        (RUN, "idle"): usd("0.025"),
    }
    # a payer pays for its part and not more, however much it books
    lines = meter(cloud, [box("b", RUN, HALF)], (0, 300))
    assert money(lines)[RUN, "use"] == usd("0.025")
    assert sum((one.amounts["cpu-hours"] for one in lines), ZERO) == usd("0.333334")


def test_the_nearest_payer_above_a_sandbox_pays() -> None:
    """A task of its own budget and its project on one node."""
    cloud = node("1.2", payers=(Payer("acme/vision"), Payer(TASK)))
    lines = meter(cloud, [box("a", TASK, QUARTER), box("b", RUN, QUARTER)], (0, 300))
    assert money(lines)[TASK, "use"] == usd("0.025")
    assert money(lines)[RUN, "use"] == usd("0.025")


def test_what_is_booked_above_the_node_shares_it() -> None:
    """Over-commitment: three halves pay a third each, and nothing is idle."""
    boxes = [box(name, TASK, HALF) for name in "abc"]
    lines = meter(node("1.2"), boxes, (0, 300))
    assert [one.amounts["USD"] for one in lines] == [
        usd("0.033334"),
        usd("0.033333"),
        usd("0.033333"),
    ]


def test_seconds_count() -> None:
    """Two of five minutes there: two fifths of its part."""
    lines = meter(node("1.2"), [box("a", TASK, HALF, 60, 180)], (0, 300))
    assert money(lines)[TASK, "use"] == usd("0.02")
    gone = meter(node("1.2"), [box("a", TASK, HALF, 600)], (0, 300))
    assert money(gone) == {("pool:own", "idle"): usd("0.10")}


def test_cells_follow_the_grid_and_end_with_the_node() -> None:
    """The running cell is shown and not booked; the minimum bill is metered out."""
    one = node(started=100.9)
    assert list(cells(one, 700.0)) == [(100, 300), (300, 600)]
    assert list(cells(one, 700.0, partial=True)) == [(100, 300), (300, 600), (600, 700)]
    assert list(cells(one, 700.0, 600.0)) == []
    ended = node(started=100.9, ended=110.2, minimum_seconds=60)
    assert list(cells(ended, 150.0)) == []
    assert list(cells(ended, 700.0)) == [(100, 160)]
    assert bill(ended, 700.0) == usd("0.016667")


@given(
    per_hour=st.decimals(0, 40, places=10, allow_nan=False, allow_infinity=False),
    start=st.floats(1.7e9, 1.7e9 + 9e5),
    life=st.floats(1, 20_000),
    looks=st.lists(st.floats(0, 22_000), max_size=6),
    boxes=st.lists(
        st.tuples(
            st.sampled_from([TASK, RUN, "zeta/p/t"]),
            st.integers(1, 6000),
            st.integers(0, 20 * GIB),
            st.floats(0, 9000),
            st.floats(1, 9000),
        ),
        max_size=5,
    ),
    payers=st.sampled_from([(), (Payer(TASK, 2), Payer(RUN, 5)), (Payer("acme"),)]),
    rule=st.sampled_from(IdleRule),
)
def test_the_ledger_is_the_bill_however_often_it_is_metered(  # noqa: PLR0917 - hypothesis
    per_hour: Decimal,
    start: float,
    life: float,
    looks: list[float],
    boxes: list[tuple[str, int, int, float, float]],
    payers: tuple[Payer, ...],
    rule: IdleRule,
) -> None:
    """Any price, any look, any restart: the entries add up to the provider's bill, exactly."""
    found = of_total(per_hour, NODE, "USD")
    one = NodeUse("n", found, start, start + life, "own", minimum_seconds=60, payers=payers)
    uses = [
        box(f"b{at}", path, Shape(cpu, memory), start + since, start + since + length)
        for at, (path, cpu, memory, since, length) in enumerate(boxes)
    ]
    ledger = Ledger()
    for look in [*sorted(looks), 40_000.0]:
        alive = one if look >= life else replace(one, ended=None)
        for cell in cells(alive, start + look, ledger.charged_until("n")):
            lines = meter(one, uses, cell, idle=rule)
            assert added(*(line.amounts for line in lines)).get("USD", ZERO) == cost_in(
                one, "USD", cell
            )
            ledger.extend(entries(lines, start + look))
    total = sum((e.amounts.get("USD", ZERO) for e in ledger.consumed()), ZERO)
    assert total == bill(one, start + 40_000)
    seconds = (one.end or 0) - one.begin
    assert abs(Fraction(total) - Fraction(found.per_hour) * seconds / 3600) < Fraction(1, 10**6)


def test_cost_grows_between_two_reads_by_price_times_time() -> None:
    """COST-02: the running cell counts as well; nothing is booked by looking."""
    one, boxes = node("3.6"), [box("a", TASK, HALF)]

    def live(now: float) -> Decimal:
        lines = [
            line
            for cell in cells(one, now, partial=True)
            for line in meter(one, boxes, cell)
            if line.path == TASK
        ]
        return sum((line.amounts["USD"] for line in lines), ZERO)

    # 3.60 an hour, half the node: 0.0005 a second
    assert live(1000.0) - live(400.0) == usd("0.300")
    assert live(401.0) - live(400.0) == usd("0.0005")


def test_storage_and_egress_are_lines_of_their_own() -> None:
    """Per second as nodes are; the sum over cells is the price of the time."""
    disk = StoredUse("volume/v", TASK, usd(500), usd("0.000110"), "USD", 100.0, 1000.0)
    lines = [stored(disk, (at, at + 300)) for at in range(0, 1200, 300)]
    assert [one.amounts["USD"] for one in lines] == [
        usd("0.003056"),
        usd("0.004583"),
        usd("0.004584"),
        usd("0.001527"),
    ]
    assert sum((one.amounts["USD"] for one in lines), ZERO) == usd("0.01375")
    out = egress(TASK, "egress/1", usd("0.09"), "USD", 77.7)
    ledger = Ledger()
    ledger.extend(entries([*lines, out, replace(out, source="egress/2")], 2000.0))
    assert ledger.total(TASK, "USD") == usd("0.19375")
    assert {e.what for e in ledger.consumed()} == {"storage", "egress"}
    assert out.kind is LineKind.EGRESS


def test_metering_again_books_nothing_again() -> None:
    """The ids follow from source, cell, payer and kind."""
    lines = meter(node(), [box("a", TASK, HALF), box("b", TASK, QUARTER)], (0, 300))
    ledger = Ledger()
    assert len(ledger.extend(entries(lines, 301.0))) == 2
    assert ledger.extend(entries(lines, 999.0)) == []


STARTS = [
    "2026-03-28T22:17:11Z",  # an hour is left out in Berlin that night
    "2026-10-24T21:59:59Z",  # an hour comes twice
    "2026-02-28T20:00:00Z",  # the month ends
    "2016-12-31T21:30:00Z",  # a leap second
    "2018-11-03T23:00:00Z",  # midnight is left out in Sao Paulo, and comes twice in Havana
]


@given(
    start=st.sampled_from(STARTS),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "+05:45"]),
    every=st.sampled_from(PeriodUnit),
    anchor=st.sampled_from([None, date(2016, 1, 1), date(2015, 12, 29)]),
    looks=st.lists(st.integers(1, 40_000), max_size=5),
)
def test_months_summer_time_leap_seconds_and_restarts_change_nothing(
    start: str, zone: str, every: PeriodUnit, anchor: date | None, looks: list[int]
) -> None:
    """Every second is in one period: what periods spent is the bill, however it was read."""
    begin = instant(start)
    kind = PeriodKind.ANCHORED if anchor else PeriodKind.CALENDAR
    period = Period(kind, every, anchor, zone=zone)
    one = NodeUse("n", price("7.77"), begin, begin + 36_000, "own", payers=(Payer(TASK),))
    ledger, rows = Ledger(), []
    for look in [*sorted(looks), 40_000]:
        for cell in cells(one, begin + look, ledger.charged_until("n")):
            rows += [row_of(e) for e in ledger.extend(entries(meter(one, [], cell), 0.0))]
        ledger = Ledger.rebuild(reversed(rows))
    budget = allowance("100", "acme", period=period)
    spent, at = ZERO, begin
    while at < begin + 36_000:
        span = period.span(at)
        part = ledger.spent(budget, span, "")
        lasts = min(span.end or 0, begin + 36_000) - max(span.start or 0, begin)
        assert abs(part - usd("7.77") * Decimal(lasts) / 3600) < usd("0.00001")
        spent, at = spent + part, span.end or 0
    assert spent == bill(one, begin + 40_000) == usd("77.70")


def test_a_sandbox_on_an_owned_node_is_promised_and_charged_with_its_node() -> None:
    """Its commitment is charged as far as the node is metered: nothing counts twice."""
    own = of_owned(OwnedCost("USD", usd(35_064), usd(4)), NODE)
    assert booking_rates(HALF, own) == {"USD": usd("0.5"), "cpu-hours": usd(2)}
    held = Commitment(
        "sb-1",
        booking_rates(HALF, own),
        (Payer(TASK),),
        100.0,
        1900.0,
        wind_down_seconds=0,
        minimum_seconds=0,
        source="n",
    )
    ledger = Ledger()
    ledger.extend(committed(ledger, held, 100.0))
    one = NodeUse("n", own, 0.0, pool="own")
    for until, promised in ((0, "0.25"), (300, "0.222223"), (900, "0.138889"), (1800, "0.013889")):
        for cell in cells(one, until, ledger.charged_until("n")):
            ledger.extend(entries(meter(one, [box("sb-1", TASK, HALF, 100.0)], cell), until))
        budget = standing(allowance("0.5", TASK), ledger.spent, until)
        state = state_of([budget], ledger.open())
        assert state.committed(budget.name) == usd(promised)
        assert abs(budget.spent + usd(promised) - usd("0.25")) < usd("0.00001")


# ---- prices


def test_an_owned_machine_costs_what_it_wears_eats_and_needs() -> None:
    """Amortisation, energy with PUE, overhead: each per hour, by its formula."""
    cost = OwnedCost(
        "EUR",
        usd(35_064),
        usd(4),
        watts=1000,
        pue=usd("1.5"),
        per_kwh=usd("0.20"),
        monthly_overhead=usd("73.05"),
    )
    assert cost.per_hour == {"amortisation": usd(1), "energy": usd("0.30"), "overhead": usd("0.10")}
    found = of_owned(cost, NODE)
    assert (found.per_hour, found.currency, found.source) == (usd("1.40"), "EUR", "owned")
    assert found.idle_parts == cost.per_hour


@pytest.mark.parametrize(
    "wrong",
    [
        {"years": ZERO},
        {"purchase": usd(-1)},
        {"pue": usd("0.9")},
        {"residual": usd(10**9)},
        {"watts": -1},
        {"currency": "euro"},
    ],
)
def test_a_cost_that_makes_no_sense_is_named(wrong: dict[str, object]) -> None:
    """Field, value, what is allowed."""
    with pytest.raises(MoneyError, match=r"allowed|at most"):
        replace(OwnedCost("EUR", usd(1000), usd(4)), **wrong)  # type: ignore[arg-type]


@given(
    total=st.decimals(0, 100, places=10, allow_nan=False, allow_infinity=False),
    cpu=st.integers(1, 256_000),
    memory=st.integers(0, 1 << 42),
    gpu=st.integers(0, 16_000),
)
def test_parts_of_a_price_are_the_price(total: Decimal, cpu: int, memory: int, gpu: int) -> None:
    """To the millionth, rounded up once."""
    found = of_total(total, Shape(cpu, memory, gpu), "USD")
    assert 0 <= found.per_hour - total < Decimal("0.000001")


def test_a_book_knows_what_was_in_force_when() -> None:
    """Prices from a time on, overrides above all, rates of exchange only where they are listed."""
    book = PriceBook(exchange={"USD/EUR": usd("0.9")})
    book = book.with_price("k", price(2), 1000.0).with_price("k", price(1), 0.0)
    assert [book.price("k", at).per_hour for at in (0, 999, 1000)] == [usd(1), usd(1), usd(2)]
    assert book.changes("k", 0, 2000) == (1000.0,)
    assert book.rates("k", 1500) == {"USD": usd(2), "cpu-hours": usd(4), "EUR": usd("1.8")}
    with pytest.raises(MoneyError, match="price of k: none is known at -1"):
        book.price("k", -1)
    fixed = replace(book, overrides={"k": price(9)})
    assert fixed.price("k", -1).per_hour == usd(9)
    assert fixed.changes("k", 0, 2000) == ()
    assert book.with_price("k", price(3), 1000.0).price("k", 1000).per_hour == usd(3)


def test_only_equal_currencies_are_compared() -> None:
    """The dearest of several, None of none."""
    assert dearest([price(1), price(2)]) == price(2)
    assert dearest([]) is None
    with pytest.raises(MoneyError, match="several currencies"):
        dearest([price(1), of_total(usd(1), NODE, "EUR")])


PRODUCT = {
    "product": {
        "productFamily": "Compute Instance",
        "sku": "SKU1",
        "attributes": {
            "instanceType": "m6i.large",
            "regionCode": "eu-central-1",
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        },
    },
    "terms": {
        "OnDemand": {
            "SKU1.A": {
                "effectiveDate": "2026-11-01T00:00:00Z",
                "priceDimensions": {
                    "SKU1.A.B": {
                        "unit": "Hrs",
                        "beginRange": "0",
                        "endRange": "Inf",
                        "pricePerUnit": {"USD": "0.1150000000"},
                    }
                },
            }
        },
        "Reserved": {
            "SKU1.R": {
                "effectiveDate": "2026-11-01T00:00:00Z",
                "priceDimensions": {
                    "1": {"unit": "Quantity", "pricePerUnit": {"USD": "350.64"}},
                    "2": {"unit": "Hrs", "pricePerUnit": {"USD": "0.0400000000"}},
                },
                "termAttributes": {
                    "LeaseContractLength": "1yr",
                    "OfferingClass": "standard",
                    "PurchaseOption": "Partial Upfront",
                },
            }
        },
    },
}


def _with(**attributes: str) -> str:
    changed = json.loads(json.dumps(PRODUCT))
    changed["product"]["attributes"] |= attributes
    return json.dumps(changed)


def test_a_price_list_gives_on_demand_and_reserved_per_hour() -> None:
    """Upfront money is spread over the term; other systems and tenancies are left out."""
    found = instance_prices(
        [
            json.dumps(PRODUCT),
            _with(operatingSystem="Windows"),
            _with(tenancy="Dedicated"),
            _with(preInstalledSw="SQL Std"),
            _with(capacitystatus="AllocatedCapacityReservation"),
        ]
    )
    assert [(one.market, one.per_hour, one.term) for one in found] == [
        ("on-demand", usd("0.1150000000"), ""),
        ("reserved", usd("0.08"), "1yr standard Partial Upfront"),
    ]
    assert (found[0].instance_type, found[0].region, found[0].currency, found[0].since) == (
        "m6i.large",
        "eu-central-1",
        "USD",
        1793491200.0,
    )


def test_a_price_list_of_another_partition_and_one_that_is_none() -> None:
    """Yuan where it says so; rows of 0 are no price; text that is no list is an error."""
    changed = json.loads(json.dumps(PRODUCT).replace("USD", "CNY").replace("0.1150000000", "0"))
    assert [(one.market, one.currency) for one in instance_prices([changed])] == [
        ("reserved", "CNY")
    ]
    for wrong, said in (("{", "JSON"), ("{}", "without `product`"), ("[]", "without `product`")):
        with pytest.raises(MoneyError, match=said):
            instance_prices([wrong])


def test_storage_and_egress_have_tiers() -> None:
    """The first hundred GB free, then by steps; what was used before counts."""
    transfer = {
        "product": {
            "productFamily": "Data Transfer",
            "attributes": {
                "transferType": "AWS Outbound",
                "fromRegionCode": "eu-central-1",
                "toLocation": "External",
            },
        },
        "terms": {
            "OnDemand": {
                "x": {
                    "priceDimensions": {
                        "b": {"unit": "GB", "beginRange": "100", "pricePerUnit": {"USD": "0.09"}},
                        "a": {"unit": "GB", "beginRange": "0", "pricePerUnit": {"USD": "0"}},
                        "c": {
                            "unit": "GB",
                            "beginRange": "10340",
                            "pricePerUnit": {"USD": "0.085"},
                        },
                    }
                }
            }
        },
    }
    disk = {
        "product": {
            "productFamily": "Storage",
            "attributes": {"volumeApiName": "gp3", "regionCode": "eu-central-1"},
        },
        "terms": {
            "OnDemand": {
                "x": {
                    "priceDimensions": {
                        "a": {"unit": "GB-Mo", "pricePerUnit": {"USD": "0.0952"}},
                    }
                }
            }
        },
    }
    out, gp3 = tiered_prices([transfer, json.dumps(disk), PRODUCT])
    assert out.cost(usd(100)) == ZERO
    assert out.cost(usd(200)) == usd("9.00")
    assert out.cost(usd(50), after=usd(100)) == usd("4.50")
    assert out.cost(usd(20), after=usd(10_330)) == usd("1.75")
    assert (gp3.name, gp3.per_hour) == ("gp3", usd("0.000131"))


def test_the_newest_spot_price_of_each_zone_counts() -> None:
    """Text or datetime, Linux alone."""
    rows = [
        {
            "InstanceType": "m",
            "AvailabilityZone": "a",
            "SpotPrice": "0.04",
            "Timestamp": "2026-11-02T00:00:00+00:00",
        },
        {
            "InstanceType": "m",
            "AvailabilityZone": "a",
            "SpotPrice": "0.03",
            "Timestamp": "2026-11-01T00:00:00Z",
        },
        {
            "InstanceType": "m",
            "AvailabilityZone": "b",
            "SpotPrice": "0.05",
            "Timestamp": "2026-11-01T00:00:00Z",
        },
        {
            "InstanceType": "m",
            "AvailabilityZone": "b",
            "SpotPrice": "9",
            "Timestamp": "2026-11-03T00:00:00Z",
            "ProductDescription": "Windows",
        },
    ]
    assert [(one.zone, one.per_hour) for one in spot_prices(rows, "r")] == [
        ("a", usd("0.04")),
        ("b", usd("0.05")),
    ]


def test_amounts_are_exact_or_refused() -> None:
    """No binary fraction is ever an amount of money."""
    assert exact("12.50") == usd("12.50")
    for wrong in (0.1, True, None, "ten", "NaN", "Infinity"):
        with pytest.raises(MoneyError):
            exact(wrong)
    assert shown(usd("1234.5"), "USD") == "1234.50 USD"
    assert shown(usd("0.000042"), "USD") == "0.000042 USD"
    assert cents(usd("2.675")) == usd("2.68")


def test_a_node_without_prices_of_its_parts_is_divided_by_the_scarcest() -> None:
    """Only a price per node: half the CPU is half of it."""
    flat = of_rates(Rates(ZERO, ZERO, node=usd("1.2")), NODE, "USD")
    lines = meter(replace(node(), price=flat), [box("a", TASK, Shape(2000, GIB))], (0, 300))
    assert money(lines)[TASK, "use"] == usd("0.05")
    free = NodePrice("USD", {}, NODE)
    assert meter(replace(node(), price=free), [], (0, 300)) == ()
