"""What may go wrong in a call, as one tree; no exception of a library escapes the SDK.

    DsecError
    ├── ContextError            no server or key is known, or the context file is not readable
    ├── InvalidError            the request can never work; `details` names every mistake
    ├── DeniedError             the key is not accepted, or lacks the right
    ├── NotFoundError           no such thing, or not in this project
    ├── ConflictError           it exists already, differs, or changed meanwhile
    ├── BusyError               refused for now; `retry_after` says when to ask again
    ├── ServerError             the server answered that it failed
    ├── UnreachableError        the request never reached a server; nothing was changed
    ├── UnknownOutcomeError     the request may or may not have taken effect
    │   └── TruncatedStreamError    a stream broke before its end frame
    └── WaitTimeoutError        what was waited for did not happen in the time given

The exception of the HTTP library, where there is one, is chained as the cause.
"""

from typing import Any


class DsecError(Exception):
    """Any error of the SDK. `correlation_id` finds the call in logs and in the journal."""

    def __init__(self, message: str, *, correlation_id: str = "", code: str = "") -> None:
        super().__init__(message)
        self.correlation_id = correlation_id
        self.code = code


class ContextError(DsecError):
    """No server or key is known, or the context file cannot be used."""


class InvalidError(DsecError):
    """The request can never work. `details` has one entry per mistake: path, value, allowed."""

    def __init__(
        self,
        message: str,
        *,
        details: list[dict[str, Any]] | None = None,
        correlation_id: str = "",
        code: str = "invalid",
    ) -> None:
        super().__init__(message, correlation_id=correlation_id, code=code)
        self.details = details or []


class DeniedError(DsecError):
    """The key is not accepted, or its owner lacks the right."""


class NotFoundError(DsecError):
    """There is no such thing, or not in this project."""


class ConflictError(DsecError):
    """It exists already, differs from what was sent, or changed meanwhile."""


class BusyError(DsecError):
    """Refused for now: too many calls, or no leader yet. `retry_after` is in seconds."""

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        correlation_id: str = "",
        code: str = "busy",
    ) -> None:
        super().__init__(message, correlation_id=correlation_id, code=code)
        self.retry_after = retry_after


class ServerError(DsecError):
    """The server says that it failed."""


class UnreachableError(DsecError):
    """The request never reached a server, so it changed nothing."""


class UnknownOutcomeError(DsecError):
    """The request may or may not have taken effect.

    Repeat it with the same `keys` to learn which: keyed calls take effect at most once.
    """

    def __init__(
        self, message: str, *, keys: list[str] | None = None, correlation_id: str = ""
    ) -> None:
        super().__init__(message, correlation_id=correlation_id, code="unknown-outcome")
        self.keys = keys or []


class TruncatedStreamError(UnknownOutcomeError):
    """A stream broke before its end frame: what the command did after that is not known."""


class WaitTimeoutError(DsecError):
    """What was waited for did not happen in the time given; it may still happen."""
