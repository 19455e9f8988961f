"""Experiment: an experiment that lives and dies with the stack."""

from pathlib import Path
from typing import Any

import pulumi
from dsec.api.documents import parse
from dsec.api.documents.crosscheck import contradictions
from dsec.api.experiment import Dialect, ExperimentSpec
from dsec.api.mistakes import DocumentError
from dsec.api.names import dns_name

from dsec_components.args import ExperimentArgs, Wait
from dsec_components.common import Component, merged_labels
from dsec_components.inputs import checked, problem
from dsec_components.record import record

COLLECT_MINUTES = 10
"""How long destroy waits for the controller to collect and clean."""
CONDITIONS = {Wait.ACCEPTED: "condition=Accepted", Wait.READY: "condition=Ready"}


class Experiment(Component):
    """Roles and replicas that run together, from typed inputs or a task document."""

    experiment_name: pulumi.Output[str]
    """Name of the record."""
    project: pulumi.Output[str]
    """Namespace that it runs in."""

    def __init__(
        self, name: str, args: ExperimentArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create the record; destroy waits until results are collected and all is cleaned.

        Raises pulumi.InputPropertiesError with every mistake in the inputs or the document.
        """
        super().__init__(name, args, opts)
        given, spec = _spec(name, args)
        physical = args.get("experiment_name") or dns_name(given)
        wait = CONDITIONS.get(Wait(args.get("wait", Wait.ACCEPTED)))
        self._record = record(
            f"{name}-experiment",
            "Experiment",
            physical,
            spec,
            labels=merged_labels("dsec-experiment", name, args.get("labels")),
            namespace=args["project"],
            annotations={"pulumi.com/waitFor": wait} if wait else None,
            opts=self._child(
                custom_timeouts=pulumi.CustomTimeouts(
                    delete=f"{args.get('collect_minutes') or COLLECT_MINUTES}m"
                )
            ),
        )
        self.experiment_name = pulumi.Output.from_input(physical)
        self.project = pulumi.Output.from_input(args["project"])
        self.register_outputs({"experiment_name": self.experiment_name, "project": self.project})


def _spec(name: str, args: ExperimentArgs) -> tuple[str, pulumi.Input[dict[str, Any]]]:
    """Return the name as given and the spec. Raises pulumi.InputPropertiesError."""
    sources = [key for key in ("spec", "document", "document_file") if args.get(key)]
    what = f"Experiment '{name}'"
    if len(sources) != 1:
        raise pulumi.InputPropertyError(
            "spec",
            f"{what} needs exactly one of spec, document and documentFile; "
            f"given: {', '.join(sources) or 'none'}",
        )
    if "spec" in sources:
        typed = args["spec"]
        given = typed.get("name")
        spec = checked(what, ExperimentSpec, typed, check=contradictions)
        if isinstance(spec, dict):
            spec = {**spec, "dialect": Dialect.EXPERIMENT.value}
        return given if isinstance(given, str) else name, spec
    if "document_file" in sources:
        path = Path(args["document_file"])
        try:
            return _parsed(f"{what} ({path})", path.read_text())
        except OSError as error:
            raise pulumi.InputPropertyError(
                "documentFile", f"{path} cannot be read: {error.strerror}"
            ) from None
    document = args["document"]
    if isinstance(document, str):
        return _parsed(what, document)
    text: pulumi.Output[str] = pulumi.Output.from_input(args["document"])
    return name, text.apply(lambda known: _parsed(what, known)[1])


def _parsed(what: str, text: str) -> tuple[str, dict[str, Any]]:
    try:
        parsed = parse(text)
    except DocumentError as error:
        raise problem(what, error.mistakes) from None
    spec: dict[str, Any] = parsed.record().record()["spec"]
    return parsed.name, spec
