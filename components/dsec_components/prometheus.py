"""A small Prometheus of the platform's own: elastic roles name its metrics, nothing depends on it.

It keeps what it scrapes in the pod: after a restart counts hold until there are samples again.
"""

from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.network import addresses, deny_all_but, names_of_hosts, pods, port
from dsec_components.pods import CONFIG_DIGEST, PLAIN_SECURITY, RESTRICTED, probe, resources
from dsec_components.servers import METRICS_PORT, PROMETHEUS_PORT
from dsec_components.settings import digest_of

PART = "prometheus"
PHYSICAL = f"dsec-{PART}"
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
    """CIDRs of nodes and API server, for the network policy."""
    await_ready: bool
    """Wait until the pod is ready."""


class PrometheusServer(Component):
    """Deployment, Service, what it scrapes, the right to see pods of its namespace, its policy."""

    url: pulumi.Output[str]
    """Where the controller asks."""

    def __init__(
        self, name: str, args: PrometheusServerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create one server. Its rights end at the names and addresses of the platform's pods."""
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
        before = [config, *self._rights(), self._policy(args["cluster_networks"])]
        self._deployment(args, text, before)
        k8s.core.v1.Service(
            f"{name}-service",
            # whoever asks copes without it: nothing waits until it answers
            metadata=self._meta({"pulumi.com/skipAwait": "true"}),
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

    def _meta(self, annotations: dict[str, str] | None = None) -> k8s.meta.v1.ObjectMetaArgsDict:
        return meta(
            PHYSICAL, self._labels, namespace=self._namespace, annotations=dict(annotations or {})
        )

    def _scraping(self, args: PrometheusServerArgs) -> dict[str, Any]:
        """Return prometheus.yml: every running pod of the namespace that says it has metrics."""
        label = "__meta_kubernetes_pod_"
        return {
            "global": {"scrape_interval": f"{args['scrape_seconds']}s", "scrape_timeout": "5s"},
            "scrape_configs": [
                {
                    "job_name": "dsec",
                    "sample_limit": SAMPLE_LIMIT,
                    "kubernetes_sd_configs": [
                        {"role": "pod", "namespaces": {"names": [args["namespace"]]}}
                    ],
                    "relabel_configs": [
                        {
                            "source_labels": [f"{label}annotation_prometheus_io_scrape"],
                            "regex": "true",
                            "action": "keep",
                        },
                        {
                            "source_labels": [f"{label}phase"],
                            "regex": "Running",
                            "action": "keep",
                        },
                        {
                            "source_labels": [
                                f"{label}ip",
                                f"{label}annotation_prometheus_io_port",
                            ],
                            "separator": ":",
                            "target_label": "__address__",
                        },
                        {
                            "source_labels": [f"{label}label_app_kubernetes_io_name"],
                            "target_label": "part",
                        },
                        {"source_labels": [f"{label}name"], "target_label": "pod"},
                        {"source_labels": [f"{label}node_name"], "target_label": "node"},
                    ],
                }
            ],
        }

    def _rights(self) -> list[pulumi.Resource]:
        account = k8s.core.v1.ServiceAccount(
            f"{self._name_prefix}-account",
            metadata=self._meta(),
            automount_service_account_token=False,
            opts=self._child(),
        )
        role = k8s.rbac.v1.Role(
            f"{self._name_prefix}-role",
            metadata=self._meta(),
            rules=[{"api_groups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
            opts=self._child(),
        )
        binding = k8s.rbac.v1.RoleBinding(
            f"{self._name_prefix}-binding",
            metadata=self._meta(),
            role_ref={
                "api_group": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": PHYSICAL,
            },
            subjects=[{"kind": "ServiceAccount", "name": PHYSICAL, "namespace": self._namespace}],
            opts=self._child(depends_on=[role]),
        )
        return [account, binding]

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
                    # API server, and agents at the addresses of their nodes
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
        annotations = {} if args["await_ready"] else {"pulumi.com/skipAwait": "true"}
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
                        "service_account_name": PHYSICAL,
                        "automount_service_account_token": True,
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
