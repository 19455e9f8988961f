"""Crashes: of the agent, of PID 1, between the steps of a create; other runtimes and disks."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from dsec.agent.records import Record
from dsec.api.reasons import EndReason
from dsec.world.substrate import SubstrateError
from substrate_world import PATIENCE, World, base_image, eventually, world

pytestmark = pytest.mark.root

AGENT = """
import asyncio, os, sys
from pathlib import Path
from substrate_world import *
from dsec.agent.images import ImageStore
from dsec.agent.substrates.oci import OciSubstrate
from dsec.local.initbin import ensure_init

async def main():
    state, images, cgroup = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    store = ImageStore(images, local_roots=True)
    substrate = OciSubstrate(state, init=ensure_init(), images=store, cgroup=cgroup)
    here = World(substrate, base_image())
    count = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
    names = [
        await here.begin(here.spec("sh", "-c", count, heartbeat_seconds=0.3)),
        await here.begin(here.spec("sh", "-c", "sleep 0.5; echo over; exit 4")),
    ]
    idle = here.spec("echo", "later")
    await substrate.create(idle)
    print(*names, idle.identity.id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image store that the tests of a session share."""
    return tmp_path_factory.getbasetemp() / "substrate-images"


def kept(w: World, box: str) -> Record:
    """Return what is on disk of a sandbox."""
    return w.substrate.launcher.record(box)


def outputs(folder: Path, box: str) -> list[bytes]:
    """Return what a sandbox has said so far, as its agent's folder has it."""
    return [ring.read_bytes() for ring in folder.rglob(f"{box}/stdout.ring")]


async def test_sandboxes_outlive_a_killed_agent(tmp_path: Path, images: Path) -> None:
    """A new agent finds them running, ended and not yet started, and goes on with each."""
    base_image()
    group = f"/dsec-test-{os.getpid()}"
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, str(tmp_path), str(images), group,
        stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )  # fmt: skip
    assert agent.stdout is not None
    counting, over, idle = (await agent.stdout.readline()).decode().split()
    agent.kill()
    await agent.wait()

    async def spoke() -> bool:
        # without an agent: it was registered, or else its command would not have begun
        return any(b"over" in text for text in outputs(tmp_path, over))

    await eventually(spoke)
    async with world(tmp_path, images) as w:
        found = {spec.identity.id: started for spec, started in await w.substrate.adopt()}
        assert set(found) == {counting, over, idle}
        assert all(found.values())
        # what was registered is told at once: the killed agent may not have stored it
        assert {box for box, body in w.beats if body == {}} == {counting, over}
        end = await asyncio.wait_for(w.substrate.wait(over), PATIENCE)
        assert (end.reason, end.exit_code, end.stdout) == (EndReason.FAILED, 4, "over\n")
        beat = (counting, {"task_id": "task-1", "role": "worker", "gpu_ids": ""})

        async def beats() -> bool:
            return beat in w.beats

        await eventually(beats)
        out, _, _ = await w.exec(counting, "echo", "still here")
        assert out == b"still here\n"
        await w.substrate.start(idle)
        ended = await asyncio.wait_for(w.substrate.wait(idle), PATIENCE)
        assert ended.stdout == "later\n"
        await w.said(counting, b"\n15\n")
        await w.substrate.stop(counting, 1)
        end = await asyncio.wait_for(w.substrate.wait(counting), PATIENCE)
        numbers = [int(line) for line in end.stdout.splitlines()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert await w.substrate.adopt() == []


async def test_half_made_sandboxes_are_removed(tmp_path: Path, images: Path) -> None:
    """A crash between two steps leaves nothing behind."""
    async with world(tmp_path, images) as w:
        spec = w.spec("true")
        home = kept(w, spec.identity.id).home
        home.mkdir()
        Record(home).put("spec.json", spec.wire())
        w.substrate.cgroups.create(spec.identity.id, spec.resources)
        orphan = w.spec("true").identity.id
        w.substrate.cgroups.create(orphan, spec.resources)
        child = await asyncio.create_subprocess_exec("sleep", "60")
        for procs in w.substrate.cgroups.join_init(orphan):
            procs.write_text(str(child.pid))
        assert await w.substrate.adopt() == []
        assert await asyncio.wait_for(child.wait(), PATIENCE) == -signal.SIGKILL
        await w.substrate.launcher.settle()
        assert w.residue()["cgroups"] == []
        assert w.residue()["files"] == []
        # the same id can be created afterwards
        assert (await w.run("true")).reason == EndReason.COMPLETED


async def test_a_killed_pid_1_leaves_its_log_and_a_marker(tmp_path: Path, images: Path) -> None:
    """The output is outside; the archive says that it is partial."""
    async with world(tmp_path, images) as w:
        spec = w.spec("sh", "-c", "echo before; sleep 60")
        started = await w.substrate.create(spec)
        box = spec.identity.id
        await w.substrate.start(box)
        await w.said(box, b"before\n")
        chunks = aiter(w.substrate.exec(box, _sleep()))
        assert (await anext(chunks)).data == b"on\n"
        os.kill(started.pid, signal.SIGKILL)
        end = await asyncio.wait_for(w.substrate.wait(box), PATIENCE)
        assert end.reason == EndReason.INFRASTRUCTURE
        assert (end.exit_code, end.stdout, end.archive_partial) == (None, "before\n", True)
        with pytest.raises(SubstrateError, match="outcome unknown"):
            await anext(chunks)
        found = {name: data async for name, data in w.substrate.archive(box)}
        assert found["stdout.log"] == b"before\n"
        assert "PARTIAL" in found
        with pytest.raises(SubstrateError, match="gone"):
            await w.exec(box, "true")


def _sleep() -> "object":
    """Return a request that says when it runs and does not end by itself."""
    from dsec.world.substrate import ExecRequest

    return ExecRequest(command=("sh", "-c", "echo on; sleep 50"))


@pytest.mark.parametrize("options", [{"disk": "tmpfs"}, {"runtime": ("runc", "/usr/sbin/runc")}])
async def test_the_fallbacks_work_too(
    tmp_path: Path, images: Path, options: dict[str, object]
) -> None:
    """Memory-backed disks; runc."""
    async with world(tmp_path, images, **options) as w:
        features = (await w.substrate.inventory()).features
        assert features["disk-limit"] == ("tmpfs" if "disk" in options else "ext4-image")
        end = await w.sh("echo ok; exit 5")
        assert (end.exit_code, end.stdout) == (5, "ok\n")
        assert len(w.beats) == 1
        full = await w.sh("dd if=/dev/zero of=big bs=1M count=100")
        assert full.reason == EndReason.DISK_FULL
        box = await w.begin(w.spec("sleep", "60"))
        await w.substrate.pause(box)
        await w.substrate.resume(box)
        out, _, _ = await w.exec(box, "echo", "x")
        assert out == b"x\n"
        await w.substrate.destroy(box)
        await w.substrate.launcher.settle()
        assert [name for name, left in w.residue().items() if left] == []


async def test_a_lost_connection_is_made_again(tmp_path: Path, images: Path) -> None:
    """Only the death of PID 1 is an end, not that of a connection to it."""
    async with world(tmp_path, images) as w:
        box = await w.begin(w.spec("sh", "-c", "sleep 0.6; exit 2"))
        waiting = asyncio.create_task(w.substrate.wait(box))
        await asyncio.sleep(0.1)
        link = w.substrate._get(box).link
        assert link is not None
        link._writer.close()
        assert (await asyncio.wait_for(waiting, PATIENCE)).exit_code == 2


async def test_a_long_state_path_is_no_hindrance(tmp_path: Path, images: Path) -> None:
    """Socket paths are short whatever the directory is."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    async with world(deep, images) as w:
        assert (await w.sh("exit 6")).exit_code == 6


async def test_a_failed_launch_leaves_nothing(tmp_path: Path, images: Path) -> None:
    """A runtime that fails is a typed error without residue."""
    async with world(tmp_path, images, runtime=("crun", "/bin/false")) as w:
        with pytest.raises(SubstrateError) as failed:
            await w.substrate.create(w.spec("true"))
        assert failed.value.reason == EndReason.START_FAILED
        await w.substrate.launcher.settle()
        assert [name for name, left in w.residue().items() if left] == []
