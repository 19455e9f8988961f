"""Two lanes of integration tests: what the Pulumi engine drives, and what uses the machine itself.

`-n 2 --dist loadgroup` runs them beside each other. Tests of one lane share cgroups, namespaces and
servers and stay in order; between the lanes nothing is shared.
"""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test of this tier its lane."""
    for item in items:
        lane = "engine" if item.get_closest_marker("pulumi") else "machine"
        item.add_marker(pytest.mark.xdist_group(lane))
