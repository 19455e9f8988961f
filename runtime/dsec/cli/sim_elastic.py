"""`dsec sim elastic`: own machines and a simulated cloud under a load, in virtual time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from dsec.api.base import WireModel
from dsec.cli.output import Output, OutputOption, note, print_table, show_one
from dsec.cli.sim_run import PlotOption, TraceOption, check_plot, read

if TYPE_CHECKING:
    from dsec.sim.elastic.fleet import Tally
    from dsec.sim.elastic.load import Work


class Waits(WireModel):
    """How long work of one kind waited, in seconds."""

    kind: str
    count: int
    mean: float
    p50: float
    p99: float
    most: float


class ElasticReport(WireModel):
    """What a run came to."""

    bill: dict[str, str] = Field(description="By market and kind of node, and moves, in USD.")
    total: str
    per_core_hour: str = Field(description="Of delivered work, in USD.")
    waits: list[Waits]
    delivered_core_hours: float
    delivered_gpu_hours: float
    launches: int
    removals: int
    moves: int
    interruptions: int
    shortages: int = Field(description="Purchases that the cloud could not serve.")
    unfinished: int


def elastic(
    *,
    trace: TraceOption = None,
    days: Annotated[int, typer.Option(min=1, max=60, help="Of virtual time.")] = 2,
    scale: Annotated[
        float, typer.Option(min=0.01, max=10, help="Of the trace's pods and of the rollouts.")
    ] = 0.1,
    busy_from: Annotated[
        float, typer.Option(min=0, help="Second of the trace from which on pods are taken.")
    ] = 0.0,
    own_gpu: Annotated[
        int, typer.Option(min=0, max=10_000, help="Own machines: 96 cores, 8 cards.")
    ] = 0,
    own_cpu: Annotated[int, typer.Option(min=0, max=10_000, help="Own machines: 128 cores.")] = 1,
    spot: Annotated[bool, typer.Option(help="Whether spot nodes may be bought.")] = True,
    burst_wait: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds in the queue before cloud is bought.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the load and of the market.")] = 1,
    plot: PlotOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let the real planner buy, move and give back simulated nodes; show the bill and the waits.

    The load is bursts of preemptible rollouts, and the pods of a trace where one is given: its days
    are folded onto the days of the run. Prices are list-like; ratios are what counts.
    """
    from dsec.sim.elastic.load import folded, in_order, rollouts
    from dsec.sim.trace import read_jobs

    if plot is not None:
        check_plot(plot)
    load = rollouts(seed, days=days, scale=scale)
    if trace is not None:
        jobs = read(trace, "--trace", read_jobs)
        pods = folded(jobs, seed, days=days, scale=scale, busy_from=busy_from)
        load = in_order(pods, load)
    with _progress(days) as told:
        tally = _run(
            load,
            days=days,
            own=(own_gpu, own_cpu),
            spot=spot,
            burst_wait=burst_wait,
            seed=seed,
            told=told,
        )
    report = report_of(tally)
    show_one(report, output, lambda: _show(report))
    if plot is not None:
        from dsec.sim.elastic.plot import draw

        draw({"dsec": tally.curve}, plot)
        note(f"picture: {plot}")


def _run(
    load: "list[Work]",
    *,
    days: int,
    own: tuple[int, int],
    spot: bool,
    burst_wait: float,
    seed: int,
    told: Callable[[float], None],
) -> "Tally":
    from dsec.api.scaling import Market, Shrinking
    from dsec.scaling.nodes.rules import NodeRules, PoolRules
    from dsec.sim.bursts import DAY_SECONDS
    from dsec.sim.elastic.fleet import Fleet
    from dsec.sim.elastic.market import OWNED_CPU, OWNED_GPU, MarketModel, offerings, owned
    from dsec.sim.elastic.planned import Planned

    market = MarketModel(seed=seed)
    markets = (Market.SPOT, Market.ON_DEMAND) if spot else (Market.ON_DEMAND,)
    rules = NodeRules(
        pools=(
            # own machines are paid for whether they run or not
            PoolRules("own-gpu", shrink=Shrinking.OFF),
            PoolRules("own-cpu", shrink=Shrinking.OFF),
            PoolRules("cloud-gpu", burst_wait_s=burst_wait),
            PoolRules("cloud-cpu", burst_wait_s=burst_wait),
        )
    )
    machines = [
        owned(shape, count) for shape, count in zip((OWNED_GPU, OWNED_CPU), own, strict=True)
    ]
    end = days * DAY_SECONDS
    fleet = Fleet(
        load,
        [one for one in machines if one.limit],
        market,
        Planned(rules, offerings(market, markets=markets)),
        window=(0.0, end),
        end=end,
    )
    return fleet.run(told)


def report_of(tally: "Tally") -> ElasticReport:
    """Return what a run came to, rounded for people and programs."""
    import numpy as np

    waits = [
        Waits(
            kind=kind,
            count=len(values),
            mean=round(float(np.mean(values)), 1),
            p50=round(float(np.percentile(values, 50)), 1),
            p99=round(float(np.percentile(values, 99)), 1),
            most=round(max(values), 1),
        )
        for kind, values in sorted(tally.waits.items())
    ]
    hours = Decimal(str(round(tally.delivered_core_h, 3)))
    return ElasticReport(
        bill={line: f"{amount:.2f}" for line, amount in sorted(tally.bill.items())},
        total=f"{tally.total:.2f}",
        per_core_hour=f"{tally.total / hours:.4f}" if hours else "0",
        waits=waits,
        delivered_core_hours=round(tally.delivered_core_h, 1),
        delivered_gpu_hours=round(tally.delivered_gpu_h, 1),
        launches=tally.launches,
        removals=tally.removals,
        moves=tally.moves,
        interruptions=tally.interruptions,
        shortages=tally.failures,
        unfinished=tally.unfinished,
    )


@contextmanager
def _progress(days: int) -> Iterator[Callable[[float], None]]:
    """Show how much virtual time has passed, on stderr; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("virtual time"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("time", total=days * 86_400)
        yield lambda now: bar.update(task, completed=now)


def _show(report: ElasticReport) -> None:
    """Print the report for people."""
    print_table(
        [*report.bill.items(), ("all", report.total)],
        [("PAID FOR", lambda row: row[0]), ("USD", lambda row: row[1])],
    )
    print()
    print_table(
        report.waits,
        [
            ("WAITS OF", lambda row: row.kind),
            ("COUNT", lambda row: str(row.count)),
            ("MEAN", lambda row: f"{row.mean:.1f} s"),
            ("P50", lambda row: f"{row.p50:.1f} s"),
            ("P99", lambda row: f"{row.p99:.1f} s"),
            ("MOST", lambda row: f"{row.most:.1f} s"),
        ],
    )
    print()
    print(
        f"delivered         {report.delivered_core_hours:.1f} core-hours, "
        f"{report.delivered_gpu_hours:.1f} GPU-hours; {report.per_core_hour} USD a core-hour"
    )
    print(f"nodes             {report.launches} bought, {report.removals} given back")
    print(f"moves             {report.moves}, pauses at spot notices included")
    print(f"cloud             {report.interruptions} interruptions, {report.shortages} shortages")
    print(f"not finished      {report.unfinished}")
