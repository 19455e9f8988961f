"""Which replicas are created, stopped and left alone, and when a failed one is started again."""

from datetime import UTC, datetime, timedelta

import pytest
from dsec.api.experiment import Completion, RestartPolicy, Role
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Identity, Resources, SandboxSpec
from dsec.api.status import Override, OverrideKind
from dsec.controllers.replicas import (
    IMAGE_TRIES,
    PLATFORM_RETRIES,
    RETRIES,
    Plan,
    current,
    desired_of,
    plan,
)
from dsec.journal.bindings import Binding

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def role(replicas: int = 3, **changes: object) -> Role:
    """Build a role."""
    return Role.model_validate({"name": "sim", "replicas": replicas} | changes)


def batch(replicas: int = 3, policy: RestartPolicy = RestartPolicy.ON_FAILURE) -> Role:
    """Build a role whose replicas run once."""
    return role(replicas, completion=Completion.RUN_TO_END, restart_policy=policy)


def copy(
    index: int,
    reason: EndReason | None = None,
    *,
    incarnation: int = 1,
    ago: float = 0,
    node: str = "n",
) -> Binding:
    """Build a binding; with a reason it has ended so many seconds ago."""
    name = f"sb-{index:013d}{incarnation:013d}"
    spec = SandboxSpec(
        identity=Identity(
            id=name, tenant="t", project="p", role="sim", index=index, incarnation=incarnation
        ),
        image="i",
        resources=Resources(cpu_milli=1, memory_bytes=1 << 20),
    )
    return Binding(
        tenant="t",
        key=name,
        body_hash="",
        id=name,
        spec=spec,
        node=node,
        at=NOW,
        ended_at=NOW - timedelta(seconds=ago) if reason else None,
        reason=reason,
    )


def made(found: Plan) -> list[tuple[int, int]]:
    """Return (index, incarnation) of what is to be created."""
    return [(slot.index, slot.incarnation) for slot in found.create]


def test_missing_replicas_are_created_and_surplus_stopped() -> None:
    """Indices 0 to n-1 are wanted; higher ones go."""
    found = plan(role(3), 3, [copy(0), copy(4)], NOW)
    assert made(found) == [(1, 1), (2, 1)]
    assert [b.spec.identity.index for b in found.surplus] == [4]


@pytest.mark.parametrize(
    ("reason", "again"),
    [
        (EndReason.COMPLETED, False),
        (EndReason.STOPPED, False),
        (EndReason.FAILED, True),
        (EndReason.OOM_KILLED, True),
        (EndReason.NODE_LOST, True),
        (EndReason.FROZEN, False),
        (EndReason.IDLE, False),
        (EndReason.HEARTBEAT_LOST, True),
    ],
)
def test_what_a_batch_starts_again(reason: EndReason, again: bool) -> None:
    """A batch repeats failures, never what completed or was stopped."""
    found = plan(batch(1), 1, [copy(0, reason, ago=100)], NOW)
    assert made(found) == ([(0, 2)] if again else [])
    assert found.over is not again


def test_never_means_never_but_for_the_platform() -> None:
    """RestartPolicy never keeps a failure of the program; a lost node is not one."""
    quiet = batch(2, RestartPolicy.NEVER)
    found = plan(
        quiet, 2, [copy(0, EndReason.FAILED, ago=9), copy(1, EndReason.NODE_LOST, ago=9)], NOW
    )
    assert made(found) == [(1, 2)]
    assert [b.spec.identity.index for b in found.done] == [0]
    kept = role(1, restart_policy=RestartPolicy.NEVER)
    assert made(plan(kept, 1, [copy(0, EndReason.FAILED, ago=999)], NOW)) == []


@pytest.mark.parametrize("kept", [True, False])
def test_never_gives_up_on_an_image_that_no_node_can_use(*, kept: bool) -> None:
    """So many nodes are tried, others first; then the typed failure stands and the role is over."""
    never = role(1, restart_policy=RestartPolicy.NEVER) if kept else batch(1, RestartPolicy.NEVER)
    copies = [
        copy(0, EndReason.IMAGE_PULL_FAILED, incarnation=n, ago=100, node=f"n{n}")
        for n in range(1, IMAGE_TRIES + 1)
    ]
    for tried in range(1, IMAGE_TRIES):
        found = plan(never, 1, copies[:tried], NOW)
        assert made(found) == [(0, tried + 1)]
        assert found.create[0].shunned == [f"n{n}" for n in range(1, tried + 1)]
    found = plan(never, 1, copies, NOW)
    assert made(found) == []
    assert [one.reason for one in found.done] == [EndReason.IMAGE_PULL_FAILED]
    assert found.over


def test_others_are_held_while_an_image_cannot_be_used() -> None:
    """The pause is a wait, for as long as it takes; a node that was used since is not avoided."""
    copies = [
        copy(0, EndReason.IMAGE_PULL_FAILED, incarnation=1, ago=900, node="n1"),
        copy(0, EndReason.FAILED, incarnation=2, ago=800, node="n2"),
        copy(0, EndReason.IMAGE_PULL_FAILED, incarnation=3, node="n3"),
    ]
    found = plan(role(1), 1, copies, NOW)
    assert (made(found), [slot.incarnation for slot in found.held]) == ([], [4])
    assert found.next_look == 1
    assert found.held[0].shunned == ["n3"]
    many = [copy(0, EndReason.IMAGE_PULL_FAILED, incarnation=n, ago=99) for n in range(1, 60)]
    assert made(plan(role(1), 1, many, NOW)) == [(0, 60)]
    assert plan(role(1), 1, [copy(0, EndReason.FAILED)], NOW).held == []


@pytest.mark.parametrize(
    ("reason", "limit"), [(EndReason.FAILED, RETRIES), (EndReason.NODE_LOST, PLATFORM_RETRIES)]
)
def test_a_batch_gives_up_at_last(reason: EndReason, limit: int) -> None:
    """After so many failures in a row the failure stands."""
    copies = [copy(0, reason, incarnation=n, ago=100) for n in range(1, limit + 1)]
    assert made(plan(batch(1), 1, copies, NOW)) == [(0, limit + 1)]
    copies.append(copy(0, reason, incarnation=limit + 1, ago=100))
    assert plan(batch(1), 1, copies, NOW).over


def test_restarts_wait_longer_each_time() -> None:
    """One second after the first failure, doubling, and the plan says when to look."""
    copies = [copy(0, EndReason.FAILED, incarnation=n) for n in (1, 2, 3)]
    found = plan(role(1), 1, copies, NOW)
    assert made(found) == []
    assert found.next_look == 4
    assert plan(role(1), 1, copies, NOW + timedelta(seconds=4)).create


def test_what_is_kept_running_comes_back_after_a_stop_and_after_completion() -> None:
    """A kept role has its replicas again, whoever ended one."""
    assert made(plan(role(1), 1, [copy(0, EndReason.STOPPED)], NOW)) == [(0, 2)]
    assert made(plan(role(1), 1, [copy(0, EndReason.COMPLETED, ago=2)], NOW)) == [(0, 2)]


def test_an_override_lasts_until_the_declared_count_changes() -> None:
    """A live scale wins over the spec, and is dropped when the spec speaks again."""
    one = Override(kind=OverrideKind.SCALE, role="sim", replicas=7, declared=3, by="ann", at=NOW)
    assert desired_of(role(3), current([one], [role(3)], NOW)) == 7
    assert desired_of(role(4), current([one], [role(4)], NOW)) == 4
    lapsed = one.model_copy(update={"until": NOW})
    assert current([lapsed], [role(3)], NOW) == []
