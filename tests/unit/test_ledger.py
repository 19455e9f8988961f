"""Quota: one gate for every way of making a sandbox; gangs whole; the reason names the figure."""

from datetime import UTC, datetime

from dsec.api.reasons import PendingReason
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.api.tenant import Amounts, Quota, TenantSpec
from dsec.controllers.ledger import admit, limit_of, used_by_tenant
from dsec.journal.bindings import Binding
from dsec.placement.words import explain
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def binding(n: int, cpu: int = 1000, tenant: str = "t", gang: str = "") -> Binding:
    """Build a request."""
    name = f"sb-{n:026d}"
    spec = SandboxSpec(
        identity=Identity(id=name, tenant=tenant, project="p"),
        image="i",
        resources=Resources(cpu_milli=cpu, memory_bytes=1 << 20),
    )
    return Binding(
        tenant=tenant, key=name, body_hash="", id=name, spec=spec, node="n", at=NOW, gang=gang
    )


def test_pending_requests_of_one_round_count_against_each_other() -> None:
    """Twenty at a cap of five: five pass, the others are told what is free."""
    live = [binding(n) for n in range(3)]
    wanted = [binding(n) for n in range(10, 30)]
    admitted, refused = admit(wanted, live, {"t": Amounts(sandboxes=5)})
    assert [b.id for b in admitted] == [b.id for b in wanted[:2]]
    reasons = set(refused.values())
    assert {r.reason for r in reasons} == {PendingReason.QUOTA}
    assert {(r.dimension, r.asked, r.free, r.largest) for r in reasons} == {("sandboxes", 1, 0, 5)}


def test_a_gang_is_admitted_whole_or_not_at_all() -> None:
    """Three of a gang over a cap of two take nothing; a later single one passes."""
    gang = [binding(n, gang="g") for n in range(3)]
    admitted, refused = admit([*gang, binding(9)], [], {"t": Amounts(cpu_milli=2000)})
    assert [b.id for b in admitted] == [binding(9).id]
    assert set(refused) == {b.id for b in gang}


def test_the_ceiling_counts_and_others_do_not() -> None:
    """Borrowing goes to the ceiling; another tenant's use is its own; no limit is no limit."""
    spec = TenantSpec(quota=Quota(nominal=Amounts(cpu_milli=1), ceiling=Amounts(cpu_milli=2000)))
    limits = {"t": limit_of(spec)}
    other = [binding(n, tenant="other") for n in range(50, 60)]
    admitted, _ = admit([binding(n) for n in range(3)], other, limits)
    assert len(admitted) == 2
    assert len(admit(other, other, {"other": Amounts()})[0]) == 10


def test_a_tenant_that_is_gone_has_no_quota() -> None:
    """No limits known is not without limits: its requests wait with the reason."""
    admitted, refused = admit([binding(1), binding(2, gang="g")], [], {"other": Amounts()})
    assert admitted == []
    assert {one.reason for one in refused.values()} == {PendingReason.QUOTA}
    assert "no such Tenant" in explain([refused[binding(1).id]])


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.sampled_from(["", "g", "h"])), max_size=30),
    st.integers(0, 10_000),
    st.integers(0, 20),
)
def test_never_over_the_limit(asked: list[tuple[int, str]], cpu: int, most: int) -> None:
    """Whatever is asked, what is admitted fits, and every request has one answer."""
    wanted = [binding(n, size, gang=gang) for n, (size, gang) in enumerate(asked)]
    admitted, refused = admit(wanted, [], {"t": Amounts(cpu_milli=cpu, sandboxes=most)})
    assert sorted([b.id for b in admitted] + list(refused)) == sorted(b.id for b in wanted)
    used = used_by_tenant(admitted).get("t")
    assert used is None or (used.cpu_milli <= cpu and used.sandboxes <= most)
