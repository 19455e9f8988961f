"""Uploaded items of batches: JSONL objects by digest, one line per replica."""

from dsec.world.objects import NotFoundError, ObjectStore

PREFIX = "inputs"
KEEP = 16
"""Files held in memory; a batch reads the same one for each of its replicas."""


class InputMissingError(Exception):
    """The items of an experiment were never uploaded; reconcile tries again."""


def input_key(project: str, digest: str) -> str:
    """Return the object key of uploaded items."""
    return f"{PREFIX}/{project}/{digest}"


class Inputs:
    """Reads lines of uploaded items."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lines: dict[str, list[str]] = {}

    async def line(self, project: str, digest: str, index: int) -> str | None:
        """Return line `index` without its end, or None past the last.

        Raises InputMissingError, ObjectStoreError.
        """
        key = input_key(project, digest)
        if key not in self._lines:
            try:
                data, _ = await self._objects.get(key)
            except NotFoundError:
                raise InputMissingError(f"items {digest} of {project} were not uploaded") from None
            if len(self._lines) >= KEEP:
                del self._lines[next(iter(self._lines))]
            # only a newline separates: JSON may hold other line separators
            self._lines[key] = data.decode().rstrip("\n").split("\n")
        lines = self._lines[key]
        return lines[index] if index < len(lines) else None
