"""Runtime: the control plane and the agents, in the order in which they need each other."""

from typing import Any, TypedDict

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.config import (
    Deletion,
    Exposure,
    GatewayConfig,
    ImagesConfig,
    PlatformConfig,
    Profile,
    PrometheusConfig,
    RegistryTls,
)

from dsec_components.access import Access
from dsec_components.admission import Admission
from dsec_components.agents import Agents
from dsec_components.args import (
    AgentPart,
    GatewayPart,
    ObjectStore,
    RuntimeArgs,
    Scaling,
    ServerPart,
)
from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.definitions import Definitions
from dsec_components.network import NetworkRules
from dsec_components.node_pool import buys
from dsec_components.prometheus import PrometheusServer, address
from dsec_components.servers import Controllers, Gateways, ServerArgs
from dsec_components.settings import Settings

HTTPS = 443


class Runtime(Component):
    """The dsec control plane and its agents on one Kubernetes cluster."""

    namespace: pulumi.Output[str]
    """Namespace of the control plane."""
    gateway_url: pulumi.Output[str]
    """Where clients reach the gateway."""
    ca_certificate: pulumi.Output[str]
    """Authority that signed the gateway's certificate, as PEM."""
    api_key: pulumi.Output[str]
    """An administrator's API key. Secret."""

    def __init__(
        self, name: str, args: RuntimeArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create namespace, definitions, accounts, settings, servers, agents and admission."""
        super().__init__(name, args, opts)
        labels, deletion = args.get("labels", {}), args.get("deletion", Deletion.PROTECT)
        physical = args.get("namespace") or "dsec-system"
        namespace = self._namespace(physical, args)
        self.namespace = namespace.metadata.apply(lambda data: data.name or physical)
        inside: Placed = {"namespace": self.namespace, "labels": labels}
        definitions = Definitions(
            f"{name}-definitions", {"deletion": deletion, "labels": labels}, self._child()
        )
        access = Access(f"{name}-access", inside, self._child())
        settings = self._settings(args, inside)
        rules = NetworkRules(
            f"{name}-network",
            {
                **inside,
                "cluster_networks": _networks(args),
                "prometheus": _has_prometheus(args),
            },
            self._child(),
        )
        if _has_prometheus(args):
            self._prometheus(args, inside, rules)
        before = self._child(depends_on=[definitions, access, settings, rules])
        gateway_part: GatewayPart = args.get("gateway", {})
        sizes = _sizes(args)
        gateways = Gateways(
            f"{name}-gateway",
            {
                **self._server(args, inside, gateway_part, settings),
                "replicas": gateway_part.get("replicas") or sizes.gateway_replicas,
                "exposure": gateway_part.get("exposure") or Exposure.CLUSTER_IP,
                "node_port": gateway_part.get("node_port") or 0,
                "memory_bytes": gateway_part.get("memory_bytes") or GatewayConfig().memory_bytes,
            },
            before,
        )
        controller_part: ServerPart = args.get("controller", {})
        controllers = Controllers(
            f"{name}-controller",
            {
                **self._server(args, inside, controller_part, settings),
                "replicas": controller_part.get("replicas") or sizes.controller_replicas,
            },
            before,
        )
        self._agents(args, inside, settings, gateways)
        ready = args.get("await_ready", True)
        Admission(
            f"{name}-admission",
            {**inside, "ca_certificate": settings.ca_certificate, "webhook": ready},
            # a webhook that nobody serves would lock everyone out
            self._child(depends_on=[definitions, gateways, controllers]),
        )
        self.ca_certificate, self.api_key = settings.ca_certificate, settings.api_key
        self.gateway_url = _url(gateway_part, self.namespace)
        self.register_outputs(
            {
                "namespace": self.namespace,
                "gateway_url": self.gateway_url,
                "ca_certificate": self.ca_certificate,
                "api_key": self.api_key,
            }
        )

    def _namespace(self, physical: str, args: RuntimeArgs) -> k8s.core.v1.Namespace:
        labels = merged_labels("dsec-namespace", self._name_prefix, args.get("labels"))
        return k8s.core.v1.Namespace(
            f"{self._name_prefix}-namespace",
            # agents make namespaces and mounts: nothing below privileged admits them
            metadata=meta(physical, {**labels, "pod-security.kubernetes.io/enforce": "privileged"}),
            opts=self._child(),
        )

    def _settings(self, args: RuntimeArgs, inside: Placed) -> Settings:
        store: ObjectStore = args.get("object_store", {})
        config: dict[str, Any] = {
            "region": args.get("region", "local"),
            "namespace": self.namespace,
            "logLevel": args.get("log_level", "info"),
            "presets": args.get("presets", {}),
            "scheduling": args.get("scheduling", {}),
            "scaling": self._scaling(args),
            "suppliers": args.get("suppliers", {}),
            "objectStore": {
                "endpoint": store.get("endpoint", ""),
                "bucket": store.get("bucket", "dsec"),
                "region": store.get("region", "us-east-1"),
            },
        }
        if args.get("snapshot_key"):
            config["snapshots"] = {
                "kmsKey": args["snapshot_key"],
                "kmsRegion": store.get("region", "us-east-1"),
            }
        return Settings(
            f"{self._name_prefix}-settings",
            {
                **inside,
                "config": config,
                "host": args.get("gateway", {}).get("host", ""),
                "object_store_secret": store.get("secret") or "dsec-object-store",
                "access_key": store.get("access_key", ""),
                "secret_key": store.get("secret_key", ""),
            },
            self._child(),
        )

    def _server(
        self, args: RuntimeArgs, inside: Placed, part: GatewayPart | ServerPart, settings: Settings
    ) -> ServerArgs:
        return {
            **inside,
            "image": args["images"]["runtime"],
            "pull_policy": args["images"].get("pull_policy", "IfNotPresent"),
            "replicas": 1,
            "exposure": Exposure.CLUSTER_IP,
            "node_port": 0,
            "cpu_milli": part.get("cpu_milli") or 100,
            "memory_bytes": part.get("memory_bytes") or 512 << 20,
            **_registry(args),
            "config_digest": settings.digest,
            "object_store_secret": args.get("object_store", {}).get("secret")
            or "dsec-object-store",
            "await_ready": args.get("await_ready", True),
        }

    def _agents(
        self, args: RuntimeArgs, inside: Placed, settings: Settings, gateways: Gateways
    ) -> None:
        part: AgentPart = args.get("agent", {})
        Agents(
            f"{self._name_prefix}-agent",
            {
                **inside,
                "image": args["images"]["agent"],
                "pull_policy": args["images"].get("pull_policy", "IfNotPresent"),
                "cpu_milli": part.get("cpu_milli") or 100,
                "memory_bytes": part.get("memory_bytes") or 512 << 20,
                "port": part.get("port") or 7443,
                "state_dir": part.get("state_dir") or "/var/lib/dsec",
                "cgroup": part.get("cgroup") or "/dsec",
                "node_selector": part.get("node_selector") or {},
                # bought nodes join by themselves: no kubelet starts their agents
                "pools": {
                    pool: spec for pool, spec in args.get("pools", {}).items() if not buys(spec)
                },
                "max_unavailable": part.get("max_unavailable") or 1,
                "gateway_address": gateways.service_address,
                **_registry(args),
                "log_level": args.get("log_level", "info"),
                "config_digest": settings.digest,
                "await_ready": args.get("await_ready", True),
            },
            self._child(depends_on=[gateways]),
        )

    def _scaling(self, args: RuntimeArgs) -> Scaling:
        told: Scaling = {**args.get("scaling", {})}
        if _has_prometheus(args) and not told.get("prometheus"):
            told["prometheus"] = address(self.namespace)
        return told

    def _prometheus(self, args: RuntimeArgs, inside: Placed, rules: NetworkRules) -> None:
        part, usual = args.get("prometheus", {}), PrometheusConfig()
        image = part.get("image")
        if not image:
            raise pulumi.InputPropertyError("prometheus.image", "must name an image: it is enabled")
        PrometheusServer(
            f"{self._name_prefix}-prometheus",
            {
                **inside,
                "image": image,
                "pull_policy": args["images"].get("pull_policy", "IfNotPresent"),
                "scrape_seconds": int(part.get("scrape_seconds") or usual.scrape_seconds),
                "retention_hours": int(part.get("retention_hours") or usual.retention_hours),
                "disk_bytes": part.get("disk_bytes") or usual.disk_bytes,
                "cpu_milli": part.get("cpu_milli") or usual.cpu_milli,
                "memory_bytes": part.get("memory_bytes") or usual.memory_bytes,
                "cluster_networks": _networks(args),
                "await_ready": args.get("await_ready", True),
            },
            self._child(depends_on=[rules]),
        )


def _has_prometheus(args: RuntimeArgs) -> bool:
    return bool(args.get("prometheus", {}).get("enabled"))


def _networks(args: RuntimeArgs) -> list[str]:
    return args.get("cluster_networks") or ["0.0.0.0/0"]


def _sizes(args: RuntimeArgs) -> PlatformConfig:
    """Return the profile's figures."""
    profile = Profile(args.get("profile", Profile.SMALL))
    return PlatformConfig(images=ImagesConfig(runtime="any", agent="any"), profile=profile)


class _Registry(TypedDict):
    registry: pulumi.Input[str]
    plain_registry: bool


def _registry(args: RuntimeArgs) -> _Registry:
    """Return where pods find images, and whether the way there is plain HTTP."""
    told = args.get("registry", {})
    tls = RegistryTls(told.get("tls", RegistryTls.VERIFY))
    return {
        "registry": told.get("host", ""),
        "plain_registry": tls is RegistryTls.LAN_INSECURE,
    }


def _url(part: GatewayPart, namespace: pulumi.Output[str]) -> pulumi.Output[str]:
    """Return the URL that clients use; without a host name it is the Service's."""
    host, port = part.get("host"), part.get("node_port")
    inside = pulumi.Output.concat("dsec-gateway.", namespace, ".svc")
    name = pulumi.Output.from_input(host) if host else inside
    if host and port and part.get("exposure") == Exposure.NODE_PORT:
        return pulumi.Output.concat("https://", name, f":{port}")
    return pulumi.Output.concat("https://", name, f":{HTTPS}")
