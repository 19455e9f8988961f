"""`dsec explain`: why a sandbox is where it is, or waits; and the same decision again, offline."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec.cli.codes import EXIT_FAILED
from dsec.cli.output import Output, OutputOption, ProjectOption, cores, dump, show_one, size
from dsec.cli.session import client

if TYPE_CHECKING:
    from dsec.api.decisions import DecisionRecord, LedgerFigure, SandboxDecision
    from dsec.placement.dumps import Replay

MANY = 5
"""Nodes named of a class that was spread over more."""


def explain(
    what: Annotated[
        str, typer.Argument(help="A sandbox id, or a file with a dumped decision.", metavar="WHAT")
    ],
    take: Annotated[
        bool, typer.Option("--take", help="First dump the leader's next round into the file.")
    ] = False,
    project: ProjectOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain a placement decision: why this node, why no other, or why none.

    Of a sandbox the newest decision is asked of the server. A file is replayed here, with the same
    code and no server; exit code 1 where another decision comes out.
    """
    if take:
        with client(project) as dsec:
            Path(what).write_bytes(dsec.decision_dump())
    if not take and what.startswith("sb-") and not Path(what).exists():
        with client(project) as dsec:
            decision = dsec.decision(what)
        show_one(decision, output, lambda: _sandbox_words(decision))
        return
    replay = _replay(Path(what))
    if output is Output.TABLE:
        _replay_words(replay)
    else:
        dump(replay.wire(), output)
    if not replay.same:
        raise typer.Exit(EXIT_FAILED)


def _replay(path: Path) -> "Replay":
    from pydantic import ValidationError

    from dsec.placement.dumps import DecisionDump, DumpError, replay

    try:
        return replay(DecisionDump.model_validate_json(path.read_bytes()))
    except FileNotFoundError as error:
        why = f"{error.strerror}: give a file of --take, or a sandbox id, which begins with sb-"
        raise FileNotFoundError(error.errno, why, str(path)) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "the file"
        raise DumpError(f"{path} is no dump of a decision: {where}: {first['msg']}") from None


def _sandbox_words(decision: "SandboxDecision") -> None:
    where = f"is on {decision.node}" if decision.node else "waits"
    devices = f" with {', '.join(decision.devices)}" if decision.devices else ""
    print(f"sandbox {decision.sandbox} {where}{devices}, decided {decision.at.isoformat()}")
    if decision.message:
        print(f"  why         {decision.message}")
    if decision.record is not None:
        _record_words(decision.record)


def _replay_words(replay: "Replay") -> None:
    for line in replay.differences:
        print(f"DIFFERENT   {line}")
    print(
        f"the replay of {replay.requests} requests on {replay.nodes} nodes gives "
        f"{'the same decision' if replay.same else 'another decision'}"
    )
    for record in replay.records:
        print()
        _record_words(record)


def _record_words(record: "DecisionRecord") -> None:
    print(f"  asked       {asked_text(record.request)}")
    counts = sorted(record.nodes.items(), key=lambda one: (-one[1], one[0]))
    named = ", ".join(f"{node} {count}" for node, count in counts[:MANY])
    more = f" and {len(counts) - MANY} more nodes" if len(counts) > MANY else ""
    chosen = f": {named}{more}" if counts else ""
    print(f"  class       {record.placed} of {record.asked} that asked for this placed{chosen}")
    if record.scores:
        parts = ", ".join(f"{one.name} {round(one.value, 1):g}" for one in record.scores)
        total = round(sum(one.value for one in record.scores), 1)
        print(f"  score       {parts}; {total:g} in all, the least of all nodes that fit")
    for one in record.rejected:
        nodes = f"{one.nodes} nodes: " if one.nodes > 1 else "1 node: " if one.nodes else ""
        print(f"  not         {nodes}{one.text}")
    for figure in record.ledger:
        print(f"  quota       {quota_text(figure)}")
    print(f"  inputs      sha256 {record.inputs}, epoch {record.epoch}, record {record.id}")


def quota_text(one: "LedgerFigure") -> str:
    """Return the quota of one dimension as it was before the decision, in words."""
    from dsec.placement.quota_words import NAMES, figure
    from dsec.placement.words import amount

    def text(value: int) -> str:
        return figure(one.dimension, value, amount)

    own = "" if one.nominal is None else f", {text(one.nominal)} owned"
    most = "" if one.ceiling is None else f", {text(one.ceiling)} at most"
    name = NAMES[one.dimension]
    return f"{one.account}: {name}: {text(one.asked)} asked, {text(one.used)} used{own}{most}"


def asked_text(request: dict[str, Any]) -> str:
    """Return what a class asked for, in words."""
    resources = request.get("resources", {})
    count = cores(resources.get("cpuMilli"))
    parts = [
        f"{count} {'core' if count == '1' else 'cores'}",
        f"{size(resources.get('memoryBytes'))} memory",
    ]
    if resources.get("gpuCount"):
        mode = resources.get("gpuMode") or "whole"
        model = f" {request['gpuModel']}" if request.get("gpuModel") else ""
        parts.append(f"{resources['gpuCount']} GPU{model} ({mode})")
    parts += [f"label {key}={value}" for key, value in request.get("labels", [])]
    shown = {"resources", "gpuModel", "labels"}
    parts += [f"{key} {_short(value)}" for key, value in request.items() if key not in shown]
    return ", ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(_short(one) for one in value)
    return str(value)
