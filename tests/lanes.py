"""Lanes of test processes that run beside each other: what `tests/tiers.py` runs tests with.

A run is one pytest process, a lane is runs one after the other, a phase is lanes side by side. The
first lane of a phase writes to the terminal; each run of the others writes to a file that is shown
when it ends.
"""

import itertools
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

NO_TESTS = 5
"""Pytest's exit status where nothing was selected."""
STOPPED = 130
"""Exit status of a run that was not begun because somebody wanted to stop."""
TELL_SECONDS = 30.0
"""How often a phase tells what it waits for once its first lane is through."""


@dataclass(frozen=True, slots=True)
class Run:
    """One pytest process: its name in the table, paths below `tests/`, and further options."""

    name: str
    paths: tuple[str, ...]
    marks: str = ""
    """What `-m` selects of them; the soak is left out always."""
    options: tuple[str, ...] = ()

    def command(self, report: Path) -> list[str]:
        """Return the command line; it writes a JUnit report."""
        marks = " and ".join(filter(None, (self.marks, "not soak")))
        paths = [f"tests/{path}" for path in self.paths]
        words = ["-m", "pytest", *paths, "-m", marks, *self.options, f"--junitxml={report}"]
        return [sys.executable, *words]


Lane = tuple[Run, ...]
Phase = tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """How a run ended: exit status and seconds."""

    name: str
    status: int
    seconds: float


@dataclass
class Runner:
    """Runs phases in a checkout; a run leaves `<its name>.xml` and, unless shown live, `.log`.

    Each run is in a session of its own, so that a Ctrl-C of the terminal reaches it once and by
    `stop` alone: what a test has started is taken down by the test.
    """

    root: Path
    reports: Path
    _living: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stopping: bool = field(default=False, init=False)

    def phase(self, lanes: Phase) -> list[Row]:
        """Run lanes beside each other; return a row for each run, in the order of the plan.

        Interrupted, it asks what runs to stop, waits for it, and raises the interrupt.
        """
        with ThreadPoolExecutor(len(lanes)) as pool:
            futures = [pool.submit(self._lane, lane, live=n == 0) for n, lane in enumerate(lanes)]
            begun = time.monotonic()
            try:
                while wait(futures, TELL_SECONDS).not_done:
                    if futures[0].done():
                        names = ", ".join(sorted(self._living))
                        _say(f"   … {time.monotonic() - begun:.0f} s, waiting for {names}")
            except BaseException:
                self.stop()
                raise
            return list(itertools.chain.from_iterable(future.result() for future in futures))

    def stop(self) -> None:
        """Begin no other run, and ask those that run to stop, as Ctrl-C does."""
        with self._lock:
            self._stopping = True
            for process in self._living.values():
                process.send_signal(signal.SIGINT)

    def _lane(self, runs: Lane, *, live: bool) -> list[Row]:
        rows = []
        for run in runs:
            begun = time.monotonic()
            status = self._live(run) if live else self._kept(run)
            rows.append(Row(run.name, status, time.monotonic() - begun))
        return rows

    def _live(self, run: Run) -> int:
        _say(f"\n── {run.name}")
        return self._pytest(run, None)

    def _kept(self, run: Run) -> int:
        begun, log = time.monotonic(), self.reports / f"{run.name}.log"
        with log.open("wb") as output:
            status = self._pytest(run, output.fileno())
        if status != STOPPED:
            text, seconds = log.read_text(errors="replace"), time.monotonic() - begun
            _say(f"\n── {run.name} (beside the others, {seconds:.0f} s)\n{text}")
        return status

    def _pytest(self, run: Run, output: int | None) -> int:
        """Run it and return its exit status; none selected is no failure."""
        with self._lock:
            if self._stopping:
                return STOPPED
            process = subprocess.Popen(
                run.command(self.reports / f"{run.name}.xml"),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
            )
            self._living[run.name] = process
        status = process.wait()
        with self._lock:
            del self._living[run.name]
        return 0 if status == NO_TESTS else status


def _say(text: str) -> None:
    print(text.rstrip(), flush=True)
