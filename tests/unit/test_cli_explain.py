"""`dsec explain`: a decision of the server in words, and a dump replayed without one."""

import json
from pathlib import Path

import pytest
from client_fake import FakeGateway, sandbox_id, status_of
from dsec.api.decisions import LedgerFigure, SandboxDecision
from dsec.api.sandbox import SandboxState
from dsec.cli import codes
from dsec.cli.explain import quota_text
from dsec.placement.dumps import DecisionDump, dump
from dsec.placement.engine import place
from placement_make import gpu, many, node, request, view
from test_cli import Cli, cli, gateway, server  # noqa: F401  fixtures
from test_decisions import RECORD


@pytest.fixture
def taken() -> DecisionDump:
    """A dump: two nodes, one of them used; a burst, a GPU that is not there."""
    seen = view(node("a", 4), node("b", 4))
    place(seen, [request("old", cores=2)])
    wanted = [*many(5, cores=1), gpu("trainer")]
    found = dump(seen, wanted, at=RECORD.at)
    found.decisions = place(seen, wanted)
    return found


def test_a_sandbox_is_explained_in_words(cli: Cli, gateway: FakeGateway) -> None:  # noqa: F811
    """Where, how many alike, the score, who did not do and why, the inputs."""
    known = sandbox_id(1)
    gateway.decisions[known] = SandboxDecision(
        sandbox=known, at=RECORD.at, node="n1", devices=["gpu-0"], message="", record=RECORD
    )
    code, out, _ = cli("explain", known)
    assert code == codes.EXIT_OK
    assert f"sandbox {known} is on n1 with gpu-0, decided 2026-01-01" in out
    assert "class       1 of 2 that asked for this placed: n1 1" in out
    assert "score       stranding 0.5; 0.5 in all" in out
    assert "not         3 nodes: " in out
    code, out, _ = cli("explain", known, "--output", "json")
    assert json.loads(out)["record"]["rejected"][0]["dimension"] == "cpu"
    assert cli("explain", sandbox_id(2))[0] == codes.EXIT_NOT_FOUND


def test_neither_a_file_nor_an_id_is_told_what_both_look_like(cli: Cli) -> None:  # noqa: F811
    """A name of an experiment, say."""
    code, _, err = cli("explain", "WRONG")
    assert code == codes.EXIT_USAGE
    assert "WRONG: No such file" in err
    assert "or a sandbox id, which begins with sb-" in err


def test_a_dump_is_replayed_offline(cli: Cli, taken: DecisionDump, tmp_path: Path) -> None:  # noqa: F811
    """The same comes out; the words say why this node and why none."""
    file = tmp_path / "dump.json"
    file.write_text(taken.model_dump_json())
    code, out, _ = cli("explain", str(file))
    assert code == codes.EXIT_OK, out
    assert "the replay of 6 requests on 2 nodes gives the same decision" in out
    assert "5 of 5 that asked for this placed" in out
    assert "GPUs: asked 1, free at most 0" in out
    assert "asked       1 core, 1Gi memory, 1 GPU (whole)" in out
    code, out, _ = cli("explain", str(file), "--output", "json")
    assert json.loads(out)["same"] is True


def test_the_description_of_a_waiting_sandbox_says_why(
    cli: Cli,  # noqa: F811
    gateway: FakeGateway,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the sentence of its newest decision; before that, that it is being placed."""
    waits = status_of(3, None)
    waits.state, waits.node = SandboxState.PENDING, ""
    monkeypatch.setattr("dsec.client.Client.sandbox", lambda *_: waits)
    assert "waits       it is being placed" in cli("describe", "sandbox", sandbox_id(3))[1]
    gateway.decisions[sandbox_id(3)] = SandboxDecision(
        sandbox=sandbox_id(3), at=RECORD.at, message="memory: asked 32 GB"
    )
    assert "waits       memory: asked 32 GB" in cli("describe", "sandbox", sandbox_id(3))[1]


def test_quotas_are_told_in_their_units() -> None:
    """As in the words of a refusal."""
    figure = LedgerFigure(account="lab", dimension="gpu_milli", asked=500, used=0, ceiling=2000)
    assert quota_text(figure) == "lab: GPUs: 0.5 asked, 0 used, 2 at most"
    figure = LedgerFigure(account="lab", dimension="cpu_milli", asked=1000, used=0, nominal=2000)
    assert quota_text(figure) == "lab: CPU: 1 core asked, 0 cores used, 2 cores owned"


def test_a_dump_is_taken_of_the_server(
    cli: Cli,  # noqa: F811
    gateway: FakeGateway,  # noqa: F811
    taken: DecisionDump,
    tmp_path: Path,
) -> None:
    """And kept in the file, to be sent to somebody else."""
    gateway.dump = taken.model_dump_json().encode()
    file = tmp_path / "dump.json"
    code, out, _ = cli("explain", str(file), "--take")
    assert code == codes.EXIT_OK
    assert "gives the same decision" in out
    assert file.read_bytes() == gateway.dump


def test_another_decision_is_a_failure(cli: Cli, taken: DecisionDump, tmp_path: Path) -> None:  # noqa: F811
    """Exit code 1, and which request went elsewhere."""
    taken.decisions[0] = taken.decisions[-1].__class__(taken.decisions[0].id, "elsewhere")
    file = tmp_path / "dump.json"
    file.write_text(taken.model_dump_json())
    code, out, _ = cli("explain", str(file))
    assert code == codes.EXIT_FAILED
    assert "DIFFERENT   s0: dumped elsewhere, replayed " in out


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "Invalid JSON"), ("{}", "at: Field required"), ('{"version": 9}', "Field required")],
)
def test_a_file_that_is_no_dump_is_refused_in_words(
    cli: Cli,  # noqa: F811
    text: str,
    words: str,
    tmp_path: Path,
) -> None:
    """And so is one that is not there."""
    file = tmp_path / "dump.json"
    file.write_text(text)
    code, out, err = cli("explain", str(file))
    assert (code, out) == (codes.EXIT_USAGE, "")
    assert words in err
    assert cli("explain", str(tmp_path / "none"))[0] == codes.EXIT_USAGE
