"""Commands in live sandboxes: bytes, standard input, time limits, trees, zombies."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dsec.world.substrate import ExecRequest, SubstrateError
from substrate_world import PATIENCE, World, eventually, world

pytestmark = pytest.mark.root


@pytest.fixture
async def w(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A substrate."""
    images = tmp_path_factory.getbasetemp() / "substrate-images"
    async with world(tmp_path, images) as here:
        yield here


@pytest.fixture
async def box(w: World) -> str:
    """A sandbox that sleeps."""
    return await w.begin(w.spec("sleep", "300"))


async def processes(w: World, box: str) -> list[str]:
    """Return state and arguments of the sandbox's processes."""
    out, _, _ = await w.exec(box, "ps", "-eo", "stat=,args=")
    return [line for line in out.decode().splitlines() if "ps -eo" not in line]


async def none_left(w: World, box: str, what: str) -> None:
    """Wait until no process of the sandbox has this in its state and arguments."""

    async def none() -> bool:
        return not any(what in line for line in await processes(w, box))

    await eventually(none)


async def test_codes_signals_and_streams(w: World, box: str) -> None:
    """Both outputs, exit status and signal are told apart."""
    out, err, end = await w.exec(box, "sh", "-c", "echo a; echo b >&2; exit 7")
    assert (out, err, end.exit_code, end.signal) == (b"a\n", b"b\n", 7, None)
    _, _, end = await w.exec(box, "sh", "-c", "kill -SEGV $$")
    assert (end.exit_code, end.signal) == (None, 11)


async def test_standard_input_ends(w: World, box: str) -> None:
    """A command without input reads the end at once; megabytes pass, and may go unread."""
    out, _, end = await asyncio.wait_for(w.exec(box, "cat"), PATIENCE)
    assert (out, end.exit_code) == (b"", 0)
    big = bytes(range(256)) * 20_000
    out, _, _ = await w.exec(box, "cat", stdin=big, output_cap=8 << 20)
    assert out == big
    _, _, end = await w.exec(box, "true", stdin=big)
    assert end.exit_code == 0


async def test_output_is_exact_bytes(w: World, box: str) -> None:
    """Programs and control characters come through unchanged."""
    out, _, _ = await w.exec(box, "cat", "/bin/bash", output_cap=8 << 20)
    summed, _, _ = await w.exec(box, "sha256sum", "/bin/bash")
    assert hashlib.sha256(out).hexdigest() == summed.split()[0].decode()
    script = "head -c 8388607 /dev/zero | tr '\\0' '\\1'"
    out, _, _ = await w.exec(box, "sh", "-c", script, output_cap=16 << 20)
    assert out == b"\x01" * 8388607


async def test_output_cap_counts_bytes(w: World, box: str) -> None:
    """The cap is in bytes, and what is dropped is counted."""
    out, _, end = await w.exec(box, "python3", "-c", "print('€' * 100000)", output_cap=1000)
    assert len(out) == 1000
    assert (end.exit_code, end.dropped_bytes) == (0, 300_001 - 1000)


async def test_environment_is_exact(w: World, box: str) -> None:
    """Nothing is expanded, trimmed or quoted."""
    env = {"A": "x\ny", "B": " spaces ", "C": "$HOME", "D": '{"k": "v\'"}', "E": "ü", "F": ""}
    script = "import os, json; print(json.dumps({k: os.environ[k] for k in 'ABCDEF'}))"
    out, _, _ = await w.exec(box, "python3", "-c", script, env=env)
    assert json.loads(out) == env
    with pytest.raises(SubstrateError, match="env key"):
        await w.exec(box, "true", env={"1X": "a"})


async def test_failed_starts_are_typed(w: World, box: str) -> None:
    """Directory, program and user are named."""
    for command, more, said in [
        (("true",), {"workdir": "/nope"}, "/nope"),
        (("nosuchprogram",), {}, "nosuchprogram"),
        (("/workspace",), {}, "/workspace"),
        (("true",), {"user": "ghost"}, "ghost"),
    ]:
        with pytest.raises(SubstrateError, match=said) as failed:
            await w.exec(box, *command, **more)
        assert failed.value.reason == "start-failed"


async def test_user_is_honoured(w: World, box: str) -> None:
    """The command runs as the user asked for."""
    out, _, _ = await w.exec(box, "id", "-u", user="nobody")
    assert out == b"65534\n"
    _, _, end = await w.exec(box, "touch", "/root/x", user="nobody")
    assert end.exit_code == 1


async def test_returns_when_the_command_ends_not_its_children(w: World, box: str) -> None:
    """Children that hold the pipes neither delay the answer nor lose their output's reader."""
    loop = asyncio.get_running_loop()
    for script in ("nohup sh -c 'sleep 55 &'", "sleep 56 & echo hi", "setsid sleep 57 &"):
        start = loop.time()
        _, _, end = await w.exec(box, "sh", "-c", script)
        assert end.exit_code == 0
        assert loop.time() - start < PATIENCE
    # they stay until the sandbox ends, and writing into the void does not kill them
    out, _, _ = await w.exec(box, "sh", "-c", "(while echo x; do sleep 0.02; done) & echo $!")
    await asyncio.sleep(0.5)
    pid = next(int(word) for word in out.split() if word != b"x")
    _, _, alive = await w.exec(box, "sh", "-c", f"kill -0 {pid}")
    assert alive.exit_code == 0


async def test_late_output_is_drained_briefly(w: World, box: str) -> None:
    """What comes just after the end still counts; nothing later is awaited."""
    script = "(sleep 0.01; echo late; sleep 55) & echo early"
    # on a busy machine it may come too late to count, but not every time
    for _ in range(20):
        out, _, _ = await asyncio.wait_for(w.exec(box, "sh", "-c", script), PATIENCE)
        if out == b"early\nlate\n":
            return
    raise AssertionError(f"only {out!r}")


@pytest.mark.parametrize("script", ["sleep 41 & wait", "setsid sleep 42 & sleep 42", "sleep 43"])
async def test_time_limit_kills_the_whole_tree(w: World, box: str, script: str) -> None:
    """Children in other sessions die as well."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    _, _, end = await w.exec(box, "sh", "-c", script, timeout=0.3)
    assert loop.time() - start < PATIENCE
    assert (end.reason, end.exit_code, end.signal) == ("timeout", None, 9)
    await none_left(w, box, "sleep 4")


async def test_a_listener_that_goes_ends_the_command(w: World, box: str) -> None:
    """Nobody listens: the command is killed."""
    chunks = w.substrate.exec(box, ExecRequest(command=("sh", "-c", "echo x; sleep 44")))
    async for chunk in chunks:
        assert chunk.data == b"x\n"
        break
    await chunks.aclose()  # type: ignore[attr-defined]
    await none_left(w, box, "sleep 44")


async def test_orphans_are_reaped(w: World, box: str) -> None:
    """Init takes over what its parents left."""
    script = "for i in $(seq 40); do sh -c '(sleep 0.05 &)'; done"
    for _ in range(5):
        await w.exec(box, "sh", "-c", script)

    async def reaped() -> bool:
        return not any(line.startswith("Z") for line in await processes(w, box))

    await eventually(reaped)


async def test_fifty_at_once(w: World, box: str) -> None:
    """Streams are not mixed up."""
    runs = [w.exec(box, "sh", "-c", f"echo {n}; exit {n}", timeout=30) for n in range(50)]
    for n, (out, _, end) in enumerate(await asyncio.gather(*runs)):
        assert (out, end.exit_code) == (f"{n}\n".encode(), n)


async def test_pause_stops_time_and_exec_says_so(w: World, box: str) -> None:
    """Paused processes use no time; a paused sandbox can be destroyed."""
    _, _, end = await w.exec(box, "sh", "-c", "(while :; do :; done) & exit 0")
    assert end.exit_code == 0
    await w.substrate.pause(box)
    before = w.substrate._evidence(w.substrate._get(box)).cpu_seconds
    await asyncio.sleep(0.2)
    assert w.substrate._evidence(w.substrate._get(box)).cpu_seconds == before
    with pytest.raises(SubstrateError, match="paused"):
        await w.exec(box, "true")
    await w.substrate.resume(box)

    async def goes_on() -> bool:
        return (w.substrate._evidence(w.substrate._get(box)).cpu_seconds or 0) > (before or 0)

    await eventually(goes_on)
    await w.substrate.pause(box)
    await asyncio.wait_for(w.substrate.destroy(box), PATIENCE)


async def test_logs_follow_to_the_end(w: World) -> None:
    """Followers see lines as they come; later readers see all of them."""
    script = "for i in 1 2 3; do echo line$i; until [ -e $i ]; do sleep 0.02; done; done"
    box = await w.begin(w.spec("sh", "-c", f"{script}; echo oops >&2"))
    pieces = []
    async for chunk in w.substrate.logs(box, follow=True):
        pieces.append(chunk)
        if chunk.data.startswith(b"line"):
            # it goes on only when its line has been seen
            await w.exec(box, "touch", f"/workspace/{chunk.data.decode().strip()[-1]}")
    assert b"".join(c.data for c in pieces if c.stream == "stdout") == b"line1\nline2\nline3\n"
    assert b"".join(c.data for c in pieces if c.stream == "stderr") == b"oops\n"
    again = [chunk async for chunk in w.substrate.logs(box, follow=False)]
    assert again[0].data == b"line1\nline2\nline3\n"
