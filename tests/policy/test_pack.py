"""The policy pack without an engine: good and bad resources, unknown values, faults of a policy."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from dsec.rules import BUCKET_RULES, COPY_RULES, EXPERIMENT_RULES, POOL_RULES, Settings
from dsec_policies import policies
from dsec_policies.pack import COPIES_TYPE, EXPERIMENT_TYPE, POOL_TYPE
from dsec_policies.settings import settings_of
from pulumi_policy import (
    EnforcementLevel,
    PolicyResourceOptions,
    ResourceValidationArgs,
    ResourceValidationPolicy,
)
from pulumi_policy.proxy import (
    UNKNOWN_BOOLEAN_VALUE,
    UNKNOWN_NUMBER_VALUE,
    UNKNOWN_OBJECT_VALUE,
    UNKNOWN_STRING_VALUE,
    UnknownValueError,
    unknown_checking_proxy,
)

PACK = {one.name: one for one in policies()}
NAMES = sorted(PACK)
BLOCK_TYPE = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
SEAL_TYPE = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
KINDS = {
    **{f"dsec-{one.name}": POOL_TYPE for one in POOL_RULES},
    **{f"dsec-{one.name}": COPIES_TYPE for one in COPY_RULES},
    "dsec-closed-buckets": BLOCK_TYPE,
    "dsec-sealed-buckets": SEAL_TYPE,
}
"""Policies that do not speak of experiments, and the type that they speak of."""
OPTIONS = PolicyResourceOptions(
    protect=False,
    ignore_changes=[],
    delete_before_replace=None,
    aliases=[],
    custom_timeouts=None,
    additional_secret_outputs=[],
    parent="",
)
ROLE: dict[str, Any] = {
    "name": "sim",
    "replicas": 2.0,
    "image": "registry.example/sim:1",
    "resources": {"cpuMilli": 1000.0, "memoryBytes": 1073741824.0},
}


def run(
    policy: str,
    spec: Any,
    *,
    kind: str = EXPERIMENT_TYPE,
    config: Mapping[str, Any] | None = None,
    namespace: str = "gait",
) -> list[str]:
    """Return what a policy reports about a resource, as the engine would hand it over."""
    record = {"metadata": {"name": "walk", "namespace": namespace}, "spec": spec}
    # resources of AWS have no spec
    props = spec if kind.startswith("aws:s3/") else record
    reports: list[str] = []
    args = ResourceValidationArgs(
        kind, unknown_checking_proxy(props), f"urn:x::{kind}::walk", "walk", OPTIONS, None, config
    )
    PACK[policy].validate(args, lambda message, _urn=None: reports.append(message))
    return reports


def role(**changes: Any) -> dict[str, Any]:
    """Return a spec with one role."""
    return {"roles": [ROLE | changes]}


@pytest.mark.parametrize("policy", NAMES)
def test_a_good_experiment_passes(policy: str) -> None:
    """Numbers come as floats, mappings as proxies."""
    assert run(policy, role()) == []


@pytest.mark.parametrize(
    ("policy", "spec", "config", "path"),
    [
        ("dsec-limits", role(resources={}), {}, "spec.roles[0].resources.memoryBytes"),
        ("dsec-limits", {"roles": [{"name": "a"}]}, {}, "spec.roles[0].resources.cpuMilli"),
        ("dsec-digests", role(image="a:latest"), {}, "spec.roles[0].image"),
        ("dsec-digests", role(), {"requireDigests": True}, "spec.roles[0].image"),
        ("dsec-budget", role(), {"requireBudget": True}, "spec.budget"),
        ("dsec-privileged", role(privileged=True), {}, "spec.roles[0].privileged"),
        ("dsec-egress", {"network": {"egress": "open"}}, {}, "spec.network.egress"),
        ("dsec-tenant", role(), {"registries": ["other/"]}, "spec.roles[0].image"),
        ("dsec-replicas", role(max=9.0), {"maxReplicas": 5.0}, "spec.roles"),
        (
            "dsec-elasticity",
            role(elastic={"metric": "cpu", "target": 0.0}, max=9.0),
            {},
            "spec.roles[0].elastic.target",
        ),
        ("dsec-secrets", role(env={"API_KEY": "x"}), {}, "spec.roles[0].env.API_KEY"),
        ("dsec-residency", {"residency": ["us"]}, {"regions": ["eu"]}, "spec.residency[0]"),
        ("dsec-labels", role(), {"requiredLabels": ["team"]}, "spec.labels.team"),
    ],
)
def test_a_bad_experiment_is_reported(
    policy: str, spec: dict[str, Any], config: dict[str, Any], path: str
) -> None:
    """A sentence with resource, rule, remedy and path."""
    reports = run(policy, spec, config=config)
    (one,) = (one for one in reports if one.endswith(f"({path})"))
    assert one.startswith("The Experiment walk must ")
    assert f"(rule {policy.removeprefix('dsec-')})." in one


def test_a_warning_stops_no_update() -> None:
    """Admission accepts a role without a ceiling and says so; a preview does not refuse it."""
    assert run("dsec-elasticity", role(elastic={"metric": "cpu", "target": 70.0})) == []


def test_a_pool_that_may_lose_every_node_is_reported() -> None:
    """A schedule with a floor of 0 (ELAS-18), and bounds the wrong way round; each says where."""
    bounds = {"minNodes": 2.0, "maxNodes": 1.0}
    window = {"start": "20:00", "end": "06:00", "minNodes": 0.0, "maxNodes": 3.0}
    asked = {"scaling": bounds | {"floor": 0.0, "schedule": [window]}}
    reports = run("dsec-scaling", asked, kind=POOL_TYPE)
    assert [one.rpartition(" ")[2] for one in reports] == [
        "(spec.scaling.maxNodes)",
        "(spec.scaling.floor)",
    ]
    assert reports[1].startswith("The SandboxNodePool walk must scale within bounds")
    assert run("dsec-scaling", {"scaling": {"maxNodes": 5.0}}, kind=POOL_TYPE) == []
    assert run("dsec-scaling", {}, kind=POOL_TYPE) == []


def test_a_window_without_any_node_is_reported() -> None:
    """ELAS-18: no schedule asks for nothing at all."""
    window = {"start": "20:00", "end": "06:00", "minNodes": 0.0, "maxNodes": 0.0}
    asked = {"scaling": {"maxNodes": 5.0, "schedule": [window]}}
    (one,) = run("dsec-scaling", asked, kind=POOL_TYPE)
    assert one.endswith("(spec.scaling.schedule[0].maxNodes)")


def test_nodes_at_any_price_are_told_and_stop_nothing() -> None:
    """A budget may bound them; own machines are not bought, and no node costs nothing."""
    asked = {"supplier": "aws", "maxNodes": 40.0}
    (one,) = run("dsec-spending", {"scaling": asked}, kind=POOL_TYPE)
    assert "it may have 40 bought nodes at once, at any price (rule spending)" in one
    assert one.endswith("(spec.scaling.maxCostPerHour)")
    assert PACK["dsec-spending"].enforcement_level is EnforcementLevel.ADVISORY
    for bound in ({"maxCostPerHour": "60"}, {"supplier": "onprem"}, {"maxNodes": 0.0}):
        assert run("dsec-spending", {"scaling": asked | bound}, kind=POOL_TYPE) == []


HOME = {"region": "eu-1", "bucket": "copies"}
AWAY = {"region": "us-1", "endpoint": "https://s3.us-1"}


@pytest.mark.parametrize(
    ("policy", "spec", "config", "path"),
    [
        ("dsec-copies", {}, {}, "spec.destinations"),
        ("dsec-copies", {"destinations": [HOME], "minCopies": 2.0}, {}, "spec.minCopies"),
        ("dsec-copies", {"destinations": [HOME, HOME]}, {}, "spec.destinations[1].region"),
        (
            "dsec-transit",
            {"destinations": [HOME, AWAY | {"endpoint": "http://s3.us-1"}]},
            {},
            "spec.destinations[1].endpoint",
        ),
        (
            "dsec-copy-residency",
            {"destinations": [HOME, AWAY], "residency": ["eu-1"]},
            {},
            "spec.destinations[1].region",
        ),
        (
            "dsec-copy-residency",
            {"destinations": [AWAY]},
            {"regions": ["eu-1"]},
            "spec.destinations[0].region",
        ),
    ],
)
def test_copies_that_protect_nothing_are_reported(
    policy: str, spec: dict[str, Any], config: dict[str, Any], path: str
) -> None:
    """HA-13, HA-14, HA-16: too few, in clear, or where data may not be."""
    (one,) = run(policy, spec, kind=COPIES_TYPE, config=config)
    assert one.startswith("The ReplicationPolicy walk must ")
    assert one.endswith(f"({path})")


@pytest.mark.parametrize("policy", [f"dsec-{one.name}" for one in COPY_RULES])
def test_copies_in_allowed_regions_pass(policy: str) -> None:
    """With two destinations, encrypted, within both bounds."""
    spec = {"destinations": [HOME, AWAY], "minCopies": 2.0, "residency": ["eu-1", "us-1"]}
    config = {"regions": ["eu-1", "us-1"]} if policy == "dsec-copy-residency" else {}
    assert run(policy, spec, kind=COPIES_TYPE, config=config) == []


SHUT = {
    "blockPublicAcls": True,
    "blockPublicPolicy": True,
    "ignorePublicAcls": True,
    "restrictPublicBuckets": True,
}


def says(**statement: Any) -> dict[str, Any]:
    """Return a policy of a bucket with one statement, as text."""
    return {"policy": json.dumps({"Statement": [{"Action": "s3:*"} | statement]})}


@pytest.mark.parametrize(
    ("kind", "props", "path"),
    [
        ("BucketPublicAccessBlock", SHUT, ""),
        ("BucketPublicAccessBlock", SHUT | {"blockPublicPolicy": False}, "blockPublicPolicy"),
        (
            "BucketPublicAccessBlock",
            {key: True for key in SHUT if key != "ignorePublicAcls"},
            "ignorePublicAcls",
        ),
        ("BucketAcl", {"acl": "private"}, ""),
        ("BucketAcl", {"acl": "public-read"}, "acl"),
        ("BucketAclV2", {"acl": "authenticated-read"}, "acl"),
        ("Bucket", {"acl": "public-read-write"}, "acl"),
        ("Bucket", {}, ""),
        ("BucketPolicy", says(Effect="Deny", Principal="*"), ""),
        ("BucketPolicy", says(Effect="Allow", Principal={"AWS": "arn:aws:iam::1:role/a"}), ""),
        ("BucketPolicy", says(Effect="Allow", Principal="*"), "policy.Statement[0].Principal"),
        (
            "BucketPolicy",
            says(Effect="Allow", Principal={"AWS": ["*"]}),
            "policy.Statement[0].Principal",
        ),
        ("BucketPolicy", {"policy": "{"}, "policy"),
    ],
)
def test_a_bucket_that_is_open_is_reported(kind: str, props: dict[str, Any], path: str) -> None:
    """By its block, its list or its policy; what is shut passes."""
    found = run("dsec-closed-buckets", props, kind=f"aws:s3/{kind[0].lower()}{kind[1:]}:{kind}")
    assert [one.rpartition("(")[2] for one in found] == ([f"{path})"] if path else [])
    assert all(one.startswith(f"The {kind.removesuffix('V2')} walk must ") for one in found)


@pytest.mark.parametrize(
    ("default", "path"),
    [
        ({"sseAlgorithm": "aws:kms", "kmsMasterKeyId": "arn:key"}, ""),
        ({"sseAlgorithm": "aws:kms"}, "kmsMasterKeyId"),
        ({"sseAlgorithm": "AES256"}, "sseAlgorithm"),
        ({}, "sseAlgorithm"),
    ],
)
def test_a_bucket_without_a_key_of_its_own_is_reported(default: dict[str, Any], path: str) -> None:
    """The key of all buckets cannot be withdrawn from one of them."""
    props = {"rules": [{"applyServerSideEncryptionByDefault": default}]}
    found = run("dsec-sealed-buckets", props, kind=SEAL_TYPE)
    assert [one.rpartition(".")[2] for one in found] == ([f"{path})"] if path else [])
    assert len(run("dsec-sealed-buckets", {"rules": []}, kind=SEAL_TYPE)) == 1


UNKNOWN = [
    ("dsec-limits", {"roles": [ROLE | {"resources": {"cpuMilli": UNKNOWN_NUMBER_VALUE}}]}),
    ("dsec-digests", role(image=UNKNOWN_STRING_VALUE)),
    ("dsec-budget", {"budget": {"limit": UNKNOWN_STRING_VALUE}}),
    ("dsec-privileged", {"roles": [UNKNOWN_OBJECT_VALUE]}),
    ("dsec-egress", {"network": {"egress": UNKNOWN_STRING_VALUE}}),
    ("dsec-tenant", {"tenant": UNKNOWN_STRING_VALUE}),
    ("dsec-replicas", role(replicas=UNKNOWN_NUMBER_VALUE)),
    ("dsec-elasticity", role(elastic={"metric": "cpu", "target": UNKNOWN_NUMBER_VALUE}, max=9)),
    ("dsec-secrets", role(env={"API_KEY": UNKNOWN_STRING_VALUE})),
    ("dsec-residency", {"residency": [UNKNOWN_STRING_VALUE]}),
    ("dsec-labels", {"labels": UNKNOWN_OBJECT_VALUE}),
    ("dsec-scaling", {"scaling": {"maxNodes": UNKNOWN_NUMBER_VALUE}}),
    ("dsec-spending", {"scaling": {"supplier": "aws", "maxNodes": UNKNOWN_NUMBER_VALUE}}),
    ("dsec-copies", {"destinations": [HOME], "minCopies": UNKNOWN_NUMBER_VALUE}),
    ("dsec-transit", {"destinations": [HOME | {"endpoint": UNKNOWN_STRING_VALUE}]}),
    ("dsec-copy-residency", {"destinations": [{"region": UNKNOWN_STRING_VALUE}]}),
    ("dsec-closed-buckets", SHUT | {"blockPublicAcls": UNKNOWN_BOOLEAN_VALUE}),
    ("dsec-sealed-buckets", {"rules": [UNKNOWN_OBJECT_VALUE]}),
]


@pytest.mark.parametrize(("policy", "spec"), UNKNOWN)
def test_an_unknown_value_is_deferred_to_the_update(policy: str, spec: dict[str, Any]) -> None:
    """The engine shows it as an advisory at preview; the message says what will happen."""
    config = {"requiredLabels": ["team"]} if policy == "dsec-labels" else {}
    with pytest.raises(UnknownValueError) as caught:
        run(policy, spec, config=config, kind=KINDS.get(policy, EXPERIMENT_TYPE))
    assert f"{policy} on walk is deferred to update" in caught.value.message


def test_every_policy_has_an_unknown_case() -> None:
    """As many policies as cases."""
    assert (
        {one[0] for one in UNKNOWN}
        == set(NAMES)
        == {
            f"dsec-{one.name}"
            for one in (*EXPERIMENT_RULES, *POOL_RULES, *COPY_RULES, *BUCKET_RULES)
        }
    )


@pytest.mark.parametrize("policy", [one for one in NAMES if one != "dsec-digests"])
def test_rules_read_few_fields(policy: str) -> None:
    """An image that only the update knows defers the rules about images, no other."""
    assert run(policy, role(image=UNKNOWN_STRING_VALUE)) == []


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("spec", [None, {}, {"roles": None}, {"roles": [None]}, "text"])
def test_odd_shapes_do_not_break_a_policy(policy: str, spec: Any) -> None:
    """Whatever a program writes, the pack answers."""
    assert all("could not judge" not in one for one in run(policy, spec))


def test_a_fault_of_a_policy_names_policy_and_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that raises blocks in words; it neither hangs nor passes silently."""

    def fail(_config: object) -> Settings:
        raise KeyError("oops")

    monkeypatch.setattr("dsec_policies.pack.settings_of", fail)
    (one,) = run("dsec-limits", role())
    assert "The policy dsec-limits could not judge urn:x" in one
    assert "oops" in one


def test_privileged_workloads_are_reported_outside_the_platform() -> None:
    """The agent's own namespace is exempt, by configuration."""
    spec = {"template": {"spec": {"containers": [{"securityContext": {"privileged": True}}]}}}
    kind = "kubernetes:apps/v1:DaemonSet"
    (one,) = run("dsec-privileged", spec, kind=kind)
    assert one.startswith("The DaemonSet walk must leave the node alone")
    assert run("dsec-privileged", spec, kind=kind, namespace="dsec-system") == []
    mine = {"platformNamespaces": ["mine"]}
    assert run("dsec-privileged", spec, kind=kind, namespace="mine", config=mine) == []


@pytest.mark.parametrize("policy", NAMES)
def test_other_resources_are_left_alone(policy: str) -> None:
    """The pack speaks of dsec's records and of workloads."""
    assert run(policy, {"privileged": True}, kind="aws:ec2/instance:Instance") == []


def test_metadata_for_reviewers() -> None:
    """Severity, remedy and description; moving tags and nodes at any price only advise."""
    for name, one in PACK.items():
        assert one.severity
        assert one.remediation_steps
        whose = {
            POOL_TYPE: "Node pools",
            COPIES_TYPE: "Replication policies",
            BLOCK_TYPE: "Buckets",
            SEAL_TYPE: "Buckets",
        }.get(KINDS.get(name, ""), "Experiments")
        assert one.description.startswith(f"{whose} must ")
        advisory = name in {"dsec-digests", "dsec-spending"}
        assert (one.enforcement_level is EnforcementLevel.ADVISORY) == advisory


def test_configuration_schemas_cover_the_settings() -> None:
    """Each property of a schema reaches the rules, and its default is theirs."""
    for one in PACK.values():
        schema = one.config_schema
        for name, about in (schema.properties if schema else {}).items():
            assert settings_of({name: about["default"]}) is not None, name
            assert about["description"].endswith(".")
    assert settings_of({"maxReplicas": 7.0}).max_replicas == 7
    assert settings_of({"requiredLabels": ["a"]}).required_labels == ["a"]


def test_importing_returns_at_once() -> None:
    """The pack serves only from its entry point."""
    done = subprocess.run(
        [sys.executable, "-c", "import dsec_policies; print(len(dsec_policies.policies()))"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.strip() == "18"
    assert all(isinstance(one, ResourceValidationPolicy) for one in PACK.values())
