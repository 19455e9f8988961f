"""Tables for people, JSON and YAML for programs; the JSON is a contract (docs/cli-json.md).

Data goes to stdout and everything else (progress, hints, errors) to stderr, so that
`dsec ... --output json | jq` always works.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer


class Output(StrEnum):
    """How a command shows its data."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="table for people; json or yaml for programs.")
]
ProjectOption = Annotated[
    str, typer.Option("--project", "-p", help="Project; by default that of the context.")
]

Column = tuple[str, Callable[[Any], object]]
"""A heading, and what it shows of a row."""


def show_items(items: Sequence[Any], columns: Iterable[Column], output: Output) -> None:
    """Print a list: a table, or `{"items": [...]}`."""
    if output is not Output.TABLE:
        dump({"items": [plain(item) for item in items]}, output)
        return
    if not items:
        note("nothing found")
        return
    print_table(items, columns)


def show_one(item: Any, output: Output, words: Callable[[], None]) -> None:
    """Print one thing: in words, or as it is."""
    if output is Output.TABLE:
        words()
    else:
        dump(plain(item), output)


def plain(item: Any) -> Any:
    """Return JSON data; models give their wire form."""
    wire = getattr(item, "wire", None)
    return wire() if wire else item


def dump(data: Any, output: Output) -> None:
    """Print data as JSON or YAML."""
    if output is Output.YAML:
        import yaml

        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    else:
        json.dump(data, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")


def print_table(items: Iterable[Any], columns: Iterable[Column]) -> None:
    """Print rows to stdout; cells are never read as markup."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = list(columns)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading, _ in columns:
        table.add_column(heading, overflow="fold")
    for item in items:
        table.add_row(*(Text(cell(value(item))) for _, value in columns))
    # a pipe has no width: rows stay whole there, for grep and awk
    Console(width=None if sys.stdout.isatty() else 400).print(table)


def cell(value: object) -> str:
    """Return what a table shows of a value; nothing is a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def note(message: str) -> None:
    """Tell the person at the terminal something that is not data."""
    print(message, file=sys.stderr)


def condition(record: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition of a record, or an empty one."""
    conditions = record.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one.get("type") == kind), {})


def age(timestamp: object) -> str:
    """Return how long ago an ISO time was: 5s, 3m, 2h, 4d."""
    if not isinstance(timestamp, str) or not timestamp:
        return "-"
    since = datetime.now(UTC) - datetime.fromisoformat(timestamp)
    seconds = max(0, int(since.total_seconds()))
    for size, letter in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{letter}"
    return f"{seconds}s"


_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def size(count: object) -> str:
    """Return bytes for people: 512Mi, 1.5Gi."""
    if not isinstance(count, int):
        return "-"
    for unit, letters in _UNITS:
        if count >= unit:
            return f"{count / unit:.4g}{letters}"
    return str(count)


def cores(milli: object) -> str:
    """Return cores for people, from thousandths."""
    return f"{milli / 1000:g}" if isinstance(milli, int) else "-"
