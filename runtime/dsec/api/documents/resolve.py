"""Fill the gaps of an experiment from its tenant, the presets and built-in values; list each one.

Order, for every value: what was asked, the tenant's default, the preset, the built-in value.
"""

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pydantic import BaseModel

from dsec.api.experiment import (
    ElasticTier,
    ExperimentSpec,
    RestartPolicy,
    Role,
    SnapshotPolicy,
    TaskClass,
)
from dsec.api.mistakes import Mistake
from dsec.api.presets import CONFLICTS, DATA_PATHS, INTERVALS
from dsec.api.sandbox import GpuMode, IsolationLevel
from dsec.api.snapshot import SnapshotKind
from dsec.api.status import MAX_DEFAULTED, Defaulted, Resolved, RoleImage
from dsec.api.tenant import TenantSpec
from dsec.api.units import gpu_bytes_of_shares

PIDS = 512
"""Processes of a role that names no limit: room for a test runner, small beside a fork bomb."""
DISK_BYTES = 1 << 30
"""Writable space of a role that names none and has no workspace size."""
RETAIN = 3
"""Snapshots kept where a policy names no number (source 002)."""

_SHARED = {GpuMode.MPS, GpuMode.SHARES}


def resolve(spec: ExperimentSpec, *, tenant: str, rights: TenantSpec | None = None) -> Resolved:
    """Return the complete form of a spec, with every value that was not asked for.

    `tenant` is the name of the namespace's tenant and `rights` its spec. Images keep their tags:
    digests are added by whoever can ask the registry. What no default fills stays open; see `gaps`.
    """
    work = _Work(spec.model_copy(deep=True), rights or TenantSpec())
    if tenant and work.spec.tenant not in {None, tenant}:
        work.note("tenant", tenant, f"tenant (documents may call it {work.spec.tenant})")
    work.spec.tenant = tenant or work.spec.tenant
    work.experiment()
    for index, role in enumerate(work.spec.roles):
        work.role(role, f"roles[{index}]")
    work.built_in(work.spec, "")
    images = [RoleImage(role=one.name, reference=one.image) for one in work.spec.roles]
    return Resolved(tenant=tenant, spec=work.spec, defaulted=work.listed(), images=images)


def gaps(spec: ExperimentSpec) -> list[Mistake]:
    """Return what an experiment still lacks to be able to run (API-17), with model paths."""
    found = []

    def lack(path: str, what: str, allowed: str) -> None:
        message = f"is required: {what}, or the tenant has a default"
        found.append(Mistake(path, None, allowed, message))

    for index, role in enumerate(spec.roles):
        path = f"roles[{index}]"
        if role.resources.cpu_milli is None:
            lack(f"{path}.resources.cpuMilli", "every role declares its CPU ceiling", "a CPU limit")
        if role.resources.memory_bytes is None:
            what = "every role declares its memory ceiling"
            lack(f"{path}.resources.memoryBytes", what, "a memory limit")
        if role.gpu and role.gpu.mode in _SHARED and role.gpu.memory_bytes is None:
            what = "a shared GPU has neighbours, so its memory ceiling is declared"
            lack(f"{path}.gpu.memoryBytes", what, "a GPU memory limit")
        if not role.image:
            lack(f"{path}.image", "every role names its image", "an image reference")
    if spec.budget and spec.budget.currency is None:
        lack("budget.currency", "an amount of money has a currency", "an ISO 4217 code")
    return found


def mirrored(image: str, rights: TenantSpec) -> tuple[str, str]:
    """Return where a tenant's images of that reference come from, and the prefix that said so."""
    for one in rights.defaults.image_mirrors:
        if image.startswith(one.prefix):
            tail = image.removeprefix(one.prefix) if one.mirror.endswith("/") else ""
            return one.mirror + tail, one.prefix
    return image, ""


@dataclass(slots=True)
class _Work:
    spec: ExperimentSpec
    rights: TenantSpec
    defaulted: list[Defaulted] = field(default_factory=list)

    def note(self, path: str, value: Any, source: str) -> None:
        plain = value.value if isinstance(value, Enum) else value
        text = json.dumps(plain, default=lambda one: one.value)
        self.defaulted.append(
            Defaulted.model_validate({"path": path, "value": text, "from": source})
        )

    def listed(self) -> list[Defaulted]:
        """Return what was filled in, cut where a record would get too large."""
        if len(self.defaulted) <= MAX_DEFAULTED:
            return self.defaulted
        rest = len(self.defaulted) - MAX_DEFAULTED + 1
        more = Defaulted(path="", value=str(rest), source="further values, not listed")
        return [*self.defaulted[: MAX_DEFAULTED - 1], more]

    def fill(self, model: BaseModel, name: str, path: str, *choices: tuple[Any, str]) -> None:
        """Set a field that was left out to the first choice that has a value."""
        if getattr(model, name) not in {None, ""}:
            return
        for value, source in choices:
            if value not in {None, ""}:
                setattr(model, name, value)
                alias = type(model).model_fields[name].alias or name
                self.note(f"{path}.{alias}" if path else alias, value, source)
                return

    def experiment(self) -> None:
        """Fill what belongs to the whole experiment."""
        spec, defaults = self.spec, self.rights.defaults
        self._presets()
        self._isolation()
        if "task_class" not in spec.model_fields_set:
            spec.task_class = TaskClass(spec.presets["CONF-01"])
            self.note("taskClass", spec.task_class, "preset CONF-01")
        self.fill(spec, "max_run_seconds", "", (defaults.max_run_seconds, "tenant"))
        self.fill(spec, "workspace_bytes", "", (defaults.workspace_bytes, "tenant"))
        if spec.budget:
            self.fill(spec.budget, "currency", "budget", (defaults.currency, "tenant"))
        if not spec.residency and self.rights.residency:
            spec.residency = list(self.rights.residency)
            self.note("residency", spec.residency, "tenant")
        if any(role.elastic or role.max is not None for role in spec.roles):
            self.fill(spec, "elastic_tier", "", (ElasticTier.BALANCED, "preset CONF-02"))
        base = DATA_PATHS[spec.presets["CONF-30"]]
        for at, one in enumerate(spec.data):
            tail = f"/{one.uri.rsplit('/', 1)[-1]}" if len(spec.data) > 1 else ""
            self.fill(one, "path", f"data[{at}]", (f"{base}{tail}", "preset CONF-30"))
        asked = any(role.restart_policy is RestartPolicy.CHECKPOINT for role in spec.roles)
        if spec.snapshot is None and asked:
            # a restart from the newest checkpoint needs one
            spec.snapshot = SnapshotPolicy(kinds=[SnapshotKind.CHECKPOINT])
            self.note("snapshot.kinds", spec.snapshot.kinds, "restartPolicy checkpoint")
        if spec.snapshot:
            self._snapshot(spec.snapshot)

    def _presets(self) -> None:
        chosen = {}
        for name, about in CONFLICTS.items():
            asked, ours = (
                one if one in about.names else None
                for one in (self.spec.presets.get(name), self.rights.defaults.presets.get(name))
            )
            chosen[name] = asked or ours or about.default
            if not asked:
                self.note(f"presets.{name}", chosen[name], "tenant" if ours else "built-in")
        self.spec.presets = chosen

    def _isolation(self) -> None:
        modes = {role.gpu.mode for role in self.spec.roles if role.gpu}
        implied = None
        if GpuMode.PASSTHROUGH in modes:
            implied = IsolationLevel.MICROVM
        elif modes & _SHARED:
            implied = IsolationLevel.CONTAINER
        self.fill(
            self.spec,
            "isolation_level",
            "",
            (implied, "preset CONF-07"),
            (self.rights.defaults.isolation_level, "tenant"),
            (IsolationLevel(self.spec.presets["CONF-10"]), "preset CONF-10"),
        )

    def _snapshot(self, policy: SnapshotPolicy) -> None:
        if not policy.kinds:
            policy.kinds = [SnapshotKind(self.spec.presets["CONF-05"])]
            self.note("snapshot.kinds", policy.kinds, "preset CONF-05")
        if not policy.adaptive:
            period = INTERVALS.get(self.spec.presets["CONF-09"])
            self.fill(policy, "interval_seconds", "snapshot", (period, "preset CONF-09"))
        self.fill(policy, "retain", "snapshot", (RETAIN, "built-in"))

    def role(self, role: Role, path: str) -> None:
        """Fill what belongs to one role."""
        defaults = self.rights.defaults
        self.fill(role, "part", path, (role.name, "built-in"))
        self.fill(role, "image", path, (defaults.image, "tenant"))
        self._mirror(role, path)
        limits, ours = role.resources, defaults.resources
        below = f"{path}.resources"
        self.fill(limits, "cpu_milli", below, (ours.cpu_milli, "tenant"))
        self.fill(limits, "memory_bytes", below, (ours.memory_bytes, "tenant"))
        self.fill(limits, "pids", below, (ours.pids, "tenant"), (PIDS, "built-in"))
        self.fill(
            limits,
            "disk_bytes",
            below,
            (self.spec.workspace_bytes, "workspaceBytes"),
            (ours.disk_bytes, "tenant"),
            (DISK_BYTES, "built-in"),
        )
        if role.gpu:
            if defaults.gpu:
                self.fill(role.gpu, "model", f"{path}.gpu", (defaults.gpu.model, "tenant"))
            if role.gpu.mode in _SHARED:
                shares = role.gpu.shares and gpu_bytes_of_shares(role.gpu.shares)
                self.fill(
                    role.gpu,
                    "memory_bytes",
                    f"{path}.gpu",
                    (shares, "gpu.shares"),
                    (ours.gpu_memory_bytes, "tenant"),
                )

    def _mirror(self, role: Role, path: str) -> None:
        role.image, prefix = mirrored(role.image, self.rights)
        if prefix:
            self.note(f"{path}.image", role.image, f"mirror of {prefix}")

    def built_in(self, model: BaseModel, path: str) -> None:
        """Note every field that was left out and has a value of its own, at any depth."""
        for name, info in type(model).model_fields.items():
            value, alias = getattr(model, name), info.alias or name
            below = f"{path}.{alias}" if path else alias
            if isinstance(value, BaseModel):
                self.built_in(value, below)
            elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
                for at, one in enumerate(value):
                    self.built_in(one, f"{below}[{at}]")
            elif name not in model.model_fields_set and value:
                self.note(below, value, "built-in")
