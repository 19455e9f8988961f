"""Reports, forecasts, estimates, savings and waste, each with its formula; budgets that run out."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from cost_make import GIB, NODE, TASK, World, allowance, commitment, hours, price, usd
from dsec.api.budget import BudgetAction, BudgetStatus, PeriodKind, PeriodUnit
from dsec.api.experiment import ExperimentBudget, ExperimentSpec, OnExceed
from dsec.api.meta import ConditionStatus, condition_of
from dsec.cost.amounts import ZERO, MoneyError
from dsec.cost.budgets import Fired, action_for, crossings, standing
from dsec.cost.declared import chosen_by, task_allowance
from dsec.cost.entries import EntryKind
from dsec.cost.estimate import budgets_that_refuse, estimate
from dsec.cost.flows import given, opened, settled
from dsec.cost.forecast import forecast
from dsec.cost.gate import LeaseRules, may_commit, renewals, state_of
from dsec.cost.ledger import Ledger
from dsec.cost.metering import NodeUse, SandboxUse, entries, meter
from dsec.cost.periods import ALL_TIME, Period, Span
from dsec.cost.prices import NodePrice, OwnedCost, Shape, of_owned, of_total
from dsec.cost.report import By, items, plain, report, total
from dsec.cost.savings import (
    cost_of_next,
    cost_per_sample,
    idle_costs,
    idle_quotas,
    saving,
    task_report,
    utilisation,
    waste,
)
from dsec.cost.status import fired_of, invalid_status, status_of
from dsec.cost.words import crossing_words

RUN = "acme/vision/run"
SUM = "zeta/text/sum"
DAY = 86_400
OWN = of_owned(OwnedCost("USD", usd(17_532), usd(4), watts=1000, per_kwh=usd("0.10")), NODE)
"""0.50 amortisation and 0.10 energy: 0.60 an hour."""


def booked(nodes: list[tuple[NodeUse, list[SandboxUse]]], since: int, until: int) -> Ledger:
    """Return a ledger of nodes metered from and until a time."""
    ledger = Ledger()
    for node, boxes in nodes:
        for at in range(since, until, 300):
            ledger.extend(entries(meter(node, boxes, (at, at + 300)), at + 300.0))
    return ledger


def fleet() -> list[tuple[NodeUse, list[SandboxUse]]]:
    """Return an owned node, half used, and a cloud node of one task; four hours over midnight."""
    own = NodeUse("own-1", OWN, 0.0, pool="own")
    cloud = NodeUse("c-1", price("2"), 0.0, pool="burst", payers=commitment().payers)
    return [
        (
            own,
            [
                SandboxUse("a", TASK, Shape(1000, 4 * GIB), 0.0),
                SandboxUse("b", SUM, Shape(1000, 4 * GIB), 0.0),
            ],
        ),
        (cloud, [SandboxUse("c", TASK, Shape(4000, 16 * GIB), 0.0)]),
    ]


@pytest.fixture
def ledger() -> Ledger:
    """Four hours, two before midnight of day 1 and two after it."""
    return booked(fleet(), DAY - 7200, DAY + 7200)


def figures(ledger: Ledger, by: By, **more: object) -> dict[str, Decimal]:
    """Return the money of a report by its keys."""
    rows = report(ledger.entries.values(), by, **more)  # type: ignore[arg-type]
    return {one.key: one.money.get("USD", ZERO) for one in rows}


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (By.TASK, {TASK: "8.60", "pool:own": "1.20", SUM: "0.60"}),
        (By.PROJECT, {"acme/vision": "8.60", "pool:own": "1.20", "zeta/text": "0.60"}),
        (By.TENANT, {"acme": "8.60", "pool:own": "1.20", "zeta": "0.60"}),
        (By.POOL, {"burst": "8.00", "own": "2.40"}),
        (By.DAY, {"1970-01-01": "5.20", "1970-01-02": "5.20"}),
    ],
)
def test_every_report_adds_up_to_the_same(ledger: Ledger, by: By, expected: dict[str, str]) -> None:
    """By tenant, project, task, pool and day; idle time of a pool is a row of its own."""
    found = figures(ledger, by)
    assert found == {key: usd(one) for key, one in expected.items()}
    assert sum(found.values(), ZERO) == usd("10.40")
    assert total(ledger.entries.values()).money == {"USD": usd("10.40")}
    rows = report(ledger.entries.values(), by)
    if by is not By.DAY:
        assert [r.key for r in rows] == list(expected)  # the dearest first


def test_days_are_those_of_the_zone_and_spans_cut(ledger: Ledger) -> None:
    """Two hours east of UTC all of it is on the second day and after."""
    assert figures(ledger, By.DAY, zone="+02:00") == {"1970-01-02": usd("10.40")}
    assert figures(ledger, By.TENANT, span=Span(DAY, None))["acme"] == usd("4.30")
    with pytest.raises(MoneyError, match="timeZone"):
        report([], By.DAY, zone="nowhere")


def test_rows_as_json_are_exact_and_rounded(ledger: Ledger) -> None:
    """Text, with what a bill prints beside it."""
    row = report(ledger.entries.values(), By.POOL)[1]
    assert plain(row) == {
        "key": "own",
        "money": {"USD": "2.400000"},
        "rounded": {"USD": "2.40"},
        "idle": {"USD": "1.200000"},
        "storage": {},
        "egress": {},
        "cpuHours": "7.999968",  # two cores for four hours, each cell to the millionth
        "gpuHours": "0",
    }


def test_cost_04_an_hour_on_each_is_two_items_with_their_prices() -> None:
    """Owned at 0.60 a node-hour, cloud at 2.00: kept apart in the bill."""
    found = [
        one
        for one in items(booked(fleet(), 0, 3600).entries.values())
        if one.path == TASK and one.money
    ]
    assert [(one.pool, one.priced, one.money["USD"]) for one in found] == [
        ("burst", "list", usd("2.00")),
        ("own", "owned", usd("0.15")),
    ]
    assert [round(one.per_cpu_hour("USD") or ZERO, 3) for one in found] == [usd("0.5"), usd("0.15")]


def test_cost_17_idle_cost_is_its_own_line_with_what_it_pays_for(ledger: Ledger) -> None:
    """A static pool half used: power and depreciation of the idle half beside the used one."""
    rows = report(ledger.entries.values(), By.POOL)
    own = next(one for one in idle_costs(rows, [fleet()[0][0]], "USD") if one.pool == "own")
    assert (own.used, own.idle, own.idle_percent) == (usd("1.20"), usd("1.20"), usd("50"))
    assert own.of_idle == {"amortisation": usd(1), "energy": usd("0.2")}


def test_cost_14_utilisation_per_pool() -> None:
    """Booked share, and the measured mean where there is one; a pool without GPUs has no share."""
    gpu = Shape(8000, 64 * GIB, 4000)
    nodes = [
        NodeUse("g", of_total(usd(5), gpu, "USD"), 0.0, pool="gpu"),
        NodeUse("o", OWN, 0.0, 1800.0, pool="own"),
    ]
    boxes = {
        "g": [
            SandboxUse("a", TASK, Shape(2000, GIB, 2000), 0.0),
            SandboxUse("b", TASK, Shape(2000, GIB, 2000), 1800.0),
        ],
        "o": [SandboxUse("c", TASK, Shape(1000, GIB), 0.0)],
    }
    measured = {"gpu": [(1800.0, usd("0.9")), (1800.0, usd("0.72"))]}
    found = utilisation(nodes, boxes, (0, 3600), measured=measured)
    assert [
        (one.pool, one.cpu_percent, one.gpu_percent, one.measured_gpu_percent) for one in found
    ] == [("gpu", usd("37.5"), usd(75), usd(81)), ("own", usd(25), None, None)]
    assert found[1].available_hours == {"cpu-hours": usd(2)}


def test_cost_09_experiments_by_cost_with_those_nobody_read(ledger: Ledger) -> None:
    """The dearest first; what was never fetched is marked."""
    found = waste(ledger.entries.values(), {SUM: True}, "USD")
    assert [(one.task, one.money, one.read) for one in found] == [
        (TASK, usd("8.60"), False),
        (SUM, usd("0.60"), True),
    ]


def test_cost_15_quotas_that_nobody_used() -> None:
    """Never used, and used before the period only; an empty quota is none."""
    nominal = {"a": {"gpu_milli": 4}, "b": {"cpu_milli": 1}, "c": {"cpu_milli": 5}, "d": {}}
    found = idle_quotas(nominal, {"a": 50.0, "b": 150.0}, Span(100.0, 200.0))
    assert [(one.path, one.last_used) for one in found] == [("c", None), ("a", 50.0)]


def test_cost_08_the_saving_of_growth_and_shrink() -> None:
    """512, 768 and 200 workers against 768 all the time: about 35 %."""
    trace = [(0.0, 512), (hours(0.5), 768), (hours(1.5), 200)]
    found = saving(trace, hours(2.4))
    assert found.percent == usd("34.7")
    assert found.formula == (
        "1 - instance-hours used / (static count * hours) = 1 - 1204.00 / (768 * 2.40) = 34.7 %"
    )


def test_cost_08_the_saving_of_a_night() -> None:
    """Eight, three in deep night, eight in the morning: about 40 % of a ten-hour evaluation."""
    trace = [(hours(22), 8), (hours(23), 3), (hours(23 + 6.4), 8)]
    assert saving(trace, hours(32)).percent == usd(40)
    assert saving(trace, hours(32), static=16).percent == usd(70)
    for wrong in ([], [(5.0, 1), (1.0, 2)]):
        with pytest.raises(MoneyError, match="trace"):
            saving(wrong, 9.0)
    with pytest.raises(MoneyError, match="static: 0"):
        saving([(0.0, 0)], 9.0)


def test_cost_07_a_task_report_has_four_sections(ledger: Ledger) -> None:
    """Training time, resource use, throughput curve and cost."""
    found = task_report(
        TASK,
        ledger.entries.values(),
        started=0.0,
        ended=hours(4),
        throughput=[(0.0, usd(600)), (3600.0, usd(1400))],
        trace=[(0.0, 4), (hours(2), 2)],
    )
    assert set(found) == {"task", "trainingTime", "resourceUse", "throughputCurve", "cost"}
    assert found["trainingTime"]["seconds"] == hours(4)
    assert found["cost"]["rounded"] == {"USD": "8.60"}
    assert found["cost"]["saving"]["percent"] == "25"
    assert found["throughputCurve"] == [[0.0, "600"], [3600.0, "1400"]]


def test_road_09_and_10_cost_of_a_sample() -> None:
    """Cost over valid samples; the flatter gain curve pays more for its next sample."""
    assert cost_per_sample(usd(12), 3000) == usd("0.004")
    assert cost_per_sample(usd(12), 0) is None
    steep, flat = (cost_of_next(usd("0.36"), gain) for gain in (usd(10), usd("0.5")))
    assert (steep, flat) == (usd("0.00001"), usd("0.0002"))
    assert cost_of_next(usd(1), ZERO) is None


# ---- forecasts


def test_a_forecast_says_its_formula_and_source() -> None:
    """A day at 10 with two days to go: 30; never below what is spent and promised."""
    ledger = Ledger()
    node = NodeUse("n", price(10), 0.0, pool="burst", payers=commitment().payers)
    for at in range(0, DAY, 900):
        ledger.extend(entries(meter(node, [], (at, at + 900)), float(at)))
    monthly = allowance("1000", period=Period(PeriodKind.CALENDAR, PeriodUnit.WEEK))
    now = float(DAY)
    found = forecast(standing(monthly, ledger.spent, now), usd(5), now, ledger.spent)
    assert found is not None
    # the week ends on Monday, four days after Thursday, 1 January 1970; it began three before
    assert (found.expected, found.per_hour) == (usd(240 + 720), usd(10))
    assert found.formula == (
        "max(spent 240.00 USD + committed 5.00 USD, 240.00 USD + 10.00 USD an hour * 72.0 h)"
    )
    assert found.source == "ledger, the last 24 h"
    assert found.passes == now + 76 * 3600
    high = forecast(standing(monthly, ledger.spent, now), usd(900), now, ledger.spent)
    assert high is not None
    assert high.expected == usd(1140)


def test_a_budget_without_end_has_no_forecast_and_a_window_has_its_pace() -> None:
    """For ever: none; too young: none; rolling: a window at the pace of the last day."""
    ledger = Ledger()
    node = NodeUse("n", price(1), 0.0, payers=commitment().payers)
    ledger.extend(entries(meter(node, [], (3600, 4500)), 0.0))
    assert forecast(standing(allowance(9), ledger.spent, 9e4), ZERO, 9e4, ledger.spent) is None
    young = allowance(9, period=Period(PeriodKind.CALENDAR, PeriodUnit.DAY))
    assert forecast(standing(young, ledger.spent, 60.0), ZERO, 60.0, ledger.spent) is None
    rolling = allowance(9, period=Period(PeriodKind.ROLLING, rolling_seconds=4 * 3600))
    found = forecast(standing(rolling, ledger.spent, 7200.0), ZERO, 7200.0, ledger.spent)
    assert found is not None
    assert (found.at, found.expected) == (None, usd("0.25"))
    spent = standing(allowance("0.25", period=rolling.period), ledger.spent, 7200.0)
    assert getattr(forecast(spent, ZERO, 7200.0, ledger.spent), "passes", None) == 7200.0


# ---- estimates


def spec(**more: object) -> ExperimentSpec:
    """Return an experiment of one elastic role."""
    role = {
        "name": "sim",
        "replicas": 4,
        "min": 2,
        "max": 12,
        "resources": {"cpuMilli": 1000, "memoryBytes": 4 * GIB},
    }
    return ExperimentSpec.model_validate({"roles": [role | more.pop("role", {})], **more})  # type: ignore[operator]


PRICES = {"own": OWN, "burst": price(2)}


def test_an_estimate_has_a_lower_and_an_upper_figure_in_words() -> None:
    """Two quarters of an owned node, up to three cloud nodes alone."""
    found = estimate(spec(role={"completion": "run-to-end"}, max_run_seconds=7200), PRICES, "USD")
    assert (found.low_per_hour, found.high_per_hour) == (usd("0.30"), usd(6))
    assert (found.lower, found.upper) == (ZERO, usd(12))
    assert (found.roles[0].low_key, found.roles[0].high_key) == ("own", "burst")
    assert "\n".join(found.words) == (
        "from 0.30 USD an hour (least replicas, their part of the cheapest nodes) to 6.00 USD an "
        "hour (most, on dearest nodes alone)\n"
        "at least 0.00 USD, at most 12.00 USD in 2.00 h"
    )


def test_an_estimate_is_bounded_by_time_or_budget_or_says_that_it_is_not() -> None:
    """A role that is kept has no end of its own; a hard budget is one; an expected time another."""
    open_ended = estimate(spec(), PRICES, "USD")
    assert open_ended.upper is None
    assert open_ended.words[1].startswith("no total:")
    capped = estimate(
        spec(budget={"limit": "5", "currency": "USD"}), PRICES, "USD", expected_seconds=36_000
    )
    assert (capped.lower, capped.upper) == (usd(3), usd(5))
    assert capped.words[-1] == "its budget ends it at 5.00 USD"
    assert budgets_that_refuse(capped, [("p", "USD", usd(2)), ("q", "USD", usd(3))]) == (
        "budget p: 2.00 USD is left, and the experiment needs at least 3.00 USD",
    )


def test_an_estimate_names_what_no_priced_node_holds() -> None:
    """Not counted, said, and no upper figure."""
    found = estimate(spec(role={"gpu": {"count": 8}}), PRICES, "USD", expected_seconds=3600)
    assert (found.low_per_hour, found.upper) == (ZERO, None)
    assert "role sim: no priced node holds it" in found.words[-1]
    with pytest.raises(MoneyError, match="none in EUR; known currencies are USD"):
        estimate(spec(), PRICES, "EUR")
    free = NodePrice("USD", {}, NODE)
    assert estimate(spec(), {"free": free}, "USD").high_per_hour == ZERO


# ---- budgets that run out


def test_cost_12_growth_by_cloud_is_refused_with_the_reason() -> None:
    """At 100 % of the project's budget: a refusal that can be shown as a condition."""
    project = standing(allowance("10", "acme/vision"), lambda *_: usd(10), 0.0)
    verdict = may_commit(state_of([project]), commitment(), 0.0)
    assert not verdict.allowed
    assert verdict.words == (
        "budget acme-vision of acme/vision: 100 % of 10.00 USD is spent and degrade is in force; "
        "starts when the limit is raised"
    )


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(OnExceed.DEGRADE, BudgetAction.DEGRADE), (OnExceed.TERMINATE, BudgetAction.END)],
)
def test_w_18_over_budget(chosen: OnExceed, expected: BudgetAction) -> None:
    """W-18: own capacity first, cloud at its higher price, the ceiling, the action, the return."""
    start = datetime(2026, 11, 29, 8, tzinfo=UTC).timestamp()
    own = ExperimentBudget(limit="5.00", currency="USD", on_exceed=chosen)
    ceiling, project = task_allowance(TASK, own, None), allowance("100", "acme/vision")
    world = World((ceiling, project), now=start)
    world.book(opened(world.ledger, project, ALL_TIME, start))
    new = given(world.ledger, ceiling, start, above=[project])
    assert not isinstance(new, str)
    world.book(new)
    assert world.ledger.balance("acme/vision", "USD") == usd(95)
    # 1. an hour on owned capacity: 0.15, its part of the node
    node, boxes = fleet()[0]
    for at in range(0, 3600, 300):
        cell = (int(start) + at, int(start) + at + 300)
        shifted = NodeUse(node.node, OWN, start, pool="own")
        world.book(entries(meter(shifted, boxes[:1], cell), world.now))
    world.pass_time(3600)
    assert world.ledger.total(TASK, "USD") == usd("0.15")
    # 2. the queue has waited long enough: cloud nodes, each at more than three times the price
    assert world.buy(2, 2, real=0.5) == 2
    told: list[int] = []
    fired: tuple[Fired, ...] = ()
    found = standing(ceiling, world.ledger.spent, world.now)
    for _ in range(60):
        world.run(300, step=60)
        found = standing(ceiling, world.ledger.spent, world.now, fired=fired)
        out = world.state().exhausted(found, world.now, LeaseRules())
        passed = crossings(found, world.now, exhausted=out)
        fired += tuple(one.fired for one in passed)
        told += [one.fired.percent for one in passed]
    # 3. at the ceiling the task gets what it chose
    assert told == [50, 80, 100]
    assert action_for([found], TASK, chosen_by(own)) is expected
    assert world.buy(2, 1) == 0
    world.pass_time(hours(1))
    world.meter()
    spent = world.ledger.total(TASK, "USD")
    assert usd("4.5") <= spent <= usd(5)
    # 4. the rest returns up the levels, and the task's entries come to zero
    world.book(settled(world.ledger, TASK, world.now))
    assert world.ledger.balances(TASK) == {}
    assert world.ledger.balance("acme/vision", "USD") == usd(100) - spent
    mine = [one for one in world.ledger.entries.values() if one.path == TASK]
    signs = {EntryKind.ALLOCATE: 1, EntryKind.CONSUME: -1, EntryKind.RETURN: -1}
    flow = sum((signs.get(one.kind, 0) * one.amounts.get("USD", ZERO) for one in mine), ZERO)
    assert flow == ZERO
    assert world.ledger.open() == []


def test_cost_11_what_is_not_renewed_leaves() -> None:
    """When the load ends nothing is extended, and the cloud pool is empty; the owned one stays."""
    world = World((allowance("50"),), now=0.0)
    world.buy(1, 3)
    world.pass_time(hours(1))
    world.meter()
    assert world.ledger.open() == []
    assert renewals(world.state(), world.time())[1] == {}


# ---- the status of a record


def test_a_status_tells_how_a_budget_stands_and_what_was_told() -> None:
    """Spent, promised, left, forecast, alerts; what was told is read back after a restart."""
    period = Period(PeriodKind.CALENDAR, PeriodUnit.MONTH)
    budget = allowance("10", period=period)
    now = datetime(2026, 11, 29, 8, tzinfo=UTC).timestamp()
    held = commitment(now=now, until=now + 1800)

    def pass_(spent: str, old: BudgetStatus) -> BudgetStatus:
        first = standing(budget, lambda *_: usd(spent), now, fired=fired_of(old))
        new = tuple(one.fired for one in crossings(first, now))
        told = (*first.fired, *new)
        found = standing(budget, lambda *_: usd(spent), now, fired=told)
        view = forecast(found, ZERO, now, lambda *_: usd(1))
        return status_of(old, found, state_of([found], [held]), now, generation=3, forecast=view)

    one = pass_("5.25", BudgetStatus())
    assert (one.spent, one.committed, one.left) == ("5.25", "0.583334", "4.166666")
    assert [alert.percent for alert in one.alerts] == [50]
    assert (one.action, one.period_end) == (None, datetime(2026, 12, 1, tzinfo=UTC))
    assert one.forecast == "6.916667"
    assert "ledger, the last 24 h" in one.forecast_source
    within = condition_of(one.conditions, "WithinLimit")
    assert within is not None
    assert (within.status, within.reason) == (ConditionStatus.TRUE, "Room")
    assert within.message == (
        "5.25 USD of 10.00 USD is spent and 0.583334 USD promised, 4.166666 USD is left"
    )
    stored = BudgetStatus.model_validate(json.loads(json.dumps(one.wire())))
    two = pass_("10", stored)
    assert [alert.percent for alert in two.alerts] == [50, 80, 100]
    assert two.alerts[0] == stored.alerts[0]
    within = condition_of(two.conditions, "WithinLimit")
    assert within is not None
    assert (within.status, within.reason) == (ConditionStatus.FALSE, "LevelReached")
    assert within.message.endswith(
        "degrade is in force until the limit is raised or the next period begins at 2026-12-01 "
        "00:00:00 UTC"
    )
    assert two.action is BudgetAction.DEGRADE
    wrong = invalid_status(two, "regions: 120 percent", now, generation=4)
    ready = condition_of(wrong.conditions, "Ready")
    assert ready is not None
    assert (ready.reason, ready.message) == ("Invalid", "regions: 120 percent")


def test_all_that_is_left_may_be_promised() -> None:
    """Within its limit, and nothing may be added."""
    budget = allowance("0.583334")
    found = standing(budget, lambda *_: ZERO, 0.0)
    state = state_of([found], [commitment(until=1800.0)])
    within = condition_of(status_of(BudgetStatus(), found, state, 0.0).conditions, "WithinLimit")
    assert within is not None
    assert (within.status, within.reason) == (ConditionStatus.TRUE, "Committed")


def test_events_say_what_was_passed_and_what_happens() -> None:
    """An alert alone, and one with its action."""
    budget = allowance("10", action=BudgetAction.PAUSE, alerts=(50,))
    found = standing(budget, lambda *_: usd("10.5"), 0.0)
    told = "\n".join(crossing_words(one, found) for one in crossings(found, 0.0))
    assert told == (
        "budget acme of acme: 50 % of 10.00 USD is reached, 10.50 USD is spent\n"
        "budget acme of acme: 100 % of 10.00 USD is reached, 10.50 USD is spent; pause: sandboxes "
        "are paused until there is budget"
    )
