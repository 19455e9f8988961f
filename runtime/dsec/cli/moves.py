"""Where sandboxes are: migrate, hibernate, wake, and nodes that are to be empty."""

import time
from typing import Annotated, Any

import typer

from dsec.cli.codes import EXIT_FAILED
from dsec.cli.output import Output, OutputOption, ProjectOption, condition, note, show_one
from dsec.cli.sandboxes import SandboxId
from dsec.cli.session import client

LOOK_SECONDS = 2.0


def migrate(
    sandbox: SandboxId,
    node: Annotated[str, typer.Option("--node", help="To this node; else where room is.")] = "",
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a sandbox to another node, with its state and under its id."""
    with client(project) as dsec:
        found = dsec.migrate(sandbox, node=node)
    show_one(found, output, lambda: print(f"sandbox {sandbox} moves to node {found.get('node')}"))


def hibernate(sandbox: SandboxId, project: ProjectOption = "") -> None:
    """Save a sandbox and give its node back, until it is woken."""
    with client(project, slow=True) as dsec:
        dsec.hibernate(sandbox)
    print(f"sandbox {sandbox} hibernates; `dsec wake {sandbox}` lets it go on")


def wake(sandbox: SandboxId, project: ProjectOption = "") -> None:
    """Let a sandbox that hibernates go on, wherever there is room."""
    with client(project) as dsec:
        dsec.wake(sandbox)
    print(f"sandbox {sandbox} goes on where there is room")


def drain(
    name: Annotated[str, typer.Argument(help="The node.", show_default=False)] = "",
    *,
    pool: Annotated[str, typer.Option("--pool", help="All nodes of this pool.")] = "",
    evict: Annotated[
        bool, typer.Option("--evict", help="What cannot move ends, and starts again elsewhere.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait until it is empty.")
    ] = 0.0,
) -> None:
    """Give a node no new work, and move what is there elsewhere."""
    if bool(name) == bool(pool):
        raise typer.BadParameter("name a node, or --pool", param_hint="NAME")
    with client() as dsec:
        nodes = dsec.drain(node=name, pool=pool, evict=evict)["nodes"]
        note(f"{', '.join(nodes)}: no new work; what is there leaves")
        end = time.monotonic() + wait
        left = _left(dsec.nodes(), nodes) if wait else {}
        while left and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            left = _left(dsec.nodes(), nodes)
    for one, words in left.items():
        print(f"{one}: {words}")
    if left:
        raise typer.Exit(EXIT_FAILED)


def undrain(
    name: Annotated[str, typer.Argument(help="The node.", show_default=False)] = "",
    pool: Annotated[str, typer.Option("--pool", help="All nodes of this pool.")] = "",
) -> None:
    """Let work come back to a node that was drained."""
    if bool(name) == bool(pool):
        raise typer.BadParameter("name a node, or --pool", param_hint="NAME")
    with client() as dsec:
        nodes = dsec.drain(node=name, pool=pool, undo=True)["nodes"]
    print(f"{', '.join(nodes)}: work may come back")


def _left(nodes: list[dict[str, Any]], wanted: list[str]) -> dict[str, str]:
    """Return the nodes that are not empty yet, with what their records say."""
    found = {}
    for one in nodes:
        name = one["metadata"]["name"]
        said = condition(one, "Drained")
        if name in wanted and said.get("reason") != "Drained":
            found[name] = said.get("message", "the leader has not looked at it yet")
    return found
