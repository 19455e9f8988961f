"""Keys and certificates of a local cluster: two authorities, servers, one client per user.

Everything is generated on this machine, lies under the state directory with mode 0600 and is
written anew when it comes near its end or when what it must say has changed. The authority of
etcd is not that of the cluster: a certificate of a user or a node must open no storage.
"""

import base64
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dsec.local.processes import write_atomically

AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 365
RENEW_DAYS = 30
"""Left validity below which a certificate is written anew."""

_BACKDATE = timedelta(minutes=5)
"""Clocks of containers and host may differ by a little."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a certificate must say. `names` are DNS names and IP addresses of a server."""

    name: str
    common_name: str
    organizations: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    server: bool = False
    client: bool = True


def ensure_authority(directory: Path, name: str, now: datetime | None = None) -> Pair:
    """Return a certificate authority, made where it is absent or within its last month."""
    pair = Pair(directory / f"{name}.crt", directory / f"{name}.key")
    now = now or datetime.now(UTC)
    if _lasts(pair.cert, now) and pair.key.exists():
        return pair
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"dsec local {name}")])
    builder = _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    _store(pair, builder.sign(key, hashes.SHA256()), key)
    return pair


def ensure_certificate(
    directory: Path, authority: Pair, wanted: Wanted, now: datetime | None = None
) -> Pair:
    """Return a certificate signed by the authority; the one on disk if it still says all that."""
    pair = Pair(directory / f"{wanted.name}.crt", directory / f"{wanted.name}.key")
    now = now or datetime.now(UTC)
    issuer = x509.load_pem_x509_certificate(authority.cert.read_bytes())
    if pair.key.exists() and _lasts(pair.cert, now) and _says(pair.cert, issuer, wanted):
        return pair
    issuer_key = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{authority.key} is no elliptic-curve key")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(wanted), issuer.subject, key.public_key(), now, CERTIFICATE_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(authority=False), critical=True)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH] if wanted.server else []
    uses += [ExtendedKeyUsageOID.CLIENT_AUTH] if wanted.client else []
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    if wanted.names:
        builder = builder.add_extension(_alternatives(wanted.names), critical=False)
    _store(pair, builder.sign(issuer_key, hashes.SHA256()), key)
    return pair


def ensure_signing_key(directory: Path, name: str) -> Pair:
    """Return an RSA key pair (`cert` is the public half) that signs service-account tokens."""
    pair = Pair(directory / f"{name}.pub", directory / f"{name}.key")
    if not (pair.cert.exists() and pair.key.exists()):
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        write_atomically(pair.key, _private(key))
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        write_atomically(pair.cert, public.decode())
    return pair


def kubeconfig(server: str, authority: Pair, client: Pair, user: str, cluster: str) -> str:
    """Return a kubeconfig with everything embedded, so that the file can be carried."""

    def data(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    context = {"cluster": cluster, "user": user}
    credentials = {
        "client-certificate-data": data(client.cert),
        "client-key-data": data(client.key),
    }
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": cluster,
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": data(authority.cert),
                    },
                }
            ],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": cluster, "context": context}],
            "current-context": cluster,
        },
        sort_keys=False,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + timedelta(days=days))
    )


def _subject(wanted: Wanted) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in wanted.organizations]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, wanted.common_name)])


def _alternatives(names: Sequence[str]) -> x509.SubjectAlternativeName:
    entries: list[x509.GeneralName] = []
    for name in names:
        try:
            entries.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            entries.append(x509.DNSName(name))
    return x509.SubjectAlternativeName(entries)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _lasts(path: Path, now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return certificate.not_valid_after_utc - now > timedelta(days=RENEW_DAYS)


def _says(path: Path, issuer: x509.Certificate, wanted: Wanted) -> bool:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # noqa: BLE001 - any failure to verify means: not ours any more
        return False
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = extension.value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    return certificate.subject == _subject(wanted) and names == _alternatives(wanted.names)


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()


def _store(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.cert.parent.mkdir(parents=True, exist_ok=True)
    os.chmod(pair.cert.parent, 0o700)  # noqa: PTH101 - the mode is the point of this line
    write_atomically(pair.key, _private(key))
    write_atomically(pair.cert, certificate.public_bytes(serialization.Encoding.PEM).decode())
