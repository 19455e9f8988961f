"""What runs a sandbox on a node: one contract for containers, VMs and the simulator."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dsec.api.sandbox import End, Evidence, SandboxSpec
from dsec.api.snapshot import SnapshotKind
from dsec.api.wire import NodeInventory


class SubstrateError(Exception):
    """The substrate could not do it; `reason` is an EndReason value."""

    def __init__(self, reason: str, message: str) -> None:
        """Keep the typed reason beside the message."""
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """A command to run in a live sandbox. `timeout` in seconds; the whole tree is killed then."""

    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    stdin: bytes = b""
    timeout: float | None = None
    output_cap: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output (`stream` is "stdout" or "stderr"), or the end of an exec."""

    stream: str
    data: bytes = b""
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    dropped_bytes: int = 0


@dataclass(slots=True)
class Started:
    """A sandbox whose init answers. `pid` is the init's, in the node's namespace."""

    pid: int
    evidence: Evidence
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Files of a sandbox: what is below `root` on the node belongs at `at` in the sandbox.

    `upper`: it is the writable layer of an overlay, with its marks of what was removed.
    """

    root: Path
    at: str
    upper: bool = False


@dataclass(frozen=True, slots=True)
class Captured:
    """What can be copied of a sandbox while its capture lasts.

    `image_digest` is of the image below, empty where it has none. `dated`: the times of a file tell
    of every change, also through mapped memory once that was written back.
    """

    trees: tuple[Tree, ...]
    image_digest: str = ""
    dated: bool = True


@dataclass(frozen=True, slots=True)
class Hollow:
    """A sandbox that waits for its start: files are put below `root`, over its image's."""

    root: Path
    image_digest: str = ""


OnCall = Callable[[str, str, str, bytes], Awaitable[tuple[int, bytes]]]
"""From sandbox id, method, path and body of a program's call to HTTP status and JSON body."""


async def nobody(_sandbox: str, _method: str, _path: str, _body: bytes) -> tuple[int, bytes]:
    """Answer a call while no agent is there to make it."""
    return 503, b'{"code": "away", "message": "the agent is starting; repeat the call"}'


class Substrate(Protocol):
    """Runs sandboxes. State that must survive the agent is on disk and in the kernel.

    `on_heartbeat(sandbox_id, body)` is called at each heartbeat POST from inside; the first one
    registers the sandbox. `on_call` makes the calls of programs inside. `wait` returns when the
    main command has ended.
    """

    on_heartbeat: Callable[[str, dict[str, object]], None]
    on_call: OnCall

    async def inventory(self) -> NodeInventory:
        """Say what this node has and can do."""
        ...

    async def prepare_image(self, image: str) -> None:
        """Make an image's layers ready. Idempotent. Raises SubstrateError(image-pull-failed)."""
        ...

    async def create(self, spec: SandboxSpec) -> Started:
        """Create namespaces, limits and file systems, and start init; the command waits.

        Idempotent by sandbox id. Raises SubstrateError; nothing is left behind then.
        """
        ...

    async def start(self, sandbox_id: str) -> None:
        """Tell init to start the main command. Idempotent."""
        ...

    async def wait(self, sandbox_id: str) -> End:
        """Wait for the end of the main command; typed reason, evidence and newest output."""
        ...

    async def stop(self, sandbox_id: str, grace: float) -> None:
        """SIGTERM to the main command, SIGKILL to the whole tree after the grace. Idempotent."""
        ...

    async def cpu_seconds(self, sandbox_ids: Sequence[str]) -> dict[str, float]:
        """Return the CPU time that each has used so far; without those that nothing counts."""
        ...

    async def pause(self, sandbox_id: str) -> None:
        """Freeze every process of it."""
        ...

    async def resume(self, sandbox_id: str) -> None:
        """Thaw it."""
        ...

    def exec(self, sandbox_id: str, request: ExecRequest) -> AsyncIterator[Chunk]:
        """Run a command in it; the last chunk carries exit_code or signal."""
        ...

    def logs(self, sandbox_id: str, *, follow: bool) -> AsyncIterator[Chunk]:
        """Yield the kept output of the main command, then new output while it runs."""
        ...

    def archive(self, sandbox_id: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield (name, content) of the scene: logs, environment, collected dirs, temp files.

        Works on a dead sandbox until `destroy`. Never follows a link out of the sandbox.
        """
        ...

    def capture(
        self, sandbox_id: str, kind: SnapshotKind, paths: Sequence[str], *, still: bool
    ) -> AbstractAsyncContextManager[Captured]:
        """Open what a snapshot of this kind copies: the whole writable layer, or these paths.

        Paths that do not exist, or lead through a link, are left out. With `still` its processes
        and its file system are frozen for as long as this lasts; one that is paused stays so.
        Works from `create` to `destroy`, also after the end of the command while init lives.
        Raises SubstrateError; nothing stays frozen then.
        """
        ...

    def put_back(self, sandbox_id: str) -> AbstractAsyncContextManager[Hollow]:
        """Open a created sandbox whose command has not been started, to restore files into it.

        At the end what makes it itself (name, identity, item) is written anew. Raises
        SubstrateError.
        """
        ...

    async def destroy(self, sandbox_id: str) -> None:
        """Kill what lives, remove cgroups, mounts, namespaces and files. Idempotent."""
        ...

    async def adopt(self) -> list[tuple[SandboxSpec, Started | None]]:
        """Find sandboxes that an earlier agent process left; None where init is gone.

        Removes what is half-made (crash between steps).
        """
        ...
