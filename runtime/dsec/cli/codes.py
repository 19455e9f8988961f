"""The exit codes of `dsec`: a contract that scripts may rely on."""

EXIT_OK = 0
"""Done."""
EXIT_FAILED = 1
"""The task itself failed: a sandbox of a run, or the command of an exec."""
EXIT_USAGE = 2
"""Wrong usage, an invalid document, or a conflict with what exists."""
EXIT_DENIED = 3
"""The key is not accepted, or lacks the right."""
EXIT_NOT_FOUND = 4
"""No such thing, or not in this project."""
EXIT_UNKNOWN = 5
"""The server cannot be reached, or it is not known whether the call took effect."""
EXIT_FAULT = 6
"""A fault of dsec itself."""
EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C."""
