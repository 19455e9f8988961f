"""What budgets say in their records: figures now and then, levels at once, and then to everybody.

A level that was reached is written into the budget's status before anybody is told of it, and stays
in force from there.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal

import structlog

from dsec.controllers.budget_records import BudgetRecords, Declared
from dsec.cost.budgets import Allowance, Crossing, Fired, Standing
from dsec.cost.forecast import forecast
from dsec.cost.gate import BudgetState
from dsec.cost.periods import Span
from dsec.cost.status import fired_of, invalid_status, status_of
from dsec.cost.words import crossing_words
from dsec.journal.history import HistoryWriter
from dsec.world.records import RecordConflictError, RecordNotFoundError, RecordsError

STATUS_SECONDS = 60.0
"""Between two writes of one budget's figures; what it says of its levels is written at once."""
ALERT = "budget-alert"
"""Kind of the history rows of alerts and levels."""

log = structlog.get_logger()


Spent = Callable[[Allowance, Span, str], Decimal]
"""What was spent on a budget in a span of time and in a region (empty: in all), in its unit."""


class BudgetStatuses:
    """Of one term: what was reached and is not written yet, and when what was written."""

    def __init__(
        self, budgets: BudgetRecords, history: HistoryWriter, spent: Spent, region: str
    ) -> None:
        self._budgets = budgets
        self._history = history
        self._spent = spent
        self._region = region
        self._fired: dict[str, tuple[Fired, ...]] = {}
        self._untold: dict[str, list[tuple[Fired, str]]] = {}
        self._written: dict[str, float] = {}

    def fired(self, declared: Declared) -> list[Fired]:
        """Return the levels of a budget that were reached, whether its record says so or not."""
        found = (*fired_of(declared.status), *self._fired.get(declared.name, ()))
        return list({(one.percent, one.period_start, one.limit): one for one in found}.values())

    def reached(self, name: str, standing: Standing, new: Sequence[Crossing]) -> None:
        """Take note of levels that a budget has reached, to be told once they are written."""
        self._fired[name] = standing.fired
        said = [(crossing.fired, crossing_words(crossing, standing)) for crossing in new]
        self._untold.setdefault(name, []).extend(said)

    async def write(
        self, declared: Declared, one: Standing, state: BudgetState, now: float
    ) -> None:
        """Write a budget's status where it says something new, then tell what it says."""
        old, name = declared.status, declared.name
        expected = forecast(one, state.committed(one.name), now, self._spent, region=self._region)
        status = status_of(old, one, state, now, generation=declared.generation, forecast=expected)
        verdict = [(c.type, c.status, c.reason) for c in status.conditions]
        turned = (
            verdict != [(c.type, c.status, c.reason) for c in old.conditions]
            or len(status.alerts) != len(old.alerts)
            or status.action != old.action
            or status.observed_generation != old.observed_generation
        )
        if not turned and (
            now - self._written.get(name, 0.0) < STATUS_SECONDS
            or (status.spent, status.committed, status.left) == (old.spent, old.committed, old.left)
        ):
            return
        if not await self._put(declared, status):
            return
        self._written[name] = now
        for fired, text in self._untold.pop(name, ()):
            log.warning("budget", budget=name, percent=fired.percent, why=text)
            self._history.add(
                ALERT,
                budget=name,
                path=one.allowance.path,
                percent=fired.percent,
                message=text,
                spent=f"{one.spent:f}",
                limit=f"{one.limit:f}",
            )

    async def refuse(self, declared: Declared, now: float) -> None:
        """Say of a budget that it cannot be compared with anything, and why."""
        status = invalid_status(
            declared.status, declared.problem, now, generation=declared.generation
        )
        if status.conditions != declared.status.conditions:
            await self._put(declared, status)

    async def _put(self, declared: Declared, status: object) -> bool:
        """Write; False: somebody else was first, and the next look tries again."""
        try:
            await self._budgets.write(declared, status)
        except (RecordConflictError, RecordNotFoundError):
            return False
        except RecordsError as problem:
            log.warning("status of a budget is not written", budget=declared.name, why=str(problem))
            return False
        return True
