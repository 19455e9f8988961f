"""What a sandbox sees: environment, identity, heartbeat, mounts, and what it must not reach."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dsec.agent.cpusets import parse
from dsec.api.reasons import EndReason
from substrate_world import PATIENCE, World, eventually, inside, world

pytestmark = pytest.mark.root

POST = """
import json, os, sys, urllib.request, urllib.error
body = json.loads(sys.argv[1])
request = urllib.request.Request(os.environ["DSEC_HB_ENDPOINT"], json.dumps(body).encode())
try:
    print(urllib.request.urlopen(request, timeout=5).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@pytest.fixture
async def w(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A substrate that waits two seconds for mounts."""
    images = tmp_path_factory.getbasetemp() / "substrate-images"
    async with world(tmp_path, images, mount_tries=2) as here:
        yield here


async def test_environment_and_identity(w: World) -> None:
    """Every variable of the contract, not to be forged; identity file; the item twice."""
    spec = w.spec(
        "sh", "-c", 'env; cat /workspace/.dsec/identity.json; cat "$DSEC_ITEM_FILE"; cat',
        env={"MINE": "1", "DSEC_ROLE": "forged"}, item='{"n": 1}', heartbeat_seconds=5,
    )  # fmt: skip
    spec.identity.correlation_id = "trace-1"
    box = await w.begin(spec)
    end = await w.substrate.wait(box)
    lines = end.stdout.splitlines()
    for line in (
        "DSEC_ROLE=worker", "DSEC_TASK_ID=task-1", "DSEC_WS_PATH=/workspace",
        "DSEC_DATA_PATH=/dataset", "DSEC_CACHE_PATH=/tmp/dsec_cache", "DSEC_HB_INTERVAL=5",
        "DSEC_HB_ENDPOINT=http://ctrl-plane:8080/heartbeat", "DSEC_TENANT_ID=t",
        f"DSEC_SANDBOX_ID={box}", "DSEC_GPU_LIST=", "CUDA_VISIBLE_DEVICES=",
        "PLUGIN_HOME=/opt/dsec/plugins", "MINE=1", "PWD=/workspace",
    ):  # fmt: skip
        assert line in lines
    identity = json.loads(end.stdout[end.stdout.index("{\n") : end.stdout.index("}{") + 1])
    assert (identity["worker"], identity["role"], identity["gpus"]) == (3, "worker", [])
    assert identity["correlation_id"] == "trace-1"
    assert end.stdout.endswith('{"n": 1}\n{"n": 1}\n')


async def test_init_registers_before_the_first_line_and_keeps_beating(w: World) -> None:
    """Registration comes before output."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    box = await w.begin(w.spec("sh", "-c", "echo first; sleep 60", heartbeat_seconds=0.2))
    async for _ in w.substrate.logs(box, follow=True):
        assert w.beats
        break
    assert w.beats[0] == (box, {"task_id": "task-1", "role": "worker", "gpu_ids": ""})

    async def goes_on() -> bool:
        return len(w.beats) >= 3

    await eventually(goes_on)
    assert len(w.beats) <= 2 + (loop.time() - start) / 0.2


async def test_program_registers_itself_and_is_checked(w: World) -> None:
    """A false heartbeat is refused with the field's name."""
    box = await w.begin(w.spec("sleep", "60", entrypoint_registers=True))
    await asyncio.sleep(0.3)
    assert w.beats == []
    good = {"task_id": "task-1", "role": "worker", "gpu_ids": ""}
    for body, said in [
        ({**good, "role": "boss"}, "role"),
        ({**good, "task_id": 4}, "task_id"),
        ({**good, "gpu_ids": "0,1"}, "gpu_ids"),
    ]:
        out, _, _ = await w.exec(box, "python3", "-c", POST, json.dumps(body))
        assert out.startswith(b"400")
        assert said.encode() in out
    assert w.beats == []
    out, err, _ = await w.exec(box, "python3", "-c", POST, json.dumps(good))
    assert (out, err) == (b"200\n", b"")

    async def told() -> bool:
        return bool(w.beats)

    await eventually(told)
    assert w.beats == [(box, good)]


async def test_reference_entry_script_runs_the_workspace(w: World) -> None:
    """Without a command the entry script registers and runs entry.py."""
    spec = w.spec(entrypoint_registers=True)
    started = await w.substrate.create(spec)
    entry = inside(started.pid, "/workspace/entry.py")
    entry.write_text("import os; print('entry in', os.getcwd())")
    await w.substrate.start(spec.identity.id)
    end = await w.substrate.wait(spec.identity.id)
    assert (end.stdout, end.stderr) == ("entry in /workspace\n", "")
    assert len(w.beats) == 1
    assert (entry.parent / "README.md").read_text().startswith("# dsec sandbox base")


async def test_mounts_are_waited_for(w: World) -> None:
    """The program starts when the data is there."""
    spec = w.spec("echo", "ok")
    started = await w.substrate.create(spec)
    dataset = inside(started.pid, "/dataset")
    dataset.rmdir()
    await w.substrate.start(spec.identity.id)
    await asyncio.sleep(0.5)
    assert w.beats == []
    dataset.mkdir()
    end = await asyncio.wait_for(w.substrate.wait(spec.identity.id), PATIENCE)
    assert (end.reason, end.stdout) == (EndReason.COMPLETED, "ok\n")


async def test_a_mount_that_never_comes_is_a_typed_end(w: World) -> None:
    """Nothing is registered, nothing is run."""
    spec = w.spec("echo", "ok")
    started = await w.substrate.create(spec)
    inside(started.pid, "/dataset").rmdir()
    await w.substrate.start(spec.identity.id)
    end = await asyncio.wait_for(w.substrate.wait(spec.identity.id), PATIENCE)
    assert end.reason == EndReason.MOUNT_TIMEOUT
    assert "/dataset" in end.message
    assert w.beats == []


async def test_no_network_but_the_heartbeat(w: World) -> None:
    """Loopback alone, and one port on it."""
    script = """
import socket, os
print(sorted(name for _, name in socket.if_nameindex()))
for address in [("127.0.0.1", 8080), ("10.0.0.1", 80), ("169.254.169.254", 80), ("127.0.0.1", 22)]:
    try:
        socket.create_connection(address, timeout=1).close()
        print(address, "open")
    except OSError as error:
        print(address, error.strerror)
try:
    socket.getaddrinfo("example.com", 80)
except OSError as error:
    print("no name")
"""
    end = await w.run("python3", "-c", script)
    assert end.stdout.splitlines() == [
        "['lo']",
        "('127.0.0.1', 8080) open",
        "('10.0.0.1', 80) Network is unreachable",
        "('169.254.169.254', 80) Network is unreachable",
        "('127.0.0.1', 22) Connection refused",
        "no name",
    ]


@pytest.mark.parametrize(
    "script",
    [
        "ls -l /proc/1/fd/",
        "cat /proc/1/environ",
        "mount -t tmpfs x /mnt",
        "unshare -U true",
        "unshare -n true",
        "mknod /tmp/disk b 7 0",
        "chroot /proc/1/root true",
        "echo 1 > /proc/sysrq-trigger",
        "echo x > /proc/sys/kernel/hostname",
        "echo x > /.dsec/init",
        "mount -o remount,rw /sys",
        "dmesg",
        "python3 -c 'import socket; socket.socket(socket.AF_VSOCK)'",
        "python3 -c 'import socket; socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)'",
        "kill -9 1; sleep 0.1; test ! -e /proc/1/status",
        "python3 -c 'import ctypes; l=ctypes.CDLL(None); exit(l.ptrace(16,1,0,0) != 0)'",
        "python3 -c 'import ctypes; l=ctypes.CDLL(None); exit(l.syscall(425,1,0) < 0)'",
        "python3 -c 'import fcntl,os; fcntl.ioctl(os.open(\"/tmp\",0),0x401c5820,bytes(28))'",
    ],
)
async def test_root_inside_cannot(w: World, script: str) -> None:
    """Ways out, into PID 1, or around the limits."""
    end = await w.sh(f"{script} >/dev/null 2>&1")
    assert end.exit_code not in {0, None}, script


async def test_no_path_of_the_node_and_no_platform_socket_shows(w: World) -> None:
    """The guest learns nothing about the node."""
    end = await w.sh("cat /proc/self/mounts /proc/net/unix; ls -a / /.dsec")
    assert str(w.substrate.state) not in end.stdout
    assert "ctl" not in end.stdout
    assert "launch.json" not in end.stdout


async def test_archive_has_the_scene_and_follows_no_link(w: World) -> None:
    """Links and pipes are named as skipped."""
    script = """
mkdir -p /output/deep; echo result > /output/deep/r.txt; echo mine > /data/m.txt
ln -s /etc/passwd /output/out.txt; ln -s /etc /output/dir; mkfifo /output/pipe
echo scratch > /tmp/last; echo said; exit 1
"""
    mounts = [{"path": "/data", "kind": "output", "collect": True}]
    box = await w.begin(w.spec("bash", "-c", script, mounts=mounts, env={"K": "v"}))
    await w.substrate.wait(box)
    found = {name: data async for name, data in w.substrate.archive(box)}
    assert found["stdout.log"] == b"said\n"
    assert found["collect/output/deep/r.txt"] == b"result\n"
    assert found["collect/data/m.txt"] == b"mine\n"
    assert found["temp/last"] == b"scratch\n"
    assert json.loads(found["environment.json"])["env"]["K"] == "v"
    assert json.loads(found["end.json"])["exitCode"] == 1
    assert not [name for name in found if "out.txt" in name or "passwd" in name]
    skipped = {
        entry["path"]: entry["why"] for entry in json.loads(found["manifest.json"])["skipped"]
    }
    assert skipped["/output/out.txt"] == "is a link"
    assert skipped["/output/dir"] == "is a link"
    assert "/output/pipe" in skipped
    assert "PARTIAL" not in found


async def test_cpus_of_its_own(w: World) -> None:
    """SCHED-29: one runs where nobody else does; the others have the rest, and all of it later."""
    if not w.substrate.cgroups.pins or (os.cpu_count() or 1) < 2:
        pytest.skip("this machine has one CPU, or no cpusets")

    async def allowed(sandbox: str) -> set[int]:
        out, _, _ = await w.exec(sandbox, "grep", "Cpus_allowed_list", "/proc/self/status")
        return set(parse(out.decode().split()[1]))

    every = set(range(os.cpu_count() or 1))
    before = await w.begin(w.spec("sleep", "60"))
    assert await allowed(before) == every
    own = await w.begin(w.spec("sleep", "60", exclusive_cpus=True, cpus=[1]))
    later = await w.begin(w.spec("sleep", "60"))
    assert await allowed(own) == {1}
    assert await allowed(before) == await allowed(later) == every - {1}
    found = await w.substrate.inventory()
    assert found.features["cpuset"] == "yes"
    await w.substrate.destroy(own)
    assert await allowed(before) == await allowed(later) == every
