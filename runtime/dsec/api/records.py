"""The records: Kubernetes objects of group dsec.dev, one class per kind."""

from typing import Any, ClassVar

from dsec.api.base import WireModel
from dsec.api.budget import BudgetSpec, BudgetStatus
from dsec.api.experiment import ExperimentSpec
from dsec.api.meta import API_VERSION, ObjectMeta
from dsec.api.nodes import (
    SandboxImageSpec,
    SandboxImageStatus,
    SandboxNodePoolSpec,
    SandboxNodePoolStatus,
    SandboxNodeSpec,
    SandboxNodeStatus,
)
from dsec.api.replication import ReplicationPolicySpec, ReplicationPolicyStatus
from dsec.api.status import ExperimentStatus
from dsec.api.tenant import TenantSpec, TenantStatus


class RecordModel(WireModel):
    """A record with Kubernetes metadata. Unknown keys are ignored: a newer server may add some."""

    PLURAL: ClassVar[str]
    SHORT: ClassVar[str]
    NAMESPACED: ClassVar[bool] = False

    api_version: str = API_VERSION
    kind: str
    metadata: ObjectMeta = ObjectMeta()

    def record(self) -> dict[str, Any]:
        """Return the JSON object for the record store.

        The spec holds only what was set, so that a default that changes later still applies; empty
        metadata fields are left out; the status is whole.
        """
        data: dict[str, Any] = self.wire()
        data["metadata"] = {key: value for key, value in data["metadata"].items() if value}
        asked = self.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_unset=True, include={"spec"}
        )
        data["spec"] = asked.get("spec", {})
        return data


class Experiment(RecordModel):
    """A set of roles and replicas that run together: what the sources call a task."""

    PLURAL = "experiments"
    SHORT = "dexp"
    NAMESPACED = True

    kind: str = "Experiment"
    spec: ExperimentSpec
    status: ExperimentStatus = ExperimentStatus()

    @property
    def given_name(self) -> str:
        """The name that the user gave."""
        return self.spec.name or self.metadata.name


class Tenant(RecordModel):
    """A team with quota, projects and defaults."""

    PLURAL = "tenants"
    SHORT = "dten"

    kind: str = "Tenant"
    spec: TenantSpec = TenantSpec()
    status: TenantStatus = TenantStatus()


class SandboxNodePool(RecordModel):
    """Nodes of one make."""

    PLURAL = "sandboxnodepools"
    SHORT = "dpool"

    kind: str = "SandboxNodePool"
    spec: SandboxNodePoolSpec = SandboxNodePoolSpec()
    status: SandboxNodePoolStatus = SandboxNodePoolStatus()


class SandboxNode(RecordModel):
    """A machine that runs sandboxes."""

    PLURAL = "sandboxnodes"
    SHORT = "dnode"

    kind: str = "SandboxNode"
    spec: SandboxNodeSpec = SandboxNodeSpec()
    status: SandboxNodeStatus = SandboxNodeStatus()


class SandboxImage(RecordModel):
    """An image that experiments of a project use."""

    PLURAL = "sandboximages"
    SHORT = "dimg"
    NAMESPACED = True

    kind: str = "SandboxImage"
    spec: SandboxImageSpec
    status: SandboxImageStatus = SandboxImageStatus()


class Budget(RecordModel):
    """The most that an account, a project, a task or a pool may spend in a period."""

    PLURAL = "budgets"
    SHORT = "dbud"
    NAMESPACED = True

    kind: str = "Budget"
    spec: BudgetSpec
    status: BudgetStatus = BudgetStatus()


class ReplicationPolicy(RecordModel):
    """Which snapshots are copied to other regions, how often, and how far the copies are behind."""

    PLURAL = "replicationpolicies"
    SHORT = "drep"

    kind: str = "ReplicationPolicy"
    spec: ReplicationPolicySpec
    status: ReplicationPolicyStatus = ReplicationPolicyStatus()


RECORDS: tuple[type[RecordModel], ...] = (
    Experiment,
    SandboxImage,
    Tenant,
    SandboxNodePool,
    SandboxNode,
    Budget,
    ReplicationPolicy,
)
"""Every kind, in the order in which CRDs are written."""
