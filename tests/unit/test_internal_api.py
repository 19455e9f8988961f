"""The controller's internal API: what is raised while it acts, as answers."""

from types import SimpleNamespace
from typing import Any

import pytest
from dsec.controllers.app import build_app
from dsec.controllers.controller import NotLeadingError
from dsec.controllers.keyed import CallInvalidError
from starlette.testclient import TestClient

END = {"project": "p", "ids": ["sb-1"], "reason": "stopped"}


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (CallInvalidError("project p belongs to no tenant"), 422, "invalid"),
        (NotLeadingError("another leads"), 503, "control-plane"),
        (KeyError("sb-1"), 500, ""),
        (IndexError("list index out of range"), 500, ""),
    ],
)
def test_a_fault_of_ours_is_no_mistake_of_the_caller(
    problem: Exception, status: int, code: str
) -> None:
    """Only what was found wrong with a call is 422; a bug is 500, and the caller may try again."""

    async def end(_: object) -> None:
        raise problem

    calls = ("create", "end", "extend", "move", "lease", "dump")
    controller: Any = SimpleNamespace(**dict.fromkeys(calls, end))
    client = TestClient(build_app(controller, "s"), raise_server_exceptions=False)
    headers = {"Authorization": "Bearer s"}
    answer = client.post("/internal/v1/end", json=END, headers=headers)
    assert answer.status_code == status
    assert not code or answer.json()["code"] == code
