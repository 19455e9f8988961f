"""The framing of exec and logs: typed, length-prefixed frames in one HTTP body.

A frame is `type:u8 length:u32 (big endian) payload`. A request body starts with one REQUEST frame
and may go on with STDIN frames; an empty STDIN frame is the end of input. A response body is
STDOUT and STDERR frames and then exactly one END frame. A stream that stops without END has an
unknown outcome and must never be read as success.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from pydantic import Field

from dsec.api.base import WireModel

HEADER = struct.Struct(">BI")
MAX_PAYLOAD = 1 << 20
"""Largest payload, in bytes: a reader never has to hold more than this for one frame."""
MEDIA_TYPE = "application/vnd.dsec.frames"


class FrameError(ValueError):
    """The bytes are not frames: an unknown type or a payload that is too long."""


class FrameType(IntEnum):
    """What a frame carries."""

    STDIN = 0
    """Bytes for standard input; empty: end of input."""
    STDOUT = 1
    STDERR = 2
    END = 3
    """JSON ExecEnd: the outcome is known."""
    REQUEST = 4
    """JSON ExecCall: what to run."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame."""

    type: FrameType
    payload: bytes


class ExecCall(WireModel):
    """What to run in a live sandbox."""

    command: list[str] = Field(min_length=1, description="argv, no shell.")
    env: dict[str, str] = {}
    workdir: str = ""
    user: str = ""
    timeout: float | None = Field(default=None, gt=0, description="Seconds; then all of it dies.")
    output_cap: int = Field(
        default=1 << 20, ge=0, description="Bytes sent per stream; the rest is counted as dropped."
    )


class ExecEnd(WireModel):
    """How an exec ended. `reason` is empty for an ordinary exit."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    dropped_bytes: int = 0


def encode(kind: FrameType, payload: bytes = b"") -> bytes:
    """Return one frame. Raises FrameError when the payload exceeds MAX_PAYLOAD."""
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"payload of {len(payload)} bytes; at most {MAX_PAYLOAD} are allowed")
    return HEADER.pack(kind, len(payload)) + payload


def encode_all(kind: FrameType, data: bytes) -> Iterator[bytes]:
    """Yield data of any length as frames; nothing for empty data."""
    for start in range(0, len(data), MAX_PAYLOAD):
        yield encode(kind, data[start : start + MAX_PAYLOAD])


def encode_request(call: ExecCall, stdin: bytes | None = b"") -> bytes:
    """Return a whole request body: the call, its input and the end of input.

    With stdin None the input stays open: the caller sends STDIN frames itself.
    """
    body = encode(FrameType.REQUEST, call.model_dump_json(by_alias=True).encode())
    if stdin is None:
        return body
    return body + b"".join(encode_all(FrameType.STDIN, stdin)) + encode(FrameType.STDIN)


def encode_end(end: ExecEnd) -> bytes:
    """Return the END frame."""
    return encode(FrameType.END, end.model_dump_json(by_alias=True).encode())


class Decoder:
    """Takes bytes in pieces of any size and gives frames; holds at most one partial frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now.

        Raises FrameError on a malformed header, with the offending value; the decoder is of no
        use afterwards.
        """
        self._buffer += data
        frames: list[Frame] = []
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            kind, length = HEADER.unpack_from(self._buffer, start)
            if kind > FrameType.REQUEST:
                raise FrameError(f"frame type {kind}; 0 to {FrameType.REQUEST} are allowed")
            if length > MAX_PAYLOAD:
                raise FrameError(f"frame length {length}; at most {MAX_PAYLOAD} is allowed")
            end = start + HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(Frame(FrameType(kind), bytes(self._buffer[start + HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame: not 0 at the end of a stream means it was cut."""
        return len(self._buffer)
