"""A small Prometheus of the platform's own: elastic roles name its metrics, nothing depends on it.

It keeps what it scrapes in the pod: after a restart counts hold until there are samples again.
"""

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from dsec_components.agents import METRICS_PORT as AGENT_METRICS_PORT
from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.network import addresses, deny_all_but, names_of_hosts, pods, port
from dsec_components.pods import CONFIG_DIGEST, PLAIN_SECURITY, RESTRICTED, probe, resources
from dsec_components.servers import METRICS_PORT, PROMETHEUS_PORT
from dsec_components.settings import digest_of

PART = "prometheus"
PHYSICAL = f"dsec-{PART}"
PARTS = {"gateway": METRICS_PORT, "controller": METRICS_PORT, "agent": AGENT_METRICS_PORT}
"""What is scraped, and the port of its metrics."""
UNAWAITED = {"pulumi.com/skipAwait": "true"}
SAMPLE_LIMIT = 50_000
"""Series of one pod; more would be a mistake that must not fill the server."""


class PrometheusServerArgs(Placed):
    """Inputs of PrometheusServer."""

    image: pulumi.Input[str]
    """Image with /bin/prometheus."""
    pull_policy: pulumi.Input[str]
    """When the image is asked for at the registry."""
    scrape_seconds: int
    """Time from one scrape of a pod to the next."""
    retention_hours: int
    """How long samples are kept."""
    disk_bytes: int
    """Room for samples, in bytes."""
    cpu_milli: int
    """CPU request, in thousandths of a core."""
    memory_bytes: int
    """Memory request and limit, in bytes."""
    cluster_networks: list[str]
    """CIDRs of nodes, for the network policy."""
    await_ready: bool
    """Wait until the pod is ready."""


class PrometheusServer(Component):
    """Deployment, Service, the names of what it scrapes, and its network policy."""

    url: pulumi.Output[str]
    """Where the controller asks."""

    def __init__(
        self, name: str, args: PrometheusServerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create one server; it has no right in Kubernetes."""
        super().__init__(name, args, opts)
        self._namespace = args["namespace"]
        self._labels = merged_labels(PHYSICAL, name, args.get("labels"))
        self._selector = {"app.kubernetes.io/name": PHYSICAL}
        text = pulumi.Output.json_dumps(self._scraping(args), sort_keys=True, indent=1)
        config = k8s.core.v1.ConfigMap(
            f"{name}-config",
            metadata=self._meta(),
            data={"prometheus.yml": text},
            opts=self._child(),
        )
        self._names()
        self._deployment(args, text, [config, self._policy(args["cluster_networks"])])
        k8s.core.v1.Service(
            f"{name}-service",
            # whoever asks copes without it: nothing waits until it answers
            metadata=self._meta(UNAWAITED),
            spec={
                "type": "ClusterIP",
                "selector": self._selector,
                "ports": [
                    {
                        "name": "http",
                        "port": PROMETHEUS_PORT,
                        "target_port": "http",
                        "protocol": "TCP",
                    }
                ],
            },
            opts=self._child(),
        )
        self.url = address(args["namespace"])
        self.register_outputs({"url": self.url})

    def _meta(self, annotations: Mapping[str, str] | None = None) -> k8s.meta.v1.ObjectMetaArgsDict:
        return meta(PHYSICAL, self._labels, namespace=self._namespace, annotations=annotations)

    def _scraping(self, args: PrometheusServerArgs) -> dict[str, Any]:
        """Return prometheus.yml: every ready pod of each part, by the name of its Service.

        Names are enough, so that the server needs no right in Kubernetes at all.
        """
        return {
            "global": {"scrape_interval": f"{args['scrape_seconds']}s", "scrape_timeout": "5s"},
            "scrape_configs": [
                {
                    "job_name": f"dsec-{part}",
                    "sample_limit": SAMPLE_LIMIT,
                    "dns_sd_configs": [
                        {
                            "names": [
                                pulumi.Output.concat(_scraped(part), ".", args["namespace"], ".svc")
                            ],
                            "type": "A",
                            "port": number,
                            "refresh_interval": "10s",
                        }
                    ],
                }
                for part, number in PARTS.items()
            ],
        }

    def _names(self) -> None:
        """Make a name for the pods of each part: a Service without an address of its own."""
        for part, number in PARTS.items():
            k8s.core.v1.Service(
                f"{self._name_prefix}-{part}",
                metadata=meta(
                    _scraped(part),
                    self._labels,
                    namespace=self._namespace,
                    annotations=UNAWAITED,
                ),
                spec={
                    "type": "ClusterIP",
                    "cluster_ip": "None",
                    "selector": {"app.kubernetes.io/name": f"dsec-{part}"},
                    "ports": [
                        {
                            "name": "metrics",
                            "port": number,
                            "target_port": number,
                            "protocol": "TCP",
                        }
                    ],
                },
                opts=self._child(),
            )

    def _policy(self, cluster_networks: list[str]) -> pulumi.Resource:
        networks = addresses(cluster_networks)
        scraped = [pods("gateway"), pods("controller")]
        return k8s.networking.v1.NetworkPolicy(
            f"{self._name_prefix}-policy",
            metadata=self._meta(),
            spec=deny_all_but(
                pods(PART)["pod_selector"],
                ingress=[
                    {"from": [pods("controller")], "ports": [port(PROMETHEUS_PORT)]},
                    # the kubelet's probes come from the node
                    {"from": networks, "ports": [port(PROMETHEUS_PORT)]},
                ],
                egress=[
                    names_of_hosts(),
                    {"to": scraped, "ports": [port(METRICS_PORT)]},
                    # agents are at the addresses of their nodes
                    {"to": networks},
                ],
            ),
            opts=self._child(),
        )

    def _deployment(
        self, args: PrometheusServerArgs, text: pulumi.Output[str], before: list[pulumi.Resource]
    ) -> None:
        room = int(args["disk_bytes"])
        container: k8s.core.v1.ContainerArgsDict = {
            "name": PART,
            "image": args["image"],
            "image_pull_policy": args["pull_policy"],
            "command": ["/bin/prometheus"],
            "args": [
                "--config.file=/etc/prometheus/prometheus.yml",
                "--storage.tsdb.path=/data",
                f"--storage.tsdb.retention.time={args['retention_hours']}h",
                # its log of the newest samples comes on top
                f"--storage.tsdb.retention.size={room // 2}B",
                f"--web.listen-address=:{PROMETHEUS_PORT}",
            ],
            "ports": [{"name": "http", "container_port": PROMETHEUS_PORT, "protocol": "TCP"}],
            "liveness_probe": probe("/-/healthy", "http", "HTTP", failures=6),
            "readiness_probe": probe("/-/ready", "http", "HTTP", failures=2),
            "startup_probe": probe("/-/ready", "http", "HTTP", failures=60),
            "resources": resources(args["cpu_milli"], args["memory_bytes"]),
            "security_context": RESTRICTED,
            "volume_mounts": [
                {"name": "config", "mount_path": "/etc/prometheus", "read_only": True},
                {"name": "data", "mount_path": "/data"},
            ],
        }
        annotations = {} if args["await_ready"] else UNAWAITED
        k8s.apps.v1.Deployment(
            f"{self._name_prefix}-deployment",
            metadata=self._meta(annotations),
            spec={
                "replicas": 1,
                "selector": {"match_labels": self._selector},
                # what it knows is in the pod: a second one beside it would know nothing
                "strategy": {"type": "Recreate"},
                "template": {
                    "metadata": {
                        "labels": self._labels,
                        "annotations": {CONFIG_DIGEST: text.apply(digest_of)},
                    },
                    "spec": {
                        "automount_service_account_token": False,
                        "enable_service_links": False,
                        "security_context": PLAIN_SECURITY,
                        "termination_grace_period_seconds": 15,
                        "containers": [container],
                        "volumes": [
                            {"name": "config", "config_map": {"name": PHYSICAL}},
                            {"name": "data", "empty_dir": {"size_limit": str(room)}},
                        ],
                    },
                },
            },
            opts=self._child(depends_on=before),
        )


def address(namespace: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the URL of a namespace's server."""
    return pulumi.Output.concat(f"http://{PHYSICAL}.", namespace, f".svc:{PROMETHEUS_PORT}")


def _scraped(part: str) -> str:
    return f"dsec-{part}-metrics"
