"""Admission: policies that the API server checks itself, and the webhook for the rest."""

import base64
from typing import Any, NotRequired

import pulumi
import pulumi_kubernetes as k8s
from dsec.api.meta import GROUP

from dsec_components.common import Component, Placed, merged_labels, meta
from dsec_components.definitions import packaged

EXEMPT = ["kube-system"]
"""Namespaces that admission leaves alone, beside the control plane's own."""


class AdmissionArgs(Placed):
    """Inputs of Admission."""

    ca_certificate: pulumi.Input[str]
    """Authority that signed the webhook's certificate, as PEM."""
    webhook: NotRequired[bool]
    """Install the webhook (default); false only where no pod can serve it."""


class Admission(Component):
    """What refuses a record that can never run, with every mistake at once."""

    def __init__(
        self, name: str, args: AdmissionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Create the policies with their bindings, and the webhook."""
        super().__init__(name, args, opts)
        self._labels = merged_labels("dsec-admission", name, args.get("labels"))
        for manifest in packaged("admission"):
            self._policy(manifest)
        if args.get("webhook", True):
            self._webhook(args)
        self.register_outputs({})

    def _policy(self, manifest: dict[str, Any]) -> None:
        kinds = {
            "ValidatingAdmissionPolicy": k8s.admissionregistration.v1.ValidatingAdmissionPolicy,
            "ValidatingAdmissionPolicyBinding": (
                k8s.admissionregistration.v1.ValidatingAdmissionPolicyBinding
            ),
        }
        physical = manifest["metadata"]["name"]
        binding = manifest["kind"].endswith("Binding")
        stem = physical.removeprefix("dsec-").replace(f".{GROUP}", "")
        kinds[manifest["kind"]](
            f"{self._name_prefix}-{stem}-{'binding' if binding else 'policy'}",
            metadata=meta(physical, self._labels),
            spec=manifest["spec"],
            opts=self._child(),
        )

    def _webhook(self, args: AdmissionArgs) -> None:
        exempt = pulumi.Output.from_input(args["namespace"]).apply(lambda own: [*EXEMPT, own])
        bundle = pulumi.Output.from_input(args["ca_certificate"]).apply(
            lambda pem: base64.b64encode(pem.encode()).decode()
        )
        k8s.admissionregistration.v1.ValidatingWebhookConfiguration(
            f"{self._name_prefix}-webhook",
            metadata=meta("dsec-records", self._labels),
            webhooks=[
                {
                    "name": f"records.{GROUP}",
                    "admission_review_versions": ["v1"],
                    "side_effects": "None",
                    # without an answer nothing enters: a rule that is skipped is no rule
                    "failure_policy": "Fail",
                    "match_policy": "Equivalent",
                    "timeout_seconds": 10,
                    "client_config": {
                        "ca_bundle": bundle,
                        "service": {
                            "name": "dsec-webhook",
                            "namespace": args["namespace"],
                            "path": "/admission",
                            "port": 443,
                        },
                    },
                    "namespace_selector": {
                        "match_expressions": [
                            {
                                "key": "kubernetes.io/metadata.name",
                                "operator": "NotIn",
                                "values": exempt,
                            }
                        ]
                    },
                    "rules": [
                        {
                            "api_groups": [GROUP],
                            "api_versions": ["*"],
                            # status and nodes are the runtime's own writes
                            "resources": [
                                "experiments",
                                "sandboximages",
                                "tenants",
                                "sandboxnodepools",
                                "replicationpolicies",
                            ],
                            "operations": ["CREATE", "UPDATE"],
                            "scope": "*",
                        }
                    ],
                }
            ],
            opts=self._child(),
        )
