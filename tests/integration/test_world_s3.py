"""Both S3 object stores against a real server: the shared cases, and the probe of conditions."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from dsec.world.objects import ObjectStore, ObjectStoreError
from dsec.world.s3 import S3Config, S3Objects
from dsec.world.s3bytes import S3Bytes
from object_cases import (  # noqa: F401 - the shared cases, run here
    test_content_comes_back_with_its_etag,
    test_lists_are_complete_and_in_key_order,
    test_of_many_creators_one_wins,
    test_of_many_replacers_one_wins,
    test_parts_and_sizes,
)
from ports import free_ports
from s3_server import s3_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Config]:
    """Return a running server's only bucket."""
    with s3_server(tmp_path_factory.mktemp("s3")) as config:
        yield config


@pytest.fixture(params=["boto3", "obstore"])
async def objects(server: S3Config, request: pytest.FixtureRequest) -> AsyncIterator[ObjectStore]:
    """Return the bucket, empty, through each client."""
    store = S3Objects(server)
    for attempt in range(150):
        try:
            await store.ensure_bucket()
            break
        except ObjectStoreError:
            if attempt == 149:
                raise
            await asyncio.sleep(0.2)
    for info in await store.list(""):
        await store.delete(info.key)
    yield store if request.param == "boto3" else S3Bytes(server)
    store.close()


@pytest.fixture
def many() -> int:
    """Return a number of keys above a page of a thousand."""
    return 1100


@pytest.mark.parametrize("objects", ["boto3"], indirect=True)
async def test_the_probe_trusts_a_server_that_keeps_conditions(objects: S3Objects) -> None:
    """The server passes, and nothing of the probe is left."""
    await objects.probe()
    assert await objects.list("probe/") == []


@pytest.mark.parametrize("objects", ["boto3"], indirect=True)
async def test_the_probe_refuses_a_server_that_ignores_conditions(objects: S3Objects) -> None:
    """A store without conditions would fence nothing: it is refused at the start."""
    put = objects._put

    async def careless(key: str, data: bytes, **_: str) -> str:
        return await put(key, data)

    objects._put = careless  # type: ignore[method-assign]
    with pytest.raises(ObjectStoreError, match="ignores If-None-Match"):
        await objects.probe()


@pytest.mark.parametrize("kind", [S3Objects, S3Bytes])
async def test_an_absent_server_is_an_unknown_outcome(kind: type[S3Objects | S3Bytes]) -> None:
    """A server that is not there raises ObjectStoreError, never a library's own error."""
    (port,) = free_ports(1)
    store = kind(S3Config("dsec", f"http://127.0.0.1:{port}", "us-east-1", "k", "s"))
    with pytest.raises(ObjectStoreError):
        await store.get("x")
    with pytest.raises(ObjectStoreError):
        await store.list("x/")


@pytest.mark.parametrize("objects", ["boto3"], indirect=True)
async def test_a_signed_url_does_one_thing_without_a_credential(objects: S3Objects) -> None:
    """A put creates and replaces nothing, not even without the header; a get reads a part."""
    put, headers = await objects.presign("PUT", "signed/key", 60)
    get, _ = await objects.presign("GET", "signed/key", 60)
    async with httpx2.AsyncClient(trust_env=False) as client:
        assert (await client.put(put, content=b"0123456789")).status_code == 403
        first = await client.put(put, content=b"0123456789", headers=headers)
        assert first.status_code == 200, first.text
        assert (await client.put(put, content=b"other", headers=headers)).status_code == 412
        part = await client.get(get, headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content) == (206, b"234")
        beyond = await client.get(get, headers={"Range": "bytes=10-12"})
        assert beyond.status_code == 416
        other = get.replace("signed/key", "other/key")
        assert (await client.get(other)).status_code == 403
    assert (await objects.get("signed/key"))[0] == b"0123456789"
