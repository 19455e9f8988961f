"""What a provider of AWS nodes is told: the installation, and what each pool's machines are.

Nothing here is a secret: a node proves who it is with its own role (`dsec.agent.identity`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

TAG_LENGTH = 200
"""Most characters of installation and pool names: keys of offerings must fit into a tag."""


@dataclass(frozen=True, slots=True)
class AwsPool:
    """How the machines of one pool are made."""

    image: str
    """AMI with the runtime of dsec and an agent that is not enabled."""
    subnets: Mapping[str, str] = field(default_factory=dict)
    """Zone to subnet; a zone without one is launched into the account's default subnet."""
    security_groups: tuple[str, ...] = ()
    instance_profile: str = ""
    """Name of the profile whose role proves to the gateway which machine calls."""
    root_device: str = "/dev/sda1"
    root_gib: int = 100
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that its nodes register with."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """More tags, for example of the cost centre."""
    capacity_reservation: str = ""
    """Identifier of the reservation that the market `reserved` is taken from."""
    auto_scaling_group: str = ""
    """Its nodes become members of this group, whose own launches stay suspended."""


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """One installation in one region."""

    installation: str
    region: str
    gateway: str = ""
    """URL that agents register at."""
    ca_pem: str = ""
    """CA that agents verify the gateway with."""
    pools: Mapping[str, AwsPool] = field(default_factory=dict)
    read_quotas: bool = True
    """Ask the account's quotas before a purchase, so that what cannot work is not tried."""
