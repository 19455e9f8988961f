"""Fixtures that more than one tier uses."""

from collections.abc import Iterator

import pytest
from cluster import ApiServer, ToolsMissingError
from hypothesis import HealthCheck, settings

# a machine that builds and tests at once is slow now and then; that is no failure of an example
settings.register_profile("dsec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dsec")


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Return a real API server without nodes; skips where the tool chain is not built."""
    try:
        server = ApiServer.start(tmp_path_factory.mktemp("apiserver"))
    except ToolsMissingError as error:
        pytest.skip(str(error))
    yield server
    server.stop()
