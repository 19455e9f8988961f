"""Gateways and leaders die or freeze amid single creates: each key once, never above the quota."""

import asyncio
from collections.abc import Callable

import pytest
from lease_world import Fronts, Starts, Written, ask, quota
from sim_world import Sim


async def until_bound(sim: Sim, fronts: Fronts, key: str, found: dict[str, set[str]]) -> None:
    """Ask for a key, through any gateway, until it is bound for good."""
    start = sim.clock.monotonic()
    while True:
        # mostly through one, which then keeps its shards
        front = fronts.alive[0] if sim.rng.random() < 0.9 else sim.rng.choice(fronts.alive)
        client = front.client
        answer = await ask(client, key, env={"DSEC_SIM_SECONDS": "5"})
        assert answer["outcome"] not in ("conflict", "refused"), answer
        if answer["outcome"] in ("bound", "exists"):
            found.setdefault(key, set()).add(answer["id"])
            return
        assert sim.clock.monotonic() - start < 600, (key, answer)
        await sim.clock.sleep(sim.rng.uniform(0.5, 3))


def revive(sim: Sim) -> None:
    """Start a controller for each that has exited because another leads."""
    for name, process in list(sim.processes.items()):
        if process.task.done():
            del sim.processes[name]
            sim.start_controller()


async def trouble(sim: Sim, fronts: Fronts) -> None:
    """Kill, freeze and refuse, one after the other, for ever."""
    while True:
        await sim.clock.sleep(sim.rng.uniform(2, 6))
        revive(sim)
        what = sim.rng.randrange(5)
        leader = sim.leader()
        if what == 0 and leader is not None:
            await sim.kill(leader)
            sim.start_controller()
        elif what == 1:
            fronts.kill(sim.rng.choice(fronts.alive))
            await fronts.start()
        elif what == 2:
            front = sim.rng.choice(fronts.alive)
            front.gate.close()
            await sim.clock.sleep(sim.rng.choice((1.0, 9.0, 20.0)))
            front.gate.open()
        elif what == 3:
            agent = sim.rng.choice(list(sim.agents.values()))
            agent.core.refuse("test", "it takes nothing now")
            await sim.clock.sleep(2)
            agent.core.lift("test")
        elif leader is not None:
            leader.gate.close()
            await sim.clock.sleep(sim.rng.choice((3.0, 25.0)))
            leader.gate.open()


async def watch_ledger(sim: Sim, most: int, seen: list[int]) -> None:
    """Hold that what is used and lent together never passes the quota, in any leader's books."""
    while True:
        await sim.clock.sleep(0.1)
        leader = sim.leader()
        if leader is None or leader.controller.term is None:
            continue
        ledger = leader.controller.term.placer.rounds.planner.ledger
        used, leased = ledger.used("research"), ledger.leased("research")
        assert used.get("sandboxes", 0) + leased.get("sandboxes", 0) <= most
        assert ledger.audit() == []
        seen.append(leased.get("sandboxes", 0))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(n, marks=pytest.mark.soak) for n in (3, 4, 5))]
)
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.soak)])
def test_whatever_dies_each_key_is_bound_once_and_the_quota_holds(
    simulate: Callable[..., None], count: int, seed: int
) -> None:
    """Gateways and leaders die and freeze, replies are lost, agents refuse, keys come twice."""

    async def scenario() -> None:
        async with Sim(seed=seed) as sim:
            most = max(40, count // 20)
            await quota(sim, sandboxes=most)
            sim.start_controller()
            sim.start_controller()
            nodes = max(5, count // 500)
            for n in range(nodes):
                await sim.add_node(f"n{n:02}")
            await sim.ready(nodes=nodes)
            objects, starts = Written(sim), Starts(sim)
            fronts, lent, found = Fronts(sim), list[int](), dict[str, set[str]]()
            for _ in range(2):
                await fronts.start()
            beside = [
                asyncio.create_task(watch_ledger(sim, most, lent)),
                asyncio.create_task(trouble(sim, fronts)),
            ]
            sim.faults.lost_replies = sim.faults.lost_requests = 0.02
            keys = iter([f"k{n}" for n in range(count)])

            async def worker() -> None:
                for key in keys:
                    twice = sim.rng.random() < 0.2
                    asking = [until_bound(sim, fronts, key, found) for _ in range(1 + twice)]
                    await asyncio.gather(*asking)

            try:
                await asyncio.gather(*(worker() for _ in range(12)))
                for task in beside:
                    assert not task.done(), task.exception()
                beside[1].cancel()
                sim.faults.lost_replies = sim.faults.lost_requests = 0.0
                for front in fronts.alive:
                    front.gate.open()
                for process in sim.processes.values():
                    process.gate.open()
                revive(sim)
                await sim.ready()
                await sim.until(lambda: not sim.live(), 120)
                await sim.clock.sleep(30)
                assert not beside[0].done(), beside[0].exception()
            finally:
                for task in beside:
                    task.cancel()
                await fronts.close()
            assert objects.doubles() == {}
            assert objects.peak <= most
            assert {key: found[key] for key in found} == {k: objects.ids[k] for k in found}
            assert len(found) == count
            # each acknowledged create was begun once, on one node
            assert all(len(starts.of[one]) == 1 for ids in found.values() for one in ids)
            # the scenario is about gateways that place: enough of it was theirs
            assert objects.in_lanes > count // 20, objects.in_lanes
            assert max(lent) > 0

    simulate(scenario)
