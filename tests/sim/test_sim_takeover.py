"""Take-overs at odd moments, and what a deletion or a lost record leaves behind: nothing."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from dsec.journal.bindings import Row
from dsec.journal.bindlog import SEGMENTS, BindLog, decode
from dsec.journal.history import Question, read
from sim_world import LoopClock, Sim, create


class LateClock(LoopClock):
    """A clock that can be set days ahead."""

    days = 0

    def now(self) -> datetime:
        """Return the time of day."""
        return super().now() + timedelta(days=self.days)

    def monotonic(self) -> float:
        """Return seconds since the start."""
        return super().monotonic() + timedelta(days=self.days).total_seconds()


def test_a_stand_by_of_days_reads_the_newest_snapshot(simulate: Callable[..., None]) -> None:
    """The log went on for days and was trimmed while it waited: it leads with all that is bound."""

    async def scenario() -> None:
        async with Sim(seed=5) as sim:
            first = sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            second = sim.start_controller()
            await sim.clock.sleep(2)
            body = {"creates": [create(f"k{n}") for n in range(4)]}
            made = await sim.client.post("/v1/projects/lab/sandboxes", json=body)
            assert made.status_code == 200, made.text
            await sim.kill(first)
            # what the leader wrote in the days that the other waited
            late = LateClock()
            log = BindLog(sim.objects, late, "c1")
            await log.open()
            log.epoch = first.controller.epoch
            for _ in range(3):
                await log.append([Row(kind="forget", at=late.now(), experiment_uid="none")])
                await log.compact(force=True)
                late.days += 2
            await sim.until(lambda: second.controller.leading, 15)
            term = second.controller.term
            assert term is not None
            assert len(list(term.bind_log.state.live())) == 4
            assert term.bind_log.position > log.position

    simulate(scenario)


def _document(name: str, replicas: int = 3, **role: Any) -> str:
    values = {
        "name": "worker",
        "replicas": replicas,
        "image": "base",
        "nodeLabels": {"dsec.dev/simulated": "true"},
        "resources": {"cpuMilli": 500, "memoryBytes": 1 << 26},
    }
    document = {
        "apiVersion": "dsec.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": name},
        "spec": {"roles": [values | role]},
    }
    return json.dumps(document)


async def _submitted(sim: Sim, document: str) -> dict[str, Any]:
    made = await sim.client.post("/v1/projects/lab/experiments", content=document)
    assert made.status_code == 201, made.text
    record: dict[str, Any] = made.json()
    return record


def test_a_deletion_waits_for_the_round_that_binds(simulate: Callable[..., None]) -> None:
    """Deleted while its binds are being written: the sandboxes end before the record goes."""

    async def scenario() -> None:
        async with Sim(seed=6) as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            store, begun, go = sim.objects.put_if_absent, asyncio.Event(), asyncio.Event()

            async def slow(key: str, data: bytes) -> str:
                if key.startswith(SEGMENTS) and decode(data).rows:
                    begun.set()
                    await go.wait()
                return await store(key, data)

            sim.objects.put_if_absent = slow  # type: ignore[method-assign]
            await _submitted(sim, _document("brief"))
            await asyncio.wait_for(begun.wait(), 30)
            await sim.client.delete("/v1/projects/lab/experiments/brief")
            await sim.clock.sleep(5)
            assert (await sim.experiments()).items, "the record went before its sandboxes"
            go.set()
            await sim.clock.sleep(30)
            assert (await sim.experiments()).items == []
            assert sim.live() == {}

    simulate(scenario)


def test_what_a_lost_record_leaves_is_ended(simulate: Callable[..., None]) -> None:
    """A record removed by hand while nobody led: its sandboxes end, those of others live on."""

    async def scenario() -> None:
        async with Sim(seed=7) as sim:
            first = sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            gone = await _submitted(sim, _document("gone", 3))
            kept = await _submitted(sim, _document("kept", 2))
            await sim.until(lambda: len(sim.live()) == 5, 30)
            await sim.kill(first)
            record = await sim.experiment("gone")
            record["metadata"]["finalizers"] = []
            await sim.records.replace(record)
            await sim.records.delete("Experiment", "gone", "lab")
            second = sim.start_controller()
            await sim.ready()
            await sim.until(lambda: len(sim.live()) == 2, 30)
            await sim.clock.sleep(120)
            assert len(sim.live()) == 2
            term = second.controller.term
            assert term is not None
            state = term.bind_log.state
            assert state.of_experiment(gone["metadata"]["uid"]) == []
            assert len(state.of_experiment(kept["metadata"]["uid"])) == 2

    simulate(scenario)


def test_a_deleted_tenant_starts_nothing(simulate: Callable[..., None]) -> None:
    """Without its Tenant an experiment gets no new replica, and the status says so."""

    async def scenario() -> None:
        async with Sim(seed=8) as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            tenant = await sim.records.get("Tenant", "research")
            tenant["spec"]["quota"] = {"nominal": {"sandboxes": 2}}
            await sim.records.replace(tenant)
            await sim.clock.sleep(1)
            role = {"completion": "run-to-end"}
            await _submitted(sim, _document("more", 5, **role))
            await sim.until(lambda: len(sim.live()) == 2, 30)
            await sim.records.delete("Tenant", "research")
            await sim.clock.sleep(30)
            assert len(sim.live()) == 2
            conditions = (await sim.experiment("more"))["status"]["conditions"]
            accepted = next(one for one in conditions if one["type"] == "Accepted")
            assert accepted["reason"] == "TenantMissing", accepted

    simulate(scenario)


def test_an_unreadable_record_is_told_and_can_be_deleted(simulate: Callable[..., None]) -> None:
    """A record that this version cannot read is not accepted, and goes when it is deleted."""

    async def scenario() -> None:
        async with Sim(seed=9) as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            await _submitted(sim, _document("odd"))
            await sim.until(lambda: len(sim.live()) == 3, 30)
            record = await sim.experiment("odd")
            record["spec"]["roles"] = "of a later version"
            await sim.records.replace(record)
            await sim.clock.sleep(5)
            conditions = (await sim.experiment("odd"))["status"]["conditions"]
            accepted = next(one for one in conditions if one["type"] == "Accepted")
            assert (accepted["status"], accepted["reason"]) == ("False", "Invalid")
            assert "roles" in accepted["message"]
            await sim.records.delete("Experiment", "odd", "lab")
            await sim.clock.sleep(30)
            assert (await sim.experiments()).items == []
            assert sim.live() == {}

    simulate(scenario)


def test_items_that_are_missing_are_said_and_awaited(simulate: Callable[..., None]) -> None:
    """A batch waits for items that nobody uploaded, in words, and runs once they are there."""

    async def scenario() -> None:
        async with Sim(seed=10) as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            lines = b"one\ntwo\nthree\n"
            digest = hashlib.sha256(lines).hexdigest()
            await _submitted(sim, _document("late", 3, itemsRef=digest, completion="run-to-end"))
            await sim.clock.sleep(5)
            status = (await sim.experiment("late"))["status"]
            assert status["pending"] == 3
            told = status["pendingReasons"][0]
            assert told["reason"] == "input"
            assert "were not uploaded" in told["message"]
            put = await sim.client.put(f"/v1/projects/lab/inputs/{digest}", content=lines)
            assert put.status_code == 201, put.text
            await sim.until(lambda: len(sim.live()) == 3, 60)
            items = {e.spec.item for a in sim.agents.values() for e in a.core}
            assert items == {"one", "two", "three"}

    simulate(scenario)


def test_unusable_items_are_refused_at_once(simulate: Callable[..., None]) -> None:
    """Items that are no text, or too long for a sandbox, are refused with field and limit."""

    async def scenario() -> None:
        async with Sim(seed=11) as sim:
            sim.start_controller()
            await sim.ready()
            for data, field in ((b"fine\n\xff\xfe\n", "items[1]"), (b"x" * (2 << 20), "items[0]")):
                digest = hashlib.sha256(data).hexdigest()
                put = await sim.client.put(f"/v1/projects/lab/inputs/{digest}", content=data)
                assert put.status_code == 422, put.text
                assert put.json()["details"][0]["path"] == field
            body = {"creates": [create("k0"), create("k1", stdin="x" * (2 << 20))]}
            made = await sim.client.post("/v1/projects/lab/sandboxes", json=body)
            assert made.status_code == 422, made.text
            assert made.json()["details"][0]["path"] == "creates[1].stdin"

    simulate(scenario)


def test_a_store_outage_is_an_answer(simulate: Callable[..., None]) -> None:
    """While the audit cannot be written a change is answered with 503, not with silence."""

    async def scenario() -> None:
        async with Sim(seed=12) as sim:
            sim.start_controller()
            await sim.ready()
            sim.objects.fault = lambda op, key: (
                "before" if op == "put_if_absent" and key.startswith("audit/") else ""
            )
            start = sim.clock.monotonic()
            asked = sim.client.post("/v1/projects/lab/experiments", content=_document("one"))
            made = await asyncio.wait_for(asked, 40)
            assert made.status_code == 503, made.text
            assert "audit" in made.json()["message"]
            assert sim.clock.monotonic() - start < 15
            assert made.headers["Retry-After"]

    simulate(scenario)


def test_the_decisions_of_a_term_outlive_it(simulate: Callable[..., None]) -> None:
    """What a leader queued for the history is stored when it stops."""

    async def scenario() -> None:
        async with Sim(seed=13) as sim:
            process = sim.start_controller()
            await sim.ready()
            term = process.controller.term
            assert term is not None
            term.history.add("sandbox-placed", sandbox="sb-last")
            process.task.cancel()
            await asyncio.gather(process.task, return_exceptions=True)
            rows = [row.sandbox async for row in read(sim.objects, Question())]
            assert "sb-last" in rows

    simulate(scenario)


def test_a_project_moves_between_tenants(simulate: Callable[..., None]) -> None:
    """The label follows the records' projects, and all ways of creating follow the label."""

    async def scenario() -> None:
        async with Sim(seed=14) as sim:
            sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)

            async def owner(wanted: str) -> None:
                for _ in range(60):
                    labels = (await sim.records.get("Namespace", "lab"))["metadata"]["labels"]
                    if labels.get("dsec.dev/tenant", "") == wanted:
                        return
                    await sim.clock.sleep(0.5)
                raise AssertionError(labels)

            await owner("research")
            spec = {"projects": ["lab"], "quota": {"nominal": {}}}
            await sim.records.create({"kind": "Tenant", "metadata": {"name": "a"}, "spec": spec})
            await sim.clock.sleep(15)
            await owner("research")
            body = {"creates": [create("k0")]}
            made = await sim.client.post("/v1/projects/lab/sandboxes", json=body)
            assert made.status_code == 200, made.text
            leader = sim.leader()
            assert leader is not None
            assert leader.controller.term is not None
            state = leader.controller.term.bind_log.state
            assert state.key("research", "k0") is not None
            tenant = await sim.records.get("Tenant", "research")
            tenant["spec"]["projects"] = []
            await sim.records.replace(tenant)
            await owner("a")
            body = {"creates": [create("k1")]}
            made = await sim.client.post("/v1/projects/lab/sandboxes", json=body)
            assert made.status_code == 200, made.text
            assert state.key("a", "k1") is not None
            await sim.records.delete("Tenant", "a")
            await owner("")

    simulate(scenario)


def test_a_waiting_replica_fills_no_history(simulate: Callable[..., None]) -> None:
    """Free figures that move are not worth a row each for every replica that waits."""

    async def scenario() -> None:
        async with Sim(seed=15) as sim:
            process = sim.start_controller()
            await sim.add_node("n0")
            await sim.ready(nodes=1)
            role = {"resources": {"cpuMilli": 90_000, "memoryBytes": 1 << 26}}
            await _submitted(sim, _document("wide", 1, **role))
            await sim.until(lambda: len(sim.live()) == 1, 30)
            await _submitted(sim, _document("waits", 1, **role))
            for n in range(10):
                body = {"creates": [create(f"k{n}")]}
                await sim.client.post("/v1/projects/lab/sandboxes", json=body)
                await sim.clock.sleep(1)
            rows = [row async for row in read(sim.objects, Question(kind="sandbox-waits"))]
            assert len(rows) == 1, [row.body["why"] for row in rows]
            term = process.controller.term
            assert term is not None
            assert len(term.placer.teller._told) == 1

    simulate(scenario)
