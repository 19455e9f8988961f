"""The offline language host's decisions: interpreters, commands, outcomes, tracebacks."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "langhost"))

from dsec_langhost import host, packages, program
from dsec_langhost.interpreter import Interpreter, OptionError, resolve


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a project whose program is in `stacks`."""
    (tmp_path / "stacks").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("options", "lock", "toolchain", "virtualenv"),
    [
        ({}, False, "pip", None),
        ({"virtualenv": "env"}, False, "pip", "env"),
        ({}, True, "uv", ".venv"),
        ({"toolchain": "pip"}, True, "pip", None),
        ({"toolchain": "uv"}, True, "uv", ".venv"),
        ({"toolchain": "uv", "virtualenv": "env"}, True, "uv", "env"),
        ({"toolchain": "uv"}, False, "uv", "stacks/.venv"),
    ],
)
def test_interpreter_of_options(
    project: Path,
    options: dict[str, object],
    lock: bool,
    toolchain: str,
    virtualenv: str | None,
) -> None:
    """The options, and a uv.lock above the program, decide the interpreter."""
    if lock:
        (project / "uv.lock").touch()
    found = resolve(options, project, project / "stacks", {})
    assert found.toolchain == toolchain
    if virtualenv is None:
        assert (found.virtualenv, found.python) == (None, "python3")
    else:
        assert found.virtualenv == project / virtualenv
        assert found.python == str(project / virtualenv / "bin" / "python")


def test_interpreter_from_the_environment(project: Path) -> None:
    """PULUMI_PYTHON_CMD and UV_PROJECT_ENVIRONMENT are followed; an option is stronger."""
    variables = {"PULUMI_PYTHON_CMD": "/opt/python", "UV_PROJECT_ENVIRONMENT": "other"}
    assert resolve({}, project, project, variables).python == "/opt/python"
    assert resolve({"virtualenv": "env"}, project, project, variables).python.endswith(
        "env/bin/python"
    )
    assert resolve({"toolchain": "uv"}, project, project, variables).virtualenv == project / "other"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"toolchain": "poetry"}, "runtime.options.toolchain is 'poetry'.*uv, pip"),
        ({"typechecker": "pyre"}, "runtime.options.typechecker is 'pyre'; allowed: mypy, pyright"),
        ({"virtualenv": 3.0}, "runtime.options.virtualenv must be a path"),
    ],
)
def test_wrong_options(project: Path, options: dict[str, object], words: str) -> None:
    """The message has field, value and what is allowed."""
    with pytest.raises(OptionError, match=words):
        resolve(options, project, project, {})


def test_missing_interpreter_says_how_to_get_it(project: Path) -> None:
    """A virtual environment that is not there yet is made by `pulumi install`."""
    with pytest.raises(OptionError, match="pulumi install"):
        resolve({"virtualenv": "env"}, project, project, {}).check()
    with pytest.raises(OptionError, match="PULUMI_PYTHON_CMD"):
        Interpreter("pip", None, "no-such-python").check()


def test_activation() -> None:
    """PATH begins with the environment; PYTHONHOME goes."""
    active = Interpreter("uv", Path("/e"), "/e/bin/python").activate(
        {"PATH": "/bin", "PYTHONHOME": "/x", "KEEP": "1"}
    )
    assert active == {"PATH": "/e/bin:/bin", "VIRTUAL_ENV": "/e", "KEEP": "1"}
    plain = {"PATH": "/bin", "VIRTUAL_ENV": "/outer"}
    assert Interpreter("pip", None, "python3").activate(plain) == plain


def test_plugin_commands(tmp_path: Path) -> None:
    """A pack, a folder and a distribution are started differently."""
    folder = str(tmp_path)
    assert host.plugin_command("analyzer", tmp_path, ".", ["127.0.0.1:1"]) == [
        "-u",
        "-m",
        "pulumi.policy",
        "127.0.0.1:1",
        folder,
    ]
    assert host.plugin_command("resource", tmp_path, ".", ["a"]) == ["-u", folder, "a"]
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "my-parts"\n')
    assert host.plugin_command("resource", tmp_path, ".", ["a"]) == ["-u", folder, "a"]
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "my-parts"\n[build-system]\nrequires = []\n'
    )
    assert host.plugin_command("resource", tmp_path, ".", ["a"]) == [
        "-u",
        "-m",
        "pulumi.run.plugin",
        "my-parts",
        "a",
    ]


def test_install_steps(tmp_path: Path) -> None:
    """A project is synced; requirements go into a new environment; else nothing is done."""
    uv = Interpreter("uv", tmp_path / "env", str(tmp_path / "env/bin/python"))
    pip = Interpreter("pip", tmp_path / "env", str(tmp_path / "env/bin/python"))
    bare = Interpreter("pip", None, "python3")
    assert host.install_steps(bare, tmp_path, plugin=False) == []
    assert [step[:3] for step in host.install_steps(pip, tmp_path, plugin=False)] == [
        [sys.executable, "-m", "venv"]
    ]
    (tmp_path / "requirements.txt").touch()
    assert [step[0:3] for step in host.install_steps(uv, tmp_path, plugin=False)] == [
        ["uv", "venv", "--allow-existing"],
        ["uv", "pip", "install"],
    ]
    assert len(host.install_steps(pip, tmp_path, plugin=False)) == 2
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[build-system]\n')
    assert host.install_steps(uv, tmp_path, plugin=False) == [["uv", "sync", "--inexact"]]
    assert "--editable" in host.install_steps(bare, tmp_path, plugin=True)[-1]


def test_typechecker_runs_first(tmp_path: Path) -> None:
    """Its complaint is the result; without complaint, or without the option, nothing is said."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\nexit 1\n')
    python.chmod(0o755)
    checked = Interpreter("pip", None, str(python), "mypy")
    text = host.typecheck(checked, tmp_path, {})
    assert text == f"mypy found errors:\n-m mypy {tmp_path}"
    python.write_text("#!/bin/sh\nexit 0\n")
    assert host.typecheck(checked, tmp_path, {}) == ""
    assert host.typecheck(Interpreter("pip", None, "/nonexistent"), tmp_path, {}) == ""


@pytest.mark.parametrize(
    ("code", "error", "bail"),
    [
        (0, "", False),
        (32, "", True),
        (130, "", True),
        (33, "pulumi install", False),
        (3, "exit code 3", False),
        (-9, "signal 9", False),
    ],
)
def test_outcome_of_exit_codes(code: int, error: str, bail: bool) -> None:
    """Only failures that nobody reported yet become an error text."""
    text, bailed = host.outcome(code, "python")
    assert (error in text, bool(text), bailed) == (True, bool(error), bail)


def test_obtainable_plugins(tmp_path: Path) -> None:
    """Offline, a package that is installed but has no plugin here is not asked for."""
    offline = {
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
    }
    assert host.obtainable("aws", {"PATH": ""})
    assert not host.obtainable("aws", offline)
    (tmp_path / ".pulumi" / "plugins" / "resource-aws-v7.0.0").mkdir(parents=True)
    assert host.obtainable("aws", offline)
    (tmp_path / "pulumi-resource-kubernetes").touch(mode=0o755)
    assert host.obtainable("kubernetes", offline)


def test_installed_plugins_are_found(tmp_path: Path) -> None:
    """A pulumi-plugin.json counts unless it denies a resource; its gaps are filled."""
    for name, text in {
        "pulumi_one": '{"resource": true}',
        "pulumi_two": '{"resource": true, "name": "second", "version": "2.0.0", "server": "s"}',
        "pulumi_policy": '{"resource": false}',
        "pulumi_broken": "{",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "pulumi-plugin.json").write_text(text)
    found = packages.plugins([str(tmp_path)], {"pulumi-one": "1.5.0"})
    assert [(entry["name"], entry["version"]) for entry in found] == [
        ("one", "1.5.0"),
        ("second", "2.0.0"),
    ]


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("Foo_Bar>=1.0", "foo-bar"),
        ("x[extra]; python_version < '4'", "x"),
        ("docs; extra == 'docs'", None),
    ],
)
def test_requirement_names(requirement: str, name: str | None) -> None:
    """Optional extras do not make a distribution indirect."""
    assert packages.requirement_name(requirement) == name


def test_dependencies_of_this_interpreter() -> None:
    """The SDK's own requirements are indirect."""
    direct = {entry["name"]: entry["direct"] for entry in packages.dependencies()}
    assert direct["grpcio"] is False


def test_traceback_starts_in_the_program(tmp_path: Path) -> None:
    """Frames of the host and the SDK before the program's first are not shown."""
    file = tmp_path / "__main__.py"
    file.write_text("def deep():\n    return {}['missing']\ndeep()\n")
    try:
        exec(compile(file.read_text(), str(file), "exec"), {})  # noqa: S102 - as a program runs
    except KeyError as error:
        text = program.user_traceback(error, tmp_path)
    assert "test_langhost.py" not in text
    assert text.count(str(file)) == 2
    assert text.endswith("KeyError: 'missing'")
    assert program.user_traceback(ValueError("x"), tmp_path) == "ValueError: x"


def test_program_file(tmp_path: Path) -> None:
    """A folder means its __main__.py; a missing file is named."""
    with pytest.raises(FileNotFoundError, match=r"no __main__\.py"):
        program.entry_file(tmp_path)
    (tmp_path / "__main__.py").touch()
    assert program.entry_file(tmp_path) == tmp_path / "__main__.py"
    assert program.entry_file(tmp_path / "__main__.py") == tmp_path / "__main__.py"
