"""What the gateways sign: certificates of agents, capabilities for single sandboxes.

One key pair, the dsec CA, is shared by all gateways; the Ed25519 key of capabilities and the key of
join tokens are derived from it, so that no second secret has to be kept and rolled.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dsec.world.tls import AGENT, RECORD_URI

LIFE = timedelta(hours=24)
"""Life of an agent's certificate; agents renew after two thirds."""
BACKDATE = timedelta(minutes=5)
CAPABILITY_LIFE = timedelta(minutes=10)


class RequestError(Exception):
    """A certificate request that is not signed; the message says why."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The dsec CA."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    capability_key: ed25519.Ed25519PrivateKey
    token_key: bytes

    @property
    def ca_pem(self) -> str:
        """The CA's certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def capability_public_pem(self) -> str:
        """The key with which agents verify capabilities."""
        return (
            self.capability_key.public_key()
            .public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            .decode()
        )

    def sign(
        self, csr_pem: str, node: str, now: datetime, *, record: str, address: str = ""
    ) -> tuple[str, datetime]:
        """Return a certificate for a node, and its end. Raises RequestError.

        The subject is made here: of the request only the key counts, and the IP address of the
        node's own endpoint (`address`) where it is named. It counts as long as the SandboxNode
        record with the uid `record` exists.
        """
        try:
            request = x509.load_pem_x509_csr(csr_pem.encode())
        except ValueError as problem:
            raise RequestError("the certificate request cannot be read") from problem
        if not request.is_signature_valid:
            raise RequestError("the certificate request is not signed by its own key")
        names: list[x509.GeneralName] = [
            x509.DNSName(node),
            x509.UniformResourceIdentifier(RECORD_URI + record),
        ]
        try:
            given = request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            # never a name of the control plane, never the address of another node
            names += [
                one
                for one in given.value
                if isinstance(one, x509.IPAddress) and str(one.value) == address
            ]
        except x509.ExtensionNotFound:
            pass
        end = now + LIFE
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, AGENT),
                x509.NameAttribute(NameOID.COMMON_NAME, node[:64]),
            ]
        )
        signed = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.certificate.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return signed.public_bytes(serialization.Encoding.PEM).decode(), end

    def capability(
        self, *, sandbox: str, project: str, tenant: str, verb: str, now: datetime
    ) -> str:
        """Return a signed capability for one verb on one sandbox."""
        claims = {
            "sandbox": sandbox,
            "project": project,
            "tenant": tenant,
            "verbs": [verb],
            "exp": (now + CAPABILITY_LIFE).timestamp(),
        }
        return jwt.encode(claims, self.capability_key, algorithm="EdDSA")

    def join_token(self, *, number: str, pool: str, until: datetime) -> str:
        """Return a token that admits one node once."""
        claims = {"jti": number, "pool": pool, "exp": until.timestamp(), "aud": "dsec-join"}
        return jwt.encode(claims, self.token_key, algorithm="HS256")

    def read_join_token(self, token: str, now: datetime) -> tuple[str, str] | None:
        """Return (number, pool) of a genuine token that has not ended, else None."""
        try:
            claims = jwt.decode(
                token,
                self.token_key,
                algorithms=["HS256"],
                audience="dsec-join",
                # the end is checked below, against the clock that was passed in
                options={"verify_exp": False, "require": ["exp", "jti"]},
            )
        except jwt.PyJWTError:
            return None
        if float(claims["exp"]) <= now.timestamp():
            return None
        return str(claims["jti"]), str(claims.get("pool", ""))


def load(ca_pem: str, key_pem: str) -> Authority:
    """Return the CA of PEM texts. Raises ValueError."""
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the CA's key must be an elliptic-curve key")  # noqa: TRY004 - a value of a file
    return _authority(x509.load_pem_x509_certificate(ca_pem.encode()), key)


def create(now: datetime, *, days: int = 3650) -> tuple[Authority, str]:
    """Return a new CA and its private key as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "dsec"),
            x509.NameAttribute(NameOID.COMMON_NAME, "dsec-ca"),
        ]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    return _authority(certificate, key), pem


def _authority(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Authority:
    secret = key.private_numbers().private_value.to_bytes(66, "big")

    def derive(purpose: bytes) -> bytes:
        """HKDF-SHA256 (RFC 5869) with the purpose as info."""
        return HKDF(hashes.SHA256(), 32, salt=b"dsec-gateway-v1", info=purpose).derive(secret)

    return Authority(
        certificate,
        key,
        ed25519.Ed25519PrivateKey.from_private_bytes(derive(b"capability")),
        derive(b"join-token"),
    )
