"""Commands that only look: get, describe, node list, version."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec.cli.ends import evidence_of, exit_of, reason_of, seconds_of
from dsec.cli.moves import drain, undrain
from dsec.cli.output import (
    Column,
    Output,
    OutputOption,
    ProjectOption,
    age,
    condition,
    cores,
    note,
    print_table,
    show_items,
    show_one,
    size,
)
from dsec.cli.session import client
from dsec.cli.tenant_words import lent, tenant_lines

if TYPE_CHECKING:
    from dsec.client import Client


SAID_LINES = 5
"""Newest lines of each stream in the description of an ended sandbox."""


class Kind(StrEnum):
    """What `get` lists."""

    TASKS = "tasks"
    EXPERIMENTS = "experiments"
    SANDBOXES = "sandboxes"
    NODES = "nodes"
    TENANTS = "tenants"
    POOLS = "pools"
    IMAGES = "images"


class One(StrEnum):
    """What `describe` explains."""

    TASK = "task"
    EXPERIMENT = "experiment"
    SANDBOX = "sandbox"
    NODE = "node"
    TENANT = "tenant"


def _at(*path: str) -> Callable[[Any], Any]:
    """Return a reader of a nested field; what is missing is None."""

    def read(record: Any) -> Any:
        for step in path:
            record = record.get(step) if isinstance(record, dict) else None
        return record

    return read


def _phase(record: dict[str, Any]) -> str:
    """Return the one word that says most about an experiment, from its conditions."""
    for kind in ("Frozen", "Completed", "Ready"):
        if condition(record, kind).get("status") == "True":
            return kind
    if condition(record, "Accepted").get("status") == "False":
        return "Refused"
    if condition(record, "Scheduled").get("status") == "True":
        return "Starting"
    return "Pending"


def _waiting(record: dict[str, Any]) -> str:
    reasons = _at("status", "pendingReasons")(record) or []
    return "; ".join(f"{one['count']}x {one['reason']}" for one in reasons)


def _ready(record: dict[str, Any]) -> str:
    return condition(record, "Ready").get("status") or "Unknown"


def _beaten(status: Any) -> str | None:
    """Return how long ago a live sandbox last beat."""
    last = None if status.end else status.last_heartbeat
    return last and age(last.isoformat())


_NAME: Column = ("NAME", _at("metadata", "name"))
_AGE: Column = ("AGE", lambda record: age(_at("metadata", "creationTimestamp")(record)))

_EXPERIMENTS: list[Column] = [
    _NAME,
    ("STATE", _phase),
    ("DESIRED", _at("status", "desired")),
    ("READY", _at("status", "ready")),
    ("PENDING", _at("status", "pending")),
    ("ENDED", _at("status", "ended")),
    ("WAITS FOR", _waiting),
    _AGE,
]
_SANDBOXES: list[Column] = [
    ("ID", lambda status: status.identity.id),
    ("TASK", lambda status: status.identity.experiment),
    ("ROLE", lambda status: status.identity.role),
    ("INDEX", lambda status: status.identity.index),
    ("STATE", lambda status: status.state.value),
    ("REASON", lambda status: status.end and reason_of(status)),
    ("NODE", lambda status: status.node),
    ("HEARTBEAT", _beaten),
]
_NODES: list[Column] = [
    _NAME,
    ("READY", _ready),
    ("POOL", _at("spec", "pool")),
    ("CPU", lambda one: cores(_at("status", "inventory", "cpuMilli")(one))),
    ("USED", lambda one: cores(_at("status", "used", "cpuMilli")(one))),
    ("MEMORY", lambda one: size(_at("status", "inventory", "memoryBytes")(one))),
    ("USED", lambda one: size(_at("status", "used", "memoryBytes")(one))),
    ("GPUS", lambda one: len(_at("status", "inventory", "devices")(one) or [])),
    ("SANDBOXES", _at("status", "live")),
    ("SIMULATED", _at("status", "inventory", "simulated")),
]
_TENANTS: list[Column] = [
    _NAME,
    ("PROJECTS", lambda one: ", ".join(_at("spec", "projects")(one) or [])),
    ("CPU USED", lambda one: cores(_at("status", "used", "cpuMilli")(one))),
    ("CPU OWNED", lambda one: cores(_at("spec", "quota", "nominal", "cpuMilli")(one))),
    ("MEMORY USED", lambda one: size(_at("status", "used", "memoryBytes")(one))),
    ("MEMORY OWNED", lambda one: size(_at("spec", "quota", "nominal", "memoryBytes")(one))),
    ("LENT TO GATEWAYS", lambda one: lent(one) or "-"),
    ("TASKS", _at("status", "experiments")),
]


def _pools(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per pool, summed over the nodes that say they belong to it."""
    rows: dict[str, dict[str, Any]] = {}
    for one in nodes:
        pool = _at("spec", "pool")(one) or ""
        row = rows.setdefault(
            pool, {"name": pool, "nodes": 0, "ready": 0, "cpuMilli": 0, "memoryBytes": 0, "gpus": 0}
        )
        row["nodes"] += 1
        row["ready"] += _ready(one) == "True"
        row["cpuMilli"] += _at("status", "inventory", "cpuMilli")(one) or 0
        row["memoryBytes"] += _at("status", "inventory", "memoryBytes")(one) or 0
        row["gpus"] += len(_at("status", "inventory", "devices")(one) or [])
    return list(rows.values())


_POOLS: list[Column] = [
    ("NAME", _at("name")),
    ("NODES", _at("nodes")),
    ("READY", _at("ready")),
    ("CPU", lambda one: cores(one["cpuMilli"])),
    ("MEMORY", lambda one: size(one["memoryBytes"])),
    ("GPUS", _at("gpus")),
]


def _images(experiments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per image that the project's experiments were resolved to."""
    rows: dict[str, dict[str, Any]] = {}
    for experiment in experiments:
        name = experiment["metadata"]["name"]
        for image in _at("status", "resolved", "images")(experiment) or []:
            reference = image["reference"]
            digest = image.get("digest") or reference.partition("@")[2]
            row = rows.setdefault(
                reference, {"reference": reference, "digest": digest, "usedBy": []}
            )
            if name not in row["usedBy"]:  # two roles may share an image
                row["usedBy"].append(name)
    return list(rows.values())


_IMAGES: list[Column] = [
    ("REFERENCE", _at("reference")),
    ("DIGEST", _at("digest")),
    ("USED BY", lambda one: ", ".join(one["usedBy"])),
]


def get(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Only this one.", show_default=False)] = "",
    *,
    experiment: Annotated[str, typer.Option("--experiment", help="Sandboxes of it.")] = "",
    role: Annotated[str, typer.Option("--role", help="Sandboxes in this role.")] = "",
    state: Annotated[str, typer.Option("--state", help="Sandboxes in this state.")] = "",
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List tasks (experiments), sandboxes, nodes, tenants, pools or images."""
    with client(project) as dsec:
        if kind is Kind.SANDBOXES:
            found: list[Any] = (
                [dsec.sandbox(name)]
                if name
                else dsec.sandboxes(experiment=experiment, role=role, state=state)
            )
            show_items(found, _SANDBOXES, output)
            return
        rows, columns, key = _list(dsec, kind, name)
    if name:
        rows = [row for row in rows if key(row) == name]
        if not rows:
            _not_found(kind.value.rstrip("s"), name)
        if output is not Output.TABLE:
            show_one(rows[0], output, lambda: None)
            return
    show_items(rows, columns, output)


def _list(
    dsec: "Client", kind: Kind, name: str
) -> tuple[list[dict[str, Any]], list[Column], Callable[[Any], Any]]:
    """Return the rows of a kind, how to show them, and what names a row."""
    named = _at("metadata", "name")
    if kind is Kind.NODES:
        return dsec.nodes(), _NODES, named
    if kind is Kind.TENANTS:
        return dsec.tenants(), _TENANTS, named
    if kind is Kind.POOLS:
        return _pools(dsec.nodes()), _POOLS, _at("name")
    if kind is Kind.IMAGES:
        return _images(dsec.list()), _IMAGES, _at("reference")
    return ([dsec.get(name)] if name else dsec.list()), _EXPERIMENTS, lambda _: name


def _not_found(kind: str, name: str) -> None:
    from dsec.client import NotFoundError

    raise NotFoundError(f"there is no {kind} {name!r}", code="not-found")


node = typer.Typer(help="List the nodes, and empty them.", no_args_is_help=True)


@node.callback()
def _node() -> None:
    """Look at the nodes that run sandboxes, and empty them."""


node.command()(drain)
node.command()(undrain)


@node.command("list")
def node_list(output: OutputOption = Output.TABLE) -> None:
    """List the nodes, with what they have and what is used."""
    with client() as dsec:
        show_items(dsec.nodes(), _NODES, output)


def describe(
    kind: Annotated[One, typer.Argument(help="What it is.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Its name or id.", show_default=False)],
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain one thing in words: where it is, why, and what would change that."""
    with client(project) as dsec:
        if kind is One.SANDBOX:
            status = dsec.sandbox(name)
            why = _why(dsec, status) if output is Output.TABLE else ""
            show_one(status, output, lambda: _sandbox_words(status, why))
        elif kind in {One.NODE, One.TENANT}:
            records = dsec.nodes() if kind is One.NODE else dsec.tenants()
            found = next((one for one in records if one["metadata"]["name"] == name), None)
            if found is None:
                _not_found(kind.value, name)
            show_one(found, output, lambda: _record_words(kind, found or {}))
        else:
            description = dsec.describe(name)
            show_one(description, output, lambda: _description_words(description))


def _description_words(description: dict[str, Any]) -> None:
    """Print the sentence, then each section, its names in one column."""
    print(description["headline"])
    for section in description.get("sections", []):
        print(f"\n{section['title']}")
        width = max((len(line["name"]) for line in section["lines"]), default=0)
        for line in section["lines"]:
            print(f"  {line['name']:<{width}}  {line['text']}")


def _why(dsec: "Client", status: Any) -> str:
    """Return why a sandbox waits, in words; empty where it does not."""
    from dsec.api.sandbox import SandboxState
    from dsec.client import NotFoundError

    if status.state is not SandboxState.PENDING:
        return ""
    try:
        return dsec.decision(status.identity.id).message
    except NotFoundError:
        return "it is being placed"


def _sandbox_words(status: Any, why: str = "") -> None:
    who = status.identity
    print(f"sandbox {who.id} of task {who.experiment or '-'}, {who.role} {who.index}")
    print(f"  state       {status.state.value}{f': {status.message}' if status.message else ''}")
    print(f"  node        {status.node}")
    if why:
        print(f"  waits       {why}")
    print(f"  image       {status.image}")
    print(
        f"  limits      {cores(status.resources.cpu_milli)} cores, "
        f"{size(status.resources.memory_bytes)} memory, {status.resources.pids} processes"
    )
    for state, moment in sorted(status.times.items(), key=lambda item: item[1]):
        print(f"  {state:<11} {moment.isoformat()}")
    if status.end is None:
        return
    print(f"  ended       {status.end.reason.value}: {status.end.message or 'no more to say'}")
    if exit_of(status):
        print(f"  exit        {exit_of(status)}")
    if evidence_of(status.end):
        print(f"  evidence    {evidence_of(status.end)}")
    seconds = seconds_of(status)
    if seconds is not None:
        print(f"  ran         {seconds:.3f} s")
    if status.end.archive:
        print(f"  archive     {status.end.archive}")
    for name, text in (("stdout", status.end.stdout), ("stderr", status.end.stderr)):
        for line in text.splitlines()[-SAID_LINES:]:
            print(f"  {name:<11} {line}")


def _record_words(kind: One, record: dict[str, Any]) -> None:
    if kind is One.NODE:
        _node_words(record)
    else:
        print("\n".join(tenant_lines(record)))


def _node_words(one: dict[str, Any]) -> None:
    print(f"node {one['metadata']['name']}")
    print_table([one], _NODES[1:])
    for name, value in sorted((_at("status", "inventory", "features")(one) or {}).items()):
        print(f"  {name} = {value}")
    for found in _at("status", "conditions")(one) or []:
        print(f"  {found['type']} {found['status']}: {found.get('message') or found.get('reason')}")


def version(output: OutputOption = Output.TABLE) -> None:
    """Show the version of this program and of the server, if one answers."""
    from importlib.metadata import version as installed

    from dsec.client import DsecError

    found: dict[str, Any] = {"client": installed("dsec"), "server": None}
    try:
        with client(patience=2.0) as dsec:
            found["server"] = dsec.version()
    except DsecError as error:
        note(f"no server: {error}")

    def words() -> None:
        print(f"dsec {found['client']}")
        if found["server"]:
            print(f"server {found['server'].get('version', found['server'])}")

    show_one(found, output, words)
