"""One control plane for all chaos tests: two controllers, a gateway, simulated and real nodes."""

import os
from collections.abc import Iterator

import pytest
from chaos_world import Real, base_image, client_of
from cluster import ApiServer
from control_plane import Plane, control_plane
from dsec.local import cleanup
from dsec.local.cleanup import Footprint
from dsec.local.initbin import ensure_init
from ports import free_ports

SIMULATED = 12
"""Nodes with room for the 5,000 of the soak."""
OVERCOMMIT = 2.0
"""On two cores 16 programs of a quarter core at once, and 200 of a fiftieth."""


@pytest.fixture(scope="session")
def plane(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Run it; every test leaves all of it running."""
    with control_plane(apiserver, tmp_path_factory.mktemp("chaos")) as running:
        running.simulate(running.join_tokens(SIMULATED))
        yield running


@pytest.fixture(scope="session")
def real(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Add a node with real containers; nothing of it may be left at the end."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    directory = tmp_path_factory.mktemp("agent")
    cgroup = f"/dsec-chaos-{os.getpid()}"
    token = directory / "token"
    token.write_text(plane.join_tokens(1)[0])
    node = Real("real", base_image(), Footprint(directory, (cgroup,)))
    plane.start(
        "agent",
        [
            *("dsec.agent", "--state-dir", str(directory), "--node-name", node.name),
            *("--gateway", plane.server, "--ca", str(plane.ca), "--token-file", str(token)),
            *("--cgroup", cgroup, "--cpu-overcommit", str(OVERCOMMIT), "--local-roots"),
            # as on a real node: a restarted agent is where it was
            *("--listen", f"127.0.0.1:{free_ports(1)[0]}"),
        ],
        {"DSEC_INIT": str(ensure_init())},
    )
    with client_of(plane) as client:
        plane.until("the real node", lambda: node.answers(client))
    yield node
    plane.kill("agent")
    del plane.processes["agent"]
    assert cleanup.remove(node.footprint).total() == 0
