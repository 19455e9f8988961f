"""Packs that are mostly dead: what lives in them moves to new ones, so that a collector can go on.

Nothing is removed here. The live blobs of a pack are written once more, and an index object that
sorts before all others makes every reader find them in their new place; the old pack is then needed
by nothing, and goes with the next collection like any other, by the rules that keep running savers
and readers safe.
"""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass

from dsec.snapshots.fetching import locate
from dsec.snapshots.index import PackName, Table, Where, joined
from dsec.snapshots.leases import leases, working
from dsec.snapshots.limits import Limits, Pace
from dsec.snapshots.packs import PackBuilder, open_frame
from dsec.snapshots.refs import list_refs, parked
from dsec.snapshots.repository import Repository
from dsec.snapshots.sealing import SALT_BYTES, SnapshotDamagedError, cipher, name_blob
from dsec.snapshots.walking import needed_blobs

LIVE_SHARE = 0.5
"""A pack of which less is needed moves: at a half, a move frees as much as it writes."""
MOST_BYTES = 1 << 30
"""Of packs that one run empties."""
MOST_BLOBS = 2_000_000
"""Blobs that are remembered at a time: some 300 MB. Larger repositories are not repacked."""


@dataclass(frozen=True, slots=True)
class Repacked:
    """What a run moved: packs that nothing needs now, and the bytes that it wrote."""

    packs: tuple[str, ...] = ()
    written_bytes: int = 0
    freed_bytes: int = 0
    """Of those packs, once they are collected."""


async def repack(
    repo: Repository,
    *,
    live_share: float = LIVE_SHARE,
    most_bytes: int = MOST_BYTES,
    limits: Limits | None = None,
) -> Repacked:
    """Empty the packs of which least is needed. Killed anywhere, it is begun again.

    Raises SnapshotDamagedError where something that is needed cannot be read (nothing is changed
    then), ObjectStoreError.
    """
    async with working(
        repo.objects, repo.prefix, what="repacking", clock=repo.clock, randomness=repo.randomness
    ) as work:
        await repo.refresh()
        if len(repo.index) > MOST_BLOBS:
            return Repacked()
        live = await _live(repo)
        low = [
            name
            for name in _emptiest(repo.index.packs(), live, live_share, most_bytes)
            # these go already, with what is in them
            if name.hex() not in work.avoid
        ]
        if not low:
            return Repacked()
        mover = _Mover(repo, limits or Limits())
        for name in low:
            await mover.move(live[name])
        await mover.finish()
        sizes = {pack.name: pack.size for pack in repo.index.packs()}
        await repo.refresh()
    return Repacked(
        tuple(sorted(name.hex() for name in low)),
        mover.written,
        sum(sizes[name] for name in low),
    )


Places = dict[bytes, Where]
"""Where each live blob of one pack lies, by its id."""


async def _live(repo: Repository) -> dict[bytes, Places]:
    """Return the live blobs of each pack."""
    listed = await list_refs(repo.objects, repo.prefix)
    held = [ref for lease in await leases(repo.objects, repo.prefix) for ref in lease.holds]
    aside = await parked(repo.objects, repo.prefix)
    found: dict[bytes, Places] = defaultdict(dict)
    for manifest in sorted({ref.manifest for ref in (*listed.refs, *aside, *held)}):
        async with aclosing(needed_blobs(repo, manifest)) as needed:
            async for blobs in needed:
                for blob in blobs:
                    where = locate(repo, blob)
                    found[where.pack.name][blob] = where
    return found


def _emptiest(
    packs: Iterable[PackName], live: dict[bytes, Places], share: float, most: int
) -> list[bytes]:
    """Return the packs to empty, those of which least is needed first. Pure."""
    rows = []
    for pack in packs:
        places = live.get(pack.name)
        if not places:
            continue  # needed by nothing: the collector's
        # of a frame that several blobs share, the part that lives
        alive = sum(one.stored * one.length / max(one.raw, 1) for one in places.values())
        if alive < share * pack.size:
            rows.append((alive / pack.size, pack))
    chosen, total = [], 0
    for _, pack in sorted(rows, key=lambda row: (row[0], row[1].name)):
        if total + pack.size > most:
            break
        total += pack.size
        chosen.append(pack.name)
    return chosen


class _Mover:
    """Writes blobs into new packs; one pack and one frame in memory."""

    def __init__(self, repo: Repository, limits: Limits) -> None:
        self.written = 0
        self._repo = repo
        self._builder = PackBuilder(repo.keys, limits.pack_bytes, limits.level)
        self._pace = Pace(repo.clock, limits.bytes_per_second)
        self._tables: list[Table] = []

    async def move(self, places: Places) -> None:
        """Move the live blobs of one pack, frame by frame."""
        frames: dict[int, dict[bytes, Where]] = defaultdict(dict)
        for blob, where in places.items():
            frames[where.offset][blob] = where
        for offset in sorted(frames):
            await self._frame(frames[offset])

    async def _frame(self, blobs: dict[bytes, Where]) -> None:
        repo, one = self._repo, next(iter(blobs.values()))
        await self._pace.take(one.stored)
        sealed = await repo.read_part(repo.pack_key(one.pack.name), one.offset, one.stored)
        what = f"pack {one.pack.name.hex()}"
        opener = cipher(repo.keys, one.pack.salt)
        plain = open_frame(opener, one.offset, sealed, one.raw, what)
        parts, rows, end = [], [], 0
        for blob, where in sorted(blobs.items(), key=lambda item: item[1].start):
            content = plain[where.start : where.start + where.length]
            if name_blob(repo.keys, content) != blob:
                raise SnapshotDamagedError(f"{what}: blob {blob.hex()} is not what its name says")
            parts.append(content)
            rows.append((blob, end, len(content)))
            end += len(content)
        raw = b"".join(parts)
        data = self._builder.compress(raw)
        if not self._builder.empty and not self._builder.fits(data):
            await self._send()
        if self._builder.empty:
            self._builder.begin(repo.randomness.randbytes(SALT_BYTES))
        self._builder.add(data, len(raw), rows)

    async def finish(self) -> None:
        """Send what is left, and say in the index where everything is now."""
        if not self._builder.empty:
            await self._send()
        # sorts before every date, and before what was repacked earlier: found first
        left = 10**17 - int(self._repo.clock.now().timestamp() * 1_000_000)
        _, body = await self._repo.write_table(joined(self._tables), f"0{left:017d}")
        self.written += len(body)

    async def _send(self) -> None:
        pack = self._builder.finish()
        await self._pace.take(len(pack.data))
        await self._repo.create(self._repo.pack_key(pack.name), pack.data)
        self._tables.append(pack.table)
        self.written += len(pack.data)
