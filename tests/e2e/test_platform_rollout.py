"""Parts of the platform are killed or rolled out under load: work goes on, results are the same.

Real sandboxes on the local cluster. Small counts here; the full ones are marked `soak`. Tests leave
the platform as they found it, with the experiments of the stack alone.
"""

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Resources, SandboxState, SandboxStatus
from dsec.api.wire import KeyedCreate
from dsec.cli import grading
from dsec.client import Client, DsecError, NotFoundError, UnknownOutcomeError
from dsec.client.batch import Progress
from dsec.local.cluster import api
from dsec.local.processes import Identity, identify
from platform_stack import Stack, same, wait

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pulumi,
    pytest.mark.root,
    pytest.mark.timeout(600),
]

LOG = logging.getLogger(__name__)
SYSTEM = "dsec-system"
NODES = "/apis/dsec.dev/v1alpha1/sandboxnodes"
TINY = Resources(cpu_milli=5, memory_bytes=16 << 20, pids=16, disk_bytes=4 << 20)
"""So little that 200 fit a node of two cores beside the stack's own experiments."""
SLEEP = ["sleep", "3600"]
OF_THE_STACK = 7
"""Sandboxes that the stack's own experiments keep."""
SAMPLE = 6
MOST_TRIES = 5
PARTS = ("controller", "gateway", "agent", "containerd")
STARTED = "dsec.dev/started-again"


@dataclass
class World:
    """The platform, a client of it, and its processes as the host sees them."""

    stack: Stack
    dsec: Client
    image: str

    def pods(self, part: str) -> dict[str, dict[str, Any]]:
        """Return the pods of a part that are not being deleted, by uid."""
        path = f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector=app.kubernetes.io/name=dsec-{part}"
        found = self.stack.get(path)["items"]
        return {
            one["metadata"]["uid"]: one
            for one in found
            if "deletionTimestamp" not in one["metadata"]
        }

    def replaced(self, part: str, before: set[str]) -> bool:
        """Say whether every pod of a part is another one than before, and ready."""
        now = self.pods(part)
        return bool(now) and not before & now.keys() and all(map(_is_ready, now.values()))

    def process(self, part: str) -> Identity:
        """Return the process of a part: of a pod, or of the cluster's own."""
        if part == "containerd":
            found = self.stack.cluster.run.running(part)
            assert found is not None
            return found
        uids = {form for uid in self.pods(part) for form in (uid, uid.replace("-", "_"))}
        program = b"dsec.controllers" if part == "controller" else f"dsec.{part}".encode()
        for entry in Path("/proc").iterdir():
            try:
                ours = (entry / "cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", program]
                if ours and any(uid in (entry / "cgroup").read_text() for uid in uids):
                    identity = identify(int(entry.name))
                    assert identity is not None
                    return identity
            except OSError:
                continue
        raise AssertionError(f"no process of {part} runs")

    def kill(self, part: str) -> None:
        """Kill -9, and wait until it is gone."""
        identity = self.process(part)
        os.kill(identity.pid, signal.SIGKILL)
        wait(f"{part} is dead", lambda: not identity.alive())

    def incarnation(self) -> int:
        """Return how often the node's agent has started."""
        record = self.stack.get(f"{NODES}/{self.stack.cluster.node_name}")
        return int(record["status"]["incarnation"])

    def live(self) -> set[str]:
        """Return the ids of all sandboxes of the project that have not ended."""
        return {one.identity.id for one in self.dsec.sandboxes() if one.end is None}

    def running(self) -> dict[str, SandboxStatus]:
        """Return all running sandboxes of the project, by id."""
        found = self.dsec.sandboxes(state=SandboxState.RUNNING)
        return {one.identity.id: one for one in found}

    def roll(self, kind: str, name: str) -> None:
        """Roll out a workload, as `kubectl rollout restart` does."""
        path = f"/apis/apps/v1/namespaces/{SYSTEM}/{kind}/{name}"
        note = {"metadata": {"annotations": {STARTED: str(time.time_ns())}}}
        self.stack.patch(path, {"spec": {"template": note}})

    def processes(self, ids: set[str]) -> dict[str, tuple[Identity, ...]]:
        """Return init and the main command of each sandbox; by id, with their start times."""
        home = self.stack.cluster.agent_directory / "substrate" / "sandboxes"
        found: dict[str, tuple[Identity, ...]] = {}
        for sandbox in ids:
            init = int((home / sandbox / "pid").read_text())
            children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
            alive = [identify(pid) for pid in (init, *map(int, children))]
            found[sandbox] = tuple(one for one in alive if one is not None)
        return found


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@pytest.fixture(scope="module")
def platform(stack: Stack) -> Iterator[World]:
    """Return the platform, up, with the experiments of the stack running."""
    stack.bring_up()
    with Client(stack.context()) as dsec:
        made = World(stack, dsec, "")
        wait("the stack's experiments run", lambda: len(made.running()) >= OF_THE_STACK, 120)
        made.image = next(iter(made.running().values())).image
        yield made


@pytest.fixture
def world(platform: World) -> Iterator[World]:
    """Return the platform; takes away what the test made."""
    wait("the stack's experiments run", lambda: len(platform.running()) >= OF_THE_STACK)
    dsec, before = platform.dsec, platform.running().keys()
    known = {one["metadata"]["name"] for one in dsec.list()}
    yield platform
    for name in {one["metadata"]["name"] for one in dsec.list()} - known:
        dsec.delete(name)
    direct = [
        one.identity.id
        for one in dsec.sandboxes()
        if one.end is None and not one.identity.experiment
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(dsec.stop, direct))
    wait("only the stack's sandboxes are left", lambda: platform.live() == before, 240)


# roll-outs of the agent


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_agents_come_and_go_and_no_sandbox_ends(world: World, count: int) -> None:
    """A deleted pod and a roll-out: all processes are the same, exec works, the node is back."""
    by_key, tag = count // 4, time.time_ns()
    creates = [
        KeyedCreate(key=f"stay-{tag}-{n}", image=world.image, command=SLEEP, resources=TINY)
        for n in range(by_key)
    ]
    others = world.running().keys()
    answers = world.dsec.create_batch(creates)
    assert Counter(one.outcome for one in answers) == {"bound": by_key}
    name = _keep(world, count - by_key)
    wait("all run", lambda: len(world.running()) == len(others) + count, 240)
    ids = world.running().keys() - others
    before: dict[str, tuple[Identity, ...]] = {}

    def begun() -> bool:
        # a sandbox runs from its registration on, a moment before its command does
        before.update(world.processes(ids))
        return all(len(pair) == 2 for pair in before.values())

    wait("each has its command", begun)

    def delete_pod() -> None:
        (pod,) = world.pods("agent").values()
        with api(world.stack.cluster) as client:
            client.delete(f"/api/v1/namespaces/{SYSTEM}/pods/{pod['metadata']['name']}")

    for act in (delete_pod, lambda: world.roll("daemonsets", "dsec-agent")):
        _without_harm(world, act, ids, before)

    def counted() -> tuple[int, int]:
        status = world.dsec.get(name)["status"]
        return status["ready"], status.get("ended", 0)

    same(counted, (count - by_key, 0))
    again = world.dsec.create_batch(creates)
    assert [one.id for one in again] == [one.id for one in answers]
    assert {one.outcome for one in again} == {"exists"}


def _keep(world: World, replicas: int) -> str:
    """Submit an experiment that keeps so many sandboxes; return its name."""
    role = {
        "name": "worker",
        "replicas": replicas,
        "command": SLEEP,
        "resources": TINY.model_dump(
            by_alias=True, include={"cpu_milli", "memory_bytes", "pids", "disk_bytes"}
        ),
    }
    document = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": "stay"},
        "spec": {"roles": [role]},
    }
    return str(world.dsec.submit(document)["metadata"]["name"])


def _without_harm(
    world: World,
    act: Callable[[], None],
    ids: set[str],
    before: dict[str, tuple[Identity, ...]],
) -> None:
    """Replace the agent's pod and check that each sandbox is what it was."""
    pods, incarnation = set(world.pods("agent")), world.incarnation()
    start = time.monotonic()
    act()
    wait("the agent's pod is another one", lambda: world.replaced("agent", pods), 180)
    wait("the node has registered again", lambda: world.incarnation() > incarnation, 60)
    assert world.processes(ids) == before
    wait("the gateway sees all of them run", lambda: ids <= world.running().keys(), 60)
    LOG.info("%d sandboxes went on; node back in %.1f s", len(ids), time.monotonic() - start)
    for sandbox in sorted(ids)[:: max(1, len(ids) // SAMPLE)]:
        result = world.dsec.exec_result(sandbox, ["sh", "-c", "echo here; exit 3"])
        assert (result.end.exit_code, result.stdout) == (3, b"here\n")
    assert world.processes(ids) == before


# kill -9 during HumanEval


def _some() -> list[grading.Program]:
    """Return twenty programs: sixteen that pass, and four that fail each in its own way.

    Each waits a little longer than the one before: they end one by one over some twenty seconds,
    so that the parts die amid the run on a quick machine, too.
    """
    failing = {"exception", "exit-143-is-no-term", "memory/doubling", "fork-bomb"}
    chosen = [
        *grading.solutions()[:16],
        *(one for one in grading.must_fail() if one.name in failing),
    ]
    return [
        replace(one, source=f"import time\ntime.sleep({2 + 0.6 * number})\n{one.source}")
        for number, one in enumerate(chosen)
    ]


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param(_some, id="20"),
        pytest.param(grading.programs, id="200", marks=pytest.mark.soak),
    ],
)
def test_kills_during_humaneval_change_no_result(
    world: World, programs: Callable[[], list[grading.Program]]
) -> None:
    """Controller, gateway, agent and containerd die in turn; the table is that of a calm run."""
    wanted = programs()
    calm = _run(world, wanted, lambda _: None)
    seen: list[int] = []
    running = threading.Event()

    def look(progress: Progress) -> None:
        seen.append(progress.ended)
        running.set()

    with ThreadPoolExecutor(1) as pool:
        disturbed: Future[list[SandboxStatus]] = pool.submit(_run, world, wanted, look)
        running.wait(60)
        for number, part in enumerate(PARTS, start=1):
            due = len(wanted) * number // (len(PARTS) + 2)
            wait(f"{due} have ended", partial(_so_far, disturbed, seen, due), 240)
            assert not disturbed.done(), f"the run was over before {part} was killed"
            world.kill(part)
            LOG.info("%s was killed after %d of %d had ended", part, seen[-1], len(wanted))
        results = disturbed.result(400)
    assert _table(wanted, results) == _table(wanted, calm)
    grades = grading.grade(wanted, results)
    assert grades.as_expected, [(one.name, status.end) for one, status in grades.surprises]
    assert len({one.identity.id for one in results}) == len(wanted)
    assert {one.identity.incarnation for one in results} == {1}
    wait("all parts are back", lambda: all(_up(world, part) for part in PARTS), 120)


def _so_far(run: Future[list[SandboxStatus]], seen: list[int], due: int) -> bool:
    return run.done() or seen[-1] >= due


def _run(
    world: World, wanted: list[grading.Program], look: Callable[[Progress], None]
) -> list[SandboxStatus]:
    limits = grading.LIMITS
    if len(wanted) == len(_some()):
        # none of these is to end by its deadline, and they wait, some on a busy machine
        limits = limits | {"max_run_seconds": 120}
    return world.dsec.run(
        command=grading.COMMAND,
        items=[one.item() for one in wanted],
        timeout_seconds=380,
        on_progress=look,
        **limits,
    )


def _table(
    wanted: list[grading.Program], results: list[SandboxStatus]
) -> list[tuple[str, EndReason | None, bool]]:
    """Return name, reason and whether the evidence proves it, in order."""
    return [
        (program.name, status.end.reason if status.end else None, program.fits(status))
        for program, status in zip(wanted, results, strict=True)
    ]


def _up(world: World, part: str) -> bool:
    try:
        world.process(part)
    except AssertionError:
        return False
    return part == "containerd" or all(map(_is_ready, world.pods(part).values()))


# a roll-out of the gateway


def test_programs_do_not_notice_a_new_gateway(world: World) -> None:
    """Creates by key, reads and ends go on; an exec either tells the truth or says it cannot."""
    others = world.running().keys()
    stays = world.dsec.create(
        image=world.image, command=SLEEP, resources=TINY, key=f"exec-{time.time_ns()}"
    ).id
    wait("it runs", lambda: stays in world.running())
    pods = set(world.pods("gateway"))
    world.roll("deployments", "dsec-gateway")
    made: dict[str, str] = {}
    unsure, refused = Counter[str](), Counter[str]()
    tag, over = time.time_ns(), False
    while not over:
        # the last turn is one with the new gateway alone
        over = world.replaced("gateway", pods)
        key = f"turn-{tag}-{len(made)}"
        made[key] = _settled(world, key, unsure)
        assert world.dsec.sandbox(made[key]).identity.id == made[key]
        try:
            result = world.dsec.exec_result(stays, ["echo", key])
            assert (result.end.exit_code, result.stdout) == (0, f"{key}\n".encode())
        except NotFoundError:
            raise
        except DsecError as error:
            refused[type(error).__name__] += 1
        assert len(made) < 150, "the roll-out does not end"
    assert len(set(made.values())) == len(made)
    assert {key: _settled(world, key, unsure) for key in made} == made
    same(lambda: world.live() - others, {stays, *made.values()})
    LOG.info("%d turns; unsure: %s; exec could not say: %s", len(made), unsure, refused)


def _settled(world: World, key: str, unsure: Counter[str]) -> str:
    """Create by key; after an unknown outcome the same key says what became of it."""
    while unsure[key] < MOST_TRIES:
        try:
            return world.dsec.create(image=world.image, command=SLEEP, resources=TINY, key=key).id
        except UnknownOutcomeError:
            unsure[key] += 1
    raise AssertionError(f"key {key} is not settled")
