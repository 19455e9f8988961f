"""`dsec run`, the one-call batch, and `dsec results`."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dsec.cli.codes import EXIT_FAILED
from dsec.cli.ends import COLUMNS, by_reason
from dsec.cli.output import Output, OutputOption, ProjectOption, dump, note, print_table, show_items
from dsec.cli.session import client


def run(
    command: Annotated[list[str], typer.Argument(help="Command, after --.", show_default=False)],
    *,
    image: Annotated[str, typer.Option("--image", help="Image; by default the tenant's.")] = "",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Sandboxes; with --map, its lines.")
    ] = None,
    map_file: Annotated[
        Path | None,
        typer.Option("--map", help="JSONL; sandbox i gets line i in $DSEC_ITEM_FILE; - for stdin."),
    ] = None,
    cpu: Annotated[str, typer.Option("--cpu", help="Cores of each: 1, 0.5 or 500m.")] = "1",
    memory: Annotated[str, typer.Option("--memory", help="Hard limit of each.")] = "512Mi",
    pids: Annotated[int, typer.Option("--pids", min=8, help="Most processes of each.")] = 512,
    disk: Annotated[str, typer.Option("--disk", help="Writable space of each.")] = "1Gi",
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; may be repeated.")
    ] = None,
    max_run_seconds: Annotated[
        int | None, typer.Option("--max-run-seconds", min=1, help="Longest run of each.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the experiment.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Longest wait, in seconds.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the experiment afterwards.")] = False,
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a command in many sandboxes and collect how each ended, in order.

    Each sandbox runs once. Exit code 1 where one did not complete.

    Example: dsec run --count 500 --image base --map tasks.jsonl -- python3 -c "print(1)"
    """
    from dsec.cli.progress import shown
    from dsec.client.batch import passed, run_name

    items = None if map_file is None else read_items(map_file)
    variables = parse_env(env or [])
    start = time.monotonic()
    called = name or run_name()
    with client(project) as dsec, shown(name or "run") as report, _kept(called, keep=keep):
        results = dsec.run(
            image=image,
            command=command,
            count=count,
            items=items,
            cpu=cpu,
            memory=memory,
            pids=pids,
            disk=disk,
            env=variables,
            max_run_seconds=max_run_seconds,
            name=called,
            timeout_seconds=timeout,
            keep=keep,
            on_progress=report,
        )
    seconds = time.monotonic() - start
    good = sum(map(passed, results))
    if output is Output.TABLE:
        print_table(results, COLUMNS)
        rate = len(results) / seconds
        note(
            f"{good} completed, {len(results) - good} not; {seconds:.1f} s, {rate:.1f} sandboxes/s"
        )
    else:
        dump(report_of(results, good, seconds), output)
    if good != len(results):
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _kept(name: str, *, keep: bool) -> Iterator[None]:
    """Say what an interrupt leaves behind where that was asked for."""
    try:
        yield
    except KeyboardInterrupt:
        if keep:
            note(f"experiment {name} is kept and goes on; to end it: dsec delete {name}")
        raise


def report_of(results: list[Any], good: int, seconds: float) -> dict[str, Any]:
    """Return the JSON of a run: totals, sums by reason, and each end in order."""
    return {
        "completed": good,
        "failed": len(results) - good,
        "seconds": round(seconds, 3),
        "sandboxesPerSecond": round(len(results) / seconds, 3),
        "reasons": by_reason(results),
        "items": [status.wire() for status in results],
    }


def results(
    name: Annotated[str, typer.Argument(help="Name of the experiment.", show_default=False)],
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how each sandbox of an experiment ended, in order of role and index."""
    with client(project) as dsec:
        found = list(dsec.results(name))
    show_items(found, COLUMNS, output)


def read_items(file: Path) -> list[str]:
    """Return the lines of a JSONL file. Raises InvalidError where a line is no JSON."""
    import json

    from dsec.client import InvalidError

    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    # only a line feed ends a line: JSON texts may hold the other breaks that Python knows
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
    wrong = []
    for number, line in enumerate(lines, start=1):
        try:
            json.loads(line)
        except ValueError as error:
            detail = {"path": f"{file}:{number}", "value": line[:80], "allowed": "one JSON value"}
            wrong.append({**detail, "message": str(error)})
    if wrong:
        raise InvalidError(f"{file} is not JSON lines", details=wrong[:20])
    return lines


def parse_env(pairs: list[str]) -> dict[str, str]:
    """Return variables from NAME=VALUE texts. Raises InvalidError naming those that are not."""
    from dsec.client import InvalidError

    wrong = [pair for pair in pairs if not pair.partition("=")[0] or "=" not in pair]
    if wrong:
        details = [
            {"path": "--env", "value": pair, "allowed": "NAME=VALUE", "message": "no variable"}
            for pair in wrong
        ]
        raise InvalidError("the environment is not valid", details=details)
    return dict(pair.split("=", 1) for pair in pairs)
