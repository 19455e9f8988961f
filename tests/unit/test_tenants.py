"""The specs of tenants that placement reads at each round."""

from types import SimpleNamespace
from typing import Any

from dsec.controllers.tenants import Tenants
from structlog.testing import capture_logs

UNUSED: Any = None


def tenant(name: str, projects: object) -> dict[str, Any]:
    """Return a record."""
    return {"metadata": {"name": name}, "spec": {"projects": projects}}


def test_an_invalid_tenant_is_said_once_and_stops_no_other() -> None:
    """Again when something else is wrong with it, or after it was right."""
    records: list[dict[str, Any]] = []
    cache: Any = SimpleNamespace(all=lambda: records)
    tenants = Tenants(UNUSED, cache, *[UNUSED] * 7)
    with capture_logs() as said:
        for projects in (5, 5, "no list", ["p"], 5, 5):
            records[:] = [tenant("bad", projects), tenant("good", ["q"])]
            assert "good" in tenants.specs()
            assert ("bad" in tenants.specs()) is (projects == ["p"])
    assert [(one["event"], one["tenant"]) for one in said] == [("tenant is invalid", "bad")] * 3
