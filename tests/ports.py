"""Ports of loopback for servers of tests: found in advance, and kept from everybody else."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

LOWEST = 12_000
"""Ports below are those of well-known servers."""
_held: list[IO[str]] = []


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nobody listens on, each for this process until it ends.

    They are none of those that the kernel gives to outgoing calls, and locked against other test
    processes: nobody takes one between here and the server that is to listen on it.
    """
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    folder = Path(tempfile.gettempdir()) / f"dsec-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(LOWEST, int(outgoing))
        lock = (folder / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        found.append(port)
    return found
