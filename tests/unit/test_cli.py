"""The command line against a gateway on loopback: exit codes, streams, and the JSON contract."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from client_fake import KEY, FakeGateway, sandbox_id
from dsec.api.sandbox import End, Evidence
from dsec.cli import codes
from dsec.cli.main import COMMANDS, run
from syrupy.assertion import SnapshotAssertion

Cli = Callable[..., tuple[int, str, str]]

DOCUMENT = {
    "apiVersion": "dsec.dev/v1alpha1",
    "kind": "Experiment",
    "metadata": {"name": "one"},
    "spec": {"roles": [{"name": "worker", "replicas": 2}]},
}


class Server:
    """One listener on loopback for all tests; each test puts its own fake behind it."""

    def __init__(self) -> None:
        self.fake = FakeGateway()
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(self, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer as the fake of the running test."""
        await self.fake(scope, receive, send)

    def stop(self) -> None:
        """End the listener."""
        self._server.should_exit = True
        self._thread.join(5)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The listener."""
    one = Server()
    yield one
    one.stop()


@pytest.fixture
def gateway(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGateway:
    """A fresh fake behind the listener, and the environment that leads to it."""
    server.fake = FakeGateway()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DSEC_SERVER", server.url)
    monkeypatch.setenv("DSEC_API_KEY", KEY)
    monkeypatch.setattr("dsec.cli.session.PATIENCE", 0.5)
    return server.fake


@pytest.fixture
def cli(gateway: FakeGateway, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run one command line; return exit code, stdout and stderr."""
    del gateway  # it must be there

    def call(*args: str) -> tuple[int, str, str]:
        code = run(list(args))
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """A task document."""
    file = tmp_path / "task.json"
    file.write_text(json.dumps(DOCUMENT))
    return file


def test_submit_then_apply(cli: Cli, document: Path) -> None:
    """The second submit is another experiment; apply shows field by field what it changes."""
    assert "experiment one submitted" in cli("submit", "-f", str(document))[1]
    assert "experiment one-1 submitted" in cli("submit", "-f", str(document))[1]
    code, out, _ = cli("apply", "-f", str(document))
    assert (code, out) == (codes.EXIT_OK, "experiment one applied\n  nothing changed\n")
    edited = {**DOCUMENT, "spec": {"roles": [{"name": "worker", "replicas": 3}]}}
    document.write_text(json.dumps(edited))
    code, out, _ = cli("apply", "-f", str(document), "--dry-run")
    assert out == "experiment one would be applied\n  roles[worker].replicas: 2 -> 3 (live)\n"
    code, out, _ = cli("apply", "-f", str(document), "--output", "json")
    told = {"path": "roles[worker].replicas", "old": 2, "new": 3, "effect": "live"}
    assert (code, json.loads(out)["changes"]) == (codes.EXIT_OK, [told])


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["get", "tasks"], codes.EXIT_OK),
        (["get", "task"], codes.EXIT_USAGE),
        (["get", "tasks", "none"], codes.EXIT_NOT_FOUND),
        (["get", "nodes", "none"], codes.EXIT_NOT_FOUND),
        (["no-such-command"], codes.EXIT_USAGE),
        (["scale", "one"], codes.EXIT_USAGE),
        (["submit", "-f", "/no/such/file"], codes.EXIT_NOT_FOUND),
        (["run", "--count", "2", "--", "true"], codes.EXIT_OK),
        (["run", "--memory", "lots", "--count", "2", "--", "true"], codes.EXIT_USAGE),
        (["run", "-e", "novalue", "--count", "2", "--", "true"], codes.EXIT_USAGE),
        (["exec", "sb", "--", "true"], codes.EXIT_OK),
        (["exec", "sb", "--", "false"], codes.EXIT_FAILED),
        (["extend", "sb", "--for", "30m"], codes.EXIT_OK),
        (["extend", "sb", "--for", "soon"], codes.EXIT_USAGE),
        (["extend", "sb", "--for", "8d"], codes.EXIT_USAGE),
        (["extend", "gone"], codes.EXIT_NOT_FOUND),
        (["wait", "none"], codes.EXIT_NOT_FOUND),
        (["delete", "none"], codes.EXIT_NOT_FOUND),
        (["describe", "task", "none"], codes.EXIT_NOT_FOUND),
        (["describe", "node", "none"], codes.EXIT_NOT_FOUND),
    ],
)
def test_exit_codes(cli: Cli, args: list[str], expected: int) -> None:
    """The table of docs: each kind of outcome has its code and never a traceback."""
    code, out, err = cli(*args)
    assert code == expected
    assert "Traceback" not in out + err
    if expected not in {codes.EXIT_OK, codes.EXIT_FAILED}:
        assert not out
        assert err.strip()


def test_denied_and_unreachable(
    cli: Cli, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 for a wrong key, 5 for silence and for a cut stream."""
    gateway.cut_streams = True
    assert cli("logs", "sb")[0] == codes.EXIT_UNKNOWN
    monkeypatch.setenv("DSEC_API_KEY", "wrong")
    assert cli("get", "tasks")[0] == codes.EXIT_DENIED
    monkeypatch.setenv("DSEC_SERVER", "http://127.0.0.1:1")
    code, _, err = cli("get", "tasks")
    assert code == codes.EXIT_UNKNOWN
    assert "cannot be reached" in err
    monkeypatch.setenv("DSEC_SERVER", "")
    code, _, err = cli("get", "tasks")
    assert code == codes.EXIT_USAGE
    assert "dsec up --standalone" in err


def test_a_fault_is_a_sentence_and_debug_shows_where(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that nobody expected."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("dsec.client.Client.list", broken)
    monkeypatch.delenv("DSEC_DEBUG", raising=False)
    code, _, err = cli("get", "tasks")
    assert code == codes.EXIT_FAULT
    assert "Traceback" not in err
    monkeypatch.setenv("DSEC_DEBUG", "1")
    assert "Traceback" in cli("get", "tasks")[2]


def test_mistakes_of_a_document_are_all_shown(cli: Cli, tmp_path: Path) -> None:
    """One line per mistake, with what is allowed."""
    file = tmp_path / "bad.yaml"
    file.write_text("a: [")
    code, _, err = cli("submit", "-f", str(file))
    assert code == codes.EXIT_USAGE
    assert "allowed: a mapping" in err
    assert "correlation id: c-1" in err


def test_run_maps_lines_and_reports(cli: Cli, gateway: FakeGateway, tmp_path: Path) -> None:
    """The result table has a reason and its evidence; a failure makes the exit code 1."""
    gateway.ends[1] = End(
        reason="oom-killed",
        signal=9,
        evidence=Evidence(oom_kills=2, dropped_bytes=2048),
        stderr="Killed\n",
    )
    file = tmp_path / "items.jsonl"
    file.write_text('{"n": 1}\n\n{"n": 2}\n')
    code, out, err = cli("run", "--map", str(file), "--", "python3", "-c", "print(1)")
    assert code == codes.EXIT_FAILED
    row = next(line for line in out.splitlines() if "oom-killed" in line)
    assert "oom kills 2, signal 9, dropped 2Ki" in row
    assert "1 completed, 1 not" in err
    assert list(gateway.inputs.values()) == [b'{"n": 1}\n{"n": 2}\n']


def test_only_line_feeds_end_a_line_of_a_map(
    cli: Cli, gateway: FakeGateway, tmp_path: Path
) -> None:
    """JSON text may hold U+2028 and U+0085 as they are."""
    file = tmp_path / "items.jsonl"
    lines = ['"a\u2028b"', '"c\u0085d"', '{"n": 3}']
    file.write_bytes("\r\n".join(lines).encode())
    code, _, _ = cli("run", "--map", str(file), "--", "true")
    assert code == codes.EXIT_OK
    assert list(gateway.inputs.values()) == ["".join(f"{one}\n" for one in lines).encode()]


def test_a_bad_line_of_a_map_is_named(cli: Cli, tmp_path: Path) -> None:
    """Before anything is sent."""
    file = tmp_path / "items.jsonl"
    file.write_text("{}\nnot json\n")
    code, _, err = cli("run", "--map", str(file), "--", "true")
    assert code == codes.EXIT_USAGE
    assert "items.jsonl:2" in err


def test_exec_copies_both_streams(cli: Cli) -> None:
    """Stdout on stdout, stderr on stderr, the status in words."""
    code, out, err = cli("exec", "sb", "--", "false")
    assert (code, out) == (codes.EXIT_FAILED, "out\n")
    assert "err\n" in err
    assert "status 3" in err


def test_json_contract(
    cli: Cli, gateway: FakeGateway, document: Path, snapshot: SnapshotAssertion
) -> None:
    """What programs read does not change by accident (docs/cli-json.md)."""
    gateway.nodes = [
        {
            "metadata": {"name": "node-a"},
            "spec": {"pool": "cpu"},
            "status": {
                "inventory": {"cpuMilli": 2000, "memoryBytes": 1 << 30, "devices": []},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    ]
    cli("submit", "-f", str(document))
    shown: dict[str, Any] = {}
    for line in (
        "get tasks",
        "get tasks one",
        "describe task one",
        "get sandboxes",
        "get nodes",
        "get pools",
        "get tenants",
        "get images",
        "results one",
        "run --count 1 -- true",
        "version",
    ):
        verb, *rest = line.split()
        code, out, _ = cli(verb, "--output", "json", *rest)
        assert code == codes.EXIT_OK, line
        shown[line] = json.loads(out)
        if verb != "run":
            assert yaml.safe_load(cli(verb, "--output", "yaml", *rest)[1]) == shown[line]
    run_report = shown["run --count 1 -- true"]
    for measured in ("seconds", "sandboxesPerSecond"):
        assert run_report.pop(measured) > 0
    run_report["items"][0]["identity"]["experiment"] = "run-..."
    assert shown == snapshot


def test_describe_says_it_in_words(cli: Cli, document: Path) -> None:
    """API-15: the headline first, then sections with their names in a column."""
    cli("apply", "-f", str(document))
    code, out, _ = cli("describe", "task", "one")
    assert code == codes.EXIT_OK
    assert out.startswith("one is complete: 2 replicas have ended.")
    assert "\nRoles\n  worker  0 of 2 run, 2 ended completed\n" in out


def test_tables_name_what_they_list(cli: Cli, document: Path) -> None:
    """API-14: each command prints a table with the named object."""
    cli("apply", "-f", str(document))
    assert "one" in cli("get", "tasks")[1]
    assert sandbox_id(0) in cli("get", "sandboxes")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_its_help(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each entry of the table can be imported and has a help text."""
    assert run([name, "--help"]) == codes.EXIT_OK
    assert "Usage" in capfd.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    """The overview and `--version` must not pay for the SDK (start within 300 ms)."""
    script = (
        "import sys\nfrom dsec.cli.main import run\nrun(['--help'])\n"
        "heavy = {'httpx2', 'pydantic', 'kubernetes', 'boto3', 'dsec.client', 'yaml'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_both_programs_are_the_same() -> None:
    """API-13: `dsec` and `dsecctl` are one program."""
    from importlib.metadata import entry_points

    found = {one.name: one.value for one in entry_points(group="console_scripts")}
    assert found["dsec"] == found["dsecctl"] == "dsec.cli.main:main"
