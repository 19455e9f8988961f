"""Sandboxes as OCI containers: crun (else runc) over overlayfs, dsec-init as PID 1.

Everything that must outlive the agent is on disk (`<state>/sandboxes/<id>`, written ahead of each
step) and in the kernel (the sandbox's own cgroups and namespaces). Mounts exist only in the
namespaces of the sandbox, so the end of its processes is the end of them.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from dsec.agent import capture, ends, ocispec, rings, rootfs, streams
from dsec.agent.cgroups import SandboxCgroups, detect
from dsec.agent.images import ImageStore, Stack
from dsec.agent.initlink import START, STOP, InitLink, LinkClosedError
from dsec.agent.launcher import Launcher, find_init, find_runtime, last_line
from dsec.agent.nodeinfo import node_inventory, supports_loop
from dsec.agent.records import SOCKET, Record, namespace_numbers
from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, Evidence, SandboxSpec
from dsec.api.snapshot import SnapshotKind
from dsec.api.wire import NodeInventory
from dsec.snapshots.threads import in_thread
from dsec.world.substrate import (
    Captured,
    Chunk,
    ExecRequest,
    Hollow,
    OnCall,
    Started,
    SubstrateError,
    nobody,
)

_log = structlog.get_logger(__name__)
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READY_SECONDS = 20.0
_TAIL_IN_END = 64 << 10


def check_env(env: dict[str, str]) -> None:
    """Refuse keys that POSIX does not allow, and NUL bytes. Raises SubstrateError(start-failed)."""
    for key, value in env.items():
        if not _ENV_KEY.fullmatch(key):
            allowed = "letters, digits and '_', not starting with a digit"
            raise SubstrateError(EndReason.START_FAILED, f"env key {key!r}: allowed are {allowed}")
        if "\0" in value:
            raise SubstrateError(EndReason.START_FAILED, f"env {key}: the value has a NUL byte")


@dataclass(slots=True)
class _Live:
    """What the agent process knows of one sandbox; all of it can be found again."""

    spec: SandboxSpec
    record: Record
    stack: Stack | None
    pid: int
    link: InitLink | None = None
    paused: bool = False


class OciSubstrate:
    """Runs sandboxes on this node, below one state directory."""

    def __init__(
        self,
        state: Path,
        *,
        cgroup: str = "/dsec",
        init: Path | None = None,
        images: ImageStore | None = None,
        runtime: tuple[str, str] | None = None,
        disk: str = "",
        creates_at_once: int | None = None,
        mount_tries: int = 30,
    ) -> None:
        """Use a state directory. Raises OSError, ValueError, SubstrateError.

        `cgroup` is the parent of all sandboxes' groups, `init` the dsec-init program (looked for
        where not given), `disk` loop (an ext4 image each) or tmpfs: what the node has when empty.
        `mount_tries`: looks for the workspace and the data, one a second, before the start fails.
        """
        self.on_heartbeat: Callable[[str, dict[str, object]], None] = lambda _id, _body: None
        self.on_call: OnCall = nobody
        self.state = state
        self.images = images or ImageStore.from_environment(state / "images")
        self.cgroups = SandboxCgroups(detect(Path("/proc/self/mounts").read_text()), cgroup)
        self.cgroups.setup()
        disk = disk or ("loop" if supports_loop() else "tmpfs")
        self.launcher = Launcher(
            state, init or find_init(), self.cgroups, runtime or find_runtime(), disk
        )
        self._mount_tries = mount_tries
        self._live: dict[str, _Live] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        # more at once only makes each slower: the work is the kernel's and the processors' own
        self._creating = asyncio.Semaphore(creates_at_once or (os.cpu_count() or 1) + 1)

    async def inventory(self) -> NodeInventory:
        """Say what this node has and can do."""
        return node_inventory(
            self.state,
            cgroup=self.cgroups.hierarchies.version,
            cpuset=self.cgroups.pins,
            runtime=self.launcher.runtime[0],
            disk=self.launcher.disk,
        )

    async def prepare_image(self, image: str) -> None:
        """Pull and unpack an image. Raises SubstrateError(image-pull-failed)."""
        await self.images.prepare(image)

    async def create(self, spec: SandboxSpec) -> Started:
        """Create a sandbox; its init answers and waits for `start`. Idempotent by id."""
        sandbox = spec.identity.id
        check_env(spec.env)
        async with self._locks.setdefault(sandbox, asyncio.Lock()):
            if (live := self._live.get(sandbox)) is not None:
                return self._started(live)
            stack = await self.images.stack(spec.image)
            async with self._creating:
                try:
                    live = await self._create(spec, stack)
                except BaseException as error:
                    await asyncio.shield(self.launcher.erase(sandbox))
                    if isinstance(error, ValueError | OSError | RuntimeError):
                        raise SubstrateError(EndReason.START_FAILED, str(error)) from error
                    raise
            self._live[sandbox] = live
            return self._started(live)

    async def _create(self, spec: SandboxSpec, stack: Stack) -> _Live:
        record = self.launcher.record(spec.identity.id)
        if record.home.exists():
            await self.launcher.erase(spec.identity.id)  # half-made by a process that is gone
        pid = await self.launcher.launch(spec, stack)
        live = _Live(spec, record, stack, pid)
        await self._connect(live)
        return live

    async def _connect(self, live: _Live) -> None:
        """Connect to init. Raises RuntimeError with the last words of the launch."""
        sandbox = live.spec.identity.id

        def beat(message: dict[str, object]) -> None:
            body = message.get("body")
            self.on_heartbeat(sandbox, body if isinstance(body, dict) else {})

        async def call(method: str, path: str, body: bytes) -> tuple[int, bytes]:
            return await self.on_call(sandbox, method, path, body)

        try:
            live.link = await asyncio.wait_for(
                InitLink.connect(live.record.home, SOCKET, beat, call), _READY_SECONDS
            )
        except (OSError, LinkClosedError, TimeoutError) as error:
            why = last_line(live.record.home / "launch.log") or str(error)
            raise RuntimeError(f"init does not answer: {why}") from error
        if live.link.ready.get("registered"):
            # an agent that was killed between a heartbeat and its commit has not stored it
            self.on_heartbeat(sandbox, {})

    def _started(self, live: _Live) -> Started:
        return Started(pid=live.pid, evidence=self._evidence(live))

    def _evidence(self, live: _Live) -> Evidence:
        spec = live.spec
        evidence = self.cgroups.evidence(spec.identity.id, spec.resources)
        known = live.record.get("namespaces.json")
        if not known:
            with contextlib.suppress(OSError):
                numbers = namespace_numbers(live.pid)
                live.record.put("namespaces.json", numbers)
                known = dict(numbers)
        return evidence.model_copy(update=known)

    def _get(self, sandbox_id: str) -> _Live:
        live = self._live.get(sandbox_id)
        if live is None:
            raise SubstrateError(EndReason.INFRASTRUCTURE, f"{sandbox_id} is not on this node")
        return live

    def _link(self, sandbox_id: str) -> tuple[_Live, InitLink]:
        live = self._get(sandbox_id)
        if live.link is None or live.link.closed.is_set():
            raise SubstrateError(EndReason.INFRASTRUCTURE, f"init of {sandbox_id} is gone")
        return live, live.link

    async def start(self, sandbox_id: str) -> None:
        """Tell init to start the main command, with the environment of the contract. Idempotent."""
        live, link = self._link(sandbox_id)
        spec = live.spec
        stack = live.stack or await self.images.stack(spec.image)
        order: dict[str, object] = {
            "command": spec.command or stack.command or [f"{ocispec.PLATFORM}/bootstrap"],
            "env": rootfs.environment(spec, stack.env),
            "workdir": spec.workdir,
            "user": spec.user,
            "register": not spec.entrypoint_registers,
            "interval": spec.heartbeat_seconds,
            "hardCap": spec.output_hard_cap_bytes,
            "mountTries": self._mount_tries,
            "waitPaths": [rootfs.WORKSPACE, rootfs.DATASET],
        }
        stdin = spec.stdin
        if stdin is None and spec.item is not None:
            stdin = spec.item + "\n"
        await _sent(link.order(START, 0, order, (stdin or "").encode()))

    async def wait(self, sandbox_id: str) -> End:
        """Wait for the end of the main command: typed reason, evidence, newest output."""
        live = self._get(sandbox_id)
        report: dict[str, object] = {}
        while live.link is not None:
            try:
                report = await asyncio.shield(live.link.end)
                break
            except LinkClosedError:
                # PID 1 is dead, or only the connection is
                if live.record.init_pid() is None:
                    break
                try:
                    await self._connect(live)
                except RuntimeError:
                    break
        return await asyncio.to_thread(self._end, live, report or live.record.get("end.json"))

    def _end(self, live: _Live, report: dict[str, object]) -> End:
        cap = min(_TAIL_IN_END, live.spec.output_cap_bytes)
        out, out_total, out_lost = rings.read(live.record.stdout)
        err, err_total, err_lost = rings.read(live.record.stderr)
        counted = {
            "stdout_bytes": out_total,
            "stderr_bytes": err_total,
            "dropped_bytes": out_lost + err_lost,
        }
        evidence = self._evidence(live).model_copy(update=counted)
        end = ends.decide(report, evidence, live.spec, err)
        texts = {
            "stdout": rings.tail(out, out_lost, cap)[0].decode(errors="replace"),
            "stderr": rings.tail(err, err_lost, cap)[0].decode(errors="replace"),
        }
        return end.model_copy(update={**texts, "archive_partial": not report})

    async def stop(self, sandbox_id: str, grace: float) -> None:
        """SIGTERM to the main command's session, SIGKILL to every process after the grace."""
        live = self._get(sandbox_id)
        await self.resume(sandbox_id)  # a frozen process takes no signal
        if live.link is not None and not live.link.closed.is_set():
            with contextlib.suppress(LinkClosedError):
                await live.link.send(STOP, 0, f'{{"grace": {max(0.0, grace)}}}'.encode())

    async def cpu_seconds(self, sandbox_ids: Sequence[str]) -> dict[str, float]:
        """Return the CPU time that each has used so far, as its control group counts."""
        return await asyncio.to_thread(self._cpu_seconds, list(sandbox_ids))

    def _cpu_seconds(self, sandbox_ids: list[str]) -> dict[str, float]:
        found = ((one, self.cgroups.cpu_seconds(one)) for one in sandbox_ids)
        return {one: seconds for one, seconds in found if seconds is not None}

    async def pause(self, sandbox_id: str) -> None:
        """Freeze every process of the commands; init stays awake. Raises SubstrateError."""
        live = self._get(sandbox_id)
        try:
            await asyncio.to_thread(self.cgroups.freeze, sandbox_id)
        except OSError as error:
            raise SubstrateError(EndReason.INFRASTRUCTURE, f"cannot pause: {error}") from error
        live.paused = True
        live.record.put("paused.json", {"paused": True})

    async def resume(self, sandbox_id: str) -> None:
        """Thaw them. Idempotent."""
        live = self._get(sandbox_id)
        if live.paused:
            await asyncio.to_thread(self.cgroups.thaw, sandbox_id)
            live.paused = False
            live.record.put("paused.json", {"paused": False})

    async def exec(self, sandbox_id: str, request: ExecRequest) -> AsyncIterator[Chunk]:
        """Run a command; the last chunk carries exit_code or signal. Raises SubstrateError."""
        check_env(request.env)
        live, link = self._link(sandbox_id)
        if live.paused:
            raise SubstrateError(EndReason.START_FAILED, f"{sandbox_id} is paused")
        if not request.command:
            raise SubstrateError(EndReason.START_FAILED, "command: must not be empty")
        spec = live.spec
        stack = live.stack or await self.images.stack(spec.image)
        env = {**rootfs.environment(spec, stack.env), **request.env}
        workdir = request.workdir or spec.workdir
        async with contextlib.aclosing(
            streams.run_exec(link, request, env, workdir, request.user or spec.user)
        ) as chunks:
            async for chunk in chunks:
                yield chunk

    async def logs(self, sandbox_id: str, *, follow: bool) -> AsyncIterator[Chunk]:
        """Yield the kept output of the main command, then new output while it runs."""
        live = self._get(sandbox_id)
        async for chunk in streams.read_log(live.record, live.link, follow=follow):
            yield chunk

    async def archive(self, sandbox_id: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield (name, content) of the scene; never through a link."""
        live = self._get(sandbox_id)
        stack = live.stack or self.images.known(live.spec.image)
        context: dict[str, object] = {
            "image": live.spec.image,
            "digest": stack.digest if stack else "",
            "command": live.spec.command or (stack.command if stack else []),
            "env": rootfs.environment(live.spec, stack.env if stack else {}),
        }
        pid = live.record.init_pid()
        async for entry in streams.scene(live.spec, live.record, pid, context):
            yield entry

    @asynccontextmanager
    async def capture(
        self, sandbox_id: str, kind: SnapshotKind, paths: Sequence[str], *, still: bool
    ) -> AsyncIterator[Captured]:
        """Open the writable layer (disk) or these paths; `still`: frozen while this lasts."""
        live = self._get(sandbox_id)
        loop = self.launcher.disk == "loop"
        with capture.roots(live.record) as roots:
            if loop:
                # from here on the time of a file tells of each change through mapped memory
                await asyncio.to_thread(capture.write_back, roots[0])
            async with contextlib.AsyncExitStack() as held:
                if still:
                    await held.enter_async_context(self._frozen(live))
                    await held.enter_async_context(capture.held_still(self.launcher.init, roots[0]))
                found = held.enter_context(capture.trees(roots, kind, paths))
                yield Captured(found, self._digest(live), dated=loop)
                if still and live.record.init_pid() is None:
                    # who is killed is thawed first, and may have written
                    why = f"{sandbox_id} was destroyed while it was copied"
                    raise SubstrateError(EndReason.INFRASTRUCTURE, why)

    @asynccontextmanager
    async def _frozen(self, live: _Live) -> AsyncIterator[None]:
        """Freeze its processes; those of a paused one are left as they are, also at the end."""
        sandbox = live.spec.identity.id
        if live.paused:
            yield
            return
        try:
            await asyncio.to_thread(self.cgroups.freeze, sandbox)
        except OSError as error:
            raise SubstrateError(EndReason.INFRASTRUCTURE, f"cannot freeze: {error}") from error
        try:
            yield
        finally:
            if not live.paused:
                await asyncio.shield(asyncio.to_thread(self.cgroups.thaw, sandbox))

    @asynccontextmanager
    async def put_back(self, sandbox_id: str) -> AsyncIterator[Hollow]:
        """Open the root of a sandbox that waits for its start."""
        live = self._get(sandbox_id)
        with capture.roots(live.record) as (_, root):
            yield Hollow(capture.reach(root), self._digest(live))
            await in_thread(capture.write_files, root, rootfs.files(live.spec))

    def _digest(self, live: _Live) -> str:
        stack = live.stack or self.images.known(live.spec.image)
        return stack.digest if stack else ""

    async def destroy(self, sandbox_id: str) -> None:
        """Kill what lives, remove groups, namespaces, mounts and files. Idempotent."""
        async with self._locks.setdefault(sandbox_id, asyncio.Lock()):
            live = self._live.pop(sandbox_id, None)
            if live is not None:
                # what waits to write into a frozen file system cannot be killed
                await asyncio.to_thread(capture.thaw, live.record)
            if live is not None and live.link is not None:
                await live.link.close()
            await self.launcher.erase(sandbox_id)
        self._locks.pop(sandbox_id, None)

    async def adopt(self) -> list[tuple[SandboxSpec, Started | None]]:
        """Find what an earlier agent process left; remove what is half-made."""
        found: list[tuple[SandboxSpec, Started | None]] = []
        names = {home.name for home in self.launcher.sandboxes.iterdir()}
        for sandbox in sorted(names | self.cgroups.sandboxes()):
            if sandbox in self._live:
                continue
            record = self.launcher.record(sandbox)
            spec = record.spec()
            if spec is None or not record.get("created.json"):
                try:
                    await self.launcher.erase(sandbox)
                except OSError as error:
                    # nobody waits for it: the next start of the agent tries again
                    _log.warning("half-made sandbox stays", sandbox=sandbox, error=repr(error))
                continue
            live = _Live(spec, record, self.images.known(spec.image), 0)
            live.paused = bool(record.get("paused.json").get("paused"))
            pid = record.init_pid()
            if pid is not None:
                live.pid = pid
                await self._let_go(live)
                with contextlib.suppress(RuntimeError):
                    await self._connect(live)
            self._live[sandbox] = live
            found.append((spec, self._started(live) if live.link else None))
        self.launcher.sweep()
        return found

    async def _let_go(self, live: _Live) -> None:
        """Undo the freeze of a snapshot that an earlier agent process died in."""
        await asyncio.to_thread(capture.thaw, live.record)
        if not live.paused:
            await asyncio.to_thread(self.cgroups.thaw, live.spec.identity.id)

    async def close(self) -> None:
        """Let go of all sandboxes without touching them, as an agent does before its own end."""
        for live in self._live.values():
            if live.link is not None:
                await live.link.close()
        self._live.clear()
        await self.launcher.settle()


async def _sent(sending: Awaitable[None]) -> None:
    try:
        await sending
    except LinkClosedError as error:
        raise SubstrateError(EndReason.INFRASTRUCTURE, str(error)) from error
