"""A substrate that runs nothing: delays, failures and ends drawn from a profile.

For simulated nodes and tests. It keeps a few hundred bytes per sandbox. Time passes on the clock
that it is given; what it "runs" lives as long as this object, also over restarts of the agent.

`DSEC_SIM_SECONDS` in a sandbox's environment is its run time in seconds ("0.5"); without it the
profile decides, by default: until it is stopped. `DSEC_SIM_EXIT` is its exit status (0), and
`DSEC_SIM_USE` the share of its CPU that it uses while it is not paused ("0.5"). With
`DSEC_SIM_SILENT` it registers, and beats no more.

Its state is one file, `/workspace/state.json`: the seconds that it has run for, over all restores.
What is restored goes on from there, and its run time is what is left.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, Evidence, IsolationLevel, SandboxSpec
from dsec.api.snapshot import SnapshotKind
from dsec.api.wire import Device, NodeInventory
from dsec.world.clock import Clock, Randomness
from dsec.world.substrate import (
    Captured,
    Chunk,
    ExecRequest,
    Hollow,
    OnCall,
    Started,
    SubstrateError,
    Tree,
    nobody,
)

RUN_SECONDS = "DSEC_SIM_SECONDS"
EXIT_CODE = "DSEC_SIM_EXIT"
USE = "DSEC_SIM_USE"
SILENT = "DSEC_SIM_SILENT"
WORKSPACE, STATE = "workspace", "state.json"
GPU_MODES = ["whole", "mps", "mig", "passthrough", "shares"]


@dataclass(frozen=True, slots=True)
class Profile:
    """What a simulated machine has and how it behaves.

    Delays are (shortest, longest) in seconds, drawn evenly; probabilities are per sandbox; `leaves`
    names the files of each sandbox's scene.
    """

    name: str
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int = 8 << 40
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_bytes: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    max_sandboxes: int = 2000
    pull: tuple[float, float] = (0.0, 0.0)
    boot: tuple[float, float] = (0.05, 0.3)
    register: tuple[float, float] = (0.01, 0.1)
    run: tuple[float, float] | None = None
    start_failure: float = 0.0
    never_registers: float = 0.0
    crash: float = 0.0
    use: float = 0.5
    leaves: tuple[str, ...] = ()


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="8xa100",
            cpu_milli=128_000,
            memory_bytes=1 << 40,
            gpus=8,
            gpu_model="NVIDIA A100-SXM4-80GB",
            gpu_memory_bytes=80 << 30,
            labels={"gpu-type": "a100"},
        ),
        Profile(name="cpu", cpu_milli=64_000, memory_bytes=256 << 30),
    )
}
"""The machines that `dsec sim nodes add --profile` knows."""


@dataclass(slots=True)
class _Run:
    spec: SandboxSpec
    started: Started
    ended: asyncio.Future[End]
    task: asyncio.Task[None] | None = None
    paused: bool = False
    registered: bool = False
    used: float = 0.0
    """CPU seconds until `since` (monotonic)."""
    since: float | None = None
    begun: float | None = None
    """When its command was started (monotonic)."""
    before: float = 0.0
    """Seconds that it had run for in the snapshot that it was restored from."""


class SimulatedSubstrate:
    """One simulated machine."""

    def __init__(
        self, profile: Profile, clock: Clock, randomness: Randomness, *, node: str = "sim"
    ) -> None:
        self.on_heartbeat: Callable[[str, dict[str, object]], None] = lambda _id, _body: None
        self.on_call: OnCall = nobody
        self._profile = profile
        self._clock = clock
        self._randomness = randomness
        self._node = node
        self._images: set[str] = set()
        self._runs: dict[str, _Run] = {}
        self._namespaces = 0

    async def inventory(self) -> NodeInventory:
        """Return what the profile has; it offers every isolation level, GPU mode and pvc."""
        profile = self._profile
        return NodeInventory(
            cpu_milli=profile.cpu_milli,
            memory_bytes=profile.memory_bytes,
            disk_bytes=profile.disk_bytes,
            pids=1 << 22,
            max_sandboxes=profile.max_sandboxes,
            devices=[
                Device(
                    uuid=f"GPU-sim-{self._node}-{index}",
                    index=index,
                    model=profile.gpu_model,
                    memory_bytes=profile.gpu_memory_bytes,
                    modes=GPU_MODES,
                )
                for index in range(profile.gpus)
            ],
            isolation=[IsolationLevel.CONTAINER, IsolationLevel.GVISOR, IsolationLevel.MICROVM],
            features={"pvc": "simulated", "cpuset": "simulated", "profile": profile.name},
            simulated=True,
        )

    async def prepare_image(self, image: str) -> None:
        """Wait as long as a pull takes, once per image."""
        if image not in self._images:
            await self._delay(self._profile.pull)
            self._images.add(image)

    async def create(self, spec: SandboxSpec) -> Started:
        """Wait as long as a boot takes; fail as often as the profile says."""
        sandbox_id = spec.identity.id
        if (run := self._runs.get(sandbox_id)) is not None:
            return run.started
        await self._delay(self._profile.boot)
        if self._randomness.random() < self._profile.start_failure:
            raise SubstrateError(EndReason.START_FAILED, "simulated start failure")
        self._namespaces += 1
        evidence = Evidence(
            pid_namespace=self._namespaces,
            net_namespace=self._namespaces,
            cgroup=f"/simulated/{self._node}/{sandbox_id}",
        )
        started = Started(pid=self._namespaces, evidence=evidence)
        ended = asyncio.get_running_loop().create_future()
        self._runs[sandbox_id] = _Run(spec, started, ended)
        return started

    async def start(self, sandbox_id: str) -> None:
        """Let the simulated command run."""
        run = self._run(sandbox_id)
        if run.task is None:
            run.since = run.begun = self._clock.monotonic()
            run.task = asyncio.create_task(self._live(run))

    async def wait(self, sandbox_id: str) -> End:
        """Wait for the drawn end."""
        return await asyncio.shield(self._run(sandbox_id).ended)

    async def stop(self, sandbox_id: str, grace: float) -> None:  # noqa: ARG002 - it obeys at once
        """End it as a command that obeys SIGTERM does."""
        if (run := self._runs.get(sandbox_id)) is not None:
            self._end(run, EndReason.SIGNALED, exit_code=None, signal=15)

    async def cpu_seconds(self, sandbox_ids: Sequence[str]) -> dict[str, float]:
        """Return what each would have used by now, and let those that run beat.

        A timer of each would do nothing else all day: who looks sees beats as fresh as real ones.
        """
        runs = [(one, self._runs[one]) for one in sandbox_ids if one in self._runs]
        for one, run in runs:
            runs_on = run.registered and not run.paused and not run.ended.done()
            if runs_on and SILENT not in run.spec.env:
                self.on_heartbeat(one, {})
        return {one: self._used(run) for one, run in runs}

    async def pause(self, sandbox_id: str) -> None:
        """Note that it is paused; its drawn run time goes on."""
        run = self._run(sandbox_id)
        run.used, run.since, run.paused = self._used(run), None, True

    async def resume(self, sandbox_id: str) -> None:
        """Note that it runs."""
        run = self._run(sandbox_id)
        run.used, run.since, run.paused = self._used(run), self._clock.monotonic(), False

    async def exec(self, sandbox_id: str, request: ExecRequest) -> AsyncIterator[Chunk]:
        """Echo the command line and its input."""
        self._run(sandbox_id)
        yield Chunk("stdout", (" ".join(request.command) + "\n").encode())
        if request.stdin:
            yield Chunk("stdout", request.stdin)
        yield Chunk("end", exit_code=0)

    async def logs(self, sandbox_id: str, *, follow: bool) -> AsyncIterator[Chunk]:
        """Yield one line; with follow, wait for the end."""
        run = self._run(sandbox_id)
        yield Chunk("stdout", b"simulated\n")
        if follow:
            await asyncio.shield(run.ended)

    async def archive(self, sandbox_id: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield what the profile says that a sandbox leaves behind."""
        if sandbox_id in self._runs:
            for name in self._profile.leaves:
                yield name, b"simulated\n"

    @asynccontextmanager
    async def capture(
        self,
        sandbox_id: str,
        kind: SnapshotKind,  # noqa: ARG002 - every kind of it is the same
        paths: Sequence[str],  # noqa: ARG002 - and so are all paths
        *,
        still: bool,  # noqa: ARG002 - nothing moves while this is read
    ) -> AsyncIterator[Captured]:
        """Write its state where it can be read."""
        run = self._run(sandbox_id)
        ran = self._ran(run)
        with tempfile.TemporaryDirectory(prefix="dsec-sim-") as folder:
            (Path(folder) / STATE).write_text(json.dumps({"ran": ran}))
            yield Captured((Tree(Path(folder), f"/{WORKSPACE}"),), dated=False)

    @asynccontextmanager
    async def put_back(self, sandbox_id: str) -> AsyncIterator[Hollow]:
        """Take over the state that is put into the workspace."""
        run = self._run(sandbox_id)
        with tempfile.TemporaryDirectory(prefix="dsec-sim-") as folder:
            (Path(folder) / WORKSPACE).mkdir()
            yield Hollow(Path(folder))
            with contextlib.suppress(FileNotFoundError):
                state = json.loads((Path(folder) / WORKSPACE / STATE).read_text())
                run.before = float(state["ran"])

    async def destroy(self, sandbox_id: str) -> None:
        """Forget it."""
        if (run := self._runs.pop(sandbox_id, None)) is not None:
            if run.task is not None:
                run.task.cancel()
            run.ended.cancel()

    async def adopt(self) -> list[tuple[SandboxSpec, Started | None]]:
        """Return what an earlier agent on this object left.

        Registrations are told again: the earlier agent may have died before it stored one.
        """
        for sandbox_id, run in self._runs.items():
            if run.registered:
                self.on_heartbeat(sandbox_id, {})
        return [
            (run.spec, None if run.ended.done() else run.started) for run in self._runs.values()
        ]

    async def _live(self, run: _Run) -> None:
        profile, spec = self._profile, run.spec
        if self._randomness.random() >= profile.never_registers:
            await self._delay(profile.register)
            identity = spec.identity
            run.registered = True
            self.on_heartbeat(identity.id, {"task_id": identity.task_id, "role": identity.role})
        seconds = self._seconds(spec)
        if seconds is None:
            return
        await self._clock.sleep(max(0.0, seconds - run.before))
        if self._randomness.random() < profile.crash:
            self._end(run, EndReason.SIGNALED, exit_code=None, signal=11)
            return
        code = 0
        with contextlib.suppress(ValueError):
            code = int(spec.env.get(EXIT_CODE, "0"))
        self._end(run, EndReason.FAILED if code else EndReason.COMPLETED, exit_code=code)

    def _ran(self, run: _Run) -> float:
        """Return the seconds that it has run for, over all restores."""
        return run.before + (self._clock.monotonic() - run.begun if run.begun is not None else 0.0)

    def _used(self, run: _Run) -> float:
        """Return the CPU seconds that a simulated command has used."""
        if run.since is None:
            return run.used
        share = self._profile.use
        with contextlib.suppress(KeyError, ValueError):
            share = float(run.spec.env[USE])
        cores = run.spec.resources.cpu_milli / 1000
        return run.used + (self._clock.monotonic() - run.since) * share * cores

    def _seconds(self, spec: SandboxSpec) -> float | None:
        """Return the run time in seconds; None: until stopped."""
        with contextlib.suppress(KeyError, ValueError):
            return max(0.0, float(spec.env[RUN_SECONDS]))
        return self._draw(self._profile.run) if self._profile.run is not None else None

    def _end(
        self, run: _Run, reason: EndReason, *, exit_code: int | None, signal: int | None = None
    ) -> None:
        if not run.ended.done():
            evidence = run.started.evidence
            run.ended.set_result(
                End(reason=reason, exit_code=exit_code, signal=signal, evidence=evidence)
            )

    def _run(self, sandbox_id: str) -> _Run:
        try:
            return self._runs[sandbox_id]
        except KeyError:
            raise SubstrateError(
                EndReason.INFRASTRUCTURE, f"no simulated sandbox {sandbox_id}"
            ) from None

    def _draw(self, span: tuple[float, float]) -> float:
        return span[0] + (span[1] - span[0]) * self._randomness.random()

    async def _delay(self, span: tuple[float, float]) -> None:
        if span[1] > 0:
            await self._clock.sleep(self._draw(span))
