"""The progress line of an experiment, on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dsec.client.batch import Progress

LINE_SECONDS = 5.0
"""Least time between two lines in a log."""


@contextmanager
def shown(title: str) -> Iterator[Callable[[Progress], None]]:
    """Show how far an experiment is, until the block ends.

    A terminal gets a bar; a log gets a line now and then, so that it stays readable.
    """
    if not sys.stderr.isatty():
        yield _lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=None, detail="")

        def report(progress: Progress) -> None:
            bar.update(
                task,
                total=progress.desired or None,
                completed=progress.ended,
                detail=detail_of(progress),
            )

        yield report


def _lines(title: str) -> Callable[[Progress], None]:
    last = -LINE_SECONDS
    line = ""

    def report(progress: Progress) -> None:
        nonlocal last, line
        fresh = f"{title}: {progress.ended} of {progress.desired} ended; {detail_of(progress)}"
        now = time.monotonic()
        if fresh != line and (now - last >= LINE_SECONDS or progress.ended == progress.desired):
            last, line = now, fresh
            print(line, file=sys.stderr, flush=True)

    return report


def detail_of(progress: Progress) -> str:
    """Return what runs and what is waited for, in a few words."""
    parts = [f"{progress.ready} running"]
    if progress.pending:
        parts.append(f"{progress.pending} waiting")
        if not progress.ready and progress.waiting:
            parts.append(progress.waiting[0])
    return ", ".join(parts)
