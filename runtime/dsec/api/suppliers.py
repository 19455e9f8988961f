"""Who gives nodes to an installation, and what each needs to know; nothing of it is a secret."""

from typing import Annotated

from pydantic import Field

from dsec.api.base import Model
from dsec.api.meta import DnsName, Labels, Word

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(ge=0.0, le=86_400.0)]


class AwsPoolConfig(Model):
    """What the machines of one pool are made of."""

    image: Annotated[str, Field(pattern="^ami-[0-9a-f]+$")] = Field(
        description="AMI with dsec in /opt/dsec, systemd and an OCI runtime."
    )
    subnets: dict[Word, Word] = Field(default={}, description="Zone to subnet.")
    security_groups: list[Word] = Field(
        default=[], max_length=16, description="Identifiers; empty: the network's default."
    )
    instance_profile: Word = Field(
        default="", description="Whose role proves to the gateway which machine calls."
    )
    root_device: Word = Field(default="/dev/sda1", description="Device of the root volume.")
    root_gib: Annotated[int, Field(ge=8, le=16_384)] = Field(
        default=100, description="Size of the root volume, in GiB."
    )
    labels: Labels = Field(default={}, description="Labels that its nodes register with.")
    tags: dict[Word, Word] = Field(default={}, max_length=40, description="More tags.")
    capacity_reservation: Word = Field(
        default="", description="Where machines of the market `reserved` come from."
    )
    auto_scaling_group: Word = Field(
        default="", description="Group that its nodes become members of; its launches are off."
    )


class AwsSupplier(Model):
    """EC2 in one region of one account."""

    installation: Annotated[str, Field(pattern="^[a-zA-Z0-9][a-zA-Z0-9-]{0,62}$")] = Field(
        description="Value of the tag dsec.dev/installation: all rights hang on it."
    )
    region: Word = Field(description="For example eu-central-1.")
    gateway: Annotated[str, Field(pattern="^https?://[^ ]+$")] = Field(
        description="URL at which nodes find the gateway."
    )
    accounts: list[Annotated[str, Field(pattern="^[0-9]{12}$")]] = Field(
        min_length=1, max_length=64, description="Accounts whose machines may join."
    )
    node_roles: list[Word] = Field(
        min_length=1, max_length=64, description="Names of the roles of their machines."
    )
    pools: dict[DnsName, AwsPoolConfig] = Field(
        default={}, description="By the name of the SandboxNodePool."
    )
    read_quotas: bool = Field(
        default=True, description="Read the account's quotas before a purchase."
    )
    endpoint: Word = Field(default="", description="API; empty: the region's own.")


class SimulatedSupplier(Model):
    """A market without machines, for trying things out."""

    seed: int = Field(default=0, description="The same seed has the same weather.")
    shortest_boot_seconds: Seconds = Field(default=60.0, description="Boots take at least this.")
    longest_boot_seconds: Seconds = Field(default=180.0, description="And at most this.")
    boot_fails: Share = Field(default=0.0, description="Share of nodes that never come up.")
    spot_out: Share = Field(default=0.12, description="Share of time without spot machines.")
    on_demand_out: Share = Field(default=0.02, description="The same for on-demand.")
    taken_per_hour: Share = Field(default=0.05, description="Spot nodes taken away, per hour.")
    notice_seconds: Seconds = Field(default=120.0, description="From notice to end.")


class OnPremSupplier(Model):
    """Own machines: the SandboxNode records with `power`."""

    hooks: Annotated[str, Field(pattern="^/[^ ]*$")] = Field(
        default="/etc/dsec/hooks", description="Folder of the programs that records may name."
    )


class SuppliersConfig(Model):
    """All of them; a pool names one in `scaling.supplier`."""

    onprem: OnPremSupplier = Field(default=OnPremSupplier(), description="Own machines.")
    aws: AwsSupplier | None = Field(default=None, description="Unset: nothing of AWS.")
    simulated: SimulatedSupplier | None = Field(default=None, description="Unset: none.")
