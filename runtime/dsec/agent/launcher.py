"""Making and unmaking OCI containers for sandboxes; what oci.py runs them with."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import uuid
from pathlib import Path

from dsec.agent import ocispec, rings, rootfs
from dsec.agent.cgroups import SandboxCgroups
from dsec.agent.images import Stack
from dsec.agent.initlink import bind_listener
from dsec.agent.records import FIRST_FD, ROOTS, SOCKET, Record
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxSpec
from dsec.world.substrate import SubstrateError

_LAUNCH_SECONDS = 30.0


def find_runtime() -> tuple[str, str]:
    """Return (kind, path) of crun or else runc. Raises SubstrateError where neither is there."""
    for name in ("crun", "runc"):
        if path := shutil.which(name):
            return name, path
    raise SubstrateError(EndReason.START_FAILED, "neither crun nor runc is on PATH")


def find_init() -> Path:
    """Return dsec-init: DSEC_INIT, or on PATH. Raises SubstrateError where it is not."""
    found = os.environ.get("DSEC_INIT") or shutil.which("dsec-init")
    if found is None:
        raise SubstrateError(
            EndReason.START_FAILED, "dsec-init is not on PATH; set DSEC_INIT to a built one"
        )
    return Path(found)


def last_line(log: Path) -> str:
    """Return the last line of a log; empty where there is none."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


class Launcher:
    """Makes the directories, groups and process of a sandbox, and removes them again."""

    def __init__(
        self, state: Path, init: Path, cgroups: SandboxCgroups, runtime: tuple[str, str], disk: str
    ) -> None:
        """Use a state directory. `disk` is loop or tmpfs. Raises OSError."""
        self.sandboxes = state / "sandboxes"
        self.cgroups = cgroups
        self.disk = disk
        self.runtime = runtime
        self._trash = state / "trash"
        self._templates = state / "templates"
        for path in (self.sandboxes, self._trash, self._templates):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._platform = self._install(init, state / "platform")
        self._sweeping: set[asyncio.Task[None]] = set()
        self._more_trash = False

    @staticmethod
    def _install(init: Path, directory: Path) -> Path:
        """Copy init and the entry script to where every sandbox mounts them from, read-only."""
        known = init.stat()
        target = directory / f"{known.st_size:x}-{known.st_mtime_ns:x}"
        if not target.exists():
            draft = directory / f"draft-{uuid.uuid4().hex}"
            draft.mkdir(parents=True)
            shutil.copy2(init, draft / "init")
            script = subprocess.run([init, "bootstrap"], check=True, capture_output=True).stdout
            (draft / "bootstrap").write_bytes(script)
            for name in ("init", "bootstrap"):
                (draft / name).chmod(0o555)
            with contextlib.suppress(OSError):
                draft.rename(target)
            shutil.rmtree(draft, ignore_errors=True)
        return target

    @property
    def init(self) -> Path:
        """The init program that new sandboxes get; it also serves the node itself."""
        return self._platform / "init"

    def record(self, sandbox_id: str) -> Record:
        """Return the sandbox's directory, whether it exists or not."""
        return Record(self.sandboxes / sandbox_id)

    async def launch(self, spec: SandboxSpec, stack: Stack) -> int:
        """Make everything and start init; returns its process id.

        Raises PathError, OSError and RuntimeError; the caller erases what is half-made.
        """
        sandbox = spec.identity.id
        record = self.record(sandbox)
        (record.home / "rootfs").mkdir(parents=True, mode=0o700)
        (record.home / "disk").mkdir(mode=0o700)
        record.put("spec.json", spec.wire())
        (record.home / ocispec.LAYERS).symlink_to(stack.base)
        if self.disk == "loop":
            image = record.home / "disk.img"
            await asyncio.to_thread(
                rootfs.make_disk, self._templates, image, spec.resources.disk_bytes
            )
        await asyncio.to_thread(self.cgroups.create, sandbox, spec.resources, spec.cpus)
        with contextlib.ExitStack() as held:
            listener = held.enter_context(bind_listener(record.home, SOCKET))
            fds = [listener.fileno()]
            for path in (record.stdout, record.stderr):
                fds.append(rings.create(path, max(4096, spec.output_cap_bytes)))
                held.callback(os.close, fds[-1])
            fds.append(os.open(record.end_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            held.callback(os.close, fds[-1])
            argv = self._configure(spec, stack, record, fds)
            await self._run(argv, record.home / "launch.log", fds)
        pid = int((record.home / "pid").read_text())
        if self.runtime[0] == "runc":
            # runc enters one path in every hierarchy; init belongs outside of the limits
            for procs in self.cgroups.join_init(sandbox):
                procs.write_text(str(pid))
        record.write_created(pid)
        return pid

    def _configure(
        self, spec: SandboxSpec, stack: Stack, record: Record, fds: list[int]
    ) -> list[str]:
        sandbox, home = spec.identity.id, record.home
        join = len(self.cgroups.join_user(sandbox))
        kind, program = self.runtime
        arguments = ocispec.init_arguments(spec, self.cgroups.hierarchies.version, join)
        below = f"/{self.cgroups.parent}/{sandbox}" if kind == "runc" else None
        record.put("config.json", ocispec.runtime_config(spec, self._platform, arguments, below))
        argv = [program, "--root", str(home / "runtime")]
        if kind == "crun":
            argv += ["--cgroup-manager", "disabled"]
        argv += ["run", "--detach", "--bundle", str(home), "--pid-file", str(home / "pid")]
        # beside them the cgroup, and the two roots that `capture` reads
        argv += ["--preserve-fds", str(len(fds) + 1 + join + 2), sandbox]
        record.put(ROOTS, {"disk": FIRST_FD + len(fds) + 1 + join})
        value = ocispec.launch_spec(
            spec, stack, home, cgroups=self.cgroups, disk=self.disk, fds=fds, runtime=argv
        )
        record.put("launch.json", value)
        return [str(self.init), "launch", str(home / "launch.json")]

    async def _run(self, argv: list[str], log: Path, fds: list[int]) -> None:
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=fds,
                start_new_session=True,
            )  # fmt: skip
        try:
            code = await asyncio.wait_for(process.wait(), _LAUNCH_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            name = self.runtime[0]
            raise RuntimeError(f"{name} did not return within {_LAUNCH_SECONDS:g} s") from None
        if code:
            raise RuntimeError(last_line(log) or f"{self.runtime[0]} ended with {code}")

    async def erase(self, sandbox_id: str) -> None:
        """Kill what lives and remove groups and files. Idempotent. Raises TimeoutError."""
        await asyncio.to_thread(self.cgroups.remove, sandbox_id)
        home = self.sandboxes / sandbox_id
        with contextlib.suppress(FileNotFoundError):
            home.rename(self._trash / f"{sandbox_id}-{uuid.uuid4().hex}")
        self.sweep()

    def sweep(self) -> None:
        """Delete the trash in the background: large removals are in nobody's way."""
        self._more_trash = True
        if not self._sweeping:
            task = asyncio.create_task(self._sweep(), name="trash")
            self._sweeping.add(task)
            task.add_done_callback(self._sweeping.discard)

    async def _sweep(self) -> None:
        while self._more_trash:
            self._more_trash = False
            await asyncio.to_thread(self._empty_trash)

    def _empty_trash(self) -> None:
        for entry in self._trash.iterdir():
            shutil.rmtree(entry, ignore_errors=True)

    async def settle(self) -> None:
        """Wait until the trash is empty."""
        while self._sweeping:
            await asyncio.gather(*self._sweeping)
