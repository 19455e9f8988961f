"""The gate of node planning over the hard budgets of `dsec.cost`. Pure; one object per plan.

    gate = BudgetGate(state, now, ...)        # state: cost.gate.state_of(standings, ledger.open())
    plan(fleet, rules, gate)                  # asks width and extend
    gate.commitments(purchase)                # what to book (cost.flows.committed) before buying

What is bought and extended within one plan counts at once, so that two answers never cover each
other's money. Owned and reserved nodes are paid for anyway: for them only a level in force counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from dsec.cost.amounts import CPU_HOURS, GPU_HOURS
from dsec.cost.budgets import POOL, ancestors
from dsec.cost.commitments import Commitment, Payer
from dsec.cost.gate import (
    BudgetState,
    LeaseRules,
    Verdict,
    covered_until,
    first_until,
    may_commit,
)
from dsec.scaling.nodes.offerings import FleetNode, Offering
from dsec.scaling.nodes.plans import GateAnswer, Purchase

WIND_DOWN_SECONDS = 300
"""Until the drain, snapshot and archive of a make have been measured (their p99)."""


def offering_rates(offering: Offering) -> dict[str, Decimal]:
    """Return what an hour of a node counts in each unit that budgets may have."""
    hours = {
        CPU_HOURS: Decimal(offering.node.cpu_milli) / 1000,
        GPU_HOURS: Decimal(len(offering.node.devices)),
    }
    counted = {unit: one for unit, one in hours.items() if one}
    return {offering.currency: offering.price_per_hour, **counted}


@dataclass(slots=True)
class BudgetGate:
    """Answers by the budgets.

    `wind_down` is seconds by instance type; `closing` what is paid at the end of each node, such as
    the first period of its archive; `rates` may add currencies by an exchange rate.
    """

    state: BudgetState
    now: float
    rules: LeaseRules = field(default_factory=LeaseRules)
    wind_down: Mapping[str, int] = field(default_factory=dict)
    closing: Mapping[str, Decimal] = field(default_factory=dict)
    rates: Callable[[Offering], Mapping[str, Decimal]] = offering_rates
    _counted: int = 0
    """Purchases of this plan that are in `_taken`."""
    _taken: BudgetState | None = None

    def width(
        self, offering: Offering, count: int, paths: Sequence[str], taken: Sequence[Purchase]
    ) -> GateAnswer:
        """Return how many of `count` nodes are covered beside what was taken, and who refuses.

        Where a budget above a payer refuses, that payer is named: others may still be covered.
        """
        verdict = self._ask(self._beside(taken), self._want(offering, paths, "asked"), count)
        whose = next((one for one in paths if verdict.path in ancestors(one)), "")
        return GateAnswer(verdict.width, whose, verdict.words)

    def extend(self, node: FleetNode, until: float) -> float:
        """Return how far a node may be paid for, at most `until`; its run-until or less: no."""
        held = self.state.commitments.get(node.name)
        if held is None:
            # nobody answers for it: it ends by itself, or it is owned and has no end
            return node.run_until or 0.0
        given = covered_until(self.state, node.name, until)
        gain = given - held.run_until
        # a reply that was lost may have moved the node already: what was promised is not cut
        if gain <= 0 or gain < min(self.rules.step, until - held.run_until):
            return held.run_until
        self._replace(replace(held, run_until=given, revision=held.revision + 1))
        return given

    def commitments(self, purchase: Purchase) -> tuple[Commitment, ...]:
        """Return a commitment per node of a purchase, as many as are covered, booked here.

        The name of the node is the id; `run_until` is the same for all of a purchase.
        """
        names = purchase.names or tuple(f"{purchase.token}-{at}" for at in range(purchase.count))
        want = self._want(purchase.offering, purchase.paths, purchase.token)
        verdict = self._ask(self.state, want, purchase.count)
        found = tuple(
            replace(want, id=name, run_until=verdict.run_until) for name in names[: verdict.width]
        )
        self.state = self.state.plus(*found)
        self._taken = None
        return found

    def _want(self, offering: Offering, paths: Sequence[str], name: str) -> Commitment:
        cloud = offering.cloud
        return Commitment(
            name,
            dict(self.rates(offering)) if cloud else {},
            tuple(Payer(one) for one in paths) or (Payer(POOL + offering.pool),),
            self.now,
            first_until(name, self.now, self.rules),
            wind_down_seconds=self.wind_down.get(offering.instance_type, WIND_DOWN_SECONDS),
            closing=dict(self.closing) if cloud else {},
            minimum_seconds=offering.minimum_bill_seconds,
            pool=offering.pool,
            region=offering.region,
        )

    def _ask(self, state: BudgetState, want: Commitment, count: int) -> Verdict:
        return may_commit(state, want, self.now, count=count, rules=self.rules)

    def _beside(self, taken: Sequence[Purchase]) -> BudgetState:
        """Return the state with what this plan has taken so far."""
        if self._taken is None or self._counted > len(taken):
            self._taken, self._counted = self.state, 0
        for at in range(self._counted, len(taken)):
            one = taken[at]
            want = self._want(one.offering, one.paths, f"taken-{at}")
            verdict = self._ask(self._taken, want, one.count)
            all_of_it = replace(
                want,
                rates={unit: rate * one.count for unit, rate in want.rates.items()},
                closing={unit: cost * one.count for unit, cost in want.closing.items()},
                run_until=verdict.run_until,
            )
            self._taken = self._taken.plus(all_of_it)
        self._counted = len(taken)
        return self._taken

    def _replace(self, held: Commitment) -> None:
        self.state = self.state.plus(held)
        self._taken = None
