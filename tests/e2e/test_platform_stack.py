"""`pulumi up` on the local cluster: the platform runs experiments, changes live, and goes away.

Tests run in order: each goes on where the one before stopped.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from platform_stack import STACK, Stack, same, wait

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pulumi,
    pytest.mark.root,
    pytest.mark.timeout(400),
]


BURST_POOL = "/apis/dsec.dev/v1alpha1/sandboxnodepools/burst"


def sell(config: dict[str, Any]) -> None:
    """Add a pool whose nodes a simulated market sells: always there, and never machines."""
    platform = config["dsec:platform"]
    platform["suppliers"] = {"simulated": {"spotOut": 0, "onDemandOut": 0, "takenPerHour": 0}}
    make = {"instanceType": "sim.8", "cpuMilli": 8000, "memoryBytes": 32 << 30}
    platform["pools"]["burst"] = {
        "kind": "cpu",
        "scaling": {
            "supplier": "simulated",
            "maxNodes": 2,
            "maxCostPerHour": "1",
            "currency": "EUR",
            "burstWaitSeconds": 1,
            "regions": ["sim"],
            "zones": ["a"],
            "offerings": [{**make, "pricePerHour": "0.40"}],
        },
    }


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[httpx2.Client]:
    """Return a client of the gateway."""
    with stack.client() as made:
        yield made


def ready(client: httpx2.Client, name: str) -> bool:
    """Say whether every replica of an experiment runs."""
    record = client.get(f"/v1/projects/demo/experiments/{name}").json()
    conditions = record.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def running(client: httpx2.Client) -> list[dict[str, Any]]:
    """Return who the sandboxes are that run, as the gateway sees it by now."""
    listed = client.get("/v1/projects/demo/sandboxes", params={"state": "running"}).json()
    return [one["identity"] for one in listed["items"]]


def test_up_makes_a_platform_that_runs_what_the_stack_declares(
    stack: Stack, request: pytest.FixtureRequest
) -> None:
    """With the policy pack; the Python example and the document both run, roles visible inside."""
    text = stack.bring_up()
    assert "error" not in text.lower()
    client: httpx2.Client = request.getfixturevalue("client")
    for name in ("example-roles", "example-elastic", "walk"):
        wait(f"{name} is ready", lambda n=name: ready(client, n))
    by_role = {
        ("example-roles", "trainer"),
        ("example-roles", "worker"),
        ("example-elastic", "worker"),
        ("walk", "trainer"),
        ("walk", "sim"),
    }
    same(lambda: {(one["experiment"], one["role"]) for one in running(client)}, by_role)
    node = stack.get(f"/apis/dsec.dev/v1alpha1/sandboxnodes/{stack.cluster.node_name}")
    assert node["spec"]["pool"] == "local"
    assert node["spec"]["labels"] == {"region": "local"}


def test_a_burst_that_prometheus_shows_raises_replicas(client: httpx2.Client) -> None:
    """A role's own PromQL, asked of the stack's server: a queue fills, its role grows to its most.

    The queue stays full, so that a later test sees whether `up` minds a count that is not its own.
    """
    where = "/v1/projects/demo/experiments/example-elastic"
    items = [{"id": f"t{n}", "body": "x"} for n in range(40)]
    put = client.post(f"{where}/queues/work/put", json={"items": items})
    assert put.status_code == 200, put.text

    def scaling() -> dict[str, Any]:
        return dict(client.get(where).json()["status"]["scaling"][0])

    def count() -> int:
        return [one["experiment"] for one in running(client)].count("example-elastic")

    def read() -> bool:
        found = scaling()["readings"]
        return {"queue_depth": 40} in [{one["name"]: one.get("value")} for one in found]

    same(count, 3)
    told = scaling()["message"]
    assert told.startswith("raised from 1 to 3"), told
    wait("what is read is the queue's depth", read)


def test_prometheus_scrapes_every_part(stack: Stack) -> None:
    """Gateway, controller and agent are there, and nothing else."""
    query = quote("count by (job) (up == 1)")
    server = "/api/v1/namespaces/dsec-system/services/http:dsec-prometheus:9090/proxy"

    def jobs() -> dict[str, str]:
        found = stack.get(f"{server}/api/v1/query?query={query}")["data"]["result"]
        return {one["metric"]["job"]: one["value"][1] for one in found}

    # pods that were replaced a moment ago are found at the next look
    same(jobs, {"dsec-gateway": "1", "dsec-controller": "1", "dsec-agent": "1"})


def test_a_pool_buys_while_work_waits(stack: Stack, client: httpx2.Client) -> None:
    """Work that no node here may run buys one in the simulated market, within the pool's bounds.

    It goes on waiting, so that the next test sees whether `up` minds nodes that the leader bought.
    """
    stack.configure(sell)
    stack.up()
    role = {
        "name": "worker",
        "replicas": 1,
        "command": ["sleep", "600"],
        "nodeLabels": {"dsec.dev/simulated": "true"},
        "resources": {"cpuMilli": 4000, "memoryBytes": 64 << 20},
    }
    document = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": "large"},
        "spec": {"roles": [role]},
    }
    made = client.post("/v1/projects/demo/experiments", content=json.dumps(document))
    assert made.status_code == 201, made.text

    def scaling() -> dict[str, Any]:
        return dict(stack.get(BURST_POOL).get("status", {}).get("scaling") or {})

    wait("a node is bought", lambda: len(scaling().get("nodes", [])) == 1)
    assert any("buys 1 node of sim.8" in one["text"] for one in scaling()["decisions"])


def test_nothing_drifts_while_it_works(stack: Stack) -> None:
    """Refresh and a second up agree with the running platform."""
    stack.pulumi(*("refresh", "--yes", "--skip-preview", "--expect-no-changes", "--stack", STACK))
    stack.up("--expect-no-changes")


def test_the_stack_changes_a_live_limit_and_takes_an_experiment_away(
    stack: Stack, client: httpx2.Client
) -> None:
    """A smaller quota holds at once; a removed experiment is collected and cleaned."""

    def change(config: dict[str, Any]) -> None:
        sell(config)
        platform = config["dsec:platform"]
        platform["tenants"]["demo"]["quota"] = {"nominal": {"cpuMilli": 200}}
        del platform["experiments"]["walk"]

    stack.configure(change)
    stack.up()
    same(lambda: client.get("/v1/projects/demo/experiments/walk").status_code, 404)
    left = {"example-roles", "example-elastic"}
    same(lambda: {one["experiment"] for one in running(client)}, left)
    document = (
        "metadata: {name: theirs}\nspec:\n  entrypoint: [sleep, '600']\n"
        "  resources: {cpu: 150m, memory: 64Mi}\n"
    )
    made = client.post("/v1/projects/demo/experiments", content=document)
    assert made.status_code in {200, 201}, made.text

    def waits_for_quota() -> bool:
        record = client.get("/v1/projects/demo/experiments/theirs").json()
        reasons = record.get("status", {}).get("pendingReasons", [])
        return any(one["reason"] == "quota" for one in reasons)

    wait("a sentence about the quota", waits_for_quota)


def test_purge_leaves_nothing_in_the_cluster(stack: Stack) -> None:
    """The experiment of somebody else goes too: the local stack says purge."""
    stack.pulumi("destroy", "--yes", "--skip-preview", "--stack", STACK)
    groups = stack.get("/apis")["groups"]
    assert "dsec.dev" not in {one["name"] for one in groups}
    for path in (
        "/api/v1/namespaces",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    ):
        names = [one["metadata"]["name"] for one in stack.get(path)["items"]]
        assert [name for name in names if "dsec" in name or name == "demo"] == [], path
    state = json.loads(stack.pulumi("stack", "export", "--stack", STACK))
    assert state["deployment"].get("resources", []) == []
