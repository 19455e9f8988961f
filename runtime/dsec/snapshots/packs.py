"""Packs: the objects that hold blobs. Immutable, named by the hash of their bytes.

Layout: sealed frames, then the sealed footer (the table of this pack alone, so that an index can
be made again from packs), then the trailer: salt, length of the footer, magic. A frame is one or
several blobs in a row, compressed where that makes it smaller.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dsec.snapshots.index import PackName, Table, decode, encode
from dsec.snapshots.sealing import (
    SALT_BYTES,
    TAG_BYTES,
    Buffer,
    Keys,
    SnapshotDamagedError,
    cipher,
    name_object,
    nonce,
    unseal,
)
from dsec.world.heap import buffer

MAGIC = b"dsecpck1"
TRAILER = struct.Struct(f"<{SALT_BYTES}sI{len(MAGIC)}s")
FRAME, FOOTER = b"frame", b"footer"
FIRST_READ = 64 << 10
"""Read from the end of a pack whose footer is wanted: it holds most footers whole."""

Blob = tuple[bytes, int, int]
"""Id, start in the frame, length."""


@dataclass(frozen=True, slots=True)
class Pack:
    """A finished pack; `table` is its rows for the index."""

    name: bytes
    data: bytes
    table: Table


class PackBuilder:
    """Fills one pack in a buffer that is used again for the next one. For one thread at a time."""

    def __init__(self, keys: Keys, size: int, level: int) -> None:
        self._keys = keys
        self._size = size
        self._compressor = zstandard.ZstdCompressor(level=level, write_content_size=True)
        self._view: memoryview | None = None
        self.empty = True

    def begin(self, salt: bytes) -> None:
        """Start a pack with a fresh random salt."""
        if self._view is None:
            self._view = buffer(self._size)
        self._buffer = self._view
        self._salt = salt
        self._cipher = cipher(self._keys, salt)
        self._end = 0
        self._frames: list[tuple[int, int, int, int]] = []
        self._ids: list[bytes] = []
        self._places: list[tuple[int, int, int]] = []
        self.empty = False

    def compress(self, raw: Buffer) -> Buffer:
        """Return the smaller of the frame and its compressed form."""
        small = self._compressor.compress(raw)
        return small if len(small) < len(raw) else raw

    def fits(self, data: Buffer) -> bool:
        """Return whether a frame goes into the pack that was begun."""
        return self._end + len(data) + TAG_BYTES <= self._size

    def add(self, data: Buffer, raw: int, blobs: Sequence[Blob]) -> None:
        """Seal one frame, as `compress` gave it; `raw` is its length before."""
        stored = len(data) + TAG_BYTES
        place = self._buffer[self._end : self._end + stored]
        self._cipher.encrypt_into(nonce(self._end), data, FRAME, place)
        for blob, start, length in blobs:
            self._ids.append(blob)
            self._places.append((len(self._frames), start, length))
        self._frames.append((0, self._end, stored, raw))
        self._end += stored

    def finish(self) -> Pack:
        """Return the pack that was begun."""
        table = Table(
            [],
            np.array(self._frames, np.uint32).reshape(-1, 4),
            b"".join(self._ids),
            np.array(self._places, np.uint32).reshape(-1, 3),
        )
        footer = self._cipher.encrypt(nonce(self._end), encode(table), FOOTER)
        data = b"".join(
            (self._buffer[: self._end], footer, TRAILER.pack(self._salt, len(footer), MAGIC))
        )
        name = bytes.fromhex(name_object(data))
        table.packs = [PackName(name, self._salt, len(data))]
        self.empty = True
        return Pack(name, data, table)


def open_frame(opener: AESGCM, offset: int, sealed: Buffer, raw: int, what: str) -> bytes:
    """Return a frame's plain bytes. Raises SnapshotDamagedError."""
    data = unseal(opener, offset, sealed, FRAME, what)
    if len(data) == raw:
        return data
    try:
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=raw)
    except zstandard.ZstdError as problem:
        raise SnapshotDamagedError(f"{what} is damaged: {problem}") from problem
    if len(plain) != raw:
        raise SnapshotDamagedError(f"{what} is damaged: {len(plain)} bytes instead of {raw}")
    return plain


def footer_length(tail: bytes, what: str) -> int:
    """Return how many bytes of a pack's end are footer and trailer. Raises SnapshotDamagedError."""
    if len(tail) < TRAILER.size:
        raise SnapshotDamagedError(f"{what} is too short for a pack")
    _, length, magic = TRAILER.unpack(tail[-TRAILER.size :])
    if magic != MAGIC:
        raise SnapshotDamagedError(f"{what} does not end like a pack")
    return int(length) + TRAILER.size


def read_footer(keys: Keys, name: bytes, size: int, tail: bytes) -> Table:
    """Return the table of a pack from its last bytes, at least `footer_length` of them.

    Raises SnapshotDamagedError.
    """
    what = f"pack {name.hex()}"
    length = footer_length(tail, what)
    salt, _, _ = TRAILER.unpack(tail[-TRAILER.size :])
    if len(tail) < length:
        raise SnapshotDamagedError(f"{what} is shorter than its footer says")
    sealed = tail[-length : -TRAILER.size]
    table = decode(unseal(cipher(keys, salt), size - length, sealed, FOOTER, what), what)
    table.packs = [PackName(name, salt, size)]
    return table
