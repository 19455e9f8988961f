"""Who may talk to whom: the network of an experiment and the flows between its roles."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dsec.api.base import WireModel
from dsec.api.meta import GivenName, Word


class NetworkMode(StrEnum):
    """Who in the experiment may talk to whom (CONF-12)."""

    REGULAR = "regular"
    """Only declared communication."""
    TRAINING = "training"
    """The whole group is open among itself."""


class Egress(StrEnum):
    """What may be reached outside the experiment."""

    DENY = "deny"
    ALLOW_LIST = "allow-list"
    """Only the declared domains and services."""
    OPEN = "open"
    """Everything; refused by the egress rule unless the stack allows it."""


class Network(WireModel):
    """Deny-all plus what is declared (CONF-12)."""

    mode: NetworkMode = Field(default=NetworkMode.REGULAR, description="Inside the experiment.")
    egress: Egress = Field(default=Egress.DENY, description="Outside the experiment.")
    allowed_domains: list[Word] = Field(
        default=[], max_length=256, description="Domains that the gateway lets through."
    )
    services: list[Word] = Field(
        default=[], max_length=256, description="host:port that may be reached."
    )
    fast: bool = Field(default=False, description="Wants one fast network segment.")


class Relation(WireModel):
    """A declared flow between two roles."""

    kind: Annotated[str, Field(pattern="^(broadcast|aggregate|shared)$")] = Field(
        description="broadcast, aggregate or shared."
    )
    source: GivenName = Field(description="Role that sends.")
    target: GivenName = Field(description="Role that receives.")


class Communication(WireModel):
    """How much the replicas of a role talk to each other; placement keeps talkers close."""

    members: GivenName = Field(description="Name of a role.")
    frequency: Annotated[str, Field(pattern="^(high|low)$")] = Field(description="high or low.")
