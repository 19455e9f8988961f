"""The platform passes its own policy pack, and a bad experiment inside it does not."""

import json
from typing import Any

import pulumi
from conftest import Run, plain
from dsec_components.platform import Platform
from dsec_policies import policies
from pulumi_policy import EnforcementLevel, PolicyResourceOptions, ResourceValidationArgs
from pulumi_policy.proxy import unknown_checking_proxy

OPTIONS = PolicyResourceOptions(
    protect=False,
    ignore_changes=[],
    delete_before_replace=None,
    aliases=[],
    custom_timeouts=None,
    additional_secret_outputs=[],
    parent="",
)


def platform(**role: Any) -> dict[str, Any]:
    """Return the inputs of a platform with one tenant and one experiment."""
    limits = {"cpu_milli": 100, "memory_bytes": 1 << 26}
    base = {"name": "w", "image": "registry.example/i:1", "resources": limits}
    return {
        "images": {"runtime": "registry.example/dsec:1", "agent": "registry.example/agent:1"},
        "kubeconfig": "apiVersion: v1",
        "pools": {"cpu": {}},
        "object_store": {"region": "eu-1", "bucket": "lab"},
        "snapshots": {"copies": [{"region": "eu-2", "bucket": "lab-copies"}]},
        "tenants": {"demo": {"projects": ["demo"]}},
        "experiments": {"one": {"project": "demo", "spec": {"roles": [base | role]}}},
    }


def violations(run: Run, inputs: dict[str, Any]) -> set[tuple[str, str]]:
    """Return (policy, resource) of every mandatory report about what a platform registers."""

    def program(opts: pulumi.ResourceOptions) -> None:
        Platform("dsec", inputs, opts)

    made = run(program)
    found = set()
    for one in made.resources:
        props = json.loads(json.dumps(plain(one.inputs), default=str))
        for policy in policies():
            if policy.enforcement_level is not EnforcementLevel.MANDATORY:
                continue
            reports: list[str] = []
            args = ResourceValidationArgs(
                one.typ, unknown_checking_proxy(props), "", one.name, OPTIONS, None
            )
            policy.validate(args, lambda message, _urn=None, to=reports: to.append(message))
            if reports:
                found.add((policy.name, one.name))
    return found


def test_the_platform_passes_its_own_pack(run: Run) -> None:
    """Also its agent, which holds the node, and its buckets, whose keys a preview cannot know."""
    assert violations(run, platform()) == set()


def test_the_pack_sees_the_experiments_of_a_platform(run: Run) -> None:
    """What the component makes of its inputs is what the rules read."""
    found = violations(run, platform(env={"API_KEY": "x"}))
    assert {policy for policy, _ in found} == {"dsec-secrets"}
