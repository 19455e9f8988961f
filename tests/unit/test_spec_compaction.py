"""What the catalogue promises about moves (SCHED-04, SCHED-17, GPU-17), and W-17 to its end."""

from typing import Any

from dsec.api.experiment import TaskClass
from dsec.placement.accounts import Account
from dsec.placement.compaction import CompactionPolicy, Compactor, Wanting
from dsec.placement.entries import entry_of
from dsec.placement.ledger import Ledger
from dsec.placement.view import ClusterView
from placement_make import GIB, node, one, request, view, why

MARKS = {"safe_percent": 70, "limit_percent": 90}
PAUSABLE, GUARANTEED = TaskClass.PAUSABLE, TaskClass.GUARANTEED


class Machines:
    """Machines with watermarks, and the books of one tenant."""

    def __init__(self, *names: str) -> None:
        self.view: ClusterView = view(*(node(name, 40, 100, **MARKS) for name in names))
        self.ledger = Ledger()
        self.ledger.put(Account("t"))

    def run(
        self, name: str, gib: int, cls: TaskClass = PAUSABLE, *, rests: bool = False, role: str = ""
    ) -> None:
        """Start something, and let it rest."""
        asked = request(name, 1, gib, task_class=cls)
        assert one(self.view, asked).node
        self.ledger.admit(entry_of(asked, "t/p", role=role))
        if rests:
            self.view.pause(name)
            self.ledger.pause(name)

    def plans(self, compactor: Compactor, *waiting: Wanting) -> list[Any]:
        """Plan at time 0."""
        return compactor.plans(self.view, self.ledger, waiting, 0.0)


def full_of_paused(*others: str, role: str = "", cls: TaskClass = PAUSABLE) -> Machines:
    """Return a machine at its limit with two paused sandboxes of 20 GiB, and empty ones."""
    machines = Machines("full")
    machines.run("busy", 50, GUARANTEED)
    for name in ("rest0", "rest1"):
        machines.run(name, 20, rests=True, role=role)
    for name in others:
        machines.view.put(node(name, 40, 100, **MARKS))
    if cls is not PAUSABLE:
        machines.ledger.end("rest0")
        machines.ledger.admit(entry_of(request("rest0", 1, 20, task_class=cls), "t/p"))
    return machines


def test_sched_04_reaching_the_limit_moves_what_rests() -> None:
    """Two paused sandboxes of 20 GiB end elsewhere, and 40 GiB more are free in one piece."""
    machines, compactor = full_of_paused("other"), Compactor(CompactionPolicy())
    before = machines.view.room("full")["memory"]
    (plan,) = machines.plans(compactor)
    for move in plan.moves:
        compactor.start(machines.view, move, 0.0)
        compactor.land(machines.view, move)
        compactor.end(machines.view, move, ok=True)
    assert machines.view.room("full")["memory"] - before == 40 * GIB
    assert {machines.view.bookings()[name].node for name in ("rest0", "rest1")} == {"other"}


def test_sched_17_only_after_the_short_task_has_waited() -> None:
    """A short one joins between the marks; at the limit the long queue triggers after the wait."""
    machines = Machines("a")
    machines.run("long", 75, GUARANTEED)
    machines.run("short", 5)
    machines.run("rest", 15, rests=True)
    machines.view.put(node("other", 40, 100, **MARKS))
    compactor = Compactor(CompactionPolicy(trigger="long-queue-only", short_waits_s=300.0))
    training = Wanting("t", "training", 1000.0)
    assert machines.plans(compactor, training, Wanting("e", "eval", 299.0)) == []
    assert machines.plans(compactor, Wanting("e", "eval", 300.0)) == []
    assert machines.plans(compactor, training, Wanting("e", "eval", 300.0))


def test_sched_19_a_reservation_is_never_moved() -> None:
    """Though it rests, and the node is at its limit."""
    machines = full_of_paused("other", cls=GUARANTEED)
    (plan,) = machines.plans(Compactor(CompactionPolicy()))
    assert [move.id for move in plan.moves] == ["rest1"]


def test_gpu_17_no_plan_lists_a_trainer() -> None:
    """Neither while it runs nor while it rests."""
    machines = full_of_paused("other", role="trainer")
    assert machines.plans(Compactor(CompactionPolicy())) == []


def test_w_17_a_large_task_binds_in_the_block() -> None:
    """At the limit nothing more; paused sandboxes move; the block takes the large task."""
    machines, compactor = full_of_paused("other"), Compactor(CompactionPolicy())
    machines.view.put(node("other", 40, 60, **MARKS))
    large = request("large", 1, 39, task_class=PAUSABLE, avoid=("other",))
    assert {"memory", "watermark"} & set(why(one(machines.view, large)))
    for plan in machines.plans(compactor):
        for move in plan.moves:
            compactor.start(machines.view, move, 0.0)
            compactor.land(machines.view, move)
            compactor.end(machines.view, move, ok=True)
    assert one(machines.view, large).node == "full"
