"""Offerings, purchases and settings for tests of providers."""

from dataclasses import dataclass

from dsec.providers.aws import AwsProvider
from dsec.providers.aws_settings import AwsPool, AwsSettings
from dsec.world.clock import SystemClock, system_randomness
from ec2_server import REGION, World

CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
T0 = 1_800_000_000.0
"""A UTC time, in whole seconds, in 2027."""


class HurryClock(SystemClock):
    """A clock whose waits take a hundredth."""

    async def sleep(self, seconds: float) -> None:
        """Wait a hundredth of it."""
        await super().sleep(seconds / 100)


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to get a node."""

    pool: str = "burst"
    instance_type: str = "m5.large"
    region: str = REGION
    zone: str = f"{REGION}a"
    market: str = "on-demand"

    @property
    def key(self) -> str:
        """What prices and backoffs go by."""
        return f"{self.pool}/{self.region}/{self.zone}/{self.instance_type}/{self.market}"


@dataclass(frozen=True, slots=True)
class Buy:
    """A purchase."""

    offering: Offer
    count: int
    token: str


def aws_settings(installation: str, **pool: object) -> AwsSettings:
    """Return settings with one pool, `burst`."""
    quotas = bool(pool.pop("read_quotas", False))
    made = AwsPool(**{"image": "ami-12345678", "tags": {"team": "platform"}, **pool})  # type: ignore[arg-type]
    return AwsSettings(
        installation, REGION, "https://gateway.example:8443", CA, {"burst": made}, quotas
    )


def aws_provider(world: World, installation: str, **pool: object) -> AwsProvider:
    """Return a provider of a world."""
    settings = aws_settings(installation, **pool)
    return AwsProvider(world.api, settings, HurryClock(), system_randomness())
