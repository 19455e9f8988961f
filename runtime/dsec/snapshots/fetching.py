"""Getting blobs out of packs: few requests, each byte verified, in bounded memory.

What is wanted is grouped by pack into spans of frames that lie close together. A span is fetched on
the event loop, opened on a worker thread, and its blobs are handed out there, in no order.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from dsec.snapshots.index import PackName, Where
from dsec.snapshots.limits import MIB, Limits, Pace
from dsec.snapshots.packs import open_frame
from dsec.snapshots.repository import GoneError, Repository
from dsec.snapshots.sealing import ID_BYTES, SnapshotDamagedError, cipher, name_blob
from dsec.world.objects import NotFoundError

GAP = 256 << 10
"""So much that nobody wants is fetched rather than asking once more."""
LARGEST_SPAN = 8 * MIB

Use = Callable[[bytes, memoryview], None]
"""Called on a worker thread with a blob's id and its content, which is gone afterwards."""


@dataclass(slots=True)
class Frame:
    """A frame, and which of its blobs are wanted: id, start, length."""

    offset: int
    stored: int
    raw: int
    blobs: list[tuple[bytes, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Span:
    """Frames of one pack that are fetched by one request."""

    pack: PackName
    frames: list[Frame]

    @property
    def start(self) -> int:
        """Its first byte in the pack."""
        return self.frames[0].offset

    @property
    def length(self) -> int:
        """How many bytes are fetched."""
        return self.frames[-1].offset + self.frames[-1].stored - self.start


def locate(repo: Repository, blob: bytes) -> Where:
    """Return where a blob lies. Raises GoneError where it is in no pack."""
    where = repo.index.find(blob)
    if where is None:
        raise GoneError(f"blob {blob.hex()} is in no pack that the index knows")
    return where


def plan(repo: Repository, blobs: Iterable[bytes]) -> list[Span]:
    """Return the requests for some blobs, in the order in which they are asked for first.

    Raises GoneError for one that is in no pack.
    """
    packs: dict[bytes, tuple[PackName, dict[int, Frame]]] = {}
    for blob in blobs:
        where = locate(repo, blob)
        _, frames = packs.setdefault(where.pack.name, (where.pack, {}))
        frame = frames.setdefault(where.offset, Frame(where.offset, where.stored, where.raw))
        frame.blobs.append((blob, where.start, where.length))
    spans: list[Span] = []
    for pack, frames in packs.values():
        last: Span | None = None
        for offset in sorted(frames):
            frame = frames[offset]
            if last is not None:
                end = last.start + last.length
                near = offset - end <= GAP
                if near and offset + frame.stored - last.start <= LARGEST_SPAN:
                    last.frames.append(frame)
                    continue
            last = Span(pack, [frame])
            spans.append(last)
    return spans


class Fetcher:
    """Fetches spans for one restore or verification; close it."""

    def __init__(self, repo: Repository, limits: Limits, *, verify: bool = True) -> None:
        self.fetched = 0
        """Bytes that came from the store."""
        self.pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="restore")
        self._repo, self._verify = repo, verify
        self._pace = Pace(repo.clock, limits.bytes_per_second)
        # one more than there are requests, so that threads have work while answers come
        self._slots = asyncio.Semaphore(limits.uploads + 1)

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(cancel_futures=True)

    async def fetch(self, spans: Iterable[Span], use: Use) -> None:
        """Hand out all blobs of some spans. Raises SnapshotDamagedError, ObjectStoreError."""
        running: set[asyncio.Task[None]] = set()
        try:
            for span in spans:
                await self._slots.acquire()
                task = asyncio.create_task(self._one(span, use))
                task.add_done_callback(lambda _: self._slots.release())
                for one in [one for one in running if one.done()]:
                    running.remove(one)
                    one.result()
                running.add(task)
            await asyncio.gather(*running)
        finally:
            for one in running:
                one.cancel()
            if running:
                await asyncio.wait(running)

    async def _one(self, span: Span, use: Use) -> None:
        loop = asyncio.get_running_loop()
        for attempt in (1, 2):
            await self._pace.take(span.length)
            try:
                data = await self._repo.read_part(
                    self._repo.pack_key(span.pack.name), span.start, span.length
                )
                self.fetched += len(data)
                await loop.run_in_executor(self.pool, self._open, span, data, use)
            except NotFoundError:
                raise GoneError(f"pack {span.pack.name.hex()} is gone") from None
            except SnapshotDamagedError:
                # the bytes may have been bent on their way: the second answer decides
                if attempt > 1:
                    raise
            else:
                return

    def _open(self, span: Span, data: bytes, use: Use) -> None:
        opener = cipher(self._repo.keys, span.pack.salt)
        what = f"pack {span.pack.name.hex()}"
        view = memoryview(data)
        for frame in span.frames:
            at = frame.offset - span.start
            sealed = view[at : at + frame.stored]
            plain = memoryview(open_frame(opener, frame.offset, sealed, frame.raw, what))
            for blob, start, length in frame.blobs:
                content = plain[start : start + length]
                if self._verify and name_blob(self._repo.keys, content) != blob:
                    raise SnapshotDamagedError(f"{what}: blob {blob.hex()} is damaged")
                use(blob, content)


async def read_blobs(fetcher: Fetcher, repo: Repository, blobs: list[bytes]) -> list[bytes]:
    """Return the content of a few small blobs, in their order."""
    found: dict[bytes, bytes] = {}

    def keep(blob: bytes, content: memoryview) -> None:
        found[blob] = bytes(content)

    await fetcher.fetch(plan(repo, dict.fromkeys(blobs)), keep)
    return [found[blob] for blob in blobs]


def parse_id(manifest: str) -> bytes:
    """Return the id of a manifest by its hex name. Raises SnapshotDamagedError."""
    try:
        blob = bytes.fromhex(manifest)
    except ValueError:
        blob = b""
    if len(blob) != ID_BYTES:
        raise SnapshotDamagedError(f"manifest {manifest!r} is no name of a manifest")
    return blob
