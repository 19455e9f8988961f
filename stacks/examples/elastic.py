"""An experiment whose count follows a question to Prometheus: here, how much waits in a queue."""

import pulumi
from dsec_components.experiment import Experiment

NAME = "example-elastic"
QUERY = 'sum(dsec_queue_depth{project="$project",experiment="$experiment",queue="work"})'
"""Any PromQL that gives one number; the gateway exports the depth of each task queue."""


def declare(project: str, opts: pulumi.ResourceOptions) -> Experiment:
    """Return one small sandbox that becomes up to three while more than four items wait."""
    return Experiment(
        NAME,
        {
            "project": project,
            "spec": {
                "roles": [
                    {
                        "name": "worker",
                        "replicas": 1,
                        "min": 1,
                        "max": 3,
                        "command": ["sleep", "infinity"],
                        "resources": {
                            "cpu_milli": 10,
                            "memory_bytes": 16 << 20,
                            "pids": 16,
                            "disk_bytes": 16 << 20,
                        },
                        "elastic": {
                            "metric": "queue_depth",
                            "preset": "role-queue",
                            "query": QUERY,
                            "target": 4,
                            "per_instance_rate": 2,
                            "period_seconds": 5,
                            "grow_periods": 2,
                            "shrink_periods": 2,
                        },
                    }
                ],
                "labels": {"purpose": "example"},
            },
        },
        opts,
    )
