"""Manifests: what a snapshot consists of, as a tree of blobs that shares its parts with others.

Entries are in tree order (a folder before what is in it, names by their bytes). Leaves hold some 16
entries, column by column, which compresses well. Where a leaf ends depends on the path of its last
entry alone, so that a change in one file changes one leaf; above, nodes hold ids of nodes, and end
by the id of their last one. The root says how much there is; its id is the manifest's name.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from xxhash import xxh3_64_intdigest

from dsec.snapshots.sealing import ID_BYTES, SnapshotDamagedError

ROOT = struct.Struct(f"<4sHQQQ{ID_BYTES}s")
ROOT_MAGIC = b"dsm1"
NODE = struct.Struct("<BBI")
VERSION = 1
LEAF_SPREAD, NODE_SPREAD = 15, 63
"""One of 16 entries is the last of its leaf, one of 64 nodes the last of its node: small leaves let
most of a manifest go on when one file in a hundred changes."""
MOST = 512
LARGEST_LEAF = 256 << 10
XATTR = struct.Struct("<HI")
COLUMNS = "<{n}B{n}B{n}H{n}I{n}I{n}q{n}Q{n}Q{n}H{n}I{n}I{n}I{n}I"
"""Kind, opaque, mode, owner, group, mtime in ns, size, device; lengths of the path, the pieces, the
lists, the link and the extended attributes."""
WIDTHS = (1, 1, 2, 4, 4, 8, 8, 8, 2, 4, 4, 4, 4)


class Kind(IntEnum):
    """What lies at a path."""

    FOLDER = 0
    FILE = 1
    SYMLINK = 2
    HARDLINK = 3
    """`link` is the path of the first name, which comes earlier."""
    FIFO = 4
    CHARACTERS = 5
    BLOCKS = 6
    WHITEOUT = 7
    """Nothing lies here any more, whatever lies below the layer."""


FILE = Kind.FILE
"""By itself: a look into an enumeration for each file of each snapshot would cost."""


@dataclass(slots=True)
class Entry:
    """One path of a snapshot. `lists`: ids of blobs of pieces, each for one segment of the file."""

    path: bytes
    kind: Kind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    device: int = 0
    pieces: bytes = b""
    lists: bytes = b""
    link: bytes = b""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    opaque: bool = False
    """A folder that hides what the layers below have in it."""


@dataclass(frozen=True, slots=True)
class Root:
    """What a manifest says of itself. `top` is the id of the highest node."""

    level: int
    entries: int
    files: int
    size: int
    """Sum of the sizes of the files."""
    top: bytes


def order(path: bytes) -> bytes:
    """Return what paths are sorted by to come in tree order."""
    return path.replace(b"/", b"\0")


def pack_xattrs(xattrs: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Return extended attributes as bytes."""
    return b"".join(
        XATTR.pack(len(name), len(value)) + name + value for name, value in sorted(xattrs)
    )


def unpack_xattrs(data: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return the attributes of `pack_xattrs`. Raises struct.error."""
    found, at = [], 0
    while at < len(data):
        name, value = XATTR.unpack_from(data, at)
        at += XATTR.size
        found.append((data[at : at + name], data[at + name : at + name + value]))
        at += name + value
    return tuple(found)


def encode_leaf(entries: list[Entry]) -> bytes:
    """Return a leaf."""
    # lists, not generators: this is done for every file of every snapshot
    paths = [one.path for one in entries]
    pieces = [one.pieces for one in entries]
    lists = [one.lists for one in entries]
    links = [one.link for one in entries]
    extras = [pack_xattrs(one.xattrs) if one.xattrs else b"" for one in entries]
    parts = (paths, pieces, lists, links, extras)
    head = struct.pack(
        COLUMNS.format(n=len(entries)),
        *[int(one.kind) for one in entries],
        *[one.opaque for one in entries],
        *[one.mode for one in entries],
        *[one.uid for one in entries],
        *[one.gid for one in entries],
        *[one.mtime for one in entries],
        *[one.size for one in entries],
        *[one.device for one in entries],
        *(length for part in parts for length in map(len, part)),
    )
    return b"".join((NODE.pack(VERSION, 0, len(entries)), head, *map(b"".join, parts)))


def decode_leaf(data: bytes, what: str) -> list[Entry]:
    """Return the entries of a leaf. Raises SnapshotDamagedError."""
    try:
        version, level, count = NODE.unpack_from(data)
        if version != VERSION or level != 0:
            raise SnapshotDamagedError(f"{what} is no leaf of a manifest")
        head = struct.unpack_from(COLUMNS.format(n=count), data, NODE.size)
        columns = [head[at * count : (at + 1) * count] for at in range(len(WIDTHS))]
        at = NODE.size + count * sum(WIDTHS)
        parts: list[list[bytes]] = []
        for lengths in columns[8:]:
            part = []
            for length in lengths:
                part.append(data[at : at + length])
                at += length
            parts.append(part)
        if at != len(data):
            raise SnapshotDamagedError(f"{what} has a wrong length")
        return [
            Entry(
                path,
                Kind(kind),
                mode,
                uid,
                gid,
                mtime,
                size,
                device,
                pieces,
                lists,
                link,
                unpack_xattrs(extra) if extra else (),
                bool(opaque),
            )
            for (
                (kind, opaque, mode, uid, gid, mtime, size, device),
                (path, pieces, lists, link, extra),
            ) in zip(zip(*columns[:8], strict=True), zip(*parts, strict=True), strict=True)
        ]
    except (struct.error, ValueError) as problem:
        raise SnapshotDamagedError(f"{what} is no leaf of a manifest: {problem}") from problem


def decode_node(data: bytes, what: str) -> list[bytes]:
    """Return the ids of the nodes below an inner node. Raises SnapshotDamagedError."""
    if len(data) < NODE.size:
        raise SnapshotDamagedError(f"{what} is no node of a manifest")
    version, level, count = NODE.unpack_from(data)
    if version != VERSION or not level or len(data) != NODE.size + count * ID_BYTES:
        raise SnapshotDamagedError(f"{what} is no node of a manifest")
    return [data[at : at + ID_BYTES] for at in range(NODE.size, len(data), ID_BYTES)]


def decode_root(data: bytes, what: str) -> Root:
    """Return a root. Raises SnapshotDamagedError."""
    if len(data) != ROOT.size or data[:4] != ROOT_MAGIC:
        raise SnapshotDamagedError(f"{what} is no manifest")
    return Root(*ROOT.unpack(data)[1:])


@dataclass(slots=True)
class ManifestWriter:
    """Takes entries in tree order; `keep` stores a blob and returns its id."""

    keep: Callable[[bytes], bytes]
    seed: int
    entries: int = 0
    files: int = 0
    size: int = 0
    _leaf: list[Entry] = field(default_factory=list)
    _leaf_bytes: int = 0
    _levels: list[list[bytes]] = field(default_factory=list)

    def add(self, entry: Entry) -> bytes | None:
        """Take the next entry; return the id of the leaf that it ends, if it does."""
        self.entries += 1
        if entry.kind is FILE:
            self.files += 1
            self.size += entry.size
        self._leaf.append(entry)
        self._leaf_bytes += len(entry.path) + len(entry.pieces) + len(entry.lists) + 64
        full = len(self._leaf) >= MOST or self._leaf_bytes >= LARGEST_LEAF
        return self.close_leaf() if full or self.ends(entry.path) else None

    def ends(self, path: bytes) -> bool:
        """Return whether an entry is the last of its leaf by its path."""
        return xxh3_64_intdigest(path, self.seed) & LEAF_SPREAD == 0

    def close_leaf(self) -> bytes | None:
        """End the leaf that was begun; return its id."""
        if not self._leaf:
            return None
        leaf = self.keep(encode_leaf(self._leaf))
        self._leaf, self._leaf_bytes = [], 0
        self._push(0, leaf)
        return leaf

    def reuse(self, leaf: bytes, entries: int, files: int, size: int) -> None:
        """Take a leaf that is stored already, with what is in it; none may be begun."""
        self.entries += entries
        self.files += files
        self.size += size
        self._push(0, leaf)

    def finish(self) -> bytes:
        """Store what is left and return the id of the root."""
        self.close_leaf()
        if not self._levels:
            self._push(0, self.keep(encode_leaf([])))
        level = 0
        while level < len(self._levels) - 1 or len(self._levels[level]) > 1:
            if self._levels[level]:
                self._close_node(level)
            level += 1
        top = self._levels[level][0]
        root = ROOT.pack(ROOT_MAGIC, level, self.entries, self.files, self.size, top)
        return self.keep(root)

    def _close_node(self, level: int) -> None:
        ids = self._levels[level]
        self._levels[level] = []
        node = NODE.pack(VERSION, level + 1, len(ids)) + b"".join(ids)
        self._push(level + 1, self.keep(node))

    def _push(self, level: int, node: bytes) -> None:
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(node)
        # the first byte that the leaves' own names do not decide by
        if node[0] & NODE_SPREAD == 0 or len(self._levels[level]) >= MOST:
            self._close_node(level)


def check_path(path: bytes) -> None:
    """Raise SnapshotDamagedError unless every part of a path is a plain name.

    Who wrote the manifest may have been taken over.
    """
    if any(part in {b"", b".", b".."} or b"\0" in part for part in path.split(b"/")):
        raise SnapshotDamagedError(f"the manifest has a path that leads elsewhere: {path!r}")
