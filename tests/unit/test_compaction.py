"""Compaction: what rests moves away from full nodes, once, and nothing that is reserved does."""

from typing import Any

import pytest
from dsec.api.experiment import TaskClass
from dsec.placement.accounts import Account
from dsec.placement.compaction import (
    CompactionError,
    CompactionPolicy,
    Compactor,
    Wanting,
)
from dsec.placement.engine import place
from dsec.placement.entries import entry_of
from dsec.placement.ledger import Ledger
from dsec.placement.request import Decision
from dsec.placement.view import ClusterView
from placement_make import GIB, node, request, view
from quota_make import GUARANTEED, PAUSABLE

MARKS = {"safe_percent": 70, "limit_percent": 90}


class Full:
    """Node `full` at its limit with paused sandboxes of 12 GiB, and empty nodes beside it."""

    def __init__(
        self, *others: str, paused: int = 2, cls: TaskClass = PAUSABLE, **more: Any
    ) -> None:
        self.view = view(node("full", 16, 64, **MARKS))
        self.ledger = Ledger()
        self.ledger.put(Account("t"))
        self.run("busy", 4, 40, GUARANTEED)
        for n in range(paused):
            self.run(f"rest{n}", 2, 12, cls, **more)
            self.view.pause(f"rest{n}")
            self.ledger.pause(f"rest{n}")
        for name in others:
            self.view.put(node(name, 16, 64, **MARKS))

    def run(self, name: str, cores: int, gib: int, cls: TaskClass, **more: Any) -> None:
        """Start on the only node there is."""
        asked = request(name, cores, gib, task_class=cls, priority=-1)
        role = more.get("role", "")
        assert self.ledger.admit(entry_of(asked, "t/p", role=role)).booked
        self.view.book(asked, Decision(name, "full"))

    def plans(self, compactor: Compactor, *waiting: Wanting, now: float = 0.0) -> list[Any]:
        """Plan without changing anything."""
        before = self.view.digest()
        found = compactor.plans(self.view, self.ledger, waiting, now)
        assert self.view.digest() == before
        return found


def test_both_paused_sandboxes_leave_one_free_block() -> None:
    """SCHED-04: the node ends with both elsewhere and one free block of their joint size."""
    full, compactor = Full("other"), Compactor(CompactionPolicy())
    assert full.view.room("full")["watermark"] == 0
    free = full.view.room("full")["memory"]
    (plan,) = full.plans(compactor)
    assert [(m.id, m.source, m.target) for m in plan.moves] == [
        ("rest0", "full", "other"),
        ("rest1", "full", "other"),
    ]
    assert plan.block["memory_bytes"] == 24 * GIB
    for move in plan.moves:
        compactor.start(full.view, move, 0.0)
        assert full.view.room("full")["memory"] < free + 24 * GIB
        compactor.land(full.view, move)
        assert full.view.bookings()[move.id].node == "other"
        assert full.view.room("full")["memory"] < free + 24 * GIB, "kept until it has arrived"
        compactor.end(full.view, move, ok=True)
    assert full.view.room("full")["memory"] == free + 24 * GIB
    on = full.view.bookings()
    assert {on[m.id].node for m in plan.moves} == {"other"}
    assert all(on[m.id].paused for m in plan.moves)
    assert set(on) == {"busy", "rest0", "rest1"}


def test_what_is_reserved_does_not_move() -> None:
    """SCHED-19, GPU-17: neither guaranteed work nor a trainer, though it rests."""
    for full in (Full("other", cls=GUARANTEED), Full("other", role="trainer")):
        assert full.plans(Compactor(CompactionPolicy())) == []


def test_a_node_below_its_limit_is_left_alone() -> None:
    """One paused sandbox fewer: between safe and limit nothing is moved."""
    full = Full("other", paused=1)
    assert full.view.room("full")["watermark"] == 1
    assert full.plans(Compactor(CompactionPolicy())) == []


def test_no_move_to_a_node_that_would_be_full() -> None:
    """A target is below safe before and below its limit afterwards; what has no place stays."""
    full, compactor = Full("small", "busy-too"), Compactor(CompactionPolicy())
    full.view.put(node("small", 16, 13, **MARKS))
    place(full.view, [request("x", 1, 50, task_class=PAUSABLE, avoid=("full",))])
    assert full.view.room("busy-too")["watermark"] == 1
    assert full.plans(compactor) == []
    full.view.put(node("room", 16, 20, **MARKS))
    (plan,) = full.plans(compactor)
    assert [(m.id, m.target) for m in plan.moves] == [("rest0", "room")]
    assert plan.stays == ("rest1",)


def test_the_long_queue_triggers_it_after_the_short_ones_wait() -> None:
    """SCHED-17, CONF-17 `long-queue-only`: at the limit, with long work, after the short's wait."""
    policy = CompactionPolicy("long-queue-only", short_waits_s=60.0)
    full = Full("other")
    long_one = Wanting("t", "training", 1e6)
    for waiting, moves in (
        ((long_one,), 0),
        ((Wanting("e", "eval", 1e6),), 0),
        ((long_one, Wanting("e", "eval", 59.0)), 0),
        ((long_one, Wanting("e", "eval", 60.0)), 1),
    ):
        assert len(full.plans(Compactor(policy), *waiting)) == moves


@pytest.mark.case("karpenter#1019")
def test_case_karpenter_1019() -> None:
    """What has moved does not move again without a change in demand, nor before its time."""
    full, compactor = Full("other"), Compactor(CompactionPolicy(again_after_s=100.0))
    waiting = Wanting("w", "training", 0.0)
    (plan,) = full.plans(compactor, waiting)
    for move in plan.moves:
        compactor.start(full.view, move, 0.0)
        compactor.land(full.view, move)
        compactor.end(full.view, move, ok=True)
    # now the other node is full, and the first has room again
    full.view.book(request("late", 1, 40), Decision("late", "other"))
    assert full.view.room("other")["watermark"] == 0
    assert full.plans(compactor, waiting, now=1e6) == []
    changed = Wanting("v", "training", 0.0)
    assert full.plans(compactor, changed, now=99.0) == []
    assert len(full.plans(compactor, changed, now=100.0)) == 1


def test_a_move_that_fails_leaves_everything_as_it_was() -> None:
    """Before it counts there or after: the room there is free again. A second end does nothing."""
    full, compactor = Full("other"), Compactor(CompactionPolicy())
    (plan,) = full.plans(compactor)
    before = full.view.digest()
    for lands in (False, True):
        compactor.start(full.view, plan.moves[0], 0.0)
        assert "rest0" not in {move.id for one in full.plans(compactor) for move in one.moves}
        if lands:
            compactor.land(full.view, plan.moves[0])
        compactor.end(full.view, plan.moves[0], ok=False)
        compactor.end(full.view, plan.moves[0], ok=True)
        assert full.view.digest() == before
    again = compactor.policy.again_after_s
    for now, ids in ((again - 1, {"rest1"}), (again, {"rest0", "rest1"})):
        assert {move.id for one in full.plans(compactor, now=now) for move in one.moves} == ids


def test_only_so_many_at_once() -> None:
    """Each costs a snapshot."""
    (plan,) = Full("other").plans(Compactor(CompactionPolicy(moves_at_once=1)))
    assert len(plan.moves) == 1
    assert plan.stays == ("rest1",)


def test_bad_policies_are_refused_by_name() -> None:
    """The field, the value and what is allowed."""
    with pytest.raises(
        CompactionError, match="trigger: 'never'; auto-at-limit and long-queue-only"
    ):
        CompactionPolicy("never")
    with pytest.raises(CompactionError, match="moves_at_once: 0; 1 or more"):
        CompactionPolicy(moves_at_once=0)


def test_an_empty_cluster_has_nothing_to_move() -> None:
    """No nodes, no plans."""
    assert Compactor(CompactionPolicy()).plans(ClusterView(), Ledger(), [], 0.0) == []


def test_a_move_that_an_earlier_leader_began_is_followed() -> None:
    """Its target counts already: the room on the source is held until it has arrived."""
    full, compactor = Full("other"), Compactor(CompactionPolicy())
    (plan,) = full.plans(compactor)
    move, free = plan.moves[0], full.view.room("full")["memory"]
    request = full.view.bookings()[move.id].request
    full.view.release(move.id)
    full.view.book(request, move.decision)
    compactor.adopt(full.view, move, Decision(move.id, "full"), 0.0)
    assert full.view.room("full")["memory"] == free
    compactor.end(full.view, move, ok=False)
    assert full.view.bookings()[move.id].node == "full"
    assert move.kept not in full.view.bookings()
