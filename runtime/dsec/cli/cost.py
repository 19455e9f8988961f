"""`dsec cost`: what was spent, by tenant, project, task, pool or day; as table, data or picture."""

import csv
import sys
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dsec.cli.output import Column, Output, dump, note, print_table
from dsec.cli.session import client


class By(StrEnum):
    """What the rows are."""

    TENANT = "tenant"
    PROJECT = "project"
    TASK = "task"
    POOL = "pool"
    DAY = "day"


class Form(StrEnum):
    """How the rows are shown."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


PARTS = ("money", "idle", "storage", "egress")


def cost(
    *,
    by: Annotated[By, typer.Option("--by", help="What the rows are.")] = By.TASK,
    since: Annotated[
        str, typer.Option("--from", help="ISO date or time, to whole hours; else all time.")
    ] = "",
    until: Annotated[str, typer.Option("--to", help="ISO date or time, to whole hours.")] = "",
    zone: Annotated[str, typer.Option("--zone", help="Where days begin; else UTC.")] = "",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the rows into a .png, .svg or .pdf.")
    ] = None,
    output: Annotated[
        Form, typer.Option("--output", "-o", help="table for people; json, yaml or csv.")
    ] = Form.TABLE,
) -> None:
    """Show what was spent: of tasks and projects that you may read, and of pools if you may.

    Idle time of own machines is a row of its pool. Figures are as of the time below the table.
    """
    if plot is not None:
        from dsec.cli.sim_run import check_plot

        check_plot(plot)
    with client() as dsec:
        found = dsec.costs(by.value, since=since, until=until, zone=zone)
    if output is Form.CSV:
        _csv(found)
    elif output is Form.TABLE:
        _table(found)
    else:
        dump(found, Output(output.value))
    if plot is not None:
        _draw(found, plot)
        note(f"picture: {plot}")


def lines(found: dict[str, Any]) -> list[str]:
    """Return what is said below the table: waste of pools, savings of tasks, how new it is."""
    said = [
        f"pool {one['pool']}: {_short(one['used'])} {one['currency']} used, "
        f"{_short(one['idle'])} idle ({one['idlePercent']} %)"
        for one in found.get("pools", [])
    ]
    said += [
        f"task {one['task']}: saved {one['percent']} % beside its own peak, by the hour"
        for one in found.get("savings", [])
    ]
    if found.get("at") is not None:
        from datetime import UTC, datetime

        at = datetime.fromtimestamp(found["at"], UTC)
        said.append(f"as of {at.strftime('%Y-%m-%d %H:%M:%S')} UTC")
    return said


def _table(found: dict[str, Any]) -> None:
    rows = found["items"]
    if not rows:
        note("nothing was spent")
        return
    columns: list[Column] = [
        (found["by"].upper(), lambda row: row["key"]),
        ("COST", lambda row: _money(row["money"])),
        ("IDLE", lambda row: _money(row["idle"])),
        ("STORAGE", lambda row: _money(row["storage"])),
        ("EGRESS", lambda row: _money(row["egress"])),
        ("CPU HOURS", lambda row: _short(row["cpuHours"])),
        ("GPU HOURS", lambda row: _short(row["gpuHours"])),
    ]
    print_table([*rows, {**found["total"], "key": "total"}], columns)
    for one in lines(found):
        print(one)


def _csv(found: dict[str, Any]) -> None:
    """Print a line per row and currency, exact amounts."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([found["by"], "currency", *PARTS, "cpuHours", "gpuHours"])
    for row in found["items"]:
        for unit in sorted(row["money"]) or [""]:
            amounts = [row[part].get(unit, "0") for part in PARTS]
            writer.writerow([row["key"], unit, *amounts, row["cpuHours"], row["gpuHours"]])


def _money(amounts: dict[str, str]) -> str:
    return ", ".join(f"{_short(one)} {unit}" for unit, one in sorted(amounts.items()))


def _short(amount: str) -> str:
    """Return an amount for people: to the cent, and small ones to three digits."""
    value = Decimal(amount)
    text = f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"
    return "0" if not value else text


def _draw(found: dict[str, Any], plot: Path) -> None:
    """Draw a bar per row, its idle part apart; one picture per call, currencies side by side."""
    from matplotlib.figure import Figure

    rows = found["items"]
    units = sorted({unit for row in rows for unit in row["money"]}) or [""]
    figure = Figure(figsize=(9, max(2.5, 0.35 * len(rows) + 1.5)), layout="constrained")
    panels = figure.subplots(1, len(units), squeeze=False)[0]
    names = [row["key"] for row in rows]
    for unit, panel in zip(units, panels, strict=True):
        whole = [float(row["money"].get(unit, 0)) for row in rows]
        idle = [float(row["idle"].get(unit, 0)) for row in rows]
        used = [all_of_it - rest for all_of_it, rest in zip(whole, idle, strict=True)]
        panel.barh(names, used, label="used", color="tab:blue")
        panel.barh(names, idle, left=used, label="idle", color="lightgrey")
        panel.invert_yaxis()
        panel.set_xlabel(unit)
        panel.legend()
    figure.suptitle(f"Cost by {found['by']}")
    figure.savefig(plot)
