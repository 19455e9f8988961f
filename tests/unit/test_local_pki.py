"""Certificates of the local cluster: made once, renewed in time, saying what they must."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID
from dsec.local.pki import Pair, Wanted, ensure_authority, ensure_certificate, kubeconfig

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SERVER = Wanted("api", "api", ("org",), names=("localhost", "10.0.0.1"), server=True)


@pytest.fixture
def authority(tmp_path: Path) -> Pair:
    """Return an authority made at NOW."""
    return ensure_authority(tmp_path, "ca", NOW)


def load(pair: Pair) -> x509.Certificate:
    """Parse a certificate."""
    return x509.load_pem_x509_certificate(pair.cert.read_bytes())


def test_a_certificate_says_who_and_where(tmp_path: Path, authority: Pair) -> None:
    """Subject, names and issuer are those asked for; keys are the owner's alone."""
    pair = ensure_certificate(tmp_path, authority, SERVER, NOW)
    certificate = load(pair)
    certificate.verify_directly_issued_by(load(authority))
    organization = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert [a.value for a in organization] == ["org"]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert pair.key.stat().st_mode & 0o077 == 0


def test_it_is_kept_while_it_lasts(tmp_path: Path, authority: Pair) -> None:
    """The same certificate is returned until a month before its end, then a new one."""
    first = load(ensure_certificate(tmp_path, authority, SERVER, NOW)).serial_number
    later = NOW + timedelta(days=334)
    assert load(ensure_certificate(tmp_path, authority, SERVER, later)).serial_number == first
    late = NOW + timedelta(days=336)
    assert load(ensure_certificate(tmp_path, authority, SERVER, late)).serial_number != first


def test_a_changed_name_makes_a_new_one(tmp_path: Path, authority: Pair) -> None:
    """A server that moved gets a certificate for its new address."""
    first = load(ensure_certificate(tmp_path, authority, SERVER, NOW)).serial_number
    moved = Wanted("api", "api", ("org",), names=("localhost", "10.0.0.2"), server=True)
    assert load(ensure_certificate(tmp_path, authority, moved, NOW)).serial_number != first


def test_another_authority_makes_a_new_one(tmp_path: Path, authority: Pair) -> None:
    """What an earlier authority signed is not used any more."""
    first = load(ensure_certificate(tmp_path, authority, SERVER, NOW)).serial_number
    authority.cert.unlink()
    renewed = ensure_authority(tmp_path, "ca", NOW)
    assert load(ensure_certificate(tmp_path, renewed, SERVER, NOW)).serial_number != first


def test_a_kubeconfig_can_be_carried(tmp_path: Path, authority: Pair) -> None:
    """It names no file: authority, certificate and key are inside."""
    client = ensure_certificate(tmp_path, authority, Wanted("me", "me"), NOW)
    config = yaml.safe_load(kubeconfig("https://10.0.0.1:6443", authority, client, "me", "c"))
    assert config["current-context"] == "c"
    assert str(tmp_path) not in yaml.safe_dump(config)
    assert config["clusters"][0]["cluster"]["server"] == "https://10.0.0.1:6443"
