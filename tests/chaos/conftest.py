"""One control plane for all chaos tests: two controllers, a gateway, twelve simulated nodes."""

from collections.abc import Iterator

import pytest
from cluster import ApiServer
from control_plane import Plane, control_plane

NODES = 12
"""Room for the 5,000 of the soak."""


@pytest.fixture(scope="session")
def plane(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Run it; every test leaves all of it running."""
    with control_plane(apiserver, tmp_path_factory.mktemp("chaos")) as running:
        running.simulate(running.join_tokens(NODES))
        yield running
