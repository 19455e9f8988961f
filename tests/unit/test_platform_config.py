"""A stack's configuration is checked whole, and every mistake has its path."""

from typing import Any

import pytest
from dsec.api.config import Deletion, PlatformConfig, platform_config
from dsec.api.mistakes import DocumentError

IMAGES = {"runtime": "r/dsec:1", "agent": "r/agent:1"}
TENANT = {"projects": ["demo"], "quota": {"nominal": {"cpuMilli": 64000.0}}}


def read(**more: Any) -> PlatformConfig:
    """Return a configuration with images and more."""
    return platform_config({"images": IMAGES} | more)


def test_defaults() -> None:
    """Safe: deletion is protected, two of each part."""
    config = read()
    assert config.deletion is Deletion.PROTECT
    assert (config.gateway_replicas, config.controller_replicas) == (2, 2)
    assert read(profile="local").gateway_replicas == 1
    assert read(profile="local", gateway={"replicas": 3}).gateway_replicas == 3


def test_both_spellings_and_pulumi_numbers() -> None:
    """Stack files write camelCase, Python writes snake_case, and Pulumi hands over floats."""
    config = read(
        object_store={"endpoint": "http://s3:8333"},
        tenants={"demo": TENANT},
        experiments={"first": {"project": "demo", "spec": {"roles": [{"name": "a"}]}}},
    )
    assert config.object_store.endpoint == "http://s3:8333"
    assert config.tenants["demo"].quota.nominal.cpu_milli == 64_000


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        ({"deletion": "purg", "imagse": {}}, {"deletion", "imagse"}),
        ({"images": {"runtime": "r"}}, {"images.agent"}),
        ({"tenants": {"a": {"quotas": {}}}}, {"tenants.a.quotas"}),
        ({"tenants": {"a": TENANT, "b": TENANT}}, {"tenants.b.projects[0]"}),
        ({"tenants": {"a": TENANT | {"pools": ["x"]}}}, {"tenants.a.pools[0]"}),
        ({"pools": {"gpu": {"kind": "tpu"}}}, {"pools.gpu.kind"}),
        (
            {
                "pools": {
                    "a": {"placement": {"watermarks": {"safePercent": 90, "limitPercent": 80}}}
                }
            },
            {"pools.a.placement.watermarks.safePercent"},
        ),
        ({"pools": {"a": {"placement": {"taints": ["x=y=z"]}}}}, {"pools.a.placement.taints[0]"}),
        ({"pools": {"a": {"placement": {"priceMicro": -1}}}}, {"pools.a.placement.priceMicro"}),
        (
            {"experiments": {"e": {"project": "nowhere"}}},
            {"experiments.e", "experiments.e.project"},
        ),
        (
            {"registry": {"tls": "none"}, "gateway": {"replicas": 0}},
            {"registry.tls", "gateway.replicas"},
        ),
    ],
)
def test_mistakes(data: dict[str, Any], paths: set[str]) -> None:
    """All at once."""
    with pytest.raises(DocumentError) as caught:
        read(**data)
    assert {one.path for one in caught.value.mistakes} == paths
