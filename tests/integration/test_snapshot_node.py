"""Snapshots of real sandboxes: taken while they run, restored by another agent over its root."""

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_world import eventually
from dsec.agent.capture import held_still
from dsec.api.reasons import EndReason
from dsec.api.sandbox import SandboxSpec
from dsec.api.snapshot import Consistency, RestoreFrom, SnapshotKind, SnapshotPlan
from dsec.world.substrate import SubstrateError
from snapshot_nodes import PREFIX, Site, SnapshotGateway, lineage
from substrate_world import World, world

pytestmark = pytest.mark.root
MARKS = {"consistency": Consistency.MARKS}

TRAINER = """
import json, pathlib, random, sys, time, urllib.request
state, rng, step = pathlib.Path("/workspace/run/state.json"), random.Random(7), 0
state.parent.mkdir(exist_ok=True)
if state.exists():
    saved = json.loads(state.read_text())
    step, inner = saved["step"], saved["rng"]
    rng.setstate((inner[0], tuple(inner[1]), inner[2]))
while True:
    step += 1
    print(step, rng.random(), flush=True)
    with state.open("w") as file:
        text = json.dumps({"step": step, "rng": rng.getstate()})
        file.write(text[:50]); file.flush(); time.sleep(0.02); file.write(text[50:])
    mark = json.dumps({"step": step, "stage": "warm-up"}).encode()
    url = "http://ctrl-plane:8080/v1/snapshot/mark"
    urllib.request.urlopen(urllib.request.Request(url, mark), timeout=60).read()
"""
"""Writes its state in two halves, and marks when it is whole."""

LISTENER = """
import json, pathlib, threading, time, urllib.request
busy = threading.Lock()
def notices():
    number = 0
    while True:
        url = f"http://ctrl-plane:8080/v1/snapshot/notice?after={number}"
        told = json.loads(urllib.request.urlopen(url, timeout=60).read())
        number = told["number"]
        if told["due"]:
            with busy:
                time.sleep(5)
threading.Thread(target=notices, daemon=True).start()
count = 0
while True:
    count += 1
    with busy, open("/workspace/whole", "w") as file:
        file.write(f"{count} "); file.flush(); time.sleep(0.02); file.write(f"{count}")
    print(count, flush=True)
    time.sleep(0.005)
"""
"""Knows notices, makes no marks: from a notice on it writes nothing for a while."""


@dataclass
class Two:
    """Two nodes with a store between them."""

    gateway: SnapshotGateway
    first: World
    second: World
    here: Site
    there: Site

    def spec(self, *command: str, **more: Any) -> SandboxSpec:
        """Return a specification of a fresh sandbox; several fit a small node."""
        return self.first.spec(*command, limits={"cpu_milli": 300}, **more)

    async def out(self, site: Site, sandbox: str) -> str:
        """Return what a sandbox has printed."""
        chunks = [c async for c in site.substrate.logs(sandbox, follow=False)]
        return b"".join(c.data for c in chunks if c.stream == "stdout").decode()

    async def lose(self, sandbox: str) -> None:
        """Take the first node's sandbox away at once, as the loss of the node does."""
        await self.here.close()
        await self.first.substrate.destroy(sandbox)

    async def sh(self, spec: SandboxSpec) -> str:
        """Run a restored sandbox on the second node to its end and return what it printed."""
        sandbox = await self.there.create(spec)
        end = await self.there.ended(sandbox)
        assert end.reason is EndReason.COMPLETED, end
        return end.stdout


@pytest.fixture
async def two(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Two]:
    """Two agents with roots of their own on this machine."""
    images = tmp_path_factory.getbasetemp() / "substrate-images"
    gateway = SnapshotGateway()
    async with AsyncExitStack() as held:
        worlds = []
        for name in ("a", "b"):
            folder = tmp_path / name
            worlds.append(await held.enter_async_context(world(folder / "substrate", images)))
        sites = [
            Site(gateway, w.substrate, tmp_path / name)
            for name, w in zip(("a", "b"), worlds, strict=True)
        ]
        for site in sites:
            await site.start()
            held.push_async_callback(site.close)
        yield Two(gateway, worlds[0], worlds[1], sites[0], sites[1])


def plan(*kinds: SnapshotKind, **more: Any) -> SnapshotPlan:
    """Return a plan; without kinds that of state, without a final snapshot, for no marks."""
    usual = {"final": False, "consistency": Consistency.FREEZE}
    return SnapshotPlan(kinds=list(kinds) or [SnapshotKind.STATE], **(usual | more))


def steps(text: str) -> list[tuple[int, float]]:
    """Return the whole lines of a trainer's output: step and action."""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [(int(step), float(action)) for step, action in lines]


async def test_a_run_goes_on_elsewhere_with_the_same_actions(two: Two) -> None:
    """Snapshots come by plan at marks; what is restored acts as one that never stopped."""
    spec = two.spec("python3", "-c", TRAINER, snapshot=plan(interval_seconds=0.3, **MARKS))
    box = await two.here.create(spec)
    await eventually(lambda: len(two.gateway.published) >= 2)
    await two.lose(box)
    newest = (await two.gateway.refs(lineage(box)))[-1]
    assert newest.consistency == "marks"
    assert newest.meta["stage"] == "warm-up"
    again = two.spec("python3", "-c", TRAINER, restore=RestoreFrom(lineage=lineage(box)))
    other = await two.there.create(again)
    await two.second.said(other, b"\n")
    (row,) = await two.there.rows(other, "snapshot-restored")
    assert [one["step"] for one in row["steps"]] == ["unpack", "metadata", "merge"]
    assert row["steps"][1]["meta"]["step"] == newest.meta["step"]
    went_on = steps(await two.out(two.there, other))
    rng = random.Random(7)  # noqa: S311 - the same as the program's
    actions = [rng.random() for _ in range(went_on[-1][0])]
    assert went_on[0][0] == newest.meta["step"] + 1
    assert [action for _, action in went_on] == actions[went_on[0][0] - 1 :]


async def test_a_snapshot_that_is_due_while_a_file_is_written_waits_for_the_mark(two: Two) -> None:
    """Asked at any moment: the file is whole, and the program goes on after its copy."""
    spec = two.spec("python3", "-c", TRAINER, snapshot=plan(**MARKS))
    box = await two.here.create(spec)
    await two.first.said(box, b"3 ")
    refs = [await two.here.snapshot(box) for _ in range(2)]
    before = steps(await two.out(two.here, box))[-1][0]
    await two.first.said(box, f"{before + 2} ".encode())
    assert [ref.consistency for ref in refs] == ["marks", "marks"]
    assert refs[1].held_seconds < 10
    text = await two.sh(
        two.spec("cat", "/workspace/run/state.json", restore=RestoreFrom(lineage=lineage(box)))
    )
    assert json.loads(text)["step"] == refs[1].meta["step"]


MAPPED = """
import json, mmap, struct, urllib.request
file = open("/workspace/mapped", "w+b"); file.truncate(16 << 20)
memory, step = mmap.mmap(file.fileno(), 0), 0
memory.write(b"x" * (16 << 20))
while True:
    step += 1
    for place in (5000, 15_000_000):
        memory[place : place + 8] = struct.pack("<q", step)
    mark = json.dumps({"step": step}).encode()
    url = "http://ctrl-plane:8080/v1/snapshot/mark"
    urllib.request.urlopen(urllib.request.Request(url, mark), timeout=60).read()
    print(step, flush=True)
"""
READ = """
import struct
file = open("/workspace/mapped", "rb")
for place in (5000, 15_000_000):
    file.seek(place); print(struct.unpack("<q", file.read(8))[0])
"""


async def test_what_is_written_through_mapped_memory_is_copied_as_of_the_mark(two: Two) -> None:
    """It changes after the first pass without a new time of the file, again and again."""
    spec = two.spec("python3", "-c", MAPPED, snapshot=plan(**MARKS))
    box = await two.here.create(spec)
    await two.first.said(box, b"20\n")
    for _ in range(2):
        ref = await two.here.snapshot(box)
        again = two.spec("python3", "-c", READ, restore=RestoreFrom(lineage=lineage(box)))
        assert (await two.sh(again)).split() == [str(ref.meta["step"])] * 2


async def test_what_is_destroyed_while_it_is_copied_is_no_snapshot(two: Two) -> None:
    """Whoever is killed is thawed first: nothing says that its files belong together."""
    box = await two.here.create(two.spec("sleep", "1000"))
    capture = two.first.substrate.capture(box, SnapshotKind.DISK, [], still=True)
    await two.here.close()
    await capture.__aenter__()
    await two.first.substrate.destroy(box)
    with pytest.raises(SubstrateError, match="was destroyed while it was copied"):
        await capture.__aexit__(None, None, None)


async def test_a_program_without_marks_gets_a_notice_and_holds_its_writes(two: Two) -> None:
    """The copy has no half-written file, nothing was killed, and writing resumes."""
    spec = two.spec("python3", "-c", LISTENER, snapshot=plan(consistency=Consistency.FREEZE))
    box = await two.here.create(spec)
    await two.first.said(box, b"20\n")
    ref = await two.here.snapshot(box)
    count = int((await two.out(two.here, box)).split()[-1])
    await two.first.said(box, f"\n{count + 3}\n".encode())
    assert ref.consistency == "freeze"
    again = two.spec("cat", "/workspace/whole", restore=RestoreFrom(lineage=lineage(box)))
    left, right = (await two.sh(again)).split()
    assert left == right


@pytest.mark.case("try#163")
async def test_what_was_removed_from_the_image_stays_removed(two: Two) -> None:
    """A folder that was made anew is empty after a restore, and a removed file does not return."""
    script = (
        "rm -r /usr/share/zoneinfo /etc/os-release 2>/dev/null; mkdir -p /usr/share/zoneinfo; "
        "rm -r /etc/init.d /etc/profile; mkdir /etc/init.d; echo new > /etc/init.d/mine; "
        "ln -s /etc/hostname /root/link; echo ready; sleep 1000"
    )
    spec = two.spec("sh", "-c", script, snapshot=plan(SnapshotKind.DISK))
    box = await two.here.create(spec)
    await two.first.said(box, b"ready\n")
    await two.here.snapshot(box)
    look = "ls /etc/init.d; test -e /etc/profile || echo gone; cat /root/link"
    again = two.spec("sh", "-c", look, restore=RestoreFrom(lineage=lineage(box)))
    told = await two.sh(again)
    # what makes it itself is its own, not the old one's
    assert told == f"mine\ngone\n{again.identity.id}\n"


async def test_a_damaged_newest_snapshot_gives_way_to_the_one_before(two: Two) -> None:
    """The journal says which one was damaged, and the task continues from an earlier time."""
    script = "for n in 1 2; do echo $n > /workspace/n; echo at $n; read line < /tmp/go$n; done"
    fifos = "mkfifo /tmp/go1 /tmp/go2; "
    spec = two.spec("sh", "-c", fifos + script, snapshot=plan())
    box = await two.here.create(spec)
    await two.first.said(box, b"at 1\n")
    old = await two.here.snapshot(box)
    await two.first.exec(box, "sh", "-c", "echo > /tmp/go1")
    await two.first.said(box, b"at 2\n")
    new = await two.here.snapshot(box)
    for pack in two.gateway.needs[new.manifest] - two.gateway.needs[old.manifest]:
        key = f"{PREFIX}packs/{pack[:2]}/{pack}"
        data, _ = await two.gateway.objects.get(key)
        await two.gateway.objects.put(key, bytes(len(data)))
    again = two.spec("cat", "/workspace/n", restore=RestoreFrom(lineage=lineage(box)))
    assert await two.sh(again) == "1\n"
    (damaged,) = await two.there.rows(again.identity.id, "snapshot-damaged")
    (restored,) = await two.there.rows(again.identity.id, "snapshot-restored")
    assert (damaged["seq"], restored["seq"]) == (new.seq, old.seq)


@pytest.mark.case("AgentENV#33", "substrate#1524", "nibrun#410", "mitos#6")
async def test_forks_have_names_random_numbers_and_the_time_of_their_own(two: Two) -> None:
    """From their first act on: nothing of a process is copied, and the clock is the node's."""
    write = "echo kept > /workspace/kept; echo ready; sleep 1000"
    spec = two.spec("sh", "-c", write, snapshot=plan(SnapshotKind.DISK))
    box = await two.here.create(spec)
    await two.first.said(box, b"ready\n")
    await two.here.snapshot(box)
    first_acts = (
        "import json, os, socket, time, uuid; told = dict(uuid=str(uuid.uuid4()), now=time.time(), "
        "random=os.urandom(16).hex(), host=socket.gethostname(), id=os.environ['DSEC_SANDBOX_ID'], "
        "file=json.load(open('/workspace/.dsec/identity.json'))['sandbox_id'], "
        "kept=open('/workspace/kept').read(), "
        "fork=json.load(open(os.environ['DSEC_RESTORE_FILE']))['fork']); print(json.dumps(told))"
    )
    begun = time.time()
    forks = [
        two.spec("python3", "-c", first_acts, restore=RestoreFrom(lineage=lineage(box), fork=True))
        for _ in range(4)
    ]
    told = [json.loads(text) for text in await asyncio.gather(*map(two.sh, forks))]
    for name in ("uuid", "random", "host", "id", "file"):
        assert len({one[name] for one in told}) == len(forks), name
    assert all(one["host"] == one["id"] == one["file"] for one in told)
    assert all(one["kept"] == "kept\n" and one["fork"] for one in told)
    assert all(begun - 0.1 <= one["now"] <= time.time() + 0.1 for one in told)


@pytest.mark.case("E2B#884", "E2B#1104")
async def test_each_restore_has_what_all_before_it_wrote(two: Two) -> None:
    """Written, saved by plan, restored, written more, saved, restored: everything is there."""
    big = "head -c 8000000 /dev/urandom > /workspace/a; sha256sum < /workspace/a; sleep 1000"
    saved = plan(interval_seconds=1.0)
    box = await two.here.create(two.spec("sh", "-c", big, snapshot=saved))
    await two.first.said(box, b"-\n")
    digest = (await two.out(two.here, box)).split()[0]
    await two.here.snapshot(box)
    more = "echo b > /workspace/b; echo ready; sleep 1000"
    second = two.spec("sh", "-c", more, snapshot=plan(), restore=RestoreFrom(lineage=lineage(box)))
    other = await two.there.create(second)
    await two.second.said(other, b"ready\n")
    await two.there.snapshot(other)
    third = two.spec(
        "sh", "-c", "sha256sum < /workspace/a; cat /workspace/b",
        restore=RestoreFrom(lineage=lineage(other)),
    )  # fmt: skip
    assert (await two.sh(third)).split() == [digest, "-", "b"]


async def test_a_held_sandbox_stays_frozen_and_goes_on_when_it_is_let(two: Two) -> None:
    """For a move; and where no gateway answers it goes on by itself, and says so."""
    count = "n=0; while true; do n=$((n+1)); echo $n; sleep 0.01; done"
    box = await two.here.create(
        two.spec(
            "sh",
            "-c",
            count,
            snapshot=plan(),
        )
    )
    await two.first.said(box, b"5\n")
    await two.here.snapshot(box, hold=True)
    still = await two.out(two.here, box)
    await asyncio.sleep(0.2)
    assert await two.out(two.here, box) == still
    agent = two.here.agent
    assert agent is not None
    await agent.resume(box)
    await two.first.said(box, f"\n{int(still.split()[-1]) + 2}\n".encode())
    two.gateway.silent = True
    with pytest.raises(Exception, match="control plane unavailable"):
        await two.here.snapshot(box, hold=True)
    before = await two.out(two.here, box)
    await two.first.said(box, f"\n{int(before.split()[-1]) + 2}\n".encode())
    two.gateway.silent = False


async def test_what_a_dead_agent_left_frozen_goes_on_with_the_next(two: Two) -> None:
    """Processes and file system: both are let go, whoever held them."""
    count = "n=0; while true; do n=$((n+1)); echo $n > /workspace/n; echo $n; sleep 0.01; done"
    box = await two.here.create(two.spec("sh", "-c", count))
    await two.first.said(box, b"5\n")
    substrate = two.first.substrate
    await two.here.close()
    async with substrate.capture(box, SnapshotKind.DISK, [], still=True):
        still = await two.out(two.here, box)
        await asyncio.sleep(0.1)
        assert await two.out(two.here, box) == still
        # the one that holds the file system dies, too
        for pid in _holders():
            os.kill(pid, signal.SIGKILL)
        substrate._live.clear()
        assert [one.identity.id for one, _ in await substrate.adopt()] == [box]
        await two.first.said(box, f"\n{int(still.split()[-1]) + 3}\n".encode())


async def test_a_file_system_in_memory_says_that_it_cannot_be_frozen(two: Two) -> None:
    """It is copied while the processes stand still; nothing else can write to it."""
    fd = os.open("/dev/shm", os.O_RDONLY | os.O_DIRECTORY)
    try:
        async with held_still(two.first.substrate.launcher.init, fd) as frozen:
            assert not frozen
    finally:
        os.close(fd)


def _holders() -> list[int]:
    """Return the children of this process that hold a file system still."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words = (path / "cmdline").read_text().split("\0")
            if parent == os.getpid() and words[1:2] == ["hold"]:
                found.append(int(path.name))
    return found
