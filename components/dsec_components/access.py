"""Service accounts and the least rights that each process of the control plane needs."""

from collections.abc import Mapping, Sequence

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.meta import GROUP

from dsec_components.common import Component, Placed, merged_labels, meta

Rule = k8s.rbac.v1.PolicyRuleArgsDict

READ = ["get", "list", "watch"]
WRITE = ["create", "update", "patch", "delete"]
ADMIN_GROUP = f"{GROUP}:admins"
"""Callers with the stack's API key are in this group."""

GATEWAY_RULES: Sequence[Rule] = (
    # who is calling, and may they: answered by Kubernetes, never by the gateway itself
    {"api_groups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {
        "api_groups": ["authorization.k8s.io"],
        "resources": ["subjectaccessreviews"],
        "verbs": ["create"],
    },
    {"api_groups": [GROUP], "resources": ["*"], "verbs": READ},
    # submits, applies and deletes on behalf of callers, after the review
    {"api_groups": [GROUP], "resources": ["experiments"], "verbs": WRITE},
    # freeze and scale are kept in status.overrides; registrations in SandboxNode
    {
        "api_groups": [GROUP],
        "resources": ["experiments/status", "sandboxnodes/status"],
        "verbs": ["get", "update", "patch"],
    },
    {"api_groups": [GROUP], "resources": ["sandboxnodes"], "verbs": WRITE},
    # asks for a cycle of copies by an annotation
    {"api_groups": [GROUP], "resources": ["replicationpolicies"], "verbs": ["patch"]},
    {"api_groups": [""], "resources": ["namespaces"], "verbs": READ},
)
CONTROLLER_RULES: Sequence[Rule] = (
    {"api_groups": [GROUP], "resources": ["*"], "verbs": [*READ, *WRITE]},
    # the project and tenant labels of a namespace are the controller's alone
    {"api_groups": [""], "resources": ["namespaces"], "verbs": [*READ, "update", "patch"]},
    {"api_groups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
)
SYSTEM_RULES: Sequence[Rule] = (
    # in the control plane's own namespace only
    {"api_groups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [*READ, *WRITE]},
    {"api_groups": [""], "resources": ["configmaps"], "verbs": READ},
    {"api_groups": [""], "resources": ["secrets"], "verbs": READ},
)
EDITOR, VIEWER = "dsec-editor", "dsec-viewer"
MEMBERS: Mapping[str, Sequence[Rule]] = {
    VIEWER: (
        {
            "api_groups": [GROUP],
            "resources": ["experiments", "sandboximages", "budgets"],
            "verbs": READ,
        },
        # not stored in Kubernetes: the gateway asks for reviews under these names
        {
            "api_groups": [GROUP],
            "resources": ["experiments/queues", "sandboxes", "sandboxes/log"],
            "verbs": READ,
        },
    ),
    EDITOR: (
        {
            "api_groups": [GROUP],
            "resources": [
                *("experiments", "experiments/queues", "sandboximages"),
                *("sandboxes", "sandboxes/log", "sandboxes/exec"),
            ],
            "verbs": ["*"],
        },
        # who spends does not set the limit
        {"api_groups": [GROUP], "resources": ["budgets"], "verbs": READ},
    ),
}
"""What the bindings of a tenant's projects give."""


class Access(Component):
    """Service accounts of gateway, controller and agent, with their rights."""

    def __init__(self, name: str, args: Placed, opts: pulumi.ResourceOptions | None = None) -> None:
        """Create accounts, roles and bindings. An agent has no right in Kubernetes at all."""
        super().__init__(name, args, opts)
        self._namespace = args["namespace"]
        self._labels = merged_labels("dsec-access", name, args.get("labels"))
        accounts = {part: self._account(part) for part in ("gateway", "controller", "agent")}
        self._cluster_role("gateway", GATEWAY_RULES)
        self._cluster_role("controller", CONTROLLER_RULES)
        for part in ("gateway", "controller"):
            self._system_role(part, SYSTEM_RULES)
        self._administrators()
        for member, granted in MEMBERS.items():
            k8s.rbac.v1.ClusterRole(
                f"{name}-{member.removeprefix('dsec-')}-role",
                metadata=meta(member, self._labels),
                rules=list(granted),
                opts=self._child(),
            )
        self.register_outputs({})
        self._accounts = accounts

    def _account(self, part: str) -> k8s.core.v1.ServiceAccount:
        return k8s.core.v1.ServiceAccount(
            f"{self._name_prefix}-{part}",
            metadata=meta(f"dsec-{part}", self._labels, namespace=self._namespace),
            # tokens are projected into the pods that need one, with an audience and an end
            automount_service_account_token=False,
            opts=self._child(),
        )

    def _subject(self, part: str) -> k8s.rbac.v1.SubjectArgsDict:
        return {"kind": "ServiceAccount", "name": f"dsec-{part}", "namespace": self._namespace}

    def _cluster_role(self, part: str, rules: Sequence[Rule]) -> None:
        role = k8s.rbac.v1.ClusterRole(
            f"{self._name_prefix}-{part}-role",
            metadata=meta(f"dsec-{part}", self._labels),
            rules=list(rules),
            opts=self._child(),
        )
        k8s.rbac.v1.ClusterRoleBinding(
            f"{self._name_prefix}-{part}-binding",
            metadata=meta(f"dsec-{part}", self._labels),
            role_ref={
                "api_group": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": f"dsec-{part}",
            },
            subjects=[self._subject(part)],
            opts=self._child(depends_on=[role]),
        )

    def _system_role(self, part: str, rules: Sequence[Rule]) -> None:
        role = k8s.rbac.v1.Role(
            f"{self._name_prefix}-{part}-system-role",
            metadata=meta(f"dsec-{part}", self._labels, namespace=self._namespace),
            rules=list(rules),
            opts=self._child(),
        )
        k8s.rbac.v1.RoleBinding(
            f"{self._name_prefix}-{part}-system-binding",
            metadata=meta(f"dsec-{part}", self._labels, namespace=self._namespace),
            role_ref={
                "api_group": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": f"dsec-{part}",
            },
            subjects=[self._subject(part)],
            opts=self._child(depends_on=[role]),
        )

    def _administrators(self) -> None:
        role = k8s.rbac.v1.ClusterRole(
            f"{self._name_prefix}-admin-role",
            metadata=meta("dsec-admin", self._labels),
            rules=[{"api_groups": [GROUP], "resources": ["*"], "verbs": ["*"]}],
            opts=self._child(),
        )
        k8s.rbac.v1.ClusterRoleBinding(
            f"{self._name_prefix}-admin-binding",
            metadata=meta("dsec-admin", self._labels),
            role_ref={
                "api_group": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "dsec-admin",
            },
            subjects=[
                {"kind": "Group", "name": ADMIN_GROUP, "api_group": "rbac.authorization.k8s.io"}
            ],
            opts=self._child(depends_on=[role]),
        )
