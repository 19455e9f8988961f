"""Budgets: what an account, project, task or pool may spend in a period, and what happens then."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.meta import Conditions, DnsName, GivenName, Live, Money, Replace, Word

Percent = Annotated[int, Field(ge=1, le=100)]
SignedMoney = Annotated[str, Field(pattern=r"^-?\d{1,15}(\.\d{1,6})?$", max_length=24)]
"""An exact decimal amount as text, to a millionth."""


class BudgetScope(StrEnum):
    """Whose spending a budget counts (TEN-03)."""

    ACCOUNT = "account"
    """A tenant with all its projects."""
    PROJECT = "project"
    """The project whose namespace holds the record."""
    TASK = "task"
    """One experiment of the namespace."""
    POOL = "pool"
    """The nodes of one pool, whoever pays for them."""


class BudgetUnit(StrEnum):
    """What the limit counts."""

    MONEY = "money"
    GPU_HOURS = "gpu-hours"
    CPU_HOURS = "cpu-hours"


class PeriodKind(StrEnum):
    """When a budget starts anew."""

    TOTAL = "total"
    """Never: one limit for all time."""
    CALENDAR = "calendar"
    """With each calendar day, week (Monday), month, quarter or year of its zone."""
    ANCHORED = "anchored"
    """With each billing cycle: counted from an anchor date, such as the tenth of a month."""
    ROLLING = "rolling"
    """Not at fixed times: the last rollingSeconds always count."""


class PeriodUnit(StrEnum):
    """Length of a calendar period or a billing cycle."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"


class BudgetLevelKind(StrEnum):
    """How strict a level is."""

    SOFT = "soft"
    """Takes its action; nothing is refused that the limit still covers."""
    HARD = "hard"
    """Nothing is committed that could pass it, and its action is taken when it is reached."""
    TERMINATE = "terminate"
    """As hard, and what runs is ended when it is reached, its results collected first."""


class BudgetAction(StrEnum):
    """What is done about the work that a budget pays for; a task may choose its own."""

    WARN = "warn"
    """An event, nothing else."""
    DEGRADE = "degrade"
    """Roles shrink to their least replica count."""
    STOP_GROWING = "stop-growing"
    """What runs goes on; no replica and no node is added."""
    PAUSE = "pause"
    """Sandboxes are paused and cloud nodes given back; work goes on when there is budget."""
    END = "end"
    """The work ends as over budget, its results collected first."""


class BudgetCondition(StrEnum):
    """Conditions of a Budget."""

    READY = "Ready"
    """It is counted and enforced; False: it contradicts itself."""
    WITHIN_LIMIT = "WithinLimit"
    """No level has been reached; False: its action is in force."""


class BudgetReason(StrEnum):
    """Reasons in the conditions of a Budget."""

    COUNTED = "Counted"
    """Ready=True."""
    INVALID = "Invalid"
    """Ready=False: it contradicts itself; the message says how."""
    ROOM = "Room"
    """WithinLimit=True: there is room for more."""
    COMMITTED = "Committed"
    """WithinLimit=True: all that is left is promised to what runs, nothing may be added."""
    LEVEL_REACHED = "LevelReached"
    """WithinLimit=False: a level has been reached; the message says what is in force."""


class BudgetPeriod(WireModel):
    """When the budget starts anew, and where midnight is."""

    kind: PeriodKind = Field(default=PeriodKind.CALENDAR, description="When it starts anew.")
    every: PeriodUnit = Field(
        default=PeriodUnit.MONTH, description="Length of a calendar period or billing cycle."
    )
    anchor: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", max_length=10)] | None = Field(
        default=None,
        description="First day of some billing cycle, as 2026-03-10; needed by kind anchored.",
    )
    rolling_seconds: Annotated[int, Field(ge=3600, le=366 * 86_400)] | None = Field(
        default=None, description="Length of the window; needed by kind rolling."
    )
    time_zone: Word = Field(
        default="UTC", description="IANA zone such as Europe/Berlin, or an offset such as +09:00."
    )


class BudgetLevel(WireModel):
    """What happens at a part of the limit."""

    percent: Percent = Field(default=100, description="Part of the limit at which it holds.")
    level: BudgetLevelKind = Field(default=BudgetLevelKind.HARD, description="How strict it is.")
    action: BudgetAction = Field(
        default=BudgetAction.DEGRADE, description="What is done where the task chose nothing."
    )


class RegionShare(WireModel):
    """The part of the limit that one region may spend without asking the others."""

    region: Word = Field(description="Region, for example eu-central-1.")
    percent: Percent = Field(description="Part of the limit, in percent; at most 100 in all.")


class BudgetSpec(WireModel):
    """The most that may be spent in a period, and what happens on the way there."""

    scope: Replace[BudgetScope] = Field(
        default=BudgetScope.PROJECT, description="Whose spending it counts."
    )
    target: Replace[GivenName | None] = Field(
        default=None,
        description="Tenant, experiment or pool by name; unset for a project: its own namespace.",
    )
    limit: Live[Money] = Field(description="Exact decimal amount per period.")
    unit: Replace[BudgetUnit] = Field(
        default=BudgetUnit.MONEY, description="What the limit counts."
    )
    currency: Replace[Annotated[str, Field(pattern="^[A-Z]{3}$")] | None] = Field(
        default=None, description="ISO 4217 code where the unit is money; unset: the tenant's."
    )
    period: Live[BudgetPeriod] = Field(
        default=BudgetPeriod(), description="When it starts anew, and where midnight is."
    )
    levels: Live[list[BudgetLevel]] = Field(
        default=[BudgetLevel()], max_length=8, description="What happens at parts of the limit."
    )
    alert_percents: Live[list[Percent]] = Field(
        default=[50, 80, 100], max_length=16, description="An event at each, once in a period."
    )
    regions: Live[list[RegionShare]] = Field(
        default=[], max_length=32, description="Escrow of each region; empty: one region has all."
    )


class BudgetAlert(WireModel):
    """A part of the limit that was passed."""

    percent: Percent = Field(description="Which part.")
    period_start: datetime | None = Field(
        default=None, description="Period that it was passed in (UTC); unset: there is only one."
    )
    limit: SignedMoney = Field(description="The limit that it was a part of.")
    at: datetime = Field(description="When it was first seen (UTC).")


class BudgetStatus(WireModel):
    """What was spent, what is promised, and what will be."""

    observed_generation: int = Field(default=0, ge=0, description="Generation spoken of.")
    conditions: Conditions = Field(
        default=[], description="Ready and WithinLimit; see BudgetReason."
    )
    period_start: datetime | None = Field(default=None, description="Start of the period (UTC).")
    period_end: datetime | None = Field(
        default=None, description="When it starts anew (UTC); unset: never, or it rolls."
    )
    spent: SignedMoney = Field(default="0", description="Spent in the period.")
    committed: SignedMoney = Field(
        default="0", description="Promised until the run-until times, with wind-down and leases."
    )
    left: SignedMoney = Field(default="0", description="Limit minus spent and committed.")
    forecast: SignedMoney | None = Field(
        default=None, description="Expected at the end of the period; the message says how."
    )
    forecast_source: Word = Field(default="", description="Formula and source of the forecast.")
    action: BudgetAction | None = Field(default=None, description="What is in force now.")
    alerts: list[BudgetAlert] = Field(
        default=[], max_length=64, description="Parts of the limit passed, newest periods only."
    )
    escrow: dict[DnsName, SignedMoney] = Field(
        default={}, max_length=32, description="What each region may spend in the period."
    )
