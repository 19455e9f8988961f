"""Network policies of the control plane: everything is closed but what is listed here."""

from typing import Any, NotRequired

import pulumi
import pulumi_kubernetes as k8s

from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.servers import (
    API_PORT,
    INTERNAL_PORT,
    METRICS_PORT,
    PROMETHEUS_PORT,
    WEBHOOK_PORT,
)


class NetworkRulesArgs(Placed):
    """Inputs of NetworkRules."""

    cluster_networks: list[str]
    """CIDRs of nodes, API server and object store."""
    prometheus: NotRequired[bool]
    """The controller asks the platform's own Prometheus."""


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
        networks = addresses(args["cluster_networks"])
        names = names_of_hosts()
        # API server, agents and object store listen on ports of their owners' choice
        platform = {"to": networks}
        gateway, controller = pods("gateway"), pods("controller")
        metrics = {"to": [pods("prometheus")], "ports": [port(PROMETHEUS_PORT)]}
        self._policy("deny-all", {"pod_selector": {}, "policy_types": ["Ingress", "Egress"]})
        self._policy(
            "gateway",
            deny_all_but(
                gateway["pod_selector"],
                ingress=[
                    # the API is for everyone; who may do what is decided by its own checks
                    {"from": [everyone], "ports": [port(API_PORT), port(WEBHOOK_PORT)]},
                    {"from": [{"namespace_selector": {}}], "ports": [port(METRICS_PORT)]},
                ],
                egress=[
                    names,
                    platform,
                    {"to": [controller], "ports": [port(INTERNAL_PORT)]},
                ],
            ),
        )
        self._policy(
            "controller",
            deny_all_but(
                controller["pod_selector"],
                ingress=[
                    {"from": [gateway], "ports": [port(INTERNAL_PORT)]},
                    {"from": [{"namespace_selector": {}}], "ports": [port(METRICS_PORT)]},
                    # the kubelet's probes come from the node
                    {"from": networks, "ports": [port(INTERNAL_PORT)]},
                ],
                egress=[names, platform, *([metrics] if args.get("prometheus") else [])],
            ),
        )
        self.register_outputs({})

    def _policy(self, suffix: str, spec: dict[str, Any]) -> None:
        k8s.networking.v1.NetworkPolicy(
            f"{self._name_prefix}-{suffix}",
            metadata=meta(f"dsec-{suffix}", self._labels, namespace=self._namespace),
            spec=spec,
            opts=self._child(),
        )


def port(number: int, protocol: str = "TCP") -> dict[str, Any]:
    """Return one port of a rule."""
    return {"port": number, "protocol": protocol}


def pods(part: str) -> dict[str, Any]:
    """Return the pods of a part of the control plane, as a peer of a rule."""
    return {"pod_selector": {"match_labels": {"app.kubernetes.io/name": f"dsec-{part}"}}}


def addresses(networks: list[str]) -> list[dict[str, Any]]:
    """Return networks as peers of a rule."""
    return [{"ip_block": {"cidr": one}} for one in networks]


def names_of_hosts() -> dict[str, Any]:
    """Return the rule that lets pods ask for names, wherever the cluster's DNS is."""
    return {"ports": [port(53, "UDP"), port(53)]}


def deny_all_but(
    selector: dict[str, Any], *, ingress: list[dict[str, Any]], egress: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the policy of some pods that opens both ways for what is listed, and nothing else."""
    return {
        "pod_selector": selector,
        "policy_types": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
