"""CPUs that sandboxes have to themselves, by cpuset groups; versions 1 and 2 (SCHED-29).

Version 1: a sandbox with CPUs of its own has a group in the cpuset hierarchy, and the commands of
all others run in one group beside these, `_shared`, which has the rest. Version 2: CPUs of its own
are set on the sandbox's group, and the rest on the commands' group of each other sandbox.
"""

import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

SHARED = "_shared"
"""Name of the group of those without CPUs of their own; no sandbox is called like that."""
CPUS, MEMS = "cpuset.cpus", "cpuset.mems"


def parse(text: str) -> list[int]:
    """Return the numbers of a list such as `0-3,8`. Raises ValueError."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return sorted(set(found))


class Cpusets:
    """Of one node, one agent. `base` is the parent group of all sandboxes; None: no cpusets."""

    def __init__(self, base: Path | None, *, version: int) -> None:
        self.base = base
        self._version = version
        self._own: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def setup(self) -> None:
        """Find who has CPUs of its own, after a restart as well. Raises OSError."""
        if self.base is None:
            return
        with self._lock:
            for group in self.base.iterdir():
                text = _read(group / CPUS)
                if group.is_dir() and group.name != SHARED and text:
                    self._own[group.name] = parse(text)
            if self._version == 1:
                (self.base / SHARED).mkdir(exist_ok=True)
                (self.base / SHARED / MEMS).write_text(_read(self.base / MEMS))
            self._share()

    def directory(self, sandbox: str) -> Path | None:
        """Return where the commands of a sandbox belong in a cpuset hierarchy of version 1."""
        if self.base is None or self._version != 1:
            return None
        return self.base / (sandbox if sandbox in self._own else SHARED)

    def pin(self, sandbox: str, cpus: Sequence[int]) -> None:
        """Give a sandbox CPUs of its own, or the rest where it asks for none.

        They are numbered from 0 among those of the parent. Raises OSError where they are not there.
        """
        if self.base is None:
            if cpus:
                raise FileNotFoundError("cpuset: this kernel gives nobody CPUs of its own")
            return
        with self._lock:
            if cpus:
                there = self._all()
                if max(cpus) >= len(there):
                    raise FileNotFoundError(f"cpuset: no CPU {max(cpus)} of {len(there)}")
                group = self.base / sandbox
                group.mkdir(exist_ok=True)
                if self._version == 1:
                    (group / MEMS).write_text(_read(self.base / MEMS))
                (group / CPUS).write_text(_text(there[cpu] for cpu in cpus))
                self._own[sandbox] = [there[cpu] for cpu in cpus]
                self._share()
            elif self._version != 1 and self._own:
                _write(self.base / sandbox / "user" / CPUS, _text(self._rest()))

    def free(self, sandbox: str) -> None:
        """Let others use the CPUs of a sandbox whose groups are gone. Idempotent.

        Raises OSError.
        """
        with self._lock:
            if self._own.pop(sandbox, None) is not None:
                self._share()

    def _all(self) -> list[int]:
        base = self.base or Path("/nonexistent")
        return parse(_read(base / CPUS) or _read(base / "cpuset.cpus.effective"))

    def _rest(self) -> Collection[int]:
        """Return the CPUs that nobody has; all, where nothing would be left for the others."""
        own = {cpu for cpus in self._own.values() for cpu in cpus}
        there = self._all()
        return [cpu for cpu in there if cpu not in own] or there

    def _share(self) -> None:
        if self.base is None:
            return
        rest = _text(self._rest())
        if self._version == 1:
            _write(self.base / SHARED / CPUS, rest)
            return
        for group in self.base.iterdir():
            if group.name not in self._own and (group / "user").is_dir():
                _write(group / "user" / CPUS, rest)


def _text(cpus: Iterable[int]) -> str:
    return ",".join(str(cpu) for cpu in cpus)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    """Write what is not there yet; a group that goes meanwhile needs nothing."""
    try:
        if parse(_read(path)) != parse(text):
            path.write_text(text)
    except FileNotFoundError:
        if path.parent.is_dir():
            raise
