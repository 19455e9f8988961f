"""Budgets as the gate reads them: whose, how much, in which period, and what happens on the way.

A path is `tenant`, `tenant/project`, `tenant/project/task` (TEN-03), or `pool:NAME`. What is spent
at a path counts against the budgets of that path and of all above it.

Levels. A *soft* level takes its action and refuses nothing that the limit covers. A *hard* one
makes its part of the limit the most that may ever be committed (`gate`). *Terminate* is hard, and
what runs is ended. A task may choose the action for itself; soft warnings and terminate stay.

A level is reached when that part of the limit is spent; a hard one also when what runs cannot be
given another step (`gate.BudgetState.exhausted`), since a hard budget is never spent to the last
millionth. Once reached it stays in force, remembered by the caller, until the period ends or the
limit changes: otherwise work would grow back into the room that shrinking it has made.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from dsec.api.budget import (
    BudgetAction,
    BudgetLevelKind,
    BudgetScope,
    BudgetSpec,
    BudgetUnit,
)
from dsec.api.experiment import ExperimentBudget, OnExceed
from dsec.cost.amounts import ZERO, MoneyError, divided, exact, floor_micro, unit_of
from dsec.cost.periods import FOREVER, Period, Span, period_of

POOL = "pool:"
"""Start of the path of a pool's budget."""
MAX_LEVELS = 3
HUNDRED = 100

STRICTNESS = (
    BudgetAction.WARN,
    BudgetAction.STOP_GROWING,
    BudgetAction.DEGRADE,
    BudgetAction.PAUSE,
    BudgetAction.END,
)
"""Actions, the mildest first; of several in force the last of these is taken."""
GROWS = frozenset({BudgetAction.WARN})
"""Actions under which work may still grow."""
RENEWS = GROWS | {BudgetAction.STOP_GROWING, BudgetAction.DEGRADE}
"""Actions under which what runs may go on."""

_ACTIONS: Mapping[OnExceed, BudgetAction] = {
    OnExceed.DEGRADE: BudgetAction.DEGRADE,
    OnExceed.STOP_GROWING: BudgetAction.STOP_GROWING,
    OnExceed.PAUSE: BudgetAction.PAUSE,
    OnExceed.TERMINATE: BudgetAction.END,
}


@dataclass(frozen=True, slots=True)
class Level:
    """What happens at a part of the limit."""

    percent: int = HUNDRED
    kind: BudgetLevelKind = BudgetLevelKind.HARD
    action: BudgetAction = BudgetAction.DEGRADE


@dataclass(frozen=True, slots=True)
class Allowance:
    """One budget. `limit` is per period, for all regions together."""

    name: str
    path: str
    limit: Decimal
    unit: str
    period: Period = FOREVER
    levels: tuple[Level, ...] = (Level(),)
    alerts: tuple[int, ...] = (50, 80, 100)
    regions: tuple[tuple[str, int], ...] = ()
    """(region, percent); empty: wherever it is asked, all of it."""

    def share(self, region: str = "") -> Decimal:
        """Return what a region may spend in a period: its escrow.

        Largest remainder, so that the parts are never more than the limit. A region without a part
        has none.
        """
        if not self.regions:
            return self.limit
        rest = HUNDRED - sum(percent for _, percent in self.regions)
        weights = [percent for _, percent in self.regions]
        parts = divided(self.limit, [*weights, max(0, rest)])
        shares = dict(zip((name for name, _ in self.regions), parts, strict=False))
        return shares.get(region, Decimal(0))


@dataclass(frozen=True, slots=True)
class Fired:
    """A part of the limit that was passed. The caller keeps these, over restarts too."""

    percent: int
    period_start: float | None
    limit: Decimal
    at: float


@dataclass(frozen=True, slots=True)
class Standing:
    """One budget now, in one region: what the gate compares with."""

    allowance: Allowance
    span: Span
    spent: Decimal
    limit: Decimal
    """Escrow of the region, in full."""
    hard: Decimal | None
    """The most that may be committed; None: nothing is refused for its amount."""
    fired: tuple[Fired, ...] = ()
    in_force: BudgetAction | None = None
    """Strictest action whose level has been reached, None: none has."""

    @property
    def name(self) -> str:
        """The budget's name."""
        return self.allowance.name

    @property
    def percent(self) -> int:
        """Whole percent of the limit that is spent, rounded down; 100 for a limit of 0."""
        return int(self.spent * HUNDRED // self.limit) if self.limit > 0 else HUNDRED


@dataclass(frozen=True, slots=True)
class Crossing:
    """A part of the limit passed for the first time in the period (COST-16)."""

    budget: str
    path: str
    fired: Fired
    action: BudgetAction | None
    """What its level asks for; None: an alert only."""


def part(amount: Decimal, percent: int) -> Decimal:
    """Return a percentage of an amount, rounded down to a millionth."""
    return floor_micro(amount * percent / HUNDRED)


def ancestors(path: str) -> tuple[str, ...]:
    """Return a path and all above it, the widest first; a pool's path alone.

    Raises MoneyError for one that is neither.
    """
    if path.startswith(POOL):
        if len(path) == len(POOL):
            raise MoneyError(f"path: {path!r}; pool:NAME is allowed")
        return (path,)
    names = path.split("/")
    if len(names) > MAX_LEVELS or not all(names):
        raise MoneyError(f"path: {path!r}; tenant, tenant/project or tenant/project/task")
    return tuple("/".join(names[: at + 1]) for at in range(len(names)))


def allowance_of(
    name: str, spec: BudgetSpec, *, tenant: str, project: str, currency: str | None = None
) -> Allowance:
    """Return a record's budget; `tenant` and `project` are those of its namespace.

    `currency` is the tenant's, for a budget that names none. Raises MoneyError for the first field
    that makes no sense: field, value, what is allowed.
    """
    unit = spec.unit.value if spec.unit is not BudgetUnit.MONEY else spec.currency or currency
    if unit is None:
        raise MoneyError("currency: unset, and the tenant has none; an ISO 4217 code is allowed")
    if sum(one.percent for one in spec.regions) > HUNDRED:
        total = sum(one.percent for one in spec.regions)
        raise MoneyError(f"regions: {total} percent in all; at most 100 is allowed")
    names = [one.region for one in spec.regions]
    if len(set(names)) < len(names):
        raise MoneyError(f"regions: {', '.join(names)}; each region once is allowed")
    return Allowance(
        name,
        _path(spec, tenant, project),
        exact(spec.limit, "limit"),
        unit_of(unit, "currency"),
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
    kind = (
        BudgetLevelKind.TERMINATE
        if budget.on_exceed is OnExceed.TERMINATE
        else BudgetLevelKind.HARD
    )
    level = Level(HUNDRED, kind, _ACTIONS[budget.on_exceed])
    limit = exact(budget.limit, "budget.limit")
    return Allowance(f"task/{path}", path, limit, unit_of(unit), levels=(level,))


def standing(
    allowance: Allowance,
    spent: Callable[[Allowance, Span, str], Decimal],
    now: float,
    *,
    region: str = "",
    moved: Decimal = ZERO,
    fired: Iterable[Fired] = (),
) -> Standing:
    """Return a budget now. `spent` answers what was spent in a span in a region (`Ledger.spent`).

    `fired` is what the caller has kept; what belongs to another period or limit is dropped. `moved`
    is what other regions gave or were given in this period (`escrow.moved`).
    """
    span = allowance.period.span(now)
    limit = allowance.share(region) + moved
    percents = [one.percent for one in allowance.levels if one.kind is not BudgetLevelKind.SOFT]
    hard = part(limit, min(percents)) if percents else None
    # the start of a rolling window moves with time: what fired there stays while it holds
    rolls = span.start is not None and span.end is None
    amount = spent(allowance, span, region)
    kept = tuple(
        one
        for one in fired
        if one.limit == limit
        and (
            one.period_start == span.start
            if not rolls
            else amount >= part(limit, one.percent) or one.at in span
        )
    )
    found = Standing(allowance, span, amount, limit, hard, kept)
    reached = [one for one in allowance.levels if _reached(found, one.percent)]
    force = strictest(action_of(one) for one in reached)
    return replace(found, in_force=force)


def crossings(now: Standing, at: float, *, exhausted: bool = False) -> tuple[Crossing, ...]:
    """Return the parts of the limit that are passed and have not been told yet, each once.

    `exhausted`: what runs on it cannot be given another step (`gate.BudgetState.exhausted`). That
    reaches the lowest hard level, and everything below it.
    """
    allowance = now.allowance
    told = {one.percent for one in now.fired}
    levels = {one.percent: one for one in sorted(allowance.levels, key=_rank)}
    hard = [one.percent for one in allowance.levels if one.kind is not BudgetLevelKind.SOFT]
    reached = min(hard, default=0) if exhausted else 0
    found = []
    for percent in sorted({*allowance.alerts, *levels} - told):
        if percent > reached and now.spent < part(now.limit, percent):
            continue
        level = levels.get(percent)
        start = None if now.span.end is None else now.span.start
        fired = Fired(percent, start, now.limit, at)
        action = action_of(level) if level else None
        found.append(Crossing(now.name, allowance.path, fired, action))
    return tuple(found)


def action_of(level: Level, chosen: BudgetAction | None = None) -> BudgetAction:
    """Return what a level does to work that chose `chosen` for itself.

    Terminate ends whatever was chosen; a warning stays one; else the choice counts.
    """
    if level.kind is BudgetLevelKind.TERMINATE:
        return BudgetAction.END
    if level.action is BudgetAction.WARN:
        return BudgetAction.WARN
    return chosen or level.action


def chosen_by(budget: ExperimentBudget | None) -> BudgetAction | None:
    """Return the action that a task chose for itself, None: it left that to the budgets."""
    return _ACTIONS[budget.on_exceed] if budget else None


def action_for(
    standings: Iterable[Standing], path: str, chosen: BudgetAction | None = None
) -> BudgetAction | None:
    """Return what is in force for work at a path: the strictest over its budgets (COST-03)."""
    above = set(ancestors(path))
    return strictest(
        action_of(level, chosen)
        for one in standings
        if one.allowance.path in above
        for level in one.allowance.levels
        if _reached(one, level.percent)
    )


def strictest(actions: Iterable[BudgetAction]) -> BudgetAction | None:
    """Return the strictest of actions, None of none."""
    return max(actions, key=STRICTNESS.index, default=None)


def _reached(now: Standing, percent: int) -> bool:
    told = any(one.percent == percent for one in now.fired)
    return told or now.spent >= part(now.limit, percent)


def _rank(level: Level) -> int:
    """Order levels of one percentage: the strictest comes last and counts."""
    return STRICTNESS.index(action_of(level))


def _path(spec: BudgetSpec, tenant: str, project: str) -> str:
    if spec.scope is BudgetScope.PROJECT:
        if spec.target not in {None, project}:
            raise MoneyError(f"target: {spec.target}; a project's budget lies in its own namespace")
        return f"{tenant}/{project}"
    if spec.scope is BudgetScope.ACCOUNT:
        return spec.target or tenant
    if spec.target is None:
        raise MoneyError(f"target: unset; scope {spec.scope.value} needs a name")
    if spec.scope is BudgetScope.POOL:
        return f"{POOL}{spec.target}"
    return f"{tenant}/{project}/{spec.target}"
