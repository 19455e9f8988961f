"""An experiment in Python: a trainer and two workers that show who they are."""

import pulumi
from dsec_components.experiment import Experiment

SCRIPT = """
echo "$DSEC_SANDBOX_ID: role $DSEC_ROLE of $DSEC_TASK_ID, tenant $DSEC_TENANT_ID"
while sleep 5; do date; done
"""


def declare(project: str, opts: pulumi.ResourceOptions) -> Experiment:
    """Return three small sandboxes in two roles, kept at their count."""
    limits = {"cpu_milli": 50, "memory_bytes": 64 << 20, "pids": 64, "disk_bytes": 64 << 20}
    return Experiment(
        "example-roles",
        {
            "project": project,
            "spec": {
                "roles": [
                    {
                        "name": name,
                        "replicas": replicas,
                        "command": ["/bin/sh", "-c", SCRIPT],
                        "resources": limits,
                    }
                    for name, replicas in (("trainer", 1), ("worker", 2))
                ],
                "labels": {"purpose": "example"},
            },
        },
        opts,
    )
