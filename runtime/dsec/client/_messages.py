"""What the clients send and read: documents, requests, answers; and the names of their types."""

import json
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic import ValidationError

from dsec.api.base import WireModel
from dsec.api.frames import (
    ExecCall,
    ExecEnd,
    Frame,
    FrameType,
    encode,
    encode_all,
    encode_request,
)
from dsec.api.sandbox import SandboxStatus
from dsec.api.wire import KeyedAnswer, KeyedCreate
from dsec.client.errors import InvalidError, NotFoundError, ServerError

Record = dict[str, Any]
"""A record as JSON, with the field names of `kubectl explain`."""

# named here because the client's method `list` hides the type inside the class
Records = list[Record]
Statuses = list[SandboxStatus]
Creates = list[KeyedCreate]
Answers = list[KeyedAnswer]

Document = str | bytes | Path | Record
"""A task document: a path, its text (YAML or JSON, any dialect), or a mapping."""

T = TypeVar("T", bound=WireModel)


def document_bytes(document: Document) -> bytes:
    """Return the bytes to send. Raises NotFoundError where a given file cannot be read."""
    if isinstance(document, Path):
        try:
            return document.read_bytes()
        except OSError as error:
            raise NotFoundError(f"{document}: {error.strerror}", code="not-found") from error
    if isinstance(document, dict):
        return json.dumps(document).encode()
    return document.encode() if isinstance(document, str) else document


def end_of(frame: Frame) -> ExecEnd:
    """Return the outcome that an END frame carries."""
    return parse(ExecEnd, frame.payload)


async def request_stream(call: ExecCall, stdin: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the request body of an exec: the call, then its input as it comes, then its end."""
    yield encode_request(call, None)
    async for data in stdin:
        for frame in encode_all(FrameType.STDIN, data):
            yield frame
    yield encode(FrameType.STDIN)


def checked(model: type[T], **values: Any) -> T:
    """Build a request. Raises InvalidError naming every field that is not valid."""
    try:
        return model(**values)
    except ValidationError as error:
        details = [
            {
                "path": ".".join(map(str, one["loc"])),
                "value": repr(one["input"])[:80],
                "message": one["msg"],
            }
            for one in error.errors()
        ]
        raise InvalidError(f"not a valid {model.__name__}", details=details) from error


def parse(model: type[T], content: bytes | Record) -> T:
    """Read an answer. Raises ServerError where it is not what it should be."""
    try:
        if isinstance(content, bytes):
            return model.model_validate_json(content)
        return model.model_validate(content)
    except ValidationError as error:
        raise ServerError(f"the server's answer is no {model.__name__}: {error}") from error


def status_of(line: bytes) -> SandboxStatus:
    """Read one line of results."""
    return parse(SandboxStatus, line)


def object_of(response: httpx2.Response) -> Record:
    """Return the JSON object of an answer. Raises ServerError where it is none."""
    try:
        data = response.json()
    except ValueError as error:
        raise ServerError(f"the server's answer is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ServerError("the server's answer is no JSON object")
    return data


def items_of(response: httpx2.Response) -> Records:
    """Return the list of an answer. Raises ServerError where it has none."""
    items = object_of(response).get("items")
    if not isinstance(items, list):
        raise ServerError("the server's answer has no list of items")
    return items
