"""`dsec failover` and `dsec snapshot replicate`: copies elsewhere, and taking over a region."""

import time
from typing import Annotated, Any

import typer

from dsec.cli.codes import EXIT_FAILED
from dsec.cli.output import (
    Column,
    Output,
    OutputOption,
    age,
    condition,
    dump,
    note,
    print_table,
    show_items,
    size,
)
from dsec.cli.session import client

PATIENCE = 600.0
"""Seconds: a failover of many experiments is long, and each try of the call may be repeated."""
LOOK_SECONDS = 1.0
CONDITIONS = ("Ready", "InSync", "Protected")


def _span(seconds: object) -> str:
    """Return a time for people: 45 s, 12 min, 3.5 h."""
    if not isinstance(seconds, int | float):
        return "all"
    for unit, letters in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {letters}"
    return f"{seconds:.3g} s"


# ---------------------------------------------------------------------- replicate

_COPIES: list[Column] = [
    ("POLICY", lambda one: one["policy"]),
    ("TO", lambda one: one.get("region")),
    ("BEHIND", lambda one: one.get("behind", 0)),
    ("LAG", lambda one: _span(one.get("lagSeconds", 0))),
    ("RECOVERY POINT", lambda one: _span(one.get("recoveryPointSeconds"))),
    ("SENT", lambda one: size(one.get("sentBytes", 0))),
    ("LAST WHOLE", lambda one: age(one.get("lastSuccess"))),
    ("WHY", lambda one: one.get("message", "")),
]


def replicate(
    policy: Annotated[
        str, typer.Argument(help="ReplicationPolicy; by default all are shown.")
    ] = "",
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Say what waits to be copied; copy nothing.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for the end of the cycle.")
    ] = 600.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy snapshots to other regions now, and show how far the copies are behind.

    Without a policy, or with --rehearse, nothing is copied. Exit code 1 where a copy is not in
    sync, or residency leaves no destination.
    """
    from dsec.client import NotFoundError

    with client() as dsec:
        if policy and not rehearse:
            asked = dsec.replicate(policy)["asked"]
            end = time.monotonic() + wait
            while _handled(dsec.replication(), policy) != asked:
                if time.monotonic() > end:
                    note(f"the cycle is still running after {wait:.0f} s: look again")
                    raise typer.Exit(EXIT_FAILED)
                time.sleep(LOOK_SECONDS)
        found = [one for one in dsec.replication() if policy in {"", one["name"]}]
    if policy and not found:
        raise NotFoundError(f"there is no replication policy {policy!r}", code="not-found")
    rows = [
        {"policy": one["name"], **row}
        for one in found
        for row in one["status"].get("destinations", [])
    ]
    if output is Output.TABLE:
        print_table(rows, _COPIES)
    else:
        show_items(found, [], output)
    wrong = [
        f"{one['name']}: {kind}: {said.get('message', '')}"
        for one in found
        for kind in CONDITIONS
        if (said := condition(one, kind)).get("status") == "False"
    ]
    for line in wrong:
        note(line)
    if wrong:
        raise typer.Exit(EXIT_FAILED)


def _handled(policies: list[dict[str, Any]], name: str) -> str:
    return next((one["status"].get("handled", "") for one in policies if one["name"] == name), "")


# ---------------------------------------------------------------------- failover


def _lost(row: dict[str, Any]) -> str:
    return _span(row.get("lostSeconds")) if row["fate"].startswith("take") else ""


_ROWS: list[Column] = [
    ("PROJECT", lambda one: one["project"]),
    ("TASK", lambda one: one["name"]),
    ("FATE", lambda one: one["fate"]),
    ("LOST WORK", _lost),
    ("REPLICAS", lambda one: len(one.get("copies", []))),
    ("HOME EPOCH", lambda one: one["epoch"]),
    ("MADE", lambda one: one.get("made", False)),
    ("WHY", lambda one: one.get("problem") or one.get("why", "")),
]


def failover(
    lost: Annotated[str, typer.Argument(help="The region that is lost.", show_default=False)],
    *,
    project: Annotated[
        list[str] | None, typer.Option("--project", "-p", help="Only this one; may be repeated.")
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Say what would happen; change nothing.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte of the newest copies before.")
    ] = False,
    why: Annotated[str, typer.Option("--why", help="For the record.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take over the tasks of a lost region in the region that the context names.

    In this order: observe (what is here, how old), isolate (take the homes, so that the lost
    region changes nothing any more), recover (make the tasks again from their copies). A region
    that returns parks what it no longer has; failover in the other direction brings it back.
    Exit code 1 where something could not be taken over.
    """
    if not (rehearse or yes):
        asked = f"Region {lost} will not get its tasks back by itself. Is it lost?"
        if not typer.confirm(asked, err=True):
            note("nothing was changed")
            raise typer.Exit(EXIT_FAILED)
    with client(patience=PATIENCE) as dsec:
        answer = dsec.failover(
            lost, projects=project or [], rehearse=rehearse, verify=verify, why=why
        )
    rows = answer["rows"]
    if output is Output.TABLE:
        print_table(rows, _ROWS)
        _tell(answer)
    else:
        dump(answer, output)
    bad = [one for one in rows if one.get("problem")]
    bad += [one for one in rows if any(copy.get("problem") for copy in one.get("copies", []))]
    if bad:
        raise typer.Exit(EXIT_FAILED)


def _tell(answer: dict[str, Any]) -> None:
    """Say in words what was done, and what it costs."""
    for row in answer["rows"]:
        for copy in row.get("copies", []):
            if copy.get("problem"):
                note(f"{row['name']}: {copy['problem']}: the snapshot before it will be used")
    steps = ", ".join(f"{one['name']} {one['seconds']:.1f} s" for one in answer["steps"])
    taken = sum(row["fate"].startswith("take") for row in answer["rows"])
    what = "rehearsed, nothing was changed" if answer["rehearsal"] else steps
    point = answer.get("recoveryPointSeconds")
    lost = "all of something" if point is None else f"at most {_span(point)} of work"
    note(f"{answer['lost']} -> {answer['here']}: {taken} tasks; {what}; lost: {lost}")
