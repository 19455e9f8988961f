"""What every object store must do; imported by the tests of each implementation.

They need a fixture `objects` that gives an empty bucket, and `many`: more keys than one of its
answers lists.
"""

import asyncio

import pytest
from dsec.world.objects import NotFoundError, ObjectStore, ObjectStoreError, PreconditionError


async def test_content_comes_back_with_its_etag(objects: ObjectStore) -> None:
    """Put, get, overwrite and delete; what is absent is NotFoundError."""
    etag = await objects.put("a/b", b"one")
    assert await objects.get("a/b") == (b"one", etag)
    await objects.put("a/b", b"two")
    assert (await objects.get("a/b"))[0] == b"two"
    await objects.delete("a/b")
    await objects.delete("a/b")
    with pytest.raises(NotFoundError):
        await objects.get("a/b")


async def test_parts_and_sizes(objects: ObjectStore) -> None:
    """A part from within, one over the end, one behind it; what is absent is NotFoundError."""
    await objects.put("parts/1", b"0123456789")
    assert await objects.get_range("parts/1", 2, 3) == b"234"
    assert await objects.get_range("parts/1", 0, 1) == b"0"
    assert await objects.get_range("parts/1", 8, 100) == b"89"
    with pytest.raises(ObjectStoreError):
        await objects.get_range("parts/1", 10, 1)
    assert await objects.size("parts/1") == 10
    with pytest.raises(NotFoundError):
        await objects.get_range("parts/2", 0, 1)
    with pytest.raises(NotFoundError):
        await objects.size("parts/2")


async def test_of_many_creators_one_wins(objects: ObjectStore) -> None:
    """Twenty concurrent creates of one key: one success, and its content stays."""
    results = await asyncio.gather(
        *(objects.put_if_absent("log/1", f"writer {n}".encode()) for n in range(20)),
        return_exceptions=True,
    )
    winners = [n for n, result in enumerate(results) if isinstance(result, str)]
    assert len(winners) == 1
    assert all(isinstance(r, str | PreconditionError) for r in results)
    assert (await objects.get("log/1"))[0] == f"writer {winners[0]}".encode()


async def test_of_many_replacers_one_wins(objects: ObjectStore) -> None:
    """Twenty concurrent replacements of one version: one success."""
    etag = await objects.put("head", b"old")
    results = await asyncio.gather(
        *(objects.put_if_match("head", f"writer {n}".encode(), etag) for n in range(20)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, str) for result in results) == 1
    assert all(isinstance(r, str | PreconditionError) for r in results)
    with pytest.raises(PreconditionError):
        await objects.put_if_match("absent", b"x", etag)


async def test_lists_are_complete_and_in_key_order(objects: ObjectStore, many: int) -> None:
    """More keys than one page, odd names, a key that is another key's folder, and a start."""
    keys = [f"p/{n:05}" for n in range(many)] + ["p/a", "p/a/b", "p/a~", "p/ä b", "q/1"]
    for start in range(0, len(keys), 100):
        await asyncio.gather(*(objects.put(key, b"x") for key in keys[start : start + 100]))
    found = [info.key for info in await objects.list("p/")]
    assert found == sorted(keys[:-1], key=str.encode)
    late = keys[many - 2 :]
    assert [i.key for i in await objects.list("p/", start_after=late[0])][:2] == late[1:3]
    tens = keys[many - 10 : many]
    assert [i.key for i in await objects.list(tens[0][:-1])] == tens
    assert await objects.list("nothing/") == []
