"""Budgets from what people declare: a Budget record, or the ceiling in a task's document. Pure.

`mistakes` finds everything that is wrong with a record at once, for admission and for people;
`allowance_of` is for a record that has none.
"""

from collections.abc import Iterator, Mapping

from dsec.api.budget import BudgetAction, BudgetLevelKind, BudgetScope, BudgetSpec, BudgetUnit
from dsec.api.experiment import ExperimentBudget, OnExceed
from dsec.api.mistakes import Mistake
from dsec.cost.amounts import MoneyError, exact, unit_of
from dsec.cost.budgets import HUNDRED, POOL, Allowance, Level
from dsec.cost.periods import period_of

_ACTIONS: Mapping[OnExceed, BudgetAction] = {
    OnExceed.DEGRADE: BudgetAction.DEGRADE,
    OnExceed.STOP_GROWING: BudgetAction.STOP_GROWING,
    OnExceed.PAUSE: BudgetAction.PAUSE,
    OnExceed.TERMINATE: BudgetAction.END,
}


def mistakes(
    spec: BudgetSpec, *, project: str, currency: str | None = None, platform: bool = False
) -> list[Mistake]:
    """Return every mistake in a record; `project` is its namespace, `currency` the tenant's.

    `platform`: it lies in a namespace of the platform. Only there may it limit an account or a
    pool: whoever may write in a project would else decide about what others spend.
    """
    return list(_mistakes(spec, project, currency, platform=platform))


def allowance_of(
    name: str, spec: BudgetSpec, *, tenant: str, project: str, currency: str | None = None
) -> Allowance:
    """Return a record's budget; `tenant` and `project` are those of its namespace.

    Raises MoneyError with all `mistakes` but that of the place.
    """
    found = mistakes(spec, project=project, currency=currency, platform=True)
    if found:
        raise MoneyError("; ".join(str(one) for one in found))
    unit = spec.unit.value if spec.unit is not BudgetUnit.MONEY else spec.currency or currency
    return Allowance(
        name,
        _path(spec, tenant, project),
        exact(spec.limit, "limit"),
        unit_of(unit or "", "currency"),
        period_of(spec.period),
        tuple(Level(one.percent, one.level, one.action) for one in spec.levels),
        tuple(sorted(set(spec.alert_percents))),
        tuple((one.region, one.percent) for one in spec.regions),
    )


def task_allowance(path: str, budget: ExperimentBudget, currency: str | None) -> Allowance:
    """Return the ceiling that a task declared at its submission (COST-01): one for all its life.

    Raises MoneyError where neither it nor the tenant names a currency.
    """
    unit = budget.currency or currency
    if unit is None:
        raise MoneyError("budget.currency: unset, and the tenant has none; an ISO 4217 code")
    ends = budget.on_exceed is OnExceed.TERMINATE
    kind = BudgetLevelKind.TERMINATE if ends else BudgetLevelKind.HARD
    level = Level(HUNDRED, kind, _ACTIONS[budget.on_exceed])
    limit = exact(budget.limit, "budget.limit")
    return Allowance(f"task/{path}", path, limit, unit_of(unit), levels=(level,))


def chosen_by(budget: ExperimentBudget | None) -> BudgetAction | None:
    """Return the action that a task chose for itself, None: it left that to the budgets."""
    return _ACTIONS[budget.on_exceed] if budget else None


def _mistakes(
    spec: BudgetSpec, project: str, currency: str | None, *, platform: bool
) -> Iterator[Mistake]:
    scope = spec.scope
    if scope in {BudgetScope.ACCOUNT, BudgetScope.POOL} and not platform:
        allowed = "project or task here; account and pool in a namespace of the platform"
        yield _mistake("scope", scope.value, allowed)
    if scope is BudgetScope.PROJECT and spec.target not in {None, project}:
        yield _mistake("target", spec.target, f"none or {project}: its own namespace")
    if scope in {BudgetScope.TASK, BudgetScope.POOL} and spec.target is None:
        yield _mistake("target", None, f"a name: scope {scope.value} needs one")
    if spec.unit is BudgetUnit.MONEY and not (spec.currency or currency):
        yield _mistake("currency", None, "an ISO 4217 code such as EUR; the tenant has none either")
    if spec.unit is not BudgetUnit.MONEY and spec.currency:
        yield _mistake("currency", spec.currency, f"none: {spec.unit.value} are no money")
    try:
        period_of(spec.period)
    except MoneyError as error:
        # its words are `period.field: value; what is allowed`
        field, _, words = str(error).partition(": ")
        yield Mistake(f"spec.{field}", None, words, words)
    percents = sum(one.percent for one in spec.regions)
    if percents > HUNDRED:
        yield _mistake("regions", percents, "at most 100 percent in all")
    names = [one.region for one in spec.regions]
    for name in sorted({one for one in names if names.count(one) > 1}):
        yield _mistake("regions", name, "each region once")


def _mistake(field: str, value: object, allowed: str) -> Mistake:
    shown = "unset" if value is None else f"{value}"
    return Mistake(f"spec.{field}", value, allowed, f"{shown}; allowed is {allowed}")


def _path(spec: BudgetSpec, tenant: str, project: str) -> str:
    if spec.scope is BudgetScope.ACCOUNT:
        return spec.target or tenant
    if spec.scope is BudgetScope.POOL:
        return f"{POOL}{spec.target}"
    if spec.scope is BudgetScope.TASK:
        return f"{tenant}/{project}/{spec.target}"
    return f"{tenant}/{project}"
