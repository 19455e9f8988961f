"""The supervisor: keeps the parts of a plan running after the command line has gone.

Started detached by `ensure_supervisor`; ends on SIGTERM and then leaves the parts running, because
stopping them is an ordered affair of `down`. SIGHUP makes it read the plan again: new parts are
started, changed ones restarted, removed ones stopped. It holds no state that a new one could not
read from disk, so killing it costs only the restarts that would have happened meanwhile.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dsec.local.processes import (
    Identity,
    LocalError,
    Part,
    RunDirectory,
    identify,
    read_json,
    write_atomically,
)

_POLL_SECONDS = 0.2
_FIRST_BACKOFF, _LAST_BACKOFF = 0.5, 15.0
_STEADY_SECONDS = 60.0
"""A part that lived so long restarts without the backoff that earlier crashes earned it."""


class Supervisor:
    """One task per part: wait for what it needs, start or adopt, probe, watch, restart."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parts: dict[str, Part] = {}
        self._ready: dict[str, asyncio.Event] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._status: dict[str, dict[str, Any]] = {}
        self._plan = ""

    async def serve(self) -> None:
        """Run until SIGTERM."""
        loop = asyncio.get_running_loop()
        end, reload = asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, end.set)
        loop.add_signal_handler(signal.SIGINT, end.set)
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        reload.set()
        while not end.is_set():
            if reload.is_set():
                reload.clear()
                digest = self._run.plan_digest()
                await self._follow(self._run.plan())
                # only now: what the status says of any part is about this plan
                self._plan = digest
                self._write()
            await asyncio.sleep(_POLL_SECONDS)
        await self._cancel(list(self._tasks))

    async def _follow(self, plan: Sequence[Part]) -> None:
        wanted = {part.name: part for part in plan}
        changed = [name for name, part in self._parts.items() if wanted.get(name) != part]
        await self._cancel(changed)
        for name in [*changed, *(n for n in self._run.started() if n not in wanted)]:
            if name not in wanted or self._run.running(name, wanted[name].fingerprint()) is None:
                grace = self._parts[name].stop_seconds if name in self._parts else 10.0
                await asyncio.to_thread(self._run.stop, name, grace)
            self._parts.pop(name, None)
            self._status.pop(name, None)
        for name, part in wanted.items():
            if name not in self._parts:
                self._parts[name] = part
                self._ready.setdefault(name, asyncio.Event()).clear()
                self._say(name, "waiting", restarts=0)
                self._tasks[name] = asyncio.create_task(self._tend(part))

    async def _cancel(self, names: Sequence[str]) -> None:
        tasks = [self._tasks.pop(name) for name in names if name in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tend(self, part: Part) -> None:
        """Keep one part running, for ever."""
        backoff, ready = _FIRST_BACKOFF, self._ready[part.name]
        while True:
            for needed in part.after:
                await self._ready.setdefault(needed, asyncio.Event()).wait()
            begun = time.monotonic()
            try:
                identity = await self._begin(part)
            except LocalError as e:
                self._say(part.name, "failed", error=str(e))
                identity = None
            while identity is not None and self._alive(part.name, identity):
                if not ready.is_set() and await self._probe(part):
                    ready.set()
                    self._say(part.name, "ready")
                await asyncio.sleep(_POLL_SECONDS)
            ready.clear()
            child = self._children.pop(part.name, None)
            if time.monotonic() - begun > _STEADY_SECONDS:
                backoff = _FIRST_BACKOFF
            restarts = self._status[part.name]["restarts"] + 1
            code = child.returncode if child else None
            self._say(part.name, "crashed", restarts=restarts, exit=code)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _LAST_BACKOFF)

    async def _begin(self, part: Part) -> Identity | None:
        identity = self._run.running(part.name, part.fingerprint())
        if identity is None:
            # one that was started from an older plan must not run beside the new one
            await asyncio.to_thread(self._run.stop, part.name, part.stop_seconds)
            child = self._run.start(part)
            self._children[part.name] = child
            identity = identify(child.pid)
        self._say(part.name, "starting", pid=identity.pid if identity else None)
        return identity

    def _alive(self, name: str, identity: Identity) -> bool:
        child = self._children.get(name)
        if child is not None and child.pid == identity.pid:
            return child.poll() is None
        return identity.alive()

    async def _probe(self, part: Part) -> bool:
        return part.probe is None or await asyncio.to_thread(part.probe.passes)

    def _say(self, name: str, state: str, **more: Any) -> None:
        """Note a change of a part where `status` and `up` look for it."""
        now = {**self._status.get(name, {}), "state": state, "since": time.time(), **more}
        self._status[name] = now
        self._write()

    def _write(self) -> None:
        whole = {"pid": os.getpid(), "plan": self._plan, "parts": self._status}
        write_atomically(self._run.root / "status.json", json.dumps(whole, indent=1))


def supervisor_identity(run: RunDirectory) -> Identity | None:
    """Return the live supervisor of a run directory, or None."""
    stored = read_json(run.root / "supervisor.json")
    if stored is None:
        return None
    identity = Identity(stored["pid"], stored["start"], stored["boot"])
    return identity if identity.alive() else None


def ensure_supervisor(run: RunDirectory, prefix: Sequence[str] = ()) -> None:
    """Start the supervisor, or make the running one read the plan again.

    `prefix` is put before its command line; the parts inherit what that sets up (a network
    namespace, for example).
    """
    identity = supervisor_identity(run)
    if identity is not None:
        os.kill(identity.pid, signal.SIGHUP)
        return
    (run.root / "status.json").unlink(missing_ok=True)
    command = (*prefix, sys.executable, "-m", "dsec.local.supervisor", str(run.root))
    process = run.start(Part("supervisor", command, env={"PYTHONUNBUFFERED": "1"}))
    (run.root / "parts" / "supervisor.json").rename(run.root / "supervisor.json")
    if process.poll() is not None:
        raise LocalError(f"the supervisor did not start; see {run.logs / 'supervisor.log'}")


def wait_ready(
    run: RunDirectory, names: Sequence[str], seconds: float, on_change: Callable[[str, str], None]
) -> None:
    """Wait until all named parts of the stored plan are ready; call on_change at each change.

    Raises LocalError that names the parts that are not, with the last lines of their logs.
    """
    seen: dict[str, str] = {}
    deadline = time.monotonic() + seconds
    while True:
        told = read_json(run.root / "status.json") or {}
        # what it says of an older plan may be about a process that is to be replaced
        status = told["parts"] if told.get("plan") == run.plan_digest() else {}
        for name in names:
            state = status.get(name, {}).get("state", "waiting")
            if seen.get(name) != state:
                seen[name] = state
                on_change(name, state)
        if all(seen[name] == "ready" for name in names):
            return
        if time.monotonic() > deadline:
            late = [name for name in names if seen[name] != "ready"]
            raise LocalError(_lateness(run, late, seen, seconds))
        time.sleep(_POLL_SECONDS)


def _lateness(run: RunDirectory, late: Sequence[str], seen: dict[str, str], seconds: float) -> str:
    lines = [f"not ready after {seconds:.0f} s: " + ", ".join(f"{n} ({seen[n]})" for n in late)]
    culprit = next((n for n in late if seen[n] != "waiting"), late[0])
    log = run.logs / f"{culprit}.log"
    if log.exists():
        tail = log.read_text(errors="replace").splitlines()[-8:]
        lines += [f"the last lines of {log}:", *(f"  {line[:300]}" for line in tail)]
    return "\n".join(lines)


def main() -> None:
    """Run the supervisor of the run directory named as the only argument."""
    run = RunDirectory(Path(sys.argv[1]))
    with run.lock("supervisor", "another supervisor serves this directory"):
        asyncio.run(Supervisor(run).serve())


if __name__ == "__main__":
    main()
