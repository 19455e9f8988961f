"""From an exception to a sentence on stderr and an exit code."""

import os
import sys

from dsec.cli import codes
from dsec.client import errors


def explain(error: Exception) -> int:
    """Print what went wrong and what to do, and return the exit code."""
    if isinstance(error, errors.DsecError):
        print(f"dsec: {error}", file=sys.stderr)
        if isinstance(error, errors.InvalidError):
            for line in mistakes(error):
                print(f"  {line}", file=sys.stderr)
        if isinstance(error, errors.UnknownOutcomeError) and error.keys:
            shown = ", ".join(error.keys[:3])
            print(f"  ask again with the same key: {shown}", file=sys.stderr)
        for said in getattr(error, "__notes__", ()):
            print(f"  {said}", file=sys.stderr)
        if error.correlation_id:
            print(f"  correlation id: {error.correlation_id}", file=sys.stderr)
        return code_of(error)
    if type(error).__module__.startswith("dsec."):  # a sentence of another part of dsec
        print(f"dsec: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", codes.EXIT_FAILED))
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        print(f"dsec: {where}{error.strerror}", file=sys.stderr)
        return codes.EXIT_USAGE
    print(f"dsec: fault in dsec itself: {type(error).__name__}: {error}", file=sys.stderr)
    if not os.environ.get("DSEC_DEBUG"):
        print("  'dsec --debug ...' shows where", file=sys.stderr)
    return codes.EXIT_FAULT


def code_of(error: errors.DsecError) -> int:
    """Return the documented exit code of an error."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return codes.EXIT_FAULT


def mistakes(error: errors.InvalidError) -> list[str]:
    """Return one line per mistake: where, what was given, what is allowed."""
    lines = []
    for detail in error.details:
        line = f"{detail.get('path') or '(document)'}: {detail.get('message', 'not valid')}"
        if "value" in detail and detail["value"] is not None:
            line += f"; got {detail['value']!r}"
        if detail.get("allowed"):
            line += f"; allowed: {detail['allowed']}"
        lines.append(line)
    return lines


_CODES: list[tuple[tuple[type[errors.DsecError], ...], int]] = [
    ((errors.ContextError, errors.InvalidError, errors.ConflictError), codes.EXIT_USAGE),
    ((errors.DeniedError,), codes.EXIT_DENIED),
    ((errors.NotFoundError,), codes.EXIT_NOT_FOUND),
    (
        (
            errors.UnreachableError,
            errors.UnknownOutcomeError,
            errors.BusyError,
            errors.ServerError,
            errors.WaitTimeoutError,
        ),
        codes.EXIT_UNKNOWN,
    ),
]
