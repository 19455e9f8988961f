"""Control groups: detection, paths and limits of both versions, without touching any."""

from pathlib import Path

import pytest
from dsec.agent.cgroups import SandboxCgroups, counters, detect, limits
from dsec.api.sandbox import Resources

V1 = """proc /proc proc rw 0 0
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
RESOURCES = Resources(cpu_milli=1500, memory_bytes=256 << 20, pids=100)
ROOT = Path("/sys/fs/cgroup")


def test_hybrid_counts_as_version_1() -> None:
    """Version 2 has no controllers there."""
    found = detect(V1)
    assert found.version == 1
    assert found.controllers["cpu"] == found.controllers["cpuacct"] == ROOT / "cpu,cpuacct"
    assert found.unified == ROOT / "unified"
    assert ROOT / "systemd" in found.all_roots()
    assert ROOT / "unified" in found.all_roots()


def test_version_2() -> None:
    """One root for everything."""
    found = detect(V2)
    assert (found.version, found.all_roots()) == (2, [ROOT])


def test_a_node_without_cgroups_is_an_error() -> None:
    """Limits that cannot be kept are not promised."""
    with pytest.raises(ValueError, match="memory and pids"):
        detect("proc /proc proc rw 0 0\n")


def test_version_1_keeps_init_outside_of_the_limits() -> None:
    """Init above the user's group in memory and pids, beside it elsewhere."""
    groups = SandboxCgroups(detect(V1), "/dsec/pool")
    joined = {str(p.parent.relative_to(ROOT)) for p in groups.join_init("sb-1")}
    assert joined == {
        "memory/dsec/pool/sb-1", "pids/dsec/pool/sb-1", "cpu,cpuacct/dsec/pool",
        "freezer/dsec/pool", "systemd/dsec/pool", "unified/dsec/pool",
    }  # fmt: skip
    user = [str(p.parent.relative_to(ROOT)) for p in groups.join_user("sb-1")]
    assert user == [
        "memory/dsec/pool/sb-1/user", "cpu,cpuacct/dsec/pool/sb-1", "freezer/dsec/pool/sb-1",
    ]  # fmt: skip
    assert groups.leaf_parent("sb-1") == ROOT / "pids/dsec/pool/sb-1/user"
    assert groups.user_directory("devices", "sb-1") is None


def test_version_2_has_a_group_for_init_and_one_for_the_commands() -> None:
    """Processes are in leaves only, as version 2 demands."""
    groups = SandboxCgroups(detect(V2))
    assert groups.join_init("sb-1") == [ROOT / "dsec/sb-1/init/cgroup.procs"]
    assert groups.join_user("sb-1") == []
    assert groups.leaf_parent("sb-1") == ROOT / "dsec/sb-1/user"
    assert groups.user_directory("memory", "sb-1") == ROOT / "dsec/sb-1/user"


def test_limits_of_both_versions() -> None:
    """The same request in the words of each."""
    one = {file: value for _, file, value, _ in limits(1, RESOURCES)}
    assert one["memory.limit_in_bytes"] == one["memory.memsw.limit_in_bytes"] == str(256 << 20)
    assert (one["pids.max"], one["cpu.cfs_quota_us"], one["cpu.shares"]) == (
        "100",
        "150000",
        "1536",
    )
    two = {file: value for _, file, value, _ in limits(2, RESOURCES)}
    assert (two["memory.max"], two["memory.swap.max"]) == (str(256 << 20), "0")
    assert (two["cpu.max"], two["cpu.weight"], two["pids.max"]) == ("150000 100000", "150", "100")


def test_the_smallest_quota_is_what_the_kernel_takes() -> None:
    """One thousandth of a core would be refused."""
    tiny = Resources(cpu_milli=1, memory_bytes=1 << 20)
    assert {f: v for _, f, v, _ in limits(1, tiny)}["cpu.cfs_quota_us"] == "1000"
    assert {f: v for _, f, v, _ in limits(2, tiny)}["cpu.weight"] == "1"


def test_memory_is_written_before_memory_and_swap() -> None:
    """The kernel refuses the other order."""
    files = [file for _, file, _, _ in limits(1, RESOURCES)]
    assert files.index("memory.limit_in_bytes") < files.index("memory.memsw.limit_in_bytes")


def test_version_2_groups_on_a_plain_directory(tmp_path: Path) -> None:
    """Limits, delegation and counters, on files that stand for the kernel's."""
    groups = SandboxCgroups(detect(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n"))
    groups.setup()
    user = tmp_path / "dsec/sb-1/user"
    user.mkdir(parents=True)
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight"):
        (user / name).touch()
    groups.create("sb-1", RESOURCES)
    assert (user / "memory.max").read_text() == str(256 << 20)
    assert "+memory" in (tmp_path / "dsec/sb-1/cgroup.subtree_control").read_text()
    assert "+pids" in (tmp_path / "cgroup.subtree_control").read_text()
    (user / "memory.events").write_text("oom 1\noom_kill 2\n")
    (user / "memory.peak").write_text("4096\n")
    (user / "pids.events").write_text("max 7\n")
    (user / "cpu.stat").write_text("usage_usec 1500000\n")
    evidence = groups.evidence("sb-1", RESOURCES)
    assert (evidence.oom_kills, evidence.memory_peak_bytes) == (2, 4096)
    assert (evidence.pids_max_hits, evidence.cpu_seconds) == (7, 1.5)
    assert evidence.cgroup == "/dsec/sb-1"
    assert groups.sandboxes() == {"sb-1"}


def test_a_required_limit_that_the_kernel_lacks_is_an_error(tmp_path: Path) -> None:
    """Better no sandbox than one without its limit."""
    groups = SandboxCgroups(detect(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n"))
    with pytest.raises(FileNotFoundError, match=r"memory\.max"):
        groups.create("sb-1", RESOURCES)


def test_counters() -> None:
    """Lines of other shapes are left out."""
    assert counters("low 0\noom_kill 3\nodd\nmax max\n") == {"low": 0, "oom_kill": 3}
