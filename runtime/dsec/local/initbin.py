"""Where dsec-init comes from: built with cargo from this checkout, once for each state of it."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

_SOURCES = ("Cargo.toml", "Cargo.lock", ".cargo", "src", "bootstrap.sh")
_BUILD_SECONDS = 900


class InitBuildError(RuntimeError):
    """The program could not be built; the message says why and what to do."""


def source_directory() -> Path:
    """Return the Rust sources of this checkout."""
    return Path(__file__).resolve().parents[2] / "init"


def _source_hash(directory: Path) -> str:
    digest = hashlib.sha256()
    for name in _SOURCES:
        path = directory / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file():
                digest.update(str(file.relative_to(directory)).encode() + b"\0")
                digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def ensure_init() -> Path:
    """Return the program, built when its sources changed. Raises InitBuildError.

    `DSEC_INIT` names a ready one (images carry it so).
    """
    if given := os.environ.get("DSEC_INIT"):
        path = Path(given)
        if not os.access(path, os.X_OK):
            raise InitBuildError(f"DSEC_INIT={given!r} is not an executable file")
        return path
    sources = source_directory()
    if not (sources / "Cargo.toml").exists():
        raise InitBuildError(f"{sources} has no Rust sources; set DSEC_INIT to a built dsec-init")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsec" / "init"
    target = cache / _source_hash(sources) / "dsec-init"
    if target.exists():
        return target
    cargo = shutil.which("cargo")
    if cargo is None:
        raise InitBuildError("cargo is not on PATH; install Rust, or set DSEC_INIT")
    build = cache / "target"
    command = [cargo, "build", "--release", "--locked", "--target-dir", str(build)]
    done = subprocess.run(
        command, cwd=sources, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
    )
    if done.returncode:
        raise InitBuildError(f"cargo build failed:\n{done.stderr.strip()[-2000:]}")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(f".{os.getpid()}")
    shutil.copy2(build / "release" / "dsec-init", draft)
    draft.replace(target)
    return target
