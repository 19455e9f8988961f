"""Control groups of sandboxes: paths, limits, freezing, counters, removal; versions 1 and 2.

Each sandbox has two places. Its init (and the OCI runtime while it starts) is outside of the
limits, so that neither a memory limit nor a CPU quota of the user's program silences it. The
commands are inside, each in a leaf of its own that init makes. Version 1: `<parent>/<id>` in the
memory and pids hierarchies holds init, `<parent>/<id>/user` the commands; in the other limited
hierarchies init stays in `<parent>` and `<parent>/<id>` holds the commands. Version 2:
`<parent>/<id>/init` and `<parent>/<id>/user`.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsec.agent.cpusets import SHARED, Cpusets
from dsec.api.sandbox import Evidence, Resources

PERIOD_US = 100_000
_NESTED = ("memory", "pids")
_FLAT = ("cpu", "cpuacct", "freezer", "devices")
_DEVICES = ("c 1:3", "c 1:5", "c 1:7", "c 1:8", "c 1:9", "c 5:0", "c 5:2", "c 136:*")
_FREEZE_SECONDS = 5.0
_KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """What the node has mounted: `controllers` maps names to mount points (version 1)."""

    version: int
    controllers: dict[str, Path]
    others: tuple[Path, ...] = ()
    unified: Path | None = None

    def all_roots(self) -> list[Path]:
        """Return every mount point once, in a stable order."""
        roots = [*self.controllers.values(), *self.others]
        if self.version == 2:  # noqa: PLR2004 - the name of the version
            roots = [self.unified] if self.unified else []
        return list(dict.fromkeys(roots))


def detect(mounts: str) -> Hierarchies:
    """Read the text of /proc/self/mounts. Hybrid machines count as version 1.

    Raises ValueError where neither version has memory and pids.
    """
    controllers: dict[str, Path] = {}
    others: list[Path] = []
    unified = None
    for line in mounts.splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            unified = Path(where)
        elif kind == "cgroup":
            names = set(options.split(",")) & {*_NESTED, *_FLAT}
            if not names and "cpuset" in options.split(","):
                # beside another controller each group of that would need CPUs, too
                names = {"cpuset"}
            for name in names:
                controllers[name] = Path(where)
            if not names:
                others.append(Path(where))
    if set(_NESTED) <= controllers.keys():
        if unified is not None:
            others.append(unified)
        return Hierarchies(1, controllers, tuple(others), unified)
    if unified is not None:
        return Hierarchies(2, {}, (), unified)
    raise ValueError("no cgroup hierarchy with memory and pids is mounted")


def limits(version: int, resources: Resources) -> list[tuple[str, str, str, bool]]:
    """Return (controller, file, value, required) for the limits, in the order of writing."""
    quota = max(1000, resources.cpu_milli * PERIOD_US // 1000)
    memory = str(resources.memory_bytes)
    if version == 1:
        shares = max(2, resources.cpu_milli * 1024 // 1000)
        return [
            ("memory", "memory.limit_in_bytes", memory, True),
            ("memory", "memory.memsw.limit_in_bytes", memory, False),
            ("pids", "pids.max", str(resources.pids), True),
            ("cpu", "cpu.cfs_period_us", str(PERIOD_US), False),
            ("cpu", "cpu.cfs_quota_us", str(quota), False),
            ("cpu", "cpu.shares", str(shares), False),
        ]
    weight = max(1, min(10_000, resources.cpu_milli // 10))
    return [
        ("memory", "memory.max", memory, True),
        ("memory", "memory.swap.max", "0", False),
        ("pids", "pids.max", str(resources.pids), True),
        ("cpu", "cpu.max", f"{quota} {PERIOD_US}", False),
        ("cpu", "cpu.weight", str(weight), False),
    ]


def counters(text: str) -> dict[str, int]:
    """Parse a flat keyed file such as memory.events."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}  # noqa: PLR2004 - a key and a value


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


class SandboxCgroups:
    """The control groups of all sandboxes of a node, below one parent name."""

    def __init__(self, hierarchies: Hierarchies, parent: str = "dsec") -> None:
        """Keep what the node has; `parent` is a path. Nothing is made before `setup`."""
        self.hierarchies = hierarchies
        self.parent = parent.strip("/")
        self._cpusets = Cpusets(self._cpuset_base(), version=hierarchies.version)

    def setup(self) -> None:
        """Make the parent in every hierarchy. Idempotent. Raises OSError."""
        for root in self.hierarchies.all_roots():
            path = root
            for part in Path(self.parent).parts:
                if self.hierarchies.version == 2:  # noqa: PLR2004 - the name of the version
                    self._enable(path)
                path /= part
                path.mkdir(exist_ok=True)
                for name in ("cpuset.mems", "cpuset.cpus"):
                    file = path / name
                    if file.exists() and not _read(file).strip():
                        file.write_text(_read(path.parent / name))
            if self.hierarchies.version == 2:  # noqa: PLR2004 - the name of the version
                self._enable(path)
        self._cpusets.setup()

    @property
    def pins(self) -> bool:
        """Whether sandboxes can have CPUs to themselves here."""
        return self._cpusets.base is not None

    def _cpuset_base(self) -> Path | None:
        """Return the parent of all sandboxes where cpusets are set; None: there are none."""
        root = self.hierarchies.controllers.get("cpuset")
        if self.hierarchies.version == 2 and self.hierarchies.unified:  # noqa: PLR2004 - the name of the version
            offered = _read(self.hierarchies.unified / "cgroup.controllers").split()
            root = self.hierarchies.unified if "cpuset" in offered else None
        return root / self.parent if root is not None else None

    def _enable(self, level: Path) -> None:
        more = " +cpuset" if self.pins else ""
        (level / "cgroup.subtree_control").write_text(f"+memory +pids +cpu{more}")

    def _init_directory(self, root: Path, sandbox: str) -> Path:
        base = root / self.parent
        if self.hierarchies.version == 2:  # noqa: PLR2004 - the name of the version
            return base / sandbox / "init"
        nested = any(self.hierarchies.controllers.get(name) == root for name in _NESTED)
        return base / sandbox if nested else base

    def user_directory(self, controller: str, sandbox: str) -> Path | None:
        """Return where the limits of a controller are set; None where it is not mounted."""
        if self.hierarchies.version == 2:  # noqa: PLR2004 - the name of the version
            root = self.hierarchies.unified
            return root / self.parent / sandbox / "user" if root else None
        found = self.hierarchies.controllers.get(controller)
        if found is None:
            return None
        base = found / self.parent / sandbox
        return base / "user" if self._init_directory(found, sandbox) == base else base

    def leaf_parent(self, sandbox: str) -> Path:
        """Return the directory in which init makes a leaf for each command."""
        path = self.user_directory("pids", sandbox)
        if path is None:
            raise ValueError("the pids hierarchy is not mounted")
        return path

    def join_init(self, sandbox: str) -> list[Path]:
        """Return the `cgroup.procs` files that init enters, in every hierarchy."""
        roots = self.hierarchies.all_roots()
        return [self._init_directory(root, sandbox) / "cgroup.procs" for root in roots]

    def join_user(self, sandbox: str) -> list[Path]:
        """Return the `cgroup.procs` files that each command enters besides its leaf."""
        if self.hierarchies.version == 2:  # noqa: PLR2004 - the name of the version
            return []
        leaf = self.leaf_parent(sandbox)
        found = [self.user_directory(name, sandbox) for name in (*_NESTED, *_FLAT)]
        found.append(self._cpusets.directory(sandbox))
        unique = dict.fromkeys(path for path in found if path is not None and path != leaf)
        return [path / "cgroup.procs" for path in unique]

    def create(self, sandbox: str, resources: Resources, cpus: Sequence[int] = ()) -> None:
        """Make the groups of a sandbox and set its limits. Raises OSError.

        `cpus` are its own: no other sandbox runs there.
        """
        if self.hierarchies.version == 1 and cpus:
            self._cpusets.pin(sandbox, cpus)
        for procs in [*self.join_init(sandbox), *self.join_user(sandbox)]:
            procs.parent.mkdir(parents=True, exist_ok=True)
        self.leaf_parent(sandbox).mkdir(parents=True, exist_ok=True)
        if self.hierarchies.version == 2:  # noqa: PLR2004 - the name of the version
            self._enable(self.leaf_parent(sandbox).parent)
            self._cpusets.pin(sandbox, cpus)
        for controller, file, value, required in limits(self.hierarchies.version, resources):
            directory = self.user_directory(controller, sandbox)
            if directory is None or not (directory / file).exists():
                if required:
                    raise FileNotFoundError(f"{controller}: this kernel has no {file}")
                continue
            (directory / file).write_text(value)
        devices = self.user_directory("devices", sandbox)
        if self.hierarchies.version == 1 and devices is not None:
            (devices / "devices.deny").write_text("a")
            for rule in _DEVICES:
                (devices / "devices.allow").write_text(f"{rule} rwm")

    def directories(self, sandbox: str) -> list[Path]:
        """Return every directory of a sandbox that exists, deepest first."""
        found: list[Path] = []
        for root in self.hierarchies.all_roots():
            base = root / self.parent / sandbox
            if base.is_dir():
                walked = [Path(where) for where, _, _ in os.walk(base)]
                found.extend(sorted(walked, key=lambda p: -len(p.parts)))
        return found

    def sandboxes(self) -> set[str]:
        """Return the names of all sandboxes that have a group, also half-removed ones."""
        names: set[str] = set()
        for root in self.hierarchies.all_roots():
            base = root / self.parent
            if base.is_dir():
                names.update(entry.name for entry in base.iterdir() if entry.is_dir())
        return names - {SHARED}

    def pids(self, sandbox: str) -> set[int]:
        """Return the processes of a sandbox, init included, as the node numbers them."""
        found: set[int] = set()
        for directory in self.directories(sandbox):
            found.update(int(pid) for pid in _read(directory / "cgroup.procs").split())
        return found - {0}

    def freeze(self, sandbox: str) -> None:
        """Stop every process of the commands. Raises TimeoutError when some do not stop."""
        until = time.monotonic() + _FREEZE_SECONDS
        while not self._frozen(sandbox, freeze=True):
            if time.monotonic() > until:
                self.thaw(sandbox)
                raise TimeoutError(f"{sandbox}: not every process stopped in {_FREEZE_SECONDS} s")
            time.sleep(0.002)

    def _frozen(self, sandbox: str, *, freeze: bool) -> bool:
        if self.hierarchies.version == 2:  # noqa: PLR2004 - the name of the version
            directory = self.leaf_parent(sandbox)
            (directory / "cgroup.freeze").write_text("1" if freeze else "0")
            return counters(_read(directory / "cgroup.events")).get("frozen") == 1
        group = self.user_directory("freezer", sandbox)
        if group is None:
            raise FileNotFoundError("this node has no freezer hierarchy")
        file = group / "freezer.state"
        file.write_text("FROZEN" if freeze else "THAWED")
        return file.read_text().strip() == "FROZEN"

    def thaw(self, sandbox: str) -> None:
        """Let them run again. A sandbox without groups is already thawed."""
        with contextlib.suppress(FileNotFoundError):
            self._frozen(sandbox, freeze=False)

    def evidence(self, sandbox: str, resources: Resources) -> Evidence:
        """Read what the kernel counted. Bytes and seconds; None where it does not count."""
        memory = self.user_directory("memory", sandbox) or Path("/nonexistent")
        pids = self.leaf_parent(sandbox)
        leaves = [entry for entry in pids.iterdir() if entry.is_dir()] if pids.is_dir() else []
        hits = sum(
            counters(_read(directory / "pids.events")).get("max", 0)
            for directory in [pids, *leaves]
        )
        if self.hierarchies.version == 1:
            kills = counters(_read(memory / "memory.oom_control")).get("oom_kill", 0)
            peak = _number(memory / "memory.max_usage_in_bytes")
        else:
            kills = counters(_read(memory / "memory.events")).get("oom_kill", 0)
            peak = _number(memory / "memory.peak")
        return Evidence(
            oom_kills=kills,
            memory_peak_bytes=peak,
            memory_limit_bytes=resources.memory_bytes,
            pids_max_hits=hits,
            pids_peak=_number(pids / "pids.peak"),
            cpu_seconds=self.cpu_seconds(sandbox),
            cgroup=f"/{self.parent}/{sandbox}",
        )

    def cpu_seconds(self, sandbox: str) -> float | None:
        """Return the CPU time that its commands have used; None where the kernel does not count."""
        if self.hierarchies.version == 1:
            directory = self.user_directory("cpuacct", sandbox) or Path("/nonexistent")
            used, unit = _number(directory / "cpuacct.usage"), 1e9
        else:
            stat = _read(self.leaf_parent(sandbox) / "cpu.stat")
            used, unit = counters(stat).get("usage_usec"), 1e6
        return None if used is None else used / unit

    def remove(self, sandbox: str) -> None:
        """Kill what lives, thaw, wait, remove the groups. Idempotent; blocks.

        Raises TimeoutError where processes do not go (stuck in the kernel).
        """
        self._remove(sandbox)
        self._cpusets.free(sandbox)

    def _remove(self, sandbox: str) -> None:
        until = time.monotonic() + _KILL_SECONDS
        pause = 0.001
        while self.pids(sandbox):
            for pid in self.pids(sandbox):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # a frozen process does not die before it is thawed
            self.thaw(sandbox)
            if time.monotonic() > until:
                raise TimeoutError(f"{sandbox}: processes {sorted(self.pids(sandbox))} do not end")
            time.sleep(pause)
            pause = min(0.05, pause * 2)
        while left := self.directories(sandbox):
            for directory in left:
                with contextlib.suppress(OSError):
                    directory.rmdir()
            if not self.directories(sandbox):
                return
            if time.monotonic() > until:
                raise TimeoutError(f"{sandbox}: cgroup {left[0]} cannot be removed")
            time.sleep(pause)
