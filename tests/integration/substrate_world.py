"""A container substrate of its own for a test, with programs to run in it and counts of residue."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dsec.agent.cpusets import SHARED
from dsec.agent.images import ImageStore
from dsec.agent.substrates.oci import OciSubstrate
from dsec.api.sandbox import End, Identity, Resources, SandboxSpec
from dsec.local.images_context import sandbox_root
from dsec.local.initbin import ensure_init
from dsec.world.substrate import Chunk, ExecRequest
from ulid import ULID

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Resources(cpu_milli=2000, memory_bytes=128 << 20, pids=64, disk_bytes=32 << 20)
PATIENCE = 30.0
"""Seconds for what takes a moment: a busy machine is slow, and that is no failure."""


def inside(pid: int, path: str) -> Path:
    """Return a path of a sandbox, as the node reaches it."""
    return Path(f"/proc/{pid}/root{path}")


def namespace(kind: str) -> int:
    """Return the inode of a namespace of this process."""
    return Path(f"/proc/self/ns/{kind}").stat().st_ino


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds; fails after the patience."""
    async with asyncio.timeout(PATIENCE):
        while not await check():  # noqa: ASYNC110 - what is asked lives in other processes
            await asyncio.sleep(0.05)


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def base_image() -> str:
    """Return the sandbox base as a local image; built once for each state of its recipe."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsec" / "tests"
    return f"rootfs:{sandbox_root(ROOT, cache, _run)}"


class World:
    """One substrate; `beats` are the heartbeats it has told of, (sandbox, body)."""

    def __init__(self, substrate: OciSubstrate, image: str) -> None:
        self.substrate = substrate
        self.image = image
        self.beats: list[tuple[str, dict[str, object]]] = []
        substrate.on_heartbeat = lambda sandbox, body: self.beats.append((sandbox, body))

    def spec(
        self, *command: str, limits: dict[str, int] | None = None, **more: object
    ) -> SandboxSpec:
        """Return a specification of a fresh sandbox."""
        identity = Identity(
            id=f"sb-{str(ULID()).lower()}", tenant="t", project="p", task_id="task-1", index=3
        )
        values: dict[str, object] = {
            "identity": identity,
            "image": self.image,
            "command": list(command),
            "resources": LIMITS.model_copy(update=limits or {}),
            **more,
        }
        return SandboxSpec.model_validate(values)

    async def begin(self, spec: SandboxSpec) -> str:
        """Create and start; returns the id."""
        await self.substrate.create(spec)
        await self.substrate.start(spec.identity.id)
        return spec.identity.id

    async def run(self, *command: str, limits: dict[str, int] | None = None, **more: object) -> End:
        """Run one command as a sandbox of its own, to its end and removal."""
        sandbox = await self.begin(self.spec(*command, limits=limits, **more))
        try:
            return await self.substrate.wait(sandbox)
        finally:
            await self.substrate.destroy(sandbox)

    async def sh(self, script: str, limits: dict[str, int] | None = None, **more: object) -> End:
        """Run a shell script as a sandbox of its own."""
        return await self.run("bash", "-c", script, limits=limits, **more)

    async def exec(self, sandbox: str, *command: str, **more: object) -> tuple[bytes, bytes, Chunk]:
        """Run a command in a live sandbox; returns its two outputs and the last chunk."""
        request = ExecRequest(command=command, **more)  # type: ignore[arg-type]
        out = {"stdout": bytearray(), "stderr": bytearray()}
        last = Chunk(stream="end")
        async for chunk in self.substrate.exec(sandbox, request):
            if chunk.stream == "end":
                last = chunk
            else:
                out[chunk.stream] += chunk.data
        return bytes(out["stdout"]), bytes(out["stderr"]), last

    async def said(self, sandbox: str, words: bytes) -> None:
        """Wait until the main command has printed these words."""
        seen = b""
        async with asyncio.timeout(PATIENCE):
            async for chunk in self.substrate.logs(sandbox, follow=True):
                seen += chunk.data
                if words in seen:
                    return
        raise AssertionError(f"it ended and has said only {seen!r}")

    def residue(self) -> dict[str, list[str]]:
        """Return what sandboxes have left on this machine: each list should be empty."""
        state, parent = str(self.substrate.state), self.substrate.cgroups
        loops = Path("/sys/block").glob("loop*/loop/backing_file")
        return {
            "mounts": [m for m in Path("/proc/self/mounts").read_text().splitlines() if state in m],
            "loops": [str(p) for p in loops if p.exists() and state in p.read_text()],
            "cgroups": sorted(parent.sandboxes()),
            "files": [p.name for p in self.substrate.launcher.sandboxes.iterdir()],
            "trash": [p.name for p in (self.substrate.state / "trash").iterdir()],
        }


@asynccontextmanager
async def world(state: Path, images: Path, **options: object) -> AsyncIterator[World]:
    """Open a substrate; at the end everything that lives in it is removed."""
    image = base_image()
    substrate = OciSubstrate(
        state,
        init=ensure_init(),
        images=ImageStore(images, local_roots=True),
        cgroup=f"/dsec-test-{os.getpid()}",
        **options,  # type: ignore[arg-type]
    )
    here = World(substrate, image)
    try:
        yield here
    finally:
        await substrate.adopt()
        for home in list(substrate.launcher.sandboxes.iterdir()):
            await substrate.destroy(home.name)
        await substrate.close()
        for root in substrate.cgroups.hierarchies.all_roots():
            for group in (SHARED, ""):
                with contextlib.suppress(FileNotFoundError):
                    (root / substrate.cgroups.parent / group).rmdir()
