"""`dsec local`, `dsec images`, and `dsec up|down` without Kubernetes: dsec on this machine."""

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dsec.cli import local_steps

app = typer.Typer(
    help="Run a local Kubernetes for dsec: one node, a registry and S3, in one directory.",
    no_args_is_help=True,
)
images_app = typer.Typer(
    help="Build dsec's images and push them to a registry.", no_args_is_help=True
)


class Output(StrEnum):
    """How to print an answer."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table for people, or json.")]
NameOption = Annotated[str, typer.Option("--name", help="Name of the local cluster.")]
StateOption = Annotated[
    Path | None,
    typer.Option("--state-dir", help="Directory of everything it writes."),
]
KubeconfigOption = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Use the existing cluster of this file instead."),
]
ContextOption = Annotated[
    str, typer.Option("--context", help="Context in that kubeconfig; by default its current one.")
]
BaseOption = Annotated[
    str,
    typer.Option(
        help="Base of runtime and agent: 'built' from Debian packages, or an image reference "
        "such as python:3.11-slim."
    ),
]
RegistryOption = Annotated[
    str, typer.Option(help="host:port of the registry; by default the local cluster's.")
]

DEFAULT_NAME = "local"


@app.command("up")
def local_up(  # noqa: PLR0917 - typer makes options of them; nobody calls this by position
    name: NameOption = DEFAULT_NAME,
    state_dir: StateOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    base: BaseOption = "built",
    output: OutputOption = Output.TABLE,
) -> None:
    """Start the cluster, or bring what is there to what it should be; may be repeated."""
    if kubeconfig or context:
        existing(kubeconfig, context, output)
        return
    from dsec.local import cluster

    began = time.monotonic()
    with local_steps.shown(quiet=output is Output.JSON) as report:
        state = cluster.up(name, _directory(name, state_dir), report, base=base)
    told = cluster.status(name, state.directory)
    if output is Output.JSON:
        _json({**told, "seconds": round(time.monotonic() - began, 1)})
        return
    print(f"Local cluster {name!r} is up ({time.monotonic() - began:.0f} s).\n")
    _describe(told)
    print(
        f"\nNext:\n  export KUBECONFIG={state.kubeconfig}\n"
        "  dsec demo                     # the whole way, or\n"
        "  pulumi up --stack local       # the platform on this cluster\n"
        f"  dsec local down{_name_option(name)}               # stop; --purge forgets its data too"
    )


@app.command("down")
def local_down(
    name: NameOption = DEFAULT_NAME,
    state_dir: StateOption = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete its data too: records, images, objects.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop the cluster, remove all it put outside its directory, and count what is left."""
    from dsec.local import cluster

    directory = _directory(name, state_dir)
    began = time.monotonic()
    with local_steps.shown(quiet=output is Output.JSON) as report:
        left = cluster.down(name, directory, report, purge=purge)
    seconds = time.monotonic() - began
    if output is Output.JSON:
        _json({"left": left.total(), **left.by_kind(), "seconds": round(seconds, 1)})
    else:
        print(f"Local cluster {name!r} is down ({seconds:.0f} s): {left.sentence()}.")
        if not purge:
            print(f"Its data is kept in {directory}; 'dsec local up' goes on with it.")
    if left.total():
        raise typer.Exit(1)


@app.command("status")
def local_status(
    name: NameOption = DEFAULT_NAME,
    state_dir: StateOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what runs. Exit code 1 where not everything does."""
    if kubeconfig or context:
        existing(kubeconfig, context, output)
        return
    from dsec.local import cluster

    told = cluster.status(name, _directory(name, state_dir))
    if output is Output.JSON:
        _json(told)
    elif told["state"] == "absent":
        print(f"There is no local cluster {name!r}; 'dsec local up' makes one.")
    else:
        print(f"Local cluster {name!r} is {told['state']}.\n")
        _describe(told)
        print()
        _parts(told)
    if told["state"] != "up":
        raise typer.Exit(1)


@app.command("logs")
def local_logs(
    part: Annotated[str, typer.Argument(help="Part, as 'status' names it.")] = "",
    name: NameOption = DEFAULT_NAME,
    state_dir: StateOption = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Newest lines to show.")] = 50,
) -> None:
    """Show the newest log lines of one part, or which parts there are."""
    folder = _directory(name, state_dir) / "run" / "logs"
    known = sorted(path.stem for path in folder.glob("*.log"))
    if part not in known:
        if part:
            print(
                f"dsec: part: {part!r}: none of {', '.join(known) or '(no logs)'}", file=sys.stderr
            )
            raise typer.Exit(2)
        print("\n".join(known))
        return
    with (folder / f"{part}.log").open(errors="replace") as f:
        for line in f.readlines()[-lines:]:
            print(line, end="")


@app.command("kubeconfig")
def local_kubeconfig(
    name: NameOption = DEFAULT_NAME,
    state_dir: StateOption = None,
    user: Annotated[
        bool, typer.Option("--user", help="The one without administrator's rights.")
    ] = False,
) -> None:
    """Print the path of the kubeconfig."""
    directory = _directory(name, state_dir)
    path = directory / ("kubeconfig-user" if user else "kubeconfig")
    if not path.exists():
        print(f"dsec: there is no local cluster {name!r}; run 'dsec local up'", file=sys.stderr)
        raise typer.Exit(4)
    print(path)


@images_app.command("build")
def images_build(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Images; all where none is.")
    ] = None,
    registry: RegistryOption = "",
    base: BaseOption = "built",
    output: OutputOption = Output.TABLE,
) -> None:
    """Build the images that the registry lacks and push them; say size and time."""
    from dsec.local import images

    registry = _registry(registry)
    with local_steps.shown(quiet=output is Output.JSON) as report:
        built = images.build(registry, names or images.CLUSTER_IMAGES, report, base)
    rows = [
        {
            "name": image.name,
            "reference": image.reference,
            "megabytes": round(image.size / 1e6, 1),
            "seconds": round(image.seconds, 1),
            "built": image.built,
        }
        for image in built
    ]
    if output is Output.JSON:
        _json({"items": rows})
        return
    for row in rows:
        what = "built" if row["built"] else "was there"
        print(f"{row['name']:<13} {row['megabytes']:>6} MB {row['seconds']:>6} s  {what}")
        print(f"  {row['reference']}")


@images_app.command("list")
def images_list(
    registry: RegistryOption = "", base: BaseOption = "built", output: OutputOption = Output.TABLE
) -> None:
    """Show which images the registry has of this very source tree."""
    from dsec.local import images

    registry = _registry(registry)
    found = images.stored(registry, images.CLUSTER_IMAGES, base)
    if output is Output.JSON:
        _json({"items": [{"name": name, "reference": ref} for name, ref in found.items()]})
        return
    for name, reference in found.items():
        print(f"{name:<13} {reference or 'not built: dsec images build ' + name}")


def up(
    standalone: Annotated[
        bool, typer.Option("--standalone", help="One process, without Kubernetes.")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground/--detach", help="Stay, and end it with Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one, kept.")] = 0,
    state_dir: StateOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start dsec on this machine without Kubernetes: gateway, controller and agent in one process.

    For a local Kubernetes see 'dsec local up'.
    """
    from dsec.local import standalone as alone
    from dsec.local import standalone_state

    if not standalone:
        print(
            "dsec: say which: 'dsec up --standalone' (one process, no Kubernetes), "
            "or 'dsec local up' (a local Kubernetes)",
            file=sys.stderr,
        )
        raise typer.Exit(2)
    directory = (state_dir or standalone_state.default_directory()).absolute()
    began = time.monotonic()
    with local_steps.shown(quiet=output is Output.JSON) as report:
        if foreground:
            state, base = alone.prepare(directory, report, port)
        else:
            state = alone.up(directory, report, port)
    if foreground:
        from dsec.local import standalone_server

        alone.save_context(state)
        print(f"dsec serves on {state.server} until Ctrl-C; your client knows it.", flush=True)
        standalone_server.run(directory, base)
        return
    seconds = time.monotonic() - began
    if output is Output.JSON:
        told = {"server": state.server, "project": standalone_state.PROJECT}
        _json({**told, "stateDirectory": str(directory), "seconds": round(seconds, 1)})
    else:
        print(f"dsec serves on {state.server} ({seconds:.0f} s); your client knows it.\n")
        print("Next:\n  dsec run --count 1 -- python3 -c 'print(1)'\n  dsec down     # stop")


def down(
    state_dir: StateOption = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete its records and results.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop what 'dsec up' started, end its sandboxes, and count what is left."""
    from dsec.local import standalone, standalone_state

    directory = (state_dir or standalone_state.default_directory()).absolute()
    with local_steps.shown(quiet=output is Output.JSON) as report:
        left = standalone.down(directory, report, purge=purge)
    if output is Output.JSON:
        _json({"left": left.total(), **left.by_kind()})
    else:
        print(f"dsec is down: {left.sentence()}.")
    if left.total():
        raise typer.Exit(1)


def existing(kubeconfig: Path | None, context: str, output: Output) -> None:
    """Check an existing cluster and say what of dsec is on it."""
    from dsec.local import existing_cluster

    told = existing_cluster.check(kubeconfig, context)
    if output is Output.JSON:
        _json(told)
    else:
        for key, value in told.items():
            print(f"{key:<12} {value}")
    if not told["ready"]:
        raise typer.Exit(1)


def _directory(name: str, state_dir: Path | None) -> Path:
    from dsec.local import cluster_state

    return (state_dir or cluster_state.default_root() / name).absolute()


def _registry(given: str) -> str:
    from dsec.local import cluster_state

    if given:
        return given
    known = cluster_state.load(DEFAULT_NAME, _directory(DEFAULT_NAME, None))
    if known is None:
        print("dsec: registry: no local cluster is there; give --registry", file=sys.stderr)
        raise typer.Exit(2)
    return known.registry


def _name_option(name: str) -> str:
    return "" if name == DEFAULT_NAME else f" --name {name}"


def _describe(told: dict[str, Any]) -> None:
    parts = told["parts"]
    ready = sum(part["state"] == "ready" for part in parts)
    node = {True: "Ready", False: "not Ready", None: "-"}[told["nodeReady"]]
    print(f"  parts       {ready} of {len(parts)} ready")
    print(f"  node        dsec-{told['name']}: {node}")
    print(f"  API server  {told['server']}")
    print(f"  registry    {told['registry']}  ({len(told['images'])} images)")
    print(f"  S3          {told['s3']}")
    print(f"  kubeconfig  {told['kubeconfig']}")


def _parts(told: dict[str, Any]) -> None:
    from dsec.cli.output import print_table

    columns = [
        (heading.upper(), lambda part, key=heading: part[key])
        for heading in ("name", "state", "pid", "restarts")
    ]
    print_table(told["parts"], columns)


def _json(data: Any) -> None:
    json.dump(data, sys.stdout, indent=2)
    print()
