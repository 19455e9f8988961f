"""The node's key and certificate: made here, signed by the control plane, renewed in time."""

import ipaddress
import ssl
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dsec.agent.state import replace_durably
from dsec.world.tls import AGENT, client_context, server_context

RENEW_AT = 2 / 3
"""A certificate is renewed after this part of its life: one outage of a third is survived."""


class CertificateStore:
    """Key, certificate and CA of one node below its state directory. The key never leaves it."""

    def __init__(
        self, directory: Path, node: str, hosts: list[str], trusted: Path | None = None
    ) -> None:
        """`hosts` are the addresses that the node is reached at, for the certificate's names.

        `trusted` is the CA that the gateway is verified with: what another one signed, before the
        installation was made anew, is no identity here.
        """
        self._node = node
        self._trusted = trusted
        self._hosts = hosts
        self.key_path = directory / "node.key"
        self.certificate_path = directory / "node.crt"
        self.ca_path = directory / "ca.crt"

    def request_pem(self) -> str:
        """Return a certificate request for the node's key, which is made at the first call.

        Subject: CN is the node's name, OU is dsec-agent; names: the node and its addresses.
        """
        names: list[x509.GeneralName] = [x509.DNSName(self._node)]
        for host in self._hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(
                x509.Name(
                    [
                        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, AGENT),
                        x509.NameAttribute(NameOID.COMMON_NAME, self._node[:64]),
                    ]
                )
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key(), hashes.SHA256())
        )
        return request.public_bytes(serialization.Encoding.PEM).decode()

    def store(self, certificate_pem: str, ca_pem: str) -> None:
        """Keep what the control plane signed. Raises ValueError when it is for another key."""
        certificate = x509.load_pem_x509_certificate(certificate_pem.encode())
        if _public(certificate.public_key()) != _public(self._key().public_key()):
            raise ValueError("the certificate is not for this node's key")
        replace_durably(self.ca_path, ca_pem.encode())
        replace_durably(self.certificate_path, certificate_pem.encode())

    def discard(self) -> None:
        """Remove the certificate: it counts no more. The key stays. Idempotent."""
        self.certificate_path.unlink(missing_ok=True)

    def valid(self, now: datetime) -> bool:
        """Say whether there is a certificate that servers still accept."""
        certificate = self._certificate()
        return certificate is not None and now < certificate.not_valid_after_utc

    def due(self, now: datetime) -> bool:
        """Say whether a new certificate should be asked for: late in its life, or moved."""
        certificate = self._certificate()
        if certificate is None or not self._names(certificate):
            return True
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return now >= start + (end - start) * RENEW_AT

    def client(self, ca: Path | None, now: datetime) -> ssl.SSLContext:
        """Return a context for calls to the gateway, with the certificate while it is valid.

        An expired one would be refused in the handshake, where a token could still help.
        """
        context = client_context(ca)
        if self.valid(now):
            self.load_into(context)
        return context

    def server(self) -> ssl.SSLContext:
        """Return a context that serves callers with a certificate of the control plane's CA."""
        return server_context(self.certificate_path, self.key_path, self.ca_path)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Let new connections of a context use the present certificate, if there is one."""
        if self.certificate_path.exists():
            context.load_cert_chain(self.certificate_path, self.key_path)

    def _names(self, certificate: x509.Certificate) -> bool:
        """Say whether a certificate names all addresses that the node has now."""
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return False
        told = {str(one.value) for one in names.value if isinstance(one, x509.IPAddress)}
        wanted = {name for name in self._hosts if name[:1].isdigit() or ":" in name}
        return wanted <= told

    def _certificate(self) -> x509.Certificate | None:
        try:
            certificate = x509.load_pem_x509_certificate(self.certificate_path.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return certificate if self._issued(certificate) else None

    def _issued(self, certificate: x509.Certificate) -> bool:
        """Say whether the trusted CA signed it; true where none is named or can be read."""
        if self._trusted is None:
            return True
        try:
            authorities = x509.load_pem_x509_certificates(self._trusted.read_bytes())
        except (OSError, ValueError):
            return True
        for authority in authorities:
            try:
                certificate.verify_directly_issued_by(authority)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return True
        return False

    def _key(self) -> ec.EllipticCurvePrivateKey:
        if self.key_path.exists():
            key = serialization.load_pem_private_key(self.key_path.read_bytes(), None)
            if isinstance(key, ec.EllipticCurvePrivateKey):
                return key
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        replace_durably(self.key_path, pem)
        return key


def _public(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return b""
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
