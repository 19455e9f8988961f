"""The replicas that experiments miss: the same at each look, and each experiment's apart."""

import random
from typing import Any

from dsec.api.experiment import Role
from dsec.api.records import Experiment
from dsec.api.status import Resolved
from dsec.api.tenant import TenantSpec
from dsec.controllers.candidates import Candidates, place_of
from dsec.controllers.replicas import Plan, Slot
from dsec.journal.bindings import Binding
from dsec.world.clock import SystemClock

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
