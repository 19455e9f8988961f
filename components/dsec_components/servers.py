"""The gateway and the controller: Deployments, Services and disruption budgets."""

from typing import NotRequired

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.config import Exposure

from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.pods import (
    CONFIG_DIGEST,
    PLAIN_SECURITY,
    RESTRICTED,
    environment,
    probe,
    resources,
    settings_volume,
)

API_PORT = 8443
WEBHOOK_PORT = 9443
METRICS_PORT = 9090
INTERNAL_PORT = 8081
PROMETHEUS_PORT = 9090


class ServerArgs(Placed):
    """Inputs of Gateways and of Controllers."""

    image: pulumi.Input[str]
    """Image."""
    pull_policy: NotRequired[pulumi.Input[str]]
    """When the image is asked for at the registry."""
    replicas: int
    """Pods."""
    cpu_milli: int
    """CPU request, in thousandths of a core."""
    memory_bytes: int
    """Memory request and limit, in bytes."""
    registry: pulumi.Input[str]
    """host:port of the registry; empty: none."""
    plain_registry: bool
    """The registry is spoken to without TLS."""
    config_digest: pulumi.Input[str]
    """Pods roll when it changes."""
    object_store_secret: str
    """Name of the Secret with the object store's keys."""
    exposure: NotRequired[Exposure]
    """Type of the gateway's Service."""
    node_port: NotRequired[int]
    """Port on each node, with NodePort."""
    await_ready: NotRequired[bool]
    """Wait until all pods are ready."""


class Server(Component):
    """What gateways and controllers have in common."""

    _part = ""
    _ports: dict[str, int]
    _scheme = "HTTPS"
    _probe_port = "https"

    def _deployment(self, args: ServerArgs) -> k8s.apps.v1.Deployment:
        part = self._part
        labels = merged_labels(f"dsec-{part}", self._name_prefix, args.get("labels"))
        selector = {"app.kubernetes.io/name": f"dsec-{part}"}
        annotations = {} if args.get("await_ready", True) else {"pulumi.com/skipAwait": "true"}
        k8s.policy.v1.PodDisruptionBudget(
            f"{self._name_prefix}-budget",
            metadata=meta(f"dsec-{part}", labels, namespace=args["namespace"]),
            # one at a time, also where there is only one: a drain must not hang for ever
            spec={"max_unavailable": 1, "selector": {"match_labels": selector}},
            opts=self._child(),
        )
        container: k8s.core.v1.ContainerArgsDict = {
            "name": part,
            "image": args["image"],
            "image_pull_policy": args.get("pull_policy", "IfNotPresent"),
            "command": [
                "python3",
                "-m",
                f"dsec.{'gateway' if part == 'gateway' else 'controllers'}",
            ],
            "env": environment(args["registry"], plain=args["plain_registry"]),
            "ports": [
                {"name": key, "container_port": port, "protocol": "TCP"}
                for key, port in self._ports.items()
            ],
            "liveness_probe": probe("/healthz", self._probe_port, self._scheme, failures=6),
            "readiness_probe": probe("/readyz", self._probe_port, self._scheme, failures=2),
            # a first start on a busy machine may take a minute; then liveness takes over
            "startup_probe": probe("/healthz", self._probe_port, self._scheme, failures=60),
            "resources": resources(args["cpu_milli"], args["memory_bytes"]),
            "security_context": RESTRICTED,
            "volume_mounts": [
                {"name": "settings", "mount_path": "/etc/dsec", "read_only": True},
                {"name": "tmp", "mount_path": "/tmp"},  # noqa: S108 - the pod's own, empty
            ],
        }
        return k8s.apps.v1.Deployment(
            f"{self._name_prefix}-deployment",
            metadata=meta(
                f"dsec-{part}", labels, namespace=args["namespace"], annotations=annotations
            ),
            spec={
                "replicas": args["replicas"],
                "selector": {"match_labels": selector},
                # the new pod is ready before the old one goes
                "strategy": {
                    "type": "RollingUpdate",
                    "rolling_update": {"max_surge": 1, "max_unavailable": 0},
                },
                "template": {
                    "metadata": {
                        "labels": labels,
                        "annotations": {
                            CONFIG_DIGEST: args["config_digest"],
                            "prometheus.io/scrape": "true",
                            "prometheus.io/port": str(METRICS_PORT),
                        },
                    },
                    "spec": {
                        "service_account_name": f"dsec-{part}",
                        "automount_service_account_token": True,
                        "enable_service_links": False,
                        "priority_class_name": "system-cluster-critical",
                        "security_context": PLAIN_SECURITY,
                        "termination_grace_period_seconds": 15,
                        "topology_spread_constraints": [
                            {
                                "max_skew": 1,
                                "topology_key": "kubernetes.io/hostname",
                                "when_unsatisfiable": "ScheduleAnyway",
                                "label_selector": {"match_labels": selector},
                            }
                        ],
                        "containers": [container],
                        "volumes": [
                            settings_volume(self._secrets(args)),
                            {"name": "tmp", "empty_dir": {"size_limit": "256Mi"}},
                        ],
                    },
                },
            },
            opts=self._child(),
        )

    def _secrets(self, args: ServerArgs) -> dict[str, str]:
        """Return which Secret is mounted under which folder of /etc/dsec/secrets."""
        return {
            "internal": "dsec-internal",
            "tls": f"dsec-{self._part}-tls",
            "s3": args["object_store_secret"],
        }


class Gateways(Server):
    """The stateless front: HTTP API, admission webhook, proxy to agents."""

    _part = "gateway"
    _ports = {"https": API_PORT, "webhook": WEBHOOK_PORT, "metrics": METRICS_PORT}

    service_address: pulumi.Output[str]
    """Address of the gateway's Service inside the cluster."""

    def __init__(
        self, name: str, args: ServerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create Deployment, budget and the two Services."""
        super().__init__(name, args, opts)
        labels = merged_labels("dsec-gateway", name, args.get("labels"))
        selector = {"app.kubernetes.io/name": "dsec-gateway"}
        port: k8s.core.v1.ServicePortArgsDict = {
            "name": "https",
            "port": 443,
            "target_port": "https",
            "protocol": "TCP",
            **({"node_port": args["node_port"]} if args.get("node_port") else {}),
        }
        self._service = k8s.core.v1.Service(
            f"{name}-service",
            metadata=meta(
                "dsec-gateway",
                labels,
                namespace=args["namespace"],
                # the agents need its address before any gateway is ready
                annotations={"pulumi.com/skipAwait": "true"},
            ),
            spec={
                "type": str(args.get("exposure", Exposure.CLUSTER_IP)),
                "selector": selector,
                "ports": [port],
            },
            opts=self._child(),
        )
        webhook = k8s.core.v1.Service(
            f"{name}-webhook",
            metadata=meta(
                "dsec-webhook",
                labels,
                namespace=args["namespace"],
                annotations={"pulumi.com/skipAwait": "true"},
            ),
            spec={
                "type": "ClusterIP",
                "selector": selector,
                "ports": [
                    {"name": "https", "port": 443, "target_port": "webhook", "protocol": "TCP"}
                ],
            },
            opts=self._child(),
        )
        self._deployed = self._deployment(args)
        self._parts = (webhook, self._deployed)
        self.service_address = self._service.spec.apply(
            lambda spec: (spec.cluster_ip or "") if spec else ""
        )
        self.register_outputs({"service_address": self.service_address})

    def _secrets(self, args: ServerArgs) -> dict[str, str]:
        return {
            **super()._secrets(args),
            # the gateway signs the certificates of agents
            "ca": "dsec-ca",
            "webhook": "dsec-webhook-tls",
            "api-keys": "dsec-api-keys",
            # and hands out the keys of tenants' snapshots
            "snapshots": "dsec-snapshot-keys",
        }


class Controllers(Server):
    """The reconcilers and placement; one of the pods leads."""

    _part = "controller"
    _ports = {"internal": INTERNAL_PORT, "metrics": METRICS_PORT}
    _scheme = "HTTP"
    _probe_port = "internal"

    def __init__(
        self, name: str, args: ServerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create Deployment and budget; gateways find the leader through its Lease."""
        super().__init__(name, args, opts)
        self._deployed = self._deployment(args)
        self.register_outputs({})

    def _secrets(self, args: ServerArgs) -> dict[str, str]:
        return {**super()._secrets(args), "ca": "dsec-ca"}
