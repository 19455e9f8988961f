"""Election, caches and queues in virtual time."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from dsec.controllers.election import DURATION, Election, OfficeLostError
from dsec.controllers.runtime import WorkQueue
from dsec.world.cache import RELIST_SECONDS, Cache, Key
from dsec.world.memory import MemoryRecords
from dsec.world.records import RecordsError
from sim_world import LoopClock


def candidate(records: MemoryRecords, name: str) -> Election:
    """Build a candidate."""
    return Election(
        records, LoopClock(), identity=name, endpoint=f"http://{name}", namespace="dsec-system"
    )


def test_one_leads_and_the_next_takes_over(simulate: Callable[..., None]) -> None:
    """A held office is not taken; a silent one is within ten seconds, with a higher epoch."""

    async def scenario() -> None:
        clock, records = LoopClock(), MemoryRecords(LoopClock())
        first, second = candidate(records, "a"), candidate(records, "b")
        assert await first.acquire() == 1
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire(minimum=7))
        await clock.sleep(60)
        assert not waiting.done()
        holding.cancel()
        start = clock.monotonic()
        assert await waiting == 8, "the log's epoch counts even where the lease is younger"
        assert clock.monotonic() - start <= 10
        with pytest.raises(OfficeLostError):
            await first.hold()

    simulate(scenario)


def test_a_released_office_is_free_at_once(simulate: Callable[..., None]) -> None:
    """A clean stop costs the next leader one poll."""

    async def scenario() -> None:
        clock, records = LoopClock(), MemoryRecords(LoopClock())
        first, second = candidate(records, "a"), candidate(records, "b")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await clock.sleep(0.1)
        await first.release()
        start = clock.monotonic()
        assert await waiting == 2
        assert clock.monotonic() - start <= 1.5

    simulate(scenario)


def test_a_restarted_pod_takes_its_own_office_back_at_once(simulate: Callable[..., None]) -> None:
    """The same identity need not wait for itself, and gets a new epoch."""

    async def scenario() -> None:
        clock, records = LoopClock(), MemoryRecords(LoopClock())
        assert await candidate(records, "a").acquire() == 1
        assert await candidate(records, "a").acquire() == 2
        assert clock.monotonic() < 1

    simulate(scenario)


@pytest.mark.parametrize("verdict", ["before", "after"])
def test_who_cannot_renew_stops_before_others_start(
    simulate: Callable[..., None], verdict: str
) -> None:
    """While the store is away the leader gives up within the lease; one lost answer is no loss."""

    async def scenario() -> None:
        clock, records = LoopClock(), MemoryRecords(LoopClock())
        first = candidate(records, "a")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        left = [1]

        def once(op: str, _: str) -> str:
            if op == "replace" and left:
                left.pop()
                return verdict
            return ""

        records.fault = once
        await clock.sleep(30)
        assert not holding.done(), "one lost answer must not cost the office"
        records.fault = lambda op, _: "before" if op in ("replace", "get") else ""
        start = clock.monotonic()
        with pytest.raises(OfficeLostError):
            await holding
        assert clock.monotonic() - start < DURATION

    simulate(scenario)


def test_a_cache_survives_lost_watches(simulate: Callable[..., None]) -> None:
    """A store that is away, and a watch that died silently, are both listed over."""

    async def scenario() -> None:
        clock, records = LoopClock(), MemoryRecords(LoopClock())
        await records.create({"kind": "Tenant", "metadata": {"name": "a"}})
        cache = Cache(records, "Tenant", clock)
        seen: list[Key] = []
        cache.listen(seen.append)
        records.fault = lambda op, _: "before" if op == "list" else ""
        task = asyncio.create_task(cache.run())
        await clock.sleep(5)
        assert not cache.synced.is_set()
        records.fault = None
        await clock.sleep(5)
        assert cache.get(("", "a")) is not None
        await records.create({"kind": "Tenant", "metadata": {"name": "b"}})
        await clock.sleep(1)
        assert seen == [("", "a"), ("", "b")]
        # a record that vanishes behind the watch's back is noticed by the next list
        records._records.pop(("Tenant", "", "a"))
        await clock.sleep(RELIST_SECONDS + 5)
        assert cache.get(("", "a")) is None
        task.cancel()

    simulate(scenario)


def test_a_queue_runs_one_at_a_time_per_key_and_backs_off(simulate: Callable[..., None]) -> None:
    """Changes during a run cause one more; failures wait longer each time."""

    async def scenario() -> None:
        clock = LoopClock()
        runs: list[tuple[Key, float]] = []
        running: set[Key] = set()

        async def reconcile(key: Key) -> float | None:
            assert key not in running
            running.add(key)
            runs.append((key, clock.monotonic()))
            await clock.sleep(1.0)
            running.discard(key)
            if key == ("", "bad"):
                raise RecordsError("away")
            return None

        queue = WorkQueue("test", reconcile, clock, workers=2)
        task = asyncio.create_task(queue.run())
        queue.add(("", "a"))
        await clock.sleep(0.5)
        for _ in range(5):
            queue.add(("", "a"))
        queue.add(("", "bad"))
        await clock.sleep(60)
        assert len([one for one in runs if one[0] == ("", "a")]) == 2
        times = [at for key, at in runs if key == ("", "bad")]
        gaps = [later - before for before, later in pairwise(times)]
        assert gaps == sorted(gaps)
        assert gaps[0] < 2
        assert gaps[-1] > 10
        task.cancel()

    simulate(scenario)
