"""The front ends: one function per dialect, from a document to the parts of one model."""

from collections.abc import Callable, Mapping
from typing import Any

from dsec.api import units
from dsec.api.documents import shared
from dsec.api.documents.reader import Context, Found, Reader
from dsec.api.experiment import Dialect, ExperimentSpec, Registration
from dsec.api.fields import to_wire
from dsec.api.meta import API_VERSION
from dsec.api.presets import CONFLICTS

Front = Callable[[Context, Mapping[str, Any]], dict[str, Any]]
"""Returns an ExperimentSpec as nested values with their document paths."""

_SINGLE = "worker"
"""Name of the one role of documents that know no roles (DSEC_ROLE of source 000)."""


def detect(context: Context) -> Dialect | None:
    """Tell the dialect by its top-level keys; notes a mistake and returns None where unclear."""
    data = context.source.data
    if not isinstance(data, dict):
        context.refuse("", data, "a mapping at the top level")
        return None
    marks = {
        "roles": Dialect.ROLES,
        "spec": Dialect.SPEC,
        "task": Dialect.TASK,
    }
    present = [key for key in marks if key in data]
    if len(present) > 1:
        both = " and ".join(present)
        message = (
            f"mixes dialects: {both} cannot be in one document; "
            "use roles, or metadata with spec, or task"
        )
        context.refuse(present[1], None, "one dialect", message)
        return None
    if not present:
        keys = ", ".join(map(str, data)) or "nothing"
        message = f"is no known dialect: needs roles, or metadata with spec, or task; found {keys}"
        context.refuse("", None, "roles, or metadata with spec, or task", message)
        return None
    if present == ["spec"]:
        if "apiVersion" in data or "kind" in data:
            return Dialect.EXPERIMENT
        spec = data["spec"]
        if isinstance(spec, dict) and "experiment" in spec:
            return Dialect.GROUPS
    return marks[present[0]]


def roles(context: Context, data: Mapping[str, Any]) -> dict[str, Any]:
    """Dialect A: top-level name, tenant, roles."""
    top, key = Reader(context, data), shared.snake
    common = shared.experiment_parts(top, key)
    spec = common.spec | {
        "name": top.require(top.text("name"), "a name"),
        "tenant": top.text("tenant"),
        "project": top.text("project"),
        "network": shared.network(top.child("network"), fast=top.boolean("fast_network")),
        "snapshot": shared.snapshot(top, key, common.presets),
        "roles": [],
        "presets": common.presets,
    }
    common.presets.setdefault("CONF-30", "dataset")
    for one in top.children("roles", required=True):
        limits = one.child("resource")
        mounts, workspace = shared.mounts(one, key)
        role = shared.role_parts(one, key) | {
            "name": one.require(one.text("role"), "the role's name"),
            "replicas": one.integer("replicas", 0, 100_000),
            "resources": shared.resources(limits, key, "mem", one.at("resource")),
            "mounts": mounts,
        }
        if workspace.value:
            spec["workspaceBytes"] = workspace
        if limits:
            role["gpu"] = shared.gpu(limits, "gpu")
            limits.close()
        if role["registration"].value is None:
            # source 000: the first action of the entry script is its own heartbeat (LIFE-04)
            role["registration"] = Registration.PROGRAM.value
        one.close()
        spec["roles"].append(role)
    scales = top.child("auto_scale")
    if scales:
        common.presets.setdefault("CONF-02", "role-queue")
        _auto_scale(scales, spec["roles"])
    top.close()
    return spec


def _auto_scale(scales: Reader, all_roles: list[dict[str, Any]]) -> None:
    for role in all_roles:
        name = role["name"].value
        inner = scales.child(name) if name else None
        if inner is None:
            continue
        role["min"] = inner.integer("min", 0, 100_000)
        role["max"] = inner.integer("max", 0, 100_000)
        role["elastic"] = {
            "metric": inner.require(inner.text("metric"), "the name of a metric"),
            "target": inner.integer("target"),
        }
        inner.close()
    scales.close()


def spec(context: Context, data: Mapping[str, Any]) -> dict[str, Any]:
    """Dialect B: metadata and spec with one kind of replica."""
    top, key = Reader(context, data), shared.camel
    inner = top.child("spec") or Reader(context, {}, "spec")
    out, common = _spec_parts(top, inner)
    role = _one_role(inner, key)
    role["resources"] = _closed_resources(inner, key, "memory")
    role["gpu"] = shared.gpu(inner, "gpu")
    role["mounts"], workspace = shared.mounts(inner, key)
    if workspace.value:
        out["workspaceBytes"] = workspace
    elastic = inner.child("elastic")
    if elastic:
        role["min"] = elastic.integer("minReplicas", 0, 100_000)
        role["max"] = elastic.integer("maxReplicas", 0, 100_000)
        metric = elastic.require(elastic.text("scaleMetric"), "the name of a metric")
        role["elastic"] = {"metric": metric, "target": elastic.integer("targetUtilization", 1, 100)}
        if metric.value == "cpu":
            common.presets.setdefault("CONF-02", "cpu-target")
        elastic.close()
    _start_at_min(role)
    out["roles"] = [role]
    inner.close()
    top.close()
    return out


def groups(context: Context, data: Mapping[str, Any]) -> dict[str, Any]:
    """Dialect D: the form of B with spec.experiment.groups."""
    top, key = Reader(context, data), shared.camel
    inner = top.child("spec") or Reader(context, {}, "spec")
    out, _ = _spec_parts(top, inner)
    every = shared.role_parts(inner, key)
    every["resources"] = _closed_resources(inner, key, "memory")
    every["gpu"] = shared.gpu(inner, "gpu")
    every["mounts"], workspace = shared.mounts(inner, key)
    if workspace.value:
        out["workspaceBytes"] = workspace
    experiment = inner.child("experiment") or Reader(context, {}, "spec.experiment")
    out["roles"] = [_group(one, every) for one in experiment.children("groups", required=True)]
    # both places are read: the sources print none, and either reads naturally
    out["relations"] += shared.relations(experiment)
    out["communication"] += shared.communication(experiment)
    experiment.close()
    inner.close()
    top.close()
    return out


def _group(one: Reader, every: dict[str, Any]) -> dict[str, Any]:
    key = shared.camel
    mounts, _ = shared.mounts(one, key)
    role = _inherit(shared.role_parts(one, key), every) | {
        "name": one.require(one.text("name"), "the group's name"),
        "part": one.text("role"),
        "replicas": one.integer("replicas", 0, 100_000),
        "min": one.integer("min", 0, 100_000),
        "max": one.integer("max", 0, 100_000),
        "resources": _inherit(_closed_resources(one, key, "memory"), every["resources"]),
        "gpu": shared.gpu(one, "gpu") or every["gpu"],
        "mounts": [*every["mounts"], *mounts],
    }
    elastic = one.child("elastic")
    if elastic:
        role["elastic"] = {
            "metric": elastic.require(elastic.text("scaleMetric"), "the name of a metric"),
            "target": elastic.integer("targetUtilization", 1, 100),
        }
        elastic.close()
    one.close()
    return role


def _inherit(own: dict[str, Found], every: dict[str, Any]) -> dict[str, Any]:
    """Fill what a group leaves out with what the spec says for every group."""
    given = {name: one for name, one in every.items() if isinstance(one, Found) and one.value}
    return given | {
        name: one for name, one in own.items() if one.value is not None or name not in given
    }


def task(context: Context, data: Mapping[str, Any]) -> dict[str, Any]:
    """Dialect C: one top-level task with shares."""
    top, key = Reader(context, data), shared.snake
    inner = top.child("task") or Reader(context, {}, "task")
    common = shared.experiment_parts(inner, key)
    out = common.spec | {
        "name": inner.require(inner.text("name"), "a name"),
        "tenant": inner.text("tenant"),
        "project": inner.text("project"),
        "network": shared.network(inner.child("network"), fast=inner.boolean("fast_network")),
        "snapshot": shared.snapshot(inner, key, common.presets),
        "presets": common.presets,
    }
    role = _one_role(inner, key)
    role["resources"], role["gpu"] = _share_resources(inner, common.presets)
    role["mounts"], workspace = shared.mounts(inner, key)
    if workspace.value:
        out["workspaceBytes"] = workspace
    scale = inner.child("scale")
    if scale:
        role["min"] = scale.integer("min_instances", 0, 100_000)
        role["max"] = scale.integer("max_instances", 0, 100_000)
        metric = scale.require(scale.text("metric"), "the name of a metric")
        role["elastic"] = {"metric": metric, "target": scale.integer("threshold")}
        if str(metric.value).endswith("throughput"):
            common.presets.setdefault("CONF-02", "throughput")
        scale.close()
    _start_at_min(role)
    out["roles"] = [role]
    inner.close()
    top.close()
    return out


def _share_resources(
    reader: Reader, presets: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    limits = reader.child("resources")
    if limits is None:
        return {
            "cpuMilli": Found(None, reader.at("resources.cpu_shares")),
            "memoryBytes": Found(None, reader.at("resources.mem_gb")),
        }, None
    shares = limits.integer("cpu_shares", 1, 100_000)
    chosen = presets.get("CONF-08")
    if isinstance(chosen, Found) and chosen.value == "relative" and shares.value:
        rule = "absolute shares: relative ones mean another amount on each machine"
        limits.context.refuse(chosen.path, "relative", rule)
    cores = limits.cpu("cpu")
    if shares.value:
        cores = Found(units.cpu_milli_of_shares(shares.value), shares.path)
        presets.setdefault("CONF-08", CONFLICTS["CONF-08"].default)
    elif cores.value is None:
        cores = shares
    out = {
        "cpuMilli": cores,
        "memoryBytes": limits.size("mem_gb", bare=units.GB),
        "pids": limits.integer("pids", 8, 1 << 22),
        "diskBytes": limits.size("disk_gb", bare=units.GB),
        "diskIops": limits.integer("disk_iops"),
        "diskBytesPerSecond": limits.size("disk_bandwidth"),
    }
    cards = limits.integer("gpu_shares", 1, 1 << 20)
    model, count = limits.text("gpu_type"), limits.integer("gpu_count", 1, 16)
    limits.close()
    if not (cards.value or model.value or count.value):
        return out, None
    gpu: dict[str, Any] = {"model": model, "count": count}
    if cards.value:
        gpu |= {
            "mode": "shares",
            "count": 1,
            "shares": cards,
            "memoryBytes": Found(units.gpu_bytes_of_shares(cards.value), cards.path),
        }
    return out, gpu


def record(context: Context, data: Mapping[str, Any]) -> dict[str, Any]:
    """Read the record itself: apiVersion, kind Experiment, spec in the names of the model."""
    top = Reader(context, data)
    for key, value in (("apiVersion", API_VERSION), ("kind", "Experiment")):
        top.require(top.word(key, {value: value}), value)
    meta = top.child("metadata")
    name = meta.require(meta.text("name"), "a name") if meta else Found(None, "metadata.name")
    if meta:
        meta.text("namespace")
        meta.mapping("labels")
        meta.mapping("annotations")
        meta.close()
    else:
        top.require(name, "a name")
    inner = top.raw("spec")
    top.close()
    if not isinstance(inner, dict):
        context.refuse("spec", inner, "a mapping")
        return {}
    before = len(context.mistakes)
    out: dict[str, Any] = to_wire(ExperimentSpec, inner, path="spec", mistakes=context.mistakes)
    for at in range(before, len(context.mistakes)):
        one = context.mistakes[at]
        context.mistakes[at] = type(one)(
            one.path, one.value, one.allowed, one.message, context.source.line(one.path)
        )
    out.setdefault("name", name)
    return out


def _spec_parts(top: Reader, inner: Reader) -> tuple[dict[str, Any], shared.Common]:
    meta = top.child("metadata")
    name = Found(None, "metadata.name")
    labels = Found(None, "metadata.labels")
    if meta:
        name, labels = meta.text("name"), meta.mapping("labels")
        meta.close()
    top.require(name, "a name")
    common = shared.experiment_parts(inner, shared.camel)
    if common.spec["labels"].value is None:
        common.spec["labels"] = labels
    return common.spec | {
        "name": name,
        "tenant": inner.text("tenant"),
        "project": inner.text("project"),
        "network": shared.network(inner.child("network"), fast=inner.boolean("fastNetwork")),
        "snapshot": shared.snapshot(inner, shared.camel, common.presets),
        "presets": common.presets,
    }, common


def _one_role(reader: Reader, key: shared.Key) -> dict[str, Any]:
    return shared.role_parts(reader, key) | {
        "name": _SINGLE,
        "replicas": reader.integer("replicas", 0, 100_000),
    }


def _closed_resources(reader: Reader, key: shared.Key, memory: str) -> dict[str, Any]:
    limits = reader.child("resources")
    out = shared.resources(limits, key, memory, reader.at("resources"))
    if limits:
        limits.close()
    return out


def _start_at_min(role: dict[str, Any]) -> None:
    """Start elastic roles that declare no count at their lower bound."""
    if role["replicas"].value is None and role.get("min") and role["min"].value is not None:
        role["replicas"] = role["min"]


FRONTS: Mapping[Dialect, Front] = {
    Dialect.ROLES: roles,
    Dialect.SPEC: spec,
    Dialect.GROUPS: groups,
    Dialect.TASK: task,
    Dialect.EXPERIMENT: record,
}
