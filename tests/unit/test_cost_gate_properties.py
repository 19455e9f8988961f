"""Hard budgets hold: random nodes, renewals, outages, jumping clocks, restarts and periods."""

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from cost_make import TASK, World, allowance, hours, usd
from dsec.api.budget import PeriodKind, PeriodUnit
from dsec.cost.amounts import cents
from dsec.cost.gate import LeaseRules
from dsec.cost.periods import FOREVER, Period
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

OTHER = "acme/vision/run"
DAILY = Period(PeriodKind.CALENDAR, PeriodUnit.DAY, zone="Europe/Berlin")
ROLLING = Period(PeriodKind.ROLLING, rolling_seconds=12 * 3600)
STARTS = [
    datetime(2026, 3, 28, 20, 0, tzinfo=UTC).timestamp(),  # an hour is left out that night
    datetime(2026, 10, 24, 20, 30, tzinfo=UTC).timestamp(),  # an hour comes twice
    datetime(2026, 12, 31, 21, 59, 30, tzinfo=UTC).timestamp(),
    datetime(2016, 12, 31, 22, 0, tzinfo=UTC).timestamp(),  # ends with a leap second
]
PRICES = st.sampled_from(["0.10", "0.333333", "1", "4.60", "13.35"])


class Spending(RuleBasedStateMachine):
    """A controller, a provider and budgets on four levels; anything may happen at any time."""

    @initialize(
        start=st.sampled_from(STARTS),
        account=st.sampled_from(["3", "10", "25"]),
        task=st.sampled_from(["2", "9.99", "50"]),
    )
    def begin(self, start: float, account: str, task: str) -> None:
        """Budgets by day, for ever and over a rolling window."""
        budgets = (
            allowance(account, "acme", period=DAILY),
            allowance("20", "acme/vision", period=ROLLING),
            allowance(task, TASK, period=FOREVER),
            allowance("15", "pool:burst", period=DAILY),
        )
        self.world = World(budgets, now=start)

    @rule(
        per_hour=PRICES,
        count=st.integers(1, 12),
        payers=st.sampled_from([(TASK,), (OTHER,), (TASK, OTHER)]),
        wind_down=st.sampled_from([0, 60, 300, 900]),
        real=st.sampled_from([0.2, 1.0]),
        closing=st.sampled_from(["0", "0.05"]),
    )
    def buy(  # noqa: PLR0917 - the rule's strategies
        self,
        per_hour: str,
        count: int,
        payers: tuple[str, ...],
        wind_down: int,
        real: float,
        closing: str,
    ) -> None:
        """Ask for nodes; the gate says how many."""
        self.world.buy(
            per_hour, count, payers=payers, wind_down=wind_down, real=real, closing=closing
        )

    @rule(minutes=st.sampled_from([0.5, 7, 40]))
    def work(self, minutes: float) -> None:
        """The controller meters and renews."""
        self.world.run(60 * minutes, step=90.0)

    @rule(duration=st.sampled_from([0.1, 0.6, 6.0]))
    def outage(self, duration: float) -> None:
        """Nobody meters, nobody renews."""
        self.world.pass_time(hours(duration))

    @rule()
    def crash(self) -> None:
        """The controller starts again from its rows."""
        self.world.restart()

    @rule(seconds=st.sampled_from([-86_400.0, -3600.0, -1.0, 1.0, 3600.0, 40 * 86_400.0, 0.0]))
    def jump(self, seconds: float) -> None:
        """The wall clock jumps, for as long as nobody sets it right."""
        self.world.wall_off = seconds

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """End a node early."""
        names = [name for name, one in self.world.machines.items() if one.ends_at is None]
        if names:
            self.world.end(data.draw(st.sampled_from(sorted(names))))

    @invariant()
    def never_passed(self) -> None:
        """What the provider bills is within every budget."""
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """When all has ended, the ledger and the bill are the same to the cent."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.wall_off = 0.0
        world.pass_time(hours(30))
        world.meter()
        world.check()
        account = world.allowances[0]
        billed = sum(
            (one.billed(world.now, FOREVER.span(0)) for one in world.machines.values()),
            Fraction(0),
        )
        booked = world.ledger.total(account.path, "USD")
        assert abs(Fraction(booked) - billed) < Fraction(1, 1000)
        assert world.ledger.open() == []
        world.restart()


TestSpending = Spending.TestCase
TestSpending.settings = settings(max_examples=15, stateful_step_count=20)


class SpendingAtLength(Spending):
    """The same, longer."""


TestSpendingAtLength = pytest.mark.soak(pytest.mark.timeout(3600)(SpendingAtLength.TestCase))
TestSpendingAtLength.settings = settings(max_examples=3000, stateful_step_count=60, deadline=None)


@given(
    limit=st.integers(50, 10_000),
    count=st.integers(1, 60),
    per_hour=PRICES,
    wind_down=st.sampled_from([0, 60, 300, 900]),
    away=st.sampled_from([0.0, 0.3, 6.0]),
)
def test_the_gate_leaves_little_unspent_and_nothing_owed(
    limit: int, count: int, per_hour: str, wind_down: int, away: float
) -> None:
    """All start, run to the end of the budget, an outage in between: at most the limit."""
    amount = Decimal(limit) / 100
    world = World((allowance(str(amount)),), now=STARTS[0])
    world.buy(per_hour, count, wind_down=wind_down, real=1.0)
    world.run(hours(0.5), step=120)
    world.pass_time(hours(away))
    world.run(hours(1.0), step=120)
    world.pass_time(hours(2))
    world.meter()
    world.check()
    booked = world.ledger.total("acme", "USD")
    assert booked <= amount
    assert cents(booked) == cents(usd(str(round(float(world.bill(world.allowances[0], 0)), 6))))


@given(
    before=st.sampled_from([1, 30, 299, 301, 900, 1700]),
    limit=st.sampled_from(["0.40", "1", "3"]),
    count=st.integers(1, 12),
    per_hour=PRICES,
    wind_down=st.sampled_from([0, 300, 900]),
)
def test_what_begins_before_midnight_is_covered_after_it(
    before: int, limit: str, count: int, per_hour: str, wind_down: int
) -> None:
    """A lease reaches into the next day, with its end: that day's limit holds as well."""
    midnight = datetime(2026, 3, 28, 23, 0, tzinfo=UTC).timestamp()
    world = World((allowance(limit, period=DAILY),), now=midnight - before)
    world.buy(per_hour, count, wind_down=wind_down)
    world.run(1200, step=120)
    world.check()
    world.pass_time(hours(3))
    world.check()
    world.meter()
    world.buy(per_hour, count, wind_down=wind_down)
    world.pass_time(hours(3))
    world.check()


def test_hard_limit_of_ten_with_eight_nodes_and_an_outage_and_a_cut_region() -> None:
    """Limit 10.00, eight nodes, six hours without control plane, then a region cut: at most 10."""
    regions = (("east", 60), ("west", 40))
    budget = allowance("10.00", regions=regions)
    east = World((budget,), "east", now=STARTS[2])
    west = World((budget,), "west", now=STARTS[2])
    assert east.buy(1, 5, real=0.6) == 5
    assert west.buy(1, 3, real=1.0) == 3
    for world in (east, west):
        world.run(hours(0.5))
        world.pass_time(hours(6))  # no control plane anywhere
    running = [m for w in (east, west) for m in w.machines.values() if m.ends_at is None]
    assert running == []  # every node ended by itself
    for world in (east, west):
        world.meter()
    # the regions are cut from each other: each goes on within its own part
    for world in (east, west):
        world.buy(1, 8)
        for _ in range(10):
            world.run(hours(1.0), step=300)
            world.buy(1, 8)
        world.pass_time(hours(6))
        world.meter()
    total = east.ledger.total("acme", "USD") + west.ledger.total("acme", "USD")
    assert total <= Decimal("10.00")
    assert total >= Decimal("9.00")  # and the money was of use
    assert east.ledger.total("acme", "USD") <= Decimal("6.00")
    assert west.ledger.total("acme", "USD") <= Decimal("4.00")


def test_eight_nodes_on_one_limit_use_most_of_it_through_an_outage() -> None:
    """The study's figure: 8 nodes at 1.00 on a limit of 10, six hours away from minute 30."""
    world = World((allowance("10"),), now=STARTS[2])
    assert world.buy(1, 8, real=0.6) == 8
    world.run(hours(0.5))
    world.pass_time(hours(6))
    world.meter()
    world.run(hours(0.1))
    first = world.ledger.total("acme", "USD")
    assert first <= Decimal(10)
    world.buy(1, 8, real=0.6)
    world.run(hours(12))
    world.pass_time(hours(1))
    world.meter()
    assert Decimal("9.5") <= world.ledger.total("acme", "USD") <= Decimal(10)


@pytest.mark.parametrize("length", [300, 1800, 3600])
def test_a_longer_lease_never_makes_more_debt(length: int) -> None:
    """Whatever the length, ends are covered."""
    world = World((allowance("5"),), now=STARTS[0], rules=LeaseRules(length=length))
    world.buy(1, 20, wind_down=60)
    world.run(hours(1), step=120)
    world.pass_time(hours(3))
    world.meter()
    world.check()
    assert world.ledger.total("acme", "USD") <= Decimal(5)
