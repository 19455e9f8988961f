"""Platform: one installation, whole, from one typed configuration."""

from typing import Any

import pulumi
from dsec.api.config import Deletion, PlatformConfig

from dsec_components.args import (
    BudgetArgs,
    ExperimentArgs,
    PlatformArgs,
    PlatformBudget,
    RuntimeArgs,
    Wait,
)
from dsec_components.budget import Budget
from dsec_components.common import Component
from dsec_components.experiment import Experiment
from dsec_components.guard import DeletionGuard
from dsec_components.node_pool import CloudBurstNodePool, OnPremNodePool, buys
from dsec_components.registry import ImageRegistry
from dsec_components.runtime import Runtime
from dsec_components.tenant import Tenant

RUNTIME_KEYS = tuple(
    key for key in PlatformArgs.__annotations__ if key in RuntimeArgs.__annotations__
)
"""What a platform hands on to its runtime as it is."""


class Platform(Component):
    """Runtime, registry, pools, tenants and experiments of one stack, and what guards them."""

    namespace: pulumi.Output[str]
    """Namespace of the control plane."""
    gateway_url: pulumi.Output[str]
    """Where clients reach the gateway."""
    ca_certificate: pulumi.Output[str]
    """Authority that signed the gateway's certificate, as PEM."""
    api_key: pulumi.Output[str]
    """An administrator's API key. Secret."""

    def __init__(
        self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create everything, in the order in which it needs each other."""
        super().__init__(name, args, opts)
        labels = args.get("labels", {})
        runtime = Runtime(f"{name}-runtime", _runtime(args), self._child())
        after = self._child(depends_on=[runtime])
        made: list[pulumi.Resource] = [runtime]
        registry = args.get("registry")
        if registry and registry.get("host"):
            made.append(
                ImageRegistry(
                    f"{name}-registry",
                    {
                        **registry,
                        "host": registry["host"],
                        "registry_name": "main",
                        "namespace": runtime.namespace,
                        "labels": labels,
                    },
                    after,
                )
            )
        for pool, pool_spec in args.get("pools", {}).items():
            kind = CloudBurstNodePool if buys(pool_spec) else OnPremNodePool
            made.append(
                kind(
                    f"{name}-{pool}",
                    {"spec": pool_spec, "pool_name": pool, "labels": labels},
                    after,
                )
            )
        for tenant, tenant_spec in args.get("tenants", {}).items():
            made.append(
                Tenant(
                    f"{name}-{tenant}",
                    {"spec": tenant_spec, "tenant_name": tenant, "labels": labels},
                    self._child(depends_on=list(made)),
                )
            )
        for budget, limit in args.get("budgets", {}).items():
            made.append(self._budget(budget, limit, runtime, args, list(made)))
        ground = self._child(depends_on=list(made))
        for experiment, one in args.get("experiments", {}).items():
            inputs: ExperimentArgs = {"project": one["project"], "labels": labels}
            if "spec" in one:
                inputs["spec"] = one["spec"]
            if "document" in one:
                inputs["document_file"] = one["document"]
            if not args.get("await_ready", True):
                # nobody is there to accept it
                inputs["wait"] = Wait.NONE
            elif "wait" in one:
                inputs["wait"] = one["wait"]
            made.append(Experiment(f"{name}-{experiment}", inputs, ground))
        self._guard = DeletionGuard(
            f"{name}-guard",
            kubeconfig=args["kubeconfig"],
            deletion=Deletion(args.get("deletion", Deletion.PROTECT)),
            opts=self._child(depends_on=made),
        )
        self.namespace, self.gateway_url = runtime.namespace, runtime.gateway_url
        self.ca_certificate, self.api_key = runtime.ca_certificate, runtime.api_key
        self.register_outputs(
            {
                "namespace": self.namespace,
                "gateway_url": self.gateway_url,
                "ca_certificate": self.ca_certificate,
                "api_key": self.api_key,
            }
        )

    def _budget(
        self,
        name: str,
        limit: PlatformBudget,
        runtime: Runtime,
        args: PlatformArgs,
        before: list[pulumi.Resource],
    ) -> Budget:
        """Create a budget before any experiment could spend it."""
        inputs: BudgetArgs = {
            "spec": limit["spec"],
            "budget_name": name,
            "namespace": runtime.namespace,
            "labels": args.get("labels", {}),
        }
        if "project" in limit:
            inputs["project"] = limit["project"]
        return Budget(f"{self._name_prefix}-{name}-budget", inputs, self._child(depends_on=before))


def _runtime(args: PlatformArgs) -> RuntimeArgs:
    return {key: args[key] for key in RUNTIME_KEYS if key in args}  # type: ignore[return-value, literal-required]


def platform_args(config: PlatformConfig, kubeconfig: pulumi.Input[str]) -> PlatformArgs:
    """Return the component's inputs of a validated stack configuration, nothing filled in."""
    data: Any = config.model_dump(exclude_unset=True, exclude_none=True)
    data["kubeconfig"] = kubeconfig
    arguments: PlatformArgs = data
    return arguments
