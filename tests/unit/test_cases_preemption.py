"""Field reports about preemption, and W-16: one victim each, in order, and nothing twice."""

from typing import Any

import pytest
from dsec.api.experiment import TaskClass
from dsec.placement.accounts import Account
from dsec.placement.displacing import Displacing, resumable
from dsec.placement.engine import place
from dsec.placement.entries import entry_of
from dsec.placement.ledger import Ledger
from dsec.placement.plans import Asking, Plan, PreemptionPolicy, Step
from dsec.placement.preemption import plan
from dsec.placement.request import Node
from dsec.placement.words import explain
from placement_make import node, one, request, view
from quota_make import PAUSABLE, PREEMPTIBLE

POLICY = PreemptionPolicy()


class World:
    """View, ledger and plans under way, as a leader has them."""

    def __init__(self, *nodes: Node) -> None:
        self.view = view(*nodes)
        self.ledger = Ledger()
        self.ledger.put(Account("t", {}))
        self.displacing = Displacing(self.view, self.ledger, POLICY)

    def run(self, name: str, cores: int, cls: TaskClass = PREEMPTIBLE, **fields: Any) -> None:
        """Start something."""
        since = fields.pop("since", 0.0)
        asked = request(name, cores, task_class=cls, **fields)
        self.ledger.admit(entry_of(asked, "t/p", since=since))
        assert one(self.view, asked).node

    def ask(self, name: str, cores: int, **fields: Any) -> Asking:
        """Return work that has waited since 0."""
        asked = request(name, cores, priority=fields.pop("priority", 1), **fields)
        return Asking((asked,), (entry_of(asked, "t/p"),), 0.0)

    def plan(self, asking: Asking, now: float = 60.0) -> Plan:
        """Plan with what is under way; there has to be a plan."""
        found = plan(
            self.view,
            self.ledger,
            asking,
            POLICY,
            now,
            leaving=self.displacing.leaving,
            spared=self.displacing.spared,
        )
        assert isinstance(found, Plan), explain(found)
        return found

    def finish(self, asking: Asking) -> str:
        """Place an asker whose victims have gone; return its node."""
        assert asking.id in [ready.asking.id for ready in self.displacing.ready()]
        self.displacing.drop(asking.id)
        assert self.ledger.admit(*asking.entries).booked
        (decision,) = place(self.view, asking.requests)
        self.displacing.drop(asking.id)
        return decision.node


def names(found: Plan) -> list[str]:
    """Return the ids of victims."""
    return [victim.id for victim in found.displacements]


@pytest.mark.case("kueue#9437")
def test_case_kueue_9437() -> None:
    """Round after round for the same asker, and for another: the victim is asked once."""
    world = World(node("a", 8))
    world.run("victim", 8)
    first, second = world.ask("first", 4), world.ask("second", 4)
    asked = [one.id for one in world.displacing.start(world.plan(first), 60.0)]
    waits = world.displacing.hindrance("first")
    assert waits is not None
    assert "asked the place of 1 others" in explain([waits])
    asked += [one.id for one in world.displacing.start(world.plan(second), 62.0)]
    world.displacing.drop("first")
    asked += [one.id for one in world.displacing.start(world.plan(first, 63.0), 63.0)]
    assert asked == ["victim"]


@pytest.mark.case("kueue#7665", "kueue#10185")
def test_case_kueue_7665() -> None:
    """A step fails: books are as they were before, and the next round plans the same again."""
    world = World(node("a", 8))
    world.run("victim", 8)
    asking = world.ask("asks", 8)
    before = world.view.digest(), world.ledger.used("t")
    world.displacing.start(world.plan(asking), 60.0)
    assert world.displacing.failed("victim") == ["asks"]
    assert (world.view.digest(), world.ledger.used("t")) == before
    assert world.ledger.audit() == []
    assert names(world.plan(asking, 61.0)) == ["victim"]


@pytest.mark.case("kueue#5833")
def test_case_kueue_5833() -> None:
    """The victim's node was deleted: it counts as gone, once."""
    world = World(node("a", 8), node("b", 4))
    world.run("victim", 8)
    asking = world.ask("asks", 8)
    found = world.plan(asking)
    world.displacing.start(found, 60.0)
    world.view.remove("a")
    world.displacing.look()
    world.displacing.gone("victim")
    assert not world.displacing.victims
    assert "victim" not in world.ledger.entries
    assert world.ledger.audit() == []
    world.displacing.drop(asking.id)
    late = World(node("a", 8))
    late.run("victim", 8)
    found = late.plan(asking)
    late.view.remove("a")
    assert late.displacing.start(found, 60.0) == []


@pytest.mark.case("volcano#4926")
def test_case_volcano_4926() -> None:
    """There would be enough CPU, but not with the label asked for: nobody goes."""
    world = World(node("a", 8), node("ssd", 2, labels={"disk": "ssd"}))
    world.run("victim", 8, labels={})
    found = plan(
        world.view, world.ledger, world.ask("asks", 8, labels={"disk": "ssd"}), POLICY, 60.0
    )
    assert not isinstance(found, Plan)
    assert "would not fit either" in explain(found)


@pytest.mark.case("kubernetes#54501", "kubernetes#55933")
def test_case_kubernetes_54501() -> None:
    """The victim has gone; what is of lower priority finds no room before the asker has it."""
    world = World(node("a", 8))
    world.run("victim", 8)
    asking = world.ask("asks", 8)
    world.displacing.start(world.plan(asking), 60.0)
    for id_ in ("early", "late"):
        assert not one(world.view, request(id_, 1, priority=-1)).node
        world.displacing.gone("victim")
    assert world.finish(asking) == "a"


@pytest.mark.case("kubernetes#95752")
def test_case_kubernetes_95752() -> None:
    """The victim does not die: after its time the asker makes room on another node."""
    world = World(node("dead", 8), node("alive", 8))
    world.run("v1", 8)
    world.run("v2", 8)
    asking = world.ask("asks", 8)
    first = world.plan(asking)
    world.displacing.start(first, 60.0)
    assert world.displacing.overdue(60.0 + POLICY.dies_within_s - 1) == []
    assert world.displacing.overdue(60.0 + POLICY.dies_within_s) == ["asks"]
    second = world.plan(asking, 200.0)
    assert names(second) != names(first)
    assert second.displacements[0].node != first.displacements[0].node


@pytest.mark.case("community#1228")
def test_case_community_1228() -> None:
    """Rather B (priority 1) than A (10), where either would do; rather one than two."""
    world = World(node("a", 8), node("b", 8), node("c", 8))
    world.run("A", 8, priority=10)
    world.run("B", 8, priority=1)
    world.run("C1", 4, priority=1)
    world.run("C2", 4, priority=1)
    assert names(world.plan(world.ask("asks", 8, priority=20))) == ["B"]


def test_w_16_preemption_pause_and_return() -> None:
    """Waits past the threshold; the consenting victim is synced, paused, and goes on where it was.

    TEN-09 to TEN-12: nothing before the time, sync first, pause rather than kill.
    """
    world = World(node("a", 8))
    world.run("kept", 4, TaskClass.GUARANTEED)
    world.run("victim", 4, PAUSABLE)
    asking = world.ask("high", 4)
    early = plan(world.view, world.ledger, asking, POLICY, 59.0)
    assert "59 s of waiting, free to displace others after 60 s" in explain(early)
    found = world.plan(asking, 60.0)
    assert [(one.id, one.steps) for one in found.displacements] == [
        ("victim", (Step.SYNC, Step.PAUSE))
    ]
    world.displacing.start(found, 60.0)
    world.displacing.gone("victim")
    assert world.finish(asking) == "a"
    held = world.view.bookings()["victim"]
    assert held.paused
    assert resumable(world.view, world.ledger) == []
    world.view.release("high")
    world.ledger.end("high")
    assert [entry.id for (entry,) in resumable(world.view, world.ledger)] == ["victim"]
    assert world.ledger.resume("victim") == ()
    resumed = world.view.resume("victim")
    assert (resumed.node, resumed.paused) == (held.node, False)


def test_ten_10_and_14_without_consent_it_goes_on_waiting_and_says_so() -> None:
    """Guaranteed work is in no victim list, however high the asker and however long its wait."""
    world = World(node("a", 8))
    world.run("kept", 8, TaskClass.GUARANTEED)
    found = plan(world.view, world.ledger, world.ask("high", 8, priority=99), POLICY, 1e6)
    assert not isinstance(found, Plan)
    assert "nothing of a lower priority that runs is pausable or preemptible" in explain(found)


def test_sched_18_an_eval_burst_fills_gaps_and_gives_way() -> None:
    """Training is untouched by the burst, and gets the room back as soon as it asks."""
    world = World(node("a", 8))
    world.run("train0", 4, TaskClass.GUARANTEED, queue="training")
    for number in range(4):
        world.run(f"eval{number}", 1, queue="eval", since=float(number))
    wanted = world.ask("train1", 4, priority=0, queue="training")
    found = world.plan(wanted, 0.0)
    assert {one[:4] for one in names(found)} == {"eval"}
    assert len(names(found)) == 4
    world.displacing.start(found, 0.0)
    for name in names(found):
        world.displacing.gone(name)
    assert world.finish(wanted) == "a"
    assert set(world.view.bookings()) == {"train0", "train1"}
