"""CPUs that replicas have to themselves, from the role to the agents."""

from collections.abc import Callable

from dsec.agent.substrates.simulated import Profile
from sim_world import Sim
from test_sim_preemption import copies, submit

EIGHT = Profile(
    name="eight", cpu_milli=8000, memory_bytes=16 << 30, boot=(0.01, 0.05), register=(0.01, 0.05)
)


def test_replicas_with_cpus_of_their_own_have_disjoint_ones(simulate: Callable[..., None]) -> None:
    """SCHED-29, from the role to the agents, and again after the leader has gone."""

    async def scenario() -> None:
        async with Sim() as sim:
            sim.start_controller()
            await sim.add_node("n", EIGHT)
            await sim.ready(nodes=1)

            def pinned() -> list[int]:
                return sorted(c for e in sim.agents["n"].core if e.live for c in e.spec.cpus)

            uid = await submit(sim, "own", replicas=2, cpu=1500, exclusive=True)
            await sim.until(lambda: copies(sim, uid) == [(1, "running")] * 2, 30)
            assert pinned() == [0, 1, 2, 3]
            leader = sim.leader()
            assert leader is not None
            sim.start_controller()
            await sim.kill(leader)
            await sim.until(lambda: sim.leader() is not None, 60)
            more = await submit(sim, "more", replicas=2, cpu=2000, exclusive=True)
            await sim.until(lambda: copies(sim, more) == [(1, "running")] * 2, 60)
            assert pinned() == list(range(8))
            leader = sim.leader()
            assert leader is not None
            assert leader.controller.term is not None
            view = leader.controller.term.placer.rounds.planner.view
            booked = sorted(cpu for one in view.bookings().values() for cpu in one.cpus)
            assert booked == list(range(8)), "what placement chose is what the agent has"
            late = await submit(sim, "late", cpu=100, exclusive=True)
            await sim.clock.sleep(10)
            assert copies(sim, late) == []

    simulate(scenario)
