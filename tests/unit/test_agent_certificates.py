"""A node's certificate counts only for the authority that signed it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from dsec.agent.tls import CertificateStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Authority:
    """A certificate authority that signs what it is asked to."""

    def __init__(self, path: Path) -> None:
        """Make a key and write the certificate to a file; all authorities share one name."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dsec-ca")])
        self.pem = self._certificate(self._name, self._key.public_key(), authority=True)
        path.write_text(self.pem)

    def sign(self, request_pem: str) -> str:
        """Return the certificate of a request."""
        request = x509.load_pem_x509_csr(request_pem.encode())
        key = request.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return self._certificate(request.subject, key, authority=False)

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool
    ) -> str:
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW)
            .not_valid_after(NOW + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("known", [True, False], ids=["the authority", "another one"])
def test_an_identity_of_an_earlier_installation_is_none(tmp_path: Path, known: bool) -> None:
    """After destroy and up the authority is another: the node joins anew, with its token."""
    first, other = Authority(tmp_path / "first"), Authority(tmp_path / "other")
    trusted = tmp_path / ("first" if known else "other")
    assert other.pem != first.pem
    (tmp_path / "tls").mkdir()
    store = CertificateStore(tmp_path / "tls", "node", [], trusted)
    store.store(first.sign(store.request_pem()), first.pem)
    assert store.valid(NOW) is known
