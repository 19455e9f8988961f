"""`dsec sim`: simulated nodes that join a real control plane, and runs in virtual time."""

import fcntl
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.output import Column, Output, OutputOption, note, show_items
from dsec.cli.sim_elastic import elastic
from dsec.cli.sim_join import Given, directory, find, forget
from dsec.cli.sim_run import run as run_

if TYPE_CHECKING:
    from dsec.agent.simnodes import NodeReport, SimulatedNode
    from dsec.local.processes import RunDirectory

app = typer.Typer(help="Simulated parts, to see a large installation.", no_args_is_help=True)
nodes = typer.Typer(help="Nodes that run nothing and take part in all else.", no_args_is_help=True)
app.add_typer(nodes, name="nodes")
app.command("run")(run_)
app.command("elastic")(elastic)

PART = "simulated-nodes"
WAIT_SECONDS = 90.0
"""Forty nodes register within seconds; a busy machine gets the rest."""
_SAY_WHICH = "say which: names, --profile or --all; 'dsec sim nodes list'"

NameOption = Annotated[str, typer.Option("--name", help="Name of the local cluster.")]
StateOption = Annotated[
    Path | None, typer.Option("--state-dir", help="State directory of the server to join.")
]


@nodes.command("add")
def add(
    *,
    profile: Annotated[str, typer.Option(help="Kind of machine: 8xa100 or cpu.")] = "cpu",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 1,
    region: Annotated[str, typer.Option(help="Their region label.")] = "local",
    gateway: Annotated[str, typer.Option(help="Server; by default that of the context.")] = "",
    ca: Annotated[Path | None, typer.Option(help="CA of that server.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="Token to join with.")] = None,
    listen: Annotated[str, typer.Option(help="IP:PORT that the server can reach.")] = "",
    name: NameOption = "",
    state_dir: StateOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add nodes and wait until they are registered. More can be added at any time."""
    from dsec.agent import simnodes
    from dsec.agent.substrates.simulated import PROFILES

    if profile not in PROFILES:
        raise typer.BadParameter(
            f"{profile!r}: allowed: {', '.join(PROFILES)}", param_hint="profile"
        )
    given = Given(name, state_dir, gateway, ca, token_file)
    join, place = find(given, count), directory(given)
    with _alone(place):
        old = simnodes.read_plan(place)
        present = old.nodes if old is not None else []
        fresh = new_nodes(present, profile, count, region)
        for node, token in zip(fresh, join.tokens, strict=True):
            simnodes.store_token(place, node.name, token)
        plan = simnodes.Plan(
            gateway=join.gateway,
            ca=join.ca.absolute() if join.ca else None,
            listen=listen or f"{join.host}:0",
            nodes=[*present, *fresh],
        )
        simnodes.write_plan(place, plan)
        _ensure_process(place)
    reports = _wait_registered(place, {node.name for node in fresh})
    note(f"{len(fresh)} nodes added; {len(plan.nodes)} in all")
    show_items(reports, COLUMNS, output)


@nodes.command("list")
def list_(
    name: NameOption = "", state_dir: StateOption = None, output: OutputOption = Output.TABLE
) -> None:
    """List the simulated nodes of this machine."""
    place = directory(Given(name, state_dir))
    show_items(_reports(place), COLUMNS, output)


@nodes.command("remove")
def remove(
    names: Annotated[list[str] | None, typer.Argument(help="Nodes to remove.")] = None,
    *,
    profile: Annotated[str, typer.Option(help="Remove nodes of this kind only.")] = "",
    count: Annotated[int | None, typer.Option(min=1, help="At most so many, newest first.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all.")] = False,
    name: NameOption = "",
    state_dir: StateOption = None,
) -> None:
    """Remove nodes and their records. What they ran is lost, as when a machine dies."""
    from dsec.agent import simnodes

    place = directory(Given(name, state_dir))
    if not place.exists() or not (names or profile or everything):
        raise typer.BadParameter(_SAY_WHICH)
    with _alone(place):
        plan = simnodes.read_plan(place)
        if plan is None:
            raise typer.BadParameter(_SAY_WHICH)
        unknown = set(names or ()) - {node.name for node in plan.nodes}
        if unknown:
            raise typer.BadParameter(f"no such node: {', '.join(sorted(unknown))}")
        gone = [
            node.name
            for node in reversed(plan.nodes)
            if (not names or node.name in names) and (not profile or node.profile == profile)
        ][:count]
        plan.nodes = [node for node in plan.nodes if node.name not in gone]
        simnodes.write_plan(place, plan)
        if not plan.nodes:
            _run_directory(place).stop(PART)
    if plan.nodes:
        _wait_stopped(place, set(gone))
    note(f"{len(gone)} nodes removed; {len(plan.nodes)} left")
    # last: an agent that still runs would register again
    forget(plan.gateway, gone)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Let one command at a time change the nodes here, and start or end their process."""
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (place / "plan.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def new_nodes(
    present: "list[SimulatedNode]", profile: str, count: int, region: str
) -> "list[SimulatedNode]":
    """Return nodes with the next free numbers of their profile: sim-cpu-000, sim-cpu-001, ..."""
    from dsec.agent.simnodes import SimulatedNode

    pattern = re.compile(rf"sim-{re.escape(profile)}-(\d+)")
    used = [int(match[1]) for node in present if (match := pattern.fullmatch(node.name))]
    first = max(used, default=-1) + 1
    return [
        SimulatedNode(name=f"sim-{profile}-{number:03d}", profile=profile, region=region)
        for number in range(first, first + count)
    ]


COLUMNS: list[Column] = [
    ("NODE", lambda report: report.name),
    ("PROFILE", lambda report: report.profile),
    ("REGISTERED", lambda report: "yes" if report.registered else "no"),
    ("LIVE", lambda report: report.live),
]


def _ensure_process(place: Path) -> None:
    """Start the process of these nodes, unless it runs."""
    from dsec.local.processes import Part

    run = _run_directory(place)
    if run.running(PART) is None:
        run.start(Part(name=PART, argv=(sys.executable, "-m", "dsec.agent.simnodes", str(place))))


def _wait_registered(place: Path, names: set[str]) -> "list[NodeReport]":
    """Wait until these nodes are registered and return all. Raises SimError."""
    run = _run_directory(place)
    end = time.monotonic() + WAIT_SECONDS
    while True:
        reports = _reports(place)
        missing = names - {report.name for report in reports if report.registered}
        if not missing:
            return reports
        log = run.logs / f"{PART}.log"
        if run.running(PART) is None:
            raise SimError(f"the process of the simulated nodes has ended; its log: {log}")
        if time.monotonic() > end:
            raise SimError(
                f"{len(missing)} of {len(names)} nodes are not registered after "
                f"{WAIT_SECONDS:.0f} s, for example {min(missing)}; they go on trying; log: {log}"
            )
        time.sleep(0.2)


def _wait_stopped(place: Path, names: set[str]) -> None:
    """Wait until the process runs these nodes no more. Raises SimError."""
    from dsec.agent import simnodes

    run, end = _run_directory(place), time.monotonic() + WAIT_SECONDS
    while run.running(PART) is not None:
        if not names & {report.name for report in simnodes.read_report(place)}:
            return
        if time.monotonic() > end:
            raise SimError(
                f"nodes still run after {WAIT_SECONDS:.0f} s: {', '.join(sorted(names))}"
            )
        time.sleep(0.2)


def _reports(place: Path) -> "list[NodeReport]":
    from dsec.agent import simnodes

    plan = simnodes.read_plan(place)
    known = {report.name: report for report in simnodes.read_report(place)}
    if _run_directory(place).running(PART) is None:
        known = {}
    return [
        known.get(node.name)
        or simnodes.NodeReport(name=node.name, profile=node.profile, registered=False)
        for node in (plan.nodes if plan is not None else [])
    ]


def _run_directory(place: Path) -> "RunDirectory":
    from dsec.local.processes import RunDirectory

    return RunDirectory(place)


class SimError(Exception):
    """Simulated nodes do not come up; the message says where to look."""

    exit_code = 5
