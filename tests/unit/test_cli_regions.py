"""`dsec snapshot replicate` and `dsec failover`: what they say, and how they end."""

import io
import json
from typing import Any

import pytest
from client_fake import FakeGateway
from dsec.cli import codes
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from test_cli import Cli, Server, cli, gateway, server

__all__ = ["cli", "gateway", "server"]


class Regions(FakeGateway):
    """A gateway with one policy and one experiment of a lost region."""

    def __init__(self) -> None:
        super().__init__()
        self.policy: dict[str, Any] = {
            "name": "daily",
            "spec": {"destinations": [{"region": "b"}]},
            "status": {
                "destinations": [
                    {"region": "b", "behind": 0, "lagSeconds": 0, "recoveryPointSeconds": 300}
                ],
                "conditions": [{"type": "InSync", "status": "True"}],
            },
        }
        self.row: dict[str, Any] = {
            "project": "lab",
            "name": "ppo",
            "tenant": "t",
            "root": "exp/u",
            "fate": "take",
            "epoch": 1,
            "lostSeconds": 7200.0,
            "copies": [{"lineage": "exp/u/w/0", "seq": 3, "ageSeconds": 7200.0}],
            "why": "from 1 snapshots",
        }
        self.calls: list[dict[str, Any]] = []
        self.regions = Starlette(
            routes=[
                Route("/v1/replicationpolicies", self._policies),
                Route(
                    "/v1/replicationpolicies/{name}/replicate", self._replicate, methods=["POST"]
                ),
                Route("/v1/failover", self._failover, methods=["POST"]),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer what is about regions here."""
        path = scope.get("path", "")
        ours = path.startswith(("/v1/replicationpolicies", "/v1/failover"))
        await (self.regions if ours else super().__call__)(scope, receive, send)

    async def _policies(self, _: Request) -> JSONResponse:
        return JSONResponse({"items": [self.policy]})

    async def _replicate(self, request: Request) -> JSONResponse:
        if request.path_params["name"] != "daily":
            body = {"code": "not-found", "message": "replication policy not found"}
            return JSONResponse(body, 404)
        self.policy["status"]["handled"] = "now-1"
        return JSONResponse({"name": "daily", "asked": "now-1"}, 202)

    async def _failover(self, request: Request) -> JSONResponse:
        asked = await request.json()
        self.calls.append(asked)
        names = ["observe"] if asked["rehearse"] else ["observe", "isolate", "recover"]
        row = {**self.row, "made": not asked["rehearse"] and not self.row.get("problem")}
        return JSONResponse(
            {
                "here": "b",
                "lost": asked["lost"],
                "rehearsal": asked["rehearse"],
                "rows": [row],
                "steps": [{"name": name, "seconds": 0.5} for name in names],
                "recoveryPointSeconds": row["lostSeconds"],
            }
        )


@pytest.fixture
def regions(gateway: FakeGateway, server: Server) -> Regions:
    """Put the gateway with regions behind the listener."""
    del gateway  # the environment leads to the listener
    server.fake = fake = Regions()
    return fake


def test_copies_are_shown_and_made_now(cli: Cli, regions: Regions) -> None:
    """A table with lag and recovery point; a named policy runs a cycle and waits for it."""
    code, out, _ = cli("snapshot", "replicate")
    assert code == codes.EXIT_OK
    assert "5 min" in out
    assert "handled" not in regions.policy["status"]
    code, out, _ = cli("snapshot", "replicate", "daily", "--output", "json")
    assert code == codes.EXIT_OK
    assert json.loads(out)["items"][0]["status"]["handled"] == "now-1"
    regions.policy["status"].pop("handled")
    assert cli("snapshot", "replicate", "daily", "--rehearse")[0] == codes.EXIT_OK
    assert "handled" not in regions.policy["status"]
    assert cli("snapshot", "replicate", "other")[0] == codes.EXIT_NOT_FOUND
    assert cli("snapshot", "replicate", "other", "--rehearse")[0] == codes.EXIT_NOT_FOUND


def test_a_copy_that_is_behind_is_a_failure_in_words(cli: Cli, regions: Regions) -> None:
    """Exit code 1, and the condition's sentence on standard error."""
    regions.policy["status"]["conditions"] = [
        {"type": "Protected", "status": "False", "message": "its data may be in a"}
    ]
    code, _, err = cli("snapshot", "replicate")
    assert code == codes.EXIT_FAILED
    assert "daily: Protected: its data may be in a" in err


def test_failover_rehearses_asks_and_tells(cli: Cli, regions: Regions) -> None:
    """The rehearsal changes nothing; the real one needs a yes; lost work is always shown."""
    code, out, err = cli("failover", "a", "--rehearse", "--verify", "-p", "lab")
    assert code == codes.EXIT_OK
    assert "2 h" in out
    assert "a -> b: 1 tasks; rehearsed, nothing was changed; lost: at most 2 h of work" in err
    assert regions.calls[-1] == {
        "lost": "a",
        "projects": ["lab"],
        "rehearse": True,
        "verify": True,
        "why": "",
    }
    assert cli("failover", "a")[0] != codes.EXIT_OK
    assert len(regions.calls) == 1
    code, _, err = cli("failover", "a", "--yes", "--why", "fire")
    assert code == codes.EXIT_OK
    assert "observe 0.5 s, isolate 0.5 s, recover 0.5 s" in err
    assert regions.calls[-1]["why"] == "fire"
    answer = json.loads(cli("failover", "a", "-y", "-o", "json")[1])
    assert answer["rows"][0]["made"]


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ("n\n", codes.EXIT_FAILED, "nothing was changed"),
        ("", codes.EXIT_INTERRUPTED, "interrupted"),
    ],
)
def test_a_failover_without_a_yes_is_no_fault_of_dsec(
    cli: Cli, regions: Regions, monkeypatch: pytest.MonkeyPatch, *, said: str, code: int, words: str
) -> None:
    """A no is a no; nobody there to answer ends it, too. Data alone goes to standard output."""
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    found, out, err = cli("failover", "a", "-o", "json")
    assert (found, out.strip()) == (code, "")
    assert words in err
    assert "fault" not in err
    assert regions.calls == []


def test_what_could_not_be_taken_over_is_a_failure(cli: Cli, regions: Regions) -> None:
    """A row with a problem, or a damaged copy, makes exit code 1."""
    regions.row["problem"] = "an experiment of this name is here already"
    code, out, _ = cli("failover", "a", "--yes")
    assert code == codes.EXIT_FAILED
    assert "is here already" in out
    regions.row["problem"] = ""
    regions.row["copies"][0]["problem"] = "exp/u/w/0@3: damaged"
    code, _, err = cli("failover", "a", "--rehearse")
    assert code == codes.EXIT_FAILED
    assert "ppo: exp/u/w/0@3: damaged" in err
