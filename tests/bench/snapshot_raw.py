"""A plain copy of files to an S3 server and back, in a process of its own: no tool, no check.

What `bench_snapshot` measures snapshots against. The same client and the same size and number of
requests at a time as dsec's, so that what differs is the work on the bytes.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from dsec.snapshots.limits import Limits
from dsec.world.s3bytes import S3Bytes
from dsec.world.s3config import S3Config
from snapshot_told import Watch, leave

PART, AT_ONCE = Limits().pack_bytes, Limits().uploads


async def work(order: dict[str, Any]) -> dict[str, Any]:
    """Copy up or down and say what it took."""
    objects = S3Bytes(S3Config(**order["store"]))
    slots = asyncio.Semaphore(AT_ONCE)
    watch = Watch()

    async def up(handle: int, key: str, offset: int) -> None:
        async with slots:
            data = await asyncio.to_thread(os.pread, handle, PART, offset)
            await objects.put(key, data)

    async def down(handle: int, key: str, offset: int) -> None:
        async with slots:
            data, _ = await objects.get(key)
            await asyncio.to_thread(os.pwrite, handle, data, offset)

    path = Path(order["file"])
    flags = os.O_RDONLY if order["verb"] == "up" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    handle = os.open(path, flags, 0o600)
    size = os.fstat(handle).st_size if order["verb"] == "up" else order["size"]
    copy = up if order["verb"] == "up" else down
    parts = range(0, size, PART)
    await asyncio.gather(
        *(copy(handle, f"{order['prefix']}/{offset:015d}", offset) for offset in parts)
    )
    os.close(handle)
    return watch.told()


if __name__ == "__main__":
    leave(asyncio.run(work(json.load(sys.stdin))))
