"""Processor time of programs that were started here: what counts where others use the machine."""

import os
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def children() -> set[int]:
    """Return the ids of the processes that this one started and that run now."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(folder.name))
        if fields and int(fields[1]) == os.getpid():
            found.add(int(folder.name))
    return found


def seconds(processes: Iterable[int]) -> float:
    """Return the processor time of processes so far, user and system."""
    return sum(
        (int(fields[11]) + int(fields[12])) / TICKS for one in processes if (fields := _fields(one))
    )


def _fields(process: int) -> list[str]:
    """Return what the kernel tells after a process's name, which may have any characters."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
