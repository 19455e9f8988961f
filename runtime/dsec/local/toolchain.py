"""The tool chain: etcd, Kubernetes and Pulumi in exactly the versions that dsec is tested with.

`ensure` returns programs, `env` the variables under which they find each other. A program is
taken, in this order: from the user's cache of tools; from PATH, or Pulumi's own plugin folder, if
the version is exactly right; from the official release, checksum-verified; from a build of the
pinned Go module. The first two cost milliseconds, so callers may ask every time.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from dsec.local import toolchain_get as get
from dsec.local.toolchain_table import TOOLS, Places, Tool, inputs_hash, installed_folder, select

Source = Literal["cache", "PATH", "Pulumi"]

LANGUAGE_HOST = "pulumi-language-python"
DYNAMIC_PROVIDER = "pulumi-resource-pulumi-python"
_PROVIDER = "pulumi-resource-kubernetes"
# Two builds at once: see Job.builders.
_BUILDERS = 2
_VERSION = re.compile(r"(?<![\d.])v?(\d+\.\d+\.\d+(?:[-+][\w.]+)?)")


class ToolchainError(Exception):
    """Some tools could not be had; `missing` maps each name to what was tried and what helps."""

    exit_code = 1

    def __init__(self, missing: dict[str, str]) -> None:
        self.missing = missing
        lines = [f"  {name}: {why}" for name, why in missing.items()]
        super().__init__("\n".join(["the tool chain is not complete:", *lines]))


@dataclass(frozen=True, slots=True)
class Found:
    """A tool that is here."""

    tool: Tool
    program: Path
    source: Source


def ignore_progress(event: get.Event) -> None:
    """Take a progress event and do nothing with it."""


def version_in(text: str) -> str | None:
    """Return the first version number with three parts in the output of a program."""
    match = _VERSION.search(text)
    return match.group(1) if match else None


def lookup(tool: Tool, places: Places | None = None) -> Found | None:
    """Return the tool if it is on this machine in exactly its version; never installs."""
    places = places or Places.of()
    program = installed_folder(tool, places) / tool.name
    if os.access(program, os.X_OK):
        return Found(tool, program, "cache")
    plugin = places.plugins / _plugin_folder(tool) / tool.name
    if tool.name == _PROVIDER and os.access(plugin, os.X_OK):
        return Found(tool, plugin, "Pulumi")
    if tool.version_command and (there := shutil.which(tool.name, path=places.path)):
        inside = places.cache in Path(there).parents
        if not inside and _version_of(Path(there), tool, places) == tool.version:
            return Found(tool, Path(there), "PATH")
    return None


def _plugin_folder(tool: Tool) -> str:
    """Return the name of the folder in which Pulumi keeps a resource plugin."""
    return f"{tool.name.removeprefix('pulumi-')}-v{tool.version}"


def _version_of(program: Path, tool: Tool, places: Places) -> str | None:
    """Return the version that a program states, from memory if the file has not changed."""
    memory = places.cache / "path-versions.json"
    try:
        known = json.loads(memory.read_text())
    except (OSError, ValueError):
        known = {}
    status = program.stat()
    stamp = [status.st_mtime_ns, status.st_size]
    entry = known.get(str(program))
    if isinstance(entry, dict) and entry.get("stamp") == stamp:
        return str(entry["version"]) if entry["version"] else None
    try:
        answer = subprocess.run(
            [str(program), *tool.version_command],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        version = version_in(answer.stdout)
    except (OSError, subprocess.TimeoutExpired):
        version = None
    known[str(program)] = {"stamp": stamp, "version": version}
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
        _write(memory, json.dumps(known, indent=1) + "\n")
    return version


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step, unless it says this already."""
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)


def ensure(
    names: Iterable[str] | None = None,
    progress: get.Progress = ignore_progress,
    *,
    places: Places | None = None,
    tools: tuple[Tool, ...] = TOOLS,
) -> dict[str, Path]:
    """Return the programs for `names` (default: all), installing what is missing.

    `progress` is called from worker threads about twice a second per tool. Raises
    `UnknownToolError` for a wrong name and `ToolchainError` that says for each missing tool what
    was tried and what would help. What did get installed stays. Thread- and process-safe.
    """
    places = places or Places.of()
    wanted = select(list(names) if names is not None else None, tools)
    found = {tool.name: at for tool in wanted if (at := lookup(tool, places))}
    programs = {name: at.program for name, at in found.items()}
    missing = [tool for tool in wanted if tool.name not in found]
    if missing:
        installed, failed = _install(missing, progress, places)
        programs.update(installed)
        if failed:
            raise ToolchainError(failed)
    return {tool.name: programs[tool.name] for tool in wanted}


def _install(
    missing: list[Tool], progress: get.Progress, places: Places
) -> tuple[dict[str, Path], dict[str, str]]:
    """Obtain every tool; return the programs and, for the others, why not."""
    hosts = {urlsplit(tool.release.url).netloc: tool.release.url for tool in missing}
    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = dict(zip(hosts, pool.map(get.reachable, hosts.values()), strict=True))
    job = get.Job(places, progress, threading.Event(), threading.Semaphore(_BUILDERS))
    programs: dict[str, Path] = {}
    failed: dict[str, str] = {}

    def work(tools: list[Tool]) -> None:
        for tool in tools:
            started = time.monotonic()
            try:
                programs[tool.name] = get.obtain(tool, job, answers)
                progress(get.Event(tool.name, "done", time.monotonic() - started))
            except (get.ObtainError, OSError) as error:
                failed[tool.name] = str(error)
                progress(get.Event(tool.name, "failed", time.monotonic() - started))
            except get.StoppedError:
                return

    # The programs of one Go module share most packages, so they build one after the other.
    modules: dict[str, list[Tool]] = {}
    for tool in missing:
        modules.setdefault(tool.module, []).append(tool)
    pool = ThreadPoolExecutor(len(modules))
    try:
        for done in [pool.submit(work, tools) for tools in modules.values()]:
            done.result()
    finally:
        job.stop.set()  # an interrupt lands here; the workers then end their builds
        pool.shutdown()
    return programs, failed


def env(places: Places | None = None, tools: tuple[Tool, ...] = TOOLS) -> dict[str, str]:
    """Return the variables, PATH included, under which installed tools find each other.

    Installs nothing, but refreshes one folder of links in the cache and, where Pulumi came
    without its Python language host, puts ours beside it.
    """
    places = places or Places.of()
    found = [at for tool in tools if (at := lookup(tool, places))]
    links = {at.program.name: at.program for at in found if at.source == "cache"}
    by_name = {at.tool.name: at for at in found}
    links.update(_language_host(by_name.get("pulumi"), places))
    # The engine warns about plugins on PATH; one in its own folder is used in silence.
    if (provider := by_name.get(_PROVIDER)) and provider.source == "cache":
        links.pop(_PROVIDER)
        _link(places.plugins / _plugin_folder(provider.tool) / _PROVIDER, provider.program)
    variables = {
        "PATH": os.pathsep.join([str(_bin_folder(links, places)), *_foreign(places)]),
        "PULUMI_SKIP_UPDATE_CHECK": "1",
        # Programs that name no virtual environment run where dsec and its components are.
        "PULUMI_PYTHON_CMD": os.environ.get("PULUMI_PYTHON_CMD", sys.executable),
    }
    automatic = "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"
    if automatic in os.environ:
        variables[automatic] = os.environ[automatic]
    elif "pulumi" in by_name and get.origin(by_name["pulumi"].program) == "build":
        variables[automatic] = "1"  # it was built because the release host was not reachable
    return variables


def _foreign(places: Places) -> list[str]:
    """Return PATH without folders of links from earlier calls."""
    folders = places.path.split(os.pathsep)
    return [folder for folder in folders if Path(folder).parent != places.cache]


def _link(link: Path, target: Path) -> None:
    """Make `link` a symbolic link to `target`, in one step."""
    if link.is_symlink() and link.readlink() == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    draft = link.with_name(f".{link.name}.{os.getpid()}.{threading.get_ident()}")
    draft.symlink_to(target)
    draft.replace(link)


def _bin_folder(links: dict[str, Path], places: Places) -> Path:
    """Return a folder with exactly these links; its name says what they are."""
    listing = "\n".join(f"{name} {target}" for name, target in sorted(links.items()))
    folder = places.cache / f"bin-{hashlib.sha256(listing.encode()).hexdigest()[:12]}"
    for name, target in links.items():
        _link(folder / name, target)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _language_host(pulumi: Found | None, places: Places) -> dict[str, Path]:
    """Return links for Python programs to run: the official host's, else our own one's.

    The engine takes the programs beside itself without a warning, so ours go there when that
    folder is in our cache.
    """
    if pulumi is None:
        return {}
    names = (LANGUAGE_HOST, DYNAMIC_PROVIDER)
    beside = pulumi.program.resolve().parent
    if (beside / LANGUAGE_HOST).exists() and not _is_ours(beside / LANGUAGE_HOST):
        return {name: beside / name for name in names} if pulumi.source == "cache" else {}
    if (there := shutil.which(LANGUAGE_HOST, path=places.path)) and not _is_ours(Path(there)):
        return {}
    if places.source is None or find_spec("pulumi") is None:
        return {}
    folder = beside if pulumi.source == "cache" else places.cache / "langhost"
    for name in names:
        _write(folder / name, _launcher(name, places.source), 0o755)
    return {name: folder / name for name in names}


_LAUNCHER_MARK = "# Starts the offline Python language host of dsec."


def _is_ours(launcher: Path) -> bool:
    try:
        return _LAUNCHER_MARK in launcher.read_text(errors="replace")
    except OSError:
        return False


def _launcher(name: str, source: Path) -> str:
    """Return a shell script that runs one of the two programs in tools/langhost."""
    host = source / "langhost"
    return f'#!/bin/sh\n{_LAUNCHER_MARK}\nexec "{sys.executable}" "{host}" {name} "$@"\n'


__all__ = [
    "TOOLS",
    "Found",
    "Places",
    "Tool",
    "ToolchainError",
    "ensure",
    "env",
    "inputs_hash",
    "lookup",
    "select",
]
