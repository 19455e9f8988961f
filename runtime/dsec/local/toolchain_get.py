"""Obtain one tool: the official release when its host answers, else a build from its Go module.

Called by `dsec.local.toolchain` in worker threads. Every result appears by one rename, so a killed
process leaves at most a `.partial` folder that the next run clears; compiled packages stay in
Go's own build cache, so a repeated build continues where it stopped. One file lock per tool
and one per Go module keep two processes from doing the same work.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from dsec.local.toolchain_table import Places, Tool, installed_folder

MANIFEST = "dsec-tool.json"
# How long a host may take to answer at all before we build instead, in seconds.
PROBE_SECONDS = 4.0
_POLL_SECONDS = 0.5
_GO_FALLBACK = Path("/usr/local/go/bin/go")
_NETWORK_WORDS = (
    "dial tcp",
    "no such host",
    "i/o timeout",
    "connection refused",
    "TLS handshake timeout",
    "module lookup disabled",
    "network is unreachable",
)

Phase = Literal["waiting", "downloading", "building", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Event:
    """What a tool is doing now. Times are seconds; `estimate` is for the whole phase."""

    tool: str
    phase: Phase
    elapsed: float = 0.0
    estimate: float | None = None
    detail: str = ""


Progress = Callable[[Event], None]


class ObtainError(Exception):
    """One way to get a tool did not work; the text says why and what would help."""


class StoppedError(Exception):
    """The user interrupted; nothing to report about the tool."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every step of one run shares."""

    places: Places
    progress: Progress
    stop: threading.Event
    # Two builds at once keep both cores busy while one of them links, which Go does on one core.
    builders: threading.Semaphore


@contextlib.contextmanager
def exclusive(job: Job, name: str, tool: str) -> Iterator[None]:
    """Hold the lock file `name` of the cache, reporting when another process has it."""
    folder = job.places.cache / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with (folder / f"{name}.lock").open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if job.stop.wait(_POLL_SECONDS):
                    raise StoppedError from None
                elapsed = time.monotonic() - started
                job.progress(Event(tool, "waiting", elapsed, None, f"another build holds {name}"))
        yield  # closing the file gives the lock back


def reachable(url: str, seconds: float = PROBE_SECONDS) -> str:
    """Return '' when the host of `url` answers an HTTP request in time, else why not.

    Any answer counts. The request runs in a thread of its own, because looking up a name may
    block far longer than a time-out of the HTTP client allows for.
    """
    import httpx2

    host = urlsplit(url).netloc
    outcome = [f"{host} did not answer within {seconds:.0f} s"]

    def ask() -> None:
        try:
            httpx2.head(f"{urlsplit(url).scheme}://{host}/", timeout=seconds)
            outcome[0] = ""
        except httpx2.HTTPError as error:
            outcome[0] = f"{host} is not reachable ({error or type(error).__name__})"

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0]


def expected_digest(listing: str, file_name: str) -> str | None:
    """Return the SHA-256 digest of `file_name` from a checksum file, lower case; None if absent.

    Understands the format of sha256sum and a file that holds one digest and nothing else.
    """
    for line in listing.splitlines():
        fields = line.split()
        if not fields or len(fields[0]) != hashlib.sha256().digest_size * 2:
            continue
        if len(fields) == 1 or fields[1].lstrip("*").removeprefix("./") == file_name:
            return fields[0].lower()
    return None


def fetch_release(tool: Tool, folder: Path, job: Job) -> None:
    """Download and verify the official release of `tool` and lay it out in `folder`.

    Raises `ObtainError`; nothing of an unverified download is kept.
    """
    import httpx2

    names = {
        "arch": job.places.machine,
        "x64": {"amd64": "x64"}.get(job.places.machine, job.places.machine),
    }
    url = tool.release.url.format(**names)
    file_name = url.rsplit("/", 1)[1]
    target = folder / file_name
    started = time.monotonic()
    digest = hashlib.sha256()
    try:
        with httpx2.Client(follow_redirects=True, timeout=30) as client:
            listing = client.get(tool.release.checksums.format(**names)).raise_for_status().text
            expected = expected_digest(listing, file_name)
            if expected is None:
                raise ObtainError(f"the checksum list has no line for {file_name}")
            with client.stream("GET", url) as answer, target.open("wb") as out:
                answer.raise_for_status()
                total = int(answer.headers.get("content-length", 0))
                for block in answer.iter_bytes(1 << 20):
                    if job.stop.is_set():
                        raise StoppedError
                    digest.update(block)
                    out.write(block)
                    done = out.tell()
                    elapsed = time.monotonic() - started
                    estimate = elapsed * total / done if total and done else None
                    job.progress(
                        Event(tool.name, "downloading", elapsed, estimate, f"{done >> 20} MiB")
                    )
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ObtainError(f"the download of {url} failed: {error}") from error
    if digest.hexdigest() != expected:
        target.unlink()
        raise ObtainError(
            f"{file_name} has SHA-256 {digest.hexdigest()}, its project published {expected}: "
            "the download was thrown away"
        )
    if file_name.endswith(".tar.gz"):
        _unpack(target, folder, tool.release.folder.format(**names))
        target.unlink()
    elif file_name != tool.name:
        target.rename(folder / tool.name)
    (folder / tool.name).chmod(0o755)


def _unpack(archive: Path, folder: Path, inner: str) -> None:
    """Unpack `archive` into `folder`; with `inner`, that folder of it only, without its name."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    if inner:
        for item in (folder / inner).iterdir():
            item.rename(folder / item.name)
        (folder / inner).rmdir()


def go_program(path: str) -> str:
    """Return the Go command on `path` or at its usual place; raises `ObtainError` if absent."""
    if go := shutil.which("go", path=path):
        return go
    if _GO_FALLBACK.is_file():
        return str(_GO_FALLBACK)
    raise ObtainError(
        "to build it, Go is needed and is not on PATH: install it from https://go.dev/dl"
    )


def why_build_failed(tool: Tool, stderr: str, required: str) -> str:
    """Turn the output of a failed `go build` into one sentence with a remedy."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    if any(word in stderr for word in _NETWORK_WORDS):
        return (
            "the Go module proxy (see `go env GOPROXY`) is not reachable and the module cache "
            f"lacks what tools/{tool.module}/go.mod pins: connect once, or copy a module cache "
            f"and set GOMODCACHE; Go said: {last}"
        )
    if "requires go >=" in stderr or "toolchain not available" in stderr:
        return f"tools/{tool.module} needs Go {required} or newer; Go said: {last}"
    if "No space left on device" in stderr or "no space left on device" in stderr:
        return f"the disk is full: a build needs about 4 GB for Go's caches; Go said: {last}"
    return f"`go build` failed: {' | '.join(lines[-5:]) or last}"


def required_go(module: Path) -> str:
    """Return the version in the `go` line of a module's go.mod."""
    for line in (module / "go.mod").read_text().splitlines():
        if line.startswith("go "):
            return line.split()[1]
    return "1.26"


def build(tool: Tool, folder: Path, job: Job) -> None:
    """Build `tool` from its pinned module into `folder`.

    Raises `ObtainError` when Go, the module proxy or the sources are missing, `StoppedError` when
    the user interrupts.
    """
    if job.places.source is None:
        raise ObtainError("to build it, a checkout of dsec with its tools/ folder is needed")
    module = job.places.source / tool.module
    go = go_program(job.places.path)
    command = [go, "build", "-trimpath", "-ldflags", tool.ldflags]
    command += ["-o", str(folder / tool.name), tool.package]
    # Someone may be working on this machine meanwhile, and the demo runs its first sandbox.
    if nice := shutil.which("nice"):
        command = [nice, "-n", "5", *command]
    environment = {**os.environ, "CGO_ENABLED": "0", "PATH": job.places.path}
    with exclusive(job, f"module-{tool.module}", tool.name), job.builders:
        if job.stop.is_set():
            raise StoppedError
        _watch(tool, command, module, environment, job)
        for name, path in tool.beside:
            listed = subprocess.run(
                [go, "list", "-m", "-f", "{{.Dir}}", name],
                cwd=module,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            file = Path(listed.stdout.strip()) / path
            if listed.returncode != 0 or not file.is_file():
                raise ObtainError(f"the module {name} has no {path} in the module cache")
            # the module cache is read-only; the copy must be removable with its folder
            shutil.copyfile(file, folder / file.name)


def _watch(
    tool: Tool, command: list[str], module: Path, environment: dict[str, str], job: Job
) -> None:
    """Run the build, report progress, and end it when the user interrupts."""
    started = time.monotonic()
    estimate = tool.core_minutes * 60 / (os.cpu_count() or 1)
    log = job.places.cache / ".locks" / f"build-{tool.name}.log"
    with log.open("w+") as output:
        process = subprocess.Popen(
            command, cwd=module, env=environment, stdout=output, stderr=output
        )
        try:
            while process.poll() is None:
                elapsed = time.monotonic() - started
                job.progress(Event(tool.name, "building", elapsed, estimate))
                if job.stop.wait(_POLL_SECONDS):
                    raise StoppedError
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode != 0:
            output.seek(0)
            raise ObtainError(why_build_failed(tool, output.read(), required_go(module)))


def obtain(tool: Tool, job: Job, unreachable: dict[str, str]) -> Path:
    """Install `tool` and return its program; `unreachable` maps a host to why it is not asked.

    Raises `ObtainError` with every way that was tried and why it did not work.
    """
    final = installed_folder(tool, job.places)
    partial = job.places.cache / ".partial" / final.name
    tried: list[str] = []
    ways: tuple[tuple[str, Callable[[Tool, Path, Job], None]], ...] = (
        ("release", fetch_release),
        ("build", build),
    )
    with exclusive(job, final.name, tool.name):
        if (final / tool.name).is_file():  # another process was faster
            return final / tool.name
        for origin, way in ways:
            if origin == "release" and (
                why := unreachable.get(urlsplit(tool.release.url).netloc, "")
            ):
                tried.append(why)
                continue
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                way(tool, partial, job)
            except ObtainError as error:
                tried.append(str(error))
                continue
            manifest = {"name": tool.name, "version": tool.version, "origin": origin}
            (partial / MANIFEST).write_text(json.dumps(manifest) + "\n")
            if final.exists():  # a folder without its program: something else broke it
                shutil.rmtree(final)
            partial.rename(final)
            return final / tool.name
        shutil.rmtree(partial, ignore_errors=True)
    raise ObtainError("; ".join(tried))


def origin(program: Path) -> str:
    """Return 'release' or 'build' for an installed program, '' for one that is not ours."""
    try:
        manifest = json.loads((program.parent / MANIFEST).read_text())
    except (OSError, ValueError):
        return ""
    return str(manifest.get("origin", ""))
