"""The service that the engine calls: each call becomes a process in the program's own Python."""

# ruff: noqa: N802 - the protocol gives the methods their names

import json
import os
import shutil
import subprocess
import sys
import tomllib
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf import json_format
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2, plugin_pb2

from dsec_langhost import children, program
from dsec_langhost.interpreter import Interpreter, OptionError, find_upwards, resolve

_HERE = Path(__file__).parent
# Asking a Python what it has installed reads a few hundred small files.
_PROBE_SECONDS = 60
_NO_CODE_GENERATOR = (
    "generating Python SDKs needs Pulumi's own pulumi-language-python, which this machine does "
    "not have; the offline language host runs programs, policy packs and plugins"
)


def distribution_to_run(folder: Path) -> str | None:
    """Return the name of the distribution in `folder` if it is one that can be built."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return None
    name = project.get("project", {}).get("name")
    return name if isinstance(name, str) and "build-system" in project else None


def plugin_command(kind: str, folder: Path, entry: str, arguments: Sequence[str]) -> list[str]:
    """Return what runs a plugin, after the interpreter's name.

    A policy pack runs under the SDK's policy runner; a plugin that is a distribution runs under
    its plugin runner, which finds the components; any other is a folder with a `__main__.py`.
    """
    target = str(folder / entry) if entry and entry != "." else str(folder)
    if kind == "analyzer":
        return ["-u", "-m", "pulumi.policy", *arguments, target]
    if name := distribution_to_run(folder):
        return ["-u", "-m", "pulumi.run.plugin", name, *arguments]
    return ["-u", target, *arguments]


def install_steps(interpreter: Interpreter, folder: Path, *, plugin: bool) -> list[list[str]]:
    """Return the commands that install a program's dependencies into its interpreter."""
    requirements = folder / "requirements.txt"
    virtualenv = interpreter.virtualenv
    if interpreter.toolchain == "uv":
        if find_upwards(folder, "pyproject.toml"):
            return [["uv", "sync", "--inexact"]]
        steps = [["uv", "venv", "--allow-existing", str(virtualenv)]]
        if requirements.is_file():
            target = ["--python", interpreter.python, "--requirements", str(requirements)]
            steps.append(["uv", "pip", "install", *target])
        return steps
    steps = []
    if virtualenv is not None and not Path(interpreter.python).exists():
        steps.append([sys.executable, "-m", "venv", str(virtualenv)])
    install = [interpreter.python, "-m", "pip", "install"]
    if requirements.is_file():
        steps.append([*install, "--requirement", str(requirements)])
    if plugin and distribution_to_run(folder):
        steps.append([*install, "--editable", str(folder)])
    return steps


def obtainable(name: str, environment: Mapping[str, str]) -> bool:
    """Say whether the engine can have a resource plugin: it may download, or it has it.

    A package may be installed and never be used by a program, so one that cannot be had is left
    for the engine to miss when a resource asks for it.
    """
    if environment.get("PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", "").lower() in {
        "",
        "0",
        "false",
    }:
        return True
    if shutil.which(f"pulumi-resource-{name}", path=environment.get("PATH")):
        return True
    home = environment.get("PULUMI_HOME") or Path(environment.get("HOME") or "~") / ".pulumi"
    return any((Path(home).expanduser() / "plugins").glob(f"resource-{name}-v*"))


def outcome(code: int, python: str) -> tuple[str, bool]:
    """Turn the exit code of a program into what the engine gets: an error text, and bail.

    Bail means that it failed and the engine has been told why already.
    """
    if code in {program.REPORTED, program.INTERRUPTED}:
        return "", True
    if code == program.NO_SDK:
        return f"{python} has no package `pulumi`: run `pulumi install`", False
    if code < 0:
        return f"the program was ended by signal {-code}", False
    return f"the program exited with exit code {code}" if code else "", False


class LanguageHost(LanguageServer):
    """Answers one engine; keeps nothing between calls."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def Handshake(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Agree to work together."""
        del request, context
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return the version of the SDK this host is made of."""
        del request, context
        from importlib.metadata import version

        return plugin_pb2.PluginInfo(version=version("pulumi"))

    def About(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return the Python of the program and how its packages are managed."""
        interpreter = _interpreter(request.info, context)
        report = _probe(interpreter, context)
        return language_pb2.AboutResponse(
            executable=report["executable"],
            version=report["version"],
            metadata={"toolchain": interpreter.toolchain, "host": "dsec, offline"},
        )

    def GetRequiredPackages(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return the resource plugins of the packages that the program has installed."""
        report = _probe(_interpreter(request.info, context), context)
        packages = []
        for entry in report["plugins"]:
            if not obtainable(entry["name"], os.environ):
                continue
            package = plugin_pb2.PackageDependency(
                name=entry["name"],
                kind="resource",
                version=entry.get("version", ""),
                server=entry.get("server", ""),
            )
            if parameters := entry.get("parameterization"):
                package.parameterization.name = parameters["name"]
                package.parameterization.version = parameters["version"]
                package.parameterization.value = b64decode(parameters["value"])
            packages.append(package)
        return language_pb2.GetRequiredPackagesResponse(packages=packages)

    def GetProgramDependencies(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return the distributions of the program's Python."""
        report = _probe(_interpreter(request.info, context), context)
        return language_pb2.GetProgramDependenciesResponse(
            dependencies=[
                language_pb2.DependencyInfo(name=entry["name"], version=entry["version"])
                for entry in report["dependencies"]
                if entry["direct"] or request.transitiveDependencies
            ]
        )

    def RuntimeOptionsPrompts(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Ask nothing in `pulumi new`."""
        del request, context
        return language_pb2.RuntimeOptionsResponse()

    def Run(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Run the program; an error text is for failures that the engine was not told of."""
        try:
            interpreter = _resolve(request.info)
            interpreter.check()
        except OptionError as error:
            return language_pb2.RunResponse(error=str(error))
        if request.attach_debugger:
            return language_pb2.RunResponse(
                error="--attach-debugger is not supported by the offline language host"
            )
        folder = Path(request.info.program_directory)
        environment = interpreter.activate(os.environ)
        if complaint := typecheck(interpreter, folder, environment):
            return language_pb2.RunResponse(error=complaint)
        code = children.run_with_input(
            [interpreter.python, "-u", str(_HERE / "program.py")],
            request.SerializeToString(),
            folder,
            environment,
            context.add_callback,
        )
        error, bail = outcome(code, interpreter.python)
        return language_pb2.RunResponse(error=error, bail=bail)

    def RunPlugin(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """Run a policy pack or another plugin; stream its output, then its exit code."""
        interpreter = _interpreter(request.info, context)
        folder = Path(request.info.program_directory)
        command = plugin_command(request.kind, folder, request.info.entry_point, list(request.args))
        environment = dict(entry.split("=", 1) for entry in request.env if "=" in entry)
        for item in children.stream(
            [interpreter.python, *command],
            Path(request.pwd or folder),
            interpreter.activate(environment or os.environ),
            context.add_callback,
        ):
            if isinstance(item, int):
                yield language_pb2.RunPluginResponse(exitcode=item)
            elif item[0] == "stdout":
                yield language_pb2.RunPluginResponse(stdout=item[1])
            else:
                yield language_pb2.RunPluginResponse(stderr=item[1])

    def InstallDependencies(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """Create the virtual environment and install what the program declares."""
        try:
            interpreter = _resolve(request.info)
        except OptionError as error:
            _refuse(context, str(error))
        folder = Path(request.info.program_directory)
        environment = dict(os.environ)
        if interpreter.toolchain == "uv":
            environment["UV_PROJECT_ENVIRONMENT"] = str(interpreter.virtualenv)
            environment.pop("VIRTUAL_ENV", None)
        for step in install_steps(interpreter, folder, plugin=request.is_plugin):
            if shutil.which(step[0]) is None:
                _refuse(context, f"{step[0]} is not on PATH, runtime.options.toolchain asks for it")
            yield language_pb2.InstallDependenciesResponse(stdout=f"{' '.join(step)}\n".encode())
            for item in children.stream(step, folder, environment, context.add_callback):
                if isinstance(item, int):
                    if item != 0:
                        _refuse(context, f"`{' '.join(step)}` ended with exit code {item}")
                else:
                    yield language_pb2.InstallDependenciesResponse(**{item[0]: item[1]})

    def GeneratePackage(self, request: Any, context: grpc.ServicerContext) -> NoReturn:
        """Refuse: the code generator is part of the official host only."""
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, _NO_CODE_GENERATOR)
        raise AssertionError

    def GenerateProject(self, request: Any, context: grpc.ServicerContext) -> NoReturn:
        """Refuse: the code generator is part of the official host only."""
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, _NO_CODE_GENERATOR)
        raise AssertionError

    def GenerateProgram(self, request: Any, context: grpc.ServicerContext) -> NoReturn:
        """Refuse: the code generator is part of the official host only."""
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, _NO_CODE_GENERATOR)
        raise AssertionError

    def Cancel(self, request: Any, context: grpc.ServicerContext) -> Any:
        """End what runs; the engine was interrupted."""
        from google.protobuf import empty_pb2

        del request, context
        children.end_all()
        return empty_pb2.Empty()


def _refuse(context: grpc.ServicerContext, message: str) -> NoReturn:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
    raise AssertionError


def _resolve(info: Any) -> Interpreter:
    return resolve(
        json_format.MessageToDict(info.options),
        Path(info.root_directory),
        Path(info.program_directory),
        os.environ,
    )


def _interpreter(info: Any, context: grpc.ServicerContext) -> Interpreter:
    """Return the program's interpreter, or end the call with the reason."""
    try:
        interpreter = _resolve(info)
        interpreter.check()
    except OptionError as error:
        _refuse(context, str(error))
    return interpreter


def _probe(interpreter: Interpreter, context: grpc.ServicerContext) -> dict[str, Any]:
    """Ask the interpreter what it is and has, or end the call with the reason."""
    answer = subprocess.run(
        [interpreter.python, str(_HERE / "packages.py")],
        env=interpreter.activate(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PROBE_SECONDS,
        check=False,
    )
    if answer.returncode != 0:
        _refuse(context, f"{interpreter.python} does not work: {answer.stderr.decode()[-500:]}")
    report: dict[str, Any] = json.loads(answer.stdout)
    return report


def typecheck(interpreter: Interpreter, folder: Path, environment: Mapping[str, str]) -> str:
    """Return what the type checker of the options complains about; '' when nothing."""
    if interpreter.typechecker is None:
        return ""
    answer = subprocess.run(
        [interpreter.python, "-m", interpreter.typechecker, str(folder)],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode == 0:
        return ""
    return f"{interpreter.typechecker} found errors:\n{answer.stdout}{answer.stderr}".rstrip()
