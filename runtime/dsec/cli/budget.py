"""`dsec budget`: limits, what is left of them, and what is in force."""

from typing import Annotated, Any

import typer

from dsec.cli.output import Column, Output, OutputOption, condition, show_items, show_one
from dsec.cli.session import client

app = typer.Typer(help="Show limits, and what is left of them.", no_args_is_help=True)


@app.callback()
def _app() -> None:
    """Look at budgets: records, and the ceilings of tasks."""


def _unit(one: dict[str, Any]) -> str:
    spec = one["spec"]
    unit = spec.get("unit", "money")
    return str(spec.get("currency") or "") if unit == "money" else str(unit)


def _of(name: str) -> Any:
    return lambda one: one["status"].get(name)


_COLUMNS: list[Column] = [
    ("NAME", lambda one: one["name"]),
    ("PROJECT", lambda one: one["project"]),
    ("SCOPE", lambda one: one["spec"].get("scope", "project")),
    ("LIMIT", lambda one: f"{one['spec'].get('limit', '')} {_unit(one)}".strip()),
    ("SPENT", _of("spent")),
    ("PROMISED", _of("committed")),
    ("LEFT", _of("left")),
    ("FORECAST", _of("forecast")),
    ("IN FORCE", _of("action")),
]


@app.command("list")
def list_all(output: OutputOption = Output.TABLE) -> None:
    """List the budgets that you may read; tasks with a ceiling of their own are among them."""
    with client() as dsec:
        show_items(dsec.budgets(), _COLUMNS, output)


@app.command()
def describe(
    name: Annotated[
        str, typer.Argument(help="Its name; of a task's ceiling task/NAME.", show_default=False)
    ],
    project: Annotated[
        str, typer.Option("--project", "-p", help="Where several have that name.")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain one budget in words: what is spent, promised and left, what is in force and why."""
    from dsec.client import NotFoundError

    with client() as dsec:
        found = [
            one for one in dsec.budgets() if one["name"] == name and project in {"", one["project"]}
        ]
    if not found:
        where = f" in project {project}" if project else ""
        raise NotFoundError(f"there is no budget {name!r}{where}", code="not-found")
    if len(found) > 1:
        names = ", ".join(one["project"] for one in found)
        raise typer.BadParameter(f"{name!r} is in several projects: {names}", param_hint="-p")
    show_one(found[0], output, lambda: print("\n".join(words(found[0]))))


def words(one: dict[str, Any]) -> list[str]:
    """Return a budget in lines."""
    spec, status, unit = one["spec"], one["status"], _unit(one)
    period = spec.get("period") or {}
    every = period.get("kind", "calendar") + " " + period.get("every", "month")
    if one["name"].startswith("task/"):
        every = "for all its life"
    limit = f"at most {spec.get('limit')} {unit}, {every}"
    lines = [f"budget {one['name']} of project {one['project']}: {limit}"]
    for kind in ("Ready", "WithinLimit"):
        found = condition(one, kind)
        if found.get("message"):
            lines.append(f"  {found['message']}")
    if status.get("forecast") is not None:
        source = status.get("forecastSource", "")
        lines.append(f"  expected at the end: {status['forecast']} {unit} = {source}")
    lines += [
        f"  {alert['percent']} % of {alert['limit']} was reached at {alert['at']}"
        for alert in status.get("alerts", [])
    ]
    if not status:
        lines.append("  nothing is known yet: no leader has counted it")
    return lines
