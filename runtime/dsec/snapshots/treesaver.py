"""The thread of a save that walks the sources: hands jobs out, and takes their results in order."""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from dsec.snapshots.beneath import open_beneath
from dsec.snapshots.chunking import SEGMENT, SMALL
from dsec.snapshots.jobs import blocks_read, keep_files, read_batch, read_files, read_segment
from dsec.snapshots.leafcache import KnownLeaf
from dsec.snapshots.limits import SMALLEST_PACK
from dsec.snapshots.manifest import FILE, Entry, Kind, ManifestWriter
from dsec.snapshots.pieces import PIECE, blobs_in
from dsec.snapshots.scanning import Found, SaveError, Source, attributes, open_source, scan
from dsec.snapshots.sealing import ID_BYTES
from dsec.snapshots.statcache import KnownSegment, Reader, Remembered, StatCache, pack_stat
from dsec.snapshots.storing import LOOK_SECONDS, Lane, Store
from dsec.snapshots.waiting import Part, Reused, Small, Tree, Waiting, is_ready

BATCH_FILES, BATCH_BYTES = 256, 1 << 20
TINY = 8 << 10
"""Bytes of a file whose reading is mostly calls."""
SLOW_BATCHES = 16
"""So many are read by workers after one for which a device was waited for."""
JOBS_AHEAD = 4
"""Jobs that wait for each worker."""
ENTRIES_AHEAD = 8192
ENTRIES_APART = 32
"""After so many it is looked whether the first in line can be finished."""
INLINE_PIECES = 16
"""Segments of more pieces list them in a blob of their own, which the next manifest shares."""
MANIFEST_FRAME = 256 << 10
FINE_NS, COARSE_NS = 50_000_000, 1_000_000_000
"""What changed so shortly before the scan can change again without another time stamp: kernels
stamp by their ticks, some file systems by seconds."""
IDS_AT_ONCE = 8192 * ID_BYTES
SEGMENTS_CHECKED = 64
"""After a collection, larger files are read again: whether all of one is there takes memory."""

T = TypeVar("T")


class TreeSaver:
    """Runs in one thread; made, and asked for results, in the event loop."""

    def __init__(self, store: Store, cache: StatCache | None, started: float) -> None:
        self.changed = 0
        self.vanished = 0
        self._store = store
        self._cache = cache
        self._started = int(started * 1e9)
        repo = store.repo
        identity = repo.about.id
        self._reader = cache.reader(identity) if cache else Reader(None, None, 0)
        # where nothing was collected since, nor is about to be, what was stored is stored
        self._sure = self._reader.epoch == repo.epoch and not repo.index.hides
        self._writer = cache.writer(identity, repo.epoch) if cache else None
        self._lane = Lane(store, SMALLEST_PACK, MANIFEST_FRAME)
        self.manifest = ManifestWriter(self._lane.keep, repo.keys.seed)
        self._workers = store.limits.workers
        self._slots = threading.BoundedSemaphore(self._workers * (1 + JOBS_AHEAD))
        self._line: deque[Waiting | Part | Reused] = deque()
        self._weight = 0
        self._first_names: dict[tuple[int, int], bytes] = {}
        self._gone: set[bytes] = set()
        self._large: Waiting | None = None
        self._alone = False
        self._spoilt = False
        self._unlooked = 0
        self._batch: Future[list[Small | None]] | None = None
        self._smalls: list[Small | None] = []
        self._tree: Tree | None = None
        self._ids = bytearray()
        self._pending: list[tuple[Found, bytes]] = []
        self._last_path: bytes | None = None
        self._keys: list[tuple[bytes, bytes]] = []
        self._needs = bytearray()
        self._counted = (0, 0, self._writer.length if self._writer else 0)

    def run(self, sources: Sequence[Source]) -> bytes:
        """Save everything and return the id of the manifest's root.

        Raises SaveError, StoppedError.
        """
        handles: list[int] = []
        with ThreadPoolExecutor(self._workers, thread_name_prefix="snapshot") as self._pool:
            try:
                for source in sources:
                    root, only = open_source(source)
                    handles.append(root)
                    self._tree = tree = Tree(source, root)
                    for found in scan(source, root, only):
                        self._take(tree, found)
                    self._take_pending(tree)
                    self._submit_batch(tree)
                while self._line:
                    self._settle(self._line.popleft())
                self._close_leaf(self.manifest.close_leaf())
                self._store.flush()
                root_id = self.manifest.finish()
                self._lane.flush()
                self._resolve()
                self._count()
            except BaseException as problem:
                # jobs that run see it and end; no handle may go before
                self._store.fail(problem)
                self._pool.shutdown(cancel_futures=True)
                raise
            finally:
                for handle in handles:
                    os.close(handle)
                self._reader.close()
        return root_id

    def remember(self) -> None:
        """Keep for the next save what this one saw; everything it names is in the index."""
        if self._writer is not None and self._cache is not None:
            if self._spoilt:
                self._writer.abandon()
            else:
                self._writer.finish()
            self._cache.end()

    def abandon(self) -> None:
        """Leave what was remembered before; the mark of a save that was cut off stays."""
        if self._writer is not None:
            self._writer.abandon()

    def _take(self, tree: Tree, found: Found) -> None:
        """Put a path in line: with its leaf, if all of that is as it was, else by itself."""
        entry, stat = found.entry, found.stat
        packed = pack_stat(stat)
        leaf = self._sure and self._reader.leaves.follow(entry.path, packed, self._is_aligned)
        if leaf is False:
            self._take_pending(tree)
            self._take_one(tree, found, packed)
            return
        if stat.st_nlink > 1 and entry.kind is FILE:
            self._first_names.setdefault((stat.st_dev, stat.st_ino), entry.path)
        if leaf is True:
            self._pending.append((found, packed))
        else:
            self._pending.clear()
            self._last_path = None
            self._reader.jump(leaf.end)
            self._append(Reused(leaf))

    def _take_pending(self, tree: Tree) -> None:
        """Put in line by itself what began like a leaf and did not go on so."""
        for found, packed in self._pending:
            self._take_one(tree, found, packed)
        self._pending.clear()

    def _is_aligned(self) -> bool:
        """Return whether the manifest's next entry is the first of a leaf."""
        return self._last_path is None or self.manifest.ends(self._last_path)

    def _take_one(self, tree: Tree, found: Found, packed: bytes) -> None:
        """Put a path in line, with jobs for what has to be read."""
        entry, stat = found.entry, found.stat
        self._last_path = entry.path
        # equal time stamps mean nothing so soon after a change
        kept = packed if self._has_settled(stat.st_ctime_ns) else b""
        if entry.kind is not FILE:
            self._append(Waiting(entry, kept))
            return
        if stat.st_nlink > 1:
            first = self._first_names.setdefault((stat.st_dev, stat.st_ino), entry.path)
            if first != entry.path:
                self._append(Waiting(Entry(entry.path, Kind.HARDLINK, link=first), kept))
                return
        known = self._reader.find(entry.path)
        if known is not None and known.stat == packed and self._unchanged(entry, known, packed):
            return
        if stat.st_size > SMALL:
            self._take_large(tree, found, kept, known)
            return
        waiting = Waiting(entry, kept, reading=True)
        self._append(waiting)
        tree.batch.append((waiting, found.inside, stat.st_size))
        tree.batch_bytes += stat.st_size
        if len(tree.batch) >= BATCH_FILES or tree.batch_bytes >= BATCH_BYTES:
            self._submit_batch(tree)

    def _has_settled(self, changed: int) -> bool:
        """Return whether a change after this one shows in a time stamp of its own."""
        grain = FINE_NS if changed % COARSE_NS else 2 * COARSE_NS
        return changed < self._started - grain

    def _unchanged(self, entry: Entry, known: Remembered, packed: bytes) -> bool:
        """Put a file in line as it was saved; False where some of it is not stored any more."""
        if not self._sure and known.segments > SEGMENTS_CHECKED:
            return False
        segments = list(self._reader.segments()) if not self._sure else None
        if not self._sure:
            rows = [known.pieces, *(one.segment.pieces for one in segments or ())]
            ids = [blob for row in rows for blob in blobs_in(row)]
            ids += [one.list_id for one in segments or () if one.list_id]
            if not all(map(self._store.repo.index.stays, ids)):
                return False
        entry.pieces, entry.xattrs = known.pieces, known.xattrs
        if not self._line and not known.segments:
            self._add_known(entry, packed, known.record)
            return True
        self._append(Waiting(entry, packed, segments=known.segments, record=known.record))
        for number, one in enumerate(segments or self._reader.segments(), 1):
            self._append(Part(None, one, number == known.segments))
        return True

    def _take_large(self, tree: Tree, found: Found, stat: bytes, known: Remembered | None) -> None:
        entry, size = found.entry, found.stat.st_size
        try:
            handle = open_beneath(tree.root, found.inside, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            self._lose(entry.path)
            return
        except OSError as problem:
            raise SaveError(f"{os.fsdecode(entry.path)}: {problem.strerror}") from problem
        try:
            upper = tree.source.whole_upper
            xattrs = attributes(handle, upper=upper, path=entry.path)
            entry.xattrs = tuple(xattrs.items())
        finally:
            os.close(handle)
        sparse = found.stat.st_blocks * 512 < size
        old = self._reader.segments() if known is not None else iter(())
        count = -(-size // SEGMENT)
        self._append(Waiting(entry, stat, segments=count))
        for number in range(count):
            before = next(old, None)
            if before is not None and not self._stored(before):
                before = None
            offset = number * SEGMENT
            job = self._submit(
                read_segment,
                tree.root,
                found.inside,
                (offset, min(SEGMENT, size - offset)),
                before.segment if before is not None and before.segment.pieces else None,
                sparse=sparse,
            )
            self._append(Part(job, None, number == count - 1))

    def _stored(self, known: KnownSegment) -> bool:
        index = self._store.repo.index
        return self._sure or all(index.stays(blob) for blob in blobs_in(known.segment.pieces))

    def _append(self, one: Waiting | Part | Reused) -> None:
        self._weight += one.weight
        if not self._line and is_ready(one):
            self._settle(one)
            return
        self._line.append(one)
        while self._weight > ENTRIES_AHEAD:
            self._settle(self._line.popleft())
        self._unlooked += 1
        # not each time: it takes a lock
        if self._unlooked == ENTRIES_APART:
            self._unlooked = 0
            while len(self._line) > 1 and is_ready(self._line[0]):
                self._settle(self._line.popleft())

    def _submit(self, work: Callable[..., T], *args: object, **kwargs: object) -> "Future[T]":
        while not self._slots.acquire(timeout=LOOK_SECONDS):
            self._store.check()
        job = self._pool.submit(work, self._store, *args, **kwargs)
        job.add_done_callback(lambda _: self._slots.release())
        return job

    def _submit_batch(self, tree: Tree) -> None:
        if not tree.batch:
            return
        files = [(inside, size) for _, inside, size in tree.batch]
        upper = tree.source.whole_upper
        if tree.slow or tree.batch_bytes > len(tree.batch) * TINY:
            tree.slow = max(0, tree.slow - 1)
            job = self._submit(read_batch, tree.root, files, upper)
        else:
            # of what is tiny and lies in memory several threads read no more than one: with each
            # call they pass the interpreter's lock around
            before = blocks_read()
            contents = read_files(self._store, tree.root, files, upper)
            tree.slow = SLOW_BATCHES if blocks_read() != before else 0
            job = self._submit(keep_files, contents)
        for place, (waiting, _, _) in enumerate(tree.batch):
            waiting.batch, waiting.place = job, place
        tree.batch, tree.batch_bytes = [], 0

    def _settle(self, one: Waiting | Part | Reused) -> None:
        """Finish what is first in line; waits for its job."""
        self._weight -= one.weight
        if isinstance(one, Part):
            self._settle_part(one)
            return
        if isinstance(one, Reused):
            self._settle_leaf(one.leaf)
            return
        entry = one.entry
        if one.reading and not self._fill(one):
            self._lose(entry.path)
            return
        if entry.kind is Kind.HARDLINK and entry.link in self._gone:
            self._lose(entry.path)
            return
        if one.record and not one.segments:
            self._add_known(entry, one.stat, one.record)
            return
        if self._writer is not None and entry.kind is FILE:
            if one.record:
                self._writer.add_record(one.record)
            else:
                self._writer.add(entry, one.stat, one.segments)
        if one.segments:
            self._large, self._alone = one, one.segments == 1
        else:
            self._add(entry, one.stat)

    def _fill(self, one: Waiting) -> bool:
        """Wait for what was read of a small file; False where it has gone."""
        if one.batch is None and self._tree is not None:
            self._submit_batch(self._tree)
        if one.batch is not None and one.batch is not self._batch:
            self._batch, self._smalls = one.batch, one.batch.result()
        small = self._smalls[one.place] if one.batch is not None else None
        if small is None:
            return False
        entry = one.entry
        entry.pieces, entry.size, entry.xattrs = small.pieces, small.size, small.xattrs
        self.changed += small.size
        return True

    def _add_known(self, entry: Entry, stat: bytes, record: bytes) -> None:
        """Finish a small file that did not change."""
        if self._writer is not None:
            self._writer.add_record(record)
        self._ids += entry.pieces[:ID_BYTES]
        self._add(entry, stat)

    def _settle_part(self, part: Part) -> None:
        known = part.known
        if part.job is not None:
            segment = part.job.result()
            if segment is None:
                if self._large is not None:
                    self._lose(self._large.entry.path)
                # its record is half written
                self._large, self._spoilt = None, True
                return
            self.changed += segment.changed
            inline = self._alone and len(segment.pieces) <= INLINE_PIECES * PIECE.size
            known = KnownSegment(segment, b"" if inline else self._lane.keep(segment.pieces))
        large = self._large
        if large is None or known is None:
            return
        entry = large.entry
        if known.list_id:
            entry.lists += known.list_id
        else:
            entry.pieces = known.segment.pieces
        used = b"".join((known.list_id, *blobs_in(known.segment.pieces)))
        self._needs += used
        self._ids += used
        if self._writer is not None:
            self._writer.add_segment(known)
        if part.last:
            self._large = None
            self._add(entry, large.stat)

    def _add(self, entry: Entry, stat: bytes) -> None:
        """Put an entry into the manifest, and remember its leaf when that is complete."""
        self._keys.append((entry.path, stat))
        if len(entry.pieces) == PIECE.size:
            self._needs += entry.pieces[:ID_BYTES]
        self._close_leaf(self.manifest.add(entry))

    def _close_leaf(self, leaf: bytes | None) -> None:
        if leaf is None:
            return
        manifest, (files, size, records) = self.manifest, self._counted
        if self._writer is not None:
            length = self._writer.length - records
            grown = (manifest.files - files, manifest.size - size, length)
            self._writer.leaves.add(leaf, self._keys, grown, bytes(self._needs))
        self._keys.clear()
        self._needs.clear()
        self._start_leaf()

    def _start_leaf(self) -> None:
        """Begin to count for the next leaf."""
        length = 0 if self._writer is None else self._writer.length
        self._counted = (self.manifest.files, self.manifest.size, length)
        self._count()
        if len(self._ids) >= IDS_AT_ONCE:
            self._resolve()

    def _settle_leaf(self, leaf: KnownLeaf) -> None:
        # an entry that was to end the leaf before may have gone
        self._close_leaf(self.manifest.close_leaf())
        self.manifest.reuse(leaf.leaf, leaf.entries, leaf.files, leaf.size)
        self._ids += leaf.leaf + leaf.ids
        if self._writer is not None:
            for part in self._reader.parts(leaf.start, leaf.end):
                self._writer.add_part(part)
            self._writer.leaves.add_raw(leaf.raw)
        self._start_leaf()

    def _count(self) -> None:
        self._store.moved.files, self._store.moved.bytes = self.manifest.files, self.manifest.size

    def _lose(self, path: bytes) -> None:
        self._gone.add(path)
        self.vanished += 1

    def _resolve(self) -> None:
        packs = self._store.repo.index.packs_of(bytes(self._ids))
        self._store.use(packs)
        self._ids.clear()
