"""Leaders that freeze, die and are cut off: one effective sandbox per key at every instant."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import httpx2
import pytest
from dsec.agent.substrates.simulated import Profile
from dsec.api.sandbox import SandboxSpec
from dsec.journal.bindings import Bindings
from dsec.journal.bindlog import SEGMENTS, BindLogReader, decode
from dsec.journal.history import Question, read
from sim_world import PROFILE, Sim, create

PATIENT = 400.0
"""Virtual seconds in which a client repeats what has no final answer."""


async def create_all(sim: Sim, keys: Iterable[str], *, size: int, wide: int) -> dict[str, str]:
    """Create by key, in batches, until each key has a live sandbox; return key -> id."""
    found: dict[str, str] = {}
    names = list(keys)
    batches = iter([names[i : i + size] for i in range(0, len(names), size)])

    async def worker() -> None:
        for batch in batches:
            left = list(batch)
            start = sim.clock.monotonic()
            while left:
                if sim.clock.monotonic() - start > PATIENT:
                    raise AssertionError(f"{len(left)} keys without an answer")
                done = await ask(sim, left, found)
                left = [key for key in left if key not in done]
                if left:
                    await sim.clock.sleep(3.0)

    await asyncio.gather(*(worker() for _ in range(wide)))
    return found


async def ask(sim: Sim, keys: list[str], found: dict[str, str]) -> set[str]:
    """Send one batch; return the keys that are answered for good."""
    body = {"creates": [create(key) for key in keys]}
    try:
        response = await sim.client.post("/v1/projects/lab/sandboxes", json=body)
    except httpx2.TransportError:
        return set()
    if response.status_code != 200:
        assert response.status_code == 503, response.text
        return set()
    done = set()
    for answer in response.json()["answers"]:
        assert answer["outcome"] not in ("conflict", "refused"), answer
        if answer["outcome"] in ("bound", "exists"):
            found[answer["key"]] = answer["id"]
            done.add(answer["key"])
    return done


class Watcher:
    """Holds that no key ever has two effective copies that run.

    What is effective changes with a segment of the bind log, what runs with a copy that an agent
    takes: a look at each of these is a look at every instant.
    """

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._state = Bindings()
        self._ids: dict[str, set[str]] = {}
        self.most = 0
        self.checks = 0
        self._store = sim.objects.put_if_absent
        sim.objects.put_if_absent = self._put  # type: ignore[method-assign]
        for agent in sim.agents.values():
            agent.create = partial(self._create, agent.create)  # type: ignore[method-assign]

    async def _put(self, key: str, data: bytes) -> str:
        tag = await self._store(key, data)
        if key.startswith(SEGMENTS):
            rows = decode(data).rows
            self._state.apply(rows)
            self.look(row.binding.id if row.binding else row.id for row in rows)
        return tag

    async def _create(self, create: Any, specs: list[SandboxSpec]) -> Any:
        answers = await create(specs)
        self.look(spec.identity.id for spec in specs)
        return answers

    def look(self, changed: Iterable[str]) -> None:
        """Count the effective copies of the keys of these sandboxes."""
        bindings = [b for i in changed if (b := self._state.by_id.get(i)) is not None]
        for binding in bindings:
            ids = self._ids.setdefault(binding.key, set())
            ids.add(binding.id)
            self.most = max(self.most, sum(map(self._runs, ids)))
            self.checks += 1

    def _runs(self, sandbox: str) -> bool:
        """Say whether the copy that counts runs."""
        binding = self._state.by_id.get(sandbox)
        if binding is None or not binding.live or binding.node not in self._sim.agents:
            return False
        entry = self._sim.agents[binding.node].core.get(sandbox)
        return entry is not None and entry.live


def many(small: int, full: int) -> list[Any]:
    """Return the sizes of a scenario: a small one always, the full one in the soak."""
    return [small, pytest.param(full, marks=pytest.mark.soak)]


@pytest.mark.parametrize("count", many(500, 5000))
def test_a_frozen_leader_changes_nothing(simulate: Callable[..., None], count: int) -> None:
    """One controller stands still for 30 s amid keyed creates; another takes over within 10 s.

    The old one's epoch is refused afterwards, and exactly one sandbox per key is live.
    """

    async def scenario() -> None:
        async with Sim(seed=3) as sim:
            first = sim.start_controller()
            nodes = max(8, count // 100)
            for n in range(nodes):
                await sim.add_node(f"n{n:02}")
            await sim.ready(nodes=nodes)
            assert sim.leader() is first
            second = sim.start_controller()
            creating = asyncio.create_task(
                create_all(sim, [f"k{n}" for n in range(count)], size=count // 20, wide=2)
            )
            log = BindLogReader(sim.objects)
            await log.open()

            async def bound() -> int:
                await log.refresh()
                return len(log.state.by_id)

            while await bound() < count // 4:
                await sim.clock.sleep(0.01)
            first.gate.close()
            took = await sim.until(lambda: second.controller.leading, 15)
            assert took <= 10, took
            await sim.clock.sleep(30 - took)
            first.gate.open()
            found = await creating
            await sim.until(first.task.done, 20)
            assert not first.controller.leading
            assert "FencedError" in repr(first.task.exception()) or "OfficeLost" in repr(
                first.task.exception()
            )
            await sim.clock.sleep(10)
            live = sim.live()
            assert len(found) == len(set(found.values())) == count
            assert sorted(live) == sorted(found.values())
            assert all(len(copies) == 1 for copies in live.values())
            epochs = {agent.core.epoch for agent in sim.agents.values()}
            assert epochs == {second.controller.epoch}

    simulate(scenario)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [7, *(pytest.param(n, marks=pytest.mark.soak) for n in (8, 9))])
@pytest.mark.parametrize("count", many(240, 10_000))
def test_unknown_outcomes(simulate: Callable[..., None], count: int, seed: int) -> None:
    """Lost replies, killed leaders and a cut node: one effective sandbox per key, always."""

    async def scenario() -> None:
        async with Sim(seed=seed) as sim:
            sim.start_controller()
            sim.start_controller()
            nodes = max(8, count // 100)
            for n in range(nodes):
                await sim.add_node(f"n{n:02}")
            await sim.ready(nodes=nodes)
            watcher = Watcher(sim)
            sim.faults.lost_replies = 0.05
            creating = asyncio.create_task(
                create_all(sim, [f"k{n}" for n in range(count)], size=count // 20, wide=2)
            )
            for kill in range(3):
                await sim.clock.sleep(2 + 10 * kill)
                leader = sim.leader()
                if leader is not None:
                    await sim.kill(leader)
                    sim.start_controller()
            await creating
            victim = max(sim.agents, key=lambda name: sim.agents[name].core.live)
            before = {entry.spec.identity.id for entry in sim.agents[victim].core if entry.live}
            assert before
            sim.faults.cut.add(victim)
            await sim.clock.sleep(200)
            # the client asks again for its keys: those of the lost node get a new copy
            again = await create_all(sim, [f"k{n}" for n in range(count)], size=count // 4, wide=2)
            await sim.clock.sleep(100)
            sim.faults.cut.discard(victim)
            sim.faults.lost_replies = 0.0
            await sim.clock.sleep(60)
            assert watcher.most == 1
            # each was bound and taken at least once
            assert watcher.checks >= 2 * count
            live = sim.live()
            assert sorted(live) == sorted(again.values())
            assert all(len(copies) == 1 for copies in live.values())
            assert len(set(again.values())) == count
            fenced = {
                entry.spec.identity.id: entry.status.end
                for entry in sim.agents[victim].core
                if entry.spec.identity.id in before
            }
            reasons = {end.reason.value for end in fenced.values() if end is not None}
            assert reasons == {"fenced"}
            # none of their late writes is visible
            for key in sim.objects._data:
                assert not any(key.startswith("artifacts/") and i in key for i in before), key
            one = min(before)
            shown = (await sim.client.get(f"/v1/projects/lab/sandboxes/{one}")).json()
            assert shown["end"]["reason"] == "node-lost", shown

    simulate(scenario)


def test_the_controller_is_away(simulate: Callable[..., None]) -> None:
    """Ten minutes without a controller: sandboxes go on, each transition is journalled once."""

    async def scenario() -> None:
        profile = Profile(
            name="sim",
            cpu_milli=PROFILE.cpu_milli,
            memory_bytes=PROFILE.memory_bytes,
            boot=(0.01, 0.05),
            register=(0.01, 0.05),
        )
        async with Sim(seed=11) as sim:
            first = sim.start_controller()
            for n in range(4):
                await sim.add_node(f"n{n}", profile)
            await sim.ready(nodes=4)
            body = {
                "creates": [
                    create(f"k{n}", env={"DSEC_SIM_SECONDS": str(60 + 5 * n)}) for n in range(200)
                ]
            }
            made = (await sim.client.post("/v1/projects/lab/sandboxes", json=body)).json()
            ids = [answer["id"] for answer in made["answers"]]
            await sim.until(
                lambda: sum(c[0][1] == "running" for c in sim.live().values()) == 200, 30
            )
            await sim.kill(first)
            await sim.clock.sleep(600)
            ended_alone = 200 - len(sim.live())
            assert 80 < ended_alone < 150, "sandboxes did not go on without a controller"
            listed = (await sim.client.get("/v1/projects/lab/sandboxes?state=running")).json()
            assert len(listed["items"]) == len(sim.live())
            sim.start_controller()
            await sim.ready()
            await sim.until(lambda: not sim.live(), 700)
            await sim.clock.sleep(40)
            rows: dict[str, list[str]] = {}
            seqs: dict[tuple[str, str], list[int]] = {}
            async for row in read(sim.objects, Question()):
                seqs.setdefault((row.node, row.boot_id), []).append(row.seq)
                if row.sandbox and row.kind not in ("sandbox-placed", "sandbox-closed"):
                    rows.setdefault(row.sandbox, []).append(row.kind)
            expected = [
                f"sandbox-{state}"
                for state in (
                    *("bound", "pulling", "creating", "starting", "running"),
                    *("archiving", "ended"),
                )
            ]
            assert sorted(rows) == sorted(ids)
            assert {tuple(kinds) for kinds in rows.values()} == {tuple(expected)}
            for node, numbers in seqs.items():
                assert numbers == sorted(set(numbers)), node
            states = [
                (await sim.client.get(f"/v1/projects/lab/sandboxes/{i}")).json() for i in ids[::20]
            ]
            assert {s["end"]["reason"] for s in states} == {"completed"}

    simulate(scenario)
