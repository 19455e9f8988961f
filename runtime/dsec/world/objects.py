"""The object store: immutable or conditionally written blobs under string keys."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class ObjectStoreError(Exception):
    """The store could not answer; the outcome of a write is unknown. Safe to retry."""


class NotFoundError(Exception):
    """No object has this key."""


class PreconditionError(Exception):
    """A conditional write lost: the object exists, or is not the version named."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One listed object; `size` in bytes."""

    key: str
    etag: str
    size: int


class ObjectStore(Protocol):
    """One bucket. Keys sort bytewise; `list` pages inside."""

    async def get(self, key: str) -> tuple[bytes, str]:
        """Return content and etag. Raises NotFoundError, ObjectStoreError."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return the bytes `start` to `start + length`, fewer where the object ends before.

        `length` is at least 1. Raises NotFoundError, ObjectStoreError (also for a start at or
        after the end, and for a body that is cut off).
        """
        ...

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError, ObjectStoreError."""
        ...

    async def put(self, key: str, data: bytes) -> str:
        """Write without condition and return the etag. Idempotent. Raises ObjectStoreError."""
        ...

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create. Raises PreconditionError when the key exists, ObjectStoreError when unknown.

        After ObjectStoreError the write may have happened: read back before trying again.
        """
        ...

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace exactly that version. Raises PreconditionError, ObjectStoreError."""
        ...

    async def list(self, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:
        """Return all objects below a prefix, in key order, after a key. Raises ObjectStoreError."""
        ...

    async def delete(self, key: str) -> None:
        """Remove; removing what is absent is no error. Raises ObjectStoreError."""
        ...


@runtime_checkable
class Presigner(Protocol):
    """A store that lets others do one thing without a credential, for a while."""

    async def presign(self, method: str, key: str, seconds: int) -> tuple[str, dict[str, str]]:
        """Return a URL for GET, or for a PUT of what does not exist, and the headers it needs."""
        ...
