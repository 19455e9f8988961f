"""Budget: the most that an account, project, task or pool may spend in a period."""

import pulumi
from dsec.api.budget import BudgetScope, BudgetSpec
from dsec.api.mistakes import Mistake
from dsec.api.names import dns_name

from dsec_components.args import BudgetArgs
from dsec_components.common import Component, merged_labels
from dsec_components.inputs import checked
from dsec_components.record import record

OF_PROJECTS = frozenset({BudgetScope.PROJECT, BudgetScope.TASK})
"""Scopes whose record lies in the namespace of the project; the others lie in the platform's."""


class Budget(Component):
    """A limit in money or hours, with levels and what is done at each."""

    budget_name: pulumi.Output[str]
    """Name of the Budget."""

    def __init__(
        self, name: str, args: BudgetArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create the record. Raises pulumi.InputPropertiesError with every mistake."""
        super().__init__(name, args, opts)
        project = args.get("project")

        def placed(spec: BudgetSpec) -> list[Mistake]:
            inside, path = spec.scope in OF_PROJECTS, "project"
            if inside and project is None:
                rule = "the namespace of a project"
                return [Mistake(path, None, rule, f"must be {rule} with scope {spec.scope}")]
            if not inside and project is not None:
                told = f"must be unset with scope {spec.scope}: no project sets such a budget"
                return [Mistake(path, str(project), "unset", told)]
            if spec.scope is not BudgetScope.PROJECT and spec.target is None:
                return [Mistake("spec.target", None, "a name", f"must name the {spec.scope}")]
            return []

        physical = args.get("budget_name") or dns_name(name)
        self._record = record(
            f"{name}-budget",
            "Budget",
            physical,
            checked(f"Budget '{name}'", BudgetSpec, args["spec"], check=placed),
            labels=merged_labels("dsec-budget", name, args.get("labels")),
            opts=self._child(),
            namespace=project or args.get("namespace") or "dsec-system",
        )
        self.budget_name = pulumi.Output.from_input(physical)
        self.register_outputs({"budget_name": self.budget_name})
