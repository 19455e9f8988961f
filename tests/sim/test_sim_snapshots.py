"""Snapshots through the whole of dsec, in real time: agents that save into a store, and people.

Saving uses threads, so these few scenarios run by the real clock.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from dsec.snapshots.keys import FileKeys
from dsec.world.clock import system_randomness
from sim_world import Sim, create
from test_sim_compaction import SMALL, where
from test_sim_keyed import ask
from test_sim_preemption import submit

PLAN = {"kinds": ["state"], "intervalSeconds": 3600}
HOME = "/v1/projects/lab"


def world() -> Sim:
    """Return an installation whose gateway can open the keys of snapshots."""
    sim = Sim()
    sim.snapshot_keys = FileKeys((("one", b"k" * 32),), system_randomness())
    return sim


async def until(what: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until something holds, by the real clock."""
    end = asyncio.get_running_loop().time() + seconds
    while not what():
        assert asyncio.get_running_loop().time() < end, "not in time"
        await asyncio.sleep(0.1)


async def ok(answer: Awaitable[Any], status: int = 200) -> Any:
    """Return the JSON of an answer."""
    found = await answer
    assert found.status_code == status, found.text
    return found.json()


def at(name: str, verb: str = "") -> str:
    """Return the path of a snapshot."""
    return f"{HOME}/snapshots/{quote(name, safe='')}{verb}"


def test_people_see_take_and_go_on_from_snapshots() -> None:
    """SNAP-01, LIFE-13: take, list, verify, compare, pin, put back, fork, collect; by the API."""

    async def scenario() -> None:
        async with world() as sim:
            sim.start_controller()
            await sim.add_node("one", SMALL)
            await sim.add_node("two", SMALL)
            await until(lambda: sim.leader() is not None and sim._usable() == 2)
            uid = await submit(sim, "task", cpu=1000, snapshot=PLAN)
            await until(lambda: [one[1:] for one in where(sim, uid)] == [(1, "running")])
            (id_,) = sim.live()
            taken = [
                await ok(sim.client.post(f"{HOME}/sandboxes/{id_}/snapshot", json={}), 201)
                for _ in range(3)
            ]
            names = [one["name"] for one in taken]
            assert names == [f"exp/{uid}/worker/0@{number}" for number in (1, 2, 3)]
            listed = await ok(sim.client.get(f"{HOME}/snapshots?experiment=task"))
            assert [one["name"] for one in listed["items"]] == names[::-1]
            assert all(one["live"] for one in listed["items"])
            told = (await sim.client.get(f"{HOME}/experiments/task/describe")).text
            assert "last good snapshot" in told
            verified = await ok(sim.client.post(at(names[0], "/verify")))
            assert (verified["good"], verified["files"]) == (True, 1)
            changed = await ok(sim.client.get(at(names[2], f"/diff?with={quote(names[0])}")))
            assert [one["path"] for one in changed["items"]] == ["workspace/state.json"]
            assert (changed["changed"], changed["before"]) == (1, names[0])
            for question in ("", "?with="):
                # compared with itself it would always be the same
                alone = await sim.client.get(at(names[2], f"/diff{question}"))
                assert (alone.status_code, "with: snapshot ''" in alone.text) == (422, True)
            shown = await ok(sim.client.get(at(names[0])))
            assert shown["ref"]["spec"]["identity"]["id"] == id_
            # pinned it stays
            await ok(sim.client.post(at(names[0], "/pin"), json={"why": "for the paper"}))
            refused = await sim.client.delete(at(names[0]))
            assert (refused.status_code, "pinned" in refused.text) == (409, True)
            await ok(sim.client.delete(at(names[1])))
            missing = await sim.client.get(at(names[1]))
            assert missing.status_code == 404
            wrong = await sim.client.get(at("nonsense"))
            assert (wrong.status_code, "LINEAGE@NUMBER" in wrong.text) == (422, True)
            # the same sandbox goes on from an earlier one
            back = await ok(sim.client.post(at(names[0], "/restore"), json={}))
            assert (back["how"], back["id"]) == ("put-back", id_)
            await until(lambda: [one[1:] for one in where(sim, uid)] == [(2, "running")])
            assert list(sim.live()) == [id_]
            # forks have identities of their own
            forks = await ok(sim.client.post(at(names[0], "/fork"), json={"count": 2, "key": "f"}))
            ids = {one["id"] for one in forks["answers"]}
            assert len(ids | {id_}) == 3
            running = lambda: sorted(s for c in sim.live().values() for _, s in c)  # noqa: E731 - short
            await until(lambda: running() == ["running"] * 3)
            collected = await ok(sim.client.post("/v1/snapshots/gc?noWait=true"))
            assert [one["tenant"] for one in collected["items"]] == ["research"]
            assert "problem" in collected["items"][0]
            assert not collected["items"][0]["problem"], collected

    asyncio.run(scenario())


def test_a_move_carries_state_through_the_store() -> None:
    """LIFE-13, SNAP-12 with real bytes: hibernate, wake, then a drain; the counter goes on."""

    async def scenario() -> None:
        async with world() as sim:
            sim.start_controller()
            await sim.add_node("one", SMALL)
            await until(lambda: sim.leader() is not None and sim._usable() == 1)
            uid = await submit(sim, "task", cpu=1000, snapshot=PLAN)
            await until(lambda: where(sim, uid) == [("one", 1, "running")])
            (id_,) = sim.live()
            await asyncio.sleep(2)
            await ok(sim.client.post(f"{HOME}/sandboxes/{id_}/hibernate"))
            await until(lambda: where(sim, uid) == [])
            kept = (await ok(sim.client.get(f"{HOME}/snapshots")))["items"][0]["name"]
            refused = await sim.client.delete(at(kept))
            assert (refused.status_code, refused.json()["code"]) == (409, "in-use"), refused.text
            await ok(sim.client.post(f"{HOME}/sandboxes/{id_}/wake"))
            await until(lambda: where(sim, uid) == [("one", 2, "running")])
            assert ran(sim, "one", id_) > 2
            await sim.add_node("two", SMALL)
            await until(lambda: sim._usable() == 2)
            before = ran(sim, "one", id_)
            await ok(sim.client.post("/v1/nodes/one/drain", json={}), 202)
            await until(lambda: where(sim, uid) == [("two", 3, "running")])
            assert ran(sim, "two", id_) > before

    def ran(sim: Sim, node: str, id_: str) -> float:
        substrate = sim.substrates[node]
        return substrate._ran(substrate._run(id_))

    asyncio.run(scenario())


def test_a_secret_is_stored_nowhere_in_plain_text() -> None:
    """What is kept and copied of a sandbox tells its variables to who has the key alone: a fork."""

    async def scenario() -> None:
        async with world() as sim:
            sim.start_controller()
            await sim.add_node("one", SMALL)
            await until(lambda: sim.leader() is not None and sim._usable() == 1)
            env = {"TOKEN": "open-sesame"}
            await ask(sim, create("first", snapshot={"kinds": ["state"]}, env=env))
            states = lambda: [s for copies in sim.live().values() for _, s in copies]  # noqa: E731 - short
            await until(lambda: states() == ["running"])
            (id_,) = sim.live()
            taken = await ok(sim.client.post(f"{HOME}/sandboxes/{id_}/snapshot", json={}), 201)
            assert "open-sesame" not in str(taken)
            stored = await sim.objects.list("snapshots/")
            assert any("/refs/" in one.key for one in stored)
            for one in stored:
                assert b"open-sesame" not in (await sim.objects.get(one.key))[0], one.key
            shown = await ok(sim.client.get(at(taken["name"])))
            assert "open-sesame" not in str(shown)
            forks = await ok(sim.client.post(at(taken["name"], "/fork"), json={"key": "f"}))
            (fork,) = (one["id"] for one in forks["answers"])
            await until(lambda: states() == ["running"] * 2)
            entry = sim.agents["one"].core.get(fork)
            assert entry is not None
            assert entry.spec.env == env

    asyncio.run(scenario())
