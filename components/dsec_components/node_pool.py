"""OnPremNodePool: machines of one make that are already there."""

import pulumi
from dsec.api.names import dns_name
from dsec.api.nodes import SandboxNodePoolSpec

from dsec_components.args import OnPremNodePoolArgs
from dsec_components.common import Component, merged_labels
from dsec_components.inputs import checked
from dsec_components.record import record


class OnPremNodePool(Component):
    """A pool of nodes that nobody buys or returns: kind, labels, agent settings."""

    pool_name: pulumi.Output[str]
    """Name of the SandboxNodePool."""

    def __init__(
        self, name: str, args: OnPremNodePoolArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create the record. Raises pulumi.InputPropertiesError with every mistake."""
        super().__init__(name, args, opts)
        physical = args.get("pool_name") or dns_name(name)
        self._record = record(
            f"{name}-pool",
            "SandboxNodePool",
            physical,
            checked(f"OnPremNodePool '{name}'", SandboxNodePoolSpec, args.get("spec") or {}),
            labels=merged_labels("dsec-pool", name, args.get("labels")),
            opts=self._child(),
        )
        self.pool_name = pulumi.Output.from_input(physical)
        self.register_outputs({"pool_name": self.pool_name})
