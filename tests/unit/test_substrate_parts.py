"""The parts of the container substrate that need no kernel: rings, ends, environment, archive."""

import asyncio
import json
import os
import struct
from pathlib import Path

import pytest
from dsec.agent import ends, initlink, ocispec, rings, rootfs
from dsec.agent.archive import Scene
from dsec.agent.images import Stack, check_machine, elf_machine
from dsec.agent.records import Record, start_time
from dsec.agent.substrates.oci import check_env
from dsec.api.reasons import EndReason
from dsec.api.sandbox import Evidence, Identity, Mount, Resources, SandboxSpec
from dsec.world.substrate import SubstrateError
from hypothesis import given
from hypothesis import strategies as st

SPEC = SandboxSpec(
    identity=Identity(id="sb-" + "0" * 26, tenant="t", project="p", task_id="task"),
    image="x",
    resources=Resources(cpu_milli=1000, memory_bytes=64 << 20, disk_bytes=64 << 20),
)


def write_ring(path: Path, capacity: int, data: bytes) -> None:
    """Write as init does."""
    content = bytearray(rings.HEADER + capacity)
    content[:24] = b"DSECRNG1" + struct.pack("<QQ", capacity, len(data))
    for at in range(max(0, len(data) - capacity), len(data)):
        content[rings.HEADER + at % capacity] = data[at]
    path.write_bytes(content)


@given(data=st.binary(max_size=100), since=st.integers(0, 100))
def test_a_ring_gives_the_newest_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, since: int
) -> None:
    """From any position: what is still there, and how much is not."""
    path = tmp_path_factory.getbasetemp() / "ring"
    write_ring(path, 32, data)
    got, position, lost = rings.read(path, min(since, len(data)))
    start = max(min(since, len(data)), len(data) - 32)
    assert (got, position) == (data[start:], len(data))
    assert lost == start - min(since, len(data))


def test_an_empty_ring(tmp_path: Path) -> None:
    """A file that init has not touched yet reads as empty."""
    os.close(rings.create(tmp_path / "r", 4096))
    assert rings.read(tmp_path / "r") == (b"", 0, 0)


@pytest.mark.parametrize(
    ("data", "lost", "cap", "kept"),
    [
        (b"a\nb\n", 0, 100, b"a\nb\n"),
        (b"88\nline989\n", 5, 100, b"line989\n"),
        (b"one\ntwo\nthree\n", 0, 8, b"three\n"),
        ("€€".encode(), 0, 4, "€".encode()),
        (b"x" * 10, 0, 4, b"xxxx"),
    ],
)
def test_a_cut_tail_starts_at_a_line_or_character(
    data: bytes, lost: int, cap: int, kept: bytes
) -> None:
    """What is dropped is counted, to the byte."""
    got, dropped = rings.tail(data, lost, cap)
    assert got == kept
    assert dropped == lost + len(data) - len(kept)


OOM = Evidence(oom_kills=1)
PIDS = Evidence(pids_max_hits=4)
FULL = {"used": 64 << 20, "free": 4096, "inodesFree": 10}
NEARLY = {"used": 63 << 20, "free": 1 << 20, "inodesFree": 10}


@pytest.mark.parametrize(
    ("report", "evidence", "stderr", "reason"),
    [
        ({"exitCode": 0}, Evidence(), b"", EndReason.COMPLETED),
        ({"exitCode": 0}, OOM, b"", EndReason.COMPLETED),
        ({"exitCode": 2}, Evidence(), b"", EndReason.FAILED),
        ({"signal": 9}, Evidence(), b"", EndReason.SIGNALED),
        ({"signal": 9}, OOM, b"", EndReason.OOM_KILLED),
        ({"exitCode": 1}, OOM, b"", EndReason.OOM_KILLED),
        ({"exitCode": 1}, PIDS, b"", EndReason.PIDS_LIMIT),
        ({"exitCode": 1, "disk": FULL}, Evidence(), b"", EndReason.DISK_FULL),
        ({"exitCode": 1, "disk": NEARLY}, Evidence(), b"", EndReason.FAILED),
        ({"exitCode": 1, "disk": NEARLY}, Evidence(), b"[Errno 28]", EndReason.DISK_FULL),
        ({"exitCode": 0, "disk": FULL}, Evidence(), b"", EndReason.COMPLETED),
        ({"signal": 15, "stopRequested": True}, Evidence(), b"", EndReason.STOPPED),
        ({"signal": 9, "reason": "output-limit"}, Evidence(), b"", EndReason.OUTPUT_LIMIT),
        ({"reason": "mount-timeout", "message": "m"}, Evidence(), b"", EndReason.MOUNT_TIMEOUT),
        ({"reason": "start-failed", "message": "m"}, Evidence(), b"", EndReason.START_FAILED),
        ({}, Evidence(), b"", EndReason.INFRASTRUCTURE),
    ],
)
def test_each_end_has_one_reason(
    report: dict[str, object], evidence: Evidence, stderr: bytes, reason: EndReason
) -> None:
    """A limit is blamed only with proof, and never for a success."""
    end = ends.decide(report, evidence, SPEC, stderr)
    assert end.reason == reason
    assert (end.exit_code, end.signal) == (report.get("exitCode"), report.get("signal"))
    assert end.message or reason == EndReason.COMPLETED


def test_environment_keys_and_values() -> None:
    """Only names that every shell takes; any value without NUL."""
    check_env({"A_1": "$HOME\n\"'", "_x": ""})
    for key in ("", "1A", "A-B", "X;touch /pwn", "A=B", "Ä", "A\n"):
        with pytest.raises(SubstrateError, match="env key"):
            check_env({key: "v"})
    with pytest.raises(SubstrateError, match="NUL"):
        check_env({"A": "a\0b"})


def test_the_contract_wins_over_image_and_user() -> None:
    """A program may trust DSEC_ROLE."""
    spec = SPEC.model_copy(update={"env": {"PATH": "/mine", "DSEC_ROLE": "x"}, "devices": ["G1"]})
    env = rootfs.environment(spec, {"PATH": "/image", "LANG": "C"})
    assert (env["PATH"], env["LANG"], env["DSEC_ROLE"]) == ("/mine", "C", "worker")
    spec.identity.part, spec.mounts = "trainer", [Mount(path="/data", kind="data", read_only=True)]
    env = rootfs.environment(spec, {})
    assert (env["DSEC_ROLE"], env["DSEC_DATA_PATH"]) == ("trainer", "/data")
    assert env["CUDA_VISIBLE_DEVICES"] == env["DSEC_GPU_LIST"] == "G1"


def test_identity_differs_in_worker_and_devices() -> None:
    """Two replicas read who they are from the file."""
    other = SPEC.model_copy(
        update={
            "identity": SPEC.identity.model_copy(update={"id": "sb-" + "1" * 26, "index": 1}),
            "devices": ["G2"],
        }
    )
    one, two = json.loads(rootfs.identity_text(SPEC)), json.loads(rootfs.identity_text(other))
    assert {key for key in one if one[key] != two[key]} == {"sandbox_id", "worker", "gpus"}


def layer(tmp_path: Path) -> Stack:
    """Return an image of one empty layer."""
    (tmp_path / "layers" / "a").mkdir(parents=True)
    return Stack(base=str(tmp_path / "layers"), lower=["a"], digest="")


def test_directories_keep_the_modes_of_the_image(tmp_path: Path) -> None:
    """A mount below /root does not open /root."""
    stack = layer(tmp_path)
    (tmp_path / "layers/a/root").mkdir(mode=0o700)
    spec = SPEC.model_copy(update={"mounts": [Mount(path="/root/data/x")]})
    made = {d.path: d.mode for d in rootfs.directories(spec, stack)}
    assert (made["/root"], made["/root/data"], made["/root/data/x"]) == (0o700, 0o755, 0o755)
    assert made["/tmp"] == 0o1777
    assert list(made).index("/root") < list(made).index("/root/data")


@pytest.mark.parametrize("path", ["relative", "/", "/a/../etc", "/link/x", "/file"])
def test_impossible_mount_paths(tmp_path: Path, path: str) -> None:
    """Links and files of the image are not mounted over."""
    stack = layer(tmp_path)
    (tmp_path / "layers/a/link").symlink_to("/etc")
    (tmp_path / "layers/a/file").touch()
    spec = SPEC.model_copy(update={"mounts": [Mount(path=path)]})
    with pytest.raises(rootfs.PathError, match="mount path"):
        rootfs.directories(spec, stack)


def test_sparse_copies_keep_data_and_holes(tmp_path: Path) -> None:
    """A gigabyte of zeros takes no space."""
    source = tmp_path / "a"
    with source.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(500 << 20)
        file.write(b"data")
    rootfs.copy_sparse(source, tmp_path / "b")
    copied = (tmp_path / "b").stat()
    assert (copied.st_size, copied.st_blocks < 1000) == (1 << 30, True)
    with (tmp_path / "b").open("rb") as file:
        file.seek(500 << 20)
        assert file.read(4) == b"data"


def test_the_runtime_configuration_drops_what_is_dangerous() -> None:
    """No capability over network, mounts, devices or tracing; no new privileges."""
    config = json.dumps(ocispec.runtime_config(SPEC, Path("/p"), [], None))
    for name in ("SYS_ADMIN", "NET_ADMIN", "MKNOD", "SYS_PTRACE", "NET_RAW", "SYS_MODULE"):
        assert name not in config
    assert '"noNewPrivileges": true' in config
    assert "cgroupsPath" not in config


def test_elf_check(tmp_path: Path) -> None:
    """A program for another machine is found behind a lying manifest."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "a-script").write_text("#!/bin/sh\n")
    program = tmp_path / "bin" / "sh"
    program.write_bytes(b"\x7fELF\x02\x01" + bytes(12) + (0xF3).to_bytes(2, "little"))
    assert elf_machine(program) == 0xF3
    with pytest.raises(SubstrateError, match="/bin/sh is for ELF machine 243") as refused:
        check_machine([tmp_path], "img")
    assert refused.value.reason == EndReason.IMAGE_PULL_FAILED


def test_scene_never_leaves_its_root(tmp_path: Path) -> None:
    """Neither a link at the end nor one on the way is followed; large files are named."""
    (tmp_path / "out").write_text("secret")
    root = tmp_path / "root"
    (root / "output").mkdir(parents=True)
    (root / "output" / "ok").write_text("fine")
    (root / "output" / "big").write_bytes(b"x" * 100)
    (root / "output" / "link").symlink_to("../../out")
    (root / "way").symlink_to("..")
    fd = os.open(root, os.O_RDONLY)
    scene = Scene(fd)
    assert list(scene.collect("/output", "c", 50)) == [("c/ok", b"fine")]
    assert list(scene.collect("/way", "w", 50)) == []
    assert list(scene.collect("/missing", "m", 50)) == []
    os.close(fd)
    manifest = json.loads(scene.manifest())
    assert {entry["path"] for entry in manifest["skipped"]} == {
        "/output/link", "/output/big", "/way", "/missing",
    }  # fmt: skip
    assert manifest["files"][0]["bytes"] == 4


def test_a_reused_process_id_is_not_taken_for_init(tmp_path: Path) -> None:
    """Start time and boot must match."""
    record = Record(tmp_path)
    assert record.init_pid() is None
    record.write_created(os.getpid())
    assert record.init_pid() == os.getpid()
    record.put("created.json", {**record.get("created.json"), "startTime": 1})
    assert record.init_pid() is None
    (tmp_path / "created.json").write_text('{"pid": 1')
    assert record.get("created.json") == {}
    assert start_time(2**22 + 1) is None


async def test_a_frame_past_the_limit_closes_the_link(tmp_path: Path) -> None:
    """A length that init never sends is the end of the connection, not of the agent's memory."""
    ready = struct.pack(">BII", initlink.READY, 0, 2) + b"{}"
    endless = struct.pack(">BII", initlink.STDOUT, 1, initlink.MOST_PAYLOAD + 1)

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ready + endless)
        await writer.drain()

    listener = initlink.bind_listener(tmp_path, "s")
    server = await asyncio.start_unix_server(answer, sock=listener)
    link = await initlink.InitLink.connect(tmp_path, "s", lambda _: None)
    await asyncio.wait_for(link.closed.wait(), 5)
    with pytest.raises(initlink.LinkClosedError):
        await link.end
    await link.close()
    server.close()
