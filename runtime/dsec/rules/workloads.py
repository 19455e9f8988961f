"""Red lines for Kubernetes workloads in namespaces of projects: privilege and the host.

Sandboxes are no pods, so a pod in a project's namespace is somebody's own; it may run, but not with
the node in its hands. The platform's own namespaces are exempt: the agent needs the host.
"""

from collections.abc import Iterator
from typing import Any

from dsec.rules.model import Finding, Rule, Subject, each, get

_HOST = ("hostPID", "hostIPC", "hostNetwork")


def pod_spec(kind: str, spec: Any) -> tuple[Any, str]:
    """Return the pod spec inside the spec of a workload, and its path."""
    if kind == "Pod":
        return spec, "spec"
    if kind == "CronJob":
        template = get(get(get(spec, "jobTemplate"), "spec"), "template")
        return get(template, "spec"), "spec.jobTemplate.spec.template.spec"
    return get(get(spec, "template"), "spec"), "spec.template.spec"


def unprivileged(subject: Subject) -> Iterator[Finding]:
    """No pod of a project holds the node."""
    if subject.facts.namespace in subject.settings.platform_namespaces:
        return
    pod, path = pod_spec(subject.kind, subject.spec)
    for key in _HOST:
        if get(pod, key):
            yield _breach(subject, f"{path}.{key}", f"{key} shares the node's own")
    for kind in ("initContainers", "containers"):
        for at, container in each(pod, kind):
            context = get(container, "securityContext")
            below = f"{path}.{kind}[{at}].securityContext"
            if get(context, "privileged"):
                what = f"container {get(container, 'name')} is privileged"
                yield _breach(subject, f"{below}.privileged", what)
    for at, volume in each(pod, "volumes"):
        if get(volume, "hostPath") is not None:
            what = f"volume {get(volume, 'name')} is a path of the node"
            yield _breach(subject, f"{path}.volumes[{at}].hostPath", what)


def _breach(subject: Subject, path: str, what: str) -> Finding:
    message = f"The {subject} must {HOST.must}: {what} (rule {HOST.name})."
    return Finding(HOST.name, path, message, HOST.remedy)


HOST = Rule(
    "host",
    "leave the node alone",
    "A pod that holds the node holds every sandbox on it.",
    "Remove privileged, hostPath, hostPID, hostIPC and hostNetwork, or run it in the platform's "
    "namespace.",
    unprivileged,
)

WORKLOAD_KINDS = (
    "Pod",
    "Deployment",
    "DaemonSet",
    "StatefulSet",
    "ReplicaSet",
    "Job",
    "CronJob",
)
