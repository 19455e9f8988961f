"""Each committed stack previews against mocks, without a cluster, cloud or credential (IAC-10)."""

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from conftest import Recorder, Run, plain
from dsec.rules import COPY_RULES, POOL_RULES, check

STACKS = Path(__file__).parents[2] / "stacks"
BUILT = ("runtime", "agent", "sandbox-base", "prometheus")
NAMES = sorted(path.name.split(".")[1] for path in STACKS.glob("Pulumi.*.yaml"))


def settings(name: str) -> dict[str, Any]:
    """Return the configuration of a stack."""
    return dict(yaml.safe_load((STACKS / f"Pulumi.{name}.yaml").read_text())["config"])


@pytest.fixture
def program(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Return a function that runs the stack program with a configuration."""
    local = tmp_path / "state" / "dsec" / "local" / "local"
    local.mkdir(parents=True)
    (local / "cluster.json").write_text(
        json.dumps({"network": "10.99.0.0/16", "s3AccessKey": "a", "s3SecretKey": "hidden"})
    )
    (local / "images.json").write_text(json.dumps({name: f"r/{name}@sha256:1" for name in BUILT}))
    (local / "kubeconfig").write_text("apiVersion: v1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(STACKS)
    modules = set(sys.modules)

    def go(values: dict[str, Any], *, preview: bool = True) -> Recorder:
        flat = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in values.items()
        }

        def inside(_: pulumi.ResourceOptions) -> None:
            pulumi.runtime.set_all_config(flat)
            runpy.run_path(str(STACKS), run_name="__main__")

        return run(inside, preview=preview)

    yield go
    pulumi.runtime.set_all_config({})
    for name in set(sys.modules) - modules:
        if name in {"place", "examples"} or name.startswith("examples."):
            del sys.modules[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_previews_without_credentials(name: str, mode: bool, program: Any) -> None:
    """The whole program runs; what it would make is an installation."""
    values = settings(name)
    if values.get("dsec:site") != "local":
        values["dsec:kubeconfig"] = "apiVersion: v1"
    made = program(values, preview=mode)
    kinds = {one.typ.rsplit(":", 1)[-1] for one in made.resources}
    assert kinds >= {"Platform", "Deployment", "DaemonSet", "DeletionGuard", "Tenant"}
    (provider,) = [one for one in made.resources if one.typ == "pulumi:providers:kubernetes"][1:]
    assert plain(provider.inputs)["clusterIdentifier"]


@pytest.mark.parametrize(
    ("name", "gateways", "controllers"),
    [
        ("demo", 1, 1),
        ("hybrid", 2, 2),
        ("local", 1, 1),
        ("onprem", 2, 2),
        ("prod", 3, 2),
        ("small", 2, 2),
    ],
)
def test_stages_differ_in_size(name: str, gateways: int, controllers: int, program: Any) -> None:
    """IAC-10, IAC-12: a stage is a preset that switches deployed values."""
    values = {**settings(name), "dsec:kubeconfig": "apiVersion: v1"}
    made = program(values)
    counts = {one.name: one.inputs["spec"]["replicas"] for one in made.of("apps/v1:Deployment")}
    assert counts == {
        "dsec-runtime-gateway-deployment": gateways,
        "dsec-runtime-controller-deployment": controllers,
        **({"dsec-runtime-prometheus-deployment": 1} if name in {"local", "hybrid"} else {}),
    }


def test_a_stage_that_buys_nodes_says_what_they_may_cost(program: Any) -> None:
    """The pool has bounds of its own, and budgets limit pool and project."""
    made = program({**settings("hybrid"), "dsec:kubeconfig": "apiVersion: v1"})
    pools = {one.inputs["metadata"]["name"]: one for one in made.of(":SandboxNodePool")}
    asked = plain(pools["burst"].inputs)["spec"]
    assert check(asked, name="burst", rules=POOL_RULES, kind="SandboxNodePool") == []
    budgets = {one.inputs["metadata"]["name"] for one in made.of("v1alpha1:Budget")}
    assert budgets == {"rollouts", "burst"}
    assert [one.inputs["metadata"]["name"] for one in made.of("apps/v1:DaemonSet")] == [
        "dsec-agent"
    ]


@pytest.mark.parametrize(
    ("name", "buckets"),
    [
        ("prod", {"dsec-prod": "eu-central-1", "dsec-prod-copies": "eu-west-1"}),
        ("hybrid", {"dsec-hybrid-copies": "eu-central-1"}),
    ],
)
def test_a_stage_that_must_last_has_copies_in_another_region(
    name: str, buckets: dict[str, str], mode: bool, program: Any
) -> None:
    """IAC-08, HA-13: buckets where the cloud makes them, and a policy that breaks no rule."""
    made = program({**settings(name), "dsec:kubeconfig": "apiVersion: v1"}, preview=mode)
    shown = {
        plain(one.inputs)["bucket"]: one.name.removeprefix("dsec-buckets-").removesuffix("-bucket")
        for one in made.of("s3/bucket:Bucket")
    }
    assert shown == buckets
    (policy,) = made.of("v1alpha1:ReplicationPolicy")
    asked = plain(policy.inputs)["spec"]
    assert asked["residency"] == [one["region"] for one in asked["destinations"]]
    assert check(asked, name="x", rules=COPY_RULES, kind="ReplicationPolicy") == []


def test_only_first_stages_trust_a_registry_blindly(program: Any) -> None:
    """CONF-26: lan-insecure in demo and local, nowhere else."""
    modes = {}
    for name in NAMES:
        made = program({**settings(name), "dsec:kubeconfig": "apiVersion: v1"})
        (one,) = [one for one in made.of("core/v1:ConfigMap") if one.name == "dsec-registry-config"]
        modes[name] = json.loads(one.inputs["data"]["registry.json"])["tls"]
    assert {name for name, tls in modes.items() if tls == "lan-insecure"} == {"demo", "local"}


def test_every_mistake_of_a_configuration_is_named(program: Any) -> None:
    """Paths as in the file."""
    values = settings("small")
    values["dsec:kubeconfig"] = "apiVersion: v1"
    values["dsec:platform"]["profil"] = "small"
    values["dsec:platform"]["tenants"]["research"]["pools"] = ["gone"]
    with pytest.raises(pulumi.InputPropertiesError) as error:
        program(values)
    assert "profil: unknown key" in error.value.message
    assert "tenants.research.pools[0]: no such pool" in error.value.message


def test_a_stack_without_a_cluster_says_what_to_set(program: Any) -> None:
    """No silent use of whatever kubectl points at."""
    with pytest.raises(pulumi.RunError, match="set dsec:kubeconfig"):
        program(settings("small"))


def test_a_local_stack_without_its_cluster_says_how_to_make_it(program: Any) -> None:
    """The command is in the sentence."""
    values = {**settings("local"), "dsec:localCluster": "other"}
    with pytest.raises(pulumi.RunError, match=r"dsec local up` --name other"):
        program(values)


def test_documents_and_templates_are_there() -> None:
    """What the stacks name exists below the program's folder."""
    for name in NAMES:
        for one in settings(name)["dsec:platform"].get("experiments", {}).values():
            assert (STACKS / one["document"]).is_file()
        for example in settings(name).get("dsec:examples", []):
            assert (STACKS / "examples" / f"{example}.py").is_file()
    # a folder of that name would hide the SDK
    assert not (STACKS / "pulumi").exists()
