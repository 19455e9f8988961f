"""`dsec sim nodes`: the commands, their output and the process behind them."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from dsec.cli.main import run
from test_agent_tls import Authority, Served, authority, served

__all__ = ["authority", "served"]  # fixtures


@dataclass
class Answer:
    """What a command gave."""

    code: int
    out: str
    err: str


@dataclass
class Shell:
    """Runs dsec commands in this process, with a context and a state directory of their own."""

    patch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    async def dsec(self, *words: str) -> Answer:
        """Run one command to its end, beside the gateway of this loop."""
        self.capsys.readouterr()
        code = await asyncio.to_thread(run, list(words))
        seen = self.capsys.readouterr()
        return Answer(code, seen.out, seen.err)


@pytest.fixture
def shell(
    served: Served,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    """One user whose server is the fake gateway."""
    for name, value in {
        "DSEC_SERVER": served.url,
        "DSEC_API_KEY": "key",
        "DSEC_CA_FILE": str(authority.path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }.items():
        monkeypatch.setenv(name, value)
    return Shell(monkeypatch, capsys)


async def test_add_list_remove(shell: Shell, served: Served, tmp_path: Path) -> None:
    """Nodes are added in two steps, numbered on, listed, and removed with their process."""
    added = await shell.dsec("sim", "nodes", "add", "--profile", "cpu", "--count", "2")
    assert added.code == 0, added.err
    assert "2 nodes added; 2 in all" in added.err
    assert "sim-cpu-001" in added.out
    try:
        more = await shell.dsec(
            *("sim", "nodes", "add", "--profile", "8xa100", "--region", "north", "-o", "json")
        )
        assert more.code == 0, more.err
        names = {item["name"] for item in json.loads(more.out)["items"]}
        assert names == {"sim-cpu-000", "sim-cpu-001", "sim-8xa100-000"}
        told = {one.name: one for one in served.gateway.registrations}
        assert told["sim-8xa100-000"].labels == {
            "gpu-type": "a100",
            "region": "north",
            "simulated": "true",
        }
        assert {"Bearer token-0", "Bearer token-1"} <= set(served.gateway.tokens)
        listed = await shell.dsec("sim", "nodes", "list", "-o", "json")
        assert all(item["registered"] for item in json.loads(listed.out)["items"])
        wrong = await shell.dsec("sim", "nodes", "remove", "sim-cpu-9")
        assert (wrong.code, "no such node: sim-cpu-9" in wrong.err) == (2, True)
        fewer = await shell.dsec("sim", "nodes", "remove", "--profile", "cpu", "--count", "1")
        assert (fewer.code, "1 nodes removed; 2 left" in fewer.err) == (0, True)
        assert served.gateway.forgotten == ["sim-cpu-001"], "its record goes, too"
    finally:
        gone = await shell.dsec("sim", "nodes", "remove", "--all")
    assert "0 left" in gone.err
    assert sorted(served.gateway.forgotten[1:]) == ["sim-8xa100-000", "sim-cpu-000"]
    assert not list((tmp_path / "state").rglob("parts/*.json"))


async def test_two_adds_at_once_lose_no_node(shell: Shell, served: Served) -> None:
    """Each reads and writes the plan alone, so no number is given twice."""
    command = ["sim", "nodes", "add", "--count", "2"]
    try:
        codes = await asyncio.gather(*(asyncio.to_thread(run, command) for _ in range(3)))
        assert codes == [0, 0, 0]
        listed = await shell.dsec("sim", "nodes", "list", "-o", "json")
        names = [item["name"] for item in json.loads(listed.out)["items"]]
        assert names == [f"sim-cpu-{number:03d}" for number in range(6)]
        assert {one.name for one in served.gateway.registrations} == set(names)
    finally:
        await shell.dsec("sim", "nodes", "remove", "--all")


async def test_what_is_missing_is_said(shell: Shell) -> None:
    """No server, a server without TLS and an unknown profile are sentences with exit code 2."""
    unknown = await shell.dsec("sim", "nodes", "add", "--profile", "quantum")
    assert (unknown.code, "allowed: 8xa100, cpu" in unknown.err) == (2, True)
    shell.patch.setenv("DSEC_SERVER", "http://127.0.0.1:1")
    plain = await shell.dsec("sim", "nodes", "add")
    assert (plain.code, "https://" in plain.err) == (2, True)
    shell.patch.setenv("DSEC_SERVER", "")
    nowhere = await shell.dsec("sim", "nodes", "add")
    assert (nowhere.code, "no server" in nowhere.err) == (2, True)
    assert "Traceback" not in unknown.err + plain.err + nowhere.err
