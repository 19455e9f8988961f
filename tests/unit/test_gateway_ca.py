"""What the gateway signs for agents, whatever they ask for, and how long it counts."""

import ipaddress
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from dsec.gateway import ca
from dsec.gateway.standing import stands
from dsec.world.tls import AGENT, Peer

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
        pem, _ = authority.sign(request, "n1", NOW, record="uid-1", address=address)
        certificate = x509.load_pem_x509_certificate(pem.encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["n1"]
        assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["dsec:node:uid-1"]
        return [str(one) for one in names.get_values_for_type(x509.IPAddress)]

    assert signed("10.0.0.7") == ["10.0.0.7"]
    assert signed("10.0.0.9") == []
    assert signed("") == []


@pytest.mark.parametrize(
    ("named", "metadata", "counts"),
    [
        ("u1", {"uid": "u1"}, True),
        ("u1", {"uid": "u2"}, False),
        ("u1", None, False),
        ("u1", {"uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
        ("", {"uid": "u2"}, True),
        ("", None, False),
        (None, None, True),
    ],
    ids=["its own", "joined anew", "removed", "going", "older, known", "older, removed", "process"],
)
def test_a_certificate_counts_as_long_as_its_record(
    named: str | None, metadata: dict[str, Any] | None, counts: bool
) -> None:
    """One that was made for a record that is no more is revoked; older ones name none."""
    peer = Peer("n1", frozenset({AGENT}), named)
    assert stands(peer, None if metadata is None else {"metadata": metadata}) is counts
