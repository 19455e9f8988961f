"""Components of elasticity: pools that grow, budgets, and the platform's own Prometheus."""

import json
import re
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from conftest import Run, plain
from dsec.api.config import PlatformConfig, platform_config
from dsec.api.mistakes import DocumentError
from dsec.rules import POOL_RULES, check
from dsec_components.budget import Budget
from dsec_components.node_pool import CloudBurstNodePool, OnPremNodePool
from dsec_components.platform import Platform
from dsec_components.runtime import Runtime

IMAGES = {"runtime": "registry/dsec:1", "agent": "registry/agent:1"}
OFFERING = {
    "instance_type": "m7i.8xlarge",
    "markets": ["spot", "on-demand"],
    "cpu_milli": 32_000,
    "memory_bytes": 128 << 30,
    "price_per_hour": "1.6128",
}
BURST: dict[str, Any] = {"supplier": "aws", "max_nodes": 40, "offerings": [OFFERING]}
SERVER = {"enabled": True, "image": "registry/prometheus:1"}


def spec_of(run: Run, kind: Any, args: dict[str, Any], *, preview: bool = False) -> dict[str, Any]:
    """Return the spec of the one record that a component makes."""
    made = run(lambda opts: kind("burst", args, opts), preview=preview)
    (record,) = [one for one in made.resources if "dsec.dev/" in one.typ]
    return dict(plain(record.inputs)["spec"])


def refused(run: Run, kind: Any, args: dict[str, Any]) -> str:
    """Return what a component says about inputs that it does not take."""
    with pytest.raises(pulumi.InputPropertiesError) as error:
        run(lambda opts: kind("burst", args, opts))
    return str(error.value.message)


def test_a_cloud_pool_sends_what_was_said_and_nothing_else(mode: bool, run: Run) -> None:
    """Offerings, markets, limits, buffers, schedule and run-until, in the names of the record."""
    asked = BURST | {
        "markets": ["spot"],
        "max_cost_per_hour": "60",
        "max_cpu_milli": 64_000,
        "burst_wait_seconds": 10,
        "run_until_seconds": 900,
        "buffers": [{"name": "warm", "count": 8, "cpu_milli": 4000, "memory_bytes": 4 << 30}],
        "schedule": [{"start": "08:00", "end": "18:00", "min_nodes": 2}],
        "time_zone": "Europe/Berlin",
    }
    spec = spec_of(run, CloudBurstNodePool, {"spec": {"scaling": asked}}, preview=mode)
    assert spec == {
        "scaling": {
            "supplier": "aws",
            "maxNodes": 40,
            "offerings": [
                {
                    "instanceType": "m7i.8xlarge",
                    "markets": ["spot", "on-demand"],
                    "cpuMilli": 32_000,
                    "memoryBytes": 128 << 30,
                    "pricePerHour": "1.6128",
                }
            ],
            "markets": ["spot"],
            "maxCostPerHour": "60",
            "maxCpuMilli": 64_000,
            "burstWaitSeconds": 10,
            "runUntilSeconds": 900,
            "buffers": [
                {"name": "warm", "count": 8, "cpuMilli": 4000, "memoryBytes": 4 << 30},
            ],
            "schedule": [{"start": "08:00", "end": "18:00", "minNodes": 2}],
            "timeZone": "Europe/Berlin",
        }
    }


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (None, "scaling.supplier: must be aws or simulated"),
        (BURST | {"supplier": "onprem"}, "scaling.supplier: must be aws or simulated"),
        (BURST | {"offerings": []}, "scaling.offerings: must have at least one make of node"),
        (BURST | {"max_nodes": 0}, "scaling.maxNodes: must be at least 1"),
        (BURST | {"min_nodes": 41}, "its maxNodes 40 is below its minNodes 41"),
        (
            BURST | {"floor": 0, "schedule": [{"start": "08:00", "end": "18:00"}]},
            "its schedule may leave no node at all",
        ),
        (BURST | {"max_price": "1"}, "scaling.max_price: unknown key"),
    ],
)
def test_a_cloud_pool_that_makes_no_sense_is_refused(
    scaling: dict[str, Any] | None, said: str, run: Run
) -> None:
    """Before anything is sent, with the path and what is allowed."""
    spec = {} if scaling is None else {"scaling": scaling}
    assert said in refused(run, CloudBurstNodePool, {"spec": spec})


def test_a_limit_that_whole_nodes_miss_is_told_at_preview(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning, as at admission: 40 cores with nodes of 32; 64 is reached and says nothing."""
    told: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", lambda text, **_: told.append(text))
    for cores in (64, 40):
        asked = BURST | {"max_cpu_milli": cores * 1000}
        spec_of(run, CloudBurstNodePool, {"spec": {"scaling": asked}}, preview=True)
    (one,) = told
    assert "40 cores cannot be reached with nodes of 32 cores: 32 are" in one
    assert one.endswith("(spec.scaling.maxCpuMilli)")


def test_own_machines_may_scale_and_are_not_bought(run: Run) -> None:
    """Their number is said; a market belongs to the other kind of pool."""
    own = OFFERING | {"markets": ["owned"], "limit": 3}
    asked = {"max_nodes": 3, "min_nodes": 1, "offerings": [own], "preset": "node-load"}
    spec = spec_of(run, OnPremNodePool, {"spec": {"scaling": asked}})
    assert spec["scaling"]["preset"] == "node-load"
    said = refused(run, OnPremNodePool, {"spec": {"scaling": BURST}})
    assert "scaling.supplier: is onprem here; CloudBurstNodePool buys" in said


def test_a_budget_lies_where_it_may(mode: bool, run: Run) -> None:
    """That of a project in its namespace; that of a pool in the platform's."""
    spec = {"limit": "500", "levels": [{"percent": 80, "level": "soft", "action": "warn"}]}
    pool = spec | {"scope": "pool", "target": "burst"}

    def program(opts: pulumi.ResourceOptions) -> None:
        Budget("mine", {"project": "demo", "spec": spec}, opts)
        Budget("burst", {"spec": pool}, opts)

    made = {
        one.inputs["metadata"]["name"]: plain(one.inputs)
        for one in run(program, preview=mode).resources
        if one.typ.endswith(":Budget") and one.kubernetes
    }
    assert made["mine"]["metadata"]["namespace"] == "demo"
    assert made["mine"]["spec"] == spec
    assert made["burst"]["metadata"]["namespace"] == "dsec-system"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"spec": {"limit": "5"}}, "project: must be the namespace of a project with scope proj"),
        (
            {"project": "demo", "spec": {"limit": "5", "scope": "account", "target": "demo"}},
            "project: must be unset with scope account",
        ),
        ({"spec": {"limit": "5", "scope": "pool"}}, "spec.target: must name the pool"),
        ({"project": "demo", "spec": {"limit": "five"}}, "limit: "),
    ],
)
def test_a_budget_that_counts_nothing_is_refused(args: dict[str, Any], said: str, run: Run) -> None:
    """The mistake is named before the control plane would call it invalid."""
    assert said in refused(run, Budget, args)


def test_bought_nodes_get_no_daemons(run: Run) -> None:
    """They join by themselves; only pools of the cluster's own nodes have a DaemonSet."""
    pools = {"own": {}, "burst": {"scaling": BURST}}
    made = run(lambda opts: Runtime("rt", {"images": IMAGES, "pools": pools}, opts))
    assert [one.inputs["metadata"]["name"] for one in made.of("apps/v1:DaemonSet")] == [
        "dsec-agent"
    ]


def _platform(run: Run, **extra: Any) -> Any:
    args: Any = {"images": IMAGES, "kubeconfig": "apiVersion: v1", **extra}
    return run(lambda opts: Platform("dsec", args, opts))


def test_a_platform_makes_pools_of_both_kinds_and_budgets_before_experiments(run: Run) -> None:
    """From one configuration."""
    pools = {"own": {}, "burst": {"scaling": BURST}}
    budget = {"spec": {"scope": "pool", "target": "burst", "limit": "100"}}
    made = _platform(run, pools=pools, budgets={"burst": budget})
    kinds = {one.name: one.typ for one in made.resources}
    assert kinds["dsec-own"] == "dsec:index:OnPremNodePool"
    assert kinds["dsec-burst"] == "dsec:index:CloudBurstNodePool"
    assert kinds["dsec-burst-budget"] == "dsec:index:Budget"


def test_prometheus_is_off_unless_asked_for(run: Run) -> None:
    """No server, no address, no opening of the controller's policy."""
    made = _platform(run)
    assert [one.name for one in made.resources if "prometheus" in one.name] == []
    config = json.loads(made.named("dsec-runtime-settings-config").inputs["data"]["config.json"])
    assert config["scaling"] == {}


def test_prometheus_scrapes_the_platforms_pods_and_the_controller_knows_it(run: Run) -> None:
    """Least rights: none in Kubernetes, nothing of the node, nothing to write."""
    made = _platform(run, prometheus=SERVER | {"scrape_seconds": 5, "retention_hours": 2})
    config = json.loads(made.named("dsec-runtime-settings-config").inputs["data"]["config.json"])
    assert config["scaling"] == {"prometheus": "http://dsec-prometheus.dsec-system.svc:9090"}
    name = "dsec-runtime-prometheus"
    assert [one for one in made.resources if "rbac" in one.typ and name in one.name] == []
    text = made.named(f"{name}-config").inputs["data"]["prometheus.yml"]
    scraping = json.loads(text)
    assert scraping["global"]["scrape_interval"] == "5s"
    asked = {}
    for job in scraping["scrape_configs"]:
        (found,) = job["dns_sd_configs"]
        asked[job["job_name"]] = (found["names"], found["port"])
    assert asked == {
        f"dsec-{part}": ([f"dsec-{part}-metrics.dsec-system.svc"], port)
        for part, port in (("gateway", 9090), ("controller", 9090), ("agent", 7444))
    }
    pod = plain(made.named(f"{name}-deployment").inputs)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert "--storage.tsdb.retention.time=2h" in container["args"]
    policy = plain(made.named(f"{name}-policy").inputs)["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "dsec-controller"}}} in (
        policy["ingress"][0]["from"]
    )
    opened = plain(made.named("dsec-runtime-network-controller").inputs)["spec"]["egress"]
    assert {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "dsec-prometheus"}}} in [
        peer for rule in opened for peer in rule.get("to", [])
    ]


def test_a_named_prometheus_stays_the_one_that_is_asked(run: Run) -> None:
    """The stack's own word wins over the server that it runs beside it."""
    made = _platform(run, prometheus=SERVER, scaling={"prometheus": "http://mine:9090"})
    config = json.loads(made.named("dsec-runtime-settings-config").inputs["data"]["config.json"])
    assert config["scaling"] == {"prometheus": "http://mine:9090"}


def test_the_example_of_the_documentation_holds() -> None:
    """What docs/platform-engineers.md shows is a configuration, and breaks no rule of pools."""
    page = (Path(__file__).parents[2] / "docs" / "platform-engineers.md").read_text()
    (block,) = re.findall(r"```yaml\n(pools:.*?)```", page, re.DOTALL)
    shown = yaml.safe_load(block)
    tenants = {"rollouts": {"projects": ["rollouts"]}}
    config = platform_config({"images": IMAGES, "tenants": tenants, **shown})
    assert set(config.budgets) == {"rollouts", "burst"}
    asked = config.pools["burst"].wire()
    assert check(asked, name="burst", rules=POOL_RULES, kind="SandboxNodePool") == []


def _mistakes(**extra: Any) -> list[str]:
    data = {
        "images": IMAGES,
        "pools": {"cpu": {}},
        "tenants": {"demo": {"projects": ["demo"]}},
        **extra,
    }
    try:
        platform_config(data)
    except DocumentError as error:
        return [one.path for one in error.mistakes]
    return []


@pytest.mark.parametrize(
    ("extra", "paths"),
    [
        ({"budgets": {"a": {"project": "demo", "spec": {"limit": "5"}}}}, []),
        ({"budgets": {"a": {"project": "gone", "spec": {"limit": "5"}}}}, ["budgets.a.project"]),
        ({"budgets": {"a": {"spec": {"limit": "5"}}}}, ["budgets.a.project"]),
        (
            {"budgets": {"a": {"spec": {"limit": "5", "scope": "pool", "target": "gone"}}}},
            ["budgets.a.spec.target"],
        ),
        (
            {
                "budgets": {
                    "a": {
                        "project": "demo",
                        "spec": {"limit": "5", "scope": "account", "target": "demo"},
                    }
                }
            },
            ["budgets.a.project"],
        ),
        ({"budgets": {"a": {"spec": {"limit": "5", "scope": "account", "target": "demo"}}}}, []),
        ({"prometheus": {"enabled": True}}, ["prometheus.image"]),
        ({"prometheus": {"scrapeSeconds": 1}}, ["prometheus.scrapeSeconds"]),
    ],
)
def test_a_configuration_names_what_cannot_be(extra: dict[str, Any], paths: list[str]) -> None:
    """Budgets of nothing, in the wrong place, and a server without an image."""
    assert _mistakes(**extra) == paths


def test_a_configuration_is_off_where_it_says_nothing() -> None:
    """No server, no budget."""
    config = PlatformConfig.model_validate({"images": IMAGES})
    assert not config.prometheus.enabled
    assert config.budgets == {}
