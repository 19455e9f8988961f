"""Contradictions that no single field of an experiment shows."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from dsec.api.experiment import ExperimentSpec, Role
from dsec.api.mistakes import Mistake, unknown_key
from dsec.api.presets import CONFLICTS
from dsec.api.sandbox import GpuMode, IsolationLevel

_SHARED = {GpuMode.MPS, GpuMode.SHARES}


def contradictions(spec: ExperimentSpec) -> list[Mistake]:
    """Return every contradiction, with paths of the model."""
    found = [*_names(spec), *unknown_presets(spec.presets, "presets")]
    for index, role in enumerate(spec.roles):
        found += _bounds(role, f"roles[{index}]")
        found += _devices(spec, role, f"roles[{index}]")
    return found


def unknown_presets(presets: Mapping[str, str], path: str) -> Iterator[Mistake]:
    """Yield the presets that no conflict has."""
    for name, chosen in presets.items():
        about = CONFLICTS.get(name)
        if about is None:
            yield unknown_key(path, name, CONFLICTS)
        elif chosen not in about.names:
            allowed = f"one of {', '.join(about.names)}"
            yield Mistake(f"{path}.{name}", chosen, allowed, f"must be {allowed}, not {chosen}")


def _names(spec: ExperimentSpec) -> Iterator[Mistake]:
    names = [role.name for role in spec.roles]
    known = ", ".join(dict.fromkeys(names))
    for index, name in enumerate(names):
        if name in names[:index]:
            rule = "a name that no other role has"
            yield Mistake(f"roles[{index}].name", name, rule, f"role {name} is given twice")
    places = [
        (f"relations[{at}].{end}", getattr(one, end))
        for at, one in enumerate(spec.relations)
        for end in ("source", "target")
    ] + [(f"communication[{at}].members", one.members) for at, one in enumerate(spec.communication)]
    for path, name in places:
        if name not in names:
            yield Mistake(path, name, known, f"no role is named {name}; roles: {known}")


def _bounds(role: Role, path: str) -> Iterator[Mistake]:
    steps = [("min", role.min), ("replicas", role.replicas), ("max", role.max)]
    if "replicas" not in role.model_fields_set:
        del steps[1]
    given = [(name, value) for name, value in steps if value is not None]
    for (low, least), (high, most) in pairwise(given):
        if least > most:
            rule = f"at least {least}" if high != "replicas" else f"at least {low} ({least})"
            message = f"{low} {least} must not be above {high} {most}"
            yield Mistake(f"{path}.{high}", most, rule, message)
    seen: dict[str, str] = {}
    for at, mount in enumerate(role.mounts):
        if mount.path in seen:
            message = f"{mount.path} is the path of storage {seen[mount.path]} too"
            yield Mistake(f"{path}.mounts[{at}].path", mount.path, "a path of its own", message)
        seen.setdefault(mount.path, mount.name)


def _devices(spec: ExperimentSpec, role: Role, path: str) -> Iterator[Mistake]:
    if role.gpu is None or spec.isolation_level is None:
        return
    mode, level = role.gpu.mode, spec.isolation_level
    if mode is GpuMode.PASSTHROUGH and level is not IsolationLevel.MICROVM:
        message = f"passthrough gives a device to a microVM, and isolationLevel is {level.value}"
        yield Mistake(f"{path}.gpu.mode", mode.value, "whole, mps, mig or shares", message)
    elif mode in _SHARED and level is IsolationLevel.MICROVM:
        message = f"{mode.value} shares a device among containers, and isolationLevel is microvm"
        yield Mistake(f"{path}.gpu.mode", mode.value, "passthrough", message)
