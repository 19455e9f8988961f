"""Ends of sandboxes: exit codes, signals, limits, each with the kernel's proof."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dsec.agent.records import start_time
from dsec.api.reasons import EndReason
from dsec.world.substrate import SubstrateError
from substrate_world import PATIENCE, World, namespace, world

pytestmark = pytest.mark.root


@pytest.fixture
async def w(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A substrate; nothing may be left of its sandboxes at the end of the test."""
    images = tmp_path_factory.getbasetemp() / "substrate-images"
    async with world(tmp_path, images) as here:
        yield here
        await here.substrate.launcher.settle()
        assert here.residue() == {
            "mounts": [], "loops": [], "cgroups": [], "files": [], "trash": [],
        }  # fmt: skip


async def test_output_exit_code_and_evidence(w: World) -> None:
    """Streams, status and the kernel's counts come back apart."""
    end = await w.sh("echo out; echo err >&2; exit 3")
    assert (end.reason, end.exit_code, end.signal) == (EndReason.FAILED, 3, None)
    assert (end.stdout, end.stderr) == ("out\n", "err\n")
    assert (end.evidence.stdout_bytes, end.evidence.stderr_bytes) == (4, 4)
    assert end.evidence.pid_namespace != namespace("pid")
    assert end.evidence.net_namespace != namespace("net")
    assert end.evidence.cgroup
    assert end.evidence.cpu_seconds
    assert end.evidence.cpu_seconds > 0


async def test_completed(w: World) -> None:
    """Status 0 is completed."""
    end = await w.run("python3", "-c", "print(1)")
    assert (end.reason, end.exit_code, end.stdout) == (EndReason.COMPLETED, 0, "1\n")


async def test_signal_and_exit_code_are_told_apart(w: World) -> None:
    """Exit status 143 is not SIGTERM, and a kill is no status."""
    killed = await w.sh("kill -9 $$")
    assert (killed.reason, killed.exit_code, killed.signal) == (EndReason.SIGNALED, None, 9)
    term = await w.sh("kill -TERM $$; sleep 5")
    assert (term.reason, term.exit_code, term.signal) == (EndReason.SIGNALED, None, 15)
    code = await w.sh("exit 143")
    assert (code.reason, code.exit_code, code.signal) == (EndReason.FAILED, 143, None)


async def test_memory_limit_ends_as_oom_killed(w: World) -> None:
    """The kernel's count of kills is the proof."""
    end = await w.run("python3", "-c", "bytearray(2 << 30)", limits={"memory_bytes": 64 << 20})
    assert end.reason == EndReason.OOM_KILLED
    assert end.evidence.oom_kills >= 1
    assert end.evidence.memory_limit_bytes == 64 << 20
    assert (end.evidence.memory_peak_bytes or 0) > 60 << 20
    assert end.exit_code != 0


async def test_fork_bomb_ends_as_pids_limit_and_exec_still_answers(w: World) -> None:
    """Refused forks are counted; init keeps room to act."""
    bomb = w.spec("bash", "-c", ":(){ :|:& };: ; sleep 1; exit 9")
    sandbox = await w.begin(bomb)
    await asyncio.sleep(0.3)
    _, _, answer = await asyncio.wait_for(w.exec(sandbox, "true"), PATIENCE)
    assert answer.exit_code == 0
    end = await asyncio.wait_for(w.substrate.wait(sandbox), PATIENCE)
    await w.substrate.destroy(sandbox)
    assert end.reason == EndReason.PIDS_LIMIT
    assert end.evidence.pids_max_hits > 0


async def test_full_disk_ends_as_disk_full(w: World) -> None:
    """Small writes fill the disk to the end; a large one fails whole before that."""
    for block in ("1M", "4k"):
        end = await w.sh(f"dd if=/dev/zero of=big bs={block} count=100000")
        assert end.reason == EndReason.DISK_FULL
        assert "No space" in end.stderr
        assert (end.evidence.disk_used_bytes or 0) >= 31 << 20


async def test_inodes_run_out(w: World) -> None:
    """A disk without inodes is full, too."""
    script = "i=0; while : >f$i; do i=$((i+1)); done; exit 1"
    end = await w.sh(script, limits={"disk_bytes": 8 << 20})
    assert end.reason == EndReason.DISK_FULL


async def test_giant_output_is_cut_and_then_ended(w: World) -> None:
    """The newest bytes stay; past the hard cap the command ends."""
    end = await w.sh("yes", output_cap_bytes=4096, output_hard_cap_bytes=8 << 20)
    assert end.reason == EndReason.OUTPUT_LIMIT
    assert set(end.stdout) == {"y", "\n"}
    assert len(end.stdout) <= 4096
    assert end.evidence.dropped_bytes > 7 << 20


async def test_kept_output_is_the_newest_and_starts_with_a_whole_line(w: World) -> None:
    """Half a line would mislead its reader."""
    end = await w.sh("for i in $(seq 1000); do echo line$i; done", output_cap_bytes=4096)
    assert end.stdout.endswith("line1000\n")
    assert end.stdout.startswith("line")
    assert end.evidence.dropped_bytes + 4096 == end.evidence.stdout_bytes


async def test_background_processes_neither_delay_nor_outlive_the_end(w: World) -> None:
    """The end is the main command's own."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    end = await w.sh("nohup sleep 73 & setsid sleep 74 & echo done")
    assert (end.reason, end.stdout) == (EndReason.COMPLETED, "done\n")
    assert loop.time() - start < PATIENCE


async def test_failed_starts_name_what_is_wrong(w: World) -> None:
    """Program, directory and user are named."""
    missing = await w.run("/nope")
    assert missing.reason == EndReason.START_FAILED
    assert "/nope" in missing.message
    workdir = await w.run("true", workdir="/not/there")
    assert workdir.reason == EndReason.START_FAILED
    assert "/not/there" in workdir.message
    user = await w.run("true", user="nosuch")
    assert user.reason == EndReason.START_FAILED
    assert "nosuch" in user.message


async def test_bad_env_key_and_mount_path_are_refused_at_create(w: World) -> None:
    """What cannot work is refused before anything is made."""
    with pytest.raises(SubstrateError, match="X;touch /pwn"):
        await w.substrate.create(w.spec("true", env={"X;touch /pwn": "1"}))
    with pytest.raises(SubstrateError, match=r"\.\."):
        await w.substrate.create(w.spec("true", mounts=[{"path": "/a/../b"}]))
    with pytest.raises(SubstrateError) as pull:
        await w.substrate.create(w.spec("true", image="rootfs:/no/such.tar"))
    assert pull.value.reason == EndReason.IMAGE_PULL_FAILED


async def test_stop_gives_the_program_its_grace(w: World) -> None:
    """SIGTERM first; after the grace every process is killed."""
    # a shell that has just begun one long sleep would hear the signal at its end
    script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    polite = await w.begin(w.spec("bash", "-c", script))
    await w.said(polite, b"ready\n")
    await w.substrate.stop(polite, PATIENCE)
    end = await asyncio.wait_for(w.substrate.wait(polite), PATIENCE)
    assert (end.reason, end.exit_code, end.signal) == (EndReason.STOPPED, 0, None)
    assert end.stdout == "ready\nbye\n"
    await w.substrate.destroy(polite)
    script = "trap '' TERM; setsid sleep 60 & echo ready; while :; do :; done"
    deaf = await w.begin(w.spec("bash", "-c", script))
    await w.said(deaf, b"ready\n")
    await w.substrate.stop(deaf, 0.2)
    end = await asyncio.wait_for(w.substrate.wait(deaf), PATIENCE)
    assert (end.reason, end.exit_code, end.signal) == (EndReason.STOPPED, None, 9)
    await w.substrate.destroy(deaf)


async def test_stop_before_start_ends_it(w: World) -> None:
    """A sandbox that never started can be stopped."""
    spec = w.spec("true")
    await w.substrate.create(spec)
    await w.substrate.stop(spec.identity.id, 1)
    end = await asyncio.wait_for(w.substrate.wait(spec.identity.id), PATIENCE)
    assert end.reason == EndReason.STOPPED
    await w.substrate.destroy(spec.identity.id)


async def test_create_and_destroy_are_idempotent(w: World) -> None:
    """Repeats change nothing."""
    spec = w.spec("true")
    first = await w.substrate.create(spec)
    second = await w.substrate.create(spec)
    assert first.pid == second.pid
    await w.substrate.destroy(spec.identity.id)
    await w.substrate.destroy(spec.identity.id)
    assert start_time(first.pid) is None


async def test_twenty_creates_at_once_all_succeed(w: World) -> None:
    """A burst waits its turn; none fails."""
    ends = await asyncio.gather(*(w.sh(f"exit {n}") for n in range(20)))
    assert [end.exit_code for end in ends] == list(range(20))
    assert len({end.evidence.cgroup for end in ends}) == 20
    ids = {end.evidence.pid_namespace_id for end in ends}
    assert ids == {None} or len(ids) == 20  # never reused, where the kernel has them
