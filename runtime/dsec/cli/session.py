"""How commands reach the server: one client per command, from the user's context."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsec.client import Client

PATIENCE = 15.0
"""Seconds in which a command tries again: a new leader is there within ten."""


def client(project: str = "", *, patience: float | None = None) -> "Client":
    """Return a client for the user's context."""
    from dsec.client import Client

    return Client(project=project or None, patience=PATIENCE if patience is None else patience)
