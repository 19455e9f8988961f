"""W-16 and its neighbours on a running leader: who gives way, for whom, when, and only once."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from dsec.agent.substrates.simulated import Profile, SimulatedSubstrate
from dsec.controllers.metrics import text
from dsec.journal.history import Question, read
from dsec.world.substrate import SubstrateError
from sim_world import Sim

EIGHT = Profile(
    name="eight", cpu_milli=8000, memory_bytes=64 << 30, boot=(0.01, 0.05), register=(0.01, 0.05)
)
ROLE = {
    "name": "worker",
    "image": "base",
    "nodeLabels": {"dsec.dev/simulated": "true"},
}


async def submit(sim: Sim, name: str, *, project: str = "lab", **asked: Any) -> str:
    """Submit one role of replicas, each by itself unless `least` says so; return the uid."""
    role = ROLE | {
        "replicas": asked.pop("replicas", 1),
        "min": asked.pop("least", 1),
        "exclusiveCpus": asked.pop("exclusive", False),
        "resources": {
            "cpuMilli": asked.pop("cpu", 8000),
            "memoryBytes": asked.pop("memory", 1 << 28),
        },
    }
    document = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": name},
        "spec": {"roles": [role], **asked},
    }
    made = await sim.client.post(
        f"/v1/projects/{project}/experiments", content=json.dumps(document)
    )
    assert made.status_code == 201, made.text
    uid: str = made.json()["metadata"]["uid"]
    return uid


def copies(sim: Sim, uid: str) -> list[tuple[int, str]]:
    """Return (incarnation, state) of the live copies of an experiment, as the agents have them."""
    return sorted(
        (entry.spec.identity.incarnation, entry.status.state.value)
        for agent in sim.agents.values()
        for entry in agent.core
        if entry.live and entry.spec.identity.experiment_uid == uid
    )


async def rows(sim: Sim, kind: str) -> list[Any]:
    """Return the history rows of a kind."""
    await sim.clock.sleep(1)
    return [row async for row in read(sim.objects, Question(kind=kind))]


def displacer(sim: Sim) -> Any:
    """Return what displaces, of the leader."""
    leader = sim.leader()
    assert leader is not None
    assert leader.controller.term is not None
    return leader.controller.term.placer.displacer


def metrics(sim: Sim) -> str:
    """Return what the leader's scrape endpoint says."""
    leader = sim.leader()
    assert leader is not None
    return text(leader.controller).decode()


async def started(sim: Sim, nodes: int = 1) -> None:
    """Start a leader and nodes of eight cores; wait until it may displace."""
    sim.start_controller()
    for n in range(nodes):
        await sim.add_node(f"n{n}", EIGHT)
    await sim.ready(nodes=nodes)
    await sim.clock.sleep(12)


async def shared(sim: Sim) -> None:
    """Start with two tenants that own half of one node each; `research` may borrow the rest."""
    quota = {"nominal": {"cpuMilli": 4000}}
    tenant = await sim.records.get("Tenant", "research")
    tenant["spec"]["quota"] = quota | {"ceiling": {"cpuMilli": 8000}}
    await sim.records.replace(tenant)
    owner = {"projects": ["own"], "quota": quota}
    await sim.records.create({"kind": "Tenant", "metadata": {"name": "owner"}, "spec": owner})
    await started(sim)


@pytest.mark.parametrize(("task_class", "how"), [("pausable", "pause"), ("preemptible", "stop")])
def test_w16_a_consenting_victim_gives_way_after_a_minute_and_comes_back(
    simulate: Callable[..., None], task_class: str, how: str
) -> None:
    """Nothing at 59 s; then it is paused or stopped, the other one runs, and it comes back."""

    async def scenario() -> None:
        async with Sim() as sim:
            await started(sim)
            low = await submit(sim, "low", taskClass=task_class, priority="low")
            await sim.until(lambda: copies(sim, low) == [(1, "running")], 20)
            begun = sim.clock.monotonic()
            high = await submit(sim, "high", priority="high", queue="nobody-declared-it")
            await sim.clock.sleep(59 - (sim.clock.monotonic() - begun))
            assert copies(sim, low) == [(1, "running")]
            assert await rows(sim, "preempting") == []
            gone = [(1, "paused")] if how == "pause" else []
            await sim.until(lambda: copies(sim, high) == [(1, "running")], 30)
            assert sim.clock.monotonic() - begun < 75
            assert copies(sim, low) == gone
            (asking,) = await rows(sim, "preempting")
            assert (asking.experiment, asking.body["waited"] >= 60) == ("high", True)
            assert [one["steps"] for one in asking.body["victims"]] == [[how]]
            victims = [one["id"] for one in asking.body["victims"]]
            assert asking.body["unsaved"] == victims, "its task has no policy of snapshots"
            (done,) = await rows(sim, "preempted")
            assert (done.experiment, done.body["synced"]) == ("low", False)
            assert "lab/high (priority 1)" in done.body["why"]
            await sim.clock.sleep(30)
            assert copies(sim, low) == gone, "it does not take its place back"
            words = (await sim.client.get("/v1/projects/lab/experiments/low/describe")).json()
            assert "lab/high" in json.dumps(words) or how == "stop"
            late = await submit(sim, "late", priority="low")
            await sim.client.delete("/v1/projects/lab/experiments/high")
            back = [(1, "running")] if how == "pause" else [(2, "running")]
            await sim.until(lambda: copies(sim, low) == back, 30)
            assert copies(sim, late) == [], "what was there before goes on before new work"
            resumed = await rows(sim, "resumed")
            assert len(resumed) == (1 if how == "pause" else 0)
            told = "paused" if how == "pause" else "stopped"
            assert f'dsec_controller_displaced_total{{how="{told}"}} 1.0' in metrics(sim)

    simulate(scenario)


def test_paused_work_goes_on_after_those_of_higher_priority(simulate: Callable[..., None]) -> None:
    """What falls free goes to the one that waits with more; the paused one keeps its memory."""

    async def scenario() -> None:
        async with Sim() as sim:
            await started(sim)
            low = await submit(sim, "low", taskClass="pausable", priority="low")
            await sim.until(lambda: copies(sim, low) == [(1, "running")], 20)
            high = await submit(sim, "high", priority="urgent")
            await sim.until(lambda: copies(sim, high) == [(1, "running")], 90)
            other = await submit(sim, "other")
            await sim.clock.sleep(10)
            await sim.client.delete("/v1/projects/lab/experiments/high")
            await sim.until(lambda: copies(sim, other) == [(1, "running")], 30)
            await sim.clock.sleep(30)
            assert copies(sim, low) == [(1, "paused")]
            told = (await sim.experiment("low"))["status"]
            assert (told["roles"][0]["paused"], told["ready"]) == (1, 0)
            ready = next(one for one in told["conditions"] if one["type"] == "Ready")
            assert ready["message"] == "0 of 1 replicas run, 1 rest until there is room again"
            await sim.client.delete("/v1/projects/lab/experiments/other")
            await sim.until(lambda: copies(sim, low) == [(1, "running")], 30)

    simulate(scenario)


def test_nobody_leaves_without_consent_and_the_waiting_one_says_so(
    simulate: Callable[..., None],
) -> None:
    """With guaranteed work alone, high priority waits for as long as it takes."""

    async def scenario() -> None:
        async with Sim() as sim:
            await started(sim)
            low = await submit(sim, "low", priority="low")
            await sim.until(lambda: copies(sim, low) == [(1, "running")], 20)
            high = await submit(sim, "high", priority="high")
            await sim.clock.sleep(300)
            assert (copies(sim, low), copies(sim, high)) == ([(1, "running")], [])
            told = (await sim.experiment("high"))["status"]["pendingReasons"][0]["message"]
            assert "nothing of a lower priority that runs is pausable or preemptible" in told
            assert await rows(sim, "preempting") == []

    simulate(scenario)


def test_an_owner_gets_back_what_was_lent(simulate: Callable[..., None]) -> None:
    """A borrower's guaranteed work above its share gives way at once, and what it owns stays."""

    async def scenario() -> None:
        async with Sim() as sim:
            await shared(sim)
            lent = await submit(sim, "lent", replicas=1, cpu=4000)
            await sim.until(lambda: copies(sim, lent) == [(1, "running")], 20)
            more = await submit(sim, "more", replicas=2, cpu=2000, priority="high")
            await sim.until(lambda: copies(sim, more) == [(1, "running")] * 2, 20)
            begun = sim.clock.monotonic()
            mine = await submit(sim, "mine", project="own", cpu=2000)
            await sim.until(lambda: copies(sim, mine) == [(1, "running")], 30)
            assert sim.clock.monotonic() - begun < 20, "an owner does not wait for a minute"
            assert copies(sim, lent) == [(1, "running")]
            assert copies(sim, more) == [(1, "paused"), (1, "running")]
            await sim.clock.sleep(60)
            assert copies(sim, more) == [(1, "paused"), (1, "running")]
            (done,) = await rows(sim, "preempted")
            assert "work of tenant owner" in done.body["why"]
            await sim.client.delete("/v1/projects/own/experiments/mine")
            await sim.until(lambda: copies(sim, more) == [(1, "running")] * 2, 30)

    simulate(scenario)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stops and pauses take half a second."""
    for name in ("stop", "pause"):
        act = getattr(SimulatedSubstrate, name)

        async def late(self: SimulatedSubstrate, *args: Any, act: Any = act) -> None:
            await self._clock.sleep(0.5)
            await act(self, *args)

        monkeypatch.setattr(SimulatedSubstrate, name, late)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("after", [0.0, 0.02, 0.3, 0.55])
def test_what_an_owner_got_back_is_not_lent_again_by_the_next_leader(
    simulate: Callable[..., None], after: float
) -> None:
    """The borrower has the higher priority and is first in line, but behind whom it left for."""

    async def scenario() -> None:
        async with Sim() as sim:
            await shared(sim)
            more = await submit(
                sim, "more", replicas=2, taskClass="preemptible", priority="high", cpu=4000
            )
            await sim.until(lambda: copies(sim, more) == [(1, "running")] * 2, 20)
            mine = await submit(sim, "mine", project="own", cpu=4000)
            await sim.until(lambda: displacer(sim).victims, 20, step=0.01)
            await sim.clock.sleep(after)
            first = sim.leader()
            assert first is not None
            sim.start_controller()
            await sim.kill(first)
            await sim.until(lambda: copies(sim, mine) == [(1, "running")], 90)
            await sim.clock.sleep(60)
            assert copies(sim, mine) == [(1, "running")]
            assert copies(sim, more) == [(1, "running")]
            assert (await sim.experiment("more"))["status"]["roles"][0]["incarnations"] == 0
            await sim.client.delete("/v1/projects/own/experiments/mine")
            await sim.until(lambda: copies(sim, more) == [(1, "running"), (2, "running")], 30)

    simulate(scenario)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("task_class", ["pausable", "preemptible"])
@pytest.mark.parametrize("after", [0.0, 0.02, 0.3, 0.55])
def test_a_leader_killed_amid_a_displacement_has_one_effect(
    simulate: Callable[..., None], after: float, task_class: str
) -> None:
    """Two victims would do; whatever the first leader got done, the next one takes no second."""

    async def scenario() -> None:
        async with Sim() as sim:
            await started(sim, nodes=2)
            low = await submit(sim, "low", taskClass=task_class, priority="low", replicas=2)
            await sim.until(lambda: copies(sim, low) == [(1, "running")] * 2, 20)
            high = await submit(sim, "high", priority="high")
            await sim.until(lambda: displacer(sim).victims, 80, step=0.01)
            await sim.clock.sleep(after)
            first = sim.leader()
            assert first is not None
            sim.start_controller()
            await sim.kill(first)
            await sim.until(lambda: copies(sim, high) == [(1, "running")], 120)
            gone = [(1, "paused")] if task_class == "pausable" else []
            assert copies(sim, low) == sorted([(1, "running"), *gone])
            await sim.clock.sleep(90)
            assert copies(sim, low) == sorted([(1, "running"), *gone])
            assert copies(sim, high) == [(1, "running")]

    simulate(scenario)


def test_a_victim_that_does_not_die_is_given_up(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the deadline the asker takes another one's place, and is not told twice to wait."""
    stubborn: set[str] = set()
    stop, destroy = SimulatedSubstrate.stop, SimulatedSubstrate.destroy

    async def sometimes(self: SimulatedSubstrate, sandbox_id: str, grace: float) -> None:
        stubborn.update([] if stubborn else [sandbox_id])
        if sandbox_id not in stubborn:
            await stop(self, sandbox_id, grace)

    async def never(self: SimulatedSubstrate, sandbox_id: str) -> None:
        if sandbox_id in stubborn:
            await self._clock.sleep(1e5)
        await destroy(self, sandbox_id)

    monkeypatch.setattr(SimulatedSubstrate, "stop", sometimes)
    monkeypatch.setattr(SimulatedSubstrate, "destroy", never)

    async def scenario() -> None:
        async with Sim() as sim:
            await started(sim, nodes=2)
            low = await submit(sim, "low", taskClass="preemptible", priority="low", replicas=2)
            await sim.until(lambda: copies(sim, low) == [(1, "running")] * 2, 20)
            high = await submit(sim, "high", priority="high")
            await sim.until(lambda: stubborn, 80)
            begun = sim.clock.monotonic()
            await sim.clock.sleep(5)
            told = (await sim.experiment("high"))["status"]["pendingReasons"][0]["message"]
            assert f"displacing {next(iter(stubborn))} since 2026-01-01T00:01" in told
            await sim.clock.sleep(100)
            assert copies(sim, high) == []
            assert len(await rows(sim, "preempting")) == 1
            await sim.until(lambda: copies(sim, high) == [(1, "running")], 60)
            assert 115 < sim.clock.monotonic() - begun < 140
            assert len(await rows(sim, "preempting")) == 2

    simulate(scenario)


def test_a_node_that_cannot_pause_stops_the_victim(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an agent turns the pause down, the victim is stopped, and starts again later."""

    async def pause(_: SimulatedSubstrate, sandbox_id: str) -> None:
        raise SubstrateError("infrastructure", f"{sandbox_id}: no freezer")

    monkeypatch.setattr(SimulatedSubstrate, "pause", pause)

    async def scenario() -> None:
        async with Sim() as sim:
            await started(sim)
            low = await submit(sim, "low", taskClass="pausable", priority="low")
            await sim.until(lambda: copies(sim, low) == [(1, "running")], 20)
            high = await submit(sim, "high", priority="high")
            await sim.until(lambda: copies(sim, high) == [(1, "running")], 90)
            assert copies(sim, low) == []
            (done,) = await rows(sim, "preempted")
            assert done.body["how"] == "stopped"

    simulate(scenario)


async def whole_or_none(sim: Sim, uid: str, size: int, seconds: float) -> None:
    """Look for so long that all of a gang run or none, but for a moment while it changes."""
    partly = 0
    for _ in range(int(seconds * 2)):
        await sim.clock.sleep(0.5)
        running = sum(state != "paused" for _, state in copies(sim, uid))
        partly = partly + 1 if 0 < running < size else 0
        assert partly < 10, copies(sim, uid)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("task_class", ["pausable", "preemptible"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_gang_gives_way_and_comes_back_as_one(
    simulate: Callable[..., None], task_class: str, *, killed: bool
) -> None:
    """One place is asked for and all three leave it; with room for two none of them comes back."""

    async def scenario() -> None:
        async with Sim() as sim:
            await started(sim, nodes=3)
            gang = await submit(
                sim, "gang", taskClass=task_class, priority="low", replicas=3, least=3
            )
            await sim.until(lambda: copies(sim, gang) == [(1, "running")] * 3, 20)
            high = await submit(sim, "high", priority="high")
            if killed:
                await sim.until(lambda: displacer(sim).victims, 80, step=0.01)
                await sim.clock.sleep(0.3)
                first = sim.leader()
                assert first is not None
                sim.start_controller()
                await sim.kill(first)
            await sim.until(lambda: copies(sim, high) == [(1, "running")], 90)
            left = [(1, "paused")] * 3 if task_class == "pausable" else []
            await sim.until(lambda: copies(sim, gang) == left, 10)
            await whole_or_none(sim, gang, 3, 60)
            assert copies(sim, gang) == left
            await sim.client.delete("/v1/projects/lab/experiments/high")
            back = 1 if task_class == "pausable" else 2
            await sim.until(lambda: copies(sim, gang) == [(back, "running")] * 3, 30)
            await whole_or_none(sim, gang, 3, 30)

    simulate(scenario)


CLASSES = ("guaranteed", "pausable", "pausable", "preemptible", "preemptible")
PRIORITIES = ("low", "normal", "high", "urgent")


def _are(sim: Sim, uid: str, count: int) -> bool:
    return len(copies(sim, uid)) == count


def bound_of(sim: Sim) -> set[str]:
    """Return the experiments of which something is bound, as the leader has it."""
    leader = sim.leader()
    if leader is None or leader.controller.term is None:
        return set()
    live = leader.controller.term.bind_log.state.live()
    return {binding.spec.identity.experiment_uid for binding in live}


def check_books(sim: Sim) -> None:
    """Compare what the leader counts with the bind log and the agents."""
    leader = sim.leader()
    assert leader is not None
    assert leader.controller.term is not None
    term = leader.controller.term
    planner = term.placer.displacer._planner
    bound = {binding.id for binding in term.bind_log.state.live()}
    assert set(planner.view.bookings()) == bound == set(planner.ledger.entries)
    assert planner.ledger.audit() == []
    assert planner.ledger.holds == {}
    paused = {
        entry.spec.identity.id
        for agent in sim.agents.values()
        for entry in agent.core
        if entry.status.state.value == "paused"
    }
    assert {id_ for id_, one in planner.view.bookings().items() if one.paused} == paused
    assert {id_ for id_, one in planner.ledger.entries.items() if one.paused} == paused


def havoc(simulate: Callable[..., None], seed: int, leaders: int) -> None:
    """Run random work with lost messages and killed leaders, then let everybody who is left run."""

    async def scenario() -> None:
        async with Sim(seed) as sim:
            await started(sim, nodes=3)
            firm: set[str] = set()
            work: dict[str, tuple[str, int]] = {}
            for n in range(4 * leaders):
                task_class = sim.rng.choice(CLASSES)
                replicas = sim.rng.randint(1, 3)
                least = sim.rng.choice((1, replicas))
                name = f"e{n}"
                uid = await submit(
                    sim,
                    name,
                    taskClass=task_class,
                    # what comes later is mostly above what is there
                    priority=PRIORITIES[min(3, n % 4 + sim.rng.randint(0, 1))],
                    replicas=replicas,
                    least=least,
                    cpu=sim.rng.choice((2000, 4000, 8000)),
                )
                work[name] = uid, replicas
                if task_class == "guaranteed":
                    firm.add(name)
                sim.faults.lost_requests = sim.faults.lost_replies = 0.02
                await sim.clock.sleep(sim.rng.uniform(1, 60))
                sim.faults.lost_requests = sim.faults.lost_replies = 0.0
                if n % 4 == 2:
                    leader = sim.leader()
                    sim.start_controller()
                    if leader is not None:
                        await sim.kill(leader)
                    await sim.ready()
            await sim.clock.sleep(120)
            if not await rows(sim, "preempting"):
                # the draw left room for all, or had nobody who consents
                for name in list(work):
                    await sim.client.delete(f"/v1/projects/lab/experiments/{name}")
                await sim.until(lambda: not bound_of(sim), 120)
                for name, least, priority in (("soft", 3, "low"), ("hard", 1, "urgent")):
                    uid = await submit(
                        sim,
                        name,
                        taskClass="preemptible",
                        priority=priority,
                        replicas=3,
                        least=least,
                    )
                    await sim.until(partial(_are, sim, uid, 3), 120)
                    work = {name: (uid, 3)}
            rest = [name for name, (uid, _) in work.items() if "paused" in str(copies(sim, uid))]
            kept = rest[0] if rest else list(work)[-1]
            for name in [one for one in work if one != kept]:
                deleted = await sim.client.delete(f"/v1/projects/lab/experiments/{name}")
                assert deleted.status_code < 300, deleted.text
            uid, replicas = work[kept]
            await sim.until(
                lambda: [one for _, one in copies(sim, uid)] == ["running"] * replicas, 300
            )
            await sim.until(lambda: bound_of(sim) == {uid}, 60)
            # books are brought in line with each round, and a round needs somebody who waits
            await submit(sim, "last", cpu=1000)
            await sim.clock.sleep(15)
            check_books(sim)
            asked = [one for row in await rows(sim, "preempting") for one in row.body["victims"]]
            assert asked, "nobody had to give way: the seed shows nothing"
            stops = [one["id"] for one in asked if one["steps"] == ["stop"]]
            assert len(stops) == len(set(stops)), "each is asked to stop once, by all leaders"
            assert {row.experiment for row in await rows(sim, "preempted")}.isdisjoint(firm)

    simulate(scenario)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_work_and_leaders_leave_books_in_order(
    simulate: Callable[..., None], seed: int
) -> None:
    """What is left at last runs; view, ledger, bind log and agents agree; firm work stayed."""
    havoc(simulate, seed, 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 18))
def test_random_work_and_leaders_at_length(simulate: Callable[..., None], seed: int) -> None:
    """The same for longer, with more seeds."""
    havoc(simulate, seed, 5)
