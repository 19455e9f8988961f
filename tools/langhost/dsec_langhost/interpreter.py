"""Which Python runs a program: the options of Pulumi.yaml become an interpreter.

Same rules as Pulumi documents for `runtime.options`: `toolchain` is `uv` or `pip` (default: uv
where a uv.lock is found upwards, else pip), `virtualenv` is relative to the project's folder.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

TYPECHECKERS = ("mypy", "pyright")


class OptionError(ValueError):
    """An option of Pulumi.yaml, PulumiPlugin.yaml or PulumiPolicy.yaml that cannot be followed."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python of one program."""

    toolchain: Literal["uv", "pip"]
    virtualenv: Path | None
    python: str  # absolute, or a command on PATH
    typechecker: str | None = None

    def activate(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return `environment` as the virtual environment's activation would leave it."""
        active = dict(environment)
        if self.virtualenv is not None:
            path = active.get("PATH", os.defpath)
            active["PATH"] = os.pathsep.join([str(self.virtualenv / "bin"), path])
            active["VIRTUAL_ENV"] = str(self.virtualenv)
            active.pop("PYTHONHOME", None)
        return active

    def check(self) -> None:
        """Raise `OptionError` with the remedy if this Python does not exist."""
        if self.virtualenv is not None and not os.access(self.python, os.X_OK):
            raise OptionError(
                f"the virtual environment {self.virtualenv} does not exist or has no bin/python: "
                "run `pulumi install` to create it"
            )
        if shutil.which(self.python) is None:
            raise OptionError(
                f"no Python found as {self.python!r}: install Python 3, set PULUMI_PYTHON_CMD or "
                "set runtime.options.virtualenv"
            )


def find_upwards(folder: Path, name: str) -> Path | None:
    """Return the nearest folder, `folder` or above, that has a file `name`."""
    for candidate in (folder, *folder.parents):
        if (candidate / name).is_file():
            return candidate
    return None


def resolve(
    options: Mapping[str, object], root: Path, program: Path, environment: Mapping[str, str]
) -> Interpreter:
    """Choose the interpreter; `root` has the project file, `program` the code.

    Raises `OptionError` for a value that is not allowed; does not check that the result exists,
    because `pulumi install` creates it.
    """
    toolchain = options.get("toolchain") or "auto"
    virtualenv = options.get("virtualenv") or ""
    typechecker = options.get("typechecker") or None
    if not isinstance(virtualenv, str):
        raise OptionError(f"runtime.options.virtualenv must be a path, not {virtualenv!r}")
    if typechecker is not None and typechecker not in TYPECHECKERS:
        raise OptionError(
            f"runtime.options.typechecker is {typechecker!r}; allowed: {', '.join(TYPECHECKERS)}"
        )
    if toolchain == "auto":
        toolchain = "uv" if find_upwards(program, "uv.lock") else "pip"
    if toolchain not in {"uv", "pip"}:
        raise OptionError(
            f"runtime.options.toolchain is {toolchain!r}; this language host knows: uv, pip"
        )
    checker = str(typechecker) if typechecker else None
    if toolchain == "uv":
        folder = root / virtualenv if virtualenv else _uv_environment(program, environment)
        return Interpreter("uv", folder, str(folder / "bin" / "python"), checker)
    if virtualenv:
        folder = root / virtualenv
        return Interpreter("pip", folder, str(folder / "bin" / "python"), checker)
    return Interpreter("pip", None, environment.get("PULUMI_PYTHON_CMD") or "python3", checker)


def _uv_environment(program: Path, environment: Mapping[str, str]) -> Path:
    """Return where uv keeps the environment of the project that `program` belongs to."""
    project = find_upwards(program, "uv.lock") or find_upwards(program, "pyproject.toml") or program
    return project / (environment.get("UV_PROJECT_ENVIRONMENT") or ".venv")


def run_dynamic_provider(arguments: list[str]) -> NoReturn:
    """Replace this process by the SDK's server of dynamic providers in the program's Python.

    The engine starts it in the program's folder and passes the options in the environment. A
    relative virtual environment is looked for there and upwards, where the project file is.
    """
    here = Path.cwd()
    options = {
        "toolchain": os.environ.get("PULUMI_RUNTIME_TOOLCHAIN"),
        "virtualenv": os.environ.get("PULUMI_RUNTIME_VIRTUALENV"),
    }
    name = options["virtualenv"] or ""
    root = here
    if name:
        parents = (here, *here.parents)
        root = next((folder for folder in parents if (folder / name).is_dir()), here)
    interpreter = resolve(options, root, here, os.environ)
    interpreter.check()
    python = shutil.which(interpreter.python) or interpreter.python
    command = [python, "-u", "-m", "pulumi.dynamic", *arguments]
    os.execve(python, command, interpreter.activate(os.environ))  # noqa: S606 - that is its purpose
