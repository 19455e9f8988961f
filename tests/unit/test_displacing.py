"""Plans under way: one request a victim, room held, victims that do not die, and who comes back."""

from dataclasses import replace

import pytest
from dsec.api.experiment import TaskClass
from dsec.placement.accounts import Account
from dsec.placement.displacing import Displacing, resumable, resume
from dsec.placement.engine import place
from dsec.placement.entries import entry_of
from dsec.placement.ledger import Ledger
from dsec.placement.plans import Asking, Plan, PreemptionPolicy
from dsec.placement.preemption import plan
from dsec.placement.request import Request
from dsec.placement.view import ClusterView
from dsec.placement.words import sentence
from placement_make import node, request, view
from quota_make import GUARANTEED, PAUSABLE, PREEMPTIBLE, cpu

POLICY = PreemptionPolicy(dies_within_s=30.0)


class World:
    """Nodes of 8 cores, each in full use by a victim, and the leader's memory of plans."""

    def __init__(self, nodes: int = 1, cls: TaskClass = PREEMPTIBLE) -> None:
        self.view = view(*[node(f"n{n}", 8) for n in range(nodes)])
        self.ledger = Ledger()
        for tenant in "ab":
            self.ledger.put(Account(tenant, cpu(8 * nodes), cpu(16 * nodes)))
        self.displacing = Displacing(self.view, self.ledger, POLICY)
        for n in range(nodes):
            asked = request(f"x{n}", 8, task_class=cls)
            assert self.ledger.admit(entry_of(asked, "a/p", since=float(n))).booked
            assert place(self.view, [asked])[0].node

    def gang(self, least: int) -> None:
        """Make all that run one gang of which so many must run."""
        for entry in list(self.ledger.entries.values()):
            self.ledger.end(entry.id)
            self.ledger.book(replace(entry, gang="g", group="w", group_min=least))

    def ask(self, name: str = "new", cores: int = 8, priority: int = 1) -> Asking:
        """Return waiting work of b."""
        asked = request(name, cores, task_class=GUARANTEED, priority=priority)
        return Asking((asked,), (entry_of(asked, "b/p"),), 0.0)

    def plan(self, asking: Asking, now: float = 60.0) -> Plan:
        """Return a plan, which there has to be."""
        found = plan(
            self.view,
            self.ledger,
            asking,
            POLICY,
            now,
            leaving=self.displacing.leaving,
            spared=self.displacing.spared,
        )
        assert isinstance(found, Plan), sentence(found[0])
        return found

    def starts(self, asked: Request) -> bool:
        """Try to place work that holds nothing."""
        if self.ledger.check(entry_of(asked, "a/p")):
            return False
        return bool(place(self.view.fork(), [asked])[0].node)


def test_from_plan_to_start() -> None:
    """The victim goes, the room stays held, the asker gets it."""
    world = World()
    asking = world.ask()
    asked = world.displacing.start(world.plan(asking), 60.0)
    assert [one.id for one in asked] == ["x0"]
    assert world.displacing.ready() == []
    waits = world.displacing.hindrance("new")
    assert waits is not None
    assert "asked the place of 1 others" in sentence(waits)
    world.displacing.gone("x0")
    world.displacing.gone("x0")
    (ready,) = world.displacing.ready()
    assert not world.starts(request("thief", 1, task_class=PREEMPTIBLE))
    world.displacing.drop(ready.asking.id)
    assert world.ledger.admit(*asking.entries).booked
    assert place(world.view, asking.requests)[0].node == "n0"
    assert world.displacing.hindrance("new") is None
    assert world.ledger.audit() == []
    assert world.ledger.used("a") == {}


def test_a_pause_keeps_the_victim() -> None:
    """Paused: it is still there, and counts its memory."""
    world = World(cls=PAUSABLE)
    world.displacing.start(world.plan(world.ask()), 60.0)
    world.displacing.gone("x0")
    assert world.view.bookings()["x0"].paused
    assert "memory_bytes" in world.ledger.used("a")
    assert "cpu_milli" not in world.ledger.used("a")


def test_paused_victims_come_back_when_there_is_room() -> None:
    """SCHED-18: highest priority and oldest first, without what is held for others."""
    world = World(nodes=2, cls=PAUSABLE)
    for asker in ("new0", "new1"):
        asking = world.ask(asker)
        world.displacing.start(world.plan(asking), 60.0)
        for victim in list(world.displacing.leaving):
            world.displacing.gone(victim)
        world.displacing.drop(asker)
        assert world.ledger.admit(*asking.entries).booked
        assert place(world.view, asking.requests)[0].node
    assert resumable(world.view, world.ledger) == []
    for asker, victims in (("new0", 1), ("new1", 2)):
        world.view.release(asker)
        world.ledger.end(asker)
        assert len(resumable(world.view, world.ledger)) == victims
    assert [one.id for (one,) in resumable(world.view, world.ledger)] == ["x0", "x1"]
    for (entry,) in resumable(world.view, world.ledger):
        world.view.resume(entry.id)
        assert world.ledger.resume(entry.id) == ()
    assert world.ledger.used("a")["cpu_milli"] == 16_000
    assert world.ledger.audit() == []


@pytest.mark.case("kueue#9437")
def test_case_kueue_9437() -> None:
    """Two askers that need the same victim: exactly one request to it."""
    world = World()
    first = world.displacing.start(world.plan(world.ask("one", 4)), 60.0)
    second = world.plan(world.ask("two", 4))
    assert second.after == ("x0",)
    again = world.displacing.start(second, 60.0)
    assert [one.id for one in [*first, *again]] == ["x0"]
    world.displacing.gone("x0")
    assert {one.asking.id for one in world.displacing.ready()} == {"one", "two"}


@pytest.mark.case("kubernetes#54501")
def test_case_kubernetes_54501() -> None:
    """Between the victim's end and the asker's start nobody takes the room that was just freed."""
    world = World()
    world.displacing.start(world.plan(world.ask()), 60.0)
    world.displacing.gone("x0")
    assert not world.starts(request("low", 1, priority=-1, task_class=PREEMPTIBLE))


@pytest.mark.case("kubernetes#95752")
def test_case_kubernetes_95752() -> None:
    """A victim that never dies: given up at the deadline, and the asker goes to another node."""
    world = World(nodes=2)
    asking = world.ask()
    (stubborn,) = world.displacing.start(world.plan(asking), 60.0)
    assert world.displacing.overdue(89.9) == []
    assert world.displacing.overdue(90.0) == ["new"]
    again = world.plan(asking, 90.0)
    assert {one.node for one in again.displacements} == {"n0", "n1"} - {stubborn.node}
    # nor does anybody else wait for it, until it has gone after all
    assert world.displacing.spared == {stubborn.node}
    assert {one.node for one in world.plan(world.ask("other"), 90.0).displacements} == {
        *({"n0", "n1"} - {stubborn.node})
    }
    world.displacing.start(again, 90.0)
    world.displacing.gone(again.displacements[0].id)
    assert [one.asking.id for one in world.displacing.ready()] == ["new"]
    world.displacing.gone(stubborn.id)
    assert world.displacing.spared == frozenset()
    assert world.ledger.audit() == []


@pytest.mark.case("kueue#5833")
def test_case_kueue_5833() -> None:
    """A victim on a node that is no more is gone, while it leaves and before it was asked."""
    world = World(nodes=2)
    asking = world.ask()
    world.displacing.start(world.plan(asking), 60.0)
    victim = next(iter(world.displacing.leaving))
    world.view.remove(world.view.bookings()[victim].node)
    world.displacing.look()
    assert world.displacing.leaving == {}
    assert victim not in world.ledger.entries
    world.displacing.drop("new")
    # the other one: its entry is still counted, its node is gone
    world = World(nodes=2)
    world.ledger.put(Account("a", {}, cpu(32)))
    world.ledger.put(Account("a", cpu(0), cpu(32)))
    world.ledger.put(Account("b", cpu(16), cpu(16)))
    world.view.remove("n0")
    world.view.remove("n1")
    world.view.put(node("n2", 16))
    found = world.plan(world.ask(cores=16), 0.0)
    assert {one.steps for one in found.displacements} == {()}
    assert world.displacing.start(found, 0.0) == []
    assert [one.asking.id for one in world.displacing.ready()] == ["new"]
    assert world.ledger.used("a") == {}


@pytest.mark.case("kueue#7665")
def test_case_kueue_7665() -> None:
    """A step that fails leaves nothing stuck: asker and victim are planned again."""
    world = World()
    asking = world.ask()
    world.displacing.start(world.plan(asking), 60.0)
    assert world.displacing.failed("x0") == ["new"]
    assert world.ledger.holds == {}
    assert set(world.view.bookings()) == {"x0"}
    assert [one.id for one in world.displacing.start(world.plan(asking), 61.0)] == ["x0"]


def test_a_plan_that_is_withdrawn_leaves_nothing_held() -> None:
    """Its victims go all the same: they cannot be called back."""
    world = World()
    world.displacing.start(world.plan(world.ask()), 60.0)
    world.displacing.drop("new")
    assert world.ledger.holds == {}
    world.displacing.gone("x0")
    assert set(world.view.bookings()) == set()
    assert isinstance(world.view, ClusterView)
    assert world.ledger.audit() == []


def test_room_that_is_not_taken_is_not_held_for_ever() -> None:
    """The asker has vanished without a word: what was held for it ends by itself."""
    world = World()
    world.displacing.start(world.plan(world.ask()), 60.0)
    world.displacing.gone("x0")
    assert world.displacing.overdue(119.9) == []
    assert world.displacing.overdue(120.0) == ["new"]
    assert world.displacing.spared == frozenset()
    assert world.ledger.holds == {}
    assert set(world.view.bookings()) == set()


def test_a_gang_rests_and_goes_on_as_one() -> None:
    """All three rest for one asker; while it runs there is room for two, and none goes on."""
    world = World(nodes=3, cls=PAUSABLE)
    world.gang(least=3)
    asking = world.ask()
    asked = world.displacing.start(world.plan(asking), 60.0)
    assert {one.id for one in asked} == {"x0", "x1", "x2"}
    for one in asked:
        assert not one.stops
        world.displacing.gone(one.id)
    world.displacing.drop("new")
    (decision,) = place(world.view, [asking.requests[0]])
    assert decision.node
    assert resumable(world.view, world.ledger) == []
    world.view.release("new")
    (unit,) = resumable(world.view, world.ledger)
    assert [entry.id for entry in unit] == ["x0", "x1", "x2"]
    assert resume(world.view, world.ledger, unit)
    assert not any(entry.paused for entry in world.ledger.entries.values())


def test_of_a_gang_that_has_enough_each_goes_on_by_itself() -> None:
    """Two of three run, which is enough; the third rests alone and needs no other."""
    world = World(nodes=3, cls=PAUSABLE)
    world.gang(least=2)
    (one,) = world.displacing.start(world.plan(world.ask()), 60.0)
    world.displacing.gone(one.id)
    world.displacing.drop("new")
    assert [[entry.id for entry in unit] for unit in resumable(world.view, world.ledger)] == [
        [one.id]
    ]


def test_where_one_of_a_gang_cannot_rest_all_of_it_stops() -> None:
    """Its mates that were asked to rest with it stop as well; once, and nobody else does."""
    world = World(nodes=3, cls=PAUSABLE)
    world.gang(least=3)
    world.displacing.start(world.plan(world.ask()), 60.0)
    assert world.displacing.stops("x1") == ["x1", "x0", "x2"]
    assert world.displacing.stops("x0") == []
    alone = World(nodes=3, cls=PAUSABLE)
    (one,) = alone.displacing.start(alone.plan(alone.ask()), 60.0)
    assert alone.displacing.stops(one.id) == [one.id]
