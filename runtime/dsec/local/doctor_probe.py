"""Look at this machine and return the facts that `dsec.local.doctor` judges. Changes nothing."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from dsec.local import toolchain, toolchain_get
from dsec.local.doctor_facts import PACKAGES, Facts

# Programs for the administrator are not on everybody's PATH; CNI plugins are on nobody's.
_MORE_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/cni", "/opt/cni/bin")
_GO = Path("/usr/local/go/bin/go")
_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def probe() -> Facts:
    """Collect all facts; takes about a second, up to five when a release host is silent."""
    places = toolchain.Places.of()
    tools = {tool.name: toolchain.lookup(tool, places) for tool in toolchain.TOOLS}
    absent = [tool for tool in toolchain.TOOLS if tools[tool.name] is None]
    version, controllers = cgroups(Path("/sys/fs/cgroup"))
    home = Path.home()
    state = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "dsec"
    return Facts(
        machine=platform.machine(),
        system=platform.system(),
        root=os.geteuid() == 0,
        cpus=len(os.sched_getaffinity(0)),
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        disk_free_mib=shutil.disk_usage(_existing(places.cache)).free >> 20,
        python=tuple(sys.version_info[:3]),
        uv=version_of("uv", "--version")
        # `make setup` puts one there where the machine has none
        or version_of(str(places.cache.parent / "uv" / "bin" / "uv"), "--version"),
        go=version_of("go", "version") or version_of(str(_GO), "version"),
        rust=version_of("rustc", "--version") if find("cargo") else None,
        static_libc=find("cc") is not None and _has_static_libc(),
        apt=find("apt-get") is not None,
        cgroup=version,
        controllers=controllers,
        filesystems=frozenset(name for name in ("overlay", "erofs") if _has_filesystem(name)),
        namespaces=frozenset(entry.name for entry in Path("/proc/self/ns").iterdir()),
        nftables=_has_module("nf_tables"),
        loop_devices=Path("/dev/loop-control").exists(),
        init_given=bool(os.environ.get("DSEC_INIT")),
        packages=_packages(),
        tools={name: found.source for name, found in tools.items() if found},
        release_hosts=bool(absent) and _hosts_answer(absent),
        checkout=places.source is not None,
        images=any((places.cache.parent / "images").glob("*")),
        contexts=contexts(),
        tools_folder=places.cache,
        state_folder=state,
    )


def find(program: str) -> str | None:
    """Return the path of a program, also of one only an administrator has on PATH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_MORE_FOLDERS])
    return shutil.which(program, path=path)


def _run(*command: str) -> str:
    """Return what a command prints, or '' when it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def version_of(program: str, option: str) -> tuple[int, ...] | None:
    """Return the version that a program states, or None."""
    match = _NUMBER.search(_run(program, option))
    return tuple(int(part) for part in match.groups("0")) if match else None


def cgroups(root: Path) -> tuple[str, frozenset[str]]:
    """Return the version of the control groups mounted at `root` and their controllers."""
    unified = root / "cgroup.controllers"
    if unified.is_file():
        return "v2", frozenset(unified.read_text().split())
    if not root.is_dir():
        return "", frozenset()
    names: set[str] = set()
    for entry in root.iterdir():
        if entry.is_dir():
            names.update(entry.name.split(","))
    version = "hybrid" if "unified" in names else "v1" if names else ""
    return version, frozenset(names - {"unified", "systemd"})


def _has_filesystem(name: str) -> bool:
    listed = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    return name in listed or _has_module(name)


def _has_module(name: str) -> bool:
    """Say whether the kernel has a part built in, loaded or ready to load."""
    if Path("/sys/module", name).exists():
        return True
    release = Path("/lib/modules", platform.release())
    for listing in ("modules.builtin", "modules.dep"):
        try:
            if f"/{name}.ko" in (release / listing).read_text():
                return True
        except OSError:
            continue
    # a kernel without modules on disk: ask the part itself, which takes root
    return name == "nf_tables" and bool(find("nft")) and _works("nft", "list", "tables")


def _works(*command: str) -> bool:
    program = find(command[0]) or command[0]
    try:
        answer = subprocess.run(
            [program, *command[1:]], capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def _has_static_libc() -> bool:
    path = _run("cc", "-print-file-name=libc.a").strip()
    return path not in {"", "libc.a"} and Path(path).exists()


def _packages() -> dict[str, str]:
    """Return the version, else the path, of every package whose program is here."""
    versions: dict[str, str] = {}
    names = [package.name for package in PACKAGES]
    if find("dpkg-query"):
        # it fails when one of them is unknown and still prints the others
        answer = subprocess.run(
            ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n", *names],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line.split() for line in answer.stdout.splitlines()]
        versions = {line[0]: line[1] for line in lines if len(line) > 1}
    found = {}
    for package in PACKAGES:
        if path := find(package.program):
            found[package.name] = versions.get(package.name, path)
    return found


def _hosts_answer(absent: list[toolchain.Tool]) -> bool:
    hosts = {urlsplit(tool.release.url).netloc: tool.release.url for tool in absent}
    return not any(toolchain_get.reachable(url) for url in hosts.values())


def contexts() -> tuple[str, ...]:
    """Return the contexts of the kubeconfig; none when there is none or it cannot be read."""
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    names: list[str] = []
    for part in named.split(os.pathsep):
        try:
            document = yaml.safe_load(Path(part).read_text())
            names += [str(entry["name"]) for entry in document.get("contexts") or []]
        except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError):
            continue
    return tuple(names)


def _existing(path: Path) -> Path:
    """Return `path` or its nearest parent that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
