"""Field reports about budgets, periods, exact amounts and prices, with the figures of each."""

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from cost_make import GIB, TASK, World, allowance, commitment, hours, price, state, usd
from dsec.api.budget import BudgetPeriod, PeriodKind, PeriodUnit
from dsec.cost.amounts import ZERO, MoneyError, cents, divided, exact
from dsec.cost.awslist import instance_prices
from dsec.cost.budgets import standing
from dsec.cost.entries import Entry, EntryKind, row_of
from dsec.cost.gate import may_commit, state_of
from dsec.cost.ledger import Ledger
from dsec.cost.metering import NodeUse, SandboxUse, meter
from dsec.cost.periods import Period, Span, aware, instant, period_of
from dsec.cost.prices import NodePrice, PriceBook, Rates, Shape, of_rates, of_total

GPU_NODE = Shape(8000, 64 * GIB, 4000)


def use(at: float, amount: str, name: str = "n") -> Entry:
    """Return an entry of use at a moment."""
    return Entry(f"{name}/{at}", EntryKind.CONSUME, at, TASK, {"USD": usd(amount)}, name, at, at)


@pytest.mark.case("litellm#34896")
@pytest.mark.parametrize("offset", [8, 9])
def test_case_litellm_34896(offset: int) -> None:
    """$100 a day east of UTC: it is $100 in every local day, and no day has 32 hours."""
    period = period_of(BudgetPeriod(every=PeriodUnit.DAY, time_zone=f"+{offset:02d}:00"))
    daily = allowance("100", "acme", period=period)
    zone = timezone(timedelta(hours=offset))
    midnight = datetime(2026, 5, 2, tzinfo=zone)
    span = period.span(aware(midnight))
    assert (span.start, (span.end or 0) - aware(midnight)) == (aware(midnight), hours(24))
    ledger = Ledger()
    ledger.append(use(aware(midnight - timedelta(minutes=1)), "100"))
    before = standing(daily, ledger.spent, aware(midnight) - 1)
    assert before.spent == usd(100)
    # the reset is at local midnight and not some hours later
    after = standing(daily, ledger.spent, aware(midnight))
    assert after.spent == ZERO
    ledger.append(use(aware(midnight), "100", "m"))
    late = standing(daily, ledger.spent, aware(midnight) + hours(23.9))
    assert late.spent == usd(100)
    # a time without zone is never compared: it is refused where it comes in
    with pytest.raises(MoneyError, match="has no zone"):
        instant("2026-05-02T00:00:00")


@pytest.mark.case("litellm#34896")
def test_case_litellm_40978() -> None:
    """One instant written in three zones is one reset time."""
    texts = ("2026-05-02T00:00:00+09:00", "2026-05-01T15:00:00Z", "2026-05-01T11:00:00-04:00")
    assert len({instant(one) for one in texts}) == 1


@pytest.mark.case("chmonitor#2514")
def test_case_chmonitor_2514() -> None:
    """A bill from the tenth: the budget follows it, and the first of a month is no new budget."""
    cycle = Period(PeriodKind.ANCHORED, PeriodUnit.MONTH, date(2026, 1, 10))
    budget = allowance("100", "acme", period=cycle)
    ledger = Ledger()
    for day, amount in (((1, 31), "60"), ((2, 1), "30")):
        ledger.append(use(datetime(2026, *day, 12, tzinfo=UTC).timestamp(), amount, str(day)))
    now = datetime(2026, 2, 2, tzinfo=UTC).timestamp()
    found = standing(budget, ledger.spent, now)
    assert found.spent == usd(90)
    assert may_commit(state_of([found]), commitment(price=40, now=now), now).width == 0
    turn = datetime(2026, 2, 10, tzinfo=UTC).timestamp()
    assert standing(budget, ledger.spent, turn).spent == ZERO


@pytest.mark.case("claude-code-aws-gateway#46")
def test_case_claude_code_aws_gateway_46() -> None:
    """What is told as the reset is the end of the period, also in the words of a refusal."""
    budget = allowance("1", "acme", period=Period(PeriodKind.CALENDAR, PeriodUnit.MONTH))
    now = datetime(2026, 2, 2, tzinfo=UTC).timestamp()
    found = standing(budget, lambda *_: usd(1), now)
    assert found.span.end == datetime(2026, 3, 1, tzinfo=UTC).timestamp()
    words = may_commit(state_of([found]), commitment(now=now), now).words
    assert "the next period begins at 2026-03-01 00:00:00 UTC" in words


@pytest.mark.case("fullsend#6588")
@pytest.mark.parametrize(
    ("amounts", "cap"), [(["0.1", "0.7"], "0.8"), (["0.7", "0.7", "0.7"], "2.1")]
)
def test_case_fullsend_6588(amounts: list[str], cap: str) -> None:
    """0.1 + 0.7 is the cap of 0.8, and three times 0.7 that of 2.1: nothing more is let in."""
    assert sum(float(one) for one in amounts) != float(cap)  # what binary fractions make of it
    ledger = Ledger()
    for at, one in enumerate(amounts):
        ledger.append(use(float(at), one))
    found = standing(allowance(cap), ledger.spent, 9.0)
    assert found.spent == usd(cap)
    assert found.percent == 100
    assert found.in_force is not None
    cheap = commitment(price="0.000001", wind_down=0, until=60.0)
    assert may_commit(state_of([found]), cheap, 9.0).width == 0


@pytest.mark.case("otari#691")
def test_case_otari_691() -> None:
    """The ledger holds 0.662, and writes it so."""
    ledger = Ledger()
    for at, one in enumerate(("0.331", "0.2207", "0.1103")):
        ledger.append(use(float(at), one))
    assert ledger.total(TASK, "USD") == usd("0.6620")
    rows = [json.dumps(row_of(one)) for one in ledger.entries.values()]
    assert '"0.2207"' in rows[1]
    assert Ledger.rebuild(map(json.loads, rows)).total(TASK, "USD") == usd("0.6620")


@pytest.mark.case("genblaze#63")
def test_case_genblaze_63() -> None:
    """Ten times 0.10 is 1.00."""
    assert sum([0.10] * 10) != 1.0
    ledger = Ledger()
    for at in range(10):
        ledger.append(use(float(at), "0.10"))
    assert ledger.total(TASK, "USD") == usd("1.00")
    with pytest.raises(MoneyError, match="is a float; write an exact number as text"):
        exact(0.10)


@pytest.mark.case("actualpy#77")
def test_case_actualpy_77() -> None:
    """-9.95 is 995 hundredths and not 994; a half goes to the even cent, on both sides of zero."""
    assert int(-9.95 * 100) == -994
    assert cents(usd("-9.95")) == usd("-9.95")
    assert cents(usd("-9.945")) == -cents(usd("9.945")) == usd("-9.94")
    assert divided(usd("9.95"), [1, 1]) == (usd("4.975"), usd("4.975"))


@pytest.mark.case("opencost#2029")
def test_case_opencost_2029() -> None:
    """Rates 1/1/1 with a GPU on the node: each counts as configured, none is divided."""
    found = of_rates(Rates(usd(1), usd(1), usd(1)), GPU_NODE, "USD")
    assert found.parts == {"cpu": usd(8), "memory": usd(64), "gpu": usd(4)}
    assert found.per_hour == usd(76)
    node = NodeUse("n", found, 0.0, pool="p")
    one = SandboxUse("s", TASK, Shape(1000, GIB, 1000), 0.0)
    lines = meter(node, [one], (0, 300))
    assert {line.path: line.amounts["USD"] for line in lines} == {
        TASK: usd("0.25"),  # 3 an hour for five minutes
        "pool:p": divided(usd("6.333334") - usd("0.25"), [1])[0],
    }


@pytest.mark.case("opencost#3160")
def test_case_opencost_3160() -> None:
    """A rate for CPU that is set stays with a GPU on the node as without one."""
    rates = Rates(usd("0.04"), usd("0.005"), usd("2.5"))
    with_gpu = of_rates(rates, GPU_NODE, "USD")
    without = of_rates(rates, Shape(8000, 64 * GIB), "USD")
    assert with_gpu.parts["cpu"] == without.parts["cpu"] == usd("0.32")
    assert with_gpu.parts["memory"] == without.parts["memory"] == usd("0.32")
    assert with_gpu.parts["gpu"] == usd(10)


@pytest.mark.case("opencost#3781")
def test_case_opencost_3781() -> None:
    """A price per hour is per hour: it is never divided by the hours of a month."""
    book = PriceBook(overrides={"pool": of_rates(Rates(usd("0.03"), ZERO), Shape(1000, 0), "USD")})
    assert book.price("pool", 0).per_hour == usd("0.03")
    world = World((allowance("1000"),))
    world.buy("0.73", wind_down=0)
    world.run(hours(10), step=240)
    world.end(next(iter(world.machines)))
    world.pass_time(300)
    world.meter()
    assert world.ledger.total(TASK, "USD") == usd("7.30")


@pytest.mark.case("opencost#2901")
@pytest.mark.parametrize("total", ["0.526", "3.06", "32.7726"])
def test_case_opencost_2901(total: str) -> None:
    """CPU, memory and GPU together cost what the instance costs, and never several times that."""
    found = of_total(usd(total), GPU_NODE, "USD")
    assert sum(found.parts.values(), ZERO) == usd(total)
    assert found.parts["gpu"] < usd(total)
    node = NodeUse("n", found, 0.0, pool="p")
    boxes = [SandboxUse(f"s{n}", TASK, Shape(2000, 16 * GIB, 1000), 0.0) for n in range(4)]
    lines = meter(node, boxes, (0, 300))
    hour = sum((line.amounts["USD"] for line in lines), ZERO) * 12
    assert abs(hour - usd(total)) <= usd("0.000012")


def test_prices_of_a_list_keep_their_ten_digits() -> None:
    """The list says 0.0960000000: text, and no binary fraction on the way."""
    product = {
        "product": {
            "productFamily": "Compute Instance",
            "attributes": {
                "instanceType": "m5.large",
                "regionCode": "r",
                "operatingSystem": "Linux",
                "tenancy": "Shared",
            },
        },
        "terms": {
            "OnDemand": {
                "a": {
                    "priceDimensions": {
                        "b": {"unit": "Hrs", "pricePerUnit": {"USD": "0.0960000001"}}
                    }
                }
            }
        },
    }
    assert instance_prices([product])[0].per_hour == Decimal("0.0960000001")
    broken = json.loads(json.dumps(product).replace('"0.0960000001"', "0.096"))
    with pytest.raises(MoneyError, match="is a float"):
        instance_prices([broken])


def test_periods_of_a_window_never_overlap_a_cut() -> None:
    """A rolling day has $100 at any time, and none of it twice."""
    rolling = allowance("100", period=Period(PeriodKind.ROLLING, rolling_seconds=86_400))
    ledger = Ledger()
    ledger.append(use(1000.0, "100"))
    assert standing(rolling, ledger.spent, 86_400.0).spent == usd(100)
    assert standing(rolling, ledger.spent, 88_300.0).spent == ZERO
    assert state([rolling], now=0.0).all()[0].span == Span(-86_400.0, None)
    assert isinstance(price(1), NodePrice)
