"""What the gateway signs for agents: their own key and address, whatever else they ask for."""

import ipaddress
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from dsec.gateway import ca

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_only_the_address_of_the_endpoint_is_signed() -> None:
    """A request that names addresses of other machines gets none of them."""
    authority, _ = ca.create(NOW)
    asked = ["10.0.0.7", "10.0.0.1", "127.0.0.1"]
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(a)) for a in asked]),
            critical=False,
        )
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        .public_bytes(Encoding.PEM)
        .decode()
    )

    def signed(address: str) -> list[str]:
        pem, _ = authority.sign(request, "n1", NOW, address=address)
        certificate = x509.load_pem_x509_certificate(pem.encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["n1"]
        return [str(one) for one in names.get_values_for_type(x509.IPAddress)]

    assert signed("10.0.0.7") == ["10.0.0.7"]
    assert signed("10.0.0.9") == []
    assert signed("") == []
