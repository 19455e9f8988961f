"""Opens the providers of an installation as its configuration names them."""

from pathlib import Path

from dsec.api.suppliers import AwsSupplier, SimulatedSupplier, SuppliersConfig
from dsec.providers.aws import AwsProvider
from dsec.providers.aws_settings import AwsPool, AwsSettings
from dsec.providers.onprem import OnPremProvider
from dsec.providers.power import Power
from dsec.providers.provider import NodeProvider
from dsec.providers.simulated import SimulatedProvider
from dsec.providers.weather import Weather
from dsec.world.clock import Clock, Randomness
from dsec.world.ec2 import AwsApi, AwsConfig
from dsec.world.objects import ObjectStore
from dsec.world.records import Records


def open_providers(
    config: SuppliersConfig,
    *,
    records: Records,
    objects: ObjectStore,
    clock: Clock,
    randomness: Randomness,
    namespace: str,
    ca_pem: str,
) -> dict[str, NodeProvider]:
    """Return the providers by the names that pools call them (`scaling.supplier`); close each."""
    power = Power(records, namespace=namespace, hooks=Path(config.onprem.hooks))
    found: dict[str, NodeProvider] = {"onprem": OnPremProvider(records, power, clock)}
    if config.aws is not None:
        found["aws"] = open_aws(config.aws, clock, randomness, ca_pem=ca_pem)
    if config.simulated is not None:
        found["simulated"] = SimulatedProvider(objects, clock, weather_of(config.simulated))
    return found


def open_aws(
    config: AwsSupplier, clock: Clock, randomness: Randomness, *, ca_pem: str = ""
) -> AwsProvider:
    """Return the provider of AWS; `ca_pem` is the CA that its nodes verify the gateway with."""
    settings = AwsSettings(
        config.installation,
        config.region,
        config.gateway,
        ca_pem,
        {
            name: AwsPool(
                image=pool.image,
                subnets=pool.subnets,
                security_groups=tuple(pool.security_groups),
                instance_profile=pool.instance_profile,
                root_device=pool.root_device,
                root_gib=pool.root_gib,
                labels=pool.labels,
                tags=pool.tags,
                capacity_reservation=pool.capacity_reservation,
                auto_scaling_group=pool.auto_scaling_group,
            )
            for name, pool in config.pools.items()
        },
        config.read_quotas,
    )
    api = AwsApi(AwsConfig(config.region, config.endpoint))
    return AwsProvider(api, settings, clock, randomness)


def weather_of(config: SimulatedSupplier) -> Weather:
    """Return the weather that a configuration asks for."""
    low, high = config.shortest_boot_seconds, config.longest_boot_seconds
    return Weather(
        seed=config.seed,
        boot=(low, max(low, high)),
        boot_fails=config.boot_fails,
        out={"spot": config.spot_out, "on-demand": config.on_demand_out},
        hazard_per_hour=config.taken_per_hour,
        notice=config.notice_seconds,
    )
