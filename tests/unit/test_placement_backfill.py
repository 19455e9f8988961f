"""Rounds over waiting work: who starts, whom room is kept for, and that nobody delays them."""

import math
from collections.abc import Sequence

import pytest
from dsec.api.reasons import PendingReason
from dsec.placement.backfill import (
    DEPTH,
    HEAD_SEARCHES,
    BackfillRules,
    Reservation,
    Round,
    Work,
    run_round,
)
from dsec.placement.engine import place
from dsec.placement.refusal import Refusal
from dsec.placement.request import Decision, Request
from dsec.placement.view import ClusterView
from hypothesis import given
from hypothesis import strategies as st
from placement_make import node, request, view

RULES = BackfillRules(head_after=30, keep=600, rest=300)


class Free:
    """Starts work without quota."""

    def __init__(self, cluster: ClusterView) -> None:
        self.cluster = cluster

    def place(self, requests: Sequence[Request]) -> list[Decision]:
        """Place."""
        return place(self.cluster, requests)

    def undo(self, ids: Sequence[str]) -> None:
        """Release."""
        for one in ids:
            self.cluster.release(one)


def work(name: str, count: int, cores: float, since: float, run: float = math.inf) -> Work:
    """Return a gang of equal members, or a single request."""
    gang = name if count > 1 else ""
    members = tuple(request(f"{name}-{n}", cores, gang=gang) for n in range(count))
    return Work(name, members, since, run)


def turn(
    cluster: ClusterView,
    waiting: Sequence[Work],
    *,
    now: float,
    ends: dict[str, float] | None = None,
    kept: Reservation | None = None,
    rested: dict[str, float] | None = None,
) -> Round:
    """Run one round with the rules of these tests."""
    return run_round(
        cluster,
        waiting,
        Free(cluster),
        ends=ends or {},
        now=now,
        kept=kept,
        rested=rested,
        rules=RULES,
    )


def started(found: Round) -> set[str]:
    """Return the ids that have a node."""
    return {one.id for one in found.decisions.values() if one.node}


def full(cores: int = 4, nodes: int = 2) -> ClusterView:
    """Return nodes whose CPUs are all taken, one sandbox of one core each."""
    cluster = view(*(node(f"n{n}", cores, 64) for n in range(nodes)))
    found = place(cluster, [request(f"old-{n}") for n in range(cores * nodes)])
    assert all(one.node for one in found)
    return cluster


def test_work_behind_the_head_starts_only_where_it_does_not_delay_it() -> None:
    """A head of 2 x 4 cores waits until 100: what ends before may start, the rest may not."""
    cluster = full()
    ends = {f"old-{n}": 100.0 for n in range(8)}
    cluster.release("old-0")
    short, long = work("short", 1, 1, 50, run=40), work("long", 1, 1, 50, run=400)
    head = work("head", 2, 4, since=0)
    found = turn(cluster, [head, long, short], now=50, ends=ends)
    assert found.kept is not None
    assert (found.kept.name, found.kept.start) == ("head", 100.0)
    assert started(found) == {"short-0"}
    assert found.overtaken == ["long"]
    assert found.decisions["long-0"].refusals[0].reason is PendingReason.RESERVED
    for n in range(1, 8):
        cluster.release(f"old-{n}")
    cluster.release("short-0")
    assert started(turn(cluster, [head, long], now=100, kept=found.kept)) == {"head-0", "head-1"}


def test_room_that_the_head_will_not_use_is_free_for_all() -> None:
    """A third node that the head does not need takes work that never ends."""
    cluster = full()
    cluster.put(node("spare", 2, 64))
    ends = {f"old-{n}": 100.0 for n in range(8)}
    found = turn(cluster, [work("head", 2, 4, 0), work("long", 1, 1, 50)], now=50, ends=ends)
    assert found.decisions["long-0"].node == "spare"


def test_a_short_wait_may_be_overtaken() -> None:
    """Nothing is kept for work that has only just come."""
    cluster = full()
    cluster.release("old-0")
    found = turn(cluster, [work("large", 1, 4, 40), work("small", 1, 1, 45)], now=50)
    assert found.kept is None
    assert started(found) == {"small-0"}


def test_what_is_kept_expires_and_then_others_start() -> None:
    """A head that still waits after its time makes room for the next, and comes back later."""
    cluster = full()
    cluster.release("old-0")
    waiting = [work("large", 1, 4, 0), work("small", 1, 1, 0)]
    first = turn(cluster, waiting, now=50)
    assert first.kept is not None
    assert (first.kept.start, first.kept.expires) == (math.inf, 650)
    same = turn(cluster, waiting, now=300, kept=first.kept)
    assert same.kept is not None
    assert same.kept.expires == 650
    assert not started(same)
    late = turn(cluster, waiting, now=651, kept=same.kept)
    assert started(late) == {"small-0"}
    assert late.rested == {"large": 951.0}
    again = turn(cluster, waiting[:1], now=960, rested=late.rested)
    assert again.kept is not None


@pytest.mark.case("kube-batch#158")
def test_the_big_one_is_not_starved_by_small_ones() -> None:
    """Two gangs of more than half each: one runs, the other comes next although small ones wait."""
    cluster = view(node("n", 8, 64))
    first, second = work("a", 5, 1, 0, run=100), work("b", 5, 1, 0, run=100)
    small = [work(f"s{n}", 1, 1, 40, run=1000) for n in range(3)]
    found = turn(cluster, [first, second, *small], now=50)
    assert started(found) == {f"a-{n}" for n in range(5)} | {f"s{n}-0" for n in range(3)}
    for n in range(5):
        cluster.release(f"a-{n}")
    assert started(turn(cluster, [second], now=150, kept=found.kept)) == {
        f"b-{n}" for n in range(5)
    }


def test_work_that_never_fits_keeps_nobody_waiting() -> None:
    """Nothing is kept for what no machine could hold, and it is asked for now and then only."""
    cluster = view(node("n", 8, 64))
    found = turn(cluster, [work("giant", 1, 99, 0), work("small", 1, 1, 0)], now=50)
    assert started(found) == {"small-0"}
    assert found.kept is None
    assert found.rested == {"giant": 350.0}


def test_what_waits_for_quota_keeps_no_room() -> None:
    """Room that it may not use yet would be of no use to anybody."""
    cluster = view(node("n", 8, 64))
    place(cluster, [request("old")])

    class Poor(Free):
        """A tenant whose quota is used up asks for all that is there."""

        def place(self, requests: Sequence[Request]) -> list[Decision]:
            """Place what has quota."""
            short = Refusal(PendingReason.QUOTA, "sandboxes", 1)
            return [
                Decision(one.id, refusals=(short,))
                if one.id.startswith("poor")
                else place(self.cluster, [one])[0]
                for one in requests
            ]

    waiting = [work("poor", 1, 8, 0), work("other", 1, 2, 10)]
    found = run_round(cluster, waiting, Poor(cluster), ends={}, now=50, rules=RULES)
    assert found.kept is None
    assert found.decisions["other-0"].node == "n"


class Counting(Free):
    """Counts how many requests a round looks at."""

    def __init__(self, cluster: ClusterView) -> None:
        super().__init__(cluster)
        self.looked = 0

    def place(self, requests: Sequence[Request]) -> list[Decision]:
        """Place, and count."""
        self.looked += len(requests)
        return super().place(requests)


@pytest.mark.parametrize("alike", [True, False])
def test_a_crowd_that_never_fits_costs_one_round_little(*, alike: bool) -> None:
    """Hundreds of requests that no machine can hold must not hold up the leader."""
    cluster = view(node("n", 8, 64))
    crowd = [work(f"giant{n}", 1, 99 if alike else 99 + n, 0) for n in range(300)]
    start = Counting(cluster)
    waiting = [*crowd, work("small", 1, 1, 0)]
    found = run_round(cluster, waiting, start, ends={}, now=50, rules=RULES)
    assert started(found) == {"small-0"}
    assert start.looked <= 301 * (HEAD_SEARCHES + 1)
    assert len(found.rested) == (300 if alike else HEAD_SEARCHES)


def test_no_more_than_the_depth_is_looked_at_behind_a_head() -> None:
    """Stretches of single requests with a gang between them count together."""
    cluster = full(1, 1)
    waiting = [work("head", 1, 1, 0)]
    waiting += [work(f"a{n}", 1, 1, 40) for n in range(DEPTH + 200)]
    waiting += [work("gang", 2, 1, 40)]
    waiting += [work(f"b{n}", 1, 1, 40) for n in range(400)]
    found = turn(cluster, waiting, now=50)
    assert found.kept is not None
    assert sum(one.startswith(("a", "b")) for one in found.decisions) == DEPTH


WORKS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 60), st.integers(1, 300)),
    min_size=1,
    max_size=12,
)


@given(WORKS, st.lists(st.integers(1, 300), min_size=8, max_size=8))
def test_the_head_never_starts_later_than_was_said(
    asked: list[tuple[int, int, int, int]], old: list[int]
) -> None:
    """Whatever starts behind a head: at the moment that was promised, it has its room."""
    cluster = full()
    ends = {f"old-{n}": float(60 + end) for n, end in enumerate(old)}
    cluster.release("old-0")
    ends.pop("old-0")
    waiting = [
        work(f"w{n}", c, cores, since, run) for n, (c, cores, since, run) in enumerate(asked)
    ]
    found = turn(cluster, waiting, now=60, ends=ends)
    assert started(found) <= set(cluster.bookings())
    if found.kept is None:
        return
    runs = {one.id: 60 + w.run_seconds for w in waiting for one in w.requests}
    for one in list(cluster.bookings()):
        if {**runs, **ends}.get(one, math.inf) <= found.kept.start:
            cluster.release(one)
    head = next(w for w in waiting if w.name == found.kept.name)
    assert all(one.node for one in place(cluster, head.requests))
