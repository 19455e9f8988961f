"""Control groups: detection, paths and limits of both versions, without touching any."""

from pathlib import Path

import pytest
from dsec.agent.cgroups import SandboxCgroups, counters, detect, limits
from dsec.agent.cpusets import Cpusets
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


def test_a_cpuset_beside_another_controller_pins_nobody() -> None:
    """Each group of that controller would have to be given CPUs as well."""
    alone = V1 + "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
    beside = V1.replace("cpu,cpuacct cgroup rw,relatime,cpu,cpuacct", "all cgroup rw,cpu,cpuset")
    assert SandboxCgroups(detect(alone)).pins
    assert not SandboxCgroups(detect(beside)).pins


def group(path: Path, cpus: str = "", *, mems: str = "") -> None:
    """Make a group as the kernel does: its files are there."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cpuset.cpus").write_text(cpus)
    (path / "cpuset.mems").write_text(mems)


def test_version_1_pins_in_a_group_and_keeps_the_rest_off(tmp_path: Path) -> None:
    """Two of their own are disjoint, all others share what is left, and get it back."""
    group(tmp_path, "0-3\n", mems="0\n")
    sets = Cpusets(tmp_path, version=1)
    sets.setup()
    assert sets.directory("plain") == tmp_path / "_shared"
    assert (tmp_path / "_shared/cpuset.cpus").read_text() == "0,1,2,3"
    sets.pin("a", [0, 1])
    sets.pin("b", [3])
    assert (sets.directory("a"), sets.directory("b")) == (tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/cpuset.cpus").read_text() == "0,1"
    assert (tmp_path / "a/cpuset.mems").read_text() == "0"
    assert (tmp_path / "_shared/cpuset.cpus").read_text() == "2"
    again = Cpusets(tmp_path, version=1)
    again.setup()
    assert again.directory("b") == tmp_path / "b", "a new agent knows them"
    again.free("a")
    again.free("a")
    assert (tmp_path / "_shared/cpuset.cpus").read_text() == "0,1,2"


def test_version_2_sets_the_rest_on_each_other_sandbox(tmp_path: Path) -> None:
    """Also on those that come later, and on all of them again when the CPUs are free."""
    group(tmp_path)
    (tmp_path / "cpuset.cpus.effective").write_text("2,4-5\n")
    for name in ("a", "old", "new"):
        group(tmp_path / name)
        group(tmp_path / name / "user")
    sets = Cpusets(tmp_path, version=2)
    sets.setup()
    sets.pin("a", [1])
    assert (tmp_path / "a/cpuset.cpus").read_text() == "4", "numbered among those that are there"
    assert (tmp_path / "old/user/cpuset.cpus").read_text() == "2,5"
    sets.pin("new", [])
    assert (tmp_path / "new/user/cpuset.cpus").read_text() == "2,5"
    assert sets.directory("a") is None
    sets.free("a")
    assert (tmp_path / "old/user/cpuset.cpus").read_text() == "2,4,5"


def test_cpus_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    """And a kernel without cpusets gives nobody any; where all are taken the others share all."""
    group(tmp_path, "0-1")
    sets = Cpusets(tmp_path, version=1)
    sets.setup()
    with pytest.raises(FileNotFoundError, match="no CPU 2 of 2"):
        sets.pin("a", [1, 2])
    with pytest.raises(FileNotFoundError, match="nobody CPUs of its own"):
        Cpusets(None, version=1).pin("a", [0])
    Cpusets(None, version=1).pin("a", [])
    sets.pin("a", [0, 1])
    assert (tmp_path / "_shared/cpuset.cpus").read_text() == "0,1"
