"""Outgoing HTTP, so that the simulator can lose, delay and reorder every reply."""

from typing import Protocol

import httpx2


class Network(Protocol):
    """A factory of HTTP clients. Clients are long-lived, pooled and closed by their owner."""

    def client(self, base_url: str, *, timeout: float = 10.0) -> httpx2.AsyncClient:
        """Return a client for a server, with this process's TLS identity where it has one.

        The client raises httpx2.TransportError when the server is silent: the outcome is unknown.
        """
        ...
