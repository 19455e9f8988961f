"""The configuration of suppliers opens the providers that pools name."""

import json
import re
from pathlib import Path

import pytest
from dsec.api.suppliers import SuppliersConfig
from dsec.providers.aws import AwsProvider
from dsec.providers.onprem import OnPremProvider
from dsec.providers.opening import open_providers, weather_of
from dsec.providers.simulated import SimulatedProvider
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.memory import MemoryObjects, MemoryRecords
from pydantic import ValidationError

PAGE = Path(__file__).parents[2] / "docs" / "aws-nodes.md"


async def test_what_the_page_shows_opens() -> None:
    """The example of the docs is a configuration, and each supplier a provider."""
    found = re.search(r"```json\n(\{\"suppliers\".*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    told = json.loads(found[1])["suppliers"] | {"simulated": {"seed": 3, "spotOut": 0.5}}
    config = SuppliersConfig.model_validate(told)
    providers = open_providers(
        config,
        records=MemoryRecords(),
        objects=MemoryObjects(),
        clock=SystemClock(),
        randomness=system_randomness(),
        namespace="dsec-system",
        ca_pem="",
    )
    kinds = {name: type(provider) for name, provider in providers.items()}
    assert kinds == {
        "onprem": OnPremProvider,
        "aws": AwsProvider,
        "simulated": SimulatedProvider,
    }
    for provider in providers.values():
        await provider.close()


def test_own_machines_need_no_configuration() -> None:
    """Without a word there are own machines and nothing that costs."""
    config = SuppliersConfig()
    assert (config.aws, config.simulated) == (None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accounts", ["12"]),
        ("accounts", []),
        ("nodeRoles", []),
        ("gateway", "gateway"),
        ("installation", "a b"),
        ("pools", {"burst": {"image": "debian"}}),
        ("pool", {}),
    ],
)
def test_mistakes_name_their_field(field: str, value: object) -> None:
    """A wrong or misspelt setting is refused with its path."""
    good = {
        "installation": "prod",
        "region": "eu-central-1",
        "gateway": "https://g:8443",
        "accounts": ["123456789012"],
        "nodeRoles": ["dsec-node"],
    }
    SuppliersConfig.model_validate({"aws": good})
    with pytest.raises(ValidationError, match=rf"aws\.{field}"):
        SuppliersConfig.model_validate({"aws": good | {field: value}})


def test_the_weather_is_the_configurations() -> None:
    """Times and shares are taken over; a range that is upside down is its lower end."""
    config = SuppliersConfig.model_validate(
        {"simulated": {"seed": 7, "shortestBootSeconds": 9, "longestBootSeconds": 3}}
    ).simulated
    assert config is not None
    weather = weather_of(config)
    assert (weather.seed, weather.boot, weather.out["spot"]) == (7, (9.0, 9.0), 0.12)
