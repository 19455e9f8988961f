"""Reading manifests: entries in tree order, a few nodes at a time, and what they need."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from dsec.snapshots.fetching import Fetcher, locate, parse_id, read_blobs
from dsec.snapshots.limits import Limits
from dsec.snapshots.manifest import (
    Entry,
    Kind,
    Root,
    check_path,
    decode_leaf,
    decode_node,
    decode_root,
    order,
)
from dsec.snapshots.pieces import PIECE, blobs_in
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import ID_BYTES, SnapshotDamagedError

NODES_AT_ONCE = 256
LISTS_AT_ONCE = 32


async def read_root(repo: Repository, fetcher: Fetcher, manifest: str) -> Root:
    """Return what a manifest says of itself. Raises SnapshotDamagedError, ObjectStoreError."""
    (data,) = await read_blobs(fetcher, repo, [parse_id(manifest)])
    return decode_root(data, f"manifest {manifest}")


async def entries(repo: Repository, manifest: str) -> AsyncGenerator[Entry, None]:
    """Yield the entries of a manifest, checked. Raises SnapshotDamagedError, ObjectStoreError."""
    fetcher = Fetcher(repo, Limits())
    try:
        root = await read_root(repo, fetcher, manifest)
        async with aclosing(walk(repo, fetcher, root)) as found:
            async for entry in found:
                yield entry
    finally:
        fetcher.close()


async def walk(
    repo: Repository, fetcher: Fetcher, root: Root, nodes: set[bytes] | None = None
) -> AsyncGenerator[Entry, None]:
    """Yield the entries below a root; `nodes` takes the ids of all nodes on the way.

    Entries are in order and their paths lead nowhere else, and there are as many as the root says.
    Raises SnapshotDamagedError, ObjectStoreError.
    """
    before, count, files, size = b"", 0, 0, 0
    async with aclosing(_leaves(repo, fetcher, root.level, [root.top], nodes)) as leaves:
        async for leaf in leaves:
            for entry in leaf:
                at = order(entry.path)
                check_path(entry.path)
                if entry.kind is Kind.HARDLINK:
                    check_path(entry.link)
                if at <= before:
                    raise SnapshotDamagedError(f"the manifest is out of order at {entry.path!r}")
                before = at
                count += 1
                if entry.kind is Kind.FILE:
                    files, size = files + 1, size + entry.size
                yield entry
    if (count, files, size) != (root.entries, root.files, root.size):
        raise SnapshotDamagedError(
            f"the manifest has {count} entries, {files} files and {size} bytes; its root says "
            f"{root.entries}, {root.files} and {root.size}"
        )


async def _leaves(
    repo: Repository, fetcher: Fetcher, level: int, ids: list[bytes], nodes: set[bytes] | None
) -> AsyncGenerator[list[Entry], None]:
    for at in range(0, len(ids), NODES_AT_ONCE):
        some = ids[at : at + NODES_AT_ONCE]
        if nodes is not None:
            nodes.update(some)
        for blob, data in zip(some, await read_blobs(fetcher, repo, some), strict=True):
            what = f"manifest node {blob.hex()}"
            if level == 0:
                yield decode_leaf(data, what)
                continue
            below = decode_node(data, what)
            async with aclosing(_leaves(repo, fetcher, level - 1, below, nodes)) as leaves:
                async for leaf in leaves:
                    yield leaf


async def rows_of(repo: Repository, fetcher: Fetcher, entry: Entry) -> AsyncGenerator[bytes, None]:
    """Yield the packed pieces of a file, segment by segment; checked against its size.

    Raises SnapshotDamagedError, ObjectStoreError.
    """
    size = 0
    if entry.pieces:
        size += _length(entry.pieces, entry)
        yield entry.pieces
    ids = _lists(entry)
    for at in range(0, len(ids), LISTS_AT_ONCE):
        for row in await read_blobs(fetcher, repo, ids[at : at + LISTS_AT_ONCE]):
            size += _length(row, entry)
            yield row
    if size != entry.size:
        raise SnapshotDamagedError(f"{entry.path!r} has pieces for {size} of {entry.size} bytes")


def _lists(entry: Entry) -> list[bytes]:
    return [entry.lists[at : at + ID_BYTES] for at in range(0, len(entry.lists), ID_BYTES)]


def _length(row: bytes, entry: Entry) -> int:
    if len(row) % PIECE.size:
        raise SnapshotDamagedError(f"{entry.path!r} has half a piece")
    return sum(length for _, _, length in PIECE.iter_unpack(row))


async def needed_blobs(repo: Repository, manifest: str) -> AsyncGenerator[set[bytes], None]:
    """Yield the ids of all blobs that a snapshot needs, a few at a time, some more than once.

    Raises GoneError where something of it exists no more, SnapshotDamagedError, ObjectStoreError.
    """
    fetcher = Fetcher(repo, Limits())
    try:
        root = await read_root(repo, fetcher, manifest)
        nodes = {parse_id(manifest)}
        async with aclosing(walk(repo, fetcher, root, nodes)) as found:
            async for entry in found:
                ids = set(_lists(entry))
                async with aclosing(rows_of(repo, fetcher, entry)) as rows:
                    async for row in rows:
                        ids.update(blobs_in(row))
                yield ids
                if len(nodes) > NODES_AT_ONCE:
                    yield set(nodes)
                    nodes.clear()
        yield nodes
    finally:
        fetcher.close()


async def needed_packs(repo: Repository, manifest: str) -> set[str]:
    """Return the hex names of all packs that a snapshot needs. Raises as `needed_blobs`."""
    packs: set[bytes] = set()
    async with aclosing(needed_blobs(repo, manifest)) as found:
        async for blobs in found:
            packs.update(locate(repo, blob).pack.name for blob in blobs)
    return {name.hex() for name in packs}
