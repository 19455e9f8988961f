"""The DaemonSet that puts an agent on each node. Sandboxes outlive its pods."""

from typing import NotRequired

import pulumi
import pulumi_kubernetes as k8s

from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.pods import CONFIG_DIGEST, environment, resources
from dsec_components.servers import METRICS_PORT

TOKEN_AUDIENCE = "dsec"  # noqa: S105 - the audience of a token, not a token
TOKEN_SECONDS = 3600


class AgentsArgs(Placed):
    """Inputs of Agents."""

    image: pulumi.Input[str]
    """Image of the agent."""
    pull_policy: NotRequired[pulumi.Input[str]]
    """When the image is asked for at the registry."""
    cpu_milli: int
    """CPU request, in thousandths of a core."""
    memory_bytes: int
    """Memory request and limit, in bytes."""
    port: int
    """Port on the node, for gateways."""
    state_dir: str
    """Directory on the node for sandboxes and layers."""
    cgroup: str
    """Cgroup on the node, parent of all sandboxes."""
    node_selector: NotRequired[dict[str, str]]
    """Labels of nodes that get an agent."""
    max_unavailable: int
    """Agents replaced at once in a roll-out."""
    gateway_address: pulumi.Input[str]
    """Address of the gateway's Service: nodes have no cluster DNS."""
    registry: pulumi.Input[str]
    """host:port of the registry; empty: none."""
    plain_registry: bool
    """The registry is spoken to without TLS."""
    config_digest: pulumi.Input[str]
    """Pods roll when it changes."""
    await_ready: NotRequired[bool]
    """Wait until all pods are ready."""


class Agents(Component):
    """One privileged agent pod per node."""

    def __init__(
        self, name: str, args: AgentsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create the DaemonSet."""
        super().__init__(name, args, opts)
        labels = merged_labels("dsec-agent", name, args.get("labels"))
        selector = {"app.kubernetes.io/name": "dsec-agent"}
        annotations = {} if args.get("await_ready", True) else {"pulumi.com/skipAwait": "true"}
        state = args["state_dir"]
        mounts = [
            {"name": "settings", "mount_path": "/etc/dsec", "read_only": True},
            # mounts made here must reach the node, or a new agent pod could not find them again
            {"name": "state", "mount_path": state, "mount_propagation": "Bidirectional"},
            {"name": "cgroup", "mount_path": "/sys/fs/cgroup"},
            {"name": "dev", "mount_path": "/dev"},
            {"name": "modules", "mount_path": "/lib/modules", "read_only": True},
        ]
        self._daemons = k8s.apps.v1.DaemonSet(
            f"{name}-daemons",
            metadata=meta(
                "dsec-agent", labels, namespace=args["namespace"], annotations=annotations
            ),
            spec={
                "selector": {"match_labels": selector},
                "update_strategy": {
                    "type": "RollingUpdate",
                    "rolling_update": {"max_unavailable": args["max_unavailable"]},
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
                        "service_account_name": "dsec-agent",
                        "automount_service_account_token": False,
                        "enable_service_links": False,
                        "host_pid": True,
                        # gateways reach it at the node's address, also while pods roll
                        "host_network": True,
                        "dns_policy": "ClusterFirstWithHostNet",
                        "host_aliases": [
                            {
                                "ip": args["gateway_address"],
                                "hostnames": [_gateway_name(args)],
                            }
                        ],
                        "priority_class_name": "system-node-critical",
                        "termination_grace_period_seconds": 15,
                        "node_selector": args.get("node_selector") or {},
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [
                            {
                                "name": "agent",
                                "image": args["image"],
                                "image_pull_policy": args.get("pull_policy", "IfNotPresent"),
                                "command": ["python3", "-m", "dsec.agent"],
                                "env": [
                                    *environment(args["registry"], plain=args["plain_registry"]),
                                    *_agent_environment(args),
                                ],
                                "resources": resources(args["cpu_milli"], args["memory_bytes"]),
                                "security_context": {"privileged": True, "run_as_user": 0},
                                # its server wants a client certificate that the kubelet lacks
                                "liveness_probe": _listening(args["port"], failures=6),
                                "readiness_probe": _listening(args["port"], failures=2),
                                "startup_probe": _listening(args["port"], failures=60),
                                "volume_mounts": mounts,
                            }
                        ],
                        "volumes": [
                            _settings(),
                            _host("state", state, "DirectoryOrCreate"),
                            _host("cgroup", "/sys/fs/cgroup", "Directory"),
                            _host("dev", "/dev", "Directory"),
                            _host("modules", "/lib/modules", ""),
                        ],
                    },
                },
            },
            opts=self._child(),
        )
        self.register_outputs({})


def _gateway_name(args: AgentsArgs) -> pulumi.Output[str]:
    return pulumi.Output.concat("dsec-gateway.", args["namespace"], ".svc")


def _agent_environment(args: AgentsArgs) -> list[k8s.core.v1.EnvVarArgsDict]:
    """Return the settings of `dsec.agent.config`; $(NAME) is replaced by the kubelet."""
    values: dict[str, pulumi.Input[str]] = {
        "STATE_DIR": args["state_dir"],
        "CGROUP": args["cgroup"],
        "GATEWAY": pulumi.Output.concat("https://", _gateway_name(args)),
        "NODE_NAME": "$(NODE_NAME)",
        "CA": "/etc/dsec/secrets/ca/ca.crt",
        "TOKEN_FILE": "/etc/dsec/secrets/token/token",
        "LISTEN": f"$(NODE_IP):{args['port']}",
    }
    return [{"name": f"DSEC_AGENT_{key}", "value": value} for key, value in values.items()]


def _listening(port: int, *, failures: int) -> k8s.core.v1.ProbeArgsDict:
    return {
        "tcp_socket": {"port": port},
        "period_seconds": 5,
        "timeout_seconds": 4,
        "failure_threshold": failures,
    }


def _host(name: str, path: str, kind: str) -> k8s.core.v1.VolumeArgsDict:
    return {"name": name, "host_path": {"path": path, "type": kind}}


def _settings() -> k8s.core.v1.VolumeArgsDict:
    """Return /etc/dsec of an agent: no credential but a token that only dsec accepts."""
    return {
        "name": "settings",
        "projected": {
            "default_mode": 0o440,
            "sources": [
                {
                    "config_map": {
                        "name": "dsec-config",
                        "items": [{"key": "config.json", "path": "config.json"}],
                    }
                },
                {
                    "secret": {
                        "name": "dsec-gateway-tls",
                        "items": [{"key": "ca.crt", "path": "secrets/ca/ca.crt"}],
                    }
                },
                {
                    "service_account_token": {
                        "audience": TOKEN_AUDIENCE,
                        "expiration_seconds": TOKEN_SECONDS,
                        "path": "secrets/token/token",
                    }
                },
            ],
        },
    }
