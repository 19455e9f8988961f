"""The webhook: a pure answer to each review, with every error at once."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from dsec.api.tenant import TenantSpec
from dsec.gateway.admission import MAX_BODY_BYTES, Webhook, admission_route
from dsec.rules import Settings
from starlette.applications import Starlette
from starlette.testclient import TestClient

ROLE = {
    "name": "sim",
    "image": "registry.example/sim:1",
    "resources": {"cpuMilli": 1000, "memoryBytes": 1 << 30},
}


class Tenants:
    """A fixed view of tenants."""

    def __init__(self, tenants: Mapping[str, Mapping[str, Any]] | None) -> None:
        self._tenants = tenants

    def tenants(self) -> Mapping[str, TenantSpec] | None:
        """Return the tenants, or None before they are read."""
        if self._tenants is None:
            return None
        return {name: TenantSpec.model_validate(one) for name, one in self._tenants.items()}


LAB = {
    "lab": {
        "projects": ["gait"],
        "documentTenants": ["research_a"],
        "registries": ["registry.example/"],
    },
    "other": {"projects": ["elsewhere"]},
}


def review(
    kind: str,
    spec: Mapping[str, Any] | None = None,
    *,
    namespace: str = "gait",
    tenants: Mapping[str, Mapping[str, Any]] | None = LAB,
    **more: Any,
) -> dict[str, Any]:
    """Return the response to the creation of a record."""
    record = {"metadata": {"name": "x", "namespace": namespace}, "spec": spec}
    request = {
        "uid": "1",
        "kind": {"group": "dsec.dev", "kind": kind},
        "namespace": namespace,
        "operation": "CREATE",
        "object": record,
        "userInfo": {"username": "ann"},
    }
    before = copy.deepcopy(request | more)
    body = {"request": request | more}
    answer = Webhook(Tenants(tenants)).review(body)
    assert body["request"] == before, "a review must not change what it judges"
    response: dict[str, Any] = answer["response"]
    assert response["uid"] == "1"
    return response


def fields(response: Mapping[str, Any]) -> set[str]:
    """Return the fields that a refusal names."""
    return {one["field"] for one in response["status"]["details"]["causes"]}


def test_a_good_experiment_is_allowed() -> None:
    """With the warnings that it deserves."""
    assert review("Experiment", {"roles": [ROLE]}) == {"uid": "1", "allowed": True}
    warned = review("Experiment", {"roles": [ROLE | {"image": "registry.example/sim:latest"}]})
    assert warned["allowed"]
    assert "moves with the registry" in warned["warnings"][0]


def test_every_error_at_once() -> None:
    """Limits, privilege, egress, tenant and counts, each with its path and remedy."""
    spec = {
        "tenant": "stranger",
        "roles": [
            {"name": "a", "privileged": True, "image": "registry.example/a:1", "min": 3, "max": 2}
        ],
        "network": {"egress": "open"},
        "relations": [{"kind": "broadcast", "source": "a", "target": "b"}],
    }
    response = review("Experiment", spec)
    assert not response["allowed"]
    assert fields(response) >= {
        "spec.tenant",
        "spec.roles[0].privileged",
        "spec.roles[0].resources.cpuMilli",
        "spec.roles[0].resources.memoryBytes",
        "spec.roles[0].max",
        "spec.network.egress",
        "spec.relations[0].target",
    }
    assert response["status"]["code"] == 422
    lines = response["status"]["message"].splitlines()
    assert len([one for one in lines if one.strip()]) == len(
        response["status"]["details"]["causes"]
    )


def test_the_tenants_defaults_count() -> None:
    """An experiment without a limit passes where the tenant fills it."""
    role = {"name": "a", "image": "registry.example/a:1"}
    assert not review("Experiment", {"roles": [role]})["allowed"]
    rich = {"lab": LAB["lab"] | {"defaults": {"resources": ROLE["resources"]}}}
    assert review("Experiment", {"roles": [role]}, tenants=rich)["allowed"]


def test_a_namespace_without_tenant() -> None:
    """Nothing runs where nobody pays."""
    assert "metadata.namespace" in fields(
        review("Experiment", {"roles": [ROLE]}, namespace="default")
    )


def test_before_the_tenants_are_read_nothing_enters() -> None:
    """An empty cache is not an empty cluster."""
    response = review("Experiment", {"roles": [ROLE]}, tenants=None)
    assert "try again" in response["status"]["message"]


def test_a_bad_shape_is_refused_by_path() -> None:
    """Also where the schema of the server was looser."""
    assert "spec.roles" in str(fields(review("Experiment", {"roles": "x"})))


def test_a_record_that_leaves_is_let_go() -> None:
    """Finalizers come off by an update, also under rules that are stricter than at creation."""
    spec = {"roles": [ROLE | {"privileged": True}]}
    old = {"metadata": {"name": "x", "finalizers": ["dsec.dev/collect"]}, "spec": spec}
    assert review("Experiment", spec, operation="UPDATE", oldObject=old)["allowed"]
    deleted = review("Experiment", None, operation="DELETE", object=None, oldObject=old)
    assert deleted["allowed"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"projects": ["elsewhere"]}, "spec.projects[0]"),
        ({"documentTenants": ["other"]}, "spec.documentTenants[0]"),
        (
            {"quota": {"nominal": {"gpuCount": 8}, "ceiling": {"gpuCount": 4}}},
            "spec.quota.ceiling.gpuCount",
        ),
        ({"defaults": {"presets": {"CONF-11": "loud"}}}, "spec.defaults.presets.CONF-11"),
        ({"defaults": {"presets": {"CONF-99": "x"}}}, "spec.defaults.presets.CONF-99"),
    ],
)
def test_bad_tenants(spec: dict[str, Any], field: str) -> None:
    """What no schema can say about a tenant."""
    assert fields(review("Tenant", spec, namespace="")) == {field}


def test_a_good_tenant() -> None:
    """Borrowing above the nominal share is what a ceiling is for."""
    quota = {"nominal": {"gpuCount": 8}, "ceiling": {"gpuCount": 12}}
    assert review("Tenant", {"projects": ["new"], "quota": quota}, namespace="")["allowed"]


def test_images_and_pools() -> None:
    """A registry of the tenant's, and settings within their limits."""
    assert review("SandboxImage", {"reference": "registry.example/a:1"})["allowed"]
    assert fields(review("SandboxImage", {"reference": "evil.example/a:1"})) == {"spec.reference"}
    none = {"agent": {"maxSandboxes": 0}}
    assert fields(review("SandboxNodePool", none)) == {"spec.agent.maxSandboxes"}


def test_only_the_tenant_controller_labels_namespaces() -> None:
    """The label decides who owns everything inside."""
    labelled = {"metadata": {"name": "n", "labels": {"dsec.dev/tenant": "lab"}}}
    refused = review("Namespace", None, object=labelled)
    assert fields(refused) == {"metadata.labels.dsec.dev/tenant"}
    kept = review("Namespace", None, object=labelled, oldObject=labelled, operation="UPDATE")
    assert kept["allowed"]
    controller = {"username": "system:serviceaccount:dsec-system:dsec-controller"}
    assert review("Namespace", None, object=labelled, userInfo=controller)["allowed"]


def test_unknown_kinds_pass() -> None:
    """The webhook judges what it knows; what it is asked is decided by its configuration."""
    assert review("Dataset", {})["allowed"]


def test_the_route() -> None:
    """JSON in, JSON out; 400 for what is no review, 413 for what is too large."""
    client = TestClient(Starlette(routes=[admission_route(Webhook(Tenants(LAB)))]))
    request = {"uid": "7", "kind": {"kind": "Experiment"}, "namespace": "gait"}
    record = {"metadata": {"name": "x"}, "spec": {"roles": [ROLE]}}
    good = client.post("/admission", json={"request": request | {"object": record}})
    assert good.json()["kind"] == "AdmissionReview"
    assert good.json()["response"] == {"uid": "7", "allowed": True}
    assert client.post("/admission", content=b"no json").status_code == 400
    assert client.post("/admission", json=[1]).status_code == 400
    assert client.post("/admission", content=b" " * (MAX_BODY_BYTES + 1)).status_code == 413


def test_a_pool_that_contradicts_itself_is_refused_and_what_cannot_be_reached_is_told() -> None:
    """Bounds and floors are errors; a CPU limit that whole nodes miss is a warning."""
    offered = [{"instanceType": "c32", "cpuMilli": 32_000, "memoryBytes": 1 << 36}]
    asked = {"minNodes": 4, "maxNodes": 2, "timeZone": "Mars/Olympus", "offerings": offered}
    assert fields(review("SandboxNodePool", {"scaling": asked})) == {
        "spec.scaling.maxNodes",
        "spec.scaling.timeZone",
    }
    told = review("SandboxNodePool", {"scaling": {"maxCpuMilli": 2_063_000, "offerings": offered}})
    assert told["allowed"]
    assert "2063 cores cannot be reached with nodes of 32 cores: 2048 are" in told["warnings"][0]


def test_a_policy_of_copies_says_each_mistake_once() -> None:
    """What the record contradicts, what the rules forbid, and the regions of the stack."""
    one = {"region": "us-1", "endpoint": "http://s3.us-1"}
    spec = {"destinations": [one, one], "minCopies": 3, "residency": ["eu-1"]}
    told = review("ReplicationPolicy", spec)
    fields = [cause["field"] for cause in told["status"]["details"]["causes"]]
    assert fields.count("spec.destinations[0].endpoint") == 1
    assert fields.count("spec.minCopies") == 1
    assert set(fields) == {
        *(f"spec.destinations[{at}].{key}" for at in (0, 1) for key in ("region", "endpoint")),
        "spec.minCopies",
    }
    fine = {"destinations": [{"region": "us-1"}]}
    assert review("ReplicationPolicy", fine)["allowed"]
    record = {"metadata": {"name": "x"}, "spec": fine}
    request = {"uid": "1", "kind": {"kind": "ReplicationPolicy"}, "object": record}
    strict = Webhook(Tenants(LAB), Settings(regions=("eu-1",)))
    answer = strict.review({"request": request})["response"]
    (cause,) = answer["status"]["details"]["causes"]
    assert cause["field"] == "spec.destinations[0].region"
    assert "the stack's regions (eu-1)" in cause["message"]
