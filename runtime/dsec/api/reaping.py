"""What the reaper remembers of a sandbox, and what it is told to wait for."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxState

LONGEST_EXTENSION = 7 * 86_400.0
"""Seconds of one extension; another call extends again."""


class Finding(StrEnum):
    """Why a sandbox should not be there any more."""

    RUN_TIME = "run-time"
    """It runs longer than its declared maximum: its node did not end it."""
    SILENT = "silent"
    """No heartbeat for too long, while dsec was there to hear one."""
    IDLE = "idle"
    """It uses next to nothing, for too long."""
    PAUSED = "paused"
    """It has been paused for longer than paused ones may stay."""
    ZOMBIE = "zombie"
    """Its program has ended or was stopped, and the sandbox is still there."""

    @property
    def reason(self) -> EndReason:
        """The typed reason of an end for this."""
        return _REASONS[self]


_REASONS = {
    Finding.RUN_TIME: EndReason.DEADLINE,
    Finding.SILENT: EndReason.HEARTBEAT_LOST,
    Finding.IDLE: EndReason.IDLE,
    Finding.PAUSED: EndReason.IDLE,
    Finding.ZOMBIE: EndReason.INFRASTRUCTURE,
}


class Mark(WireModel):
    """What is known of one sandbox after a look. Times are UTC seconds, spans are seconds.

    Spans only grow by time in which dsec looked: what nobody watched counts for nobody.
    """

    at: float = Field(description="Last look.")
    state: SandboxState
    cpu_seconds: float | None = Field(default=None, description="CPU time used until then.")
    silent: float = Field(default=0.0, ge=0, description="Without heartbeat.")
    idle: float = Field(default=0.0, ge=0, description="With next to no use.")
    paused: float = Field(default=0.0, ge=0, description="Paused.")
    ending: float = Field(default=0.0, ge=0, description="Stopped or ended, and still there.")
    finding: Finding | None = Field(default=None, description="What is wrong with it now.")
    warned_at: float | None = Field(default=None, description="When its owner was warned.")
    due: float | None = Field(default=None, description="When it is ended unless extended.")
    extended_until: float | None = Field(default=None, description="Nothing happens before.")
    extended_by: str = ""
    caught: bool = Field(default=False, description="Its end was ordered and counted.")


class Book(WireModel):
    """All marks that tell more than a sandbox's state does."""

    at: float = Field(default=0.0, description="Last patrol.")
    marks: dict[str, Mark] = {}


class ExtendCall(WireModel):
    """Let a sandbox be, for so long from now."""

    seconds: float = Field(gt=0, le=LONGEST_EXTENSION)


class Extension(WireModel):
    """What holds now."""

    id: str
    until: datetime
