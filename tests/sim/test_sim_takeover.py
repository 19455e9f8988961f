"""Take-overs at odd moments, and what a deletion or a lost record leaves behind: nothing."""

from collections.abc import Callable
from datetime import datetime, timedelta

from dsec.journal.bindings import Row
from dsec.journal.bindlog import BindLog
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
