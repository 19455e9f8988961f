"""Tenant: a team, the namespaces of its projects, its quota, and who may do what there."""

from collections.abc import Sequence

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.names import dns_name
from dsec.api.tenant import TenantSpec

from dsec_components.access import EDITOR, VIEWER
from dsec_components.args import TenantArgs
from dsec_components.common import Component, merged_labels, meta
from dsec_components.inputs import checked, has_outputs
from dsec_components.record import record


class Tenant(Component):
    """A team with quota, defaults and projects. Its label on a namespace is the controller's."""

    tenant_name: pulumi.Output[str]
    """Name of the Tenant."""
    projects: pulumi.Output[list[str]]
    """Namespaces of its projects."""

    def __init__(
        self, name: str, args: TenantArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create namespaces, bindings and the record.

        Raises pulumi.InputPropertiesError with every mistake.
        """
        super().__init__(name, args, opts)
        self._labels = merged_labels("dsec-tenant", name, args.get("labels"))
        spec = args.get("spec") or {}
        declared = spec.get("projects") or []
        if has_outputs(declared):
            # resources cannot hang on a value that a preview does not know
            raise pulumi.InputPropertyError(
                "spec.projects", "must be plain names: the namespaces made follow from them"
            )
        projects = [str(one) for one in declared]  # type: ignore[union-attr]
        data = checked(f"Tenant '{name}'", TenantSpec, spec)
        made: list[pulumi.Resource] = []
        for project in projects:
            if args.get("create_namespaces", True):
                made.append(self._namespace(project))
            for role, who in ((EDITOR, args.get("editors")), (VIEWER, args.get("viewers"))):
                if who:
                    self._binding(project, role, who, made)
        physical = args.get("tenant_name") or dns_name(name)
        self._record = record(
            f"{name}-tenant",
            "Tenant",
            physical,
            data,
            labels=self._labels,
            opts=self._child(depends_on=made),
        )
        self.tenant_name = pulumi.Output.from_input(physical)
        self.projects = pulumi.Output.from_input(projects)
        self.register_outputs({"tenant_name": self.tenant_name, "projects": self.projects})

    def _namespace(self, project: str) -> pulumi.Resource:
        # the project's own label is not set here: only the Tenant controller may
        return k8s.core.v1.Namespace(
            f"{self._name_prefix}-{project}",
            metadata=meta(project, self._labels),
            opts=self._child(),
        )

    def _binding(
        self, project: str, role: str, who: Sequence[str], made: list[pulumi.Resource]
    ) -> None:
        k8s.rbac.v1.RoleBinding(
            f"{self._name_prefix}-{project}-{role.removeprefix('dsec-')}s",
            metadata=meta(role, self._labels, namespace=project),
            role_ref={
                "api_group": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            subjects=[
                {
                    "kind": "Group" if one.startswith("group:") else "User",
                    "name": one.removeprefix("group:"),
                    "api_group": "rbac.authorization.k8s.io",
                }
                for one in who
            ],
            opts=self._child(depends_on=list(made)),
        )
