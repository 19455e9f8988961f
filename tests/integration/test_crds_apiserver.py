"""The CRDs against a real API server: it takes good records and refuses bad ones by path."""

import json
from typing import Any

import pytest
from cluster import ApiServer
from dsec.api.crds import definitions
from dsec.api.records import RECORDS, Experiment, SandboxNode, SandboxNodePool, Tenant

pytestmark = pytest.mark.cluster

ROLE = {
    "name": "sim",
    "replicas": 8,
    "min": 4,
    "max": 12,
    "image": "registry.test/env:1",
    "resources": {"cpuMilli": 4000, "memoryBytes": 8_000_000_000},
    "mounts": [{"name": "out", "path": "/output", "kind": "output", "collect": True}],
}


def experiment(name: str = "walk", **changes: Any) -> dict[str, Any]:
    """Return an Experiment manifest; changes replace fields of the spec."""
    spec = {"roles": [dict(ROLE)]} | changes
    return {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def api(apiserver: ApiServer) -> ApiServer:
    """Return an API server that has the CRDs."""
    done = apiserver.apply(*definitions())
    assert done.returncode == 0, done.stderr
    names = [f"crd/{one['metadata']['name']}" for one in definitions()]
    apiserver.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    return apiserver


def test_definitions_are_accepted_without_violation(api: ApiServer) -> None:
    """Every schema is structural: the server's own condition says so."""
    listed = json.loads(api.kubectl("get", "crd", "-o", "json").stdout)
    for one in listed["items"]:
        conditions = {item["type"]: item for item in one["status"]["conditions"]}
        assert "NonStructuralSchema" not in conditions, conditions
        assert conditions["NamesAccepted"]["status"] == "True"


def test_a_second_apply_changes_nothing(api: ApiServer) -> None:
    """What the server stores is what the generator writes: no drift in a stack."""
    before = api.kubectl("get", "crd", "-o", "jsonpath={.items[*].metadata.generation}").stdout
    assert api.apply(*definitions()).returncode == 0
    after = api.kubectl("get", "crd", "-o", "jsonpath={.items[*].metadata.generation}").stdout
    assert before == after
    stored = json.loads(api.kubectl("get", "crd", "experiments.dsec.dev", "-o", "json").stdout)
    ours = definitions()[0]
    assert stored["spec"]["versions"][0]["schema"] == ours["spec"]["versions"][0]["schema"], (
        "the server normalises the schema: a stack would see a difference"
    )


def test_good_records_round_trip(api: ApiServer) -> None:
    """A record of each kind is stored as the model writes it."""
    records = [
        Experiment.model_validate(experiment("good")).record(),
        Tenant.model_validate(
            {"metadata": {"name": "team"}, "spec": {"quota": {"nominal": {"cpuMilli": 1}}}}
        ).record(),
        SandboxNodePool.model_validate(
            {"metadata": {"name": "pool"}, "spec": {"kind": "gpu", "labels": {"gpu-type": "a100"}}}
        ).record(),
        SandboxNode.model_validate({"metadata": {"name": "n1"}, "spec": {"pool": "p1"}}).record(),
    ]
    done = api.apply(*records)
    assert done.returncode == 0, done.stderr
    stored = json.loads(api.kubectl("get", "dexp", "good", "-o", "json").stdout)
    assert stored["spec"] == records[0]["spec"]
    again = Experiment.model_validate(stored)
    assert again.spec.roles[0].resources.memory_bytes == 8_000_000_000


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"roles": []}, "spec.roles"),
        ({"roles": [ROLE | {"replicas": -1}]}, "spec.roles[0].replicas"),
        ({"roles": [ROLE | {"replicas": 13}]}, "replicas must lie between min and max"),
        ({"roles": [ROLE | {"replicas": 3}]}, "replicas must lie between min and max"),
        ({"roles": [ROLE | {"min": 13}]}, "min must not be above max"),
        ({"roles": [ROLE, ROLE]}, ".spec.roles: duplicate entries"),
        ({"roles": [ROLE | {"ports": [0]}]}, "spec.roles[0].ports[0]"),
        ({"roles": [{"image": "x"}]}, 'omits all key fields ["name"]'),
        ({"priority": "hihg"}, "spec.priority"),
        ({"budget": {"limit": "lots"}}, "spec.budget.limit"),
        ({"network": {"egress": "maybe"}}, "spec.network.egress"),
        (
            {"relations": [{"kind": "x", "source": "a", "target": "b"}]},
            "spec.relations[0].kind",
        ),
        ({"labels": {"team": "x" * 64}}, "spec.labels"),
        ({"maxRunSeconds": 0}, "spec.maxRunSeconds"),
        ({"roles": [ROLE | {"resources": {"memoryBytes": 1.5}}]}, "memoryBytes"),
        ({"rolls": []}, ".spec.rolls"),
    ],
)
def test_bad_experiments_are_refused_with_their_path(
    api: ApiServer, spec: dict[str, Any], path: str
) -> None:
    """The refusal names the field."""
    done = api.apply(experiment("bad", **spec))
    assert done.returncode != 0, "accepted"
    assert path in done.stderr


def test_fields_that_need_a_new_record_cannot_change(api: ApiServer) -> None:
    """A `replace` field says so; a `live` one changes."""
    assert api.apply(experiment("fixed")).returncode == 0
    changed = api.apply(experiment("fixed", isolationLevel="microvm"))
    assert "spec.isolationLevel cannot change" in changed.stderr
    scaled = experiment("fixed", roles=[ROLE | {"replicas": 9}])
    assert api.apply(scaled).returncode == 0
    completed = experiment("fixed", roles=[ROLE | {"completion": "run-to-end"}])
    assert "completion cannot change" in api.apply(completed).stderr


def test_null_is_as_good_as_absent(api: ApiServer) -> None:
    """Clients that write null for what they leave out are understood."""
    record = experiment("nulls", workspaceBytes=None, roles=[ROLE | {"min": None, "gpu": None}])
    done = api.kubectl("create", "-f", "-", stdin=json.dumps(record), check=False)
    assert done.returncode == 0, done.stderr
    stored = json.loads(api.kubectl("get", "dexp", "nulls", "-o", "json").stdout)
    Experiment.model_validate(stored)


def test_status_is_a_subresource_with_columns(api: ApiServer) -> None:
    """`kubectl get dsec` shows every kind; the status comes through its own path only."""
    assert api.apply(experiment("shown")).returncode == 0
    status = {
        "status": {
            "desired": 8,
            "ready": 3,
            "pending": 5,
            "conditions": [{"type": "Ready", "status": "False", "reason": "Starting"}],
            "pendingReasons": [{"reason": "capacity", "message": "no room", "count": 5}],
        }
    }
    api.kubectl(
        "patch", "dexp", "shown", "--subresource=status", "--type=merge", "-p", json.dumps(status)
    )
    table = api.kubectl("get", "dsec", "-A").stdout
    header = next(line for line in table.splitlines() if "WAITS FOR" in line)
    assert header.split()[2:7] == ["READY", "WANTED", "RUNNING", "PENDING", "ENDED"]
    row = next(line for line in table.splitlines() if "dsec.dev/shown" in line)
    assert row.split()[2:6] == ["False", "8", "3", "5"]
    assert "capacity" in row


def test_explain_reads_well(api: ApiServer) -> None:
    """Every field of every kind has a description, and it says what a change does."""
    text = api.kubectl("explain", "experiment.spec.roles").stdout
    assert "Replicas wanted; with elastic, the start value. (live)" in " ".join(text.split())
    for record in RECORDS:
        text = api.kubectl("explain", f"{record.PLURAL}.dsec.dev", "--recursive").stdout
        assert record.__name__ in text
