"""`dsec snapshot`: what there is of tasks and sandboxes, and what can be done with it."""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec.cli.codes import EXIT_FAILED
from dsec.cli.output import (
    Column,
    Output,
    OutputOption,
    ProjectOption,
    note,
    show_items,
    show_one,
    size,
)
from dsec.cli.regions import replicate
from dsec.cli.session import client

if TYPE_CHECKING:
    from dsec.api.snapshot_calls import Snapshot

app = typer.Typer(help="Snapshots: what there is, and their copies.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="LINEAGE@NUMBER, as ls shows.", show_default=False)]


@app.callback()
def _app() -> None:
    """Look at snapshots, take them, go on from them; and at their copies in other regions."""


app.command()(replicate)

_COLUMNS: list[Column] = [
    ("SNAPSHOT", lambda one: one.name),
    ("KIND", lambda one: one.ref.kind.value),
    ("TAKEN", lambda one: one.ref.created.isoformat(timespec="seconds")),
    ("TASK", lambda one: one.ref.experiment),
    ("FILES", lambda one: one.ref.files),
    ("SIZE", lambda one: size(one.ref.bytes)),
    ("STORED", lambda one: size(one.ref.stored_bytes)),
    ("SECONDS", lambda one: f"{one.ref.seconds:.1f}"),
    ("HELD", lambda one: f"{one.ref.held_seconds:.2f}"),
    ("WHY", lambda one: one.ref.reason),
    ("PINNED", lambda one: one.pinned),
    ("LIVE", lambda one: one.live),
]


@app.command("ls")
def ls(
    *,
    experiment: Annotated[str, typer.Option("--experiment", help="Of this task.")] = "",
    sandbox: Annotated[str, typer.Option("--sandbox", help="Of this sandbox.")] = "",
    lineage: Annotated[str, typer.Option("--lineage", help="Of this lineage.")] = "",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw sizes and gaps into a .png, .svg or .pdf."),
    ] = None,
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List snapshots, newest first."""
    if plot is not None:
        from dsec.cli.sim_run import check_plot

        check_plot(plot)
    with client(project) as dsec:
        found = dsec.snapshots(experiment=experiment, sandbox=sandbox, lineage=lineage)
    for one in found.damaged:
        note(f"damaged: {one}")
    if plot is not None:
        draw(found.items, plot)
        note(f"drawn into {plot}")
    show_items(found.items, _COLUMNS, output)


@app.command()
def show(name: Name, project: ProjectOption = "", output: OutputOption = Output.TABLE) -> None:
    """Explain one snapshot in words."""
    with client(project) as dsec:
        found = dsec.snapshot(name)
    show_one(found, output, lambda: print("\n".join(words(found))))


@app.command()
def take(
    sandbox: Annotated[str, typer.Argument(help="Id of a live sandbox.", show_default=False)],
    kind: Annotated[str, typer.Option("--kind", help="state, checkpoint or disk.")] = "",
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Save a sandbox now; returns once it is stored."""
    if kind not in {"", "state", "checkpoint", "disk"}:
        raise typer.BadParameter(f"{kind!r}: state, checkpoint or disk", param_hint="--kind")
    with client(project, slow=True) as dsec:
        found = dsec.take_snapshot(sandbox, kind=kind)
    show_one(found, output, lambda: print("\n".join(words(found))))


@app.command()
def restore(
    name: Name,
    *,
    any_image: Annotated[
        bool, typer.Option("--any-image", help="Also under another image than its own.")
    ] = False,
    key: Annotated[str, typer.Option("--key", help="Of a sandbox that is made.")] = "",
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Go on from a snapshot: what lives is put back to it, what has ended is made anew."""
    with client(project) as dsec:
        found = dsec.restore_snapshot(name, any_image=any_image, key=key)
    how = {"put-back": "is put back to", "made": "is made of"}[found["how"]]
    show_one(found, output, lambda: print(f"sandbox {found.get('id')} {how} {name}"))


@app.command()
def fork(
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many.")] = 1,
    key: Annotated[str, typer.Option("--key", help="Prefix of their keys.")] = "",
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Make new sandboxes of a snapshot, each with an identity of its own."""
    with client(project) as dsec:
        answers = dsec.fork_snapshot(name, count=count, key=key)
    show_items(answers, _FORKS, output)
    if any(one.outcome in {"refused", "conflict"} for one in answers):
        raise typer.Exit(EXIT_FAILED)


_FORKS: list[Column] = [
    ("SANDBOX", lambda one: one.id),
    ("KEY", lambda one: one.key),
    ("OUTCOME", lambda one: one.outcome),
    ("NODE", lambda one: one.node),
    ("MESSAGE", lambda one: one.message),
]


@app.command()
def verify(
    name: Name,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Figures and parts, not each byte.")] = (
        False
    ),
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a snapshot; exits with 1 where it cannot be restored."""
    with client(project, slow=True) as dsec:
        found = dsec.verify_snapshot(name, data=not quick)

    def tell() -> None:
        verdict = "is good" if found["good"] else "CANNOT be restored"
        figures = f"{found.get('files', 0)} files, {size(found.get('bytes', 0))}"
        print(f"{name} {verdict}: {figures}, {size(found.get('checkedBytes', 0))} compared")
        print("\n".join(f"  {problem}" for problem in found.get("problems", [])), end="")

    show_one(found, output, tell)
    if not found["good"]:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def diff(
    name: Name,
    other: Annotated[str, typer.Argument(help="Another one.", show_default=False)],
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the paths in which two snapshots differ, from the older to the newer."""
    with client(project, slow=True) as dsec:
        found = dsec.diff_snapshots(name, other)

    def tell() -> None:
        print(
            f"from {found['before']} to {found['after']}: {found.get('added', 0)} added, "
            f"{found.get('removed', 0)} removed, {found.get('changed', 0)} changed"
        )
        for one in found["items"]:
            sizes = f"{size(one.get('before'))} -> {size(one.get('after'))}"
            print(f"  {one['what']:<8} {one['path']}  {sizes}")
        if found.get("more"):
            print(f"  and {found['more']} more")

    show_one(found, output, tell)


@app.command()
def pin(
    name: Name,
    why: Annotated[str, typer.Option("--why", help="For those who ask later.")] = "",
    project: ProjectOption = "",
) -> None:
    """Keep a snapshot from every rule of retention."""
    with client(project) as dsec:
        dsec.pin_snapshot(name, why=why)
    print(f"{name} is kept until it is unpinned")


@app.command()
def unpin(name: Name, project: ProjectOption = "") -> None:
    """Let the rules of retention have a snapshot again."""
    with client(project) as dsec:
        dsec.unpin_snapshot(name)
    print(f"{name} is no longer pinned")


@app.command()
def rm(name: Name, project: ProjectOption = "") -> None:
    """Delete a snapshot; its bytes go with the next collection."""
    with client(project) as dsec:
        dsec.delete_snapshot(name)
    print(f"{name} is deleted")


@app.command()
def gc(
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for those who save now.")
    ] = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove the bytes that no snapshot needs, of all tenants."""
    with client(slow=True) as dsec:
        found = dsec.collect_snapshots(wait=wait)
    show_items(found["items"], _COLLECTED, output)
    if any(one.get("problem") for one in found["items"]):
        raise typer.Exit(EXIT_FAILED)


_COLLECTED: list[Column] = [
    ("TENANT", lambda one: one["tenant"]),
    ("PACKS", lambda one: one.get("packs", 0)),
    ("FREED", lambda one: size(one.get("bytes", 0))),
    ("WAITS FOR", lambda one: ", ".join(one.get("waitsFor", []))),
    ("BROKEN", lambda one: ", ".join(one.get("broken", []))),
    ("PROBLEM", lambda one: one.get("problem", "")),
]


def words(one: "Snapshot") -> list[str]:
    """Return a snapshot in lines."""
    from dsec.api.snapshot_calls import restore_seconds

    ref = one.ref
    kept = f"; pinned: {one.pinned_why or 'no reason given'}" if one.pinned else ""
    what = f"{ref.kind.value} of {ref.sandbox}, {ref.files} files, {size(ref.bytes)}"
    how = f"{ref.reason or 'asked'}; {ref.consistency or 'no mark'}"
    when = f"taken {ref.created.isoformat(timespec='seconds')} on {ref.node or 'a node'} ({how})"
    took = f"in {ref.seconds:.1f} s, of which it stood still {ref.held_seconds:.2f} s"
    again = f"a restore takes about {restore_seconds(ref.bytes):.0f} s"
    lines = [
        f"{one.name}: {what}{kept}",
        f"  {when} {took}",
        f"  added {size(ref.stored_bytes)} to the store; {again}",
    ]
    if ref.image:
        lines.append(f"  of image {ref.image}; another one needs --any-image")
    if ref.meta:
        said = ", ".join(f"{name} {value}" for name, value in sorted(ref.meta.items()))
        lines.append(f"  its program said: {said}")
    return lines


def draw(items: "list[Snapshot]", path: Path) -> None:
    """Draw sizes and the gaps between snapshots over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6))
    sizes, gaps = figure.subplots(2, 1, sharex=True)
    lineages: dict[str, list[Any]] = {}
    for one in sorted(items, key=lambda item: item.ref.created):
        lineages.setdefault(one.ref.lineage, []).append(one.ref)
    for lineage, refs in lineages.items():
        times = [ref.created for ref in refs]
        sizes.plot(times, [ref.stored_bytes / (1 << 20) for ref in refs], ".-", label=lineage)
        steps = [(b - a).total_seconds() / 60 for a, b in pairwise(times)]
        gaps.plot(times[1:], steps, ".-")
    sizes.set_ylabel("added to the store, MiB")
    gaps.set_ylabel("since the one before, minutes")
    if lineages:
        sizes.legend(fontsize="small")
    figure.savefig(path)
