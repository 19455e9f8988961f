"""The images as a cluster runs them: there by digest, built once, holding what they must."""

import time
from typing import Any

import httpx2
import pytest
from dsec.local import cluster, images
from dsec.local.cluster_state import ClusterState

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.timeout(600)]


def quiet(step: str, state: str) -> None:
    """Take a progress report and show nothing."""


@pytest.fixture(scope="module")
def references(local_cluster: ClusterState) -> dict[str, str]:
    """Return the images of this very tree in the cluster's registry."""
    return images.ensure_images(local_cluster.registry, images.CLUSTER_IMAGES, quiet)


def test_a_second_build_builds_nothing(
    local_cluster: ClusterState, references: dict[str, str]
) -> None:
    """The same inputs have the same tag, which the registry has; digests stay."""
    again = images.build(local_cluster.registry, images.CLUSTER_IMAGES, quiet)
    assert [image.built for image in again] == [False] * len(images.CLUSTER_IMAGES)
    assert {image.name: image.reference for image in again} == references
    assert all(f"{local_cluster.registry}/dsec/" in r for r in references.values())
    assert all("@sha256:" in reference for reference in references.values())


PROGRAMS = "crun runc skopeo nft ip mkfs.ext4 mkfs.erofs tar dsec-init"

CASES = {
    "runtime": ("dsec version && id -u && touch /opt/dsec/x", "65532"),
    "agent": (f"dsec version; for p in {PROGRAMS}; do command -v $p; done; crun --version", "crun"),
    "prometheus": ("prometheus --version && id -u", "65532"),
    "sandbox-base": ("cat /workspace/README.md && python3 -c 'print(6 * 7)'", "42"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_image_holds_what_it_must(
    local_cluster: ClusterState, references: dict[str, str], name: str
) -> None:
    """Its programs run in a pod; runtime runs as nobody and cannot write to its own code."""
    script, last = CASES[name]
    spec = {
        "restartPolicy": "Never",
        "containers": [
            {"name": "it", "image": references[name], "command": ["sh", "-c", f"({script}) 2>&1"]}
        ],
    }
    with cluster.api(local_cluster) as client:
        output = _run(client, f"image-{name}", spec)
    assert last in output.split()
    if name == "runtime":
        assert "denied" in output
    if name == "agent":
        assert all(f"/{program}\n" in output for program in PROGRAMS.split())
    if name == "sandbox-base":
        assert "Known limits" in output


def _run(client: httpx2.Client, name: str, spec: dict[str, Any]) -> str:
    """Run a pod to its end; return its output."""
    pods = "/api/v1/namespaces/default/pods"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    deadline = time.monotonic() + 180
    # the default account appears a moment after the namespace
    while not client.get("/api/v1/namespaces/default/serviceaccounts/default").is_success:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    client.post(pods, json=pod).raise_for_status()
    try:
        while client.get(f"{pods}/{name}").json()["status"]["phase"] in {"Pending", "Running"}:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        return client.get(f"{pods}/{name}/log").text
    finally:
        client.delete(f"{pods}/{name}", params={"gracePeriodSeconds": 0})
