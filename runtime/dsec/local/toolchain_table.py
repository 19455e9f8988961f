"""The tool chain as data: one version constant per project and one row per program.

Nothing here touches the machine except to read the pinned Go modules for the hash of the build
inputs. `dsec.local.toolchain` looks programs up and `dsec.local.toolchain_get` obtains them.
"""

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PULUMI_VERSION = "3.274.1"
# The plugin may not be older than the Python package pulumi-kubernetes, or the engine warns.
PULUMI_KUBERNETES_VERSION = "4.25.0"
# The newest one that modules can be had of; the engine speaks with older language hosts too.
PULUMI_YAML_VERSION = "1.30.0"
# A newer kubelet refuses cgroup v1 by default.
KUBERNETES_VERSION = "1.34.4"
# Debian's 3.4 answers lists in a way that makes the API server of this version log errors.
ETCD_VERSION = "3.6.16"

_KUBERNETES_STAMPS = " ".join(
    [
        "-s -w",
        f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}",
        "-X k8s.io/component-base/version.gitMajor=1",
        "-X k8s.io/component-base/version.gitMinor=34",
        "-X k8s.io/component-base/version.gitTreeState=clean",
        f"-X k8s.io/client-go/pkg/version.gitVersion=v{KUBERNETES_VERSION}",
        "-X k8s.io/client-go/pkg/version.gitMajor=1",
        "-X k8s.io/client-go/pkg/version.gitMinor=34",
    ]
)

# Debian, Kubernetes and Pulumi name processors differently; these are the ones we know.
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Release:
    """Where the project publishes the program.

    `{arch}` in the addresses is amd64 or arm64, `{x64}` is x64 or arm64. `checksums` is either a
    list in the format of sha256sum that has a line for the file, or a file with the digest alone.
    """

    url: str
    checksums: str
    folder: str = ""  # inside the archive; the whole folder is installed


@dataclass(frozen=True, slots=True)
class Tool:
    """One program: which version, how its project publishes it, how to build it."""

    name: str
    version: str
    module: str  # folder under tools/
    package: str  # what `go build` gets
    ldflags: str
    release: Release
    core_minutes: float  # to build, with an empty build cache
    megabytes: int  # installed
    version_command: tuple[str, ...] = ()  # none: the program cannot tell its version
    # files of a Go module that must lie beside the program: (module, path in it)
    beside: tuple[tuple[str, str], ...] = ()


def _kubernetes(name: str, core_minutes: float, megabytes: int) -> Tool:
    address = f"https://dl.k8s.io/release/v{KUBERNETES_VERSION}/bin/linux/{{arch}}/{name}"
    return Tool(
        name=name,
        version=KUBERNETES_VERSION,
        module="kubernetes",
        package=f"k8s.io/kubernetes/cmd/{name}",
        ldflags=_KUBERNETES_STAMPS,
        release=Release(address, f"{address}.sha256"),
        core_minutes=core_minutes,
        megabytes=megabytes,
        version_command=("version", "--client=true") if name == "kubectl" else ("--version",),
    )


_ETCD_RELEASE = f"https://github.com/etcd-io/etcd/releases/download/v{ETCD_VERSION}"
_PULUMI_RELEASE = f"https://github.com/pulumi/pulumi/releases/download/v{PULUMI_VERSION}"
_PROVIDER_RELEASE = (
    f"https://github.com/pulumi/pulumi-kubernetes/releases/download/v{PULUMI_KUBERNETES_VERSION}"
)
_PROVIDER_MODULE = "github.com/pulumi/pulumi-kubernetes/provider/v4"
_YAML_RELEASE = f"https://github.com/pulumi/pulumi-yaml/releases/download/v{PULUMI_YAML_VERSION}"
_YAML_MODULE = "github.com/pulumi/pulumi-yaml"

# In build order inside a module: the first one compiles most of what the others share.
TOOLS: tuple[Tool, ...] = (
    Tool(
        name="etcd",
        version=ETCD_VERSION,
        module="etcd",
        package="go.etcd.io/etcd/server/v3",
        ldflags="-s -w",
        release=Release(
            f"{_ETCD_RELEASE}/etcd-v{ETCD_VERSION}-linux-{{arch}}.tar.gz",
            f"{_ETCD_RELEASE}/SHA256SUMS",
            folder=f"etcd-v{ETCD_VERSION}-linux-{{arch}}",
        ),
        core_minutes=2,
        megabytes=26,
        version_command=("--version",),
    ),
    _kubernetes("kube-apiserver", 14, 98),
    _kubernetes("kube-controller-manager", 2, 89),
    _kubernetes("kubelet", 2, 80),
    _kubernetes("kube-scheduler", 1, 70),
    _kubernetes("kubectl", 1, 59),
    _kubernetes("kube-proxy", 0.5, 69),
    Tool(
        name="pulumi",
        version=PULUMI_VERSION,
        module="pulumi",
        package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
        ldflags=(
            f"-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version={PULUMI_VERSION}"
        ),
        release=Release(
            f"{_PULUMI_RELEASE}/pulumi-v{PULUMI_VERSION}-linux-{{x64}}.tar.gz",
            f"{_PULUMI_RELEASE}/pulumi-{PULUMI_VERSION}-checksums.txt",
            folder="pulumi",
        ),
        core_minutes=15,
        megabytes=117,
        version_command=("version",),
    ),
    Tool(
        name="pulumi-resource-kubernetes",
        version=PULUMI_KUBERNETES_VERSION,
        module="pulumi-kubernetes",
        package=".",
        ldflags=f"-s -w -X {_PROVIDER_MODULE}/pkg/version.Version={PULUMI_KUBERNETES_VERSION}",
        release=Release(
            f"{_PROVIDER_RELEASE}/pulumi-resource-kubernetes-v{PULUMI_KUBERNETES_VERSION}"
            "-linux-{arch}.tar.gz",
            f"{_PROVIDER_RELEASE}/pulumi-kubernetes_{PULUMI_KUBERNETES_VERSION}_checksums.txt",
        ),
        core_minutes=26,
        megabytes=162,
        beside=(
            (_PROVIDER_MODULE, "cmd/pulumi-resource-kubernetes/schema.json"),
            (_PROVIDER_MODULE, "cmd/pulumi-resource-kubernetes/terraform-mapping.json"),
        ),
    ),
)

# Of no use to a user of dsec: a test runs a program of the hosted component package in YAML.
TEST_TOOLS: tuple[Tool, ...] = (
    Tool(
        name="pulumi-language-yaml",
        version=PULUMI_YAML_VERSION,
        module="pulumi-yaml",
        package=f"{_YAML_MODULE}/cmd/pulumi-language-yaml",
        ldflags=f"-s -w -X {_YAML_MODULE}/pkg/version.Version=v{PULUMI_YAML_VERSION}",
        release=Release(
            f"{_YAML_RELEASE}/pulumi-language-yaml-v{PULUMI_YAML_VERSION}-linux-{{arch}}.tar.gz",
            f"{_YAML_RELEASE}/pulumi-yaml-{PULUMI_YAML_VERSION}-checksums.txt",
        ),
        core_minutes=2.5,
        megabytes=36,
    ),
)

# The plugin is known to people and to the documentation by its project's name too.
ALIASES = {"pulumi-kubernetes": "pulumi-resource-kubernetes"}


class UnknownToolError(ValueError):
    """A name that is in no row of the table."""

    exit_code = 2


def select(names: list[str] | tuple[str, ...] | None, tools: tuple[Tool, ...]) -> list[Tool]:
    """Return the rows for `names` in table order; all rows when `names` is None or empty.

    Raises `UnknownToolError` naming every unknown name and what is allowed.
    """
    if not names:
        return list(tools)
    wanted = {ALIASES.get(name, name) for name in names}
    if unknown := sorted(wanted - {tool.name for tool in tools}):
        allowed = ", ".join(tool.name for tool in tools)
        raise UnknownToolError(f"no such tool: {', '.join(unknown)}; allowed: {allowed}")
    return [tool for tool in tools if tool.name in wanted]


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of this user and machine that the tool chain reads and writes."""

    cache: Path  # installed tools; safe to delete as a whole
    source: Path | None  # tools/ of a checkout; None for a bare installation of the package
    path: str  # PATH
    plugins: Path  # where Pulumi itself keeps plugins
    machine: str = "amd64"  # Go's name of the processor

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> "Places":
        """Return the places that `environ` (default: this process's) names."""
        environ = os.environ if environ is None else environ
        home = Path(environ.get("HOME") or "~").expanduser()
        cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
        checkout = Path(__file__).resolve().parents[3] / "tools"
        machine = platform.machine()
        return cls(
            cache=cache / "dsec" / "tools",
            source=checkout if (checkout / "pulumi" / "go.mod").is_file() else None,
            path=environ.get("PATH", os.defpath),
            plugins=Path(environ.get("PULUMI_HOME") or home / ".pulumi") / "plugins",
            machine=_MACHINES.get(machine, machine),
        )


def inputs_hash(tool: Tool, places: Places) -> str:
    """Return 12 hex digits over everything that decides what the built program is.

    The version of the Go compiler is left out on purpose: an upgrade of Go must not cost an hour
    of building programs that behave the same.
    """
    digest = hashlib.sha256()
    parts = (tool.name, tool.version, tool.package, tool.ldflags, places.machine, str(tool.beside))
    digest.update("\0".join(parts).encode())
    if places.source is not None:
        module = places.source / tool.module
        for file in sorted([module / "go.mod", module / "go.sum", *module.glob("*.go")]):
            if file.is_file():
                digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def installed_folder(tool: Tool, places: Places) -> Path:
    """Return the folder that holds the program once it is installed."""
    return places.cache / f"{tool.name}-{tool.version}-{inputs_hash(tool, places)}"
