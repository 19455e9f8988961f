"""From blobs to packs in the store: each blob once, in bounded memory, by several threads.

Worker threads borrow a `Lane` each: a pack in the making and the buffers around it. Finished packs
go to the event loop, which sends a few at a time; a worker with a full pack waits for that. Index
objects follow behind acknowledged packs, so that what is sent of a long save is not lost with it.
One request that fails for good fails the save: blobs count as stored from the moment that a worker
claims them.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from dsec.snapshots.chunking import LONGEST, WINDOW, Cutter
from dsec.snapshots.dirty import Looker
from dsec.snapshots.index import Table
from dsec.snapshots.limits import MIB, Limits, Moved, Pace
from dsec.snapshots.packs import Blob, Pack, PackBuilder
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import SALT_BYTES, Buffer, name_blob
from dsec.world.heap import buffer

OWN_FRAME = MIB // 2
"""Blobs of this size are a frame by themselves; smaller ones share one."""
SHARED_FRAME = MIB
PACKS_PER_INDEX = 64
"""A gigabyte: so much is sent twice at most after a crash whose packs nobody looks for."""
LOOK_SECONDS = 0.5


class StoppedError(Exception):
    """Another part of the save failed; its error is the one to tell."""


class Store:
    """Where the blobs of one save go."""

    def __init__(self, repo: Repository, limits: Limits) -> None:
        self.repo, self.limits = repo, limits
        self.moved = Moved()
        self.used: set[bytes] = set()
        """Packs that hold what was asked for."""
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(repo.clock, limits.bytes_per_second)
        self._lock = threading.Lock()
        self._claimed: set[bytes] = set()
        self._lanes = [Lane(self, limits.pack_bytes) for _ in range(limits.workers)]
        self._slots = threading.BoundedSemaphore(limits.uploads)
        self._sending: set[Future[None]] = set()
        self._done: list[Table] = []
        self._indexing = asyncio.Lock()
        self.failure: BaseException | None = None

    def check(self) -> None:
        """Raise StoppedError where something failed already."""
        if self.failure is not None:
            raise StoppedError

    def fail(self, problem: BaseException) -> None:
        """End the work of all threads."""
        if self.failure is None:
            self.failure = problem

    def claim(self, blob: bytes) -> bool:
        """Return whether the caller has to store a blob: nobody did, and nobody else will."""
        with self._lock:
            if blob in self._claimed:
                return False
            where = self.repo.index.stays(blob)
            if where is not None:
                self.used.add(where.pack.name)
                return False
            self._claimed.add(blob)
            return True

    def use(self, packs: set[bytes]) -> None:
        """Take down that the snapshot needs these packs."""
        with self._lock:
            self.used |= packs

    def salt(self) -> bytes:
        """Return a fresh salt."""
        with self._lock:
            return self.repo.randomness.randbytes(SALT_BYTES)

    @contextmanager
    def lane(self) -> Iterator["Lane"]:
        """Borrow a lane; the one that was given back last, so that few packs are begun."""
        with self._lock:
            lane = self._lanes.pop()
        try:
            yield lane
        finally:
            with self._lock:
                self._lanes.append(lane)

    def send(self, builder: PackBuilder) -> None:
        """Hand the pack of a builder to the event loop; waits while too many are under way."""
        # first the slot: a finished pack that waited for one would be one more in memory
        while not self._slots.acquire(timeout=LOOK_SECONDS):
            self.check()
        try:
            self.check()
            sending = asyncio.run_coroutine_threadsafe(self._put(builder.finish()), self._loop)
        except BaseException:
            self._slots.release()
            raise
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    def flush(self) -> None:
        """Send what the lanes hold; no job may be running."""
        for lane in self._lanes:
            lane.flush()

    async def drain(self) -> None:
        """Wait for all packs, then publish where their blobs lie. Raises what failed."""
        await asyncio.gather(*(asyncio.wrap_future(one) for one in list(self._sending)))
        if self.failure is not None:
            raise self.failure
        await self._index(0)

    async def _put(self, pack: Pack) -> None:
        try:
            await self._pace.take(len(pack.data))
            await self.repo.create(self.repo.pack_key(pack.name), pack.data)
            self._done.append(pack.table)
            with self._lock:
                self.moved.stored_bytes += len(pack.data)
                self.used.add(pack.name)
            await self._index(PACKS_PER_INDEX)
        except BaseException as problem:
            self.fail(problem)
            raise
        finally:
            self._slots.release()

    async def _index(self, least: int) -> None:
        async with self._indexing:
            if len(self._done) < least:
                return
            tables, self._done = self._done, []
            stored = await self.repo.write_index(tables)
        with self._lock:
            self.moved.stored_bytes += stored
            for table in tables:
                self.repo.index.add(table)
                self._claimed.difference_update(table.blob_ids())


class Lane:
    """What one thread works with: buffers, a cutter, a frame and a pack in the making."""

    def __init__(self, store: Store, pack_bytes: int, shared_frame: int = SHARED_FRAME) -> None:
        seed = store.repo.keys.seed
        self.store = store
        self.cutter, self.looker = Cutter(seed), Looker(seed)
        self._builder = PackBuilder(store.repo.keys, pack_bytes, store.limits.level)
        self._shared_frame = shared_frame
        self._shared = bytearray()
        self._blobs: list[Blob] = []
        self._window: memoryview | None = None

    @property
    def window(self) -> memoryview:
        """A buffer for one window and what the one before left to be cut."""
        if self._window is None:
            self._window = buffer(WINDOW + LONGEST)
        return self._window

    def keep(self, data: Buffer) -> bytes:
        """Store a blob, unless it is, and return its id. Raises StoppedError."""
        blob = name_blob(self.store.repo.keys, data)
        if not self.store.claim(blob):
            return blob
        if len(data) >= OWN_FRAME:
            self._frame(data, [(blob, 0, len(data))])
            return blob
        if len(self._shared) + len(data) > self._shared_frame:
            self._close_frame()
        self._blobs.append((blob, len(self._shared), len(data)))
        self._shared += data
        return blob

    def flush(self) -> None:
        """Send what is in the making."""
        self._close_frame()
        if not self._builder.empty:
            self.store.send(self._builder)

    def _close_frame(self) -> None:
        if self._blobs:
            self._frame(self._shared, self._blobs)
            self._shared, self._blobs = bytearray(), []

    def _frame(self, raw: Buffer, blobs: list[Blob]) -> None:
        self.store.check()
        if self._builder.empty:
            self._builder.begin(self.store.salt())
        data = self._builder.compress(raw)
        if not self._builder.fits(data):
            self.store.send(self._builder)
            self._builder.begin(self.store.salt())
        self._builder.add(data, len(raw), blobs)
