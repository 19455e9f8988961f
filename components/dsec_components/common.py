"""What every component shares: names, labels, options for children, and the one field manager."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import pulumi
from dsec.api.meta import GROUP
from pulumi_kubernetes.meta.v1 import ObjectMetaArgsDict

PACKAGE = "dsec"
FIELD_MANAGER = "dsec-stack"
"""Owner of the fields that stacks set; the runtime's own manager is `dsec`."""
STACK_LABEL = f"{GROUP}/stack"
"""Which stack declared an object: what tells own experiments from foreign ones."""

SECRET_INPUTS = frozenset({"access_key", "secret_key", "kubeconfig"})

Labels = Mapping[str, pulumi.Input[str]]


class Placed(TypedDict):
    """Inputs that every part of the control plane takes."""

    namespace: pulumi.Input[str]
    """Namespace of the control plane."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels for every object. Update in place."""


def token(component: str) -> str:
    """Return the type token of a component of this package."""
    return f"{PACKAGE}:index:{component}"


def stack_label() -> str:
    """Return `<project>.<stack>` as a label value (63 characters, RFC 1123 letters)."""
    raw = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{pulumi.get_project()}.{pulumi.get_stack()}")
    if len(raw) <= 63:  # noqa: PLR2004 - the limit of Kubernetes for label values
        return raw.strip("-_.")
    digest = hashlib.sha256(raw.encode()).hexdigest()[:8]
    return f"{raw[:54].rstrip('-_.')}-{digest}"


def merged_labels(
    component: str, instance: str, extra: Labels | None = None
) -> dict[str, pulumi.Input[str]]:
    """Return the labels of an object: the user's, the recommended ones and the stack's."""
    return {
        **(extra or {}),
        "app.kubernetes.io/name": component,
        "app.kubernetes.io/instance": instance,
        "app.kubernetes.io/part-of": "dsec",
        "app.kubernetes.io/managed-by": "pulumi",
        STACK_LABEL: stack_label(),
    }


def meta(
    name: pulumi.Input[str],
    labels: Labels,
    *,
    namespace: pulumi.Input[str] | None = None,
    annotations: Mapping[str, pulumi.Input[str]] | None = None,
) -> ObjectMetaArgsDict:
    """Return object metadata with the field manager of stacks."""
    data: ObjectMetaArgsDict = {
        "name": name,
        "labels": labels,
        "annotations": {"pulumi.com/patchFieldManager": FIELD_MANAGER, **(annotations or {})},
    }
    return data if namespace is None else {**data, "namespace": namespace}


def stored(value: Any, key: str = "") -> Any:
    """Return inputs as they may be kept: credentials are secret also when given plain."""
    if isinstance(value, Mapping):
        return {name: stored(one, str(name)) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [stored(one) for one in value]
    return pulumi.Output.secret(value) if key in SECRET_INPUTS else value


class Component(pulumi.ComponentResource):
    """A component of this package: its type token follows from the class name."""

    def __init__(
        self,
        name: str,
        args: Mapping[str, Any],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Register with its inputs, so that previews and policies see them.

        Raises pulumi.RunError when no Kubernetes provider was handed over: a default provider
        follows whatever context kubectl happens to point at.
        """
        super().__init__(token(type(self).__name__), name, stored(args), opts)
        self._name_prefix = name
        if "kubernetes" not in self._providers:
            raise pulumi.RunError(
                f"{type(self).__name__} '{name}' needs an explicit Kubernetes provider: create a "
                "kubernetes.Provider with kubeconfig and cluster_identifier and pass it as "
                "opts=ResourceOptions(provider=...)."
            )

    def _child(self, **options: Any) -> pulumi.ResourceOptions:
        """Return options of a child; its provider is inherited from this component."""
        return pulumi.ResourceOptions(parent=self, **options)
