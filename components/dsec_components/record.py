"""A dsec record as a resource: only what the stack declares is sent, never status or overrides."""

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.meta import API_VERSION

from dsec_components.common import Labels, meta


def record(
    name: str,
    kind: str,
    physical: str,
    spec: pulumi.Input[dict[str, Any]],
    *,
    labels: Labels,
    opts: pulumi.ResourceOptions,
    namespace: pulumi.Input[str] | None = None,
    annotations: Mapping[str, pulumi.Input[str]] | None = None,
) -> k8s.apiextensions.CustomResource:
    """Declare one record of group dsec.dev."""
    return k8s.apiextensions.CustomResource(
        name,
        api_version=API_VERSION,
        kind=kind,
        metadata=meta(physical, labels, namespace=namespace, annotations=annotations),
        spec=spec,
        opts=opts,
    )
