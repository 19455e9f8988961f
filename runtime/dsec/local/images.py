"""The images of dsec: built from the source tree, named by their content, pushed to a registry.

An image's tag is a digest of everything that goes into it, so an image is built only when that
changed, and a tag never means two things. Building is reproducible: fixed times, sorted files, a
locked set of packages. No program is compiled inside an image: Python dependencies come from the
lock through uv's cache, `pause` and `dsec-init` from the host's compilers.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

import dsec
from dsec.local.images_context import ON_BASE, build_context, inputs_digest
from dsec.local.processes import LocalError, RunDirectory
from dsec.local.toolchain_table import Places

CLUSTER_IMAGES = ("pause", "runtime", "agent", "sandbox-base", "prometheus")
"""What a local cluster needs in its registry."""

BUILT_BASE = "built"
"""The base that is made here from Debian packages; any other value is an image reference."""

EPOCH = 1735689600
"""Time stamp of every file and image, in seconds: reproducible builds need some fixed one."""

BUILD_SECONDS = 900.0
"""How long a build waits for another one that uses the same layers."""

Report = Callable[[str, str], None]

_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json,"
    "application/vnd.docker.distribution.manifest.v2+json"
)


@dataclass(frozen=True, slots=True)
class Built:
    """One image in a registry. `seconds` is what this call spent on it; `size` in bytes."""

    name: str
    reference: str
    size: int
    seconds: float
    built: bool


def source_tree() -> Path:
    """Return the checkout that holds `images/`. Raises LocalError for an installed wheel."""
    tree = Path(dsec.__file__).resolve().parents[2]
    if not (tree / "images").is_dir():
        raise LocalError(
            f"images are built from a source checkout, and {tree} is none; "
            "use a published image instead"
        )
    return tree


def cache_directory() -> Path:
    """Return where base file systems, dependencies and layers are kept between builds."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dsec" / "images"


def reference(name: str, base: str = BUILT_BASE) -> str:
    """Return an image's repository and tag, without a registry, from the inputs as they are now."""
    return f"dsec/{name}:{inputs_digest(source_tree(), name, base)[:16]}"


def ensure_images(
    registry: str, names: Sequence[str], report: Report, base: str = BUILT_BASE
) -> dict[str, str]:
    """Return `registry/repository@digest` by image name, having built and pushed what is absent.

    Raises LocalError with the failing command's last lines.
    """
    return {image.name: image.reference for image in build(registry, names, report, base)}


def stored(registry: str, names: Sequence[str], base: str = BUILT_BASE) -> dict[str, str]:
    """Return the pinned reference of each image of this tree, empty where it is not there."""
    answer = {}
    for name in names:
        tagged = reference(name, base)
        found = _stored(registry, tagged)
        answer[name] = f"{registry}/{tagged.partition(':')[0]}@{found[0]}" if found else ""
    return answer


def build(
    registry: str, names: Sequence[str], report: Report, base: str = BUILT_BASE
) -> list[Built]:
    """Build and push what the registry lacks; return all, with sizes and times."""
    done = []
    for name in names:
        began = time.monotonic()
        tagged = reference(name, base)
        found = _stored(registry, tagged)
        if found is None:
            report(f"image {name}", "running")
            with _building() as work:
                _build_one(work, name, base, registry, tagged)
            found = _stored(registry, tagged)
            if found is None:
                raise LocalError(f"image {name}: {registry} does not have {tagged} after the push")
            report(f"image {name}", "done")
            fresh = True
        else:
            fresh = False
        digest, size = found
        repository = tagged.partition(":")[0]
        pinned = f"{registry}/{repository}@{digest}"
        done.append(Built(name, pinned, size, time.monotonic() - began, fresh))
    return done


def _stored(registry: str, tagged: str) -> tuple[str, int] | None:
    """Return digest and compressed size of an image in the registry, or None."""
    repository, _, tag = tagged.partition(":")
    url = f"http://{registry}/v2/{repository}/manifests/{tag}"
    try:
        with httpx2.Client(trust_env=False, timeout=10.0) as client:
            answer = client.get(url, headers={"Accept": _MANIFESTS})
    except httpx2.TransportError as e:
        raise LocalError(f"registry: {registry} does not answer: {e}") from e
    if answer.status_code == httpx2.codes.NOT_FOUND:
        return None
    answer.raise_for_status()
    layers = answer.json()["layers"]
    return answer.headers["Docker-Content-Digest"], sum(int(x["size"]) for x in layers)


@dataclass(frozen=True, slots=True)
class _Work:
    """Where builds happen: layers are kept in `storage`, contexts are thrown away."""

    cache: Path

    def buildah(self, *arguments: str) -> None:
        """Run buildah on the cache's own storage, apart from the user's images."""
        storage, run = self.cache / "storage", self.cache / "run"
        options = ("--root", str(storage), "--runroot", str(run), "--storage-driver", "overlay")
        run_tool("buildah", *options, *arguments)


@contextmanager
def _building() -> Iterator[_Work]:
    """One build at a time: they share the storage, which must leave no mount behind."""
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with RunDirectory(cache).lock("build", "another build is running", BUILD_SECONDS):
        try:
            yield _Work(cache)
        finally:
            overlay = cache / "storage" / "overlay"
            if os.path.ismount(overlay):
                subprocess.run(["umount", str(overlay)], check=False)


def _build_one(work: _Work, name: str, base: str, registry: str, tagged: str) -> None:
    tree = source_tree()
    arguments = []
    if name in ON_BASE:
        arguments = ["--build-arg", f"BASE={_ensure_base(work, tree, base)}"]
    context = work.cache / "contexts" / name
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    try:
        arguments += build_context(tree, name, context, work.cache, run_tool)
        local = f"localhost/{tagged}"
        _bud(work, context, local, arguments)
        target = f"docker://{registry}/{tagged}"
        work.buildah("push", "--tls-verify=false", "--quiet", local, target)
    finally:
        shutil.rmtree(context, ignore_errors=True)


def _ensure_base(work: _Work, tree: Path, base: str) -> str:
    """Return the base's reference; the one from Debian packages is made at first use."""
    if base != BUILT_BASE:
        return base
    local = f"localhost/{reference('base')}"
    images = work.cache / "storage"
    probe = ["buildah", "--root", str(images), "--runroot", str(work.cache / "run")]
    probe += ["--storage-driver", "overlay", "inspect", "--type", "image", local]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return local
    context = work.cache / "contexts" / "base"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    try:
        build_context(tree, "base", context, work.cache, run_tool)
        _bud(work, context, local, [])
    finally:
        shutil.rmtree(context, ignore_errors=True)
    return local


def _bud(work: _Work, context: Path, local: str, arguments: Sequence[str]) -> None:
    work.buildah(
        "bud",
        "--quiet",
        "--isolation=chroot",
        "--layers",
        f"--timestamp={EPOCH}",
        *arguments,
        f"--tag={local}",
        f"--file={context / 'Containerfile'}",
        str(context),
    )


def run_tool(*command: str) -> str:
    """Run a command; return its output. Raises LocalError with the last lines it said."""
    # `make setup` puts uv beside the tools where the machine has none
    places = Places.of()
    path = os.pathsep.join([places.path, str(places.cache.parent / "uv" / "bin")])
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "PATH": path}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError as e:
        raise LocalError(f"{command[0]} is not installed; `dsec doctor` says how to get it") from e
    if done.returncode != 0:
        tail = "\n".join(f"  {line}" for line in done.stderr.strip().splitlines()[-8:])
        raise LocalError(f"{' '.join(command[:6])} ... failed:\n{tail}")
    return done.stdout
