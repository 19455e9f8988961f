"""Which blob lies where: tables of packs, frames and blobs, and all of them together.

A table is what one pack's footer holds, and what one object below `index/` holds of several packs.
`Index` is all tables of a repository as sorted columns: about 60 bytes for each blob.
"""

import struct
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import zstandard

from dsec.snapshots.sealing import ID_BYTES, SALT_BYTES, SnapshotDamagedError

HEADER = struct.Struct("<4sIII")
MAGIC = b"dix1"
LEVEL = 3
LARGEST = 1 << 31
"""A table that claims to be larger was not written by us."""

Numbers = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class PackName:
    """A stored pack: hash of its bytes, salt of its key, size in bytes."""

    name: bytes
    salt: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Where:
    """The place of one blob: a slice of a frame of a pack."""

    pack: PackName
    offset: int
    stored: int
    raw: int
    start: int
    length: int


@dataclass(slots=True)
class Table:
    """Rows of packs, of frames (pack, offset, stored, raw) and of blobs (id, frame, start, length).

    `frames` has four columns, `places` three; `ids` is the blobs' ids in a row.
    """

    packs: list[PackName] = field(default_factory=list)
    frames: Numbers = field(default_factory=lambda: np.zeros((0, 4), np.uint32))
    ids: bytes = b""
    places: Numbers = field(default_factory=lambda: np.zeros((0, 3), np.uint32))

    def blob_ids(self) -> list[bytes]:
        """Return the ids of the blobs, in order."""
        return [self.ids[at : at + ID_BYTES] for at in range(0, len(self.ids), ID_BYTES)]


def joined(tables: Sequence[Table]) -> Table:
    """Return one table with the rows of all."""
    packs: list[PackName] = []
    frames, places, row = [], [], 0
    for table in tables:
        frames.append(table.frames + np.array([len(packs), 0, 0, 0], np.uint32))
        places.append(table.places + np.array([row, 0, 0], np.uint32))
        packs += table.packs
        row += len(table.frames)
    return Table(
        packs,
        np.concatenate(frames) if frames else np.zeros((0, 4), np.uint32),
        b"".join(table.ids for table in tables),
        np.concatenate(places) if places else np.zeros((0, 3), np.uint32),
    )


def without(table: Table, packs: Collection[bytes]) -> Table:
    """Return a table without the rows of some packs, and with each pack and frame once."""
    seen: set[bytes] = set(packs)
    keep = np.zeros(len(table.packs), bool)
    for row, pack in enumerate(table.packs):
        keep[row] = pack.name not in seen
        seen.add(pack.name)
    frames = keep[table.frames[:, 0]] if len(table.frames) else np.zeros(0, bool)
    blobs = frames[table.places[:, 0]] if len(table.places) else np.zeros(0, bool)
    renamed = np.cumsum(keep, dtype=np.uint32) - np.uint32(1)
    moved = np.cumsum(frames, dtype=np.uint32) - np.uint32(1)
    rows, places = table.frames[frames].copy(), table.places[blobs].copy()
    if len(rows):
        rows[:, 0] = renamed[rows[:, 0]]
    if len(places):
        places[:, 0] = moved[places[:, 0]]
    ids = np.frombuffer(table.ids, np.uint8).reshape(-1, ID_BYTES)[blobs].tobytes()
    return Table(
        [one for one, kept in zip(table.packs, keep, strict=True) if kept], rows, ids, places
    )


def encode(table: Table) -> bytes:
    """Return the table as bytes, column by column, compressed."""
    plain = b"".join(
        (
            HEADER.pack(MAGIC, len(table.packs), len(table.frames), len(table.places)),
            *(pack.name + pack.salt + struct.pack("<I", pack.size) for pack in table.packs),
            np.ascontiguousarray(table.frames.T).tobytes(),
            np.ascontiguousarray(table.places.T).tobytes(),
            table.ids,
        )
    )
    return zstandard.ZstdCompressor(level=LEVEL).compress(plain)


def decode(data: bytes, what: str) -> Table:
    """Return the table of `encode`. Raises SnapshotDamagedError, which names `what`."""
    try:
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=LARGEST)
        magic, packs, frames, blobs = HEADER.unpack_from(plain)
        wide = ID_BYTES + SALT_BYTES + 4
        sizes = (packs * wide, frames * 16, blobs * 12, blobs * ID_BYTES)
        if magic != MAGIC or len(plain) != HEADER.size + sum(sizes):
            raise SnapshotDamagedError(f"{what} is no index of this version")
    except (zstandard.ZstdError, struct.error) as problem:
        raise SnapshotDamagedError(f"{what} is no index: {problem}") from problem
    at, names = HEADER.size, []
    for _ in range(packs):
        row = plain[at : at + wide]
        size = int.from_bytes(row[-4:], "little")
        names.append(PackName(row[:ID_BYTES], row[ID_BYTES:-4], size))
        at += wide
    frame_rows = np.frombuffer(plain, np.uint32, frames * 4, at).reshape(4, frames).T
    at += sizes[1]
    places = np.frombuffer(plain, np.uint32, blobs * 3, at).reshape(3, blobs).T
    at += sizes[2]
    inside = (not frames or int(frame_rows[:, 0].max()) < max(packs, 1)) and (
        not blobs or int(places[:, 0].max()) < frames
    )
    if not inside:
        raise SnapshotDamagedError(f"{what} names rows that it does not have")
    return Table(names, frame_rows, plain[at:], places)


class Index:
    """All blobs of a repository. Reads are safe beside one another, `add` and `replace`."""

    def __init__(self, tables: Iterable[Table] = ()) -> None:
        self._lock = threading.Lock()
        self._fresh: dict[bytes, tuple[Table, int]] = {}
        self._packs: dict[bytes, PackName] = {}
        self._hidden: frozenset[bytes] = frozenset()
        self.replace(tables)

    def __len__(self) -> int:
        """Return how many blobs there are; one that is stored twice counts twice."""
        return len(self._base[1]) + len(self._fresh)

    def replace(self, tables: Iterable[Table]) -> None:
        """Forget everything and take these."""
        table = joined(list(tables))
        keys = np.frombuffer(table.ids, "<u8").reshape(-1, ID_BYTES // 8)[:, 0]
        order = np.argsort(keys, kind="stable").astype(np.uint32)
        with self._lock:
            # all of it at once, and before what is fresh: others read meanwhile
            self._base = (table, keys[order], order)
            self._packs = {pack.name: pack for pack in table.packs}
            self._fresh = {}

    def add(self, table: Table) -> None:
        """Take the blobs of one more table; what is known already stays where it is."""
        with self._lock:
            for row, blob in enumerate(table.blob_ids()):
                if blob not in self._fresh or self._is_hidden(self._fresh[blob]):
                    self._fresh[blob] = (table, row)
            self._packs.update((pack.name, pack) for pack in table.packs)

    def hide(self, packs: Collection[bytes]) -> None:
        """Act from now on as if blobs of these packs were not stored: the packs are going."""
        self._hidden = frozenset(packs)

    @property
    def hides(self) -> bool:
        """Whether some packs are going."""
        return bool(self._hidden)

    def find(self, blob: bytes) -> Where | None:
        """Return where a blob lies, or None; a pack that is hidden is better than nothing."""
        found = self._fresh.get(blob) or self._row(blob)
        return None if found is None else _where(found)

    def stays(self, blob: bytes) -> Where | None:
        """Return where a blob lies, unless its pack is going."""
        found = self._fresh.get(blob) or self._row(blob)
        return None if found is None or self._is_hidden(found) else _where(found)

    def packs_of(self, ids: bytes) -> set[bytes]:
        """Return the names of the packs that stay and hold some blobs (ids in a row)."""
        fresh, old = set(), []
        for at in range(0, len(ids), ID_BYTES):
            blob = ids[at : at + ID_BYTES]
            if blob in self._fresh:
                fresh.add(_where(self._fresh[blob]).pack.name)
            else:
                old.append(blob)
        table, keys, order = self._base
        if not old or not len(keys):
            return fresh - self._hidden
        wanted = np.frombuffer(b"".join(old), "<u8").reshape(-1, ID_BYTES // 8)
        near = np.minimum(np.searchsorted(keys, wanted[:, 0]), len(keys) - 1)
        rows = order[near]
        stored = np.frombuffer(table.ids, "<u8").reshape(-1, ID_BYTES // 8)
        right = (stored[rows] == wanted).all(axis=1)
        frames = table.places[rows[right], 0]
        packs = np.unique(table.frames[frames, 0]).tolist()
        slow = (self._row(old[number]) for number in np.flatnonzero(~right).tolist())
        found = {
            *fresh,
            *(table.packs[pack].name for pack in packs),
            *(_where(found).pack.name for found in slow if found is not None),
        }
        return found - self._hidden

    def packs(self) -> list[PackName]:
        """Return every pack that the index knows."""
        with self._lock:
            return list(self._packs.values())

    def knows_pack(self, name: bytes) -> bool:
        """Return whether a pack of that name is in the index."""
        return name in self._packs

    def _is_hidden(self, found: tuple[Table, int]) -> bool:
        if not self._hidden:
            return False
        table, row = found
        return table.packs[table.frames[table.places[row][0]][0]].name in self._hidden

    def _row(self, blob: bytes) -> tuple[Table, int] | None:
        table, keys, order = self._base
        if not len(keys):
            return None
        key = np.uint64(int.from_bytes(blob[:8], "little"))
        at = int(keys.searchsorted(key))
        while at < len(keys) and keys[at] == key:
            row = int(order[at])
            if table.ids[row * ID_BYTES : (row + 1) * ID_BYTES] == blob:
                return table, row
            at += 1
        return None


def _where(found: tuple[Table, int]) -> Where:
    table, row = found
    frame, start, length = (int(one) for one in table.places[row])
    pack, offset, stored, raw = (int(one) for one in table.frames[frame])
    return Where(table.packs[pack], offset, stored, raw, start, length)
