"""Saving trees: read what changed, store what is new, describe it all in a manifest.

One thread scans in tree order and, behind it, finishes entries in the same order; jobs in between
(a batch of small files, a segment of a large one) run on worker threads. How far the scan may be
ahead is bounded, and so is memory. Nothing refers to what was stored until the caller publishes the
manifest that is returned: a save that is cut off anywhere changes nothing that can be seen.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dsec.snapshots.limits import Limits, Progress
from dsec.snapshots.manifest import order
from dsec.snapshots.repository import Repository
from dsec.snapshots.scanning import Source
from dsec.snapshots.statcache import StatCache
from dsec.snapshots.storing import Store
from dsec.snapshots.treesaver import TreeSaver
from dsec.world.heap import keep_buffers

REPORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Saved:
    """What a save stored. `manifest`: hex id for the reference."""

    manifest: str
    files: int
    bytes: int
    stored_bytes: int
    """What the store grew by."""
    changed_bytes: int
    """Bytes of files that were not as they were last time."""
    vanished: int
    """Files that went while the scan ran."""
    packs: frozenset[str] = field(repr=False, default=frozenset())
    """Hex names of all packs that this snapshot needs, also from before."""


async def save(
    repo: Repository,
    sources: Sequence[Source],
    *,
    avoid: Collection[str] = (),
    cache: StatCache | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Saved:
    """Store sources as one snapshot that nothing refers to yet.

    `avoid` are packs (hex names) that are being collected: the lease says which. Raises SaveError,
    ObjectStoreError, SnapshotDamagedError, ValueError for sources that overlap.
    """
    ordered = _ordered(sources)
    keep_buffers()
    await repo.refresh()
    repo.index.hide([bytes.fromhex(name) for name in avoid])
    if cache is not None and cache.begin():
        await repo.adopt(avoid)
    store = Store(repo, limits or Limits())
    saver = TreeSaver(store, cache, repo.clock.now().timestamp())
    reporting = asyncio.ensure_future(_report(store, progress))
    running = asyncio.ensure_future(asyncio.to_thread(saver.run, ordered))
    try:
        manifest = await asyncio.shield(running)
        await store.drain()
    except BaseException as problem:  # noqa: BLE001  it is raised again, or what caused it
        # the threads look at this; they must be gone before the sources may change again
        store.fail(problem)
        await asyncio.wait([running])
        saver.abandon()
        raise store.failure or problem from None
    finally:
        reporting.cancel()
    saver.remember()
    if progress is not None:
        progress(store.moved)
    return Saved(
        manifest.hex(),
        saver.manifest.files,
        saver.manifest.size,
        store.moved.stored_bytes,
        saver.changed,
        saver.vanished,
        frozenset(name.hex() for name in store.used),
    )


def _ordered(sources: Sequence[Source]) -> list[Source]:
    """Return the sources in tree order. Raises ValueError where one lies in another."""
    found = sorted(sources, key=lambda one: order(one.at.strip("/").encode()))
    for before, after in pairwise(found):
        outer, inner = before.at.strip("/"), after.at.strip("/")
        if not outer or inner == outer or inner.startswith(outer + "/"):
            raise ValueError(f"at: {inner!r} of {after.root} lies in {outer!r} of {before.root}")
    return found


async def _report(store: Store, progress: Progress | None) -> None:
    while progress is not None:
        await store.repo.clock.sleep(REPORT_SECONDS)
        progress(store.moved)
