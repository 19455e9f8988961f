"""What is known of an experiment: conditions, decisions, counts, reasons."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.budget import BudgetStatus
from dsec.api.elastic_status import RoleScaling
from dsec.api.experiment import ExperimentSpec, Replicas
from dsec.api.meta import Conditions, Count, Reference, Text, Word
from dsec.api.reasons import EndReason, PendingReason

MAX_DEFAULTED = 1024
"""Filled-in values listed in an experiment's status; a record stays far below 1.5 MiB."""
MAX_WARNINGS = 64
"""Warnings in an experiment's status."""
MAX_EXAMPLES = 20
"""Sandboxes named in an experiment's status; the rest are counts (records stay small)."""


class ExperimentCondition(StrEnum):
    """Condition types of an Experiment."""

    ACCEPTED = "Accepted"
    """Defaults, presets and images are resolved: status.resolved is current."""
    SCHEDULED = "Scheduled"
    """Every wanted replica has a node."""
    READY = "Ready"
    """Every wanted replica runs and is registered."""
    COMPLETED = "Completed"
    """Every replica has ended for good, of roles that run once or are never restarted."""
    FROZEN = "Frozen"
    """The scene is archived and the resources are given back."""
    WITHIN_BUDGET = "WithinBudget"
    """No budget holds it back; only there once one did, or where it declares its own."""


class ExperimentReason(StrEnum):
    """Reasons in the conditions of an Experiment."""

    RESOLVED = "Resolved"
    """Accepted=True: the decided form is in status.resolved."""
    INVALID = "Invalid"
    """Accepted=False: it can never run; the message lists every mistake."""
    TENANT_MISSING = "TenantMissing"
    """Accepted=False: the namespace belongs to no tenant."""
    ALL_BOUND = "AllBound"
    """Scheduled=True."""
    WAITING = "Waiting"
    """Scheduled=False: status.pendingReasons says for what."""
    ALL_RUNNING = "AllRunning"
    """Ready=True."""
    STARTING = "Starting"
    """Ready=False: some replicas are bound but do not run yet."""
    RUN_OVER = "RunOver"
    """Ready=False: the replicas have ended."""
    ALL_ENDED = "AllEnded"
    """Completed=True: results are below status.results."""
    IN_PROGRESS = "InProgress"
    """Completed=False: replicas still wait or run."""
    FREEZING = "Freezing"
    """Frozen=False: the scene is being archived."""
    ARCHIVED = "Archived"
    """Frozen=True."""
    NOT_ASKED = "NotAsked"
    """Frozen=False: nobody asked for it."""
    BUDGET_LEFT = "BudgetLeft"
    """WithinBudget=True."""
    LEVEL_REACHED = "LevelReached"
    """WithinBudget=False: growth is refused; the message names the budget and its action."""


class Defaulted(WireModel):
    """One value that the submitter left out, and where it came from."""

    path: Word = Field(description="Field of the spec, for example roles[0].resources.memoryBytes.")
    value: Text = Field(description="The value used, as JSON text.")
    source: Word = Field(alias="from", description="tenant, preset CONF-nn, mirror, or built-in.")


class RoleImage(WireModel):
    """The image of a role, pinned."""

    role: Word = Field(description="Name of the role.")
    reference: Reference = Field(description="What sandboxes use, with digest once it is known.")
    digest: Word = Field(default="", description="sha256:...; empty until the registry answered.")


class Resolved(WireModel):
    """What was decided: the asked spec with every default, preset and image filled in, once."""

    tenant: Word = Field(description="The tenant of the namespace.")
    spec: ExperimentSpec = Field(description="Normalised and complete.")
    defaulted: list[Defaulted] = Field(
        default=[], max_length=MAX_DEFAULTED, description="Every value that was not asked for."
    )
    images: list[RoleImage] = Field(
        default=[], max_length=64, description="Images by role, pinned to digests."
    )
    warnings: list[Text] = Field(
        default=[], max_length=MAX_WARNINGS, description="What was accepted but should be changed."
    )
    generation: int = Field(default=0, ge=0, description="metadata.generation it was made from.")


class ReasonCount(WireModel):
    """How many replicas ended for one reason."""

    reason: EndReason = Field(description="Typed end reason.")
    count: Count = Field(description="Replicas.")


class RoleStatus(WireModel):
    """Counts of one role."""

    name: Word = Field(description="Name of the role.")
    desired: Replicas = Field(default=0, description="Replicas wanted now, overrides included.")
    pending: Replicas = Field(default=0, description="Wanted, without a node.")
    starting: Replicas = Field(default=0, description="On a node, not registered yet.")
    ready: Replicas = Field(default=0, description="Running and registered.")
    paused: Replicas = Field(default=0, description="Paused.")
    ended: list[ReasonCount] = Field(default=[], max_length=32, description="Ends by reason.")
    incarnations: Count = Field(default=0, description="Replicas replaced so far.")


class PendingCount(WireModel):
    """Why replicas wait, grouped."""

    reason: PendingReason = Field(description="Typed reason.")
    message: Text = Field(description="Dimension, asked, free, and what would start them.")
    count: Count = Field(description="Replicas that wait for this.")
    role: Word = Field(default="", description="Role that waits.")


class OverrideKind(StrEnum):
    """What an API call changed beside the spec."""

    SCALE = "scale"
    PAUSE = "pause"
    FREEZE = "freeze"
    HOLD = "hold"
    REQUEST = "request"
    """A count that the task itself wants; the scaler of the role decides, and drops it."""


class Override(WireModel):
    """A live change by an API call; dropped when the declared field changes."""

    kind: OverrideKind = Field(description="What was asked.")
    role: Word = Field(default="", description="Role; empty: the whole experiment.")
    replicas: Replicas | None = Field(default=None, description="For scale: replicas wanted.")
    declared: Replicas | None = Field(
        default=None, description="For scale: spec value at that time; a change drops the override."
    )
    by: Word = Field(description="Who asked.")
    at: datetime = Field(description="When (UTC).")
    until: datetime | None = Field(default=None, description="When it lapses; unset: never.")


class StageTime(WireModel):
    """First time that a stage of the lifecycle was reached (LIFE-10)."""

    name: Word = Field(description="submit, bind, image, create, start, running or end.")
    at: datetime = Field(description="UTC.")


class Example(WireModel):
    """One sandbox worth looking at."""

    id: Word = Field(description="Sandbox id.")
    role: Word = Field(default="", description="Role.")
    index: int = Field(default=0, ge=0, description="Replica number.")
    node: Word = Field(default="", description="Node.")
    state: Word = Field(default="", description="State.")
    reason: Word = Field(default="", description="End or pending reason.")
    message: Text = Field(default="", description="In words.")


class ExperimentStatus(WireModel):
    """What is. Counts per role and reason and a few examples; never one entry per sandbox."""

    observed_generation: int = Field(
        default=0, ge=0, description="metadata.generation that this status speaks of."
    )
    conditions: Conditions = Field(default=[], description="See ExperimentCondition.")
    resolved: Resolved | None = Field(default=None, description="What was decided.")
    roles: list[RoleStatus] = Field(default=[], max_length=64, description="Counts per role.")
    desired: Count = Field(default=0, description="Sum over roles.")
    ready: Count = Field(default=0, description="Sum over roles.")
    pending: Count = Field(default=0, description="Sum over roles.")
    ended: Count = Field(default=0, description="Sum over roles and reasons.")
    pending_reasons: list[PendingCount] = Field(
        default=[], max_length=64, description="Why replicas wait."
    )
    overrides: list[Override] = Field(
        default=[], max_length=256, description="Live changes by API calls."
    )
    scaling: list[RoleScaling] = Field(
        default=[], max_length=64, description="Elastic roles: what their scalers know and decided."
    )
    budget: BudgetStatus | None = Field(
        default=None, description="What its own budget has spent; unset: it declares none."
    )
    stages: list[StageTime] = Field(default=[], max_length=16, description="Times of stages.")
    examples: list[Example] = Field(
        default=[], max_length=MAX_EXAMPLES, description="Sandboxes worth looking at."
    )
    results: Word = Field(default="", description="Prefix of its results in the object store.")
