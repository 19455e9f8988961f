"""Uploaded items of batches: JSONL objects by digest, one line per replica."""

from dsec.world.objects import NotFoundError, ObjectStore

PREFIX = "inputs"
ITEM_BYTES = 1 << 20
"""The most that one sandbox is given as its item, or on its standard input."""
KEEP = 16
"""Files held in memory; a batch reads the same one for each of its replicas."""


class InputMissingError(Exception):
    """The items of an experiment were never uploaded, or are no text; the message says which."""


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
                raise InputMissingError("they were not uploaded") from None
            try:
                text = data.decode()
            except UnicodeDecodeError as problem:
                raise InputMissingError("they are not UTF-8 text") from problem
            if len(self._lines) >= KEEP:
                del self._lines[next(iter(self._lines))]
            # only a newline separates: JSON may hold other line separators
            self._lines[key] = text.rstrip("\n").split("\n")
        lines = self._lines[key]
        return lines[index] if index < len(lines) else None
