"""From inside a sandbox: what root there tries against the node, its neighbours and the platform.

One program makes all attempts in one sandbox and says of each what came of it. Namespaces, mounts,
PID 1's descriptors, networks and plain links are in `test_substrate_contract.py`.
"""

import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from substrate_world import World, world

pytestmark = pytest.mark.root

ATTEMPTS = r"""
import ctypes, errno, fcntl, json, os, resource, signal, socket, stat, subprocess, sys
import urllib.request
libc = ctypes.CDLL(None, use_errno=True)
HOST = json.loads(sys.argv[1])
TABLE = {}

def attempt(function):
    TABLE[function.__name__] = function

def call(number, *arguments):
    ctypes.set_errno(0)
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    if libc.syscall(number, *wide) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def write(path, text):
    with open(path, "w") as file:
        file.write(text)

def lines(path):
    with open(path) as file:
        return file.read().splitlines()

BUFFER = ctypes.create_string_buffer(4096)
@attempt
def load_a_module(): call(175, BUFFER, 4096, b"")
@attempt
def load_a_module_from_a_file(): call(313, os.open("/bin/sh", 0), b"", 0)
@attempt
def unload_a_module(): call(176, b"overlay", 0)
@attempt
def load_a_kernel(): call(246, 0, 0, 0, 0)
@attempt
def reboot(): call(169, 0xfee1dead, 672274793, 0x89abcdef, 0)
@attempt
def set_the_clock(): call(227, 0, BUFFER)
@attempt
def add_a_key(): call(248, b"user", b"k", b"v", 1, -4)
@attempt
def read_the_session_keyring(): call(250, 0, -3, 0)
@attempt
def request_a_key(): call(249, b"user", b"k", 0, -4)
@attempt
def open_by_handle(): call(304, -100, BUFFER, 0)
@attempt
def load_bpf(): call(321, 5, BUFFER, 128)
@attempt
def count_events(): call(298, BUFFER, 0, -1, -1, 0)
@attempt
def handle_faults(): call(323, 0)
@attempt
def open_a_file_system(): call(430, b"tmpfs", 0)
@attempt
def clone_the_mounts(): call(428, -100, b"/", 1)
@attempt
def unmount_a_mask(): call(166, b"/proc/kcore", 2)
@attempt
def pivot(): call(155, b"/", b"/tmp")
@attempt
def clone_with_a_user_namespace():
    pid = libc.syscall(56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    if pid < 0: raise OSError(ctypes.get_errno() or 1, "clone")
@attempt
def clone_with_a_cgroup_namespace():
    pid = libc.syscall(56, 0x02000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    if pid < 0: raise OSError(ctypes.get_errno() or 1, "clone")
@attempt
def enter_the_namespace_of_pid_1(): call(308, os.open("/proc/1/ns/mnt", 0), 0)
@attempt
def steal_a_descriptor_of_pid_1(): call(438, os.pidfd_open(1), 3, 0)
@attempt
def read_the_memory_of_pid_1():
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    local = Vector(ctypes.addressof(BUFFER), 8); remote = Vector(0x400000, 8)
    call(310, 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
@attempt
def write_the_memory_of_pid_1(): os.open("/proc/1/mem", os.O_RDWR)
@attempt
def signal_a_process_of_the_node(): os.kill(HOST["pid"], 0)
@attempt
def see_a_file_of_the_node(): os.stat(HOST["file"])
@attempt
def leave_by_a_second_chroot():
    pid = os.fork()
    if pid == 0:
        os.makedirs("/tmp/jail", exist_ok=True)
        os.chroot("/tmp/jail")
        for _ in range(64): os.chdir("..")
        os.chroot(".")
        os._exit(0 if os.path.exists(HOST["file"]) else 7)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7: raise OSError(errno.ENOENT, "chroot")
@attempt
def talk_to_a_socket_of_the_node(): socket.socket(socket.AF_UNIX).connect("\0" + HOST["socket"])
@attempt
def find_a_socket_in_the_files():
    for place, folders, names in os.walk("/"):
        folders[:] = [f for f in folders if os.path.join(place, f) not in ("/proc", "/sys")]
        for name in names:
            if stat.S_ISSOCK(os.lstat(os.path.join(place, name)).st_mode): return
    raise OSError(errno.ENOENT, "no socket")
@attempt
def raw_packets(): socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
@attempt
def raw_ip(): socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
@attempt
def make_an_interface():
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    # RTM_NEWLINK, request | ack | create, an ifinfomsg and IFLA_LINKINFO{kind dummy}
    info = b"\x14\x00\x12\x00\x0a\x00\x01\x00dummy\x00\x00\x00\x00\x00\x00\x00"[:20]
    body = bytes(16) + info
    link.send((16 + len(body)).to_bytes(4, "little") + b"\x10\x00\x05\x06" + bytes(8) + body)
    code = int.from_bytes(link.recv(4096)[16:20], "little", signed=True)
    if code: raise OSError(-code, "netlink")
@attempt
def make_a_memory_device(): os.mknod("/tmp/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1))
@attempt
def open_a_loop_device(): os.open("/dev/loop0", os.O_RDWR)
@attempt
def open_the_kernel_log(): os.open("/dev/kmsg", os.O_RDONLY)
@attempt
def read_kernel_memory():
    if not open("/proc/kcore", "rb").read(1): raise OSError(errno.EACCES, "masked")
@attempt
def set_the_core_pattern(): write("/proc/sys/kernel/core_pattern", "|/tmp/x")
@attempt
def set_the_module_loader(): write("/proc/sys/kernel/modprobe", "/tmp/x")
@attempt
def set_the_uevent_helper(): write("/sys/kernel/uevent_helper", "/tmp/x")
@attempt
def suspend_the_machine(): write("/sys/power/state", "mem")
@attempt
def write_to_a_cgroup():
    for place, folders, names in os.walk("/sys/fs/cgroup"):
        for name in ("release_agent", "cgroup.procs", "memory.max", "memory.limit_in_bytes"):
            if name in names:
                with open(os.path.join(place, name), "a"): return
    raise OSError(errno.ENOENT, "no group shows")
@attempt
def read_kernel_addresses():
    if all(line.split()[0].strip("0") == "" for line in lines("/proc/kallsyms")[:50]):
        raise OSError(errno.EACCES, "zeros")
@attempt
def trace_the_kernel():
    if not os.listdir("/sys/kernel/debug") and not os.listdir("/sys/kernel/tracing"):
        raise OSError(errno.EACCES, "empty")
@attempt
def take_a_capability():
    head = (ctypes.c_uint32 * 2)(0x20080522, 0); data = (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)
    call(126, head, data)
@attempt
def raise_an_ambient_capability():
    if libc.prctl(47, 2, 21, 0, 0): raise OSError(errno.EPERM, "prctl")
@attempt
def become_root_again_by_a_file():
    subprocess.run(["cp", sys.executable, "/tmp/su"], check=True)
    os.chmod("/tmp/su", 0o4755)
    script = "import os; print(os.geteuid())"
    done = subprocess.run(["/tmp/su", "-c", script], user=1000, capture_output=True, text=True)
    if done.stdout.strip() != "0": raise OSError(errno.EPERM, done.stdout + done.stderr[-80:])
@attempt
def gain_by_file_capabilities():
    os.chmod("/tmp/su", 0o755)
    # VFS_CAP_REVISION_2 with CAP_SYS_ADMIN permitted and effective
    os.setxattr("/tmp/su", "security.capability",
                bytes([1, 0, 0, 2]) + (1 << 21).to_bytes(4, "little") + bytes(12))
    script = "print([l for l in open('/proc/self/status') if 'CapEff' in l][0].split()[1])"
    done = subprocess.run(["/tmp/su", "-c", script], capture_output=True, text=True)
    if not int(done.stdout or "0", 16) >> 21 & 1: raise OSError(errno.EPERM, done.stdout)
@attempt
def have_a_dangerous_capability():
    told = next(l for l in lines("/proc/self/status") if l.startswith("CapBnd"))
    bounding = int(told.split()[1], 16)
    # immutable, network, IPC, modules, raw I/O, tracing, admin, boot, nice, resource, time,
    # terminals, devices, leases, audit, MAC, log, wake, perfmon, bpf, checkpoint
    dangerous = (2, 9, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30)
    dangerous += (32, 33, 34, 35, 36, 37, 38, 39, 40)
    bad = [number for number in dangerous if bounding >> number & 1]
    if not bad: raise OSError(errno.EPERM, "none")
@attempt
def do_without_the_filter():
    told = dict(l.split(":\t") for l in lines("/proc/self/status") if ":\t" in l)
    if told["Seccomp"] == "2" and told["NoNewPrivs"] == "1": raise OSError(errno.EPERM, "both hold")
@attempt
def be_spared_by_the_oom_killer(): write("/proc/self/oom_score_adj", "-1000")
@attempt
def run_before_everybody(): os.setpriority(os.PRIO_PROCESS, 0, -20)
@attempt
def run_in_real_time(): os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
@attempt
def raise_a_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
@attempt
def type_into_a_terminal():
    leader, follower = os.openpty()
    fcntl.ioctl(follower, 0x5412, b"x")
@attempt
def make_a_file_immutable(): fcntl.ioctl(os.open("/tmp", 0), 0x40086602, (16).to_bytes(8, "little"))
@attempt
def link_the_platform_in(): os.link("/.dsec/init", "/tmp/init")
@attempt
def replace_the_platform(): os.rename("/.dsec/init", "/.dsec/other")
@attempt
def rename_the_node(): socket.sethostname("x")
@attempt
def another_way_of_the_endpoint():
    try:
        urllib.request.urlopen("http://ctrl-plane:8080/v1/state", timeout=5)
    except urllib.error.HTTPError as error:
        raise OSError(errno.EACCES, str(error.code))
@attempt
def a_huge_heartbeat():
    try:
        urllib.request.urlopen(os.environ["DSEC_HB_ENDPOINT"], b"x" * (8 << 20), timeout=5)
    except (urllib.error.URLError, OSError) as error:
        raise OSError(errno.EACCES, str(error)[:80])

result = {}
for name, function in TABLE.items():
    try:
        function()
        result[name] = "DONE"
    except (OSError, ValueError) as problem:
        result[name] = f"refused: {problem}"
print(json.dumps(result))
"""

SCENE = r"""
import os
os.chdir("/output")
os.mkdir("deep")
os.chdir("deep")
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
os.chdir("/output")
for name in (b"bad-\xff\xfe", b"two\nlines", b"n" * 250, "zw\u202e.txt".encode()):
    open(name, "w").close()
place = "/output/long"
for _ in range(4):
    place += "/" + "p" * 200
os.makedirs(place)
open(place + "/far", "w").close()
with open("sparse", "wb") as file:
    file.truncate(1 << 40)
with open("big", "wb") as file:
    file.write(b"x" * (1 << 20))
for n in range(600):
    os.link("big", f"hard-{n}")
for n in range(40):
    os.symlink(f"chain-{n + 1}", f"chain-{n}")
os.symlink("/etc", "chain-40")
os.symlink("/proc/self/root/etc/shadow", "shadow")
open("good.txt", "w").write("kept")
"""


@pytest.fixture
async def w(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A substrate."""
    images = tmp_path_factory.getbasetemp() / "substrate-images"
    async with world(tmp_path, images) as here:
        yield here


async def test_nothing_that_root_inside_tries_is_done(w: World, tmp_path: Path) -> None:
    """Each attempt of the table is refused, and PID 1 still answers afterwards."""
    secret = tmp_path / "secret"
    secret.write_text("the node's")
    name = f"dsec-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        host = {"pid": os.getpid(), "file": str(secret), "socket": name}
        box = await w.begin(w.spec("sleep", "60", limits={"pids": 256, "disk_bytes": 128 << 20}))
        out, err, _ = await w.exec(box, "python3", "-c", ATTEMPTS, json.dumps(host))
        result = json.loads(out or b"{}")
        assert len(result) >= 50, err.decode()[-2000:]
        assert {k: v for k, v in result.items() if not v.startswith("refused")} == {}
    out, _, _ = await w.exec(box, "echo", "alive")
    assert out == b"alive\n"


async def test_a_neighbour_is_out_of_reach(w: World) -> None:
    """Of two sandboxes none sees the other's files, processes or listeners."""
    script = (
        "import socket, time; open('/tmp/mine', 'w').write('SECRET-OF-ONE'); "
        "s = socket.socket(socket.AF_UNIX); s.bind('\\0one'); s.listen(); "
        "t = socket.create_server(('127.0.0.1', 7777)); print('up', flush=True); time.sleep(60)"
    )
    one = await w.begin(w.spec("python3", "-c", script, env={"TOKEN": "SECRET-OF-ONE"}))
    async for _ in w.substrate.logs(one, follow=True):
        break
    look = (
        "cat /proc/*/environ /proc/*/cmdline /proc/net/unix /proc/net/tcp /tmp/mine "
        "/proc/*/root/tmp/mine 2>/dev/null | tr '\\0' '\\n'; ls /dev/shm /dev/mqueue; "
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 7777))' 2>&1; "
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"\\0one\")' 2>&1"
    )
    end = await w.sh(look)
    assert "SECRET-OF-ONE" not in end.stdout
    assert "1E61" not in end.stdout
    assert end.stdout.count("ConnectionRefusedError") == 2


async def test_a_hostile_scene_is_archived_without_its_tricks(w: World) -> None:
    """Depth, bytes that are no text, long names, holes, links: left out and said, rest is kept."""
    limits = {"disk_bytes": 64 << 20}
    box = await w.begin(w.spec("python3", "-c", SCENE, limits=limits))
    end = await w.substrate.wait(box)
    assert end.exit_code == 0, end.stderr
    count, size, kept, manifest = 0, 0, b"", {}
    async for name, data in w.substrate.archive(box):
        assert name.isprintable()
        assert len(name.encode()) <= 512
        assert ".." not in name.split("/")
        count, size = count + 1, size + len(data)
        kept = data if name == "collect/output/good.txt" else kept
        manifest = json.loads(data) if name == "manifest.json" else manifest
    assert kept == b"kept"
    assert size < 600 << 20
    why = {one["path"]: one["why"] for one in manifest["skipped"]}
    assert why["/output/sparse"].endswith("more than may be archived")
    assert why["/output/shadow"] == "is a link"
    assert why["/output/chain-40"] == "is a link"
    assert any("directories deep" in text for text in why.values())
    assert sum("cannot be stored" in text for text in why.values()) >= 4
