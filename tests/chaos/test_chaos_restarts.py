"""Kill -9 of the parts while real sandboxes run: users see the same table as without it."""

import dataclasses
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from chaos_world import Real, client_of, many, say
from control_plane import Plane
from dsec.api.sandbox import SandboxStatus
from dsec.cli.grading import COMMAND, LIMITS, Program, grade, must_fail, solutions
from dsec.client.batch import Progress

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.timeout(240)]

QUICK = ("syntax-error", "exit-at-import", "exit-137-is-no-kill", "signal/segmentation-fault")
SECONDS = 1.5
"""What each program of the small batch waits first, so that parts die while it runs."""


def programs(count: int) -> list[Program]:
    """Return so many programs with a known end; up to 20 are quick ones."""
    if count > 20:
        return [*solutions(), *must_fail()][:count]
    failing = [one for one in must_fail() if one.name in QUICK]
    chosen = [*solutions()[: count - len(failing)], *failing]
    wait = f"import time\ntime.sleep({SECONDS})\n"
    return [dataclasses.replace(one, source=wait + one.source) for one in chosen]


class Killer:
    """Kills parts when so many of a batch have ended, and starts each again at once."""

    def __init__(self, plane: Plane, schedule: dict[int, str]) -> None:
        self._plane = plane
        self._schedule = schedule
        self._threads: list[threading.Thread] = []
        self.killed: list[str] = []

    def __call__(self, progress: Progress) -> None:
        """Look at how far the batch is; called by the client."""
        for ended in [n for n in sorted(self._schedule) if n <= progress.ended]:
            part = self._schedule.pop(ended)
            name = self._plane.office()[0] if part == "controller" else part
            self.killed.append(f"{name} at {progress.ended}")
            thread = threading.Thread(target=self._strike, args=(name,))
            thread.start()
            self._threads.append(thread)

    def _strike(self, name: str) -> None:
        self._plane.kill(name)
        self._plane.restart(name)

    def join(self) -> None:
        """Wait until everything was started again."""
        for thread in self._threads:
            thread.join()


def table(results: list[SandboxStatus]) -> list[tuple[object, ...]]:
    """Return what users see of each result, without what differs from run to run."""
    return [
        (one.identity.index, end.reason, end.exit_code, end.signal, end.stdout, end.stderr)
        for one in results
        if (end := one.end) is not None
    ]


def assert_once(results: list[SandboxStatus]) -> None:
    """Hold that every sandbox ran once, in namespaces and a cgroup that no other one had."""
    assert {one.identity.incarnation for one in results} == {1}
    evidence = [one.end.evidence for one in results if one.end is not None]
    seen = {
        "sandboxes": [one.identity.id for one in results],
        "cgroups": [one.cgroup for one in evidence],
        # inodes of namespaces are given again; these numbers, of newer kernels, are not
        "pid namespaces": [one.pid_namespace_id for one in evidence if one.pid_namespace_id],
        "net namespaces": [one.net_namespace_id for one in evidence if one.net_namespace_id],
    }
    for what, found in seen.items():
        assert len(set(found)) == len(found), (what, Counter(found).most_common(3))


@pytest.mark.parametrize("count", many(20, 200))
def test_killed_parts_do_not_change_the_table(plane: Plane, real: Real, count: int) -> None:
    """Agent, gateway and leading controller die amid a batch; every sandbox runs once."""
    wanted = programs(count)
    items = [one.item() for one in wanted]
    with client_of(plane) as client:

        def run(killer: Killer | None) -> tuple[list[SandboxStatus], float]:
            start = time.monotonic()
            results = client.run(
                image=real.image,
                command=COMMAND,
                items=items,
                timeout_seconds=5.0 * count,
                on_progress=killer,
                **LIMITS,
            )
            return results, time.monotonic() - start

        quiet, calm = run(None)
        surprises = [(p.name, s.end) for p, s in grade(wanted, quiet).surprises]
        assert not surprises
        schedule = {count // 10: "agent", count * 3 // 10: "gateway", count // 2: "controller"}
        killer = Killer(plane, schedule)
        shaken, rough = run(killer)
        killer.join()
        assert len(killer.killed) == 3, killer.killed
    surprises = [(p.name, s.end) for p, s in grade(wanted, shaken).surprises]
    assert not surprises
    if count <= 20:
        assert table(shaken) == table(quiet)
    assert_once(shaken)
    say(
        f"{count} real sandboxes: {grade(wanted, quiet).line} in {calm:.1f} s undisturbed; "
        f"{grade(wanted, shaken).line} in {rough:.1f} s with kill -9 of {', '.join(killer.killed)}"
    )


@pytest.mark.parametrize("count", many(40, 200))
def test_an_agent_restarts_under_live_sandboxes(plane: Plane, real: Real, count: int) -> None:
    """Kill -9 of the agent: no process of any sandbox ends, and commands run in them after."""
    with client_of(plane) as client:
        start = time.monotonic()
        answers = real.sleepers(client, count)
        ids = {answer.id for answer in answers}
        assert len(ids) == count

        def running() -> set[str]:
            return {one.identity.id for one in client.sandboxes(state="running")} & ids

        plane.until("all run", lambda: running() == ids, 180)
        made = time.monotonic() - start
        before = real.processes()
        memory = real.private_kib(before)
        assert len(before) >= 2 * count, "an init and a command in each"
        plane.kill("agent")
        killed = time.monotonic()
        plane.restart("agent")
        plane.until("the agent is back", lambda: real.answers(client, since=killed), 60)
        registered = time.monotonic() - killed
        plane.until("the gateway sees all of them", lambda: running() == ids, 60)
        assert real.processes() == before
        served = time.monotonic()
        for sandbox in sorted(ids)[:: max(1, count // 20)]:
            result = client.exec_result(sandbox, ["sh", "-c", "echo $0 alive", sandbox])
            assert result.stdout == f"{sandbox} alive\n".encode()
        took = time.monotonic() - served
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(client.stop, ids))
        plane.until("all stopped", lambda: not running() and not real.processes(), 120)
    say(
        f"{count} real sandboxes made in {made:.1f} s, {memory / count:.0f} KiB of private memory "
        f"each; after kill -9 the agent answered in {registered:.1f} s with all {count} running, "
        f"the same {len(before)} processes; commands in a sample of them took {took:.1f} s"
    )
