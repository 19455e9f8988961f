"""Keys of snapshots wrapped by AWS KMS, against a test double of the service."""

from collections.abc import Iterator

import boto3
import pytest
from dsec.snapshots.keys import KeyAwayError, KeyUnknownError, KmsKeys, fresh_key
from dsec.world.clock import system_randomness
from dsec.world.kms import AwsKms
from moto import mock_aws

PREFIX = "snapshots/team-a/"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A key of the service."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("kms", region_name="eu-central-1")
        yield str(client.create_key()["KeyMetadata"]["KeyId"])


async def test_a_data_key_opens_in_its_repository_alone(key: str) -> None:
    """Bound to the prefix by the encryption context; the wrapped form shows nothing."""
    source = KmsKeys(AwsKms("eu-central-1"), key)
    data, wrapped = await fresh_key(source, PREFIX, system_randomness())
    assert (wrapped.source, wrapped.key) == ("kms", key)
    assert await source.unwrap([wrapped], PREFIX) == data
    with pytest.raises(KeyUnknownError, match="InvalidCiphertext"):
        await source.unwrap([wrapped], "snapshots/team-b/")


async def test_refused_is_not_away(key: str) -> None:
    """A key that does not exist is said at once; a silent service may be asked again."""
    with pytest.raises(KeyUnknownError, match="encrypt with gone: NotFoundException"):
        await KmsKeys(AwsKms("eu-central-1"), "gone").wrap(b"k" * 32, PREFIX)
    away = KmsKeys(AwsKms("eu-central-1", "http://127.0.0.1:9"), key)
    with pytest.raises(KeyAwayError, match="EndpointConnectionError"):
        await away.wrap(b"k" * 32, PREFIX)
