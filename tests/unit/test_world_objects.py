"""The object stores of memory and files: the shared cases, and what is theirs alone."""

import asyncio
from pathlib import Path

import pytest
from dsec.world.files import FileObjects
from dsec.world.memory import MemoryObjects
from dsec.world.objects import ObjectStore, ObjectStoreError
from object_cases import (  # noqa: F401 - the shared cases, run here
    test_content_comes_back_with_its_etag,
    test_lists_are_complete_and_in_key_order,
    test_of_many_creators_one_wins,
    test_of_many_replacers_one_wins,
    test_parts_and_sizes,
)


@pytest.fixture(params=["memory", "files"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Return an empty bucket of each kind."""
    return MemoryObjects() if request.param == "memory" else FileObjects(tmp_path)


@pytest.fixture
def many() -> int:
    """Return a number of keys; these stores have no pages, and files are written through."""
    return 120


async def test_a_lost_answer_has_an_effect() -> None:
    """After ObjectStoreError the write may have happened."""
    store = MemoryObjects(fault=lambda op, _: "after" if op == "put_if_absent" else "")
    with pytest.raises(ObjectStoreError):
        await store.put_if_absent("k", b"v")
    assert (await store.get("k"))[0] == b"v"


def test_no_key_leaves_the_directory(tmp_path: Path) -> None:
    """Dots are names, not directions."""
    store = FileObjects(tmp_path / "bucket")
    asyncio.run(store.put("a/../../evil", b"x"))
    assert [path.name for path in tmp_path.iterdir()] == ["bucket"]
    assert [info.key for info in asyncio.run(store.list("a/"))] == ["a/../../evil"]
