"""The DaemonSet that puts an agent on each node. Sandboxes outlive its pods."""

from collections.abc import Mapping
from typing import Any, NotRequired

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.meta import GROUP

from dsec_components._generated import SandboxNodePoolSpec
from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.inputs import has_outputs
from dsec_components.pods import CONFIG_DIGEST, environment, resources

TOKEN_AUDIENCE = "dsec"  # noqa: S105 - the audience of a token, not a token
TOKEN_SECONDS = 3600
METRICS_PORT = 7444
"""On the node, which may have a Prometheus of its own at the usual 9090."""
AGENT_SETTINGS = {
    "heartbeat_seconds": "SANDBOX_HEARTBEAT_SECONDS",
    "max_sandboxes": "MAX_SANDBOXES",
    "reserved_cpu_milli": "RESERVED_CPU_MILLI",
    "reserved_memory_bytes": "RESERVED_MEMORY_BYTES",
    "start_deadline_seconds": "START_DEADLINE_SECONDS",
}
"""Each field of a pool's AgentSettings, and the agent's own setting that it becomes."""


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
    pools: NotRequired[dict[str, SandboxNodePoolSpec]]
    """Node pools by name; their nodes carry their labels."""
    max_unavailable: int
    """Agents replaced at once in a roll-out."""
    gateway_address: pulumi.Input[str]
    """Address of the gateway's Service: nodes have no cluster DNS."""
    registry: pulumi.Input[str]
    """host:port of the registry; empty: none."""
    plain_registry: bool
    """The registry is spoken to without TLS."""
    log_level: pulumi.Input[str]
    """Least level of log lines."""
    config_digest: pulumi.Input[str]
    """Pods roll when it changes."""
    await_ready: NotRequired[bool]
    """Wait until all pods are ready."""


class Agents(Component):
    """One privileged agent pod per node; one DaemonSet per pool, so that nodes know theirs."""

    def __init__(
        self, name: str, args: AgentsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create the DaemonSets. Raises pulumi.InputPropertyError where pools overlap."""
        super().__init__(name, args, opts)
        pools = args.get("pools") or {}
        _refuse_overlap(pools)
        for pool, spec in (pools or {"": SandboxNodePoolSpec()}).items():
            # one pool or none: the DaemonSet keeps the plain name
            suffix = f"-{pool}" if len(pools) > 1 else ""
            self._daemons(suffix, pool, spec, args)
        self.register_outputs({})

    def _daemons(self, suffix: str, pool: str, spec: SandboxNodePoolSpec, args: AgentsArgs) -> None:
        labels = merged_labels("dsec-agent", f"{self._name_prefix}{suffix}", args.get("labels"))
        annotations = {} if args.get("await_ready", True) else {"pulumi.com/skipAwait": "true"}
        pod_labels = {**labels, f"{GROUP}/pool": pool} if pool else labels
        selector = {"app.kubernetes.io/instance": f"{self._name_prefix}{suffix}"}
        k8s.apps.v1.DaemonSet(
            f"{self._name_prefix}{suffix}-daemons",
            metadata=meta(
                f"dsec-agent{suffix}", labels, namespace=args["namespace"], annotations=annotations
            ),
            spec={
                "selector": {"match_labels": selector},
                "update_strategy": {
                    "type": "RollingUpdate",
                    "rolling_update": {"max_unavailable": args["max_unavailable"]},
                },
                "template": {
                    "metadata": {
                        "labels": pod_labels,
                        "annotations": {
                            CONFIG_DIGEST: args["config_digest"],
                            "prometheus.io/scrape": "true",
                            "prometheus.io/port": str(METRICS_PORT),
                        },
                    },
                    "spec": _pod(pool, spec, args),
                },
            },
            opts=self._child(),
        )


def _refuse_overlap(pools: Mapping[str, SandboxNodePoolSpec]) -> None:
    """Two agents on one node would fight for its port: selectors must tell pools apart."""
    seen: dict[tuple[tuple[str, str], ...], str] = {}
    for pool, spec in pools.items():
        given: Any = spec.get("node_selector") or {}
        if has_outputs(given):
            continue
        key = tuple(sorted(given.items()))
        everywhere = not key and len(pools) > 1
        if key in seen or everywhere:
            other = seen.get(key) or next(one for one in pools if one != pool)
            raise pulumi.InputPropertyError(
                f"pools.{pool}.nodeSelector",
                f"{dict(given)} also selects nodes of pool {other}; each node belongs to one pool",
            )
        seen[key] = pool


def _pod(pool: str, spec: SandboxNodePoolSpec, args: AgentsArgs) -> k8s.core.v1.PodSpecArgsDict:
    """Return what runs on a node of a pool."""
    state = args["state_dir"]
    mounts = [
        {"name": "settings", "mount_path": "/etc/dsec", "read_only": True},
        # mounts made here must reach the node, or a new agent pod could not find them again
        {"name": "state", "mount_path": state, "mount_propagation": "Bidirectional"},
        {"name": "cgroup", "mount_path": "/sys/fs/cgroup"},
        {"name": "dev", "mount_path": "/dev"},
        {"name": "modules", "mount_path": "/lib/modules", "read_only": True},
    ]
    container = {
        "name": "agent",
        "image": args["image"],
        "image_pull_policy": args.get("pull_policy", "IfNotPresent"),
        "command": ["python3", "-m", "dsec.agent"],
        "env": [
            *environment(args["registry"], plain=args["plain_registry"]),
            *_agent_environment(pool, spec, args),
        ],
        "resources": resources(args["cpu_milli"], args["memory_bytes"]),
        "security_context": {"privileged": True, "run_as_user": 0},
        # its server wants a client certificate that the kubelet lacks
        "liveness_probe": _listening(args["port"], failures=6),
        "readiness_probe": _listening(args["port"], failures=2),
        "startup_probe": _listening(args["port"], failures=60),
        "volume_mounts": mounts,
    }
    return {
        "service_account_name": "dsec-agent",
        "automount_service_account_token": False,
        "enable_service_links": False,
        "host_pid": True,
        # gateways reach it at the node's address, also while pods roll
        "host_network": True,
        "dns_policy": "ClusterFirstWithHostNet",
        "host_aliases": [{"ip": args["gateway_address"], "hostnames": [_gateway_name(args)]}],
        "priority_class_name": "system-node-critical",
        "termination_grace_period_seconds": 15,
        "node_selector": spec.get("node_selector") or args.get("node_selector") or {},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            _settings(),
            _host("state", state, "DirectoryOrCreate"),
            _host("cgroup", "/sys/fs/cgroup", "Directory"),
            _host("dev", "/dev", "Directory"),
            _host("modules", "/lib/modules", ""),
        ],
    }


def _gateway_name(args: AgentsArgs) -> pulumi.Output[str]:
    return pulumi.Output.concat("dsec-gateway.", args["namespace"], ".svc")


def _agent_environment(
    pool: str, spec: SandboxNodePoolSpec, args: AgentsArgs
) -> list[k8s.core.v1.EnvVarArgsDict]:
    """Return the settings of `dsec.agent.config`; $(NAME) is replaced by the kubelet."""
    values: dict[str, pulumi.Input[str]] = {
        "STATE_DIR": args["state_dir"],
        "CGROUP": args["cgroup"],
        "GATEWAY": pulumi.Output.concat("https://", _gateway_name(args)),
        "NODE_NAME": "$(NODE_NAME)",
        "CA": "/etc/dsec/secrets/ca/ca.crt",
        "TOKEN_FILE": "/etc/dsec/secrets/token/token",
        "LISTEN": f"$(NODE_IP):{args['port']}",
        "METRICS_LISTEN": f"$(NODE_IP):{METRICS_PORT}",
        "LOG_LEVEL": args["log_level"],
        "POOL": pool,
        "LABELS": pulumi.Output.from_input(spec.get("labels") or {}).apply(
            lambda known: ",".join(f"{key}={value}" for key, value in sorted(known.items()))
        ),
    }
    settings: Any = spec.get("agent") or {}
    for field, key in AGENT_SETTINGS.items():
        # what the pool leaves out is the agent's own default; Pulumi's numbers may be floats
        if (given := settings.get(field)) is not None:
            values[key] = pulumi.Output.from_input(given).apply(lambda known: str(int(known)))
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
