"""What a script of `bench_snapshot` tells about its own run."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn


class Watch:
    """Started when the libraries are loaded."""

    def __init__(self) -> None:
        self._begin, self._used = time.monotonic(), time.process_time()

    def told(self) -> dict[str, float]:
        """Return seconds, processor seconds, and the largest memory in MiB.

        The memory is that of this program: what getrusage says begins with its parent's.
        """
        seconds, cpu = time.monotonic() - self._begin, time.process_time() - self._used
        status = Path("/proc/self/status").read_text().splitlines()
        (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
        return {"seconds": seconds, "cpu": cpu, "memory_mib": int(peak) / 1024}


def leave(answer: dict[str, Any]) -> NoReturn:
    """Print the answer and end at once: threads of the S3 client may still let go of buffers."""
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    os._exit(0)
