"""Fixtures and settings that more than one tier uses."""

import gc
from collections.abc import Iterator

import pytest
import structlog
from cluster import ApiServer, ToolsMissingError
from hypothesis import HealthCheck, settings

# a machine that builds and tests at once is slow now and then; that is no failure of an example
settings.register_profile(
    "dsec", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25
)
settings.register_profile("soak", settings.get_profile("dsec"), max_examples=1000)
settings.load_profile("dsec")

# a traceback in colours, with all local variables, takes longer than the test that provokes it
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over modules and collected tests: they all stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Return a real API server without nodes; skips where the tool chain is not built."""
    try:
        server = ApiServer.start(tmp_path_factory.mktemp("apiserver"))
    except ToolsMissingError as error:
        pytest.skip(str(error))
    yield server
    server.stop()
