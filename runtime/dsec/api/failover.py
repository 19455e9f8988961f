"""Failover between regions, as callers ask for it and are told of it."""

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.meta import DnsName, Text, Word


class FailoverCall(WireModel):
    """Take over the experiments of a region that is lost."""

    lost: Word = Field(min_length=1, description="The region that is lost.")
    projects: list[DnsName] = Field(default=[], max_length=256, description="Empty: all.")
    rehearse: bool = Field(default=False, description="Say what would happen; change nothing.")
    verify: bool = Field(default=False, description="Read every byte of the newest copies first.")
    why: Text = ""


class FailoverCopy(WireModel):
    """The newest copy of one replica's state. `problem`: why it cannot be used, where verified."""

    lineage: str
    seq: int
    age_seconds: float
    problem: str = ""


class FailoverRow(WireModel):
    """One experiment. `made`: it exists here now; `problem`: what stopped it."""

    project: str
    name: str
    tenant: str
    root: str
    fate: str
    epoch: int
    lost_seconds: float | None = Field(
        default=None, description="Work that is lost at most; unset: all, or it is not moved."
    )
    copies: list[FailoverCopy] = []
    why: str = ""
    made: bool = False
    problem: str = ""


class FailoverStep(WireModel):
    """One step, in the order of CONF-21, and how long it took."""

    name: str
    seconds: float


class FailoverAnswer(WireModel):
    """What was done, or would be."""

    here: str
    lost: str
    rehearsal: bool
    rows: list[FailoverRow]
    steps: list[FailoverStep]
    recovery_point_seconds: float | None = Field(
        default=None, description="Of the experiment that loses most; unset: one loses all."
    )
