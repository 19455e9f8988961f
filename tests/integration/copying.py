"""One saver, copier or collector in a process of its own, between two S3 servers; to be killed.

Reads a JSON order from standard input: the stores, what to do, and a seed. A saver prints a line
for each snapshot that was acknowledged.
"""

import asyncio
import json
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsec.api.snapshot import SnapshotKind, SnapshotRef
from dsec.snapshots.collecting import Collector
from dsec.snapshots.keys import FileKeys
from dsec.snapshots.leases import DoomedError, working
from dsec.snapshots.limits import Limits
from dsec.snapshots.needing import needs_of
from dsec.snapshots.refs import bury, next_seq, publish
from dsec.snapshots.replicating import Copier
from dsec.snapshots.repository import Repository
from dsec.snapshots.saving import save
from dsec.snapshots.scanning import Source
from dsec.snapshots.sealing import SnapshotDamagedError
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.s3 import S3Config
from dsec.world.s3bytes import S3Bytes

PREFIX, LINEAGE = "snapshots/team-a/", "exp/uid-1/worker/0"
PATIENCE = 3.0


async def open_repository(objects: S3Bytes) -> Repository:
    """Open the repository with the key that all processes share."""
    keys = FileKeys((("local", b"k" * 32),), system_randomness())
    return await Repository.open(objects, PREFIX, keys, SystemClock(), system_randomness())


async def saving(objects: S3Bytes, folder: Path, seed: int) -> None:
    """Change a few files and save, again and again."""
    noise = random.Random(seed)  # noqa: S311 - test data
    repo = await open_repository(objects)
    while True:
        for _ in range(3):
            path = folder / f"f{noise.randrange(12):02}"
            path.write_bytes(noise.randbytes(noise.randrange(1, 200_000)))
        ref = await _save(repo, folder)
        if ref is not None:
            print(ref.model_dump_json(by_alias=True), flush=True)  # noqa: T201 - its output


async def _save(repo: Repository, folder: Path) -> SnapshotRef | None:
    clock = repo.clock
    async with working(
        repo.objects, PREFIX, what="saving", clock=clock, randomness=repo.randomness
    ) as work:
        limits = Limits(workers=1, uploads=2, pack_bytes=4 << 20)
        saved = await save(repo, [Source(folder)], avoid=work.avoid, limits=limits)
        seq = await next_seq(repo.objects, PREFIX, LINEAGE)
        ref = SnapshotRef(
            tenant="team-a",
            project="p",
            lineage=LINEAGE,
            seq=seq,
            kind=SnapshotKind.STATE,
            sandbox=f"sb-{repo.randomness.randbytes(4).hex()}",
            incarnation=1,
            created=clock.now(),
            manifest=saved.manifest,
            files=saved.files,
            bytes=saved.bytes,
            stored_bytes=saved.stored_bytes,
        )
        ref = await publish(repo.objects, PREFIX, ref)
        try:
            await work.confirm(saved.packs)
        except DoomedError:
            await bury(repo.objects, PREFIX, ref, why="withdrawn", now=clock.now())
            return None
    return ref


async def copying(source: S3Bytes, target: S3Bytes) -> None:
    """Copy again and again."""
    while True:
        await Copier(source, target, PREFIX, SystemClock(), system_randomness()).run()


async def collect(objects: S3Bytes) -> None:
    """Run one cycle of collection."""
    repo = await open_repository(objects)

    await Collector(
        objects, PREFIX, SystemClock(), needs_of(repo), repo.forget, patience=PATIENCE, settle=0.2
    ).collect()


async def work(order: dict[str, Any]) -> None:
    """Do what is asked, until killed."""
    stores = [S3Bytes(S3Config(**one)) for one in order["stores"]]
    verb = order["verb"]
    if verb == "save":
        await saving(stores[0], Path(order["folder"]), order["seed"])
    elif verb == "copy":
        await copying(stores[0], stores[1])
    while True:
        with suppress(SnapshotDamagedError):
            await collect(stores[0])


if __name__ == "__main__":
    asyncio.run(work(json.load(sys.stdin)))
