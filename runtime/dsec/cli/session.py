"""How commands reach the server: one client per command, from the user's context."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsec.client import Client

PATIENCE = 15.0
"""Seconds in which a command tries again: a new leader is there within ten."""


def client(project: str = "", *, patience: float | None = None) -> "Client":
    """Return a client for the user's context.

    The retry library logs to stdout by default, which would break `--output json`; the commands
    say themselves what they wait for.
    """
    from stamina.instrumentation import set_on_retry_hooks

    from dsec.client import Client

    set_on_retry_hooks([])
    return Client(project=project or None, patience=PATIENCE if patience is None else patience)
