"""A task's own wish for a count, from inside one of its sandboxes (ELAS-23). Pure."""

from dsec.api.experiment import MAX_REPLICAS
from dsec.api.sandbox import Identity


def own_request(caller: Identity, *, project: str, experiment: str, role: str, count: int) -> int:
    """Return the count asked for, of the caller's own role.

    Raises ValueError, in words for the caller: a sandbox speaks for its own role and nobody else.
    """
    own = (caller.project, caller.experiment, caller.role)
    if not caller.experiment or own != (project, experiment, role):
        where = "/".join(one for one in own if one) or "no role"
        raise ValueError(
            f"role {project}/{experiment}/{role}: a sandbox may ask for its own role, {where}"
        )
    if not 0 <= count <= MAX_REPLICAS:
        raise ValueError(f"count {count}: between 0 and {MAX_REPLICAS} is allowed")
    return count
