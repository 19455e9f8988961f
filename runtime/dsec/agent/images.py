"""The image store of a node: pulls, checks and unpacks images into layers for overlayfs.

Forms: an OCI reference (`registry/repo[:tag][@digest]`), or `rootfs:PATH` of a local tar archive or
directory for the standalone mode. Layers are plain directories, named by content, shared between
images and by the page cache between sandboxes, and never written to after their unpacking.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import shutil
import stat
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsec.api import imageref
from dsec.api.reasons import EndReason
from dsec.world.substrate import SubstrateError

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_SHORT = 16
_MACHINES = {"x86_64": ("amd64", 0x3E), "aarch64": ("arm64", 0xB7)}
_PULL_SECONDS = 900
_TAG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Stack:
    """An image ready for use: `lower` are directory names below `base`, topmost first."""

    base: str
    lower: list[str]
    digest: str
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""


def _failed(image: str, why: str) -> SubstrateError:
    return SubstrateError(EndReason.IMAGE_PULL_FAILED, f"image {image}: {why}")


def convert_whiteouts(layer: Path) -> None:
    """Turn the markers of an unpacked OCI layer into those of overlayfs, in place.

    `.wh.NAME` becomes a character device 0:0 called NAME, unless this layer has NAME itself; a
    directory with `.wh..wh..opq` becomes opaque.
    """
    for where, _, files in os.walk(layer):
        for name in files:
            marker = Path(where) / name
            if name == _OPAQUE:
                marker.unlink()
                os.setxattr(where, "trusted.overlay.opaque", b"y")
            elif name.startswith(_WHITEOUT):
                marker.unlink()
                hidden = Path(where) / name.removeprefix(_WHITEOUT)
                if not os.path.lexists(hidden):
                    os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0))


def elf_machine(path: Path) -> int | None:
    """Return the machine number of an ELF file, None for anything else."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return None
    if len(head) < 20 or head[:4] != b"\x7fELF":  # noqa: PLR2004 - the size of the part that is read
        return None
    return int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")


def check_machine(layers: list[Path], image: str) -> None:
    """Refuse an image whose programs are for another machine, whatever its manifest says.

    Looks at the first real program of each usual directory. Raises SubstrateError.
    """
    _, wanted = _MACHINES.get(platform.machine(), ("", 0))
    for layer in layers:
        for directory in ("bin", "usr/bin", "usr/local/bin", "sbin", "usr/sbin"):
            here = layer / directory
            if here.is_symlink() or not here.is_dir():
                continue
            for program in sorted(here.iterdir()):
                if program.is_symlink():
                    continue
                machine = elf_machine(program)
                if machine is None:
                    continue
                if machine != wanted:
                    where = f"/{directory}/{program.name}"
                    raise _failed(
                        image,
                        f"{where} is for ELF machine {machine}, this node is {platform.machine()}",
                    )
                break


async def _run(*argv: str) -> None:
    """Run a program. Raises RuntimeError with the last line that it said."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(), _PULL_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise RuntimeError(f"{argv[0]} did not end within {_PULL_SECONDS} s") from None
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines() or ["no message"]
        raise RuntimeError(f"{argv[0]}: {lines[-1]}")


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ImageStore:
    """Images of one node, below one directory."""

    def __init__(
        self,
        directory: Path,
        *,
        default_registry: str = "",
        plain_http: frozenset[str] = frozenset(),
        local_roots: bool = False,
    ) -> None:
        """Use a directory. `plain_http`: registries that are spoken to without TLS.

        `local_roots`: take `rootfs:PATH` images. Only for a machine whose users own it: a path is
        read with the agent's rights, so a shared node must refuse it.
        """
        self.layers = directory / "layers"
        self._index = directory / "index"
        self._blobs = directory / "blobs"
        self._default_registry = default_registry
        self._plain_http = plain_http
        self._local_roots = local_roots
        self._locks: dict[str, asyncio.Lock] = {}
        self._fresh_until: dict[str, float] = {}
        for path in (self.layers, self._index, self._blobs):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in self.layers.glob("tmp-*"):
            shutil.rmtree(left, ignore_errors=True)

    @classmethod
    def from_environment(cls, directory: Path) -> "ImageStore":
        """Use DSEC_DEFAULT_REGISTRY, and DSEC_PLAIN_HTTP_REGISTRIES (comma-separated)."""
        plain = os.environ.get("DSEC_PLAIN_HTTP_REGISTRIES", "").split(",")
        return cls(
            directory,
            default_registry=os.environ.get("DSEC_DEFAULT_REGISTRY", ""),
            plain_http=frozenset(name.strip() for name in plain if name.strip()),
        )

    def _entry(self, image: str) -> Path:
        key = image
        if image.startswith("rootfs:"):
            with contextlib.suppress(OSError):  # an archive that is missing is told later
                found = Path(image.removeprefix("rootfs:")).stat()
                key += f"|{found.st_size}|{found.st_mtime_ns}"
        return self._index / f"{hashlib.sha256(key.encode()).hexdigest()}.json"

    def known(self, image: str) -> Stack | None:
        """Return a prepared image, None where it is not (or no longer) on disk."""
        try:
            stack = Stack(**json.loads(self._entry(image).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return stack if all((self.layers / name).exists() for name in stack.lower) else None

    async def prepare(self, image: str) -> Stack:
        """Make an image ready. Raises SubstrateError(image-pull-failed) with the reason.

        A reference with a digest is fetched once; a tag alone is asked for again after a minute.
        """
        async with self._locks.setdefault(image, asyncio.Lock()):
            pinned = "@" in image or image.startswith("rootfs:")
            fresh = time.monotonic() < self._fresh_until.get(image, 0.0)
            if (pinned or fresh) and (stack := self.known(image)) is not None:
                return stack
            try:
                if image.startswith("rootfs:"):
                    stack = await self._local(image)
                else:
                    stack = await self._pull(image)
            except (OSError, RuntimeError, ValueError, KeyError) as error:
                raise _failed(image, str(error)) from error
            entry = self._entry(image)
            draft = entry.with_suffix(f".{uuid.uuid4().hex}")
            with draft.open("w") as file:
                file.write(json.dumps(asdict(stack)))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(entry)
            self._fresh_until[image] = time.monotonic() + _TAG_SECONDS
            return stack

    async def stack(self, image: str) -> Stack:
        """Return a prepared image; prepare it if it is not."""
        return self.known(image) or await self.prepare(image)

    def _link_directory(self, path: Path) -> str:
        """Make a directory a layer as it is; empty where the path is no directory."""
        if not path.is_dir():
            return ""
        real = path.resolve()
        name = "d-" + hashlib.sha256(str(real).encode()).hexdigest()[:_SHORT]
        with contextlib.suppress(FileExistsError):
            (self.layers / name).symlink_to(real)
        return name

    async def _local(self, image: str) -> Stack:
        if not self._local_roots:
            raise ValueError("a path of the node is no image here: name an image of a registry")
        path = Path(image.removeprefix("rootfs:"))
        name = await asyncio.to_thread(self._link_directory, path)
        digest = ""  # a directory has no fixed content
        if not name:
            content = await asyncio.to_thread(_digest_file, path)
            digest = f"sha256:{content}"
            name = await self._unpack(path, content)
        await asyncio.to_thread(check_machine, [self.layers / name], image)
        return Stack(base=str(self.layers), lower=[name], digest=digest)

    async def _unpack(self, archive: Path, digest: str) -> str:
        name = digest[:_SHORT]
        async with self._locks.setdefault(name, asyncio.Lock()):
            if (self.layers / name).exists():
                return name
            draft = self.layers / f"tmp-{uuid.uuid4().hex}"
            draft.mkdir(mode=0o755)
            try:
                await _run(
                    "tar", "--extract", "--preserve-permissions", "--numeric-owner",
                    "--xattrs", "--xattrs-include=security.capability",
                    "--exclude=./dev/*", "--exclude=dev/*",
                    "--file", str(archive), "--directory", str(draft),
                )  # fmt: skip
                await asyncio.to_thread(convert_whiteouts, draft)
                # its content must be on disk before its name is: nobody looks at a layer again
                await _run("sync", "--file-system", str(draft))
                draft.rename(self.layers / name)
            except BaseException:
                await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
                raise
        return name

    async def _pull(self, image: str) -> Stack:
        reference = imageref.parse(image)
        registry = reference.registry or self._default_registry
        if not registry:
            raise ValueError("names no registry, and the node has no default one")
        tag = f":{reference.tag}" if reference.tag and not reference.digest else ""
        digest = f"@{reference.digest}" if reference.digest else ""
        source = f"docker://{registry}/{reference.repository}{tag}{digest}"
        layout = self._blobs / uuid.uuid4().hex
        tls = "false" if registry in self._plain_http else "true"
        try:
            await _run(
                "skopeo", "copy", "--quiet", "--retry-times", "2", f"--src-tls-verify={tls}",
                source, f"oci:{layout}:image",
            )  # fmt: skip
            return await self._import(layout, image)
        finally:
            await asyncio.to_thread(shutil.rmtree, layout, ignore_errors=True)

    async def _import(self, layout: Path, image: str) -> Stack:
        def blob(digest: str) -> Path:
            return layout / "blobs" / digest.replace(":", "/")

        index = json.loads((layout / "index.json").read_text())
        manifest_digest = str(index["manifests"][0]["digest"])
        manifest: dict[str, Any] = json.loads(blob(manifest_digest).read_text())
        config: dict[str, Any] = json.loads(blob(manifest["config"]["digest"]).read_text())
        wanted, _ = _MACHINES.get(platform.machine(), (platform.machine(), 0))
        if (arch := config.get("architecture")) != wanted:
            raise ValueError(f"built for architecture {arch!r}, this node is {wanted!r}")
        names = []
        for layer in manifest["layers"]:
            digest = str(layer["digest"])
            path = blob(digest)
            found = await asyncio.to_thread(_digest_file, path)
            if digest != f"sha256:{found}":
                raise ValueError(f"layer {digest} has content of sha256:{found}")
            names.append(await self._unpack(path, found))
        names.reverse()
        await asyncio.to_thread(check_machine, [self.layers / name for name in names], image)
        settings = config.get("config") or {}
        pairs = (entry.partition("=") for entry in settings.get("Env") or [])
        return Stack(
            base=str(self.layers),
            # the same layer twice adds nothing, and overlayfs refuses it
            lower=list(dict.fromkeys(names)),
            digest=manifest_digest,
            command=[*(settings.get("Entrypoint") or []), *(settings.get("Cmd") or [])],
            env={key: value for key, _, value in pairs},
            workdir=settings.get("WorkingDir") or "",
            user=settings.get("User") or "",
        )
