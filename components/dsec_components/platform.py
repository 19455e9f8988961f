"""Platform: one installation, whole, from one typed configuration."""

from typing import Any

import pulumi
from dsec.api.config import Deletion, PlatformConfig

from dsec_components.args import (
    BudgetArgs,
    ExperimentArgs,
    PlatformArgs,
    PlatformBudget,
    PlatformExperiment,
    RuntimeArgs,
    SnapshotHome,
    SnapshotStoreArgs,
    Wait,
)
from dsec_components.budget import Budget
from dsec_components.common import Component
from dsec_components.experiment import Experiment
from dsec_components.guard import DeletionGuard
from dsec_components.node_pool import CloudBurstNodePool, OnPremNodePool, buys
from dsec_components.registry import ImageRegistry
from dsec_components.runtime import Runtime
from dsec_components.snapshot_store import SnapshotStore, buckets_of
from dsec_components.tenant import Tenant

RUNTIME_KEYS = tuple(
    key for key in PlatformArgs.__annotations__ if key in RuntimeArgs.__annotations__
)
"""What a platform hands on to its runtime as it is."""


class Platform(Component):
    """Runtime, registry, stores, pools, tenants, experiments of a stack, and what guards them."""

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
        snapshots = _snapshots(args)
        # pods that start without their bucket would fail until it is there
        buckets = buckets_of(f"{name}-buckets", snapshots, self._child()) if snapshots else None
        runtime = Runtime(
            f"{name}-runtime",
            _runtime(args),
            self._child(depends_on=[buckets] if buckets else []),
        )
        after = self._child(depends_on=[runtime])
        made: list[pulumi.Resource] = [runtime]
        if snapshots:
            inside: SnapshotStoreArgs = {**snapshots, "namespace": runtime.namespace}
            made.append(SnapshotStore(f"{name}-snapshots", inside, after, made=buckets))
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
            made.append(self._experiment(experiment, one, args, ground))
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

    def _experiment(
        self,
        name: str,
        one: PlatformExperiment,
        args: PlatformArgs,
        opts: pulumi.ResourceOptions,
    ) -> Experiment:
        inputs: ExperimentArgs = {"project": one["project"], "labels": args.get("labels", {})}
        if "spec" in one:
            inputs["spec"] = one["spec"]
        if "document" in one:
            inputs["document_file"] = one["document"]
        if not args.get("await_ready", True):
            # nobody is there to accept it
            inputs["wait"] = Wait.NONE
        elif "wait" in one:
            inputs["wait"] = one["wait"]
        return Experiment(f"{self._name_prefix}-{name}", inputs, opts)

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


def _snapshots(args: PlatformArgs) -> SnapshotStoreArgs | None:
    """Return the inputs of the snapshot store, whose home is the platform's object store."""
    asked = args.get("snapshots")
    if asked is None:
        return None
    store = args.get("object_store", {})
    region, bucket = store.get("region", "us-east-1"), store.get("bucket", "dsec")
    if not isinstance(region, str) or not isinstance(bucket, str):
        # names of what is made on AWS, and its provider, follow from them
        raise pulumi.InputPropertyError(
            "objectStore", "region and bucket must be plain texts where snapshots are declared"
        )
    home: SnapshotHome = {"region": region, "bucket": bucket}
    if store.get("endpoint"):
        home["endpoint"] = store["endpoint"]
    if "create" in asked:
        home["create"] = asked["create"]
    inputs: SnapshotStoreArgs = {
        "home": home,
        "region": args.get("region", "local"),
        "deletion": args.get("deletion", Deletion.PROTECT),
        "labels": args.get("labels", {}),
    }
    for key in ("copies", "replication", "roles", "kms_key", "version_days"):
        if key in asked:
            inputs[key] = asked[key]
    return inputs


def _runtime(args: PlatformArgs) -> RuntimeArgs:
    inputs: RuntimeArgs = {key: args[key] for key in RUNTIME_KEYS if key in args}  # type: ignore[assignment, literal-required]
    if key := args.get("snapshots", {}).get("kms_key"):
        inputs["snapshot_key"] = key
    return inputs


def platform_args(config: PlatformConfig, kubeconfig: pulumi.Input[str]) -> PlatformArgs:
    """Return the component's inputs of a validated stack configuration, nothing filled in."""
    data: Any = config.model_dump(exclude_unset=True, exclude_none=True)
    data["kubeconfig"] = kubeconfig
    arguments: PlatformArgs = data
    return arguments
