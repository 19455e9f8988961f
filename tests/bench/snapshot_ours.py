"""One save, restore or verification by dsec in a process of its own: what `bench_snapshot` runs.

Reads a JSON order from standard input and prints a JSON answer. Time is told twice: of the whole
process, and without the interpreter's start, which an agent pays once in its life.
"""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsec.snapshots.keys import FileKeys
from dsec.snapshots.limits import Limits
from dsec.snapshots.repository import Repository
from dsec.snapshots.restoring import restore
from dsec.snapshots.saving import save
from dsec.snapshots.scanning import Source
from dsec.snapshots.statcache import StatCache
from dsec.snapshots.verifying import verify
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.s3bytes import S3Bytes
from dsec.world.s3config import S3Config
from snapshot_told import Watch, leave


async def work(order: dict[str, Any]) -> dict[str, Any]:
    """Do one thing and say what it took."""
    randomness = system_randomness()
    keys = FileKeys((("bench", bytes(32)),), randomness)
    limits = Limits()
    objects = S3Bytes(S3Config(**order["store"]))
    watch = Watch()
    repo = await Repository.open(objects, order["prefix"], keys, SystemClock(), randomness)
    if order["verb"] == "save":
        cache = StatCache(Path(order["cache"]))
        saved = await save(repo, [Source(Path(order["source"]))], cache=cache, limits=limits)
        answer: dict[str, Any] = {
            "manifest": saved.manifest,
            "files": saved.files,
            "stored_bytes": saved.stored_bytes,
        }
    elif order["verb"] == "restore":
        target = Path(order["target"])
        answer = asdict(await restore(repo, order["manifest"], target, limits=limits))
    else:
        answer = asdict(await verify(repo, order["manifest"], limits=limits))
    return answer | watch.told()


if __name__ == "__main__":
    leave(asyncio.run(work(json.load(sys.stdin))))
