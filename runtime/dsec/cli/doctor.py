"""`dsec doctor`: what this machine has and lacks, and what each way of using dsec will take."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from enum import StrEnum
from typing import Annotated

import typer
from pydantic.alias_generators import to_camel
from rich.console import Console
from rich.table import Table

from dsec.local.doctor import (
    Finding,
    Plan,
    Verdict,
    findings,
    packages_to_install,
    plan,
)
from dsec.local.doctor_facts import Facts, Way
from dsec.local.doctor_probe import probe

# The ways that are checked unless others are named: an existing cluster is for who has one.
DEFAULT_WAYS = (Way.STANDALONE, Way.LOCAL, Way.TESTS)

_MARKS = {Verdict.OK: "[green]ok[/]", Verdict.MISSING: "[red]missing[/]", Verdict.NOTE: "note"}


class Output(StrEnum):
    """How to print an answer."""

    TABLE = "table"
    JSON = "json"


def doctor(
    ways: Annotated[
        list[Way] | None,
        typer.Option("--for", help="Check this way only; may be repeated."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Install missing Debian packages, after asking.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="How to print the answer.")
    ] = Output.TABLE,
) -> None:
    """Check every prerequisite: what is here, what is wanted, how to get it.

    Also says what each way will install and where, how long it takes, how much disk it uses and
    what needs root. Changes nothing without --fix. Exit code 0 if every checked way can start.
    """
    chosen = list(ways or DEFAULT_WAYS)
    facts = probe()
    found = findings(facts)
    if fix and (packages := packages_to_install(found, chosen)):
        install(packages, facts, yes=yes)
        facts = probe()
        found = findings(facts)
    plans = [plan(facts, way, found) for way in chosen]
    shown = [finding for finding in found if set(finding.ways) & set(chosen)]
    if output is Output.JSON:
        print(json.dumps(report(shown, plans), indent=2))
    else:
        show(Console(), shown, plans)
    if not all(entry.ready for entry in plans):
        raise typer.Exit(1)


def install(packages: list[str], facts: Facts, *, yes: bool) -> None:
    """Install Debian packages after asking; exits with a sentence when it may not or fails."""
    commands = (
        ["apt-get", "update", "--quiet"],
        ["apt-get", "install", "--yes", "--no-install-recommends", *packages],
    )
    words = " && ".join(" ".join(command) for command in commands)
    if not facts.root:
        stop(f"installing packages needs root: sudo sh -c '{words}'", 1)
    if not yes:
        if not sys.stdin.isatty():
            stop(f"--fix would run `{words}`: pass --yes to allow it without asking", 2)
        print(f"This changes the machine: {words}", file=sys.stderr)
        if not typer.confirm("Go on?", err=True):
            stop("nothing was changed", 1)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in commands:
        # the answer of this program goes to standard output, so the installer's words do not
        done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
        if done.returncode != 0:
            stop(f"`{' '.join(command)}` ended with exit code {done.returncode}", 1)


def stop(message: str, code: int) -> None:
    """Say why on standard error and exit."""
    print(f"dsec: {message}", file=sys.stderr)
    raise typer.Exit(code)


def report(found: list[Finding], plans: list[Plan]) -> dict[str, object]:
    """Return the stable JSON form of the answer."""
    return {
        "ready": all(entry.ready for entry in plans),
        "checks": [_camel(finding) for finding in found],
        "ways": [_camel(entry) for entry in plans],
    }


def _camel(value: Finding | Plan) -> dict[str, object]:
    return {to_camel(name): entry for name, entry in dataclasses.asdict(value).items()}


def show(console: Console, found: list[Finding], plans: list[Plan]) -> None:
    """Print the checks, then one paragraph per way."""
    if not console.is_terminal:  # a log has no edge to wrap at
        console = Console(width=max(160, shutil.get_terminal_size().columns))
    table = Table("check", "", "found", "wanted", "how to get it", box=None)
    for finding in found:
        remedy = finding.remedy
        if remedy and finding.needs_root:
            remedy += " (as root)"
        mark = _MARKS[finding.verdict]
        table.add_row(finding.name, mark, finding.found, finding.wanted, remedy)
    console.print(table)
    for entry in plans:
        state = "[green]can start[/]" if entry.ready else "[red]cannot start[/]"
        console.print(
            f"\n[bold]{entry.way}[/] {state}: about {entry.minutes:g} min and "
            f"{entry.megabytes} MiB until the first sandbox",
            highlight=False,
        )
        for title, items in (
            ("missing", entry.missing),
            ("will install", entry.installs),
            ("needs root", entry.root_for),
        ):
            if items:
                console.print(f"  {title}: {'; '.join(items)}", highlight=False)
