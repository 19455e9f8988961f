"""The control plane as real processes: Kubernetes, S3, mutual TLS, simulated nodes, kill -9.

Two controllers and a gateway run as programs against a real API server and a real object store;
simulated nodes join with a service-account token and serve under certificates that the gateway
signed. A killed controller and a killed gateway change nothing that users see.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from cluster import ApiServer
from control_plane import USER, Plane, control_plane, sandbox
from dsec.api.config import Deletion
from dsec_components.guard import KubernetesCluster, check

pytestmark = pytest.mark.cluster

# no registry is asked for an image that is named by its digest
IMAGE = f"registry.test/base@sha256:{'1' * 64}"
DOCUMENT = f"""
metadata: {{name: pair}}
spec:
  image: {IMAGE}
  resources: {{cpu: 1, memory: 64Mi}}
  experiment:
    groups:
      - {{name: sampling, role: worker, replicas: 12, resources: {{cpu: 1, memory: 64Mi}}}}
      - {{name: params, role: parameter-server, replicas: 1, resources: {{cpu: 1, memory: 64Mi}}}}
"""


@pytest.fixture(scope="module")
def plane(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Start the whole control plane with six simulated nodes; one joins as a pod does."""
    with control_plane(apiserver, tmp_path_factory.mktemp("plane")) as running:
        account = ("create", "token", "dsec-agent", "-n", "dsec-system", "--audience", "dsec")
        running.simulate([*running.join_tokens(5), apiserver.kubectl(*account).stdout])
        yield running


def creates(count: int, prefix: str) -> dict[str, Any]:
    """Return a batch of keyed creates."""
    return {"creates": [sandbox(key=f"{prefix}-{n}") for n in range(count)]}


def bind_all(plane: Plane, client: httpx2.Client, count: int, prefix: str) -> list[str]:
    """Create until each key is answered; return the ids."""
    found: list[str] = []

    def ask() -> bool:
        response = client.post("/v1/projects/lab/sandboxes", json=creates(count, prefix))
        if response.status_code != 200:
            assert response.status_code == 503, response.text
            return False
        answers = response.json()["answers"]
        found[:] = [a["id"] for a in answers if a["outcome"] in ("bound", "exists")]
        return len(found) == count

    plane.until("creates", ask)
    return found


def live(client: httpx2.Client) -> int:
    """Return how many sandboxes live, as the gateway sees it by now: its view lags the nodes'."""
    nodes = client.get("/v1/nodes").json()["items"]
    return sum(int(node["status"]["live"]) for node in nodes)


def leader(plane: Plane) -> str:
    """Return the name of the leading controller."""
    return plane.office()[0]


def test_an_experiment_runs_in_kubernetes(plane: Plane) -> None:
    """Submit, run, describe, exec, scale, delete; the record shows it all the way."""
    with plane.client() as client:
        made = client.post("/v1/projects/lab/experiments", content=DOCUMENT)
        assert made.status_code == 201, made.text

        def ready(count: int) -> bool:
            record = client.get("/v1/projects/lab/experiments/pair").json()
            return bool(record.get("status", {}).get("ready") == count)

        plane.until("running", lambda: ready(13))
        again = client.post("/v1/projects/lab/experiments", content=DOCUMENT)
        assert again.status_code == 201, "a submit makes a new experiment, under a name of its own"
        other = f"/v1/projects/lab/experiments/{again.json()['metadata']['name']}"
        assert client.delete(other).status_code == 202
        plane.until("deleted", lambda: client.get(other).status_code == 404)
        words = client.get("/v1/projects/lab/experiments/pair/describe").json()
        assert "all 13 replicas" in words["headline"]
        items: list[dict[str, Any]] = []

        def listed() -> bool:
            mine = "/v1/projects/lab/sandboxes?experiment=pair&state=running"
            items[:] = client.get(mine).json()["items"]
            return len(items) == 13

        plane.until("listed as running", listed)
        body = b"\x04" + len(b'{"command":["true"]}').to_bytes(4, "big") + b'{"command":["true"]}'
        ran = client.post(
            f"/v1/projects/lab/sandboxes/{items[0]['identity']['id']}/exec",
            content=body + b"\x00\x00\x00\x00\x00",
        )
        assert ran.status_code == 200, ran.text
        assert ran.content[0] in (1, 2, 3)
        assert b'"exitCode":0' in ran.content
        gone = client.delete("/v1/projects/lab/experiments/pair")
        assert gone.status_code == 202
        plane.until(
            "deleted",
            lambda: client.get("/v1/projects/lab/experiments/pair").status_code == 404,
        )


def test_rights_are_asked_for_every_call(plane: Plane) -> None:
    """A key without rights is denied with 403, an unknown one with 401, and audited."""
    with plane.client(USER) as client:
        denied = client.get("/v1/projects/lab/experiments", headers={"X-Dsec-Correlation-Id": "x1"})
        assert denied.status_code == 403
        assert denied.json()["code"] == "denied"
        assert denied.headers["X-Dsec-Correlation-Id"] == "x1"
        assert client.get("/v1/whoami").json()["user"] == "ann"
        exec_ = client.post("/v1/projects/lab/sandboxes/sb-x/exec", content=b"")
        assert exec_.status_code == 403
    with plane.client("dsec_admin_wrong") as client:
        assert client.get("/v1/nodes").status_code == 401


def test_a_killed_leader_is_replaced_within_ten_seconds(plane: Plane) -> None:
    """Kill -9 of the leading controller: the other one serves the same keys, ids unchanged."""
    with plane.client() as client:
        before = bind_all(plane, client, 50, "kill")
        first = leader(plane)
        plane.kill(first)
        start = time.monotonic()
        plane.until("takeover", lambda: leader(plane) not in ("", first))
        # tests/sim/test_sim_election.py holds the ten seconds exactly, in virtual time
        assert time.monotonic() - start < 20, "slower than ten seconds and a slow machine's margin"
        assert bind_all(plane, client, 50, "kill") == before
        bind_all(plane, client, 20, "after")
        plane.restart(first)
        plane.until("seventy live, none twice", lambda: live(client) == 70)


def test_a_killed_gateway_comes_back_with_the_same_view(plane: Plane) -> None:
    """Kill -9 of the gateway: its view is built again from records, log and agents."""
    with plane.client() as client:
        ids = bind_all(plane, client, 10, "view")
    plane.kill("gateway")
    plane.restart("gateway")
    with plane.client() as client:
        plane.until("gateway", lambda: client.get("/readyz").status_code == 200)

        def seen() -> bool:
            listed = client.get("/v1/projects/lab/sandboxes?state=running").json()["items"]
            return {one["identity"]["id"] for one in listed} >= set(ids)

        plane.until("view", seen)


def test_purge_ends_what_no_experiment_owns(plane: Plane) -> None:
    """Last, for it deletes the tenant: the guard has a kubeconfig, and the controller ends all."""
    with plane.client() as client:
        ids = bind_all(plane, client, 10, "purge")
        made = client.post("/v1/projects/lab/experiments", content=DOCUMENT)
        assert made.status_code == 201, made.text
        text = plane.apiserver.kubeconfig.read_text()
        remarks = " ".join(check(KubernetesCluster(text), Deletion.PURGE, "dsec.other"))
        assert "Purge ends sandboxes without an experiment: " in remarks
        # other tests of this API server may have left experiments of their own
        assert re.search(r"Purge deletes \d+ experiments: [^.]*\blab/pair\b", remarks)
        assert "Nobody" not in remarks
        left = plane.apiserver.kubectl("get", "experiments,tenants", "-A", "-o", "name").stdout
        assert left == ""
        plane.until("none live", lambda: live(client) == 0)
        for sandbox_id in ids:
            path = f"/v1/projects/lab/sandboxes/{sandbox_id}"
            plane.until("the end", lambda path=path: client.get(path).json()["end"])
            end = client.get(path).json()["end"]
            assert end["reason"] == "stopped"
            assert "are ended by purge" in end["message"]
            assert end["archive"] == f"artifacts/lab/-/{sandbox_id}/"
