"""Pools of nodes: OnPremNodePool of machines that are there, CloudBurstNodePool of bought ones."""

from collections.abc import Callable, Mapping
from typing import Any

import pulumi
from dsec.api.mistakes import Mistake
from dsec.api.names import dns_name
from dsec.api.nodes import SandboxNodePoolSpec
from dsec.rules import POOL_RULES, Severity, check
from dsec.rules.pools import OWN, SPENDING

from dsec_components.args import CloudBurstNodePoolArgs, OnPremNodePoolArgs
from dsec_components.common import Component, merged_labels
from dsec_components.inputs import checked
from dsec_components.record import record

Judge = Callable[[SandboxNodePoolSpec], list[Mistake]]


class NodePool(Component):
    """What both kinds of pool have in common: the record, judged by the rules of pools."""

    pool_name: pulumi.Output[str]
    """Name of the SandboxNodePool."""

    def _declare(self, args: OnPremNodePoolArgs | CloudBurstNodePoolArgs, supplied: Judge) -> None:
        physical = args.get("pool_name") or dns_name(self._name_prefix)

        def judge(spec: SandboxNodePoolSpec) -> list[Mistake]:
            # whether it fits the kind of pool at all comes first
            return supplied(spec) or self._contradictions(spec, physical)

        what = f"{type(self).__name__} '{self._name_prefix}'"
        self._record = record(
            f"{self._name_prefix}-pool",
            "SandboxNodePool",
            physical,
            checked(what, SandboxNodePoolSpec, args.get("spec") or {}, check=judge),
            labels=merged_labels("dsec-pool", self._name_prefix, args.get("labels")),
            opts=self._child(),
        )
        self.pool_name = pulumi.Output.from_input(physical)
        self.register_outputs({"pool_name": self.pool_name})

    def _contradictions(self, spec: SandboxNodePoolSpec, name: str) -> list[Mistake]:
        """Return what admission would refuse; say what it would warn of, already at preview."""
        found = check(spec.wire(), name=name, rules=POOL_RULES, kind="SandboxNodePool")
        for one in found:
            # nodes at any price are the policy pack's to tell: a budget may bound them
            if one.severity is Severity.WARNING and one.rule != SPENDING.name:
                pulumi.log.warn(f"{one.message} {one.remedy} ({one.path})", resource=self)
        return [
            Mistake(one.path.removeprefix("spec."), one.value, one.remedy, one.message)
            for one in found
            if one.severity is Severity.ERROR
        ]


class OnPremNodePool(NodePool):
    """A pool of own machines: kind, labels, agent settings; with scaling, switched on and off."""

    pool_name: pulumi.Output[str]
    """Name of the SandboxNodePool."""

    def __init__(
        self, name: str, args: OnPremNodePoolArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create the record. Raises pulumi.InputPropertiesError with every mistake."""
        super().__init__(name, args, opts)
        self._declare(args, _owned)


class CloudBurstNodePool(NodePool):
    """A pool whose nodes are bought when work waits and given back when it is done."""

    pool_name: pulumi.Output[str]
    """Name of the SandboxNodePool."""

    def __init__(
        self, name: str, args: CloudBurstNodePoolArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create the record. Raises pulumi.InputPropertiesError with every mistake."""
        super().__init__(name, args, opts)
        self._declare(args, _bought)


def buys(spec: Mapping[str, Any]) -> bool:
    """Say whether a pool's nodes are bought: no kubelet starts their agents."""
    supplier = (spec.get("scaling") or {}).get("supplier") or OWN
    if not isinstance(supplier, str):
        raise pulumi.InputPropertyError(
            "scaling.supplier", "must be plain text: which resources are made follows from it"
        )
    return supplier != OWN


def _owned(spec: SandboxNodePoolSpec) -> list[Mistake]:
    if spec.scaling is None or spec.scaling.supplier == OWN:
        return []
    said = spec.scaling.supplier
    return [Mistake("scaling.supplier", said, OWN, f"is {OWN} here; CloudBurstNodePool buys")]


def _bought(spec: SandboxNodePoolSpec) -> list[Mistake]:
    asked = spec.scaling
    if asked is None or asked.supplier == OWN:
        said = None if asked is None else asked.supplier
        rule = "aws or simulated"
        return [Mistake("scaling.supplier", said, rule, f"must be {rule}: who sells the nodes")]
    found = []
    if not asked.offerings:
        rule = "at least one make of node"
        found.append(Mistake("scaling.offerings", [], rule, f"must have {rule}"))
    if not asked.max_nodes:
        rule = "at least 1"
        found.append(Mistake("scaling.maxNodes", 0, rule, f"must be {rule}: nothing can be bought"))
    return found
