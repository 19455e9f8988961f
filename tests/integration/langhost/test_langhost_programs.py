"""Programs on the offline host: results, configuration, secrets, failures and interrupts."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from langhost_project import PACK, Project

pytestmark = pytest.mark.pulumi

Make = Callable[[dict[str, str]], Project]


def test_outputs_config_secrets_and_no_changes(project: Make) -> None:
    """Outputs are recorded, secrets stay secret, preview knows it is one, a second up is quiet."""
    trial = project(
        {
            "__main__.py": """
                import helper
                import pulumi
                config = pulumi.Config()
                pulumi.export("name", config.require("name"))
                pulumi.export("password", config.require_secret("password"))
                pulumi.export("password_is_secret", pulumi.Output.from_input(
                    config.require_secret("password")).is_secret())
                pulumi.export("where", [pulumi.get_project(), pulumi.get_stack(),
                    pulumi.get_organization()])
                print(f"printed, preview={pulumi.runtime.is_dry_run()}, {helper.ANSWER}")
                """,
            "helper.py": "ANSWER = 42\n",
        }
    )
    settings = ("--plaintext", "name=walker", "--secret", "password=open-sesame")
    trial.pulumi("config", "set-all", *settings)

    preview = trial.pulumi("preview").stdout
    assert "printed, preview=True, 42" in preview
    assert "open-sesame" not in preview

    text = trial.up()
    assert "printed, preview=False, 42" in text
    assert "open-sesame" not in text
    assert "warning" not in text.lower(), text
    outputs = json.loads(trial.pulumi("stack", "output", "--json").stdout)
    assert outputs == {
        "name": "walker",
        "password": "[secret]",
        "password_is_secret": True,
        "where": ["trial", "dev", "organization"],
    }
    shown = trial.pulumi("stack", "output", "--json", "--show-secrets").stdout
    assert "open-sesame" in shown
    assert "open-sesame" not in (trial.folder / "Pulumi.dev.yaml").read_text()
    trial.up("--expect-no-changes")


@pytest.mark.parametrize(
    ("body", "said", "not_said"),
    [
        pytest.param(
            "def deep():\n    raise ValueError('too tall')\ndeep()\n",
            ["Program failed with an unhandled exception", "in deep", "ValueError: too tall"],
            ["runpy", "run_in_stack", "program.py", "unhandled error"],
            id="exception",
        ),
        pytest.param(
            "import pulumi\n"
            "pulumi.export('x', pulumi.Output.from_input(1).apply(lambda n: n / 0))\n",
            ["ZeroDivisionError", "<lambda>"],
            ["run_in_stack", "Task exception was never retrieved"],
            id="exception-in-apply",
        ),
        pytest.param(
            "import pulumi\nraise pulumi.RunError('the quota must be positive')\n",
            ["error: the quota must be positive"],
            ["Traceback"],
            id="run-error",
        ),
        pytest.param("import sys\nsys.exit(3)\n", ["exit code 3"], ["Traceback"], id="exit-code"),
    ],
)
def test_failing_program(project: Make, body: str, said: list[str], not_said: list[str]) -> None:
    """A failure is reported once, in the engine's words, without frames that are not the user's."""
    trial = project({"__main__.py": body})
    done = trial.pulumi("up", "--yes", "--skip-preview", code=None)
    text = done.stdout + done.stderr
    assert done.returncode > 0
    for words in said:
        assert words in text
    for words in not_said:
        assert words not in text, text
    # the display also shows a message while it runs; the summary has it once
    assert text.partition("Diagnostics:")[2].count("Traceback (most recent call last)") <= 1


def test_program_folder_without_main(project: Make) -> None:
    """The message names the file that is missing and where."""
    trial = project({"other.py": ""})
    text = trial.up(code=None)
    assert "the program folder has no __main__.py" in text
    assert "Traceback" not in text


def children_of(text: str) -> list[int]:
    """Return the processes whose command line has `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
                cwd = str((entry / "cwd").readlink())
            except OSError:
                continue
            if text in cwd or text.encode() in line:
                found.append(int(entry.name))
    return found


def wait_for(file: Path) -> None:
    """Return when the file exists; fail after a minute."""
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.05)


def left_after(seconds: float, text: str) -> list[int]:
    """Return the processes that still have `text` in command line or folder after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := children_of(text)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_interrupt_ends_everything_quietly(project: Make, tmp_path: Path) -> None:
    """Ctrl-C ends engine, host, policy pack and program soon; `finally` of the program ran."""
    trial = project(
        {
            "__main__.py": """
                import pathlib, time
                try:
                    pathlib.Path("started").touch()
                    time.sleep(120)
                finally:
                    pathlib.Path("cleaned").touch()
                """,
            **PACK,
        }
    )
    command = ["pulumi", "up", "--yes", "--skip-preview", "--policy-pack", "pack"]
    engine = subprocess.Popen(
        [*command, "--non-interactive", "--color", "never"],
        cwd=trial.folder,
        env=trial.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(trial.folder / "started")
        engine.send_signal(signal.SIGINT)
        text, _ = engine.communicate(timeout=30)
    finally:
        engine.kill()
    assert engine.returncode != 0
    assert "Traceback" not in text, text
    assert "KeyboardInterrupt" not in text, text
    assert (trial.folder / "cleaned").exists()
    assert left_after(30, str(tmp_path)) == []


def test_killed_engine_leaves_nothing(project: Make, tmp_path: Path) -> None:
    """After kill -9 of the engine, host and program notice and end."""
    trial = project(
        {"__main__.py": "import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(120)\n"}
    )
    engine = subprocess.Popen(
        ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive"],
        cwd=trial.folder,
        env=trial.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(trial.folder / "started")
    finally:
        engine.kill()
        engine.wait()
    assert left_after(30, str(tmp_path)) == []
