"""Every rule has good and bad cases; messages are sentences that name resource, rule and remedy."""

from pathlib import Path
from typing import Any

import pytest
from dsec.api.tenant import TenantSpec
from dsec.rules import EXPERIMENT_RULES, HOST, Facts, Finding, Settings, Severity, Subject, check
from dsec.rules.reference import render

LIMITS = {"cpuMilli": 1000, "memoryBytes": 1 << 30}
GOOD_ROLE = {"name": "sim", "replicas": 2, "image": "registry.example/sim:1", "resources": LIMITS}
TENANT = TenantSpec.model_validate(
    {
        "projects": ["gait"],
        "documentTenants": ["research_a"],
        "residency": ["eu-1"],
        "registries": ["registry.example/"],
        "defaults": {"imageMirrors": [{"prefix": "registry.internal/", "mirror": "x/"}]},
    }
)
FACTS = Facts("gait", "lab", TENANT)


def findings(
    rule: str, spec: dict[str, Any], facts: Facts = FACTS, **settings: Any
) -> list[Finding]:
    """Return what one rule finds."""
    (one,) = (rule_ for rule_ in EXPERIMENT_RULES if rule_.name == rule)
    return check(spec, name="walk", facts=facts, settings=Settings(**settings), rules=[one])


def role(**changes: Any) -> dict[str, Any]:
    """Return a spec with one role."""
    return {"roles": [GOOD_ROLE | changes]}


def env(**values: str) -> dict[str, Any]:
    """Return a spec whose role has an environment."""
    return role(env=values)


def scaled(**elastic: Any) -> dict[str, Any]:
    """Return a spec whose role is elastic between 1 and 12, or up to `max`."""
    bounds = {"min": 1, "max": elastic.pop("max", 12)}
    return role(elastic={"metric": "queue_depth"} | elastic, **bounds)


def night(*, min: int = 1, max: int, **elastic: Any) -> dict[str, Any]:  # noqa: A002 - field names
    """Return one whose role has other bounds at night."""
    window = {"start": "22:00", "end": "07:00", "min": min, "max": max}
    return scaled(schedule=[window], **elastic)


NO_FACTS = Facts()
DEFAULTED = Facts(
    "gait",
    "lab",
    TenantSpec.model_validate({"defaults": {"resources": LIMITS | {"gpuMemoryBytes": 1}}}),
)

BAD: list[tuple[str, dict[str, Any], str, dict[str, Any], Facts]] = [
    ("limits", role(resources={}), "spec.roles[0].resources.cpuMilli", {}, FACTS),
    ("limits", {"roles": [{"name": "a"}]}, "spec.roles[0].resources.memoryBytes", {}, NO_FACTS),
    ("limits", role(gpu={"mode": "mps"}), "spec.roles[0].gpu.memoryBytes", {}, FACTS),
    ("digests", role(image="a/b:latest"), "spec.roles[0].image", {}, FACTS),
    ("digests", role(image="host:5000/a/b"), "spec.roles[0].image", {}, FACTS),
    ("digests", role(image="a/b:1.2"), "spec.roles[0].image", {"require_digests": True}, FACTS),
    ("budget", {"budget": {"limit": "0.00"}}, "spec.budget.limit", {}, NO_FACTS),
    ("budget", {"budget": {"limit": "5"}}, "spec.budget.currency", {}, FACTS),
    ("budget", {}, "spec.budget", {"require_budget": True}, FACTS),
    ("privileged", role(privileged=True), "spec.roles[0].privileged", {}, NO_FACTS),
    ("egress", {"network": {"egress": "open"}}, "spec.network.egress", {}, FACTS),
    ("egress", {"network": {"allowedDomains": ["*"]}}, "spec.network.allowedDomains[0]", {}, FACTS),
    ("egress", {"network": {"services": ["a.example"]}}, "spec.network.services[0]", {}, FACTS),
    ("tenant", {"tenant": "other"}, "spec.tenant", {}, FACTS),
    ("tenant", {"project": "other"}, "spec.project", {}, FACTS),
    ("tenant", {}, "metadata.namespace", {}, Facts("stray", "", None)),
    ("tenant", role(image="docker.example/a:1"), "spec.roles[0].image", {}, FACTS),
    ("tenant", role(image="b/a:1"), "spec.roles[0].image", {"registries": ["a/"]}, NO_FACTS),
    ("replicas", role(min=3, replicas=2), "spec.roles[0].replicas", {}, FACTS),
    ("replicas", role(max=1, replicas=2), "spec.roles[0].replicas", {}, FACTS),
    ("replicas", role(max=200), "spec.roles", {"max_replicas": 100}, FACTS),
    ("replicas", {"roles": [GOOD_ROLE, GOOD_ROLE]}, "spec.roles[1].name", {}, FACTS),
    ("elasticity", scaled(target=0), "spec.roles[0].elastic.target", {}, FACTS),
    ("elasticity", scaled(metric="cpu", target=120), "spec.roles[0].elastic.target", {}, FACTS),
    ("elasticity", scaled(target=64, lower=64), "spec.roles[0].elastic.lower", {}, FACTS),
    ("elasticity", scaled(windowSeconds=59), "spec.roles[0].elastic.windowSeconds", {}, FACTS),
    ("elasticity", scaled(max=None), "spec.roles[0].max", {}, FACTS),
    ("elasticity", scaled(ladder=[8, 4]), "spec.roles[0].elastic.ladder", {}, FACTS),
    ("elasticity", scaled(ladder=[4, 16]), "spec.roles[0].elastic.ladder[1]", {}, FACTS),
    ("elasticity", scaled(timeZone="Mars/X"), "spec.roles[0].elastic.timeZone", {}, FACTS),
    ("elasticity", night(max=0), "spec.roles[0].elastic.schedule[0].max", {}, FACTS),
    ("elasticity", night(min=5, max=4), "spec.roles[0].elastic.schedule[0].min", {}, FACTS),
    (
        "elasticity",
        role(vertical={"minCpuMilli": 3000, "maxCpuMilli": 2000}),
        "spec.roles[0].vertical.minCpuMilli",
        {},
        FACTS,
    ),
    (
        "elasticity",
        role(vertical={"maxMemoryBytes": 1 << 29}),
        "spec.roles[0].vertical.maxMemoryBytes",
        {},
        FACTS,
    ),
    ("secrets", env(DB_PASSWORD="x"), "spec.roles[0].env.DB_PASSWORD", {}, FACTS),  # noqa: S106 - what the rule finds
    ("secrets", env(HF_TOKEN="x"), "spec.roles[0].env.HF_TOKEN", {}, FACTS),  # noqa: S106 - same
    ("secrets", env(X="-----BEGIN PRIVATE KEY-----"), "spec.roles[0].env.X", {}, FACTS),
    ("secrets", env(DSN="postgres://me:pw@db/x"), "spec.roles[0].env.DSN", {}, FACTS),
    ("secrets", role(command=["run", "AKIA" + "A" * 16]), "spec.roles[0].command[1]", {}, FACTS),
    ("residency", {"residency": ["us-1"]}, "spec.residency[0]", {}, FACTS),
    ("residency", {"residency": ["us-1"]}, "spec.residency[0]", {"regions": ["eu-1"]}, NO_FACTS),
    ("labels", {}, "spec.labels.team", {"required_labels": ["team"]}, FACTS),
    ("labels", {"labels": {"dsec.dev/tenant": "a"}}, "spec.labels.dsec.dev/tenant", {}, FACTS),
]

GOOD: list[tuple[str, dict[str, Any], dict[str, Any], Facts]] = [
    ("limits", role(), {}, NO_FACTS),
    ("limits", role(gpu={"mode": "whole"}), {}, NO_FACTS),
    ("limits", role(gpu={"mode": "mps", "memoryBytes": 1 << 30}), {}, NO_FACTS),
    ("limits", {"roles": [{"name": "a", "gpu": {"mode": "shares"}}]}, {}, DEFAULTED),
    ("limits", {"roles": [{"name": "a"}]}, {"defaults_fill_limits": True}, NO_FACTS),
    ("digests", role(image="host:5000/a/b:1.2"), {}, FACTS),
    ("digests", role(image="a/b@sha256:" + "0" * 64), {"require_digests": True}, FACTS),
    ("budget", {"budget": {"limit": "0.5", "currency": "EUR"}}, {"require_budget": True}, FACTS),
    ("budget", {"budget": {"limit": "5"}}, {}, NO_FACTS),
    ("privileged", role(privileged=False), {}, NO_FACTS),
    ("egress", {"network": {"egress": "open"}}, {"allow_open_egress": True}, FACTS),
    (
        "egress",
        {"network": {"allowedDomains": ["a.b-c.example"], "services": ["h:443"]}},
        {},
        FACTS,
    ),
    ("tenant", {"tenant": "research_a", "project": "gait"} | role(), {}, FACTS),
    ("tenant", role(image="registry.internal/a:1"), {}, FACTS),
    ("tenant", {"tenant": "anyone"}, {}, NO_FACTS),
    ("replicas", role(min=1, max=9), {"max_replicas": 9}, FACTS),
    (
        "elasticity",
        night(min=1, max=4, ladder=[4, 8, 12], target=64, lower=8, windowSeconds=60),
        {},
        FACTS,
    ),
    ("elasticity", scaled(metric="cpu", target=70, timeZone="Asia/Shanghai"), {}, FACTS),
    ("elasticity", role(vertical={"maxCpuMilli": 2000, "minCpuMilli": 500}), {}, FACTS),
    ("secrets", env(TOKENIZER="bpe", MAX_TOKENS="10", PASSWORD="", URL="https://a/b"), {}, FACTS),
    ("residency", {"residency": ["eu-1"]}, {"regions": ["eu-1", "us-1"]}, FACTS),
    ("labels", {"labels": {"team": "a"}}, {"required_labels": ["team"]}, FACTS),
]


@pytest.mark.parametrize(("rule", "spec", "path", "settings", "facts"), BAD)
def test_bad(
    rule: str, spec: dict[str, Any], path: str, settings: dict[str, Any], facts: Facts
) -> None:
    """The breach is found at its path, in a sentence that says what to do."""
    found = [one for one in findings(rule, spec, facts, **settings) if one.path == path]
    assert len(found) == 1
    (one,) = found
    assert one.rule == rule
    assert one.message.startswith("The Experiment walk must ")
    assert one.message.endswith(f"(rule {rule}).")
    assert one.remedy.endswith(".")


@pytest.mark.parametrize(("rule", "spec", "settings", "facts"), GOOD)
def test_good(rule: str, spec: dict[str, Any], settings: dict[str, Any], facts: Facts) -> None:
    """Nothing is found where nothing is wrong."""
    assert findings(rule, spec, facts, **settings) == []


def test_every_rule_has_both_cases() -> None:
    """A rule without a bad case in the table is not tested."""
    names = [one.name for one in EXPERIMENT_RULES]
    assert len(names) == len(set(names)) == 11
    assert {one[0] for one in BAD} == set(names)
    assert {one[0] for one in GOOD} == set(names)


@pytest.mark.parametrize("rule", EXPERIMENT_RULES, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        [],
        "text",
        {"roles": None},
        {"roles": "text"},
        {"roles": [None, 1, "a", {}]},
        {"roles": [{"env": 1, "command": 2, "resources": 3, "gpu": 4, "image": 5, "min": "x"}]},
        {"network": 1, "budget": 2, "labels": 3, "residency": 4},
        {"network": {"allowedDomains": [None], "services": [1]}, "budget": {}, "residency": [None]},
    ],
)
def test_unknown_shapes_are_tolerated(rule: Any, spec: Any) -> None:
    """A rule that meets what it does not know says nothing about it, or finds a breach."""
    subject = Subject("Experiment", "odd", spec, FACTS)
    assert all(isinstance(one, Finding) for one in rule.check(subject))


def test_a_moving_tag_is_a_warning() -> None:
    """Documents with :latest are accepted (the sources have them); the digest is pinned."""
    (one,) = findings("digests", role(image="a/b:latest"))
    assert one.severity is Severity.WARNING
    (one,) = findings("digests", role(image="a/b:latest"), require_digests=True)
    assert one.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("kind", "spec", "path"),
    [
        ("Pod", {"hostPID": True}, "spec.hostPID"),
        (
            "Deployment",
            {"template": {"spec": {"containers": [{"securityContext": {"privileged": True}}]}}},
            "spec.template.spec.containers[0].securityContext.privileged",
        ),
        (
            "CronJob",
            {"jobTemplate": {"spec": {"template": {"spec": {"volumes": [{"hostPath": {}}]}}}}},
            "spec.jobTemplate.spec.template.spec.volumes[0].hostPath",
        ),
    ],
)
def test_workloads_that_hold_the_node(kind: str, spec: dict[str, Any], path: str) -> None:
    """Red lines in projects; the platform's own namespace is exempt."""
    (one,) = HOST.check(Subject(kind, "w", spec, Facts(namespace="gait")))
    assert one.path == path
    assert list(HOST.check(Subject(kind, "w", spec, Facts(namespace="dsec-system")))) == []


def test_the_reference_page_is_fresh() -> None:
    """Each rule is documented by what the code says of it."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "rules.md"
    assert page.read_text() == render()
