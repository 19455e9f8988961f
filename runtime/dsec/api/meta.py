"""What all records share: Kubernetes metadata, conditions, and how a field may be changed."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, TypeVar

from pydantic import Field

from dsec.api.base import WireModel

GROUP = "dsec.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

TENANT_LABEL = f"{GROUP}/tenant"
"""On a namespace: the tenant that owns it. Only the Tenant controller may write it."""
PROJECT_LABEL = f"{GROUP}/project"
"""On a namespace: the project that it is. Only the Tenant controller may write it."""

MAX_INT = 1 << 53
"""Whole numbers up to here survive every JSON reader; schema bounds are doubles in Kubernetes."""

T = TypeVar("T")

Live = Annotated[T, Field(json_schema_extra={"change": "live"})]
"""A change takes effect on what runs, without a restart."""
NewReplicas = Annotated[T, Field(json_schema_extra={"change": "new replicas only"})]
"""A change takes effect on replicas that start after it; running ones keep the old value."""
Replace = Annotated[T, Field(json_schema_extra={"change": "replace"})]
"""The field cannot change: delete the record and create another."""

DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", max_length=63)]
"""A DNS label (RFC 1123): what Kubernetes and host names can hold."""
GivenName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
"""A name as people write it; kept for display and for DSEC_TASK_ID."""
Word = Annotated[str, Field(max_length=256)]
Reference = Annotated[str, Field(max_length=1024)]
"""An image reference: host, path, tag and digest, and a mirror's longer ones."""
Text = Annotated[str, Field(max_length=4096)]
LabelValue = Annotated[str, Field(max_length=63)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=64)]
Bytes = Annotated[int, Field(ge=0, le=MAX_INT)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Money = Annotated[str, Field(pattern=r"^\d{1,15}(\.\d{1,4})?$", max_length=20)]
"""An exact decimal amount as text; binary floating point cannot hold 0.1."""


class ObjectMeta(WireModel):
    """The part of Kubernetes metadata that dsec reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(WireModel):
    """One observation about a record, as `kubectl wait --for=condition=...` reads it."""

    type: Word = Field(description="What is observed, for example Ready.")
    status: ConditionStatus = Field(description="Whether it holds.")
    reason: Word = Field(default="", description="One documented word: why.")
    message: Text = Field(default="", description="The same for people, in a sentence.")
    observed_generation: int = Field(
        default=0, ge=0, description="The metadata.generation that this was seen at."
    )
    last_transition_time: datetime | None = Field(
        default=None, description="When the status last changed (UTC)."
    )


Conditions = Annotated[list[Condition], Field(max_length=16)]


def condition_of(conditions: list[Condition], kind: str) -> Condition | None:
    """Return the condition of that type, or None when it was never observed."""
    return next((one for one in conditions if one.type == kind), None)


def with_condition(
    conditions: list[Condition], new: Condition, *, now: datetime
) -> list[Condition]:
    """Return the conditions with one replaced; the transition time moves only with the status."""
    old = condition_of(conditions, new.type)
    since = old.last_transition_time if old and old.status == new.status else None
    stamped = new.model_copy(update={"last_transition_time": since or now})
    rest = [one for one in conditions if one.type != new.type]
    return sorted([*rest, stamped], key=lambda one: one.type)
