"""Preemption: by consent, after a wait, simulated first, the least that works, sync before all."""

from typing import Any

import pytest
from dsec.api.experiment import TaskClass
from dsec.api.reasons import PendingReason
from dsec.placement.accounts import Account
from dsec.placement.engine import place
from dsec.placement.entries import entry_of
from dsec.placement.ledger import Ledger
from dsec.placement.plans import Asking, Displacement, Plan, PreemptionPolicy, Step
from dsec.placement.preemption import plan
from dsec.placement.preemption_words import Hindrance
from dsec.placement.queueing import Queue, QueuePolicy
from dsec.placement.refusal import Refusal
from dsec.placement.request import Node, Request
from dsec.placement.view import ClusterView
from dsec.placement.words import sentence
from placement_make import cards, node, request, view
from quota_make import GUARANTEED, PAUSABLE, PREEMPTIBLE, cpu

POLICY = PreemptionPolicy()
SYNC_PAUSE, SYNC_STOP = (Step.SYNC, Step.PAUSE), (Step.SYNC, Step.STOP)


class Cluster:
    """A view and a ledger that are filled together."""

    def __init__(self, *nodes: Node, **nominal: int) -> None:
        self.view = view(*nodes)
        self.ledger = Ledger()
        for tenant in ("a", "b", "c"):
            cores = nominal.get(tenant)
            limits = {} if cores is None else cpu(cores)
            self.ledger.put(Account(tenant, limits, None if cores is None else cpu(1000)))

    def run(self, name: str, cores: int, cls: TaskClass = PREEMPTIBLE, **fields: Any) -> None:
        """Start something; it has to fit."""
        account = fields.pop("account", "a/p")
        since, role = fields.pop("since", 0.0), fields.pop("role", "")
        gang = {key: fields.pop(key) for key in ("group", "group_min") if key in fields}
        asked = request(name, cores, task_class=cls, **fields)
        made = entry_of(asked, account, since=since, role=role)
        if gang:
            made = type(made)(**{**{k: getattr(made, k) for k in made.__slots__}, **gang})
        assert self.ledger.admit(made).booked
        (decision,) = place(self.view, [type(asked)(**{**_fields(asked), "gang": ""})])
        assert decision.node

    def ask(
        self, *cores: int, cls: TaskClass = GUARANTEED, account: str = "b/p", **fields: Any
    ) -> Asking:
        """Return waiting work since 0."""
        asked = tuple(
            request(f"new{n}", size, task_class=cls, **fields) for n, size in enumerate(cores)
        )
        return Asking(asked, tuple(entry_of(one, account) for one in asked), 0.0)

    def plan(self, asking: Asking, now: float = 60.0, **options: Any) -> Plan | tuple[Refusal, ...]:
        """Plan without changing anything."""
        before = self.view.digest(), dict(self.ledger.entries), self.ledger.audit()
        found = plan(self.view, self.ledger, asking, options.pop("policy", POLICY), now, **options)
        assert (self.view.digest(), dict(self.ledger.entries), self.ledger.audit()) == before
        return found


def _fields(asked: Request) -> dict[str, Any]:
    return {key: getattr(asked, key) for key in Request.__slots__}


def victims(found: Plan | tuple[Refusal, ...]) -> dict[str, tuple[Step, ...]]:
    """Return who leaves and how."""
    assert isinstance(found, Plan), sentence(found[0])
    return {one.id: one.steps for one in found.displacements}


def hindrance(found: Plan | tuple[Refusal, ...]) -> str:
    """Return what keeps it from displacing anybody."""
    assert not isinstance(found, Plan)
    assert found[0].reason is PendingReason.PREEMPTION
    assert "; starts when" in sentence(found[0])
    return found[0].dimension


def full(cls: TaskClass = PREEMPTIBLE, **fields: Any) -> Cluster:
    """Return one node of 8 cores in full use by a."""
    cluster = Cluster(node("n", 8))
    cluster.run("x", 8, cls, **fields)
    return cluster


def test_nothing_before_the_wait_and_then_at_once() -> None:
    """TEN-09: nothing at 59 s; the victim is named at the next cycle after 60 s."""
    cluster = full()
    asking = cluster.ask(8, priority=1)
    assert hindrance(cluster.plan(asking, 59.0)) == Hindrance.WAIT
    assert victims(cluster.plan(asking, 60.0)) == {"x": SYNC_STOP}


def test_pausable_work_is_paused_where_that_is_enough() -> None:
    """TEN-12: CPU comes free by a pause; memory does not, so then it is stopped."""
    cluster = full(PAUSABLE)
    assert victims(cluster.plan(cluster.ask(8, priority=1))) == {"x": SYNC_PAUSE}
    cluster = full(PAUSABLE, gib=60)
    assert victims(cluster.plan(cluster.ask(8, priority=1, gib=60))) == {"x": SYNC_STOP}


def test_paused_work_is_stopped_where_its_memory_is_needed() -> None:
    """Nothing more is synced: it was before it was paused."""
    cluster = full(PAUSABLE, gib=60)
    cluster.view.pause("x")
    cluster.ledger.pause("x")
    assert victims(cluster.plan(cluster.ask(8, priority=1, gib=60))) == {"x": (Step.STOP,)}


def test_without_consent_it_waits_and_says_so() -> None:
    """TEN-10, TEN-14, SCHED-19: guaranteed work is no victim at any priority or load."""
    cluster = full(GUARANTEED)
    found = cluster.plan(cluster.ask(8, priority=2), 1e6)
    assert hindrance(found) == Hindrance.CONSENT


def test_equal_priority_and_trainers_are_left_alone() -> None:
    """TEN-08, GPU-17."""
    cluster = full(priority=1)
    assert hindrance(cluster.plan(cluster.ask(8, priority=1), 1e6)) == Hindrance.CONSENT
    cluster = full(role="trainer")
    assert hindrance(cluster.plan(cluster.ask(8, priority=1), 1e6)) == Hindrance.CONSENT


def test_what_cannot_help_displaces_nobody() -> None:
    """Nine cores on nodes of eight: nobody is moved for that."""
    cluster = full()
    assert hindrance(cluster.plan(cluster.ask(9, priority=1))) == Hindrance.USELESS


def test_no_more_victims_than_needed() -> None:
    """Three cores of eight single ones: three victims, the youngest of the lowest priority."""
    cluster = Cluster(node("n", 8))
    for n in range(8):
        cluster.run(f"x{n}", 1, since=float(n), priority=-1 if n < 2 else 0)
    found = victims(cluster.plan(cluster.ask(3, priority=1)))
    assert set(found) == {"x0", "x1", "x7"}


def test_one_that_is_large_enough_rather_than_many() -> None:
    """The softest come first in the search, and are spared when a later one suffices alone."""
    cluster = Cluster(node("n", 8))
    for n in range(4):
        cluster.run(f"small{n}", 1, since=9.0)
    cluster.run("large", 4)
    assert set(victims(cluster.plan(cluster.ask(4, priority=1)))) == {"large"}


def test_the_softest_node_is_cleared() -> None:
    """Of two nodes the one whose victim has the lower priority; a pause before a stop."""
    cluster = Cluster(node("n", 8), node("m", 8))
    cluster.run("mid", 8, priority=0)
    cluster.run("low", 8, priority=-1)
    assert set(victims(cluster.plan(cluster.ask(8, priority=1)))) == {"low"}
    cluster = Cluster(node("n", 8), node("m", 8))
    cluster.run("stops", 8, PREEMPTIBLE)
    cluster.run("rests", 8, PAUSABLE)
    assert victims(cluster.plan(cluster.ask(8, priority=1))) == {"rests": SYNC_PAUSE}


def test_an_owner_gets_the_borrowers_place_without_a_wait() -> None:
    """Room, not only quota, comes back to its owner; priority does not matter then."""
    cluster = Cluster(node("n", 8), a=0, b=8)
    cluster.run("x", 8, priority=2)
    assert victims(cluster.plan(cluster.ask(8), 0.0)) == {"x": SYNC_STOP}
    later = PreemptionPolicy(reclaim_after_s=5.0)
    assert hindrance(cluster.plan(cluster.ask(8), 4.0, policy=later)) == Hindrance.WAIT


def test_quota_and_room_are_both_given_back_by_the_same_victims() -> None:
    """The quota could come from either borrower, the room from one of them only."""
    cluster = Cluster(node("n", 8), node("cpu", 8, labels={"disk": "ssd"}), a=0, b=16)
    cluster.run("young", 8, since=9.0, labels={})
    cluster.run("old", 8, since=1.0)
    on = cluster.view.bookings()
    wanted = "cpu" if on["old"].node == "cpu" else "n"
    asking = cluster.ask(8, labels={"disk": "ssd"})
    expected = {one for one in ("young", "old") if on[one].node == "cpu"}
    assert wanted in {"cpu", "n"}
    assert set(victims(cluster.plan(asking, 0.0))) == expected


def test_a_borrower_displaces_only_its_own_tenants_work() -> None:
    """Above its own share a priority counts at home; else two borrowers would take turns."""
    cluster = Cluster(node("n", 8), a=8, b=0)
    cluster.run("x", 8)
    asking = cluster.ask(8, cls=PAUSABLE, priority=1)
    assert hindrance(cluster.plan(asking)) == Hindrance.SHARE
    own = cluster.ask(8, cls=PAUSABLE, priority=1, account="a/p")
    assert set(victims(cluster.plan(own))) == {"x"}


def test_a_gang_clears_the_shortest_run_of_victims() -> None:
    """Three members over three nodes: three victims; a fourth node is left alone."""
    cluster = Cluster(*[node(f"n{n}", 8) for n in range(4)])
    for n in range(4):
        cluster.run(f"x{n}", 8, since=float(n))
    asking = cluster.ask(8, 8, 8, priority=1, gang="g")
    found = cluster.plan(asking)
    assert set(victims(found)) == {"x1", "x2", "x3"}
    assert isinstance(found, Plan)
    assert len({one.node for one in found.decisions}) == 3


def test_the_one_node_that_suits_is_found_among_many() -> None:
    """Fifty nodes of softer work that lack the label are not looked at."""
    cluster = Cluster(*[node(f"n{n}", 8) for n in range(50)], node("z", 8, labels={"disk": "ssd"}))
    for n in range(51):
        cluster.run(f"x{n}", 8, since=float(n))
    (there,) = cluster.view.on("z")
    asking = cluster.ask(8, priority=1, labels={"disk": "ssd"})
    assert set(victims(cluster.plan(asking))) == {there}


def test_a_large_gang_clears_only_the_nodes_that_it_uses() -> None:
    """Five members of 8 cores over ten nodes of single ones: forty victims on five nodes."""
    cluster = Cluster(*[node(f"n{n}", 8) for n in range(10)])
    for n in range(80):
        cluster.run(f"x{n}", 1, since=float(n * 37 % 80))
    found = cluster.plan(cluster.ask(*[8] * 5, priority=1, gang="g"))
    assert isinstance(found, Plan)
    assert len(found.displacements) == 40
    assert len({one.node for one in found.displacements}) == 5


def test_a_victim_takes_its_gang_along_below_the_minimum() -> None:
    """Two of two must stay: a lone member is not worth keeping; with a minimum of one it is."""
    for minimum, expected in ((2, {"x0", "x1"}), (1, {"x1"})):
        cluster = Cluster(node("n", 8))
        for n in range(2):
            cluster.run(f"x{n}", 4, since=float(n), gang="g", group="w", group_min=minimum)
        assert set(victims(cluster.plan(cluster.ask(4, priority=1)))) == expected


def test_who_rests_does_not_count_as_one_that_runs_on() -> None:
    """Of three, two must run; one rests already, so that the next victim takes the last along."""
    cluster = Cluster(node("n", 12))
    for n in range(3):
        cluster.run(f"x{n}", 4, PAUSABLE, since=float(n), gang="g", group="w", group_min=2)
    cluster.view.pause("x0")
    cluster.ledger.pause("x0")
    cluster.run("busy", 4, GUARANTEED)
    found = cluster.plan(cluster.ask(4, priority=1))
    assert set(victims(found)) == {"x1", "x2"}


def test_a_gang_with_a_guaranteed_member_is_no_victim_whole() -> None:
    """It would take along what nobody may displace."""
    cluster = Cluster(node("n", 8))
    cluster.run("x0", 4, gang="g", group="w", group_min=1)
    cluster.run("x1", 4, GUARANTEED, gang="g", group="lead", group_min=1)
    assert hindrance(cluster.plan(cluster.ask(4, priority=1))) == Hindrance.USELESS


def test_preemption_only_in_its_pool() -> None:
    """TEN-15: a pool with preemption on gives way to a higher one; other pools do not."""
    on = PreemptionPolicy(pools=frozenset({"small"}))
    for pool, works in (("small", True), ("big", False)):
        cluster = Cluster(node("n", 8, pool=pool))
        cluster.run("low", 4, priority=-1)
        cluster.run("mid", 4)
        found = cluster.plan(cluster.ask(4, priority=1), policy=on)
        assert (set(victims(found)) == {"low"}) if works else hindrance(found)


def test_a_queue_may_not_preempt() -> None:
    """SCHED-16: the switch of the queue."""
    cluster = full()
    calm = PreemptionPolicy(queues=QueuePolicy(queues={"calm": Queue(preempts=False)}))
    asking = cluster.ask(8, priority=1, queue="calm")
    assert hindrance(cluster.plan(asking, policy=calm)) == Hindrance.QUEUE


def test_evaluation_gives_way_to_long_work_at_once() -> None:
    """SCHED-18: gap fillers go as soon as training waits, not the other way round."""
    cluster = full(queue="eval")
    assert set(victims(cluster.plan(cluster.ask(8, queue="training"), 0.0))) == {"x"}
    cluster = full(queue="training")
    assert hindrance(cluster.plan(cluster.ask(8, queue="eval"), 1e6)) == Hindrance.CONSENT
    assert set(victims(cluster.plan(cluster.ask(8, queue="eval", priority=1)))) == {"x"}


def test_devices_count_too() -> None:
    """A paused sandbox keeps its card: the victim stops, though its class would let it rest."""
    cluster = Cluster(node("n", 8, devices=cards(1)))
    cluster.run("x", 1, PAUSABLE, gpu_count=1)
    asking = cluster.ask(1, priority=1, gpu_count=1)
    assert victims(cluster.plan(asking)) == {"x": SYNC_STOP}


def test_what_is_on_its_way_out_is_not_asked_again() -> None:
    """A second asker counts on the same victim's room only if there is enough for both."""
    cluster = Cluster(node("n", 8))
    cluster.run("x", 8)
    small = cluster.ask(2, priority=1)
    found = cluster.plan(small, leaving={"x": True})
    assert isinstance(found, Plan)
    assert (found.displacements, found.after) == ((), ("x",))
    assert hindrance(cluster.plan(cluster.ask(9, priority=1), leaving={"x": True}))


def test_a_plan_says_what_to_do() -> None:
    """Plain data: where the victim is, what is done to it in order, where the asker will be."""
    found = full().plan(full().ask(8, priority=1))
    assert isinstance(found, Plan)
    assert found.displacements == (Displacement("x", "n", SYNC_STOP),)
    assert found.displacements[0].stops
    assert [one.node for one in found.decisions] == ["n"]


@pytest.mark.parametrize("what", list(Hindrance))
def test_every_hindrance_has_words(what: Hindrance) -> None:
    """Asked, free and what would start it."""
    said = sentence(Refusal(PendingReason.PREEMPTION, what, 60, 59, 3, whose="team-a"))
    for part in ("preemption: ", "asked", "free", "; starts when"):
        assert part in said


def test_nothing_to_displace_on_an_empty_cluster_of_many_nodes() -> None:
    """It just fits: the plan has no victims."""
    cluster = Cluster(*[node(f"n{n}", 8) for n in range(3)])
    found = cluster.plan(cluster.ask(8), 0.0)
    assert victims(found) == {}
    assert ClusterView().bookings() == {}
