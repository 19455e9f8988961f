"""What the buyer of nodes remembers of a pool: in its status, so that another leader goes on.

A node stands here before the provider is asked for it and until it costs nothing any more. Times
are UTC seconds since 1970; amounts are exact decimal text.
"""

from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.elastic_status import GuardState
from dsec.api.meta import Count, Text, Word

Exact = Annotated[str, Field(pattern=r"^\d{1,15}(\.\d{1,12})?$", max_length=32)]
Since = float | None


class HeldNode(WireModel):
    """One node that was got, or is about to be."""

    name: Word = Field(description="Name that its agent registers with; reserved: a name of ours.")
    id: Word = Field(default="", description="The provider's identifier; empty: not known yet.")
    offering: Word = Field(description="Key of the offering: pool/region/zone/type/market.")
    supplier: Word = Field(default="", description="Who gave it.")
    token: Word = Field(default="", description="Token of its purchase.")
    phase: Word = Field(description="requested, booting, ready, draining or ending.")
    price_per_hour: Exact = Field(default="0", description="When it was bought.")
    currency: Word = Field(default="USD", description="Of the price.")
    cpu_milli: int = Field(default=0, ge=0, description="CPU that was bought.")
    gpu_count: Count = Field(default=0, description="GPUs that were bought.")
    minimum_seconds: Count = Field(default=60, description="Least time that is billed.")
    paths: list[Word] = Field(default=[], max_length=64, description="Budgets that pay for it.")
    covers: list[Word] = Field(
        default=[], max_length=4096, description="Work that it was bought for, until it is ready."
    )
    requested_at: float = Field(description="When it was reserved.")
    since: float = Field(description="When its phase began.")
    ready_at: Since = Field(default=None, description="When its agent was first ready.")
    run_until: Since = Field(default=None, description="Until when it is paid for; unset: owned.")
    revision: Count = Field(default=0, description="Grows with each extension.")
    idle_since: Since = Field(default=None, description="Since when nothing is on it.")
    spot_notice_at: Since = Field(default=None, description="When its owner announced its end.")
    rebalance_at: Since = Field(default=None, description="When its owner foretold that.")
    cordoned: bool = Field(default=False, description="It is to take no new work.")
    why: Word = Field(default="", description="Typed reason of its drain or removal.")
    ended_at: Since = Field(default=None, description="When it stopped to cost.")


class HeldBackoff(WireModel):
    """A way to get nodes that failed lately."""

    key: Word = Field(description="Offering, or quota/, provider/, region/ with what it is of.")
    failures: Count = Field(description="In a row.")
    until: float = Field(description="Left alone until then; after it one node is tried.")
    code: Word = Field(default="", description="The provider's own word.")


class HeldMemory(WireModel):
    """What planning remembers of the pool."""

    busy_since: Since = Field(default=None, description="CPU above its threshold.")
    calm_since: Since = Field(default=None, description="CPU below its threshold.")
    backlog_since: Since = Field(default=None, description="Work waits.")
    acted_at: Since = Field(default=None, description="Last step by load.")
    guard: GuardState = Field(default=GuardState(), description="Delays shrinking.")


class NodeDecision(WireModel):
    """One thing that was decided, with its reason in words."""

    at: float = Field(description="When.")
    text: Text = Field(description="The sentence.")


class PoolScalingStatus(WireModel):
    """Of one pool."""

    epoch: int = Field(default=0, ge=0, description="Leader that wrote it; an older one may not.")
    serial: int = Field(default=0, ge=0, description="Grows with each plan that buys.")
    consolidated_at: Since = Field(default=None, description="Last look for nodes to empty.")
    nodes: list[HeldNode] = Field(default=[], max_length=10_000, description="Its nodes.")
    backoffs: list[HeldBackoff] = Field(default=[], max_length=1000, description="Open ones.")
    memory: HeldMemory = Field(default=HeldMemory(), description="Between plans.")
    decisions: list[NodeDecision] = Field(
        default=[], max_length=16, description="The last ones, the newest last."
    )
    refusals: list[Text] = Field(
        default=[], max_length=16, description="What is not done now, and why."
    )
    problem: Text = Field(default="", description="Why nothing is planned; empty: it is.")
