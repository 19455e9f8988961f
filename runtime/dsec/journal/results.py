"""Final statuses in the object store: written once in batches, found again through the bind log.

A reference is `<object key>#<line>`. Only references that the bind log holds count: a batch that a
fenced leader wrote is never looked at.
"""

from collections.abc import Sequence

from dsec.api.sandbox import SandboxStatus
from dsec.world.objects import NotFoundError, ObjectStore

PREFIX = "results"
DIRECT = "-"
"""Stands for the experiment of a sandbox that was created directly, in paths."""


def results_prefix(project: str, experiment: str) -> str:
    """Return where the final statuses of an experiment are."""
    return f"{PREFIX}/{project}/{experiment or DIRECT}/"


async def write_results(
    objects: ObjectStore,
    project: str,
    experiment: str,
    name: str,
    statuses: Sequence[SandboxStatus],
) -> dict[str, str]:
    """Store final statuses as one object; return the reference of each sandbox id.

    Raises ObjectStoreError; repeating it with the same name is safe.
    """
    key = f"{results_prefix(project, experiment)}{name}.ndjson"
    lines = [status.model_dump_json(by_alias=True, exclude_none=True) for status in statuses]
    await objects.put(key, ("\n".join(lines) + "\n").encode())
    return {status.identity.id: f"{key}#{line}" for line, status in enumerate(statuses)}


class ResultReader:
    """Reads references; keeps the last few objects, because neighbours are asked for together."""

    def __init__(self, objects: ObjectStore, keep: int = 64) -> None:
        self._objects = objects
        self._keep = keep
        self._lines: dict[str, list[bytes]] = {}

    async def read(self, reference: str) -> SandboxStatus | None:
        """Return a final status, or None where it has been removed. Raises ObjectStoreError."""
        key, _, line = reference.rpartition("#")
        if key not in self._lines:
            try:
                data, _ = await self._objects.get(key)
            except NotFoundError:
                return None
            if len(self._lines) >= self._keep:
                del self._lines[next(iter(self._lines))]
            self._lines[key] = data.splitlines()
        return SandboxStatus.model_validate_json(self._lines[key][int(line)])
