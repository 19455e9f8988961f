"""Inputs that say who gives nodes; the names are those of `dsec.api.suppliers`."""

from typing import NotRequired, TypedDict

import pulumi


class AwsPool(TypedDict):
    """What the machines of one pool are made of."""

    image: pulumi.Input[str]
    """AMI with dsec in /opt/dsec, systemd and an OCI runtime."""
    subnets: NotRequired[dict[str, pulumi.Input[str]]]
    """Zone to subnet."""
    security_groups: NotRequired[list[pulumi.Input[str]]]
    """Identifiers; none: the network's default."""
    instance_profile: NotRequired[pulumi.Input[str]]
    """Whose role proves to the gateway which machine calls."""
    root_device: NotRequired[pulumi.Input[str]]
    """Device of the root volume; default /dev/sda1."""
    root_gib: NotRequired[pulumi.Input[int]]
    """Size of the root volume in GiB; default 100."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels that its nodes register with."""
    tags: NotRequired[dict[str, pulumi.Input[str]]]
    """More tags, for example of the cost centre."""
    capacity_reservation: NotRequired[pulumi.Input[str]]
    """Where machines of the market reserved come from."""
    auto_scaling_group: NotRequired[pulumi.Input[str]]
    """Group that its nodes become members of; its own launches are off."""


class AwsSupplier(TypedDict):
    """EC2 in one region of one account."""

    installation: pulumi.Input[str]
    """Value of the tag dsec.dev/installation: all rights hang on it."""
    region: pulumi.Input[str]
    """For example eu-central-1."""
    gateway: pulumi.Input[str]
    """URL at which nodes find the gateway."""
    accounts: list[pulumi.Input[str]]
    """Accounts whose machines may join."""
    node_roles: list[pulumi.Input[str]]
    """Names of the roles of their machines."""
    pools: NotRequired[dict[str, AwsPool]]
    """By the name of the node pool."""
    read_quotas: NotRequired[pulumi.Input[bool]]
    """Read the account's quotas before a purchase (default)."""
    endpoint: NotRequired[pulumi.Input[str]]
    """API; none: the region's own."""


class SimulatedSupplier(TypedDict):
    """A market without machines, for trying things out."""

    seed: NotRequired[pulumi.Input[int]]
    """The same seed has the same weather; default 0."""
    shortest_boot_seconds: NotRequired[pulumi.Input[float]]
    """Boots take at least this; default 60."""
    longest_boot_seconds: NotRequired[pulumi.Input[float]]
    """And at most this; default 180."""
    boot_fails: NotRequired[pulumi.Input[float]]
    """Share of nodes that never come up; default 0."""
    spot_out: NotRequired[pulumi.Input[float]]
    """Share of time without spot machines; default 0.12."""
    on_demand_out: NotRequired[pulumi.Input[float]]
    """The same for on-demand; default 0.02."""
    taken_per_hour: NotRequired[pulumi.Input[float]]
    """Spot nodes taken away per hour, as a share; default 0.05."""
    notice_seconds: NotRequired[pulumi.Input[float]]
    """From notice to end; default 120."""


class OnPremSupplier(TypedDict):
    """Own machines: the SandboxNode records with power."""

    hooks: NotRequired[pulumi.Input[str]]
    """Folder of the programs that records may name; default /etc/dsec/hooks."""


class Suppliers(TypedDict):
    """Who gives nodes; a pool names one in scaling.supplier."""

    onprem: NotRequired[OnPremSupplier]
    """Own machines."""
    aws: NotRequired[AwsSupplier]
    """None: nothing of AWS."""
    simulated: NotRequired[SimulatedSupplier]
    """None: no simulated market."""
