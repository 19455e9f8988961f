"""Outgoing HTTP of a real process: pooled clients, with or without a TLS identity."""

import ssl

import httpx2

CONNECT_SECONDS = 5.0
"""A server that does not answer a SYN in this time is silent; reads have the caller's limit."""
POOL = httpx2.Limits(max_connections=200, max_keepalive_connections=50, keepalive_expiry=30.0)
"""Enough for long polls to a few thousand nodes to be shared by several clients."""


class NetworkTls:
    """A Network whose clients verify servers by one context and may show a certificate."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def use(self, context: ssl.SSLContext) -> None:
        """Give clients that are made from now on another identity."""
        self._context = context

    def client(self, base_url: str, *, timeout: float = 10.0) -> httpx2.AsyncClient:
        """Return a pooled client; `timeout` in seconds bounds each read and write."""
        return _client(base_url, timeout, verify=self._context)


class NetworkPlain:
    """A Network without TLS identity: https servers are verified by the system's CAs."""

    def client(self, base_url: str, *, timeout: float = 10.0) -> httpx2.AsyncClient:
        """Return a pooled client; `timeout` in seconds bounds each read and write."""
        return _client(base_url, timeout, verify=True)


def _client(base_url: str, timeout: float, *, verify: ssl.SSLContext | bool) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=base_url,
        verify=verify,
        timeout=httpx2.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        limits=POOL,
        # dsec processes talk to each other directly: a proxy for the outside is not for them
        trust_env=False,
    )
