"""The replicas that experiments miss: the same at each look, and each experiment's apart."""

import random
from typing import Any

import pytest
from dsec.api.experiment import Role
from dsec.api.reasons import EndReason
from dsec.api.records import Experiment
from dsec.api.snapshot import RestoreFrom
from dsec.api.status import Resolved
from dsec.api.tenant import TenantSpec
from dsec.controllers.candidates import Candidates, place_of
from dsec.controllers.replicas import Plan, Slot
from dsec.journal.bindings import Binding
from dsec.snapshots.layout import prefix_of
from dsec.snapshots.refs import ref_key
from dsec.world.clock import SystemClock
from dsec.world.memory import MemoryObjects

UNUSED: Any = None
LIMITS = {"cpuMilli": 1, "memoryBytes": 1 << 20}


def candidates() -> Candidates:
    """Return those of a term without items."""
    return Candidates(
        inputs=UNUSED,
        results=UNUSED,
        clock=SystemClock(),
        randomness=random.Random(1),  # noqa: S311 - repeatable ids
    )


async def missing(known: Candidates, uid: str, *indices: int) -> list[Binding]:
    """Ask for the bindings of an experiment that misses these replicas."""
    role = Role.model_validate({"name": "sim", "image": "i", "replicas": 3, "resources": LIMITS})
    metadata = {"name": f"x-{uid}", "namespace": "p", "uid": uid}
    experiment = Experiment.model_validate({"metadata": metadata, "spec": {"roles": [role.wire()]}})
    resolved = Resolved.model_validate(
        {
            "generation": 1,
            "tenant": "t",
            "spec": experiment.spec.wire(),
            "images": [{"role": "sim", "reference": "i"}],
        }
    )
    plan = Plan(role, 3, {}, create=[Slot(index) for index in indices])
    return await known.missing(experiment, resolved, TenantSpec(), [plan], {})


async def test_each_experiment_keeps_its_own() -> None:
    """Ids stand while a replica is missing; another experiment, or its end, changes none."""
    known = candidates()
    first, other = await missing(known, "a", 0, 1), await missing(known, "b", 0)
    assert [place_of(one) for one in first] == [("sim", 0, 1), ("sim", 1, 1)]
    again = await missing(known, "a", 1)
    assert [one.id for one in again] == [first[1].id]
    known.forget("a")
    assert [one.id for one in await missing(known, "b", 0)] == [other[0].id]
    assert (await missing(known, "a", 1))[0].id != first[1].id
    assert await missing(known, "b") == []
    assert list(known._made) == ["a"]


@pytest.mark.parametrize(
    ("saved", "came_from", "expected"),
    [
        (True, "", "exp/u/sim/0"),
        (False, "", None),
        (False, "exp/other/sim/0", "exp/other/sim/0"),
        (True, "exp/other/sim/0", "exp/u/sim/0"),
    ],
)
async def test_what_was_never_saved_starts_as_its_last_copy_did(
    saved: bool, came_from: str, expected: str | None
) -> None:
    """A replica whose node was lost looks for no snapshot that is not there."""
    known, objects = candidates(), MemoryObjects()
    known.snapshots = objects
    if saved:
        await objects.put(ref_key(prefix_of("t"), "exp/u/sim/0", 1), b"{}")
    role = Role.model_validate({"name": "sim", "image": "i", "replicas": 1, "resources": LIMITS})
    spec = {"roles": [role.wire()], "snapshot": {"kinds": ["state"]}}
    metadata = {"name": "x", "namespace": "p", "uid": "u"}
    experiment = Experiment.model_validate({"metadata": metadata, "spec": spec})
    resolved = Resolved.model_validate(
        {
            "generation": 1,
            "tenant": "t",
            "spec": experiment.spec.wire(),
            "images": [{"role": "sim", "reference": "i"}],
        }
    )
    first = Plan(role, 1, {}, create=[Slot(0)])
    (last,) = await known.missing(experiment, resolved, TenantSpec(), [first], {})
    last.reason, last.ended_at = EndReason.NODE_LOST, known.clock.now()
    last.spec.restore = RestoreFrom(lineage=came_from) if came_from else None
    slot = Slot(0, [last])
    again = Plan(role, 1, {0: slot}, create=[slot])
    (found,) = await known.missing(experiment, resolved, TenantSpec(), [again], {})
    assert found.spec.identity.incarnation == 2
    assert (found.spec.restore.lineage if found.spec.restore else None) == expected
