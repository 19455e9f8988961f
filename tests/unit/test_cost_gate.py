"""What may be committed, until when, and who refuses; levels, alerts and actions of budgets."""

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest
from cost_make import TASK, allowance, commitment, state, usd
from dsec.api.budget import (
    BudgetAction,
    BudgetLevelKind,
    BudgetSpec,
    PeriodKind,
    PeriodUnit,
    RegionShare,
)
from dsec.api.experiment import ExperimentBudget, OnExceed
from dsec.cost.amounts import ZERO, MoneyError
from dsec.cost.budgets import (
    Allowance,
    Fired,
    Level,
    Standing,
    action_for,
    ancestors,
    crossings,
    standing,
)
from dsec.cost.commitments import Commitment, Payer, terms
from dsec.cost.declared import allowance_of, chosen_by, mistakes, task_allowance
from dsec.cost.escrow import Move, may_move, moved
from dsec.cost.gate import (
    Blocked,
    LeaseRules,
    first_until,
    least_until,
    may_commit,
    may_divide,
    renewals,
    run_until,
    state_of,
)
from dsec.cost.periods import Period, Span

RULES = LeaseRules()
DAILY = Period(PeriodKind.CALENDAR, PeriodUnit.DAY)


def spending(one: Allowance, spent: str, fired: tuple[Fired, ...] = ()) -> Standing:
    """Return a budget of which so much is spent."""
    return standing(one, lambda *_: usd(spent), 0.0, fired=fired)


# ---- the gate


def test_a_node_is_covered_with_its_end() -> None:
    """Lease 30 min and wind-down 5 min at 1.00/h: 0.583333 is promised, to the millionth."""
    one = commitment(until=1800.0)
    found = state([allowance("10")], [one])
    assert found.committed("acme") == Decimal("0.583334")
    room = found.room(found.all()[0])
    assert room is not None
    assert room[0] == Decimal("9.416666")


def test_the_width_is_refused_and_not_the_end() -> None:
    """Forty nodes at 1.00/h with 15 min to wind down on 10: three, each with all of its end."""
    want = commitment(wind_down=900, until=9000.0)
    verdict = may_commit(state([allowance("10")]), want, 0.0, count=40)
    # 10 * 0.9 / (1/h * (9000 s + 900 s)) = 3.27
    assert (verdict.width, verdict.allowed) == (3, False)
    assert verdict.run_until == 9000.0
    assert verdict.refused_by == "acme"
    assert verdict.blocked is Blocked.AMOUNT
    assert verdict.words == (
        "budget acme of acme: 10.00 USD of 10.00 USD is left; at 1.00 USD an hour with 900 s to "
        "wind down it covers 3 of 40; the rest starts when other work ends, the limit is raised"
    )


def test_the_time_is_cut_before_the_number() -> None:
    """Eight nodes fit at their least length: they get what is left, divided evenly."""
    want = commitment(until=7200.0)
    found = state([allowance("10")])
    verdict = may_commit(found, want, 0.0, count=8)
    assert verdict.allowed
    assert verdict.run_until == 4199.0  # 10 / 8 = 1.25 h, less 300 s, each rounded up
    nodes = [replace(want, id=f"n{at}", run_until=verdict.run_until) for at in range(8)]
    assert found.plus(*nodes).committed("acme") <= Decimal(10)


def test_one_alone_may_use_all_that_is_left() -> None:
    """The margin is for many that end together."""
    want = commitment(until=3000.0)
    least = usd("0.916668")  # 3,300 s, in two parts that are rounded up
    assert may_commit(state([allowance(least)]), want, 0.0).width == 1
    assert may_commit(state([allowance(least - usd("0.000001"))]), want, 0.0).width == 0


def test_no_node_starts_that_could_not_live_ten_wind_downs() -> None:
    """A minute of work and five of ending is no use of money."""
    verdict = may_commit(state([allowance("0.50")]), commitment(until=3000.0), 0.0)
    assert verdict.width == 0
    assert least_until(commitment(), 0.0) == 3000.0
    assert least_until(commitment(wind_down=2), 0.0) == 60.0
    assert "does not cover one more" in verdict.words


@pytest.mark.parametrize("path", ["acme", "acme/vision", TASK, "pool:burst"])
def test_every_budget_on_the_path_is_asked(path: str) -> None:
    """Account, project, task and pool: the one that is short refuses, by name."""
    budgets = [
        allowance("0.10" if one == path else "100", one)
        for one in ("acme", "acme/vision", TASK, "pool:burst")
    ]
    verdict = may_commit(state(budgets), commitment(), 0.0)
    assert (verdict.width, verdict.path) == (0, path)


def test_budgets_of_others_are_not_asked() -> None:
    """Another project, another pool, another task of which the name begins alike."""
    others = [
        allowance("0", one) for one in ("zeta", "acme/text", f"{TASK}er", "acme/vis", "pool:b")
    ]
    assert may_commit(state(others), commitment(), 0.0).allowed


def test_hours_are_limits_as_money_is() -> None:
    """A node of eight GPUs for 50 minutes and five to end: 7.33 GPU-hours."""
    want = replace(commitment(), rates={"USD": usd(11), "gpu-hours": usd(8)})
    enough = allowance("7.333335", unit="gpu-hours")
    short = allowance("7.33", unit="gpu-hours")
    assert may_commit(state([enough]), want, 0.0).width == 1
    assert may_commit(state([short]), want, 0.0).width == 0


def test_another_currency_is_no_free_ride() -> None:
    """A budget in EUR cannot be compared with a price in USD, until there is a rate."""
    verdict = may_commit(state([allowance("10", unit="EUR")]), commitment(), 0.0)
    assert (verdict.width, verdict.blocked) == (0, Blocked.CURRENCY)
    assert "counts EUR, and the price is in USD; starts when prices have an exchange rate" in (
        verdict.words
    )
    both = replace(commitment(), rates={"USD": usd(1), "EUR": usd("0.9")})
    assert may_commit(state([allowance("10", unit="EUR")]), both, 0.0).allowed


def test_payers_share_by_weight() -> None:
    """Three to one: the task's budget answers for three quarters, the project's for all."""
    payers = (Payer(TASK, 3), Payer("acme/vision/run"))
    one = replace(commitment(until=3300.0), payers=payers)
    found = state([allowance("9", TASK), allowance("9", "acme/vision")], [one])
    assert found.committed("acme-vision-walk") == usd("0.75")
    assert found.committed("acme-vision") == usd("1.000001")


def test_a_running_node_is_divided_anew_only_as_far_as_budgets_cover() -> None:
    """Work joins a node: its budget has to cover its part until the run-until time."""
    held = commitment(until=3300.0)
    joined = replace(held, payers=(Payer(TASK), Payer("acme/text/sum")), revision=1)
    rich = state([allowance("9"), allowance("1", "acme/text/sum")], [held])
    poor = state([allowance("9"), allowance("0.40", "acme/text/sum")], [held])
    assert may_divide(rich, joined, ["acme/text/sum"], 0.0).allowed
    verdict = may_divide(poor, joined, ["acme/text/sum"], 0.0)
    assert (verdict.width, verdict.path) == (0, "acme/text/sum")


def test_leases_of_budget_count_as_promised() -> None:
    """A slice lent to a gateway is spent until it comes back."""
    slice_ = Commitment(
        "lease/g1", {}, (Payer("acme"),), 0.0, 10.0, wind_down_seconds=0, held={"USD": usd(4)}
    )
    found = state([allowance("5")], [slice_])
    assert found.committed("acme") == usd(4)
    assert may_commit(found, commitment(price=2, until=3000.0), 0.0).width == 0
    assert may_commit(found.minus("lease/g1"), commitment(price=2, until=3000.0), 0.0).width == 1


def test_a_lease_over_midnight_counts_in_both_days() -> None:
    """Twenty minutes before midnight: 20 today, 10 tomorrow, and its end in both."""
    now = 86_400.0 - 1200
    one = commitment(now=now, until=now + 1800)
    today = allowance("0.416668", period=DAILY)
    found = state_of([standing(today, lambda *_: ZERO, now)], [one])
    assert found.promises["acme"] == (usd("0.416668"), usd("0.250001"))
    short = state_of([standing(allowance("0.40", period=DAILY), lambda *_: ZERO, now)])
    assert may_commit(short, one, now).width == 0


def test_what_is_left_tomorrow_is_no_room_today() -> None:
    """All of today is spent; a node that starts before midnight has to wait for it."""
    now = 86_400.0 - 30
    spent = state_of([standing(allowance("5", period=DAILY), lambda *_: usd(5), now)])
    assert may_commit(spent, commitment(now=now), now).width == 0
    fresh = state_of([standing(allowance("5", period=DAILY), lambda *_: ZERO, 86_400.0)])
    assert may_commit(fresh, commitment(now=86_400.0), 86_400.0).allowed


# ---- renewals


def test_it_is_renewed_when_half_is_left() -> None:
    """30 minutes, half of it gone: another 30 from now, spread by the node's name."""
    found = state([allowance("10")], [commitment(until=1800.0)])
    assert not run_until(found, "n", 890.0).due
    answer = run_until(found, "n", 905.0)
    assert (answer.due, answer.extended) == (True, True)
    assert answer.run_until == first_until("n", 905.0)


def test_run_until_times_are_spread() -> None:
    """Ten percent either way, always the same for a name."""
    ends = [first_until(f"node-{at}", 0.0) for at in range(200)]
    assert 1620 <= min(ends) < 1660
    assert 1940 < max(ends) <= 1980
    assert ends == [first_until(f"node-{at}", 0.0) for at in range(200)]
    assert sum(1 for one, two in pairwise(sorted(ends)) if two - one > 30) == 0


def test_near_the_end_a_renewal_is_cut_short_and_says_so() -> None:
    """What is left covers 25 minutes from what is booked: those are given, and then it ends."""
    one = replace(commitment(until=1800.0), charged_until=900.0)
    rich = state_of([standing(allowance("1"), lambda *_: usd("0.25"), 905.0)], [one])
    answer = run_until(rich, "n", 905.0)
    assert (answer.run_until, answer.refused_by) == (first_until("n", 905.0), "")
    tight = state_of([standing(allowance("0.75"), lambda *_: usd("0.25"), 905.0)], [one])
    answer = run_until(tight, "n", 905.0)
    assert answer.run_until == 2399.0  # 900 + half an hour - 300, rounded to what is covered
    assert answer.refused_by == "acme"
    assert "n at 1.00 USD an hour with 300 s to wind down goes on until" in answer.words
    least = state_of([standing(allowance("0.59"), lambda *_: usd("0.25"), 905.0)], [one])
    answer = run_until(least, "n", 905.0)
    assert (answer.run_until, answer.extended) == (1800.0, False)


def test_renewals_go_in_order_of_their_ends() -> None:
    """What ends first is renewed first; the sum after is within the limit."""
    nodes = [commitment(f"n{at}", until=600.0 + at) for at in range(8)]
    found = state([allowance("3")], nodes)
    after, answers = renewals(found, 500.0)
    assert next(name for name, one in answers.items() if one.extended) == "n0"
    assert 0 < sum(one.extended for one in answers.values()) < 8
    assert after.committed("acme") <= Decimal(3)
    assert renewals(after, 500.0)[0].committed("acme") <= Decimal(3)


def test_a_paused_budget_renews_nothing_and_a_degraded_one_does() -> None:
    """Stop-growing and degrade keep what runs; pause and end let it run out."""
    nodes = [commitment(until=1800.0)]
    for action, extended in (
        (BudgetAction.STOP_GROWING, True),
        (BudgetAction.DEGRADE, True),
        (BudgetAction.PAUSE, False),
        (BudgetAction.END, False),
    ):
        budget = allowance("100", kind=BudgetLevelKind.SOFT, action=action)
        found = state_of([spending(budget, "100")], nodes)
        assert run_until(found, "n", 1000.0).extended is extended
        verdict = may_commit(found, commitment("m"), 1000.0)
        assert (verdict.width, verdict.blocked) == (0, Blocked.STOPPED)
        assert f"100 % of 100.00 USD is spent and {action.value} is in force" in verdict.words


# ---- levels, alerts, actions


def test_alerts_come_once_each() -> None:
    """50, 80 and 100 percent: an event at each; a jump over two tells both; never again."""
    budget = allowance("10")
    told: tuple[Fired, ...] = ()
    seen = []
    for spent in ("4.99", "5.00", "5.10", "8.50", "10.00", "10.00"):
        new = crossings(spending(budget, spent, told), 1.0)
        told += tuple(one.fired for one in new)
        seen.append([one.fired.percent for one in new])
    assert seen == [[], [50], [], [80], [100], []]
    assert [one.fired.percent for one in crossings(spending(budget, "9"), 1.0)] == [50, 80]


def test_alerts_come_anew_in_another_period_and_for_another_limit() -> None:
    """What was told belongs to its period and limit."""
    daily = allowance("10", period=DAILY)
    first = standing(daily, lambda *_: usd(9), 100.0)
    told = tuple(one.fired for one in crossings(first, 100.0))
    assert len(told) == 2
    later = standing(daily, lambda *_: usd(9), 86_500.0, fired=told)
    assert (later.fired, len(crossings(later, 86_500.0))) == ((), 2)
    raised = standing(replace(daily, limit=usd(20)), lambda *_: usd(11), 200.0, fired=told)
    assert [one.fired.percent for one in crossings(raised, 200.0)] == [50]


def test_a_hard_level_is_reached_when_nothing_more_can_be_renewed() -> None:
    """A hard budget is never spent to the last millionth; it stays reached when room comes back."""
    budget = allowance("1")
    one = replace(commitment(until=2700.0), charged_until=2700.0)
    now = spending(budget, "0.91")
    found = state_of([now], [one])
    assert not found.exhausted(now, 2399.0, RULES)
    assert found.exhausted(now, 2400.0, RULES)
    new = crossings(now, 5.0, exhausted=True)
    assert [one.fired.percent for one in new] == [50, 80, 100]
    assert new[-1].action is BudgetAction.DEGRADE
    told = tuple(one.fired for one in new)
    after = spending(budget, "0.50", told)
    assert after.in_force is BudgetAction.DEGRADE
    assert not state_of([after], []).exhausted(after, 2400.0, RULES)


def test_equal_overruns_end_as_each_task_chose() -> None:
    """COST-03: one falls to its least replicas, the other ends; both through one project budget."""
    project = spending(allowance("10", "acme/vision"), "10")
    for chosen, expected in (
        (OnExceed.DEGRADE, BudgetAction.DEGRADE),
        (OnExceed.TERMINATE, BudgetAction.END),
        (OnExceed.PAUSE, BudgetAction.PAUSE),
        (OnExceed.STOP_GROWING, BudgetAction.STOP_GROWING),
    ):
        own = ExperimentBudget(limit="5", currency="USD", on_exceed=chosen)
        assert action_for([project], TASK, chosen_by(own)) is expected
        mine = spending(task_allowance(TASK, own, None), "5")
        assert mine.in_force is expected
    assert action_for([project], "acme/text/sum", None) is None


def test_terminate_ends_whatever_was_chosen_and_a_warning_warns() -> None:
    """The strictest over all budgets of the path counts."""
    ends = spending(allowance("10", kind=BudgetLevelKind.TERMINATE), "10")
    warns = spending(
        replace(
            allowance("10", "acme/vision"),
            levels=(Level(80, BudgetLevelKind.SOFT, BudgetAction.WARN),),
        ),
        "9",
    )
    assert action_for([warns], TASK, BudgetAction.PAUSE) is BudgetAction.WARN
    assert action_for([warns, ends], TASK, BudgetAction.DEGRADE) is BudgetAction.END
    assert may_commit(state_of([warns]), commitment(), 0.0).allowed


def test_several_levels_at_parts_of_one_limit() -> None:
    """Stop growing at 80, hard at 90: nothing above 90 percent is ever committed."""
    budget = replace(
        allowance("10"),
        levels=(
            Level(80, BudgetLevelKind.SOFT, BudgetAction.STOP_GROWING),
            Level(90, BudgetLevelKind.HARD, BudgetAction.PAUSE),
        ),
    )
    assert spending(budget, "7").hard == usd(9)
    assert spending(budget, "7").in_force is None
    assert spending(budget, "8").in_force is BudgetAction.STOP_GROWING
    assert spending(budget, "9").in_force is BudgetAction.PAUSE


# ---- escrow


def test_escrow_is_never_more_than_the_limit() -> None:
    """Thirds of a hundredth: largest remainder, and the rest stays unspent."""
    third = allowance("0.01", regions=(("a", 33), ("b", 33), ("c", 33)))
    assert sum((third.share(one) for one in "abc"), ZERO) <= usd("0.01")
    assert third.share("elsewhere") == ZERO
    full = allowance("10", regions=(("a", 60), ("b", 40)))
    assert (full.share("a"), full.share("b")) == (usd(6), usd(4))


def test_moves_between_regions_are_counted_by_the_giver_first() -> None:
    """The receiver counts what it has read; nobody counts it twice."""
    budget = allowance("10", regions=(("a", 60), ("b", 40)))
    move = Move("m1", "acme", "a", "b", usd(2))
    assert moved(budget, "a", [move, move], None) == usd(-2)
    assert moved(budget, "b", [], None) == ZERO
    assert moved(budget, "b", [move], None) == usd(2)
    assert moved(budget, "b", [move], 5.0) == ZERO
    giver = standing(
        budget, lambda *_: usd("3.5"), 0.0, region="a", moved=moved(budget, "a", [move], None)
    )
    assert (giver.limit, giver.hard) == (usd(4), usd(4))
    assert may_move(state_of([giver]), Move("m2", "acme", "a", "b", usd("0.5"))) == ""
    words = may_move(state_of([giver]), Move("m2", "acme", "a", "b", usd("0.6")))
    assert "asked 0.60 USD, free 0.50 USD of 4.00 USD" in words
    for wrong in ({"amount": ZERO}, {"target": "a"}):
        with pytest.raises(MoneyError):
            replace(move, **wrong)  # type: ignore[arg-type]


# ---- records


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"scope": "account"}, "acme"),
        ({"scope": "account", "target": "zeta"}, "zeta"),
        ({}, "acme/vision"),
        ({"scope": "task", "target": "walk"}, TASK),
        ({"scope": "pool", "target": "burst"}, "pool:burst"),
    ],
)
def test_a_record_says_whose_budget_it_is(spec: dict[str, str], path: str) -> None:
    """Scope and target make the path."""
    declared = BudgetSpec.model_validate({"limit": "12.50", "currency": "EUR", **spec})
    found = allowance_of("b", declared, tenant="acme", project="vision")
    assert (found.path, found.limit, found.unit) == (path, usd("12.50"), "EUR")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "spec.currency: unset; allowed is an ISO 4217 code"),
        ({"unit": "gpu-hours", "currency": "EUR"}, "spec.currency: EUR; allowed is none"),
        ({"currency": "EUR", "target": "other"}, "spec.target: other; allowed is none or vision"),
        ({"currency": "EUR", "scope": "task"}, "spec.target: unset; allowed is a name"),
        (
            {"currency": "EUR", "period": {"kind": "rolling"}},
            "spec.period.rollingSeconds: unset; kind rolling needs 3600",
        ),
        (
            {"currency": "EUR", "regions": [RegionShare(region=r, percent=60) for r in "ab"]},
            "spec.regions: 120; allowed is at most 100 percent",
        ),
        (
            {"currency": "EUR", "regions": [RegionShare(region="a", percent=6)] * 2},
            "spec.regions: a; allowed is each region once",
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_named(spec: dict[str, object], said: str) -> None:
    """Field, value, what is allowed."""
    declared = BudgetSpec.model_validate({"limit": "1", **spec})
    with pytest.raises(MoneyError, match=said):
        allowance_of("b", declared, tenant="acme", project="vision")


def test_every_mistake_of_a_record_is_told_at_once() -> None:
    """And only the platform limits accounts and pools."""
    declared = BudgetSpec.model_validate(
        {"limit": "1", "scope": "pool", "period": {"timeZone": "Mars/Olympus"}}
    )
    found = mistakes(declared, project="vision")
    assert [one.path for one in found] == [
        "spec.scope",
        "spec.target",
        "spec.currency",
        "spec.period.timeZone",
    ]
    assert "project or task here" in found[0].message
    fine = BudgetSpec.model_validate({"limit": "1", "scope": "account", "currency": "EUR"})
    assert mistakes(fine, project="dsec-system", platform=True) == []
    assert len(mistakes(fine, project="vision")) == 1


def test_the_unit_is_what_the_record_counts() -> None:
    """Hours need no currency; money takes the tenant's where it names none."""
    hours = BudgetSpec.model_validate({"limit": "100", "unit": "gpu-hours"})
    assert allowance_of("b", hours, tenant="a", project="p").unit == "gpu-hours"
    money = BudgetSpec.model_validate({"limit": "100"})
    assert allowance_of("b", money, tenant="a", project="p", currency="USD").unit == "USD"
    with pytest.raises(MoneyError, match="an ISO 4217 code"):
        task_allowance(TASK, ExperimentBudget(limit="1"), None)


def test_paths_and_commitments_that_make_no_sense_are_refused() -> None:
    """No path below a task, no payer without weight, no price below nothing."""
    for path in ("", "a//b", "a/b/c/d", "pool:"):
        with pytest.raises(MoneyError):
            ancestors(path)
    with pytest.raises(MoneyError, match="one or more, weights from 1"):
        replace(commitment(), payers=())
    with pytest.raises(MoneyError, match="0 or more"):
        replace(commitment(), rates={"USD": usd(-1)})
    with pytest.raises(MoneyError, match="seconds below 0"):
        replace(commitment(), wind_down_seconds=-1)


def test_terms_round_up() -> None:
    """A third of a millionth a second is never rounded to nothing."""
    found = terms(replace(commitment(), rates={"USD": usd("0.000001")}), allowance("1"))
    assert found.cost(1) == 1
    assert found.cost(0) == 0
    assert found.seconds(0) == 0
    assert Span(0.0, None) == Span(0.0)
