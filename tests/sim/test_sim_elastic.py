"""Nodes that come for work and go after it: the real leader, gateways and agents, no real money."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from dsec.providers.onprem import OnPremProvider
from dsec.providers.power import PowerState
from dsec.providers.weather import Weather
from elastic_world import EIGHT, Cloud, pool, running, said, scaling, submit
from saving import Saving
from sim_world import Sim


def test_a_burst_buys_nodes_that_go_after_it(simulate: Callable[..., None]) -> None:
    """Six of two that fit: nodes come after the burst wait, join, work, and go; own ones stay."""

    async def scenario() -> None:
        async with Sim() as sim:
            cloud = Cloud(sim)
            await sim.records.create(pool())
            sim.start_controller()
            await sim.add_node("own", EIGHT)
            await sim.ready(nodes=1)
            uid = await submit(sim, "burst", 6)
            await sim.until(lambda: running(sim, uid) == 2, 30)
            await sim.clock.sleep(4)
            assert not cloud.calls
            await sim.until(lambda: running(sim, uid) == 6, 120)
            assert len(await cloud.machines()) == 2
            assert any("buys 2 nodes of c8 (on-demand)" in one for one in await said(sim))
            await sim.client.delete("/v1/projects/lab/experiments/burst")
            await sim.until(lambda: len(sim.agents) == 1, 300)
            await sim.until(lambda: not sim.live(), 30)
            await sim.clock.sleep(60)
            assert not await cloud.machines()
            assert (await scaling(sim))["nodes"] == []
            names = [
                one["metadata"]["name"] for one in (await sim.records.list("SandboxNode")).items
            ]
            assert names == ["own"]

    simulate(scenario)


BUDGET = {
    "kind": "Budget",
    "metadata": {"name": "all", "namespace": "lab"},
    "spec": {"limit": "10.00", "currency": "USD", "period": {"kind": "total"}},
}


def test_a_budget_that_is_too_small_buys_nothing_and_says_so(
    simulate: Callable[..., None],
) -> None:
    """No node can live its least life for 0.50: none is bought, and task and pool name why."""

    async def scenario() -> None:
        async with Sim() as sim:
            cloud = Cloud(sim)
            await sim.records.create(pool())
            await sim.records.create({**BUDGET, "spec": {**BUDGET["spec"], "limit": "0.50"}})
            sim.start_controller()
            await sim.ready()
            await submit(sim, "burst", 2)
            await sim.clock.sleep(60)
            assert not cloud.calls
            (refused,) = (await scaling(sim))["refusals"]
            assert "a budget does not cover it" in refused
            assert "budget lab/all" in refused or "budget all" in refused, refused
            waits = (await sim.experiment("burst"))["status"]["pendingReasons"][0]["message"]
            assert "no node is bought for it: a budget does not cover it" in waits, waits

    simulate(scenario)


def test_a_hard_limit_holds_while_nobody_leads_for_six_hours(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight nodes at a unit an hour, a limit of 10: they end by themselves; results are there.

    At most the limit and one billing unit (a minute of a node) are paid. What has ended is
    collected, also what ended meanwhile.
    """

    async def scenario() -> None:
        async with Sim() as sim:
            cloud = Cloud(sim, settings={"heartbeat_seconds": 120})
            await sim.records.create(pool(maxNodes=8))
            await sim.records.create(BUDGET)
            process = sim.start_controller()
            await sim.ready()
            short = await submit(sim, "short", 8, env={"DSEC_SIM_SECONDS": "120"})
            uid = await submit(sim, "late", 8, env={"DSEC_SIM_SECONDS": "900"})
            await sim.until(lambda: running(sim, short) + running(sim, uid) == 16, 240)
            assert len(await cloud.machines()) == 8
            await sim.clock.sleep(180)
            await sim.kill(process)
            began = sim.clock.monotonic()
            while await cloud.machines():
                await sim.clock.sleep(60)
            # nothing is left that could happen
            asyncio.get_running_loop()._virtual.now = began + 6 * 3600
            await sim.clock.sleep(1)
            assert not [name for name in sim.agents if name.startswith("sim-")]
            before = await cloud.total("1.00")
            sim.start_controller()
            await sim.until(lambda: sim.leader() is not None, 60)
            await sim.clock.sleep(120)
            assert before <= await cloud.total("1.00") <= Decimal("10.00") + Decimal(1) / 60
            # the second eight ended while nobody led, on nodes that are no more
            for name in ("short", "late"):
                where = f"/v1/projects/lab/experiments/{name}/results"
                done = (await sim.client.get(where)).text
                assert len(done.splitlines()) == 8, done
                assert done.count('"completed"') == 8, done

    monkeypatch.setattr("dsec.agent.winddown.run_hook", _nothing)
    simulate(scenario)


async def _nothing(*_: Any) -> str:
    await asyncio.sleep(0)
    return ""


CALLS = 8
"""Moments at which a burst, an extension and the end of two nodes call the provider."""


@pytest.mark.parametrize("moment", [0, 1, 7])
def test_a_leader_that_dies_between_calls_buys_nothing_twice(
    moment: int, simulate: Callable[..., None]
) -> None:
    """The next one goes on from the statuses and the provider's list: no orphan, no double."""
    simulate(partial(_die_at, moment))


@pytest.mark.soak
@pytest.mark.parametrize("moment", range(CALLS))
def test_a_leader_may_die_at_every_call(moment: int, simulate: Callable[..., None]) -> None:
    """The same at every call."""
    simulate(partial(_die_at, moment))


async def _die_at(moment: int) -> None:
    """Kill the leader before or after its n-th call, once, and see the burst through."""
    async with Sim() as sim:
        cloud = Cloud(sim)

        async def die(_: str) -> None:
            if len(cloud.calls) == moment + 1:
                leader = sim.leader()
                assert leader is not None
                await sim.kill(leader)
                sim.start_controller()
                await leader.gate()

        cloud.before = die
        await sim.records.create(pool(runUntilSeconds=900))
        sim.start_controller()
        await sim.ready()
        uid = await submit(sim, "burst", 4)
        await sim.until(lambda: running(sim, uid) == 4, 300)
        bought = await cloud.bill()
        assert len(bought) == 2, [one.machine for one in bought]
        await sim.clock.sleep(600)
        await sim.client.delete("/v1/projects/lab/experiments/burst")
        await sim.until(lambda: not sim.agents, 400)
        await sim.clock.sleep(60)
        assert not await cloud.machines()
        assert len(await cloud.bill()) == 2
        assert (await scaling(sim))["nodes"] == []
        assert len(cloud.calls) > moment, cloud.calls


def test_work_of_a_spot_node_goes_on_elsewhere_after_a_notice(
    simulate: Callable[..., None],
) -> None:
    """W-05: the replacement is bought at the notice; what ran is preempted and starts again."""

    async def scenario() -> None:
        async with Sim() as sim:
            stormy = Weather(boot=(20.0, 30.0), out={}, hazard_per_hour=6.0, seed=3)
            cloud = Cloud(sim, stormy)
            await sim.records.create(pool(markets=["spot"]))
            sim.start_controller()
            await sim.ready()
            uid = await submit(sim, "burst", 2, taskClass="preemptible")
            await sim.until(lambda: running(sim, uid) == 2, 200)
            first = set(sim.agents)
            notice = 0.0
            while not notice:
                await sim.clock.sleep(5)
                events = await cloud.truth.events()
                notice = next((one.at for one in events if one.kind == "spot-notice"), 0.0)
            await sim.clock.sleep(20)
            assert len(await cloud.bill()) == 2
            text = " ".join(await said(sim))
            assert "the provider takes node" in text
            assert "paused and saved" in text
            await sim.until(lambda: running(sim, uid) == 2 and not first & set(sim.agents), 300)

    simulate(scenario)


def test_nodes_whose_reply_was_lost_are_adopted(simulate: Callable[..., None]) -> None:
    """Every reply of a purchase is lost: the provider's list tells, and nothing comes twice."""

    async def scenario() -> None:
        async with Sim() as sim:
            weather = Weather(boot=(20.0, 30.0), out={}, hazard_per_hour=0.0, lost=1.0)
            cloud = Cloud(sim, weather)
            await sim.records.create(pool())
            sim.start_controller()
            await sim.ready()
            uid = await submit(sim, "burst", 4)
            await sim.until(lambda: running(sim, uid) == 4, 120)
            await sim.clock.sleep(180)
            assert len(await cloud.bill()) == 2
            assert {one["phase"] for one in (await scaling(sim))["nodes"]} == {"ready"}
            assert any("whose reply was lost" in one for one in await said(sim))

    simulate(scenario)


def test_the_next_way_is_taken_at_once_where_one_fails(simulate: Callable[..., None]) -> None:
    """Two makes, the cheaper one has none: the dearer is bought in the same look."""

    async def scenario() -> None:
        async with Sim() as sim:
            cloud = Cloud(sim)
            record = pool()
            offerings = record["spec"]["scaling"]["offerings"]
            offerings.append({**offerings[0], "instanceType": "d8", "pricePerHour": "1.50"})
            await sim.records.create(record)
            cloud.refuses = "burst/east/a/c8/on-demand"
            sim.start_controller()
            await sim.ready()
            uid = await submit(sim, "burst", 2)
            await sim.until(lambda: running(sim, uid) == 2, 120)
            assert cloud.calls == ["before buy", "after buy"] * 2
            ends = {one.offering for one in await cloud.bill()}
            assert ends == {"burst/east/a/d8/on-demand"}
            (held,) = (await scaling(sim))["nodes"]
            assert held["pricePerHour"] == "1.50"
            backoffs = (await scaling(sim))["backoffs"]
            assert [one["key"] for one in backoffs] == ["burst/east/a/c8/on-demand"]

    simulate(scenario)


@dataclass
class Switches:
    """What switches own machines: each has an agent while it is on."""

    sim: Sim
    on_now: set[str] = field(default_factory=set)

    async def state(self, node: str, _: Any) -> PowerState:
        """Say whether a machine is on."""
        return PowerState.ON if node in self.on_now else PowerState.OFF

    async def on(self, node: str, _: Any) -> None:
        """Switch it on."""
        if node not in self.on_now:
            self.on_now.add(node)
            await self.sim.add_node(node, EIGHT, pool="own")

    async def off(self, node: str, _: Any, *, force: bool = False) -> None:
        """Switch it off."""
        del force
        if node in self.on_now:
            self.on_now.discard(node)
            await self.sim.lose_node(node)


def test_own_machines_are_switched_on_for_work_and_parked_after_it(
    simulate: Callable[..., None],
) -> None:
    """One of two parked machines comes for a backlog, and is off after ten calm minutes."""

    async def scenario() -> None:
        async with Sim() as sim:
            power: Any = Switches(sim)
            sim.suppliers = lambda _objects, clock: {
                "simulated": OnPremProvider(sim.records, power, clock)
            }
            record = pool(markets=["owned"], price="0.10", zones=[], regions=[])
            record["spec"]["scaling"]["offerings"][0]["limit"] = 2
            await sim.records.create({**record, "metadata": {"name": "own"}})
            for name in ("m1", "m2"):
                spec = {
                    "pool": "own",
                    "labels": {"instance-type": "c8"},
                    "power": {"hook": "switch"},
                }
                await sim.records.create(
                    {"kind": "SandboxNode", "metadata": {"name": name}, "spec": spec}
                )
            sim.start_controller()
            await sim.ready()
            uid = await submit(sim, "burst", 2, env={"DSEC_SIM_SECONDS": "60"})
            await sim.until(lambda: running(sim, uid) == 2, 60)
            assert power.on_now == {"m1"}
            await sim.clock.sleep(600)
            assert power.on_now == {"m1"}
            await sim.until(lambda: not power.on_now, 300)
            await sim.clock.sleep(60)
            node = await sim.records.get("SandboxNode", "m1")
            assert not node["spec"].get("unschedulable")
            assert "dsec.dev/token" not in node["metadata"].get("annotations", {})
            status = (await sim.records.get("SandboxNodePool", "own"))["status"]["scaling"]
            assert status["nodes"] == []
            again = await submit(sim, "more", 2)
            await sim.until(lambda: running(sim, again) == 2, 900)

    simulate(scenario)


def test_a_node_is_emptied_by_moves_and_given_back(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two half-used nodes become one: running work moves with its state, and nothing is ended."""

    async def scenario() -> None:
        async with Sim() as sim:
            saving = Saving(sim)
            saving.install(monkeypatch)
            cloud = Cloud(sim, Weather(boot=(20.0, 30.0), out={}))
            await sim.records.create(pool())
            sim.start_controller()
            await sim.ready()
            kept = []
            for number in range(2):
                policy = {"kinds": ["state"]}
                kept.append(await submit(sim, f"stay-{number}", 1, cpu=3000, snapshot=policy))
                await submit(sim, f"go-{number}", 1, cpu=5000)
                await sim.until(lambda: running(sim, kept[-1]) == 1, 900)
            assert len(sim.agents) == 2
            ids = set(sim.live())
            for number in range(2):
                await sim.client.delete(f"/v1/projects/lab/experiments/go-{number}")
            await sim.until(lambda: len(sim.agents) == 1, 1800)
            assert [running(sim, uid) for uid in kept] == [1, 1]
            assert set(sim.live()) < ids, "the same sandboxes go on"
            ((_, _, ran),) = saving.restored
            assert ran > 60
            text = " ".join(await said(sim))
            assert "1 sandbox moves to other nodes; saves" in text
            assert len(await cloud.bill()) == 2

    simulate(scenario)


def test_what_saves_its_state_moves_off_a_spot_node_in_time(
    simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a notice it goes to the replacement under its id, where there is time for that."""

    async def scenario() -> None:
        async with Sim() as sim:
            saving = Saving(sim)
            saving.install(monkeypatch)
            stormy = Weather(boot=(20.0, 30.0), out={}, hazard_per_hour=6.0, seed=3)
            cloud = Cloud(sim, stormy)
            await sim.records.create(pool(markets=["spot"]))
            sim.start_controller()
            await sim.ready()
            policy = {"kinds": ["state"]}
            uid = await submit(sim, "burst", 1, taskClass="preemptible", snapshot=policy)
            await sim.until(lambda: running(sim, uid) == 1, 400)
            (id_,) = sim.live()
            await sim.until(lambda: saving.restored, 4 * 3600)
            await sim.until(lambda: running(sim, uid) == 1, 600)
            assert list(sim.live()) == [id_], "it goes on under its id"
            assert saving.reasons[0] == "move"
            ((lineage, _, ran), *_) = saving.restored
            assert lineage == f"exp/{uid}/worker/0"
            assert ran > 30, "it goes on where it was"
            assert len(await cloud.bill()) == 2, "the replacement was bought first"

    simulate(scenario)
