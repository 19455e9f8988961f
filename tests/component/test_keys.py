"""Keys follow from the seed alone: equal seed, equal bytes; and they are good certificates."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from dsec_components.keys import LEAF_PERIOD, Keys, Leaf

START = datetime(2026, 1, 1, tzinfo=UTC)
LEAF = Leaf("dsec-gateway", "dsec-gateway", ("dsec-gateway.x.svc", "localhost"), ("10.0.0.1",))


def keys(seed: bytes = b"s" * 32, days: float = 0) -> Keys:
    """Return the keys of a seed, some days after its birth."""
    return Keys(seed, START, now=START + timedelta(days=days))


def test_equal_seeds_give_equal_bytes_for_a_whole_period() -> None:
    """A second up, weeks later, changes nothing."""
    early, late = keys(days=0), keys(days=LEAF_PERIOD.days - 1)
    assert early.ca == late.ca
    assert early.leaf(LEAF) == late.leaf(LEAF)
    assert early.token("internal") == late.token("internal")


def test_leaves_are_renewed_by_the_period_and_the_authority_is_not() -> None:
    """The first up of a period issues a leaf that outlives the next period."""
    now, later = keys(), keys(days=LEAF_PERIOD.days)
    assert now.ca == later.ca
    assert now.leaf(LEAF) != later.leaf(LEAF)
    renewed = x509.load_pem_x509_certificate(later.leaf(LEAF)[0].encode())
    assert renewed.not_valid_after_utc - (START + LEAF_PERIOD) > LEAF_PERIOD


def test_another_seed_shares_nothing() -> None:
    """Two installations trust nothing of each other."""
    one, other = keys(), keys(b"t" * 32)
    assert one.ca_key != other.ca_key
    assert one.token("internal") != other.token("internal")
    assert one.token("internal") != one.token("api-key")


def test_the_authority_verifies_its_leaves(tmp_path: Path) -> None:
    """OpenSSL takes the chain, and the key belongs to the certificate."""
    made = keys()
    certificate, key = made.leaf(LEAF)
    for name, text in (("ca", made.ca), ("crt", certificate), ("key", key)):
        (tmp_path / name).write_text(text)
    ssl.create_default_context(cafile=tmp_path / "ca").load_cert_chain(
        tmp_path / "crt", tmp_path / "key"
    )
    loaded = x509.load_pem_x509_certificate(certificate.encode())
    authority = x509.load_pem_x509_certificate(made.ca.encode())
    loaded.verify_directly_issued_by(authority)
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == list(LEAF.dns_names)
    public = load_pem_private_key(key.encode(), None).public_key()
    assert public == loaded.public_key()


@pytest.mark.parametrize("names", [("a.svc",), ("a.svc", "b.svc")])
def test_other_names_are_another_certificate_under_the_same_key(names: tuple[str, ...]) -> None:
    """Serial numbers never repeat with another content (RFC 5280)."""
    made = keys()
    changed = made.leaf(Leaf("dsec-gateway", "dsec-gateway", names))
    assert changed[1] == made.leaf(LEAF)[1]
    one, other = (
        x509.load_pem_x509_certificate(c.encode()) for c in (changed[0], made.leaf(LEAF)[0])
    )
    assert one.serial_number != other.serial_number
