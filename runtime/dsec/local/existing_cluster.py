"""An existing Kubernetes instead of the local one: look at it, change nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsec.local.processes import LocalError

OLDEST_MINOR = 30
"""ValidatingAdmissionPolicy, on which admission relies, is stable since Kubernetes 1.30."""


def check(kubeconfig: Path | None, context: str) -> dict[str, Any]:
    """Return server, version, nodes, and which dsec records it knows.

    Raises LocalError when the file or context cannot be used or the server does not answer.
    """
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        make: Callable[..., Any] = config.new_client_from_config  # states no types
        api = make(str(kubeconfig) if kubeconfig else None, context or None)
    except config.ConfigException as e:
        where = kubeconfig or "the default kubeconfig"
        raise LocalError(f"kubeconfig: {where}, context {context or '(current)'}: {e}") from e
    try:
        version = client.VersionApi(api).get_code(_request_timeout=10)
        nodes: list[Any] = client.CoreV1Api(api).list_node(_request_timeout=10).items
        groups = client.ApisApi(api).get_api_versions(_request_timeout=10).groups
    except (ApiException, HTTPError, OSError) as e:
        raise LocalError(f"{api.configuration.host} does not answer: {e}") from e
    minor = int("".join(c for c in version.minor if c.isdigit()) or 0)
    ready = [node.metadata.name for node in nodes if _is_ready(node)]
    return {
        "server": api.configuration.host,
        "version": version.git_version,
        "newEnough": minor >= OLDEST_MINOR,
        "nodes": len(nodes),
        "nodesReady": len(ready),
        "dsec": any(group.name == "dsec.dev" for group in groups),
        "ready": bool(ready) and minor >= OLDEST_MINOR,
    }


def _is_ready(node: Any) -> bool:
    conditions = node.status.conditions or []
    return any(c.type == "Ready" and c.status == "True" for c in conditions)
