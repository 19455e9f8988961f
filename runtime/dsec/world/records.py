"""The record store: the Kubernetes API, or files that behave like it, as plain JSON objects."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

Record = dict[str, Any]
"""A Kubernetes object as JSON: apiVersion, kind, metadata, spec, status."""


class RecordsError(Exception):
    """The record store did not answer; the outcome is unknown. Safe to retry."""


class RecordNotFoundError(Exception):
    """No such record."""


class RecordConflictError(Exception):
    """The record changed since it was read, or already exists."""


class RecordInvalidError(Exception):
    """The store refuses the record for good (schema, admission, rights); the message says why."""


class WatchExpiredError(Exception):
    """The resource version is too old (410): list again."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    record: Record


@dataclass(frozen=True, slots=True)
class RecordList:
    """A consistent list and the version at which to start a watch."""

    items: list[Record]
    resource_version: str


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated caller, as Kubernetes names callers."""

    name: str
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Access:
    """A question for the authoriser: may the user do this?"""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    group: str = "dsec.dev"


class Records(Protocol):
    """Records by kind ("Experiment", "Namespace", "Secret", "Lease", ...).

    `namespace` is empty for cluster-scoped kinds. Every method raises RecordsError when the store
    does not answer.
    """

    async def get(self, kind: str, name: str, namespace: str = "") -> Record:
        """Return one record. Raises RecordNotFoundError."""
        ...

    async def list(self, kind: str, namespace: str = "", selector: str = "") -> RecordList:
        """Return all records of a kind (of one namespace, where given), by label selector."""
        ...

    def watch(self, kind: str, resource_version: str) -> AsyncIterator[WatchEvent]:
        """Yield changes in all namespaces since a version.

        Ends when the server ends it. Raises WatchExpiredError when the version is too old.
        """
        ...

    async def create(self, record: Record) -> Record:
        """Create. Raises RecordConflictError when it exists, RecordInvalidError."""
        ...

    async def apply(self, record: Record, manager: str = "dsec") -> Record:
        """Create or update by server-side apply; only named fields are owned. Idempotent."""
        ...

    async def replace(self, record: Record) -> Record:
        """Replace spec and metadata; needs metadata.resourceVersion. Raises RecordConflictError."""
        ...

    async def replace_status(self, record: Record) -> Record:
        """Replace status alone; needs metadata.resourceVersion. Raises RecordConflictError."""
        ...

    async def delete(self, kind: str, name: str, namespace: str = "", *, uid: str = "") -> None:
        """Delete; deleting what is absent is no error. With uid: only that very object."""
        ...

    async def allowed(self, user: User, access: Access) -> tuple[bool, str]:
        """Answer a SubjectAccessReview: allowed or not, and why."""
        ...

    async def authenticate(self, token: str, audience: str = "") -> User | None:
        """Answer a TokenReview: the user of a bearer token, or None."""
        ...
