"""What placement remembers in a term follows nodes, tenants and bindings; rounds keep to quota."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from dsec.api.experiment import TaskClass
from dsec.api.reasons import PendingReason
from dsec.api.sandbox import GpuMode, Identity, Resources, SandboxSpec
from dsec.api.tenant import Amounts, Quota, TenantSpec
from dsec.api.wire import Device, NodeInventory
from dsec.controllers.isolating import Isolating
from dsec.controllers.planner import Planner
from dsec.controllers.rounds import Rounds
from dsec.controllers.tenants import used_by
from dsec.controllers.translating import quota_problem
from dsec.journal.bindings import Binding, Needs
from dsec.placement.plans import Asking, Plan, PreemptionPolicy
from dsec.placement.preemption import plan
from dsec.placement.request import Decision, Node, node_of
from dsec.placement.translating import request_of
from dsec.placement.words import explain
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 1 << 30


def binding(
    n: int,
    *,
    cpu: int = 1000,
    tenant: str = "t",
    gang: str = "",
    node: str = "",
    after: float = 0,
    task_class: TaskClass = TaskClass.GUARANTEED,
    **asked: object,
) -> Binding:
    """Return a request, or what is bound where a node is given."""
    name = f"sb-{n:026d}"
    spec = SandboxSpec(
        identity=Identity(id=name, tenant=tenant, project="p"),
        image="i",
        resources=Resources(cpu_milli=cpu, memory_bytes=GIB, **asked),
    )
    return Binding(
        tenant=tenant,
        key=name,
        body_hash="",
        id=name,
        spec=spec,
        node=node,
        order=n,
        at=NOW + timedelta(seconds=after),
        gang=gang,
        needs=Needs(task_class=task_class),
    )


def machine(name: str, cpus: int = 8, gpus: int = 0) -> Node:
    """Return a node as an agent reports it."""
    devices = [
        Device(
            uuid=f"{name}-{n}",
            index=n,
            model="a100",
            memory_bytes=80 * GIB,
            modes=["whole", "shares"],
        )
        for n in range(gpus)
    ]
    return node_of(
        name,
        NodeInventory(
            cpu_milli=cpus * 1000, memory_bytes=64 * GIB, disk_bytes=1000 * GIB, devices=devices
        ),
    )


def tenant(**amounts: int) -> TenantSpec:
    """Return a tenant that owns so much."""
    return TenantSpec(quota=Quota(nominal=Amounts(**amounts)))


def turn(planner: Planner, wanted: Sequence[Binding], seconds: float = 0) -> dict[str, Decision]:
    """Decide, as a leader does; return decisions by id."""
    now = NOW.timestamp() + seconds
    return {one.id: decision for one, decision in planner.decide(wanted, {}, now)}


def bound(wanted: Sequence[Binding], found: dict[str, Decision]) -> list[Binding]:
    """Return what the bind log says after these decisions."""
    for one in wanted:
        decision = found[one.id]
        if decision.node:
            one.node, one.bound_at, one.spec.devices = decision.node, NOW, list(decision.devices)
    return [one for one in wanted if one.node]


def test_requests_of_one_round_count_against_each_other() -> None:
    """Twenty at a quota of five, three of it used: two start, the others are told why not."""
    planner = Planner()
    live = [binding(n, node="n") for n in range(3)]
    planner.sync([machine("n", 64)], {"t": tenant(sandboxes=5)}, live)
    wanted = [binding(n) for n in range(10, 30)]
    found = turn(planner, wanted)
    assert [b.id for b in bound(wanted, found)] == [b.id for b in wanted[:2]]
    refusals = {one.refusals[0] for one in found.values() if one.refusals}
    assert {(r.reason, r.dimension, r.free, r.largest) for r in refusals} == {
        (PendingReason.QUOTA, "sandboxes", 0, 5)
    }


def test_a_ceiling_is_the_consent_to_give_back() -> None:
    """Above what it owns a tenant gets what is idle, and what it gets is pausable."""
    planner = Planner()
    spec = TenantSpec(quota=Quota(nominal=Amounts(cpu_milli=2000), ceiling=Amounts(cpu_milli=4000)))
    planner.sync([machine("n", 64)], {"t": spec, "other": tenant(cpu_milli=8000)}, [])
    wanted = [binding(n) for n in range(6)]
    found = turn(planner, wanted)
    assert len(bound(wanted, found)) == 4
    classes = [planner.ledger.entries[b.id].task_class for b in wanted[:4]]
    assert classes == [TaskClass.GUARANTEED] * 2 + [TaskClass.PAUSABLE] * 2


def test_a_tenant_that_is_gone_has_no_quota() -> None:
    """No limits known is not without limits; a second tenant is not held up."""
    planner = Planner()
    planner.sync([machine("n")], {"t": tenant()}, [])
    wanted = [binding(1, tenant="gone"), binding(2)]
    found = turn(planner, wanted)
    assert found[wanted[0].id].refusals[0].dimension == "tenant"
    assert found[wanted[1].id].node == "n"


def test_memory_follows_what_is_recorded() -> None:
    """Ends, moves, lost and returned nodes: the books are those of a leader that starts anew."""
    planner = Planner()
    nodes = [machine("a", gpus=2), machine("b", gpus=2)]
    tenants = {"t": tenant(gpu_count=4)}
    planner.sync(nodes, tenants, [])
    wanted = [binding(n, gpu_count=1, gpu_mode=GpuMode.WHOLE) for n in range(4)]
    live = bound(wanted, turn(planner, wanted))
    assert len(live) == 4
    other = "a" if live[0].node == "b" else "b"
    away = [one for one in live if one.node != live[0].node]
    live[0].node, live[0].spec.devices = other, [f"{other}-0"]
    for nodes_now, live_now in (
        (nodes, live[:3]),
        (nodes[:1], live[:3]),
        (nodes, [one for one in live if one not in away]),
        (nodes, []),
    ):
        planner.sync(nodes_now, tenants, live_now)
        fresh = Planner()
        fresh.sync(nodes_now, tenants, live_now)
        assert planner.view.digest() == fresh.view.digest()
        assert planner.ledger.used("t") == fresh.ledger.used("t")
        assert planner.ledger.audit() == []


def test_a_quota_that_contradicts_itself_leaves_the_last_one() -> None:
    """A ceiling below what is owned is not taken; the term goes on."""
    planner = Planner()
    planner.sync([machine("n")], {"t": tenant(sandboxes=2)}, [])
    wrong = TenantSpec(quota=Quota(nominal=Amounts(sandboxes=5), ceiling=Amounts(sandboxes=1)))
    planner.sync([machine("n")], {"t": wrong}, [])
    wanted = [binding(n) for n in range(3)]
    assert len(bound(wanted, turn(planner, wanted))) == 2


def test_a_project_owns_its_part_of_the_tenants_share() -> None:
    """Of eight cores three are the project's own: others get five, and it gets three (TEN-03)."""
    planner = Planner()
    quota = Quota(nominal=Amounts(cpu_milli=8000), projects={"p": Amounts(cpu_milli=3000)})
    spec = TenantSpec(projects=["p", "q"], quota=quota)
    planner.sync([machine("n", 64)], {"t": spec}, [])
    others = [binding(n) for n in range(10, 20)]
    for one in others:
        one.spec.identity.project = "q"
    assert len(bound(others, turn(planner, others))) == 5
    own = [binding(n) for n in range(4)]
    found = turn(planner, own)
    assert len(bound(own, found)) == 3
    assert "own share of t/p" in explain(found[own[3].id].refusals)


def test_a_quota_that_gives_away_more_than_it_has_is_told() -> None:
    """The sum of what projects own is within the tenant's; the message names both figures."""
    quota = Quota(nominal=Amounts(sandboxes=5), projects={"p": Amounts(sandboxes=6)})
    assert "t/p: nominal.sandboxes: 6" in quota_problem("t", TenantSpec(quota=quota))
    assert quota_problem("t", tenant(sandboxes=5)) == ""


def test_room_is_kept_for_a_gang_that_has_waited() -> None:
    """A gang of the whole machine is next, although single ones come all the time."""
    planner = Planner()
    old = [binding(n, node="n") for n in range(4)]
    planner.sync([machine("n", 8)], {"t": tenant()}, old)
    gang = [binding(10 + n, gang="g") for n in range(8)]
    late = [binding(30, after=100)]
    found = turn(planner, [*gang, *late], seconds=101)
    assert not any(found[one.id].node for one in gang)
    assert found[late[0].id].refusals[0].reason is PendingReason.RESERVED
    planner.sync([machine("n", 8)], {"t": tenant()}, [])
    after = turn(planner, [*gang, *late], seconds=102)
    assert all(after[one.id].node for one in gang)


def test_work_of_a_queue_that_nobody_declared_may_ask_for_the_place_of_others() -> None:
    """The word in a document must not end the leader's term: it counts as the default queue."""
    planner = Planner()
    soft = [binding(n, cpu=4000, node="n", task_class=TaskClass.PREEMPTIBLE) for n in range(2)]
    planner.sync([machine("n", 8)], {"t": tenant()}, soft)
    asker = binding(9, cpu=4000)
    asker.needs.queue, asker.priority = "nightly", 1
    request, entry = request_of(asker), planner.entry(asker)
    since = NOW.timestamp()
    asking = Asking((request,), (entry,), since)
    made = plan(planner.view, planner.ledger, asking, PreemptionPolicy(), since + 61)
    assert isinstance(made, Plan)
    assert len(made.displacements) == 1


def test_limits_on_run_time_are_forgotten_with_what_they_limit() -> None:
    """Also where the node went first: a leader that lives long does not grow."""
    planner = Planner()
    one = binding(1, node="n")
    one.spec.max_run_seconds, one.bound_at = 60, NOW
    planner.sync([machine("n")], {"t": tenant()}, [one])
    assert planner.ends == {one.id: NOW.timestamp() + 60}
    planner.sync([], {"t": tenant()}, [one])
    planner.sync([], {"t": tenant()}, [])
    assert planner.ends == {}


@given(
    st.lists(
        st.tuples(st.integers(1, 3000), st.sampled_from(["", "g", "h"]), st.sampled_from("tu")),
        max_size=25,
    ),
    st.integers(0, 9000),
)
def test_never_over_quota_nor_capacity(asked: list[tuple[int, str, str]], most: int) -> None:
    """Whatever is asked: sums of tenants within quota, nodes within capacity, gangs whole."""
    planner = Planner()
    planner.sync(
        [machine("a", 4), machine("b", 4)], {"t": tenant(cpu_milli=most), "u": tenant()}, []
    )
    wanted = [
        binding(n, cpu=cpu, tenant=who, gang=f"{gang}-{who}" if gang else "")
        for n, (cpu, gang, who) in enumerate(asked)
    ]
    found = turn(planner, wanted)
    live = bound(wanted, found)
    assert (used_by(live, "t").cpu_milli or 0) <= most
    for name in ("a", "b"):
        assert sum(one.spec.resources.cpu_milli for one in live if one.node == name) <= 4000
    for gang in {one.gang for one in wanted if one.gang}:
        assert len({bool(one.node) for one in wanted if one.gang == gang}) == 1
    assert {one.id for one in live} == set(planner.ledger.entries) == set(planner.view.bookings())
    assert planner.ledger.audit() == []


class Tripping(Rounds):
    """Rounds that fail on one request, as a mistake of the planner would."""

    def __init__(self, planner: Planner, tripping: str, *, with_others: bool = False) -> None:
        self._planner = planner
        self._tripping = tripping
        self._least = 2 if with_others else 1

    def refresh(self) -> None:
        """Start from one empty machine."""
        self._planner.sync([machine("n", 64)], {"t": tenant()}, [])

    def decide(
        self, wanted: Sequence[Binding], avoid: Mapping[str, Sequence[str]], now: float
    ) -> list[tuple[Binding, Decision]]:
        """Fail where the request is among them."""
        if len(wanted) >= self._least and any(one.id == self._tripping for one in wanted):
            raise OverflowError("too large for a counter")
        self.refresh()
        return self._planner.decide(wanted, avoid, now)


def test_a_request_that_trips_the_planner_stops_nobody_else() -> None:
    """It is found, told why it waits, and tried no more; a failure of the records ends the term."""
    wanted = [binding(n) for n in range(5)]
    bad = wanted[3].id
    rounds = Isolating(lambda: Tripping(Planner(), bad))
    for _ in range(2):
        found = {one.id: decision for one, decision in rounds.decide(wanted, {}, 0.0)}
        assert [one for one in found if not found[one].node] == [bad]
        assert found[bad].refusals[0].reason is PendingReason.INVALID
        assert "too large for a counter" in explain(found[bad].refusals)
    assert len(rounds.decide(wanted[:3], {}, 0.0)) == 3
    with pytest.raises(OverflowError):
        # not one request alone is at fault
        Isolating(lambda: Tripping(Planner(), wanted[0].id, with_others=True)).decide(wanted, {}, 0)
