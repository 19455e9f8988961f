"""Live changes of an experiment beside its spec: written to its status, by read-modify-write."""

from collections.abc import Callable
from datetime import datetime

from dsec.api.names import dns_name
from dsec.api.records import Experiment
from dsec.api.status import Override, OverrideKind
from dsec.gateway.core import Gateway
from dsec.gateway.errors import ApiError, invalid, not_found
from dsec.world.records import Record, RecordConflictError, RecordNotFoundError

ATTEMPTS = 5


async def experiment_of(gateway: Gateway, project: str, name: str) -> Record:
    """Return the record of a name as given or as stored. Raises ApiError 404."""
    try:
        return await gateway.records.get("Experiment", dns_name(name), project)
    except RecordNotFoundError:
        raise not_found(f"experiment {name} of project {project}") from None


async def override(
    gateway: Gateway, project: str, name: str, change: Callable[[Experiment], list[Override]]
) -> Record:
    """Replace the overrides by what `change` returns. Raises ApiError 404, 409."""
    for attempt in range(ATTEMPTS):
        record = await experiment_of(gateway, project, name)
        experiment = Experiment.model_validate(record)
        overrides = change(experiment)
        if overrides == experiment.status.overrides:
            return record
        wire = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in overrides]
        status = {**record.get("status", {}), "overrides": wire}
        try:
            return await gateway.records.replace_status({**record, "status": status})
        except RecordConflictError:
            if attempt == ATTEMPTS - 1:
                raise
    raise ApiError(409, "conflict", "the experiment changes too fast; try again")


def scaled(
    experiment: Experiment, role_name: str, replicas: int, *, by: str, at: datetime
) -> list[Override]:
    """Return the overrides with another count of a role. Raises ApiError 422 outside its bounds."""
    role = next((r for r in experiment.spec.roles if r.name == role_name), None)
    if role is None:
        names = ", ".join(one.name for one in experiment.spec.roles)
        raise invalid("role", role_name, names, f"no such role; roles: {names}")
    for bound, least in (("min", True), ("max", False)):
        value = getattr(role, bound)
        if value is not None and (replicas < value if least else replicas > value):
            word = "at least" if least else "at most"
            raise invalid("replicas", replicas, f"{word} {value}", f"{word} {value}")
    fresh = Override(
        kind=OverrideKind.SCALE,
        role=role.name,
        replicas=replicas,
        declared=role.replicas,
        by=by,
        at=at,
    )
    return [*_without(experiment, OverrideKind.SCALE, role.name), fresh]


def requested(
    experiment: Experiment, role_name: str, replicas: int, *, by: str, at: datetime
) -> list[Override]:
    """Return the overrides with what a task asks of its own scaler, which decides (ELAS-23)."""
    for one in experiment.status.overrides:
        if (one.kind, one.role, one.replicas) == (OverrideKind.REQUEST, role_name, replicas):
            # every sandbox of a role may ask for the same: one record of it is enough
            return experiment.status.overrides
    fresh = Override(kind=OverrideKind.REQUEST, role=role_name, replicas=replicas, by=by, at=at)
    return [*_without(experiment, OverrideKind.REQUEST, role_name), fresh]


def _without(experiment: Experiment, kind: OverrideKind, role: str) -> list[Override]:
    kept = experiment.status.overrides
    return [one for one in kept if one.kind is not kind or one.role != role]
