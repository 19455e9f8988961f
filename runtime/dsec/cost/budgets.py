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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from dsec.api.budget import (
    BudgetAction,
    BudgetLevelKind,
)
from dsec.cost.amounts import ZERO, MoneyError, divided, floor_micro
from dsec.cost.periods import FOREVER, Period, Span

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
