"""`dsec snapshot`: the snapshots of tasks and sandboxes."""

import typer

from dsec.cli.regions import replicate

app = typer.Typer(help="Snapshots: what there is, and their copies.", no_args_is_help=True)


@app.callback()
def _app() -> None:
    """Look at snapshots, and at their copies in other regions."""


app.command()(replicate)
