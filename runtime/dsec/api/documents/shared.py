"""What every dialect can say, in its own spelling of keys: snake_case or camelCase (API-20)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dsec.api.communication import NetworkMode
from dsec.api.documents.reader import Found, Reader
from dsec.api.experiment import (
    Completion,
    ElasticTier,
    OnExceed,
    Priority,
    PullPolicy,
    Registration,
    RestartPolicy,
    Stage,
    TaskClass,
)
from dsec.api.presets import CONFLICTS, interval_preset
from dsec.api.sandbox import GpuMode, IsolationLevel
from dsec.api.snapshot import Consistency, SnapshotKind

Key = Callable[[str], str]
"""Spells a camelCase name as the dialect does."""


def camel(name: str) -> str:
    """Keep a camelCase name."""
    return name


def snake(name: str) -> str:
    """Spell a camelCase name in snake_case."""
    return re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name)


def words(kind: type[StrEnum], **others: StrEnum) -> dict[str, str]:
    """Return the words of an enum, and other spellings that mean one of them."""
    return {one.value: one.value for one in kind} | {
        name: one.value for name, one in others.items()
    }


@dataclass(slots=True)
class Common:
    """Parts of an experiment, as nested values with their document paths."""

    spec: dict[str, Any]
    presets: dict[str, Any]


def experiment_parts(reader: Reader, key: Key) -> Common:
    """Read what belongs to the whole experiment."""
    presets: dict[str, Any] = {}
    spec: dict[str, Any] = {
        "priority": reader.word(key("priority"), words(Priority)),
        "queue": reader.text(key("queue")),
        "stage": reader.word(key("stage"), words(Stage)),
        "taskClass": _task_class(reader, key),
        "isolationLevel": reader.word(key("isolationLevel"), words(IsolationLevel)),
        "workspaceBytes": reader.size(key("workspaceSize")),
        "maxRunSeconds": reader.duration(key("maxRunTime")),
        "elasticTier": reader.word(key("elasticPolicy"), words(ElasticTier)),
        "budget": _budget(reader.child(key("budget")), key),
        "labels": reader.mapping(key("labels")),
        "residency": reader.texts(key("residency")),
        "accessibleTo": reader.texts(key("accessibleTo")),
        "archivePaths": reader.texts(key("archiveDirs")),
        "data": _data(reader, key),
        "relations": relations(reader),
        "communication": communication(reader),
    }
    logging = reader.child(key("logging"))
    if logging:
        spec["debugLogs"] = logging.boolean("debug")
        preset = logging.word(key("preset"), {one: one for one in CONFLICTS["CONF-11"].names})
        presets["CONF-11"] = preset
        logging.close()
    if spec["isolationLevel"].value:
        presets["CONF-10"] = spec["isolationLevel"]
    if spec["taskClass"].value:
        presets["CONF-01"] = spec["taskClass"]
    presets |= _named_presets(reader, key)
    return Common(spec, presets)


def role_parts(reader: Reader, key: Key) -> dict[str, Any]:
    """Read what belongs to one role, its resources excepted."""
    entrypoint, command = reader.texts(key("entrypoint")), reader.texts(key("command"))
    if entrypoint.value and command.value:
        command = Found([*entrypoint.value, *command.value], command.path)
    elif entrypoint.value:
        command = entrypoint
    return {
        "image": reader.text(key("image")),
        "pullPolicy": reader.word(
            key("imagePullPolicy"),
            words(PullPolicy, IfNotPresent=PullPolicy.IF_NOT_PRESENT, Always=PullPolicy.ALWAYS),
        ),
        "command": command,
        "registration": reader.word(key("registration"), words(Registration)),
        "env": reader.mapping(key("env")),
        "workdir": reader.text(key("workdir")),
        "ports": reader.integers(key("ports"), 1, 65535),
        "nodeLabels": reader.mapping(key("nodeLabels")),
        "restartPolicy": reader.word(key("restartPolicy"), words(RestartPolicy)),
        "completion": reader.word(key("completion"), words(Completion)),
        "privileged": reader.boolean(key("privileged")),
        "itemsRef": reader.text(key("itemsRef")),
    }


def resources(reader: Reader | None, key: Key, memory: str, absent: str) -> dict[str, Any]:
    """Read ceilings; `absent` is the path that a missing mapping would have had."""
    if reader is None:
        return {
            "cpuMilli": Found(None, f"{absent}.cpu"),
            "memoryBytes": Found(None, f"{absent}.{memory}"),
        }
    return {
        "cpuMilli": reader.cpu("cpu"),
        "memoryBytes": reader.size(memory),
        "pids": reader.integer("pids", 8, 1 << 22),
        "diskBytes": reader.size("disk"),
        "diskIops": reader.integer(key("diskIops")),
        "diskBytesPerSecond": reader.size(key("diskBandwidth")),
    }


def gpu(reader: Reader, name: str) -> dict[str, Any] | None:
    """Read GPUs: a number of whole devices, or a mapping with mode, count, memory, shares."""
    value = reader.raw(name)
    if value is None:
        return None
    if not isinstance(value, dict):
        count = reader.integer(name, 0, 16)
        return {"count": count} if count.value else None
    inner = reader.child(name)
    if inner is None:
        return None
    model = inner.text("model")
    other = inner.text("type")
    out = {
        "mode": inner.word("mode", words(GpuMode)),
        "count": inner.integer("count", 1, 16),
        "memoryBytes": inner.size("memory"),
        "shares": inner.integer("shares", 1),
        "model": model if model.value else other,
    }
    inner.close()
    return out


def mounts(reader: Reader, key: Key) -> tuple[list[dict[str, Any]], Found]:
    """Read storages; the workspace's size comes back apart (Found with None where not declared)."""
    out: list[dict[str, Any]] = []
    workspace = Found(None, "")
    for one in reader.children("storages"):
        path = one.require(one.text(key("mountPath")), "an absolute path")
        size = one.size("size")
        claim, dataset = one.text("pvc"), one.text("dataset")
        collect = one.boolean("collect")
        name = one.require(one.text("name"), "a name")
        read_only = one.boolean(key("readOnly"))
        retention = one.duration("retention")
        one.close()
        if path.value == "/workspace" and claim.value is None:
            workspace = size
            continue
        kind = _mount_kind(str(name.value), claims=bool(claim.value), collect=bool(collect.value))
        if kind == "data" and read_only.value is None:
            read_only = Found(value=True, path=read_only.path)
        out.append(
            {
                "name": name,
                "path": path,
                "kind": kind,
                "readOnly": read_only,
                "sizeBytes": size,
                "claim": claim,
                "dataset": dataset,
                "collect": collect,
                "retentionSeconds": retention,
            }
        )
    return out, workspace


def _mount_kind(name: str, *, claims: bool, collect: bool) -> str:
    if collect:
        return "output"
    return "data" if claims or name in {"data", "dataset"} else "scratch"


def snapshot(reader: Reader, key: Key, presets: dict[str, Any]) -> dict[str, Any] | None:
    """Read the snapshot policy and name the presets of CONF-05 and CONF-09 that it amounts to."""
    interval = reader.duration(key("checkpointInterval"))
    inner = reader.child("snapshot")
    if inner is None:
        if interval.value is None:
            return None
        _name_interval(presets, "checkpoint", interval)
        return {"kinds": ["checkpoint"], "intervalSeconds": interval}
    adaptive = inner.raw("interval") == "adaptive"
    minutes = inner.duration(key("intervalMin"), bare=60)
    period = Found(None, inner.at("interval")) if adaptive else inner.duration("interval")
    given = [one for one in (interval, minutes, period) if one.value is not None]
    if len(given) > 1:
        names = " and ".join(one.path for one in given)
        reader.context.refuse(given[1].path, given[1].value, "one interval", f"both {names} given")
    kind = inner.word("kind", words(SnapshotKind))
    kinds = [kind.value] if kind.value else (["checkpoint"] if interval.value else [])
    chosen = given[0] if given else period
    if adaptive:
        presets["CONF-09"] = "adaptive"
    elif chosen.value:
        _name_interval(presets, kinds[0] if kinds else "state", chosen)
    if kinds:
        presets["CONF-05"] = kinds[0]
    out = {
        "kinds": kinds,
        "intervalSeconds": chosen,
        "adaptive": adaptive,
        "retain": inner.integer("retain", 1, 1000),
        "consistency": inner.word("consistency", words(Consistency)),
        "paths": inner.texts("paths"),
    }
    inner.close()
    return out


def _name_interval(presets: dict[str, Any], kind: str, interval: Found) -> None:
    presets.setdefault("CONF-05", kind)
    name = interval_preset(kind, interval.value)
    if name:
        presets.setdefault("CONF-09", name)


def network(reader: Reader | None, *, fast: Found) -> dict[str, Any]:
    """Read network rules in any of the sources' forms (CONF-12)."""
    if reader is None:
        return {"fast": fast}
    words_of_egress = {
        "deny": "deny",
        "none": "deny",
        "whitelist": "allow-list",
        "allow-list": "allow-list",
        "open": "open",
    }
    egress = reader.word("egressPolicy", words_of_egress)
    domains, services = reader.texts("allowedDomains"), reader.texts("services")
    mode = reader.word("mode", words(NetworkMode))
    internal, external = reader.boolean("allow_internal"), reader.boolean("allow_external")
    reader.close()
    if egress.value is None and external.value is not None:
        egress = Found("open" if external.value else "deny", external.path)
    elif egress.value is None and (domains.value or services.value):
        egress = Found("allow-list", reader.path)
    if mode.value is None and internal.value is not None:
        mode = Found("training" if internal.value else "regular", internal.path)
    if egress.value == "deny" and (domains.value or services.value):
        path = domains.path if domains.value else services.path
        message = f"must be empty where {egress.path} denies everything"
        reader.context.refuse(path, None, "no targets, or another egress policy", message)
    return {
        "mode": mode,
        "egress": egress,
        "allowedDomains": domains,
        "services": services,
        "fast": fast,
    }


def _task_class(reader: Reader, key: Key) -> Found:
    named = reader.word(key("taskClass"), words(TaskClass))
    for flag in ("preemptible", "pausable"):
        found = reader.boolean(flag)
        if found.value and named.value is None:
            named = Found(flag, found.path)
        elif found.value and named.value != flag:
            message = f"contradicts {named.path}: {named.value}"
            reader.context.refuse(found.path, found.value, "one class", message)
    return named


def _budget(reader: Reader | None, key: Key) -> dict[str, Any] | None:
    if reader is None:
        return None
    out = {
        "limit": reader.require(reader.money("limit"), "an exact amount"),
        "currency": reader.text("currency"),
        "onExceed": reader.word(key("onExceed"), words(OnExceed)),
    }
    reader.close()
    return out


def _data(reader: Reader, key: Key) -> list[dict[str, Any]]:
    value = reader.raw("data")
    if value is None:
        return []
    if not isinstance(value, list):
        reader.context.refuse(reader.at("data"), value, "a list of data sets")
        return []
    out = []
    for index, one in enumerate(value):
        path = f"{reader.at('data')}[{index}]"
        if isinstance(one, str):
            out.append({"uri": Found(one, path)})
        elif isinstance(one, dict):
            inner = Reader(reader.context, one, path)
            uri = inner.require(inner.text("uri"), "a data set, such as dataset://name")
            out.append({"uri": uri, "path": inner.text(key("mountPath"))})
            inner.close()
        else:
            reader.context.refuse(path, one, "a data set, such as dataset://name")
    return out


def relations(reader: Reader) -> list[dict[str, Any]]:
    """Read the flows between roles."""
    out = []
    for one in reader.children("relations"):
        kinds = {name: name for name in ("broadcast", "aggregate", "shared")}
        out.append(
            {
                "kind": one.require(one.word("type", kinds), f"one of {', '.join(kinds)}"),
                "source": one.require(one.text("from"), "the name of a role"),
                "target": one.require(one.text("to"), "the name of a role"),
            }
        )
        one.close()
    return out


def communication(reader: Reader) -> list[dict[str, Any]]:
    """Read how much roles talk."""
    out = []
    for one in reader.children("communication"):
        levels = {"high": "high", "low": "low"}
        out.append(
            {
                "members": one.require(one.text("members"), "the name of a role"),
                "frequency": one.require(one.word("frequency", levels), "high or low"),
            }
        )
        one.close()
    return out


def _named_presets(reader: Reader, key: Key) -> dict[str, Found]:
    inner = reader.child(key("presets"))
    if inner is None:
        return {}
    out = {}
    for conflict, about in CONFLICTS.items():
        found = inner.word(conflict, {one: one for one in about.names})
        if found.value:
            out[conflict] = found
    inner.close()
    return out
