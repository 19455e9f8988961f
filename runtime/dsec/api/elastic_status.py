"""What a scaler remembers and tells: all of it in a record's status, so that restarts lose nothing.

Times named `at`, `since` and the like are seconds on the scaler's own line of time, which counts at
most one long period per look: set clocks and absences move nothing. `utc` is for people.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.elastic import Instances, ReplicaPreset
from dsec.api.meta import Count, Text, Word

MAX_REVERSALS = 16
"""More are past the cap of every sensible guard."""


class Step(StrEnum):
    """A change of a count."""

    GROW = "grow"
    SHRINK = "shrink"


class ScalingReason(StrEnum):
    """Why a count is what it is after a look."""

    GROWN = "grown"
    SHRUNK = "shrunk"
    REQUESTED = "requested"
    """The task asked for a count itself (ELAS-23)."""
    BOUNDS = "bounds"
    """The count was outside its bounds and was brought back (ELAS-33)."""
    STEADY = "steady"
    CONFIRMING_GROWTH = "confirming-growth"
    """The trigger has not held for enough rounds yet."""
    CONFIRMING_SHRINK = "confirming-shrink"
    NO_DATA = "no-data"
    """The metric is missing or stale; no data is not zero, so the count is held."""
    NO_BASELINE = "no-baseline"
    """Too little was seen of the last hour to tell what is usual."""
    NOT_CROSSED = "not-crossed"
    """The threshold was not crossed afresh since the last change (CONF-04)."""
    COOLDOWN = "cooldown"
    GUARD = "guard"
    """A shrink that has to be wanted for longer, because growth undid the last ones."""
    PROTECTED = "protected"
    """A shrink too soon after growth."""
    AT_LIMIT = "at-limit"
    """Growth stops at a bound: max, quota, budget or nodes."""
    AT_FLOOR = "at-floor"
    FROZEN = "frozen"
    """Growth is frozen while replicas fail and are retried at a rising rate (ELAS-12)."""
    IO_BOUND = "io-bound"
    """Growth is withheld: replicas wait for data, not for processors (ELAS-21)."""
    WOULD_SHRINK = "would-shrink"
    """A shrink that is told and not made (ELAS-29)."""
    WOULD_GROW = "would-grow"


class Limit(StrEnum):
    """What stops growth."""

    MAX = "max"
    QUOTA = "quota"
    BUDGET = "budget"
    NODES = "nodes"
    WORTH = "worth"
    """More would cost more than it brings, at the role's speedPercent (ROAD-12)."""


class GuardState(WireModel):
    """What the oscillation guard of one role or pool remembers."""

    reversals: list[float] = Field(
        default=[], max_length=MAX_REVERSALS, description="When growth undid a shrink, seconds."
    )
    last: Step | None = Field(default=None, description="The last change.")
    last_at: float | None = Field(default=None, description="When it was made, seconds.")


class Means(WireModel):
    """Sums of a metric by equal spans of time, oldest first: enough for the mean of an hour."""

    start: float = Field(default=0.0, description="Begin of the last span, seconds.")
    sums: list[float] = Field(default=[], max_length=64, description="Sum of each span.")
    counts: list[Count] = Field(default=[], max_length=64, description="Values in each span.")


class Reading(WireModel):
    """One signal as it was last read."""

    name: Word = Field(description="Name of the signal.")
    value: float | None = Field(default=None, description="Unset: there is none.")
    age_seconds: float = Field(default=0.0, ge=0, description="Age when it was read.")
    problem: Text = Field(default="", description="Why there is none, in words.")


class Growth(WireModel):
    """One growth from its trigger to the first result of what it added (ELAS-25)."""

    count_before: Instances = Field(description="Replicas wanted before.")
    count_after: Instances = Field(description="Replicas wanted since.")
    triggered: datetime = Field(description="First round of the trigger (UTC).")
    acted: datetime = Field(description="When the count was raised (UTC).")
    first_result: datetime | None = Field(
        default=None, description="When the first added replica registered or gave a sample (UTC)."
    )


class RoleScaling(WireModel):
    """What the scaler of one role remembers, and its last decision in words."""

    role: Word = Field(description="Name of the role.")
    preset: ReplicaPreset | None = Field(default=None, description="The rule that it follows.")
    count: Instances = Field(default=0, description="Replicas that it wants.")
    reason: ScalingReason = Field(default=ScalingReason.STEADY, description="Why.")
    message: Text = Field(default="", description="The same in a sentence, with its figures.")
    since: datetime | None = Field(default=None, description="When the reason began (UTC).")
    would: Instances | None = Field(
        default=None, description="What it would set, were that change allowed."
    )
    advice: Text = Field(default="", description="What a person should look at.")
    limit: Limit | None = Field(default=None, description="What stops growth.")
    readings: list[Reading] = Field(
        default=[], max_length=16, description="Signals of the last round."
    )
    growths: list[Growth] = Field(default=[], max_length=8, description="The last ones.")
    guard: GuardState = Field(default=GuardState(), description="Delays shrinking.")
    utc: datetime | None = Field(default=None, description="When it last looked (UTC).")
    at: float = Field(default=0.0, description="The same on its own line of time, seconds.")
    round_at: float | None = Field(default=None, description="Of the last round.")
    grow_rounds: Count = Field(default=0, description="Rounds in a row that asked for more.")
    shrink_rounds: Count = Field(default=0, description="Rounds in a row that asked for less.")
    asked_at: datetime | None = Field(
        default=None, description="First of those rounds that asked for more (UTC)."
    )
    shrink_since: float | None = Field(
        default=None, description="First of those that asked for less."
    )
    missing_rounds: Count = Field(default=0, description="Rounds in a row without the metric.")
    usual: float | None = Field(
        default=None, description="Baseline of the streak under way: it does not chase itself."
    )
    values: Means = Field(default=Means(), description="The metric over the last hour.")
    retries: Means = Field(default=Means(), description="The retry rate over the last hour.")
    frozen: bool = Field(default=False, description="Growth is frozen.")
    calm_rounds: Count = Field(default=0, description="Rounds without a raised retry rate.")
    crossed: bool = Field(default=True, description="The upper threshold may trigger again.")
    crossed_low: bool = Field(default=True, description="The lower threshold may trigger again.")
    grown_from: Instances = Field(default=0, description="Count before the last growth.")
    agents: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Active agents for which the count was right."
    )
