"""The steps of a local command, on stderr: redrawn on a terminal, one line each elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDED = ("done", "ready")
"""States of a step that need no more waiting."""


@contextmanager
def shown(*, quiet: bool = False) -> Iterator[Callable[[str, str], None]]:
    """Yield report(step, state), which shows each step with the seconds it took."""
    if quiet:
        yield _nothing
    elif sys.stderr.isatty():
        with _live() as report:
            yield report
    else:
        yield _lines()


def _nothing(step: str, state: str) -> None:
    """Show nothing: the output is for a program."""


def _lines() -> Callable[[str, str], None]:
    begun: dict[str, float] = {}

    def report(step: str, state: str) -> None:
        start = begun.setdefault(step, time.monotonic())
        if state in ENDED or state in {"crashed", "failed"}:
            took = time.monotonic() - start
            print(f"  {step:<24} {state} ({took:.1f} s)", file=sys.stderr, flush=True)

    return report


@contextmanager
def _live() -> Iterator[Callable[[str, str], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    console = Console(stderr=True)
    begun: dict[str, float] = {}
    spinners: dict[str, Spinner] = {}
    with Live(console=console, refresh_per_second=8, transient=True) as live:

        def report(step: str, state: str) -> None:
            start = begun.setdefault(step, time.monotonic())
            if state in ENDED:
                if step in spinners or state == "done":
                    took = time.monotonic() - start
                    console.print(Text(f"  ✓ {step:<24} {took:5.1f} s", style="green"))
                spinners.pop(step, None)
            else:
                style = "red" if state in {"crashed", "failed"} else "cyan"
                spinners[step] = Spinner("dots", Text(f"{step} ({state})", style=style))
            live.update(Group(*spinners.values()))

        yield report
