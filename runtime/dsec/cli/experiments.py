"""Commands that start, change and end experiments."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dsec.cli.codes import EXIT_FAILED
from dsec.cli.output import Output, OutputOption, ProjectOption, note, show_one
from dsec.cli.session import client

Name = Annotated[str, typer.Argument(help="Name of the experiment.", show_default=False)]
File = Annotated[
    Path,
    typer.Option(
        "--file", "-f", help="Task document, YAML or JSON; - for stdin.", show_default=False
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check it, change nothing.")]


def submit(
    file: File,
    dry_run: DryRun = False,
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a task document as a new experiment.

    Where its name is taken the new one gets a suffix; apply updates the one of that name.
    """
    with client(project) as dsec:
        record = dsec.submit(_document(file), dry_run=dry_run)
    _accepted(record, "would be submitted" if dry_run else "submitted", output)


def apply(
    file: File,
    dry_run: DryRun = False,
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Create an experiment from a task document, or update the one of that name.

    Prints every field that changes, and whether running replicas follow.
    """
    with client(project) as dsec:
        record = dsec.apply(_document(file), dry_run=dry_run)
    _accepted(record, "would be applied" if dry_run else "applied", output)


def _document(file: Path) -> bytes | Path:
    return sys.stdin.buffer.read() if str(file) == "-" else file


def _accepted(record: dict[str, Any], verb: str, output: Output) -> None:
    name = record["metadata"]["name"]

    def words() -> None:
        print(f"experiment {name} {verb}")
        for one in record.get("changes", []):
            print(f"  {change_line(one)}")
        if record.get("changes") == []:
            print("  nothing changes" if "would" in verb else "  nothing changed")
        resolved = record.get("status", {}).get("resolved") or {}
        for line in (record.get("estimate") or {}).get("words", []):
            print(f"  cost: {line}")
        for warning in resolved.get("warnings", []):
            note(f"  warning: {warning}")
        note(f"  'dsec describe task {name}' says where it is and why")

    show_one(record, output, words)


def change_line(change: dict[str, Any]) -> str:
    """Return one changed field for people: where, from what to what, and what follows it."""
    old, new = (
        "(not set)" if change.get(side) is None else json.dumps(change[side], ensure_ascii=False)
        for side in ("old", "new")
    )
    return f"{change['path']}: {old} -> {new} ({change.get('effect', 'live')})"


def scale(
    name: Name,
    replicas: Annotated[int, typer.Option("--replicas", min=0, help="Replicas wanted.")],
    role: Annotated[str, typer.Option("--role", help="Role to change.")] = "worker",
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the live replica count of a role, until its declared count changes."""
    with client(project) as dsec:
        record = dsec.scale(name, role, replicas)
    show_one(record, output, lambda: print(f"experiment {name}: {role} scaled to {replicas}"))


def freeze(name: Name, project: ProjectOption = "", output: OutputOption = Output.TABLE) -> None:
    """Stop an experiment, archive its scene, give its resources back."""
    with client(project) as dsec:
        record = dsec.freeze(name)
    show_one(record, output, lambda: print(f"experiment {name} is being frozen"))


def delete(
    name: Name,
    project: ProjectOption = "",
    wait: Annotated[bool, typer.Option("--wait", help="Until it is gone.")] = False,
) -> None:
    """End an experiment: collect results, archive, destroy, in that order."""
    from dsec.client import NotFoundError

    with client(project) as dsec:
        dsec.get(name)  # a name that is not there is more likely a slip than a repeat
        dsec.delete(name)
        if wait:
            import time

            try:
                while True:
                    dsec.get(name)
                    time.sleep(0.5)
            except NotFoundError:
                print(f"experiment {name} is gone")
                return
    print(f"experiment {name} is being deleted")


def wait(
    name: Name,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Seconds; by default for ever.")
    ] = None,
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait for the end of an experiment. Exit code 1 where a replica did not complete."""
    from dsec.cli.progress import shown
    from dsec.client.batch import progress_of

    with client(project) as dsec, shown(name) as report:
        record = dsec.wait(name, timeout_seconds=timeout, on_progress=report)
    reasons = progress_of(record).reasons
    summary = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    show_one(
        record, output, lambda: print(f"experiment {name} has ended: {summary or 'no replica'}")
    )
    if any(reason != "completed" for reason in reasons):
        raise typer.Exit(EXIT_FAILED)
