"""How commands reach the server: one client per command, from the user's context."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsec.client import Client

CALL_SECONDS, SLOW_SECONDS = 30.0, 900.0
"""How long one answer is waited for; saving a large sandbox takes minutes."""
PATIENCE = 15.0
"""Seconds in which a command tries again: a new leader is there within ten."""


def client(project: str = "", *, patience: float | None = None, slow: bool = False) -> "Client":
    """Return a client for the user's context; a `slow` one waits minutes for an answer."""
    from dsec.client import Client

    return Client(
        project=project or None,
        timeout=SLOW_SECONDS if slow else CALL_SECONDS,
        patience=PATIENCE if patience is None else patience,
    )
