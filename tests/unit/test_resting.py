"""Paused sandboxes in the leader's books follow the agents, and go on in their order."""

import pytest
from dsec.api.experiment import TaskClass
from dsec.api.tenant import Amounts, Quota, TenantSpec
from dsec.controllers import resting
from dsec.controllers.planner import Planner
from dsec.journal.bindings import Binding
from test_planner import binding, machine, tenant


def full(*live: Binding, cpus: int = 8, **tenants: TenantSpec) -> Planner:
    """Return a planner with one node on which these run."""
    planner = Planner()
    planner.sync([machine("n", cpus)], tenants or {"t": tenant(cpu_milli=64_000)}, live)
    return planner


def cpu(planner: Planner) -> tuple[int, int]:
    """Return the free CPU of the node and what the tenant uses, in milli-cores."""
    used = planner.ledger.used("t").get("cpu_milli", 0)
    return planner.view.room("n")["cpu"], used


def test_books_follow_what_agents_say() -> None:
    """Paused work gives back CPU in view and ledger alike, once, and takes it again."""
    planner = full(binding(1, cpu=6000, node="n"))
    assert cpu(planner) == (2000, 6000)
    for _ in range(2):
        resting.follow(planner.view, planner.ledger, (), {"sb-" + "1".zfill(26), "unknown"})
        assert cpu(planner) == (8000, 0)
    resting.follow(planner.view, planner.ledger, {"sb-" + "1".zfill(26)}, ())
    assert cpu(planner) == (2000, 6000)
    assert planner.ledger.audit() == []


def test_what_runs_is_counted_whatever_room_there_is() -> None:
    """An agent that let a sandbox go on too early has the last word."""
    low = binding(1, cpu=6000, node="n")
    planner = full(low)
    resting.follow(planner.view, planner.ledger, (), {low.id})
    planner.sync(
        [machine("n")], {"t": tenant(cpu_milli=8000)}, [low, binding(2, cpu=8000, node="n")]
    )
    assert cpu(planner) == (0, 8000)
    resting.follow(planner.view, planner.ledger, {low.id}, ())
    assert cpu(planner) == (-6000, 14_000)
    assert planner.ledger.audit() == []


@pytest.mark.parametrize(("priority", "first"), [(-1, True), (0, True), (1, False)])
def test_paused_work_goes_on_before_what_is_not_above_it(priority: int, *, first: bool) -> None:
    """Work of higher priority that waits is thought of as placed before."""
    low = binding(1, cpu=6000, node="n", task_class=TaskClass.PAUSABLE)
    planner = full(low)
    resting.follow(planner.view, planner.ledger, (), {low.id})
    waits = binding(2, cpu=6000)
    waits.priority = priority
    assert resting.able(planner, [waits]) == ([low.id] if first else [])
    assert cpu(planner) == (8000, 0), "nothing is changed by a look"


def test_what_an_owner_waits_for_is_not_lent_again() -> None:
    """A borrower goes on only where nobody waits, whatever its priority."""
    lent = binding(1, cpu=6000, node="n", task_class=TaskClass.PAUSABLE)
    lent.priority = 2
    borrows = TenantSpec(
        quota=Quota(nominal=Amounts(cpu_milli=2000), ceiling=Amounts(cpu_milli=8000))
    )
    planner = full(lent, t=borrows, own=tenant(cpu_milli=6000))
    resting.follow(planner.view, planner.ledger, (), {lent.id})
    assert resting.able(planner, [binding(2, cpu=6000, tenant="own")]) == []
    assert resting.able(planner, []) == [lent.id]


def test_a_new_leader_knows_again_what_was_lent() -> None:
    """In the order in which it was bound, what is above the tenant's share is pausable."""
    borrows = TenantSpec(
        quota=Quota(nominal=Amounts(cpu_milli=4000), ceiling=Amounts(cpu_milli=8000))
    )
    live = [binding(n, cpu=2000, node="n") for n in range(4)]
    planner = full(*reversed(live), t=borrows, own=tenant(cpu_milli=4000))
    classes = [planner.ledger.entries[one.id].task_class for one in live]
    assert classes == [TaskClass.GUARANTEED] * 2 + [TaskClass.PAUSABLE] * 2
