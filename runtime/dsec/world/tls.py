"""TLS between dsec processes: who the peer is, and how its certificate reaches an application.

uvicorn does not hand the client certificate to the application. `PeerProtocol` is its HTTP/1.1
protocol with one addition: the certificate's names become a `Peer` in the ASGI scope, under
`scope["extensions"]["dsec.peer"]`. `peer_of` reads it back; in-process callers set the same key.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

PEER_KEY = "dsec.peer"
CONTROLLER = "dsec-controller"
GATEWAY = "dsec-gateway"
AGENT = "dsec-agent"
"""Names of roles: organisation, unit or common name of a process's client certificate."""
RECORD_URI = "dsec:node:"
"""Begins the URI in an agent's certificate that ends with the uid of its SandboxNode record."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, as its verified certificate names it.

    `name` is the common name (for an agent: its node's name), `units` the organisations and
    organisational units: Kubernetes reads groups from the one, other issuers use the other.
    `record` is the uid of the SandboxNode record that an agent's certificate was made for, empty
    where it names none, and None where there is no certificate: in one process.
    """

    name: str
    units: frozenset[str] = frozenset()
    record: str | None = None

    def acts_as(self, *roles: str) -> bool:
        """Say whether the certificate carries one of the roles, as unit or as common name.

        An agent's never carries another one: its common name was chosen by the node.
        """
        if AGENT in self.units:
            return AGENT in roles
        return any(role == self.name or role in self.units for role in roles)


def peer_from_certificate(certificate: Mapping[str, Any] | None) -> Peer | None:
    """Read a Peer from the result of `SSLSocket.getpeercert()`; None without a certificate."""
    if not certificate:
        return None
    name, units = "", set()
    for relative in certificate.get("subject", ()):
        for key, value in relative:
            if key == "commonName":
                name = value
            elif key in {"organizationName", "organizationalUnitName"}:
                units.add(value)
    record = ""
    for kind, value in certificate.get("subjectAltName", ()):
        if kind == "URI" and value.startswith(RECORD_URI):
            record = value.removeprefix(RECORD_URI)
    return Peer(name=name, units=frozenset(units), record=record)


def peer_of(scope: Mapping[str, Any]) -> Peer | None:
    """Return the verified peer of a request, or None when it showed no certificate."""
    return cast("Peer | None", (scope.get("extensions") or {}).get(PEER_KEY))


class PeerProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol that puts the peer of a TLS connection in each scope.

    Use as `uvicorn.Config(..., http=PeerProtocol)`.
    """

    def connection_made(self, transport: Any) -> None:
        """Wrap the application of this connection with its peer, read once after the handshake."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        peer = peer_from_certificate(tls.getpeercert()) if tls is not None else None
        if peer is None:
            return
        app = self.app

        async def with_peer(scope: Any, receive: Any, send: Any) -> None:
            scope.setdefault("extensions", {})[PEER_KEY] = peer
            await app(scope, receive, send)

        self.app = with_peer


def client_context(ca: Path | str | None) -> ssl.SSLContext:
    """Return a context that trusts one CA (file or PEM text), or the system's where None.

    The same context may be given a client certificate, and a newer one, at any time with
    `load_cert_chain`: connections made afterwards use it.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    if ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def server_context(
    certificate: Path, key: Path, client_ca: Path | str, *, required: bool = True
) -> ssl.SSLContext:
    """Return a server context that asks for client certificates of one CA.

    `required` False serves callers without a certificate too (they have no Peer then); a
    certificate of another CA is refused in both cases.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    _trust(context, client_ca)
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _trust(context: ssl.SSLContext, ca: Path | str) -> None:
    if isinstance(ca, Path):
        context.load_verify_locations(cafile=ca)
    else:
        context.load_verify_locations(cadata=ca)
