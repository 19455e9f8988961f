"""`dsec sim run`: the real placement over a trace or a burst, in virtual time."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dsec.cli.output import Output, OutputOption, note, print_table, show_one

if TYPE_CHECKING:
    from dsec.sim.report import Report
    from dsec.sim.trace import Job, Machine

Read = TypeVar("Read")

NodesOption = Annotated[
    Path | None, typer.Option("--nodes", help="Node list of a trace (CSV in openb format).")
]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", help="Pod list of a trace (CSV in openb format).")
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Picture to write (.png, .svg, .pdf).")
]


def run(
    *,
    nodes: NodesOption = None,
    profile: Annotated[str, typer.Option(help="Kind of machine, in place of --nodes.")] = "8xa100",
    count: Annotated[int, typer.Option(min=1, max=100_000, help="How many of them.")] = 40,
    trace: TraceOption = None,
    burst: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="Sandboxes to make up instead.")
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.01, max=8760, help="In which the tasks of a burst arrive.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the burst.")] = 1,
    plot: PlotOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Place a trace or a burst on nodes of memory, and show how full they were and who waited.

    The decisions are those of the real placement; arrivals, lives and ends are in virtual time.
    Not there yet: quota, queues, backfill and preemption. Whatever fits starts, first come first.
    """
    from dsec.sim.report import report_of
    from dsec.sim.run import simulate

    if (trace is None) == (burst is None):
        raise typer.BadParameter("give one of them", param_hint="--trace or --burst")
    if plot is not None:
        check_plot(plot)
    machines = machines_of(nodes, profile, count)
    jobs = jobs_of(trace, burst, hours, seed, gpus=any(one.gpus for one in machines))
    with progress(len(jobs)) as told:
        outcome = simulate(machines, jobs, timer=time.perf_counter, progress=told)
    report = report_of(outcome)
    show_one(report, output, lambda: show(report))
    if plot is not None:
        from dsec.sim.plot import draw

        draw(outcome.samples, plot, f"{report.requests} jobs on {report.nodes} nodes")
        note(f"picture: {plot}")


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be written at the end. Raises BadParameter."""
    if path.suffix not in {".png", ".svg", ".pdf"}:
        raise typer.BadParameter(
            f"{str(path)!r}: allowed: a name that ends in .png, .svg or .pdf", param_hint="--plot"
        )
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(
            f"{str(path)!r}: there is no directory {path.absolute().parent}", param_hint="--plot"
        )
    if find_spec("matplotlib") is None:
        raise typer.BadParameter(
            "needs matplotlib: install dsec with the extra 'plot'", param_hint="--plot"
        )


def machines_of(nodes: Path | None, profile: str, count: int) -> "list[Machine]":
    """Return the nodes of a list, or so many of a profile. Raises BadParameter, TraceError."""
    from dsec.agent.substrates.simulated import PROFILES
    from dsec.sim.trace import Machine, read_nodes

    if nodes is not None:
        return read(nodes, "--nodes", read_nodes)
    if profile not in PROFILES:
        raise typer.BadParameter(
            f"{profile!r}: allowed: {', '.join(PROFILES)}", param_hint="--profile"
        )
    kind = PROFILES[profile]
    return [
        Machine(
            f"sim-{profile}-{number:05d}",
            kind.cpu_milli,
            kind.memory_bytes,
            kind.gpus,
            kind.gpu_model,
            kind.gpu_memory_bytes,
        )
        for number in range(count)
    ]


def jobs_of(
    trace: Path | None, burst: int | None, hours: float, seed: int, *, gpus: bool
) -> "list[Job]":
    """Return the jobs of a list, or a burst. Raises BadParameter, TraceError."""
    from dsec.sim import bursts
    from dsec.sim.trace import read_jobs

    if trace is not None:
        return read(trace, "--trace", read_jobs)
    return bursts.burst(burst or 0, seed, hours=hours, gpus=gpus)


def read(path: Path, option: str, reader: Callable[[Iterable[str], str], list[Read]]) -> list[Read]:
    """Return what a reader makes of a file. Raises BadParameter, TraceError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return reader(file, str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise typer.BadParameter(f"{str(path)!r}: {reason}", param_hint=option) from error


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show how many jobs have arrived, on stderr; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("jobs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("jobs", total=total)
        yield lambda done: bar.update(task, completed=done)


def show(report: "Report") -> None:
    """Print the report for people."""
    print_table(
        [
            (name, report.utilisation[key], report.allocation[key])
            for name, key in (("CPU", "cpu"), ("memory", "memory"), ("GPU", "gpu"))
        ],
        [
            ("OF THE CLUSTER", lambda row: row[0]),
            ("BOOKED ON AVERAGE", lambda row: f"{row[1]:.2f} %"),
            ("BOOKED AT MOST", lambda row: f"{row[2]:.2f} %"),
        ],
    )
    waits = report.waits
    print(f"jobs              {report.requests} on {report.nodes} nodes")
    print(f"started           {report.started}, {report.waited} of them after a wait")
    print(f"left waiting      {report.left}")
    print(
        f"waits             p50 {waits['p50']:.1f} s, p90 {waits['p90']:.1f} s, "
        f"p99 {waits['p99']:.1f} s, at most {waits['most']:.1f} s"
    )
    print(
        f"fragmentation     {report.fragments['average']:.2f} % of the GPUs on average, "
        f"{report.fragments['full']:.2f} % when most were booked"
    )
    print(f"decisions         {report.decisions_per_second:.0f} a second")
    print(f"virtual time      {report.span / 3600:.2f} hours")
    for reason, count in report.impossible.items():
        print(f"impossible        {count}: {reason}")
