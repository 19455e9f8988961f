"""ImageRegistry: where images come from, and how far the way there is trusted."""

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.config import RegistryTls
from dsec.api.meta import GROUP
from dsec.api.names import dns_name

from dsec_components.args import ImageRegistryArgs
from dsec_components.common import Component, merged_labels, meta


class ImageRegistry(Component):
    """An image registry as the control plane and the nodes see it."""

    host: pulumi.Output[str]
    """host:port that nodes use."""

    def __init__(
        self, name: str, args: ImageRegistryArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create the ConfigMap dsec-registry-<name> that controllers and agents read."""
        super().__init__(name, args, opts)
        physical = args.get("registry_name") or dns_name(name)
        labels = merged_labels("dsec-registry", name, args.get("labels"))
        tls = RegistryTls(args.get("tls", RegistryTls.VERIFY))
        content = {
            "name": physical,
            "host": args["host"],
            "tls": tls.value,
            "immutableTags": args.get("immutable_tags", True),
            "mirrors": [dict(one) for one in args.get("mirrors", [])],
        }
        k8s.core.v1.ConfigMap(
            f"{name}-config",
            metadata=meta(
                f"dsec-registry-{physical}",
                {**labels, f"{GROUP}/registry": physical},
                namespace=args.get("namespace", "dsec-system"),
            ),
            data={"registry.json": pulumi.Output.json_dumps(content, sort_keys=True, indent=1)},
            opts=self._child(),
        )
        self.host = pulumi.Output.from_input(args["host"])
        self.register_outputs({"host": self.host})
