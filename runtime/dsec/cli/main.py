"""The program `dsec` (also installed as `dsecctl`): its table of contents and its last safety net.

Each command lives in a module of its own that is imported when the command runs, so that
`dsec --help` and shell completion stay fast and one broken part does not break the others.

Exit codes: 0 done; 1 the task failed; 2 wrong usage or an invalid document; 3 denied; 4 not
found; 5 unreachable, or the outcome is not known; 6 a fault of dsec itself; 130 interrupted.
"""

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dsec.cli.codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: where its function or Typer app is, and its line in the overview."""

    target: str
    summary: str
    panel: str


_RUN = "Run"
_LOOK = "Look"
_CHANGE = "Change"
_MACHINE = "This machine"

COMMANDS: dict[str, Entry] = {
    "run": Entry("dsec.cli.batch:run", "Run a command in many sandboxes; collect results.", _RUN),
    "submit": Entry("dsec.cli.experiments:submit", "Submit a task document as new.", _RUN),
    "apply": Entry("dsec.cli.experiments:apply", "Create or update from a task document.", _RUN),
    "wait": Entry("dsec.cli.experiments:wait", "Wait for the end of an experiment.", _RUN),
    "results": Entry("dsec.cli.batch:results", "Show how each sandbox ended.", _RUN),
    "get": Entry("dsec.cli.look:get", "List tasks, sandboxes, nodes, tenants, pools.", _LOOK),
    "describe": Entry("dsec.cli.look:describe", "Explain one thing in words.", _LOOK),
    "explain": Entry("dsec.cli.explain:explain", "Explain a placement decision.", _LOOK),
    "cost": Entry("dsec.cli.cost:cost", "Show what was spent, and on what.", _LOOK),
    "budget": Entry("dsec.cli.budget:app", "Show limits, and what is left of them.", _LOOK),
    "node": Entry("dsec.cli.look:node", "List the nodes, and empty them.", _LOOK),
    "logs": Entry("dsec.cli.sandboxes:logs", "Show the output of a sandbox.", _LOOK),
    "exec": Entry("dsec.cli.sandboxes:exec_", "Run a command in a live sandbox.", _CHANGE),
    "scale": Entry("dsec.cli.experiments:scale", "Change the replicas of a role.", _CHANGE),
    "extend": Entry("dsec.cli.sandboxes:extend", "Keep a sandbox that would be reaped.", _CHANGE),
    "snapshot": Entry("dsec.cli.snapshot:app", "Snapshots, and their copies.", _CHANGE),
    "failover": Entry("dsec.cli.regions:failover", "Take over a lost region's tasks.", _CHANGE),
    "migrate": Entry("dsec.cli.moves:migrate", "Move a sandbox, with its state.", _CHANGE),
    "hibernate": Entry("dsec.cli.moves:hibernate", "Save a sandbox, free its node.", _CHANGE),
    "wake": Entry("dsec.cli.moves:wake", "Let a hibernating sandbox go on.", _CHANGE),
    "freeze": Entry("dsec.cli.experiments:freeze", "Stop and keep the scene.", _CHANGE),
    "delete": Entry("dsec.cli.experiments:delete", "Collect, archive, remove.", _CHANGE),
    "doctor": Entry("dsec.cli.doctor:doctor", "Check what this machine has.", _MACHINE),
    "tools": Entry("dsec.cli.tools:app", "Install the tool chain.", _MACHINE),
    "up": Entry("dsec.cli.local:up", "Start dsec here, without Kubernetes.", _MACHINE),
    "down": Entry("dsec.cli.local:down", "Stop what `up` started.", _MACHINE),
    "local": Entry("dsec.cli.local:app", "Run a local Kubernetes with dsec.", _MACHINE),
    "images": Entry("dsec.cli.local:images_app", "Build and list the images.", _MACHINE),
    "sim": Entry("dsec.cli.sim:app", "Simulate nodes, and whole runs.", _MACHINE),
    "demo": Entry("dsec.cli.demo:demo", "From nothing to 200 graded programs.", _MACHINE),
    "version": Entry("dsec.cli.look:version", "Show versions.", _LOOK),
}


class _Deferred(TyperCommand):
    """A command that is imported when it is used; until then it is a line of help."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name=name, help=entry.summary, rich_help_panel=entry.panel)
        self._entry = entry

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Hand over to the real command."""
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        """Import the real command."""
        module, attribute = self._entry.target.split(":")
        target = getattr(import_module(module), attribute)
        if not isinstance(target, typer.Typer):
            app = typer.Typer(add_completion=False)
            app.command(self.name, context_settings=getattr(target, "context_settings", None))(
                target
            )
            target = app
        command = get_command(target)
        command.name = self.name
        return command


class _Contents(TyperGroup):
    """The overview: the table above."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  the base class asks for it
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  same
        """Return a command that is not imported yet."""
        entry = COMMANDS.get(cmd_name)
        return _Deferred(cmd_name, entry) if entry else None


app = typer.Typer(
    cls=_Contents,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of a fault (also DSEC_DEBUG=1).")
    ] = False,
) -> None:
    """Elastic sandboxes for large-scale agent training.

    Exit codes: 0 done, 1 task failed, 2 usage or invalid, 3 denied, 4 not found,
    5 unreachable or unknown outcome, 6 fault of dsec, 130 interrupted.
    """
    if debug:
        os.environ["DSEC_DEBUG"] = "1"


def run(args: list[str]) -> int:
    """Run one command line and return its exit code. Errors go to stderr, in sentences."""
    try:
        code = get_command(app)(args, prog_name="dsec", standalone_mode=False)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_FAILED
    except (KeyboardInterrupt, typer.Abort):  # the latter: a question got no answer
        print("dsec: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last net: a user never sees a traceback
        return _explain(error)
    return code if isinstance(code, int) else EXIT_OK


def _explain(error: Exception) -> int:
    if os.environ.get("DSEC_DEBUG"):
        import traceback

        traceback.print_exception(error)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's usage errors
        return _usage(error)
    from dsec.cli.failures import explain

    return explain(error)


def _usage(error: Any) -> int:
    hint = ""
    if error.exit_code == EXIT_USAGE and getattr(error, "ctx", None) is not None:
        hint = f"\ntry '{error.ctx.command_path} --help'"
    message = error.format_message()
    print(f"{message}{hint}" if message else hint, file=sys.stderr)
    return cast("int", error.exit_code)


def main() -> None:
    """Entry point of the installed programs."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
