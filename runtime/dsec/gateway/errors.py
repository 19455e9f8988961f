"""Errors of the HTTP API: raised anywhere below a handler, answered as ErrorBody."""

from collections.abc import Sequence

from starlette.responses import JSONResponse

from dsec.api.mistakes import DocumentError
from dsec.api.wire import ErrorBody


class ApiError(Exception):
    """An answer that is no success. `code` is a stable word, `status` the HTTP status."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Sequence[dict[str, object]] = (),
        retry_after: float | None = None,
    ) -> None:
        """Keep what the answer says."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.details = list(details)
        self.retry_after = retry_after

    @property
    def denial(self) -> bool:
        """True where the caller was kept from something: such answers are audited."""
        return self.status in (401, 403) or self.code == "fenced"

    def response(self, correlation: str) -> JSONResponse:
        """Return the answer."""
        body = ErrorBody(
            code=self.code,
            message=str(self),
            details=self.details,
            correlation_id=correlation,
        )
        headers = {} if self.retry_after is None else {"Retry-After": f"{self.retry_after:g}"}
        return JSONResponse(body.wire(), self.status, headers)


def not_found(what: str) -> ApiError:
    """Return the answer to a question about something that is not there."""
    return ApiError(404, "not-found", f"{what} does not exist")


def invalid(path: str, value: object, allowed: str, message: str) -> ApiError:
    """Return the answer to one wrong value."""
    detail: dict[str, object] = {
        "path": path,
        "value": value,
        "allowed": allowed,
        "message": message,
    }
    return ApiError(422, "invalid", f"{path}: {message}", [detail])


def refused_document(problem: DocumentError) -> ApiError:
    """Return the answer to a document with mistakes: all of them."""
    count = len(problem.mistakes)
    head = str(problem.mistakes[0]) if count == 1 else f"the document has {count} mistakes"
    return ApiError(422, "invalid", head, [one.wire() for one in problem.mistakes])


def away(message: str) -> ApiError:
    """Return the answer while some part is away: nothing is known to be changed, try again."""
    return ApiError(503, "control-plane", message, retry_after=1.0)
