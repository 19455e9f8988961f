"""Several files of a scene as one body: a line of JSON that lists them, then their contents.

A scene has about ten small files; one request for all of them costs one look at the fence.
"""

from collections.abc import Mapping
from itertools import accumulate

from pydantic import Field, ValidationError

from dsec.api.base import WireModel

FILES_MOST = 256
"""Files in one body: each is stored as an object of its own."""


class SceneError(ValueError):
    """The bytes are no such body; the message says what is wrong with them."""


class SceneFile(WireModel):
    """One file: its path in the scene, and its length in bytes."""

    path: str
    size: int = Field(ge=0)


class SceneIndex(WireModel):
    """The first line of the body: its files in the order of their contents."""

    files: list[SceneFile] = Field(min_length=1, max_length=FILES_MOST)


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return files, at most FILES_MOST, as one body."""
    listed = [SceneFile(path=path, size=len(content)) for path, content in files.items()]
    head = SceneIndex(files=listed).model_dump_json(by_alias=True).encode()
    return b"\n".join((head, b"".join(files.values())))


def unpack(body: bytes) -> dict[str, bytes]:
    """Return the files of a body, in order. Raises SceneError."""
    head, newline, contents = body.partition(b"\n")
    if not newline:
        raise SceneError("has no line that lists its files")
    try:
        listed = SceneIndex.model_validate_json(head).files
    except ValidationError as problem:
        raise SceneError(f"starts with no list of files: {problem.errors()[0]['msg']}") from None
    ends = list(accumulate(one.size for one in listed))
    if ends[-1] != len(contents):
        raise SceneError(f"lists {ends[-1]} bytes of files, and holds {len(contents)}")
    return {one.path: contents[end - one.size : end] for one, end in zip(listed, ends, strict=True)}
