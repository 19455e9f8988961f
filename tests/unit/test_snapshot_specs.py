"""From a document's snapshot policy to what agents save, and what a replica starts from."""

from datetime import UTC, datetime
from typing import Any

import pytest
from dsec.api.documents import parse, resolve
from dsec.api.experiment import RestartPolicy
from dsec.api.mistakes import DocumentError
from dsec.api.reasons import EndReason
from dsec.api.records import Experiment
from dsec.api.sandbox import SandboxSpec
from dsec.api.snapshot import Consistency, SnapshotKind
from dsec.api.tenant import TenantSpec
from dsec.controllers.specs import movable, replica_binding, restore_of, snapshot_plan
from dsec.journal.bindings import Binding

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = "sb-" + "0" * 26


def resolved(snapshot: Any = None, restart: str = "on-failure") -> Any:
    """Return a resolved experiment of one role."""
    spec: dict[str, Any] = {
        "roles": [
            {
                "name": "worker",
                "image": "base@sha256:" + "a" * 64,
                "restartPolicy": restart,
                "resources": {"cpuMilli": 1000, "memoryBytes": 1 << 30},
            }
        ]
    }
    if snapshot is not None:
        spec["snapshot"] = snapshot
    experiment = Experiment.model_validate(
        {"metadata": {"name": "one", "namespace": "lab", "uid": "u1"}, "spec": spec}
    )
    return experiment, resolve(experiment.spec, tenant="research", rights=TenantSpec())


def replica(snapshot: Any = None, *, last: Binding | None = None, **how: Any) -> Binding:
    """Return the binding of the replica."""
    experiment, form = resolved(snapshot, **how)
    return replica_binding(
        experiment,
        form,
        form.spec.roles[0],
        index=2,
        incarnation=1,
        item=None,
        rights=TenantSpec(),
        sandbox=ID,
        heartbeat=15.0,
        now=NOW,
        last=last,
    )


def ended(reason: EndReason, snapshot: Any, **how: Any) -> Binding:
    """Return a last copy that ended for a reason."""
    return replica(snapshot, **how).model_copy(update={"ended_at": NOW, "reason": reason})


def test_no_policy_saves_nothing_and_cannot_move() -> None:
    """Snapshots are consent: without a policy nothing is stored."""
    spec = replica().spec
    assert (spec.snapshot, spec.restore, movable(spec)) == (None, None, False)


@pytest.mark.parametrize(
    ("asked", "kind", "seconds"),
    [
        ({}, SnapshotKind.STATE, 900.0),
        ({"kinds": ["disk"], "intervalSeconds": 300}, SnapshotKind.DISK, 300.0),
        ({"adaptive": True}, SnapshotKind.STATE, None),
    ],
)
def test_a_policy_becomes_a_plan(asked: Any, kind: SnapshotKind, seconds: float | None) -> None:
    """CONF-05 and CONF-09: what is left out comes from the presets."""
    plan = replica(asked).spec.snapshot
    assert plan is not None
    assert (plan.kinds, plan.interval_seconds, plan.retain) == ([kind], seconds, 3)
    assert plan.adaptive is (seconds is None)


def test_paths_and_consistency_are_the_document_s() -> None:
    """Which files are state is the task's to say; empty is the workspace."""
    asked = {"paths": ["/workspace/ckpt", "/data/buffer"], "consistency": "freeze"}
    plan = replica(asked).spec.snapshot
    assert plan is not None
    assert plan.paths == ["/workspace/ckpt", "/data/buffer"]
    assert plan.consistency is Consistency.FREEZE


def test_restart_policy_checkpoint_saves_checkpoints_by_itself() -> None:
    """API-18: a restart from the newest checkpoint needs one."""
    plan = replica(restart="checkpoint").spec.snapshot
    assert plan is not None
    assert plan.kinds == [SnapshotKind.CHECKPOINT]


def test_frozen_processes_cannot_go_on_elsewhere() -> None:
    """CONF-05: `freeze` has no restore."""
    assert not movable(replica({"kinds": ["freeze"]}).spec)
    assert movable(replica({"kinds": ["freeze", "disk"]}).spec)


@pytest.mark.parametrize(
    ("reason", "restart", "restores"),
    [
        (EndReason.NODE_LOST, "on-failure", True),
        (EndReason.PREEMPTED, "on-failure", True),
        (EndReason.STOPPED, "on-failure", True),
        (EndReason.FAILED, "on-failure", False),
        (EndReason.FAILED, "checkpoint", True),
        (EndReason.OOM_KILLED, "checkpoint", True),
        (EndReason.COMPLETED, "checkpoint", False),
    ],
)
def test_what_a_replica_starts_from(reason: EndReason, restart: str, restores: bool) -> None:
    """What lost its place goes on; what failed does so where its policy says so (API-18)."""
    policy = {"kinds": ["state"]}
    binding = replica(policy, last=ended(reason, policy, restart=restart), restart=restart)
    asked = binding.spec.restore
    assert (asked is not None) is restores
    if asked is not None:
        assert (asked.lineage, asked.seq, asked.fork) == ("exp/u1/worker/2", None, False)
        assert not asked.any_image


def test_a_first_start_restores_nothing_and_a_new_image_is_flagged() -> None:
    """SNAP-24: only its owner's own change of the image may be restored under another one."""
    policy = {"kinds": ["state"]}
    assert replica(policy).spec.restore is None
    last = ended(EndReason.NODE_LOST, policy)
    _, form = resolved(policy)
    other = restore_of(form.spec, form.spec.roles[0], last, "other@sha256:" + "b" * 64)
    assert other is not None
    assert other.any_image
    unpinned = restore_of(form.spec, form.spec.roles[0], last, "base")
    assert unpinned is not None
    assert not unpinned.any_image


def test_an_unknown_way_of_consistency_is_refused_by_name() -> None:
    """The mistake names the field and what is allowed."""
    text = "task: {name: x, image: base, snapshot: {consistency: maybe}}"
    with pytest.raises(DocumentError, match=r"consistency.*marks, freeze"):
        parse(text)


def test_a_spec_of_the_version_before_has_no_plan() -> None:
    """Agents and leaders of neighbouring versions read each other."""
    spec = replica().spec.wire()
    assert "snapshot" not in spec
    assert SandboxSpec.model_validate(spec).restore is None
    assert snapshot_plan(resolved()[1].spec) is None
    assert RestartPolicy.CHECKPOINT == "checkpoint"
