"""Interpreters, `pulumi install` and what a program has installed, without any network."""

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from langhost_project import Project

pytestmark = pytest.mark.pulumi

Make = Callable[[dict[str, str]], Project]


def make_wheel(folder: Path) -> str:
    """Write a distribution `smallthing` 1.2.3 with a plugin description; return its file name."""
    name = "smallthing-1.2.3-py3-none-any.whl"
    info = "smallthing-1.2.3.dist-info"
    files = {
        "smallthing/__init__.py": "WORD = 'from the wheel'\n",
        "smallthing/pulumi-plugin.json": json.dumps(
            {"resource": True, "name": "smallthing", "version": "1.2.3"}
        ),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: smallthing\nVersion: 1.2.3\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name


@pytest.mark.parametrize("toolchain", ["uv", "pip"])
def test_install_makes_the_environment_of_the_options(project: Make, toolchain: str) -> None:
    """`pulumi install` creates the virtual environment and installs what the program requires."""
    trial = project(
        {
            "Pulumi.yaml": f"""
                name: trial
                runtime:
                  name: python
                  options:
                    toolchain: {toolchain}
                    virtualenv: env
                """,
            "__main__.py": "import smallthing\nprint(smallthing.WORD)\n",
        }
    )
    wheel = make_wheel(trial.folder)
    trial.write({"requirements.txt": f"./{wheel}\n"})
    installed = trial.pulumi("install")
    assert (trial.folder / "env" / "bin" / "python").exists()
    assert "smallthing" in installed.stdout + installed.stderr

    # without network the environment has no SDK of its own: lend it the one of the tests
    (site,) = (trial.folder / "env" / "lib").glob("python*/site-packages")
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "outside.pth").write_text(f"{here}\n")
    assert "from the wheel" in trial.up()
    about = json.loads(trial.pulumi("about", "--json").stdout)
    assert {"name": "smallthing", "version": "1.2.3"} in about["dependencies"]
    assert about["runtime"]["executable"].startswith(str(trial.folder))


def test_failing_install_reports_the_tool_and_its_words(project: Make) -> None:
    """A requirement that cannot be had ends the command with the installer's own message."""
    trial = project({"requirements.txt": "./does-not-exist-1.0-py3-none-any.whl\n"})
    trial.write({"__main__.py": ""})
    trial.write(
        {
            "Pulumi.yaml": """
                name: trial
                runtime:
                  name: python
                  options: {toolchain: uv, virtualenv: env}
                """
        }
    )
    done = trial.pulumi("install", code=None)
    text = done.stdout + done.stderr
    assert done.returncode > 0
    assert "does-not-exist" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{toolchain: pip, virtualenv: env}", ["virtual environment", "pulumi install"]),
        ("{toolchain: conda}", ["runtime.options.toolchain is 'conda'", "uv, pip"]),
    ],
    ids=["no environment yet", "no such toolchain"],
)
def test_a_program_that_cannot_run_says_what_to_change(
    project: Make, options: str, words: list[str]
) -> None:
    """A missing environment says how to make it; a wrong option names field, value, allowed."""
    runtime = f"{{name: python, options: {options}}}"
    trial = project({"__main__.py": "", "Pulumi.yaml": f"name: trial\nruntime: {runtime}\n"})
    text = trial.up(code=None)
    assert all(word in text for word in words)
    assert "Traceback" not in text
