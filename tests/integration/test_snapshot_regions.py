"""Two real S3 servers as two regions, and processes that are killed with signal 9 while they work.

What was acknowledged is in the first region, whole; after one undisturbed copy it is in the second,
whole; and after a collection neither has anything that nothing needs.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from copying import PREFIX, collect, open_repository
from dsec.api.snapshot import SnapshotRef
from dsec.snapshots.layout import under
from dsec.snapshots.limits import Pace
from dsec.snapshots.refs import list_refs
from dsec.snapshots.replicating import Copier
from dsec.snapshots.surety import Dated, Surety
from dsec.snapshots.verifying import verify
from dsec.snapshots.walking import needed_packs
from dsec.world.clock import SystemClock, system_randomness, until
from dsec.world.objects import ObjectStoreError
from dsec.world.s3 import S3Config, S3Objects
from dsec.world.s3bytes import S3Bytes
from s3_server import s3_server

PROGRAM = Path(__file__).with_name("copying.py")
KILLS = 2
"""Of three processes each; the full count is a soak test's."""
START_SECONDS = 90.0
"""A process imports and saves for the first time within this, on a machine that is busy."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[S3Config]]:
    """Two servers that run."""
    with ExitStack() as stack:
        found = []
        for name in ("a", "b"):
            folder = tmp_path_factory.mktemp(name)
            found.append(stack.enter_context(s3_server(folder)))
        yield found


async def _ready(configs: list[S3Config]) -> list[S3Objects]:
    stores = [S3Objects(config) for config in configs]
    for store in stores:
        for attempt in range(300):
            try:
                await store.ensure_bucket()
                break
            except ObjectStoreError:
                if attempt == 299:
                    raise
                await asyncio.sleep(0.2)
        for info in await store.list(""):
            await store.delete(info.key)
    return stores


@dataclass
class Worker:
    """A process under way; `said` is where its output goes."""

    process: "subprocess.Popen[bytes]"
    said: Path

    @classmethod
    def start(cls, said: Path, verb: str, configs: list[S3Config], **more: object) -> "Worker":
        """Start a process that works until it is killed."""
        order = {"verb": verb, "stores": [asdict(one) for one in configs], **more}
        with said.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=output
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode())
        process.stdin.close()
        return cls(process, said)

    def acknowledged(self) -> list[SnapshotRef]:
        """Return what it has said in whole lines."""
        lines = self.said.read_bytes().splitlines(keepends=True)
        return [SnapshotRef.model_validate_json(one) for one in lines if one.endswith(b"\n")]

    def kill(self) -> None:
        """Kill it with signal 9; that it still ran is part of the test."""
        assert self.process.poll() is None, "it ended by itself"
        self.process.kill()
        self.process.wait()


async def _whole(store: S3Bytes, refs: list[SnapshotRef]) -> None:
    repo = await open_repository(store)
    listed = (await list_refs(store, PREFIX)).refs
    for ref in refs:
        assert ref in listed
        report = await verify(repo, ref.manifest)
        assert (report.problems, report.files) == ([], ref.files)


async def _no_orphans(store: S3Bytes) -> None:
    repo = await open_repository(store)
    needed = set()
    for ref in (await list_refs(store, PREFIX)).refs:
        needed |= await needed_packs(repo, ref.manifest)
    packs = {info.key.rpartition("/")[2] for info in await store.list(PREFIX + "packs/")}
    assert packs == needed
    assert await store.list(under(PREFIX, "writers/")) == []


async def _chaos(servers: list[S3Config], folder: Path, kills: int, seed: int) -> None:
    plain = await _ready(servers)
    noise = random.Random(seed)  # noqa: S311 - moments, no secrets
    a, b = (S3Bytes(config) for config in servers)
    await open_repository(a)  # who collects makes no repository, nor does who copies
    acknowledged: list[SnapshotRef] = []
    (folder / "tree").mkdir()
    for round_ in range(kills):
        tree, number = str(folder / "tree"), seed * 1000 + round_
        saver = Worker.start(
            folder / f"{round_}-save", "save", servers[:1], folder=tree, seed=number
        )
        running = [
            saver,
            Worker.start(folder / f"{round_}-copy", "copy", servers),
            Worker.start(folder / f"{round_}-collect", "collect", servers[:1]),
        ]
        left = until(SystemClock(), START_SECONDS)
        while not saver.acknowledged() and left() > 0:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        await asyncio.sleep(noise.random() * 1.5)
        noise.shuffle(running)
        for one in running:
            one.kill()
            await asyncio.sleep(noise.random() * 0.3)
        assert saver.acknowledged(), "a machine so slow says nothing"
        acknowledged += saver.acknowledged()
    await _whole(a, acknowledged)
    done = await Copier(a, b, PREFIX, SystemClock(), system_randomness()).run()
    assert done.whole, done.failed
    await _whole(b, acknowledged)
    for place in (a, b):
        await collect(place)
        await _whole(place, acknowledged[-3:])
        await _no_orphans(place)
    for store in plain:
        store.close()


@pytest.mark.timeout(300)
async def test_processes_that_are_killed_lose_nothing(
    servers: list[S3Config], tmp_path: Path
) -> None:
    """Savers, copiers and collectors at once, killed in mid-work, a few times."""
    await _chaos(servers, tmp_path, KILLS, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_a_thousand_kills_lose_nothing(servers: list[S3Config], tmp_path: Path) -> None:
    """The same, until a thousand processes were killed."""
    for seed in range(12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        await _chaos(servers, folder, 28, seed=seed + 2)


async def test_a_copy_keeps_its_rate_and_does_not_repeat_itself(servers: list[S3Config]) -> None:
    """A bandwidth budget is kept, and a second run sends nothing."""
    plain = await _ready(servers)
    a, b = (S3Bytes(config) for config in servers)
    repo = await open_repository(a)
    for number in range(4):
        # not sealed, but named by its hash: all that a copier looks at
        from dsec.snapshots.sealing import name_object

        body = bytes([number]) * 500_000
        await a.put_if_absent(repo.pack_key(bytes.fromhex(name_object(body))), body)
    clock = SystemClock()
    began = time.monotonic()
    pace = Pace(clock, 1_000_000)
    done = await Copier(a, b, PREFIX, clock, system_randomness(), pace=pace).run()
    took = time.monotonic() - began
    assert (done.packs, done.bytes) == (4, 2_000_000)
    assert took >= 1.4, "four times half a second, the first at once"
    again = await Copier(a, b, PREFIX, clock, system_randomness(), pace=pace).run()
    assert (again.objects, again.whole) == (0, True)
    assert isinstance(plain[0], Dated)
    assert await Surety(plain[0], PREFIX, clock).why_unsure() == ""
    for one in plain:
        one.close()
