"""Node planning over hard budgets: what is bought and extended is covered, and who is refused."""

from dataclasses import replace

import pytest
from cost_make import allowance, usd
from dsec.api.scaling import Market
from dsec.cost.amounts import ZERO
from dsec.cost.budgets import Allowance, standing
from dsec.cost.commitments import Commitment
from dsec.cost.gate import state_of
from dsec.scaling.nodes.budgeted import BudgetGate
from dsec.scaling.nodes.offerings import NodePhase
from dsec.scaling.nodes.plans import Purchase, Why
from nodes_make import NOW, OPEN, fleet_node, offering

A, B = "acme/vision/walk", "acme/text/sum"


def gate(*budgets: Allowance, spent: str = "0", held: tuple[Commitment, ...] = ()) -> BudgetGate:
    """Return a gate over budgets of which so much is spent."""
    found = [standing(one, lambda *_: usd(spent), NOW) for one in budgets]
    return BudgetGate(state_of(found, held), NOW)


def bought(count: int, *paths: str, price: str = "1", name: str = "t") -> Purchase:
    """Return a purchase."""
    names = tuple(f"{name}-{at}" for at in range(count))
    return Purchase(offering(price=price), count, name, Why.PENDING, paths=paths, names=names)


def test_nodes_are_bought_as_far_as_budgets_reach() -> None:
    """10.00 at 1.00 an hour, at least 50 minutes and five to end: nine; the words say whose."""
    found = gate(allowance("10"))
    answer = found.width(offering(), 40, [A], [])
    assert (answer.width, answer.refused_by) == (9, A)
    assert "budget acme of acme: 10.00 USD of 10.00 USD is left" in answer.words
    assert found.width(offering(market=Market.OWNED), 40, [A], []).width == 40


def test_what_the_plan_has_taken_counts() -> None:
    """Answers of one plan never cover each other's money."""
    found = gate(allowance("10"))
    assert found.width(offering(), 20, [B], [bought(5, A)]).width == 5
    assert found.width(offering(), 20, [B], [bought(5, A), bought(5, A)]).width == 0
    assert found.width(offering(), 20, [B], []).width == 9


def test_a_payer_is_named_where_a_budget_above_it_refuses() -> None:
    """So that the planner goes on with the work of others; a pool refuses for everybody."""
    found = gate(allowance("0", "acme/vision"), allowance("100", "acme/text"))
    answer = found.width(offering(), 1, [B, A], [])
    assert (answer.width, answer.refused_by) == (0, A)
    assert found.width(offering(), 1, [B], []).width == 1
    answer = gate(allowance("0", "pool:cloud")).width(offering(), 1, [A], [])
    assert (answer.width, answer.refused_by) == (0, "")
    assert gate(allowance("0", "pool:cloud")).width(offering(), 1, [], []).width == 0


def test_a_purchase_becomes_commitments_that_hold_the_limit() -> None:
    """One per node, by its name; two purchases after each other are within the limit."""
    found = gate(allowance("10"))
    first, second = found.commitments(bought(6, A)), found.commitments(bought(6, A, name="u"))
    assert [one.id for one in first] == [f"t-{at}" for at in range(6)]
    assert len(second) == 4
    assert found.state.committed("acme") <= usd(10)
    assert {one.pool for one in first} == {"cloud"}
    assert all(one.run_until == NOW + 3000 for one in first)
    gpus = BudgetGate(found.state, NOW).commitments(
        replace(bought(1, A, name="g"), offering=offering(gpus=8, market=Market.OWNED))
    )
    assert gpus[0].rates == {}


@pytest.mark.parametrize(("limit", "gain"), [("10", 1800.0), ("1.00", 1499.0), ("0.6", 0.0)])
def test_a_node_is_extended_as_far_as_its_budget_reaches(limit: str, gain: float) -> None:
    """All of a lease, a part of it, or nothing: then its run-until stays."""
    held = gate(allowance("10")).commitments(bought(1, A))[0]
    held = replace(held, run_until=NOW + 1800)
    found = gate(allowance(limit), held=(held,))
    node = fleet_node("t-0", offering(), NodePhase.READY, run_until=NOW + 1800)
    assert found.extend(node, NOW + 3600) == NOW + 1800 + gain
    again = found.extend(replace(node, run_until=NOW + 1800 + gain), NOW + 3600)
    assert again == NOW + 1800 + gain
    stranger = fleet_node("x", offering(), NodePhase.READY, run_until=NOW + 5)
    assert found.extend(stranger, NOW + 3600) == NOW + 5
    assert OPEN.extend(node, NOW + 3600) == NOW + 3600


def test_what_was_promised_to_a_node_is_never_cut() -> None:
    """Its extension was booked and the reply lost; a shorter wish later frees no money."""
    held = replace(gate(allowance("10")).commitments(bought(1, A))[0], run_until=NOW + 2700)
    found = gate(allowance("10"), held=(held,))
    node = fleet_node("t-0", offering(), NodePhase.READY, run_until=NOW + 900)
    assert found.extend(node, NOW + 1800) == NOW + 2700
    assert found.state.commitments["t-0"] == held


def test_two_extensions_of_one_plan_do_not_share_money() -> None:
    """What the first takes the second has not."""
    made = gate(allowance("10")).commitments(bought(2, A))
    held = tuple(replace(one, run_until=NOW + 1800) for one in made)
    found = gate(allowance("1.50"), held=held)
    ends = [
        found.extend(
            fleet_node(one.id, offering(), NodePhase.READY, run_until=NOW + 1800), NOW + 3600
        )
        for one in held
    ]
    assert ends[0] > ends[1] >= NOW + 1800
    assert found.state.committed("acme") <= usd("1.50")
    assert found.state.committed("acme") > ZERO
