"""A repository from one S3 server to another, by dsec or plainly, in a process of its own."""

import asyncio
import json
import sys
from typing import Any

from dsec.snapshots.replicating import AT_ONCE, Copier
from dsec.world.clock import SystemClock, system_randomness
from dsec.world.s3bytes import S3Bytes
from dsec.world.s3config import S3Config
from snapshot_told import Watch, leave


async def plain(source: S3Bytes, target: S3Bytes, prefix: str) -> None:
    """Copy every object, nothing checked."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(key: str) -> None:
        async with slots:
            data, _ = await source.get(key)
            await target.put(key, data)

    await asyncio.gather(*(one(info.key) for info in await source.list(prefix)))


async def work(order: dict[str, Any]) -> dict[str, Any]:
    """Copy and say what it took."""
    source, target = S3Bytes(S3Config(**order["store"])), S3Bytes(S3Config(**order["target"]))
    watch = Watch()
    if order["verb"] == "plain":
        await plain(source, target, order["prefix"])
    else:
        clock, randomness = SystemClock(), system_randomness()
        copied = await Copier(source, target, order["prefix"], clock, randomness).run()
        if not copied.whole:
            raise RuntimeError(f"not all was copied: {copied.failed}")
    return watch.told()


if __name__ == "__main__":
    leave(asyncio.run(work(json.load(sys.stdin))))
