"""Whose snapshots are whose: the name of what goes on from one sandbox to the next."""

from dsec.api.sandbox import Identity


def lineage_of(identity: Identity) -> str:
    """Return the lineage of a sandbox's snapshots.

    A replica of an experiment has one over all its sandboxes: `exp/<uid>/<role>/<index>`; what was
    created directly has one of its own: `sb/<id>`.
    """
    if identity.experiment_uid:
        return f"exp/{identity.experiment_uid}/{identity.role}/{identity.index}"
    return f"sb/{identity.id}"
