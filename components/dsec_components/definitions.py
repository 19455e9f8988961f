"""The CustomResourceDefinitions, as a component of its own: records must come after all of them."""

from importlib import resources
from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_kubernetes as k8s
import yaml
from dsec.api.config import Deletion

from dsec_components.common import Component, merged_labels, meta


class DefinitionsArgs(TypedDict):
    """Inputs of Definitions."""

    deletion: NotRequired[Deletion]
    """protect (default) leaves the definitions, and so the records, behind at destroy."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Labels for every object. Update in place."""


class Definitions(Component):
    """The kinds that dsec adds to Kubernetes."""

    def __init__(
        self, name: str, args: DefinitionsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create one CustomResourceDefinition per record kind."""
        super().__init__(name, args, opts)
        # deleting a definition deletes every record of its kind, those of others too
        keep = args.get("deletion", Deletion.PROTECT) == Deletion.PROTECT
        manifests = packaged("crds")
        if not manifests:
            raise pulumi.RunError(
                "The installed dsec has no manifests in dsec/api/crds: install it again, "
                "or run `make generate` in a clone."
            )
        for manifest in manifests:
            plural = manifest["spec"]["names"]["plural"]
            k8s.apiextensions.v1.CustomResourceDefinition(
                f"{name}-{plural}",
                metadata=meta(
                    manifest["metadata"]["name"],
                    merged_labels("dsec-records", name, args.get("labels")),
                ),
                spec=manifest["spec"],
                opts=self._child(retain_on_delete=keep),
            )
        self.register_outputs({})


def packaged(folder: str) -> list[dict[str, Any]]:
    """Return the manifests that dsec ships in a folder of `dsec.api`, in name order."""
    found: list[dict[str, Any]] = []
    root = resources.files("dsec.api") / folder
    if root.is_dir():
        for entry in sorted(root.iterdir(), key=lambda one: one.name):
            if entry.name.endswith(".yaml"):
                found += [one for one in yaml.safe_load_all(entry.read_text()) if one]
    return found
