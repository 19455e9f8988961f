"""What a scaler remembers and tells: all of it in a record's status, so that restarts lose nothing.

Times named `at`, `since` and the like are seconds on the scaler's own line of time, which counts at
most one long period per look: set clocks and absences move nothing. `utc` is for people.
"""

from enum import StrEnum

from pydantic import Field

from dsec.api.base import WireModel

MAX_REVERSALS = 16
"""More are past the cap of every sensible guard."""


class Step(StrEnum):
    """A change of a count."""

    GROW = "grow"
    SHRINK = "shrink"


class GuardState(WireModel):
    """What the oscillation guard of one role or pool remembers."""

    reversals: list[float] = Field(
        default=[], max_length=MAX_REVERSALS, description="When growth undid a shrink, seconds."
    )
    last: Step | None = Field(default=None, description="The last change.")
    last_at: float | None = Field(default=None, description="When it was made, seconds.")
