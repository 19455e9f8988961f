"""`dsec tools`: list, install and locate the programs that the local path needs."""

import json
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dsec.local import toolchain
from dsec.local.toolchain_get import Event, Progress

app = typer.Typer(
    help="Install the tool chain (etcd, Kubernetes, Pulumi) into your cache directory.",
    no_args_is_help=True,
)

# Where no terminal can redraw a line, a build says this often that it is still alive, in seconds.
_HEARTBEAT = 30.0

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Programs; all of them when none is named."),
]


class Output(StrEnum):
    """How to print an answer."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print the answer.")]


@app.command("list")
def list_(output: OutputOption = Output.TABLE) -> None:
    """Show every tool: the version wanted, whether it is here and where."""
    places = toolchain.Places.of()
    rows: list[dict[str, str | float | int | None]] = []
    for tool in toolchain.TOOLS:
        found = toolchain.lookup(tool, places)
        rows.append(
            {
                "name": tool.name,
                "version": tool.version,
                "source": found.source if found else None,
                "path": str(found.program) if found else None,
                "buildCoreMinutes": tool.core_minutes,
                "megabytes": tool.megabytes,
            }
        )
    if output is Output.JSON:
        print(json.dumps(rows, indent=2))
        return
    table = Table("tool", "version", "here", "where, or what it takes", box=None)
    for row in rows:
        takes = f"download, or build in {row['buildCoreMinutes']:g} core-minutes"
        table.add_row(
            str(row["name"]),
            str(row["version"]),
            str(row["source"] or "no"),
            str(row["path"] or takes),
        )
    Console().print(table)


@app.command()
def install(names: Names = None, output: OutputOption = Output.TABLE) -> None:
    """Install what is missing, with progress; a second run changes nothing.

    An official release is downloaded and verified where its host can be reached; otherwise the
    program is built from its pinned Go module. Interrupt it at any time: it goes on from there.
    """
    # a caller that gives up must not leave a compiler running
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    console = Console(stderr=True)
    with progress_display(console) as progress:
        programs = toolchain.ensure(names, progress)
    toolchain.env()  # links, so that the first user does not pay for them
    if output is Output.JSON:
        print(json.dumps({name: str(path) for name, path in programs.items()}, indent=2))
        return
    count = len(programs)
    console.print(f"{count} tool{'s' * (count != 1)} ready ({time.monotonic() - started:.1f} s)")


@app.command()
def path(names: Names = None) -> None:
    """Print the path of installed tools, one a line; exit code 1 if one is missing."""
    places = toolchain.Places.of()
    missing = []
    for tool in toolchain.select(names, toolchain.TOOLS):
        if found := toolchain.lookup(tool, places):
            print(found.program)
        else:
            missing.append(tool.name)
    if missing:
        print(
            f"dsec: not installed: {', '.join(missing)}; 'dsec tools install' gets them",
            file=sys.stderr,
        )
        raise typer.Exit(1)


@app.command("env")
def env_(output: OutputOption = Output.TABLE) -> None:
    """Print shell commands that put the installed tools on PATH: eval "$(dsec tools env)"."""
    variables = toolchain.env()
    if output is Output.JSON:
        print(json.dumps(variables, indent=2))
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")


@contextmanager
def progress_display(console: Console) -> Iterator[Progress]:
    """Give a progress callback that shows or, without a terminal, logs each tool.

    Silent until the first event, so a run with nothing to do prints nothing.
    """
    board = Board()
    if not console.is_terminal:
        lines = _Lines(console)
        yield lines.take
        return
    live = Live(console=console, get_renderable=board.render, refresh_per_second=4, transient=True)
    with live:
        yield board.take
    if board.events:
        console.print(board.render())


class Board:
    """The last event of each tool, as a table."""

    def __init__(self) -> None:
        self.events: dict[str, Event] = {}
        self._lock = threading.Lock()

    def take(self, event: Event) -> None:
        """Remember what a tool does now."""
        with self._lock:
            self.events[event.tool] = event

    def render(self) -> Table:
        """Draw what all tools do now."""
        table = Table(box=None, show_header=False)
        with self._lock:
            for event in self.events.values():
                table.add_row(event.tool, event.phase, times(event), event.detail)
        return table


class _Lines:
    """One printed line per change, and one every half minute while a phase lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def take(self, event: Event) -> None:
        with self._lock:
            phase, at = self._said.get(event.tool, ("", 0.0))
            if phase == event.phase and event.elapsed - at < _HEARTBEAT:
                return
            self._said[event.tool] = (event.phase, event.elapsed)
            parts = [event.tool, event.phase, times(event), event.detail]
            self._console.print(" ".join(part for part in parts if part), soft_wrap=True)


def times(event: Event) -> str:
    """Return elapsed and estimated time in words, such as `1:05 of about 7:00`."""
    elapsed = _clock(event.elapsed)
    if event.estimate is None or event.phase in {"done", "failed"}:
        return "" if event.phase == "failed" else elapsed
    return f"{elapsed} of about {_clock(event.estimate)}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
