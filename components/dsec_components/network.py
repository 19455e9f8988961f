"""Network policies of the control plane: everything is closed but what is listed here."""

from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.servers import API_PORT, INTERNAL_PORT, METRICS_PORT, WEBHOOK_PORT


class NetworkRulesArgs(Placed):
    """Inputs of NetworkRules."""

    cluster_networks: list[str]
    """CIDRs of nodes, API server and object store."""


class NetworkRules(Component):
    """Deny-all, and the few flows that the control plane has."""

    def __init__(
        self, name: str, args: NetworkRulesArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create one policy that closes the namespace and one per Deployment that opens it."""
        super().__init__(name, args, opts)
        self._namespace = args["namespace"]
        self._labels = merged_labels("dsec-network", name, args.get("labels"))
        everyone = {"ip_block": {"cidr": "0.0.0.0/0"}}
        networks = [{"ip_block": {"cidr": one}} for one in args["cluster_networks"]]
        names = {"ports": [_port(53, "UDP"), _port(53)]}
        # API server, agents and object store listen on ports of their owners' choice
        platform = {"to": networks}
        gateway, controller = _pods("gateway"), _pods("controller")
        self._policy("deny-all", {"pod_selector": {}, "policy_types": ["Ingress", "Egress"]})
        self._policy(
            "gateway",
            {
                "pod_selector": gateway["pod_selector"],
                "policy_types": ["Ingress", "Egress"],
                "ingress": [
                    # the API is for everyone; who may do what is decided by its own checks
                    {"from": [everyone], "ports": [_port(API_PORT), _port(WEBHOOK_PORT)]},
                    {"from": [{"namespace_selector": {}}], "ports": [_port(METRICS_PORT)]},
                ],
                "egress": [
                    names,
                    platform,
                    {"to": [controller], "ports": [_port(INTERNAL_PORT)]},
                ],
            },
        )
        self._policy(
            "controller",
            {
                "pod_selector": controller["pod_selector"],
                "policy_types": ["Ingress", "Egress"],
                "ingress": [
                    {"from": [gateway], "ports": [_port(INTERNAL_PORT)]},
                    {"from": [{"namespace_selector": {}}], "ports": [_port(METRICS_PORT)]},
                    # the kubelet's probes come from the node
                    {"from": networks, "ports": [_port(INTERNAL_PORT)]},
                ],
                "egress": [names, platform],
            },
        )
        self.register_outputs({})

    def _policy(self, suffix: str, spec: dict[str, Any]) -> None:
        k8s.networking.v1.NetworkPolicy(
            f"{self._name_prefix}-{suffix}",
            metadata=meta(f"dsec-{suffix}", self._labels, namespace=self._namespace),
            spec=spec,
            opts=self._child(),
        )


def _port(port: int, protocol: str = "TCP") -> dict[str, Any]:
    return {"port": port, "protocol": protocol}


def _pods(part: str) -> dict[str, Any]:
    return {"pod_selector": {"match_labels": {"app.kubernetes.io/name": f"dsec-{part}"}}}
