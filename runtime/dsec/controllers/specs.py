"""From what an experiment asks to what agents run: the bindings of its replicas. Pure."""

from datetime import datetime

from dsec.api.documents.resolve import RETAIN
from dsec.api.experiment import (
    Completion,
    ExperimentSpec,
    Priority,
    Registration,
    RestartPolicy,
    Role,
)
from dsec.api.lineage import lineage_of
from dsec.api.reasons import EndReason
from dsec.api.records import Experiment
from dsec.api.sandbox import GpuMode, Identity, IsolationLevel, Mount, Resources, SandboxSpec
from dsec.api.snapshot import STORED, Consistency, RestoreFrom, SnapshotKind, SnapshotPlan
from dsec.api.status import Resolved
from dsec.api.tenant import TenantSpec
from dsec.journal.bindings import PATIENCE, Binding, Needs
from dsec.journal.keyed import SIMULATED_LABEL, WORKSPACE
from dsec.snapshots.failover import RESTORE_FROM

PRIORITIES = {Priority.LOW: -1, Priority.NORMAL: 0, Priority.HIGH: 1, Priority.URGENT: 2}
PATIENCE_PRESETS = {"failover-fast": 90.0, "partition-safe": PATIENCE}
"""Seconds of silence until a node's sandboxes are given up, by preset of CONF-21."""
_ELSEWHERE = frozenset({EndReason.PREEMPTED, EndReason.STOPPED})
"""Ends that are no failure, after which a replica goes on when it has room again."""


def replica_resources(role: Role) -> Resources:
    """Return the limits of one replica of a resolved role.

    Raises ValueError where a ceiling is missing; `gaps` has refused such an experiment before.
    """
    limits, gpu = role.resources, role.gpu
    if limits.cpu_milli is None or limits.memory_bytes is None:
        raise ValueError(f"role {role.name} has no CPU or memory ceiling")
    given = {"pids": limits.pids, "disk_bytes": limits.disk_bytes}
    if gpu is not None:
        given |= {
            "gpu_count": gpu.count,
            "gpu_memory_bytes": gpu.memory_bytes,
            "gpu_shares": gpu.shares,
        }
    return Resources(
        cpu_milli=limits.cpu_milli,
        memory_bytes=limits.memory_bytes,
        gpu_mode=_mode(role),
        **{name: value for name, value in given.items() if value is not None},
    )


def snapshot_plan(spec: ExperimentSpec) -> SnapshotPlan | None:
    """Return what agents save of each replica of a resolved experiment; None: nothing."""
    policy = spec.snapshot
    if policy is None:
        return None
    return SnapshotPlan(
        kinds=policy.kinds or [SnapshotKind.STATE],
        interval_seconds=None if policy.adaptive else policy.interval_seconds,
        adaptive=policy.adaptive,
        consistency=Consistency(policy.consistency or Consistency.MARKS),
        paths=policy.paths,
        retain=policy.retain or RETAIN,
    )


def movable(spec: SandboxSpec) -> bool:
    """Return whether a sandbox can go on elsewhere: what it saves can be restored there."""
    return moved_as(spec) is not None


def moved_as(spec: SandboxSpec) -> SnapshotKind | None:
    """Return the kind of snapshot that a sandbox moves by (CONF-05: disk or state); None: none."""
    kinds = spec.snapshot.kinds if spec.snapshot is not None else []
    return next((one for one in (SnapshotKind.DISK, SnapshotKind.STATE) if one in kinds), None)


def restore_of(
    spec: ExperimentSpec, role: Role, last: Binding | None, image: str
) -> RestoreFrom | None:
    """Return what the next copy of a replica starts from; None: from nothing.

    A first start has nothing, and neither has what ended by itself and is kept running. What lost
    its place goes on (SNAP-17); what failed does so where its policy says so (API-18).
    """
    plan = snapshot_plan(spec)
    if last is None or last.reason is None or plan is None or STORED.isdisjoint(plan.kinds):
        return None
    moved = last.reason.blames_platform or last.reason in _ELSEWHERE
    by_policy = role.restart_policy is RestartPolicy.CHECKPOINT
    if last.reason is EndReason.COMPLETED or not (moved or by_policy):
        return None
    return RestoreFrom(
        lineage=lineage_of(last.spec.identity),
        # its owner has asked for another image since
        any_image=not _same_image(image, last.spec.image),
    )


def origin_of(
    experiment: Experiment, role: Role, index: int, last: Binding | None
) -> RestoreFrom | None:
    """Return what the first copy of a replica starts from where another region ran it before."""
    root = experiment.metadata.annotations.get(RESTORE_FROM, "")
    return RestoreFrom(lineage=f"{root}/{role.name}/{index}") if root and last is None else None


def _same_image(one: str, other: str) -> bool:
    """Return whether two references name one image, as far as they are pinned."""
    (name, _, digest), (other_name, _, other_digest) = one.partition("@"), other.partition("@")
    if digest and other_digest:
        return digest == other_digest
    return name == other_name


def replica_binding(
    experiment: Experiment,
    resolved: Resolved,
    role: Role,
    *,
    index: int,
    incarnation: int,
    item: str | None,
    rights: TenantSpec,
    sandbox: str,
    heartbeat: float,
    now: datetime,
    last: Binding | None = None,
) -> Binding:
    """Return the binding that one replica asks for; it has no node yet. `last`: its last copy."""
    meta, spec = experiment.metadata, resolved.spec
    image = next((one for one in resolved.images if one.role == role.name), None)
    correlation = meta.annotations.get("dsec.dev/correlation-id", "")
    reference = image.reference if image else role.image
    sandbox_spec = SandboxSpec(
        identity=Identity(
            id=sandbox,
            tenant=resolved.tenant,
            project=meta.namespace,
            experiment=meta.name,
            experiment_uid=meta.uid,
            task_id=experiment.given_name,
            role=role.name,
            part=role.part,
            index=index,
            incarnation=incarnation,
            correlation_id=correlation,
        ),
        image=reference,
        command=role.command,
        entrypoint_registers=role.registration is Registration.PROGRAM,
        env={"DSEC_GROUP": role.name} | role.env,
        workdir=role.workdir or WORKSPACE,
        isolation=spec.isolation_level or IsolationLevel.CONTAINER,
        resources=replica_resources(role),
        exclusive_cpus=role.exclusive_cpus,
        mounts=_mounts(spec, role),
        item=item,
        max_run_seconds=spec.max_run_seconds,
        heartbeat_seconds=heartbeat,
        snapshot=snapshot_plan(spec),
        restore=restore_of(spec, role, last, reference) or origin_of(experiment, role, index, last),
    )
    key = f"exp/{meta.uid}/{role.name}/{index}/{incarnation}"
    return Binding(
        tenant=resolved.tenant,
        key=key,
        body_hash=f"{meta.uid}/{resolved.generation}",
        id=sandbox,
        spec=sandbox_spec,
        at=now,
        needs=_needs(experiment, spec, role, rights),
        priority=PRIORITIES[spec.priority],
        patience=PATIENCE_PRESETS.get(spec.presets.get("CONF-21", ""), PATIENCE),
    )


def _needs(experiment: Experiment, spec: ExperimentSpec, role: Role, rights: TenantSpec) -> Needs:
    labels = dict(role.node_labels)
    asked = labels.pop(SIMULATED_LABEL, None)
    # a batch that ran on simulated nodes would give invented results
    keep = role.completion is Completion.KEEP
    either = None if keep else False
    frequency = next((c.frequency for c in spec.communication if c.members == role.name), "")
    group = f"{experiment.metadata.uid}/{role.name}"
    return Needs(
        queue=spec.queue,
        stage=spec.stage.value if spec.stage else "",
        task_class=spec.task_class,
        datasets=[one.uri for one in spec.data],
        near=group if frequency == "high" else "",
        spread=group if frequency == "low" else "",
        together=experiment.metadata.uid if keep else "",
        least=(role.replicas if role.min is None else role.min) if keep else 0,
        node_labels=labels,
        pools=list(rights.pools),
        tolerations=list(role.tolerations),
        gpu_model=(role.gpu.model or "") if role.gpu else "",
        features=_features(role),
        simulated=asked == "true" if asked is not None else either,
    )


def _features(role: Role) -> list[str]:
    """Return what a node must be able to do for a role."""
    # a claim is attached by the node's kubelet
    found = ["pvc"] if any(mount.claim for mount in role.mounts) else []
    return [*found, "cpuset"] if role.exclusive_cpus else found


def _mode(role: Role) -> GpuMode | None:
    if role.gpu is None:
        return None
    # shares of a device are shares whatever mode the document left at its default
    return GpuMode.SHARES if role.gpu.shares else role.gpu.mode


def _mounts(spec: ExperimentSpec, role: Role) -> list[Mount]:
    mounts = [
        Mount(path=one.path, kind=one.kind.value, read_only=one.read_only, collect=one.collect)
        for one in role.mounts
    ]
    mounts += [Mount(path=one.path, kind="data", read_only=True) for one in spec.data if one.path]
    places = {mount.path for mount in mounts}
    if WORKSPACE not in places:
        mounts.insert(0, Mount(path=WORKSPACE))
    for raw in spec.archive_paths:
        path = raw if raw.startswith("/") else f"{WORKSPACE}/{raw}"
        if path not in places:
            mounts.append(Mount(path=path, kind="output", collect=True))
    return mounts
