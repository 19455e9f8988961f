"""The record of a placement decision: from what, for whom, where to, and why not elsewhere."""

from datetime import datetime

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.reasons import PendingReason


class Rejection(WireModel):
    """Nodes (or a quota) that did not do, for one reason. Figures are in the dimension's unit."""

    reason: PendingReason
    dimension: str
    asked: int | str = ""
    free: int = Field(default=0, description="The most that any one of them has free.")
    nodes: int = Field(default=0, description="How many nodes were rejected for it.")
    text: str = Field(default="", description="The same as a sentence, with what would start it.")


class Score(WireModel):
    """One part of the chosen node's score; the parts add up, and the smallest sum wins."""

    name: str
    value: float


class LedgerFigure(WireModel):
    """One dimension of one account before the decision. Without nominal or ceiling: unlimited."""

    account: str
    dimension: str
    asked: int
    used: int
    nominal: int | None = None
    ceiling: int | None = None


class DecisionRecord(WireModel):
    """What was decided in one round for all requests that asked for the same."""

    id: str = Field(description="Names it in the rows of the sandboxes that it decided on.")
    at: datetime
    epoch: int = Field(default=0, description="Of the leader that decided.")
    inputs: str = Field(description="SHA-256 of nodes and bookings just before.")
    request: dict[str, object] = Field(description="What each asked for; defaults left out.")
    asked: int = Field(description="Requests of the class in the round.")
    nodes: dict[str, int] = Field(default={}, description="Chosen nodes, with how many each got.")
    rejected: list[Rejection] = []
    scores: list[Score] = Field(default=[], description="Of the first node chosen.")
    ledger: list[LedgerFigure] = []

    @property
    def placed(self) -> int:
        """How many got a node."""
        return sum(self.nodes.values())


class SandboxDecision(WireModel):
    """The newest decision about one sandbox."""

    sandbox: str
    at: datetime
    node: str = Field(default="", description="Empty: it waits.")
    devices: list[str] = []
    message: str = Field(description="Why there, or why nowhere, in words.")
    record: DecisionRecord | None = Field(
        default=None, description="Unset: it was not placed, but paused, stopped or resumed."
    )
