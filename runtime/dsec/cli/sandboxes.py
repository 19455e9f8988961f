"""Commands about one live sandbox: its output, and running something in it."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.codes import EXIT_FAILED
from dsec.cli.output import ProjectOption, note
from dsec.cli.session import client

if TYPE_CHECKING:
    from dsec.api.frames import ExecEnd, Frame

SandboxId = Annotated[str, typer.Argument(help="Id, sb-...", show_default=False)]


def logs(
    sandbox: SandboxId,
    follow: Annotated[bool, typer.Option("--follow", help="Go on while it runs.")] = False,
    project: ProjectOption = "",
) -> None:
    """Show the kept output of a sandbox's main command, stdout on stdout, stderr on stderr."""
    with client(project) as dsec:
        end = _copy(dsec.logs(sandbox, follow=follow))
    if end.dropped_bytes:
        note(f"{end.dropped_bytes} bytes of older output were not kept")


def extend(
    sandbox: SandboxId,
    span: Annotated[
        str, typer.Option("--for", help="How long from now, for example 30m, 24h; at most 7d.")
    ] = "24h",
    project: ProjectOption = "",
) -> None:
    """Keep a sandbox for a while that is idle, silent or paused, and would be ended for that."""
    from dsec.api.units import UnitError, seconds

    try:
        asked = seconds(span)
    except UnitError as problem:
        raise typer.BadParameter(str(problem), param_hint="--for") from problem
    with client(project) as dsec:
        kept = dsec.extend(sandbox, seconds=asked)
    print(f"sandbox {kept.id} is left alone until {kept.until.isoformat(timespec='seconds')}")


def exec_(
    sandbox: SandboxId,
    command: Annotated[list[str], typer.Argument(help="Command, after --.", show_default=False)],
    *,
    interactive: Annotated[
        bool, typer.Option("--stdin", "-i", help="Send standard input, until its end.")
    ] = False,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; may be repeated.")
    ] = None,
    workdir: Annotated[str, typer.Option("--workdir", "-w", help="Where it starts.")] = "",
    user: Annotated[str, typer.Option("--user", "-u", help="As whom.")] = "",
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.001, help="Seconds; then all of it dies.")
    ] = None,
    project: ProjectOption = "",
) -> None:
    """Run a command in a live sandbox.

    Exits with 0 where the command did and with 1 where it did not; its own status is on stderr.
    """
    from dsec.cli.batch import parse_env

    with client(project) as dsec:
        end = _copy(
            dsec.exec(
                sandbox,
                command,
                stdin=sys.stdin.buffer.read() if interactive else b"",
                env=parse_env(env or []),
                workdir=workdir,
                user=user,
                timeout_seconds=timeout,
            )
        )
    if end.dropped_bytes:
        note(f"{end.dropped_bytes} bytes of output were dropped")
    if end.exit_code != 0 or end.reason not in {"", "completed"}:
        how = f"signal {end.signal}" if end.signal is not None else f"status {end.exit_code}"
        note(f"the command ended with {how}{f' ({end.reason})' if end.reason else ''}")
        raise typer.Exit(EXIT_FAILED)


def _copy(frames: "Iterator[Frame]") -> "ExecEnd":
    """Copy output as it comes; return the end. A cut stream raises in the iterator."""
    from dsec.api.frames import ExecEnd, FrameType
    from dsec.client._messages import end_of

    end = ExecEnd()
    for frame in frames:
        if frame.type is FrameType.END:
            end = end_of(frame)
            continue
        stream = sys.stderr if frame.type is FrameType.STDERR else sys.stdout
        stream.buffer.write(frame.payload)
        stream.flush()
    return end
